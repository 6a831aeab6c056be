"""The service of rollouts, attempts, spans, resources and workers, in one namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from perdure.access.model import Caller
from perdure.kernel.errors import NotFound
from perdure.kernel.signals.port import until
from perdure.kernel.storage.port import Row, Storage
from perdure.rollouts.model import DEFAULT_QUEUE, TASK, Kinds
from perdure.rollouts.operations import claim, enqueue, queries, report, resources, spans, workers
from perdure.rollouts.operations.claim import Claim, Claimed
from perdure.rollouts.operations.enqueue import NewRollout
from perdure.rollouts.operations.queries import Page, Query
from perdure.rollouts.operations.report import AttemptReport, RolloutChange
from perdure.rollouts.operations.spans import NewSpan, Stored
from perdure.rollouts.operations.work import ENDED_CHANNEL, ended_key
from perdure.rollouts.watchdog import WatchedService


class Rollouts(WatchedService):
    """The rollouts of one namespace: lists and changes those of one `kind`, and reads any by its id."""

    def __init__(
        self,
        storage: Storage,
        kinds: Kinds,
        *,
        namespace: str = "default",
        kind: str = TASK,
        caller: Caller | None = None,
    ) -> None:
        super().__init__(storage, kinds, namespace=namespace, caller=caller)
        self.kind = kind

    # --- the queue --------------------------------------------------------------------------------------

    async def enqueue(self, request: NewRollout) -> Row:
        size = len(request.input) + len(request.metadata)
        return await self.write_once(None, enqueue.enqueue_rollouts, request, self.kinds, size=size)

    async def enqueue_many(self, requests: Sequence[NewRollout]) -> list[Row]:
        """Queue a list in its order; up to 1,000 at a time are one transaction."""
        rows: list[Row] = []
        for start in range(0, len(requests), 1000):
            rows += await self.write(enqueue.enqueue_rollouts, requests[start : start + 1000], self.kinds)
        return rows

    async def start(self, request: NewRollout, key: str | None = None) -> Claimed:
        return await self.write_once(key, enqueue.start_rollouts, request, self.kinds)

    async def start_missing(self, requests: Sequence[NewRollout]) -> None:
        """Start rollouts that bring their ids along, unless they are there."""
        await self.write(enqueue.start_missing, requests, self.kinds)

    async def claim(
        self, worker_id: str | None, limit: int, queue: str = DEFAULT_QUEUE, key: str | None = None
    ) -> list[Claimed]:
        return await self.write_once(
            key,
            claim.claim_rollouts,
            Claim(worker_id, limit),
            queue,
            self.kind,
            self.kinds,
            rows=limit,
            # A caller with a key may ask again, so that nothing is given back.
            undelivered=self._give_back if key is None else None,
        )

    def _give_back(self, claimed: list[Claimed]) -> None:
        """Release a claim whose caller was cancelled while it was made."""
        pairs = [(rollout[0], attempt[2]) for rollout, attempt in claimed]
        if pairs:
            self.release_later(partial(self.release, pairs))

    async def release(self, claimed: Sequence[tuple[str, str]]) -> None:
        """Take back claims, (rollout_id, attempt_id), whose answer reached nobody."""
        await self.write(claim.release_rollouts, claimed, self.kinds)

    async def start_attempt(self, rollout_id: str, worker_id: str | None, key: str | None = None) -> Claimed:
        request = (rollout_id, worker_id)
        return await self.write_once(key, claim.start_attempts, request, self.kind, self.kinds)

    # --- reports and changes ----------------------------------------------------------------------------

    async def report(self, attempt: AttemptReport) -> Row:
        return await self.write_once(None, report.report_attempts, attempt, self.kind, self.kinds)

    async def change(self, rollout: RolloutChange) -> Row:
        return await self.write_once(None, report.change_rollouts, rollout, self.kind, self.kinds)

    # --- spans ------------------------------------------------------------------------------------------

    def add_spans(
        self, call: Sequence[NewSpan], parts: Sequence[tuple[str, bytes]]
    ) -> asyncio.Future[Stored]:
        """Store the spans of one call, at most 1,000, all or none."""
        size = sum(span.size for span in call)
        return self._merger.call("spans", self._span_batch, (call, parts), rows=len(call), size=size)

    async def _span_batch(
        self, calls: Sequence[tuple[Sequence[NewSpan], Sequence[tuple[str, bytes]]]]
    ) -> Sequence[Stored | NotFound]:
        lists = [call for call, _ in calls]
        parts = [part for _, shared in calls for part in shared]
        try:
            return await self.write(spans.add_new_spans, lists, parts, self.kinds)
        except spans.CareNeeded:
            return await self.write(spans.add_spans, lists, parts, self.kinds)

    async def next_sequence_id(self, rollout_id: str) -> int:
        return await self.write_once(None, spans.next_sequence_ids, rollout_id)

    async def next_sequence_ids(self, rollout_ids: Sequence[str]) -> list[int]:
        numbers: list[int] = []
        for start in range(0, len(rollout_ids), 1000):
            numbers += await self.write(spans.next_sequence_ids, rollout_ids[start : start + 1000])
        return numbers

    async def evict_spans(self, bytes_to_free: int) -> int:
        """Drop the oldest rollouts' spans, in chunks that let callers in between."""
        freed = 0
        while freed < bytes_to_free:
            more = await self.storage.background(spans.evict, bytes_to_free - freed)
            if not more:
                break
            freed += more
        return freed

    async def query_spans(self, rollout_id: str, attempt_id: str | None, query: Query) -> tuple[Page, Any]:
        return await self.read(queries.query_spans, rollout_id, attempt_id, query, self.kinds.names())

    # --- reading ----------------------------------------------------------------------------------------

    async def get(self, rollout_id: str) -> tuple[Row, Row | None] | None:
        return await self.read_one(queries.get_rollouts, rollout_id, tuple(self.kinds.names()))

    async def query(self, query: Query) -> tuple[Page, Any]:
        return await self.read(queries.query_rollouts, query, self.kind)

    async def query_attempts(self, rollout_id: str, query: Query) -> Page:
        return await self.read(queries.query_attempts, rollout_id, query, self.kinds.names())

    async def statistics(self) -> dict[str, int]:
        return await self.read(queries.statistics, self.kind)

    # --- resources and workers --------------------------------------------------------------------------

    async def add_resources(self, body: str, key: str | None = None) -> Row:
        return await self.write_once(key, resources.add_resources, body)

    async def update_resources(self, resources_id: str, body: str) -> Row:
        return await self.write(resources.update_resources, resources_id, body)

    async def get_resources(self, resources_id: str) -> Row | None:
        return await self.read(resources.get_resources, resources_id)

    async def latest_resources(self) -> Row | None:
        return await self.read(resources.latest_resources)

    async def query_resources(self, query: Query) -> Page:
        return await self.read(queries.query_resources, query)

    async def heartbeat(self, worker_id: str, stats: str | None) -> Row:
        return await self.write_once(None, workers.beat, workers.Beat(worker_id, stats))

    async def get_worker(self, worker_id: str) -> Row | None:
        return (await self.read(queries.get_workers, [worker_id]))[0]

    async def query_workers(self, query: Query) -> Page:
        return await self.read(queries.query_workers, query)

    # --- waiting ----------------------------------------------------------------------------------------

    async def wait(
        self, rollout_ids: Sequence[str], timeout: float | None
    ) -> dict[str, tuple[Row, Row | None]]:
        """Those of the rollouts that have ended, once all that exist have or the time is up.

        Nothing is polled here: a hint wakes the waiter, who then reads what it was about.
        """
        ns = await self.ns()
        pending = {ended_key(ns, name): name for name in await self.read(queries.present, rollout_ids)}
        ended: dict[str, tuple[Row, Row | None]] = {}

        async def all_ended(changed: frozenset[str]) -> bool:
            asked = sorted(pending[key] for key in changed if key in pending)
            for rollout, attempt in await self._ended(asked):
                ended[rollout[0]] = (rollout, attempt)
                del pending[ended_key(ns, rollout[0])]
            return not pending

        await until(self.storage.signals, ENDED_CHANNEL, pending, all_ended, timeout=timeout)
        return ended

    async def _ended(self, rollout_ids: Sequence[str]) -> list[tuple[Row, Row | None]]:
        ended: list[tuple[Row, Row | None]] = []
        for start in range(0, len(rollout_ids), 1000):
            ended += await self.read(queries.get_ended, rollout_ids[start : start + 1000])
        return ended

    async def close(self) -> None:
        """Finish giving back claims, then close the storage."""
        await self.finish_releases()
        await self.storage.close()
