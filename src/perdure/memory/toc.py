"""Outbox consumer that cuts days of new events into segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.jobs.model import NewJob, new_job
from perdure.kernel.codec import decode_json
from perdure.kernel.storage.port import Storage
from perdure.memory.model import TOC_CONSUMER
from perdure.memory.operations import toc
from perdure.outbox.model import ENDLESS, DeliveryPolicy, Effect

SEGMENTS_JOB = "memory-segments"
POLICY = DeliveryPolicy(retries=ENDLESS, batch=500, concurrency=1, deadline=120.0, gather=0.5, keep=False)


def segments_job(delay: float) -> NewJob:
    """Return the job that builds rested segments; at most one job per namespace waits."""
    return new_job(SEGMENTS_JOB, key="segments", delay=delay)


class TocUpdater:
    """Cut the days of new events into segments, and enqueue the build of changed segments.

    `rest` is the number of seconds that a segment must not change before it is summarised.
    """

    name = TOC_CONSUMER
    policy = POLICY

    def __init__(self, storage: Storage, rest: float) -> None:
        self.storage = storage
        self.rest = rest

    async def deliver_batch(self, ns: int, effects: Sequence[Effect]) -> Mapping[str, Exception]:
        spans = [(first, last) for effect in effects for first, last in decode_json(effect.body)["spans"]]
        await self.update(ns, spans)
        return {}

    async def update(self, ns: int, spans: Sequence[tuple[int, int]]) -> None:
        """Cut days again from the first to the last time of each span."""
        days = await self.storage.background(toc.mark_days, spans, ns=ns)
        for day in days:
            while await self.storage.background(toc.cut_day, day, segments_job(self.rest), ns=ns):
                pass
