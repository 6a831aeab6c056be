"""Writes statistics: the queues by the minute, and the usage of spans by the hour."""

from __future__ import annotations

import logging
import time

from perdure.kernel.clock import to_micros
from perdure.kernel.errors import OutcomeUnknown, StorageError
from perdure.kernel.storage.port import Storage
from perdure.kernel.tally import Durations, Place
from perdure.rollouts.operations.spans import USAGE_WRITTEN
from perdure.rollouts.operations.work import ENDED_IN_QUEUE, WAITED
from perdure.statistics.operations import USAGE_ROWS, Counted, Waits, add_usage_to_hours, record_minute

LOOK_SECONDS = 5.0
"""Interval of checks whether a minute is over."""

logger = logging.getLogger(__name__)


class StatisticsRecorder:
    """Adds the counts of a process with an open database; one of the processes reads the depths.

    The counts since the last full minute are written when the process stops. They are lost if it is killed.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._minute = _minute()
        self._waits: dict[Place, Durations] = {}
        self._ends: dict[str, dict[Place, int]] = {}
        self._usage = 0

    def start(self) -> None:
        """Write every minute from now on."""
        self._storage.timers.every(LOOK_SECONDS, self._look)

    async def _look(self) -> None:
        over = _minute() != self._minute
        self._minute = _minute()
        # Usage of another process is added by that process, or at the end of a minute.
        if over or self._storage.tally.counts(USAGE_WRITTEN).get("", 0) != self._usage:
            await self.add_usage()
        if over:
            await self.record()

    async def add_usage(self) -> None:
        """Add the usage of new spans to the hours."""
        self._usage = self._storage.tally.counts(USAGE_WRITTEN).get("", 0)
        while await self._storage.background(add_usage_to_hours) == USAGE_ROWS:
            pass

    async def record(self, *, look: bool = True) -> bool:
        """Write the counts since the last write; return whether the depths were read here too.

        A failed write is added to the next one. A commit whose answer was lost counts as done.
        """
        waits = self._storage.tally.durations_by_place(WAITED)
        ends = {status: self._storage.tally.counts_by_place(name) for status, name in ENDED_IN_QUEUE.items()}
        counted = Counted(_waits_since(self._waits, waits), _ends_since(self._ends, ends))
        looked = False
        try:
            if look or counted:
                looked = await self._storage.background(record_minute, counted, look)
        except OutcomeUnknown as error:
            logger.warning("it is unknown whether the last minute of the queues was written: %s", error)
        self._waits, self._ends = waits, ends
        return looked

    async def finish(self) -> None:
        """Write the counts since the last full minute, and the usage of the last spans."""
        if not self._storage.timers.reached:
            # The database was never reached: there are no counts, and the start reports the error.
            return
        try:
            await self.record(look=False)
            await self.add_usage()
        except StorageError as error:
            logger.warning("the last minute of the statistics was not written: %s", error)


def _minute() -> int:
    return int(time.time() // 60)


def _waits_since(before: dict[Place, Durations], now: dict[Place, Durations]) -> dict[Place, Waits]:
    since = {}
    for place, durations in now.items():
        old = before.get(place) or Durations()
        buckets = [new - previous for new, previous in zip(durations.buckets, old.buckets, strict=True)]
        if any(buckets):
            since[place] = Waits(buckets, to_micros(max(durations.total - old.total, 0.0)))
    return since


def _ends_since(
    before: dict[str, dict[Place, int]], now: dict[str, dict[Place, int]]
) -> dict[tuple[int | None, str, str], int]:
    since = {}
    for status, counts in now.items():
        old = before.get(status, {})
        for place, count in counts.items():
            more = count - old.get(place, 0)
            if more:
                ns, queue = place
                since[ns, queue, status] = more
    return since
