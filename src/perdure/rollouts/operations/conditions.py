"""What an operation needs before it runs: the watchdog's findings, and the locks of lines.

The decorators write this down on the operation; `WatchedService` reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from perdure.kernel.storage.port import Operation, Result, Tx
from perdure.rollouts import sql, tables
from perdure.rollouts.model import Kinds

F = TypeVar("F", bound=Callable[..., Any])


class SweepDue(Exception):
    """Something is overdue: let the watchdog run, then run the operation again."""


class LinesNeeded(Exception):
    """A rollout is in a line, whose lock comes first, or has changed since it was read without a lock: run
    the operation again with every lock."""


def watched(operation: F) -> F:
    """Mark an operation that must see the watchdog's findings."""
    operation.watched = True  # type: ignore[attr-defined]
    return operation


def locks_lines(operation: F) -> F:
    """Mark an operation whose last parameter says whether to lock lines first; most rollouts have none.

    It is called without lines, and once more with them if it raises `LinesNeeded`.
    """
    operation.locks_lines = True  # type: ignore[attr-defined]
    return operation


async def unless_overdue(tx: Tx, kinds: Kinds, operation: Operation[..., Result], *args: Any) -> Result:
    """Run an operation, unless something of a known kind is overdue, which is `SweepDue`."""
    if await tx.probe(tables.OVERDUE) and await tx.all(sql.HAS_OVERDUE, kinds=kinds.names()):
        raise SweepDue
    return await operation(tx, *args)
