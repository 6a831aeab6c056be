"""The jobs of memory: build segments, roll them up, rebuild, compact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from perdure.jobs.model import JobContext, JobRegistry
from perdure.jobs.operations import enqueue_jobs
from perdure.kernel.clock import MICROS, to_micros
from perdure.memory.builder import BuildOutcome, TocBuilder
from perdure.memory.calendar import DAY, DAY_MS, LEVELS, MONTH, SEGMENT, WEEK, YEAR
from perdure.memory.index import MemoryIndexer
from perdure.memory.operations import builds, maintenance
from perdure.memory.service import REBUILD_JOB
from perdure.memory.toc import SEGMENTS_JOB, TocUpdater, segments_job

MIN_AGE: Final[Mapping[int, float]] = {DAY: 3600.0, WEEK: 86_400.0, MONTH: 86_400.0, YEAR: 7 * 86_400.0}
"""A period is rolled up this many seconds after its end."""
ROLLUP_SECONDS: Final = 1800.0
COMPACTION_SECONDS: Final = 3600.0
COMPACTION_JOB: Final = "compaction"


def rollup_job(level: int) -> str:
    """Return the name of the job that rolls up into a level."""
    return f"rollup-{LEVELS[level - 1]}"


class MemoryJobs:
    """The functions of memory's jobs."""

    def __init__(self, builder: TocBuilder, updater: TocUpdater, indexer: MemoryIndexer) -> None:
        self.storage = builder.storage
        self.builder = builder
        self.updater = updater
        self.indexer = indexer

    def register(self, registry: JobRegistry) -> None:
        """Register the functions with the executor of this process."""
        registry.register(SEGMENTS_JOB, self.build_segments, timeout=ROLLUP_SECONDS)
        for level in MIN_AGE:
            registry.register(rollup_job(level), self.roll_up, timeout=ROLLUP_SECONDS)
        registry.register(REBUILD_JOB, self.rebuild, timeout=86_400.0)
        registry.register(COMPACTION_JOB, self.compact, timeout=COMPACTION_SECONDS)

    async def build_segments(self, context: JobContext, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Build the segments that have rested; enqueue the job that builds the others."""
        try:
            outcome = await self.builder.build_due(
                SEGMENT, context.name, context.job_id, rest=self.updater.rest
            )
        except Exception:
            # This job may run out of attempts before the failed segment is due again.
            await self._enqueue_next(context.ns)
            raise
        await self._enqueue_next(context.ns)
        return outcome._asdict()

    async def _enqueue_next(self, ns: int) -> None:
        """Enqueue the job that builds the next segment when it is due."""
        wait = await self.storage.read(builds.until_due, SEGMENT, to_micros(self.updater.rest))
        if wait is not None:
            await self.storage.run(enqueue_jobs, [segments_job(wait / MICROS + 0.05)], ns=ns)

    async def roll_up(self, context: JobContext, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Roll up the nodes of a level if their period is over and their children have changed."""
        level = LEVELS.index(context.name.removeprefix("rollup-")) + 1
        if level == DAY:
            # Builds segments left over when their own job was cancelled or deleted.
            await self.builder.build_due(SEGMENT, context.name, context.job_id, rest=self.updater.rest)
        outcome = await self.builder.build_due(level, context.name, context.job_id, min_age=MIN_AGE[level])
        return outcome._asdict()

    async def rebuild(self, context: JobContext, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Cut, build and index everything in a namespace again."""
        done: dict[str, Any] = {}
        if payload.get("toc", True):
            done["days"] = await self._cut_all(context.ns)
            outcomes = [
                await self.builder.build_due(level, context.name, context.job_id, ns=context.ns)
                for level in (SEGMENT, DAY, WEEK, MONTH, YEAR)
            ]
            done |= BuildOutcome(*map(sum, zip(*outcomes, strict=True)))._asdict()
        if payload.get("index", True):
            done["indexed"] = await self._index_all(context.ns)
        return done

    async def _cut_all(self, ns: int) -> int:
        while await self.storage.background(maintenance.make_stale, ns=ns):
            pass
        days, ms = 0, await self.storage.read(maintenance.next_event, 0, ns=ns)
        while ms is not None:
            end = ms // DAY_MS * DAY_MS + DAY_MS
            await self.updater.update(ns, [(ms, end - 1)])
            days, ms = days + 1, await self.storage.read(maintenance.next_event, end, ns=ns)
        return days

    async def _index_all(self, ns: int) -> int:
        await self.indexer.index(ns)
        total = 0
        last = await self.storage.read(maintenance.last_place, ns=ns)
        moved = 1
        while moved:
            moved = await self.storage.background(maintenance.index_again, last, ns=ns)
            total += moved
        return total + await self.indexer.index(ns)

    async def compact(self, context: JobContext, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Merge the segments of the text index in small steps."""
        steps = 0
        while await self.storage.background(maintenance.compact):
            steps += 1
        return {"steps": steps}
