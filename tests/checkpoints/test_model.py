"""Ranges of logs: the parts of a list, and the parts that no checkpoint needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.checkpoints import model
from perdure.checkpoints.model import DELTA_COUNTERS, KnownCheckpoint, LogSegment, Range
from perdure.checkpoints.records import SpliceRange
from perdure.kernel.errors import InvalidInput, NotADatabase

RANGES = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 6)).map(lambda p: (p[0], p[0] + p[1])), max_size=6
)


def _items(ranges: list[Range]) -> list[int]:
    return [place for first, last in ranges for place in range(first, last)]


@given(RANGES, st.data())
def test_a_cut_has_the_items_between_its_ends(ranges: list[Range], data: st.DataObject) -> None:
    items = _items(ranges)
    start = data.draw(st.integers(0, len(items)))
    stop = data.draw(st.integers(start, len(items)))
    assert _items(model.cut(ranges, start, stop)) == items[start:stop]


@given(RANGES)
def test_joined_ranges_have_the_same_items_in_the_same_order(ranges: list[Range]) -> None:
    joined = model.joined(ranges)
    assert _items(joined) == _items(ranges)
    assert len(joined) <= len(ranges)


@given(RANGES, st.integers(0, 5))
def test_covered_ranges_have_each_item_once_and_in_order(ranges: list[Range], gap: int) -> None:
    covered = _items(model.covered(ranges, gap))
    assert covered == sorted(set(covered))
    assert set(_items(ranges)) <= set(covered)
    if not gap:
        assert set(covered) == set(_items(ranges))


@given(RANGES, st.lists(st.integers(1, 5), max_size=12))
def test_what_is_unneeded_has_no_item_of_any_range(ranges: list[Range], counts: list[int]) -> None:
    segments, position = [], 0
    for count in counts:
        segments.append((position, count))
        position += count
    unneeded = model.unneeded(segments, ranges)
    wanted = set(_items(ranges))
    expected = [at for at, count in segments if wanted.isdisjoint(range(at, at + count))]
    assert unneeded == expected


def test_what_is_new_goes_to_the_end_of_the_log() -> None:
    spans = [
        SpliceRange(False, 0, 2),
        SpliceRange(True, 0, 1),
        SpliceRange(False, 3, 5),
        SpliceRange(True, 1, 3),
    ]
    assert model.laid_out(spans, [(0, 5)], 9) == [(0, 2), (9, 10), (3, 5), (10, 12)]
    assert model.laid_out([SpliceRange(False, 0, 5), SpliceRange(True, 0, 2)], [(0, 5)], 5) == [(0, 7)]


def test_an_earlier_version_does_not_have_more_items_than_it_has() -> None:
    with pytest.raises(InvalidInput):
        model.laid_out([SpliceRange(False, 0, 6)], [(0, 5)], 5)


def test_a_missing_item_is_damage() -> None:
    segments = [LogSegment(0, 2, ("msgpack", b"")), LogSegment(4, 6, ("msgpack", b""))]
    assert [(part.start, part.stop) for part in model.build_slices([(1, 2), (4, 5)], segments)] == [
        (1, 2),
        (0, 1),
    ]
    for ranges in ([(1, 3)], [(2, 3)], [(5, 7)]):
        with pytest.raises(NotADatabase):
            model.build_slices(ranges, segments)


def _known(parent: str | None, version: int, counters: dict[str, list[int]] | None = None) -> KnownCheckpoint:
    return KnownCheckpoint(parent, {"log": version}, {} if counters is None else {DELTA_COUNTERS: counters})


def test_a_channel_that_is_kept_as_changes_needs_its_ancestors_up_to_a_value() -> None:
    known = {
        "1": _known(None, 1, {"log": [0, 0]}),
        "2": _known("1", 2, {"log": [0, 0]}),
        "3": _known("2", 3, {"log": [1, 1]}),
        "4": _known("3", 4, {"log": [2, 2]}),
    }
    assert model.needed("4", known, {"2 log"}) == {"4", "3", "2"}
    assert model.needed("4", known, {"4 log"}) == {"4"}
    assert model.needed("4", known, set()) == {"4", "3", "2", "1"}
    assert model.needed("4", {**known, "4": _known("3", 4)}, set()) == {"4"}


def test_ancestors_that_run_in_a_circle_are_walked_once() -> None:
    known = {"1": _known("2", 1, {"log": [1, 1]}), "2": _known("1", 2, {"log": [1, 1]})}
    assert model.needed("2", known, set()) == {"1", "2"}
