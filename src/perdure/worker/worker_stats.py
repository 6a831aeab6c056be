"""Statistics of a worker, and their periodic log lines."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from perdure.kernel.errors import PerdureError
from perdure.kernel.metrics import Metrics

logger = logging.getLogger(__name__)

QueueStats = Callable[[], Awaitable[Any]]
"""Returns the statistics of the queue: n_pending, n_running, min_age_secs, med_age_secs."""


class Statistics:
    """Counters of one worker, and of its server if it runs in one."""

    def __init__(
        self, concurrency: int, metrics: Metrics | None = None, queue_stats: QueueStats | None = None
    ) -> None:
        self.concurrency = concurrency
        self.active = 0
        self.runs: Counter[str] = Counter()
        """Number of ended attempts, by result."""
        self.claims: Counter[str] = Counter()
        self._metrics = metrics
        self._queue_stats = queue_stats

    def count_claim(self, claimed: int) -> None:
        self.claims["found" if claimed else "empty"] += 1
        if self._metrics is not None:
            self._metrics.count_claim(claimed)

    def count_run(self, result: str) -> None:
        self.runs[result] += 1
        if self._metrics is not None:
            self._metrics.runs.labels(result).inc()

    @property
    def leases_lost(self) -> int:
        return self.runs["lost"]

    def worker(self) -> dict[str, int]:
        """Return the slots of the worker."""
        return {
            "max": self.concurrency,
            "available": self.concurrency - self.active,
            "active": self.active,
        }

    async def log(self) -> None:
        """Log the statistics of the worker and of the queue."""
        logger.info("Worker stats: %s", _pairs(self.worker()))
        if self._queue_stats is None:
            return
        try:
            logger.info("Queue stats: %s", _pairs(msgspec.to_builtins(await self._queue_stats())))
        except PerdureError as error:
            logger.warning("Queue stats: %s: %s", error.code, error.message)


def _pairs(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_shown(value)}" for name, value in values.items())


def _shown(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
