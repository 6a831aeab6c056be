"""Times in ISO 8601, as services return them."""

from __future__ import annotations

from datetime import datetime


def parse_moment(moment: str) -> float:
    """Convert a time to epoch seconds."""
    return datetime.fromisoformat(moment).timestamp()


def seconds_of_or_none(moment: str | None) -> float | None:
    return None if moment is None else parse_moment(moment)
