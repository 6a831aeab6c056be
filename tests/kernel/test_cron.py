"""Times of schedules: cron expressions, time zones, and nights with clock changes."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.kernel.clock import to_micros
from perdure.kernel.cron import NAMED, check_expression, check_timezone, next_time
from perdure.kernel.errors import InvalidInput

BERLIN = "Europe/Berlin"


def at(text: str, zone: str | None = None) -> int:
    """Parse a time to microseconds; without an offset it is in the zone."""
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        time = time.replace(tzinfo=ZoneInfo(zone) if zone else UTC)
    return to_micros(time.timestamp())


def times(expression: str, after: str, count: int, zone: str | None = None) -> list[str]:
    """Return the first times after one, in UTC."""
    moments: list[str] = []
    moment = at(after, zone)
    for _ in range(count):
        following = next_time(expression, zone, moment)
        assert following is not None
        assert following > moment
        moment = following
        moments.append(datetime.fromtimestamp(moment / 1_000_000, UTC).strftime("%m-%d %H:%M:%S"))
    return moments


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*/5 * * * *", ["06-01 12:05:00", "06-01 12:10:00"]),
        ("0 9 * * MON", ["06-02 09:00:00", "06-09 09:00:00"]),
        ("30 * * * * *", ["06-01 12:00:30", "06-01 12:01:30"]),
        ("0 0 L * *", ["06-30 00:00:00", "07-31 00:00:00"]),
        ("@hourly", ["06-01 13:00:00", "06-01 14:00:00"]),
        ("@Daily", ["06-02 00:00:00", "06-03 00:00:00"]),
    ],
)
def test_the_times_of_an_expression(expression: str, expected: list[str]) -> None:
    assert check_expression(expression) == expression
    assert times(expression, "2025-06-01T12:00:00.500000", 2) == expected


def test_a_time_of_day_is_read_in_its_zone() -> None:
    assert times("0 9 * * *", "2025-01-15T12:00:00", 1, "America/New_York") == ["01-16 14:00:00"]
    assert times("0 9 * * *", "2025-07-15T12:00:00", 1, "America/New_York") == ["07-16 13:00:00"]


def test_a_time_that_the_clocks_skip_comes_right_after_the_gap() -> None:
    # On 30 March 2025 the clocks of Berlin go from 02:00 to 03:00, which is 01:00 UTC.
    fired = times("30 2 * * *", "2025-03-29T12:00:00", 2, BERLIN)
    assert fired == ["03-30 01:00:00", "03-31 00:30:00"]


def test_a_time_that_the_clocks_repeat_comes_once() -> None:
    # On 26 October 2025 the clocks of Berlin go back from 03:00 to 02:00, which is 01:00 UTC.
    fired = times("30 2 * * *", "2025-10-25T12:00:00", 2, BERLIN)
    assert fired == ["10-26 00:30:00", "10-27 01:30:00"]


def test_what_comes_every_half_hour_follows_real_time() -> None:
    fired = times("*/30 * * * *", "2025-10-25T23:30:00+00:00", 5, BERLIN)
    assert fired == [
        "10-26 00:00:00",
        "10-26 00:30:00",
        "10-26 01:00:00",
        "10-26 01:30:00",
        "10-26 02:00:00",
    ]


def test_clocks_that_change_by_half_an_hour_skip_no_minute_that_they_show() -> None:
    # The clocks of Lord Howe go from 02:00 to 02:30, and from 02:00 back to 01:30.
    zone = "Australia/Lord_Howe"
    fired = times("30 * * * *", "2026-10-03T14:45:00+00:00", 3, zone)
    assert fired == ["10-03 15:00:00", "10-03 15:30:00", "10-03 16:30:00"]
    fired = times("30 * * * *", "2026-04-04T14:15:00+00:00", 3, zone)
    assert fired == ["04-04 14:30:00", "04-04 15:00:00", "04-04 16:00:00"]


def test_in_the_repeated_hour_the_next_time_is_never_in_the_past() -> None:
    # 02:10 is repeated: 02:30 has already passed once.
    moment = next_time("30 2 * * *", BERLIN, at("2025-10-26T01:10:00+00:00"))
    assert moment == at("2025-10-27T01:30:00+00:00")


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "wrong number of fields"),
        ("bad", "wrong number of fields"),
        ("* * * *", "wrong number of fields"),
        ("* * * * * * *", "wrong number of fields"),
        ("61 * * * *", "bad minute"),
        ("* 24 * * *", "bad hour"),
        ("* * 0 * *", "bad day-of-month"),
        ("* * 30 2 *", "bad day-of-month"),
        ("* * * 13 *", "bad month"),
        ("* * * * 8", "bad day-of-week"),
        ("*/0 * * * *", "bad minute"),
        ("60 * * * * *", "bad second"),
        ("@never", "wrong number of fields"),
    ],
)
def test_an_expression_that_cannot_be_read_is_refused_with_its_reason(expression: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        check_expression(expression)
    assert reason in refusal.value.message
    assert "five fields" in refusal.value.message


@pytest.mark.parametrize("value", [None, 5, "a\0b", "* " * 200])
def test_what_is_no_text_of_a_schedule_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput):
        check_expression(value)


@given(st.text(alphabet="0123456789*/,-#LWSUNMO ", max_size=24), st.sampled_from([None, BERLIN]))
def test_any_text_is_refused_or_comes_after_now(expression: str, zone: str | None) -> None:
    now = at("2025-10-26T00:10:00")
    try:
        check_expression(expression)
    except InvalidInput:
        return
    moment = next_time(expression, zone, now)
    assert moment is None or moment > now


@pytest.mark.parametrize(
    "name", ["Mars/Olympus", "Europe", "", "../etc/passwd", "/etc/localtime", "a\0b", 5, "x" * 300, "\ud800"]
)
def test_a_zone_that_does_not_exist_is_refused(name: object) -> None:
    with pytest.raises(InvalidInput):
        check_timezone(name)


def test_zones_that_exist_are_taken() -> None:
    assert check_timezone(BERLIN) == BERLIN
    assert check_timezone("UTC") == "UTC"
    assert check_timezone(None) is None


def test_every_name_for_an_expression_can_be_read() -> None:
    for name in NAMED:
        assert next_time(check_expression(name), None, 0) is not None


def test_after_the_last_year_nothing_comes() -> None:
    assert next_time("0 0 1 1 *", None, at("9999-12-31T23:59:59")) is None
