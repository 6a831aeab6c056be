"""IDs of the table of contents; parent, title and boundaries follow from an id.

A segment belongs to the day on which it starts, a day to its ISO week, a week to the month of its Thursday, a
month to its year. All times are UTC. This module is pure.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Final, Literal, NamedTuple, get_args

Level = Literal["year", "month", "week", "day", "segment"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
YEAR, MONTH, WEEK, DAY, SEGMENT = range(1, 6)
"""The numbers of the levels, as in agent-memory."""

DAY_MS: Final = 86_400_000

_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_EPOCH = date(1970, 1, 1)

_ID = re.compile(
    r"toc:(?:(?P<year>year):(?P<y>\d{4})"
    r"|(?P<month>month):(?P<my>\d{4}):(?P<m>\d{2})"
    r"|(?P<week>week):(?P<wy>\d{4}):W(?P<w>\d{2})"
    r"|(?P<day>day):(?P<d>\d{4}-\d{2}-\d{2})"
    r"|(?P<segment>segment):(?P<s>\d{4}-\d{2}-\d{2}):(?P<ulid>[0-9A-Z]{26}))",
    re.ASCII,
)


class Period(NamedTuple):
    """The level of an id with its first and last day."""

    level: int
    first: date
    last: date

    @property
    def start_ms(self) -> int:
        return date_to_ms(self.first)

    @property
    def end_ms(self) -> int:
        """The last millisecond."""
        return date_to_ms(self.last) + DAY_MS - 1


def date_to_ms(day: date) -> int:
    """Return the first millisecond of a day."""
    return (day - _EPOCH).days * DAY_MS


def ms_to_date(ms: int) -> date:
    """Return the day of a time."""
    return datetime.fromtimestamp(ms // 1000, UTC).date()


def day_id(ms: int) -> str:
    """Return the id of the day of a time."""
    return "toc:day:" + ms_to_date(ms).isoformat()


def segment_id(ms: int, ulid: str) -> str:
    """Return the id of a segment that starts with this event."""
    return f"toc:segment:{ms_to_date(ms).isoformat()}:{ulid}"


def parse_id(node_id: str) -> Period | None:
    """Return the period of an id, or None if the id is invalid."""
    match = _ID.fullmatch(node_id)
    if match is None:
        return None
    try:
        return _build_period(match)
    except ValueError:
        return None


def _build_period(match: re.Match[str]) -> Period:
    if match["year"]:
        year = int(match["y"])
        return Period(YEAR, date(year, 1, 1), date(year, 12, 31))
    if match["month"]:
        first = date(int(match["my"]), int(match["m"]), 1)
        return Period(MONTH, first, _get_end_of_month(first))
    if match["week"]:
        monday = date.fromisocalendar(int(match["wy"]), int(match["w"]), 1)
        return Period(WEEK, monday, monday + timedelta(days=6))
    day = date.fromisoformat(match["d"] or match["s"])
    return Period(DAY if match["day"] else SEGMENT, day, day)


def _get_end_of_month(first: date) -> date:
    following = date(first.year + first.month // 12, first.month % 12 + 1, 1)
    return following - timedelta(days=1)


def get_parent_id(node_id: str) -> str | None:
    """Return the id of the parent; None for a year."""
    period = _parse_known_id(node_id)
    if period.level == SEGMENT:
        return "toc:day:" + period.first.isoformat()
    if period.level == DAY:
        year, week, _ = period.first.isocalendar()
        return f"toc:week:{year:04}:W{week:02}"
    if period.level == WEEK:
        thursday = period.first + timedelta(days=3)
        return f"toc:month:{thursday.year:04}:{thursday.month:02}"
    return f"toc:year:{period.first.year:04}" if period.level == MONTH else None


def list_ancestors(node_id: str) -> list[str]:
    """Return the ids of the ancestors, nearest first."""
    ancestors: list[str] = []
    parent = get_parent_id(node_id)
    while parent is not None:
        ancestors.append(parent)
        parent = get_parent_id(parent)
    return ancestors


def build_title(node_id: str) -> str:
    """Return the title of a day, week, month or year; for a segment, its date."""
    period = _parse_known_id(node_id)
    day = period.first
    if period.level == YEAR:
        return f"{day.year}"
    if period.level == MONTH:
        return f"{_MONTHS[day.month - 1]} {day.year}"
    if period.level == WEEK:
        year, week, _ = day.isocalendar()
        return f"Week {week} of {year}"
    return f"{_DAYS[day.weekday()]}, {_MONTHS[day.month - 1]} {day.day}, {day.year}"


def _parse_known_id(node_id: str) -> Period:
    period = parse_id(node_id)
    if period is None:
        raise ValueError(f"{node_id} is not an id of the table of contents")
    return period
