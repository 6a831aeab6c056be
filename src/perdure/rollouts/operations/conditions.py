"""Conditions of operations on rollouts: no attempt is overdue, and the locks of lines."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from perdure.kernel.storage.port import Check, Tx
from perdure.rollouts import sql, tables
from perdure.rollouts.model import Kinds
from perdure.service.conditions import Unmet


class NoOverdueAttempts:
    """No attempt is overdue; otherwise the watchdog sweeps first."""

    is_parameter = False

    def get_check(self, service: Any) -> Check:
        return partial(_check_overdue, kinds=service.kinds)

    async def meet(self, service: Any) -> None:
        await service.watchdog.sweep()


class LocksOfLines:
    """The locks of lines, which come before all others.

    Most rollouts are in no line. So the operation runs without these locks, and again with them if it finds a
    rollout in a line, or a rollout that changed after it was read without a lock.
    """

    is_parameter = True

    def get_check(self, service: Any) -> None:
        return None

    async def meet(self, service: Any) -> None:
        """Do nothing: the operation locks the lines when it runs again."""


NOT_OVERDUE: Final = NoOverdueAttempts()
LINES_LOCKED: Final = LocksOfLines()


async def _check_overdue(tx: Tx, kinds: Kinds) -> None:
    if await tx.probe(tables.OVERDUE) and await tx.all(sql.HAS_OVERDUE, kinds=kinds.names()):
        raise Unmet(NOT_OVERDUE)
