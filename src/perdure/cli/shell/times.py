"""Times that services give as ISO 8601."""

from __future__ import annotations

from datetime import datetime


def parse_moment(moment: str) -> float:
    """A time in epoch seconds."""
    return datetime.fromisoformat(moment).timestamp()


def seconds_of_or_none(moment: str | None) -> float | None:
    return None if moment is None else parse_moment(moment)
