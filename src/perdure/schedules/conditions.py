"""Conditions by name: predicates of the program that keep a schedule from firing."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable

from perdure.kernel.checks import check_name
from perdure.schedules.model import FiringRequest

Predicate = Callable[[FiringRequest], bool | Awaitable[bool]]
"""Whether something holds for what a schedule is about to start."""

SECONDS = 5.0
"""How long a predicate may take. One that takes longer, or fails, does not hold."""

logger = logging.getLogger(__name__)


class Conditions:
    """The predicates that this process has, by name."""

    def __init__(self) -> None:
        self._predicates: dict[str, Predicate] = {}
        self._unknown: set[str] = set()

    def register(self, name: str, predicate: Predicate) -> None:
        """Add a predicate; schedules with `unless: name` do not fire while it holds."""
        self._predicates[check_name(name, "the name of a condition")] = predicate

    def __contains__(self, name: object) -> bool:
        return name in self._predicates

    def warn_unknown(self, name: str, label: str) -> None:
        """Say once that no predicate has a name."""
        if name not in self._predicates and name not in self._unknown:
            self._unknown.add(name)
            logger.warning("%s: there is no condition %r; it fires as if it had none", label, name)

    async def holds(self, name: str | None, order: FiringRequest) -> bool:
        """Whether a condition holds. One that is not known does not, and is warned of once."""
        if name is None:
            return False
        predicate = self._predicates.get(name)
        if predicate is None:
            self.warn_unknown(name, order.name or order.schedule_id)
            return False
        try:
            async with asyncio.timeout(SECONDS):
                found = predicate(order)
                return bool(await found if inspect.isawaitable(found) else found)
        except Exception:
            logger.exception("the condition %r failed for %s", name, order.name or order.schedule_id)
            return False
