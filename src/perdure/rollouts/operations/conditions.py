"""Preconditions of operations: a sweep of the watchdog, and the locks of lines.

The decorators mark the operation; `WatchedService` reads the marks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from perdure.kernel.storage.port import Operation, Result, Tx
from perdure.rollouts import sql, tables
from perdure.rollouts.model import Kinds

F = TypeVar("F", bound=Callable[..., Any])


class SweepDue(Exception):
    """An attempt is overdue: run the watchdog, then run the operation again."""


class LinesNeeded(Exception):
    """A rollout is in a line, whose lock comes first, or has changed since it was read without a lock. The
    operation must run again with all locks."""


def watched(operation: F) -> F:
    """Mark an operation that needs overdue attempts to be ended first."""
    operation.watched = True  # type: ignore[attr-defined]
    return operation


def locks_lines(operation: F) -> F:
    """Mark an operation whose last parameter says whether to lock lines first; most rollouts have none.

    It is called without locks of lines, and again with them if it raises `LinesNeeded`.
    """
    operation.locks_lines = True  # type: ignore[attr-defined]
    return operation


async def unless_overdue(tx: Tx, kinds: Kinds, operation: Operation[..., Result], *args: Any) -> Result:
    """Run an operation, or raise `SweepDue` if an attempt of these kinds is overdue."""
    if await tx.probe(tables.OVERDUE) and await tx.all(sql.HAS_OVERDUE, kinds=kinds.names()):
        raise SweepDue
    return await operation(tx, *args)
