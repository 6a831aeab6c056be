"""Health of a worker: statistics, log lines of the statistics, and detection of freezes of the process."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from perdure.kernel.clock import boottime
from perdure.kernel.errors import PerdureError
from perdure.kernel.metrics import Metrics

# --- freezes ----------------------------------------------------------------------------------------------


BEAT_SECONDS = 0.25
FROZEN_SECONDS = 1.0


class Pulse:
    """Beats every `BEAT_SECONDS`. A gap of more than `FROZEN_SECONDS` means that the process was frozen."""

    def __init__(self) -> None:
        self._last = boottime()
        self._frozen, self._thawed = -math.inf, -math.inf

    async def beat(self) -> None:
        self._look()

    def _look(self) -> float:
        now = boottime()
        if now - self._last > FROZEN_SECONDS:
            self._frozen, self._thawed = self._last, now
        self._last = now
        return now

    def answered(self, sent: float) -> float:
        """Return the earliest possible time of arrival of an answer that is here now.

        The request was sent at `sent`. If the process froze since then, the answer may have arrived when the
        freeze began. Otherwise the answer arrived just now.
        """
        now = self._look()
        return max(sent, self._frozen) if self._thawed > sent else now


# --- statistics -------------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

QueueStats = Callable[[], Awaitable[Any]]
"""Returns the statistics of the queue: n_pending, n_running, min_age_secs, med_age_secs."""


class Statistics:
    """Counters of one worker, and of the server if the worker runs in a server."""

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
