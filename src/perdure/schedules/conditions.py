"""Conditions by name: predicates of the program that keep a schedule from firing."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable

from perdure.kernel.checks import check_name
from perdure.schedules.model import FiringRequest

Predicate = Callable[[FiringRequest], bool | Awaitable[bool]]
"""Returns whether a condition holds for the work that a schedule is about to start."""

SECONDS = 5.0
"""Limit of time of a predicate. A predicate that takes longer or fails counts as false."""

logger = logging.getLogger(__name__)


class Conditions:
    """The predicates of this process, by name."""

    def __init__(self) -> None:
        self._predicates: dict[str, Predicate] = {}
        self._unknown: set[str] = set()

    def register(self, name: str, predicate: Predicate) -> None:
        """Add a predicate; schedules with `unless: name` do not fire while it holds."""
        self._predicates[check_name(name, "the name of a condition")] = predicate

    def __contains__(self, name: object) -> bool:
        return name in self._predicates

    def warn_unknown(self, name: str, label: str) -> None:
        """Log once that no predicate has this name."""
        if name not in self._predicates and name not in self._unknown:
            self._unknown.add(name)
            logger.warning("%s: unknown condition %r; the schedule fires without it", label, name)

    async def holds(self, name: str | None, order: FiringRequest) -> bool:
        """Return whether a condition holds. An unknown condition does not hold and is logged once."""
        if name is None:
            return False
        predicate = self._predicates.get(name)
        if predicate is None:
            self.warn_unknown(name, order.name or order.schedule_id)
            return False
        try:
            async with asyncio.timeout(SECONDS):
                result = predicate(order)
                return bool(await result if inspect.isawaitable(result) else result)
        except Exception:
            logger.exception("the condition %r failed for %s", name, order.name or order.schedule_id)
            return False
