"""When a schedule comes: cron expressions in time zones. Pure; times are microseconds since the epoch.

An expression at a fixed time of day follows the wall clock: a time that the clocks skip comes right after
the gap, and one that they repeat comes once. An expression for every hour or minute follows real time.
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
"""What people write instead of fields."""

_HELP = (
    "A schedule has five fields (minute, hour, day of month, month, day of week), or six with the second "
    "first, such as '*/5 * * * *' for every five minutes"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def check_expression(value: object) -> str:
    """Give a cron expression back if it can be read."""
    expression = check_text(value, "schedule", max_length=MAX_EXPRESSION)
    try:
        CronSim(_fields(expression), _EPOCH)
    except CronSimError as error:
        raise InvalidCron(f"Invalid cron expression: {expression!r}: {_reason(error)}. {_HELP}") from None
    return expression


def _reason(error: CronSimError) -> str:
    """`Bad minute` and `Wrong number of fields` as part of a sentence."""
    text = str(error)
    return text[:1].lower() + text[1:]


def _fields(expression: str) -> str:
    return NAMED.get(expression.strip().lower(), expression)


def check_timezone(value: object) -> str | None:
    """Give the name of a time zone back if there is one; None is UTC."""
    if value is None:
        return None
    name = check_text(value, "timezone", max_length=MAX_EXPRESSION)
    _zone(name)
    return name


def _zone(name: str | None) -> tzinfo:
    if name is None:
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidTimezone(
            f"Invalid timezone: {name!r}. Use an IANA name, such as 'America/New_York'"
        ) from None


def next_time(expression: str, timezone: str | None, after: int) -> int | None:
    """The first time after `after`, or None if there is none within fifty years."""
    try:
        start = (_EPOCH + timedelta(microseconds=after)).astimezone(_zone(timezone))
        rule = CronSim(_fields(expression), start)
        in_every_hour = rule.parts[-4].startswith("*")
        for found in rule:
            time = _micros(found)
            # In an hour that the clocks repeat, the wall clock may be behind the time.
            if time > after:
                if in_every_hour and found.utcoffset() != start.utcoffset():
                    return _after_change(expression, start, found)
                return time
    except OverflowError:
        return None
    return None


def _after_change(expression: str, start: datetime, found: datetime) -> int:
    """The next time where the clocks change before it.

    Where they change by half an hour, CronSim steps over the minutes right after that.
    """
    zone, offset = found.tzinfo, found.utcoffset()
    assert offset is not None
    for each in CronSim(_fields(expression), start.astimezone(fixed_offset(offset))):
        if each >= found or each.astimezone(zone).utcoffset() == offset:
            return min(_micros(each), _micros(found))
    return _micros(found)


@lru_cache(maxsize=4096)
def explain(expression: str) -> str:
    """What an expression says, in English."""
    return CronSim(_fields(expression), _EPOCH).explain()


def _micros(time: datetime) -> int:
    return (time.astimezone(UTC) - _EPOCH) // timedelta(seconds=1) * MICROS
