"""The rules of the table of contents: ids, boundaries, titles, and where segments are cut."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from tests.memory.conftest import ms

from perdure.kernel.ids import derived_ulid
from perdure.memory import calendar
from perdure.memory.calendar import build_title, day_id, get_parent_id, list_ancestors, parse_id, segment_id
from perdure.memory.model import LATEST_MS
from perdure.memory.nodes import built, failed, new_node, started
from perdure.memory.operations.events import count_fitting
from perdure.memory.segments import (
    GAP_MS,
    MAX_TOKENS,
    OVERLAP_MS,
    OVERLAP_TOKENS,
    EventSize,
    cut,
    overlap,
)


def test_titles_and_boundaries_follow_from_the_id() -> None:
    expected = {
        "toc:year:2024": ("2024", "2024-01-01 00:00", "2025-01-01 00:00"),
        "toc:month:2024:01": ("January 2024", "2024-01-01 00:00", "2024-02-01 00:00"),
        "toc:month:2024:02": ("February 2024", "2024-02-01 00:00", "2024-03-01 00:00"),
        "toc:month:2023:12": ("December 2023", "2023-12-01 00:00", "2024-01-01 00:00"),
        "toc:week:2024:W03": ("Week 3 of 2024", "2024-01-15 00:00", "2024-01-22 00:00"),
        "toc:day:2024-01-15": ("Monday, January 15, 2024", "2024-01-15 00:00", "2024-01-16 00:00"),
    }
    for id, (title, start, end) in expected.items():
        period = parse_id(id)
        assert period is not None
        assert (build_title(id), period.start_ms, period.end_ms) == (title, ms(start), ms(end) - 1)


def test_a_week_belongs_to_the_month_of_its_thursday() -> None:
    # January 29 is in the week whose Thursday is February 1.
    assert list_ancestors("toc:day:2024-01-29") == ["toc:week:2024:W05", "toc:month:2024:02", "toc:year:2024"]
    assert list_ancestors("toc:day:2024-12-30") == ["toc:week:2025:W01", "toc:month:2025:01", "toc:year:2025"]
    assert list_ancestors("toc:day:2021-01-03") == ["toc:week:2020:W53", "toc:month:2020:12", "toc:year:2020"]
    assert list_ancestors(day_id(0)) == ["toc:week:1970:W01", "toc:month:1970:01", "toc:year:1970"]


@given(st.integers(0, LATEST_MS))
def test_every_time_has_its_place(at: int) -> None:
    day = datetime.fromtimestamp(at / 1000, UTC).date()
    id = segment_id(at, derived_ulid(at, "x"))
    assert get_parent_id(id) == day_id(at) == f"toc:day:{day}"
    for level, each in enumerate(reversed([id, *list_ancestors(id)]), 1):
        period = parse_id(each)
        assert period is not None
        assert period.level == level
        if level in (calendar.WEEK, calendar.DAY, calendar.SEGMENT):
            assert period.start_ms <= at <= period.end_ms
    week = parse_id(list_ancestors(id)[1])
    assert week is not None
    assert week.first + timedelta(days=6) == week.last
    assert week.first.weekday() == 0


def test_what_is_no_id_is_none() -> None:
    wrong = [
        "",
        "toc:",
        "toc:year:24",
        "toc:year:0000",
        "toc:month:2024:13",
        "toc:month:2024:1",
        "toc:week:2024:W54",
        "toc:week:2023:W53",
        "toc:day:2024-02-30",
        "toc:segment:2024-01-15",
        "toc:segment:2024-01-15:short",
        "toc:year:２０２４",
        "toc:year:2024\n",
        "x" * 300,
    ]
    assert [id for id in wrong if parse_id(id) is not None] == []
    assert parse_id("toc:week:2020:W53") is not None
    assert parse_id(f"toc:month:{date.max.year}:12") is None


# --- segments ---------------------------------------------------------------------------------------------


def size(at: int, tokens: int = 10, name: str = "") -> EventSize:
    return EventSize(derived_ulid(at, name or f"{at}"), at, tokens)


START = ms("2024-01-15 10:00")


def test_a_gap_is_longer_than_half_an_hour() -> None:
    exactly = [size(START), size(START + GAP_MS)]
    longer = [size(START), size(START + GAP_MS + 1)]
    assert [each.events for each in cut(exactly)] == [2]
    assert [each.events for each in cut(longer)] == [1, 1]


def test_a_segment_is_full_before_it_has_more_tokens_than_allowed() -> None:
    full = [size(START + n, MAX_TOKENS // 4) for n in range(5)]
    assert [(each.events, each.tokens) for each in cut(full)] == [(4, MAX_TOKENS), (1, 1000)]
    huge = [size(START, MAX_TOKENS * 3), size(START + 1)]
    assert [each.events for each in cut(huge)] == [1, 1]


def test_a_day_ends_its_last_segment() -> None:
    midnight = ms("2024-01-16 00:00")
    found = cut([size(midnight - 1), size(midnight)])
    assert [get_parent_id(each.id) for each in found] == ["toc:day:2024-01-15", "toc:day:2024-01-16"]


def test_a_segment_repeats_the_last_minutes_of_the_one_before() -> None:
    before = [size(START - 400_000), size(START - 200_000, 300), size(START - 1000, 150)]
    assert overlap(before, size(START)) == before[1:]
    assert overlap([size(START - 1000, 501)], size(START)) == []
    assert overlap([size(START - GAP_MS - 1)], size(START)) == []
    assert overlap([], size(START)) == []


def test_what_is_repeated_is_at_most_five_minutes_and_500_tokens_and_these_are_repeated() -> None:
    oldest = size(START - OVERLAP_MS, OVERLAP_TOKENS - 10)
    newest = size(START - 1, 10)
    assert overlap([oldest, newest], size(START)) == [oldest, newest]
    assert overlap([size(START - OVERLAP_MS - 1), newest], size(START)) == [newest]
    assert overlap([oldest._replace(tokens=oldest.tokens + 1), newest], size(START)) == [newest]


EVENTS = st.lists(st.tuples(st.integers(0, 3 * GAP_MS), st.integers(1, MAX_TOKENS)), max_size=40)


@given(EVENTS, st.integers(0, 39))
def test_a_late_event_moves_no_earlier_cut(steps: list[tuple[int, int]], late: int) -> None:
    at = START
    events: list[EventSize] = []
    for step, tokens in steps:
        at += step
        events.append(size(at, tokens, f"{len(events)}"))
    whole = cut(events)
    assert sum(each.events for each in whole) == len(events)
    if late >= len(events):
        return
    without = [each for number, each in enumerate(events) if number != late]
    kept = [each.id for each in cut(without)]
    earlier = [each.id for each in whole if each.last.timestamp_ms < events[late].timestamp_ms - GAP_MS]
    assert kept[: len(earlier)] == earlier
    # From any cut on, the rest is cut the same way.
    for number, segment in enumerate(whole):
        assert cut(events[events.index(segment.first) :]) == whole[number:]


def test_a_node_counts_the_builds_that_failed_in_a_row() -> None:
    """The pause before the next build grows with this number."""
    row = new_node("toc:day:2024-01-15", 1)
    for tries in (1, 2, 3):
        row = failed(started(row, "job", 10), "it broke", 20)
        assert (row.tries, row.builder, row.retry_at) == (tries, None, 20)
    row = built(started(row, "job", 10), "a", version=1, stale=False)
    assert (row.tries, row.error, row.retry_at) == (0, None, None)


def test_a_page_has_at_least_one_text_however_large() -> None:
    assert [count_fitting(sizes, 4) for sizes in ([], [5], [5, 1], [3, 1], [3, 1, 1], [0, 5])] == [
        0,
        1,
        1,
        2,
        2,
        1,
    ]
