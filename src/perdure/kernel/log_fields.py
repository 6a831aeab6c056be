"""Fields of log records: the run that is executed where the record is logged."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

LOG_FIELDS: Final = ("run_id", "thread_id", "agent", "attempt")
"""Names of the fields."""

_current: ContextVar[Mapping[str, Any] | None] = ContextVar("log_fields", default=None)


def set_log_fields(**fields: Any) -> None:
    """Add these fields to all records logged from now on by this task and by tasks that it starts."""
    _current.set(fields)


class LogFields(logging.Filter):
    """Filter that adds the current fields to a record; existing fields of the record stay."""

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in (_current.get() or {}).items():
            if name not in record.__dict__:
                setattr(record, name, value)
        return True


def get_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a record."""
    return {name: record.__dict__[name] for name in LOG_FIELDS if name in record.__dict__}
