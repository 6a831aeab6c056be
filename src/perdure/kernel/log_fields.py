"""What log lines are about: the run that is executed where they are written, as fields of each record."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

LOG_FIELDS: Final = ("run_id", "thread_id", "agent", "attempt")
"""The names of the fields."""

_current: ContextVar[Mapping[str, Any] | None] = ContextVar("log_fields", default=None)


def set_log_fields(**fields: Any) -> None:
    """Add these fields to all that is logged from here on: by this task and what it starts."""
    _current.set(fields)


class LogFields(logging.Filter):
    """Adds the fields of the place where a record was made; those that it has itself stay."""

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in (_current.get() or {}).items():
            if name not in record.__dict__:
                setattr(record, name, value)
        return True


def get_fields(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of a record."""
    return {name: record.__dict__[name] for name in LOG_FIELDS if name in record.__dict__}
