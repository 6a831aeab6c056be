"""Times of cron expressions in time zones. Pure; times are microseconds since the epoch.

An expression with a fixed time of day follows the wall clock: a time that the clocks skip fires right after
the gap, a repeated time fires once. An expression for every hour or minute follows real time.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from datetime import timezone as fixed_offset
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from perdure.kernel.checks import check_text
from perdure.kernel.clock import MICROS
from perdure.kernel.errors import InvalidCron, InvalidTimezone

MAX_EXPRESSION = 255
NAMED: Final[Mapping[str, str]] = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
"""Names that replace the fields."""

_HELP = (
    "A schedule has five fields (minute, hour, day of month, month, day of week), or six with the second "
    "first, such as '*/5 * * * *' for every five minutes"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def check_expression(value: object) -> str:
    """Return a cron expression if it is valid; otherwise raise InvalidCron."""
    expression = check_text(value, "schedule", max_length=MAX_EXPRESSION)
    try:
        CronSim(_expand_name(expression), _EPOCH)
    except CronSimError as error:
        raise InvalidCron(f"Invalid cron expression: {expression!r}: {_describe(error)}. {_HELP}") from None
    return expression


def _describe(error: CronSimError) -> str:
    """Return CronSim's message with a small first letter, such as `bad minute`."""
    text = str(error)
    return text[:1].lower() + text[1:]


def _expand_name(expression: str) -> str:
    return NAMED.get(expression.strip().lower(), expression)


def check_timezone(value: object) -> str | None:
    """Return the name of a time zone if it exists; None means UTC."""
    if value is None:
        return None
    name = check_text(value, "timezone", max_length=MAX_EXPRESSION)
    _get_zone(name)
    return name


def _get_zone(name: str | None) -> tzinfo:
    if name is None:
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidTimezone(
            f"Invalid timezone: {name!r}. Use an IANA name, such as 'America/New_York'"
        ) from None


def next_time(expression: str, timezone: str | None, after: int) -> int | None:
    """Return the first time after `after`, or None if there is none within 50 years."""
    try:
        start = (_EPOCH + timedelta(microseconds=after)).astimezone(_get_zone(timezone))
        rule = CronSim(_expand_name(expression), start)
        in_every_hour = rule.parts[-4].startswith("*")
        for moment in rule:
            time = _to_micros(moment)
            # In a repeated hour the wall clock may be behind the time.
            if time > after:
                if in_every_hour and moment.utcoffset() != start.utcoffset():
                    return _find_time_after_change(expression, start, moment)
                return time
    except OverflowError:
        return None
    return None


def _find_time_after_change(expression: str, start: datetime, after_change: datetime) -> int:
    """Return the next time if the clocks change before it.

    If the clocks change by half an hour, CronSim skips the minutes right after the change.
    """
    zone, offset = after_change.tzinfo, after_change.utcoffset()
    assert offset is not None
    for moment in CronSim(_expand_name(expression), start.astimezone(fixed_offset(offset))):
        if moment >= after_change or moment.astimezone(zone).utcoffset() == offset:
            return min(_to_micros(moment), _to_micros(after_change))
    return _to_micros(after_change)


@lru_cache(maxsize=4096)
def explain(expression: str) -> str:
    """Describe an expression in English."""
    return CronSim(_expand_name(expression), _EPOCH).explain()


def _to_micros(time: datetime) -> int:
    return (time.astimezone(UTC) - _EPOCH) // timedelta(seconds=1) * MICROS
