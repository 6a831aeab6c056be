"""Wiring of memory's background work: its outbox consumers and its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from perdure.agents.sections import embed_named
from perdure.jobs.model import JobRegistry
from perdure.kernel.config import Settings
from perdure.kernel.storage.port import Storage
from perdure.kernel.vectors import Embedder, hashed
from perdure.memory.builder import TocBuilder
from perdure.memory.calendar import DAY, MONTH, WEEK, YEAR
from perdure.memory.index import MemoryIndexer
from perdure.memory.jobs import COMPACTION_JOB, MemoryJobs, rollup_job
from perdure.memory.summarisers.endpoint import EndpointSummariser
from perdure.memory.summarisers.extractive import ExtractiveSummariser
from perdure.memory.summarisers.port import Summariser
from perdure.memory.toc import TocUpdater
from perdure.memory.vector_search import MemoryVectors
from perdure.outbox.delivery import Deliveries
from perdure.schedules.scheduled_jobs import ScheduledJobs

HASHED = "hashed"
SCHEDULES: Mapping[str, tuple[str, float]] = {
    rollup_job(DAY): ("0 0 * * * *", 300.0),
    rollup_job(WEEK): ("0 0 1 * * *", 300.0),
    rollup_job(MONTH): ("0 0 2 * * *", 300.0),
    rollup_job(YEAR): ("0 0 3 * * *", 300.0),
    COMPACTION_JOB: ("0 0 4 * * 0", 600.0),
}
"""Cron times of memory's jobs, seconds first, each with its jitter in seconds."""


def build_vectors(storage: Storage, settings: Settings) -> MemoryVectors | None:
    """Return the vector search if the settings name an embedder: `hashed`, a function or a model."""
    name = settings.memory_embedder
    if name is None:
        return None
    embed = hashed if name == HASHED else embed_named(name, Path.cwd())
    return MemoryVectors(storage, Embedder(embed))


class MemoryWork:
    """Background work of memory in one process."""

    def __init__(
        self,
        storage: Storage,
        settings: Settings,
        vectors: MemoryVectors | None = None,
        summariser: Summariser | None = None,
    ) -> None:
        self.indexer = MemoryIndexer(storage, vectors)
        self.updater = TocUpdater(storage, settings.memory_rest)
        self.builder = TocBuilder(storage, summariser or build_summariser(settings))
        self.jobs = MemoryJobs(self.builder, self.updater, self.indexer)

    def add_to(self, deliveries: Deliveries, registry: JobRegistry, schedules: ScheduledJobs) -> None:
        """Register consumers and jobs with this process, and the roll-ups with their schedules."""
        deliveries.add(self.indexer, self.updater)
        self.jobs.register(registry)
        for name, (expression, jitter) in SCHEDULES.items():
            schedules.add(name, expression, jitter=jitter)


def build_summariser(settings: Settings) -> Summariser:
    """Return the summariser named by the settings; `ConfigError` if they are incomplete."""
    if settings.memory_model is None:
        return ExtractiveSummariser()
    return EndpointSummariser(
        settings.memory_model_url,
        settings.memory_model,
        settings.memory_model_key,
        timeout=settings.memory_model_timeout,
    )
