"""The object that callers of this room hold: it runs the operations, merged, watched and in one namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from perdure.kernel.errors import Conflict, NotFound
from perdure.kernel.signals.port import until
from perdure.kernel.storage.port import Row, Storage
from perdure.rollouts.model import DEFAULT_QUEUE, TASK, Kinds
from perdure.rollouts.operations import claim, enqueue, queries, report, resources, spans, workers
from perdure.rollouts.operations.claim import Claim, Claimed
from perdure.rollouts.operations.enqueue import NewRollout
from perdure.rollouts.operations.queries import Page, Query
from perdure.rollouts.operations.report import AttemptReport, RolloutChange
from perdure.rollouts.operations.spans import NewSpan, Stored
from perdure.rollouts.operations.work import ENDED_CHANNEL, LinesNeeded, ended_key
from perdure.rollouts.running import Keys, Runner

POLL_SECONDS = 2.0
POLL_ROWS = 1000


class Rollouts(Runner):
    """The rollouts of one namespace. `kind` is what this holder lists and changes; by its id it sees any.

    With an `actor` every write leaves an entry in the audit, in its own transaction.
    """

    def __init__(
        self,
        storage: Storage,
        kinds: Kinds,
        *,
        namespace: str = "default",
        kind: str = TASK,
        actor: str | None = None,
    ) -> None:
        super().__init__(storage, kinds, namespace=namespace, actor=actor)
        self._kind = kind

    def acting_as(self, namespace: str, actor: str | None) -> Rollouts:
        """The rollouts of a namespace of the same database, changed in the name of `actor`."""
        sibling = Rollouts(self.storage, self._kinds, namespace=namespace, kind=self._kind, actor=actor)
        sibling._releases, sibling.lapses = self._releases, self.lapses
        return sibling

    def in_namespace(self, namespace: str) -> Rollouts:
        """The rollouts of another namespace of the same database."""
        return self.acting_as(namespace, self.actor)

    # --- the queue --------------------------------------------------------------------------------------

    def enqueue(self, request: NewRollout) -> asyncio.Future[Row]:
        size = len(request.input) + len(request.metadata)
        return self._merger.call("enqueue", self._enqueue_batch, request, size=size)

    async def _enqueue_batch(self, requests: Sequence[NewRollout]) -> Sequence[Row]:
        return await self._write_watched(enqueue.enqueue, requests, self._kinds)

    async def enqueue_many(self, requests: Sequence[NewRollout]) -> list[Row]:
        """Queue a list in its order; up to 1,000 at a time are one transaction."""
        rows: list[Row] = []
        for start in range(0, len(requests), 1000):
            rows += await self._enqueue_batch(requests[start : start + 1000])
        return rows

    async def start(self, request: NewRollout, key: str | None = None) -> Claimed:
        if key is not None:
            return cast(Claimed, await self._once("start", self._start_batch, request, key))
        return (await self._start_batch([request]))[0]

    async def _start_batch(self, requests: Sequence[NewRollout], keys: Keys = None) -> list[Claimed]:
        return await self._write_watched(enqueue.start, requests, self._kinds, keys=keys)

    async def start_missing(self, requests: Sequence[NewRollout]) -> None:
        """Start rollouts that bring their ids along, unless they are there."""
        await self._write_watched(enqueue.start_missing, requests, self._kinds)

    async def claim(
        self, worker_id: str | None, limit: int, queue: str = DEFAULT_QUEUE, key: str | None = None
    ) -> list[Claimed]:
        item = Claim(worker_id, limit)
        batch = partial(self._claim_batch, queue=queue)
        if key is not None:
            # Whoever goes away may ask again with the key, so that nothing is given back.
            return cast(list[Claimed], await self._once(("claim", queue), batch, item, key))
        answer: asyncio.Future[list[Claimed]] = self._merger.call(
            ("claim", queue), batch, item, rows=limit, undelivered=self._give_back
        )
        try:
            return await answer
        except asyncio.CancelledError:
            # The answer may be there although its caller never got to see it.
            if not answer.cancelled() and answer.exception() is None:
                self._give_back(answer.result())
            raise

    async def _claim_batch(
        self, claims: Sequence[Claim], queue: str, keys: Keys = None
    ) -> list[list[Claimed]]:
        return await self._write_watched(claim.claim, claims, queue, self._kind, self._kinds, keys=keys)

    def _give_back(self, claimed: list[Claimed]) -> None:
        """The caller went away while its claim was made."""
        pairs = [(rollout[0], attempt[2]) for rollout, attempt in claimed]
        if pairs:
            self._return(partial(self._write_lined, claim.release, pairs, self._kinds))

    def start_attempt(
        self, rollout_id: str, worker_id: str | None, key: str | None = None
    ) -> asyncio.Future[Claimed]:
        request = (rollout_id, worker_id)
        if key is not None:
            return self._once("start_attempt", self._start_attempt_batch, request, key)
        return self._merger.call("start_attempt", self._start_attempt_batch, request)

    async def _start_attempt_batch(
        self, requests: Sequence[tuple[str, str | None]], keys: Keys = None
    ) -> list[Claimed | NotFound]:
        args = (requests, self._kind, self._kinds)
        return await self._write_lined(claim.start_attempts, *args, keys=keys)

    # --- reports and changes ----------------------------------------------------------------------------

    def report(self, attempt: AttemptReport) -> asyncio.Future[Row]:
        return self._merger.call("report", self._report_batch, attempt)

    async def _report_batch(self, reports: Sequence[AttemptReport]) -> list[Row | NotFound]:
        return await self._write_lined(report.report_attempts, reports, self._kind, self._kinds)

    def change(self, rollout: RolloutChange) -> asyncio.Future[Row]:
        return self._merger.call("change", self._change_batch, rollout)

    async def _change_batch(self, changes: Sequence[RolloutChange]) -> list[Row | NotFound | Conflict]:
        return await self._write_lined(report.change_rollouts, changes, self._kind, self._kinds)

    # --- spans ------------------------------------------------------------------------------------------

    def add_spans(
        self, call: Sequence[NewSpan], parts: Sequence[tuple[str, bytes]]
    ) -> asyncio.Future[Stored]:
        """Store the spans of one call, at most 1,000, all or none."""
        size = sum(span.size for span in call)
        return self._merger.call("spans", self._span_batch, (call, parts), rows=len(call), size=size)

    async def _span_batch(
        self, calls: Sequence[tuple[Sequence[NewSpan], Sequence[tuple[str, bytes]]]]
    ) -> list[Stored | NotFound]:
        lists = [call for call, _ in calls]
        parts = [part for _, shared in calls for part in shared]
        args = (lists, parts, self._kinds)
        try:
            return list(await self._write(spans.add_new_spans, *args))
        except spans.CareNeeded:
            pass
        try:
            return await self._write(spans.add_spans, *args, False)
        except LinesNeeded:
            return await self._write(spans.add_spans, *args, True)

    def next_sequence_id(self, rollout_id: str) -> asyncio.Future[int]:
        return self._merger.call("sequence", self._sequence_batch, rollout_id)

    async def _sequence_batch(self, rollout_ids: Sequence[str]) -> list[int]:
        return await self._write(spans.next_sequence_ids, rollout_ids)

    async def next_sequence_ids(self, rollout_ids: Sequence[str]) -> list[int]:
        numbers: list[int] = []
        for start in range(0, len(rollout_ids), 1000):
            numbers += await self._sequence_batch(rollout_ids[start : start + 1000])
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
        return await self._read_watched(
            queries.query_spans, rollout_id, attempt_id, query, self._kinds.names()
        )

    # --- reading ----------------------------------------------------------------------------------------

    def get(self, rollout_id: str) -> asyncio.Future[tuple[Row, Row | None] | None]:
        return self._merger.call("get", self._get_batch, rollout_id)

    async def _get_batch(self, rollout_ids: Sequence[str]) -> list[tuple[Row, Row | None] | None]:
        return await self._read_watched(queries.get_rollouts, rollout_ids, self._kinds.names())

    async def query(self, query: Query) -> tuple[Page, Any]:
        return await self._read_watched(queries.query_rollouts, query, self._kind)

    async def query_attempts(self, rollout_id: str, query: Query) -> Page:
        return await self._read_watched(queries.query_attempts, rollout_id, query, self._kinds.names())

    async def statistics(self) -> dict[str, int]:
        return await self._read(queries.statistics, self._kind)

    # --- resources and workers --------------------------------------------------------------------------

    async def add_resources(self, body: str, key: str | None = None) -> Row:
        if key is not None:
            return cast(Row, await self._once("add_resources", self._add_resources_batch, body, key))
        return (await self._add_resources_batch([body]))[0]

    async def _add_resources_batch(self, bodies: Sequence[str], keys: Keys = None) -> list[Row]:
        return await self._write(resources.add_resources, bodies, keys=keys)

    async def update_resources(self, resources_id: str, body: str) -> Row:
        return await self._write_watched(resources.update_resources, resources_id, body)

    async def get_resources(self, resources_id: str) -> Row | None:
        return await self._read(resources.get_resources, resources_id)

    async def latest_resources(self) -> Row | None:
        return await self._read(resources.latest_resources)

    async def query_resources(self, query: Query) -> Page:
        return await self._read(queries.query_resources, query)

    def beat(self, worker_id: str, stats: str | None) -> asyncio.Future[Row]:
        return self._merger.call("beat", self._beat_batch, workers.Beat(worker_id, stats))

    async def _beat_batch(self, beats: Sequence[workers.Beat]) -> list[Row]:
        return await self._write(workers.beat, beats)

    async def get_worker(self, worker_id: str) -> Row | None:
        return (await self._read(queries.get_workers, [worker_id]))[0]

    async def query_workers(self, query: Query) -> Page:
        return await self._read_watched(queries.query_workers, query)

    # --- waiting ----------------------------------------------------------------------------------------

    async def wait(
        self, rollout_ids: Sequence[str], timeout: float | None
    ) -> dict[str, tuple[Row, Row | None]]:
        """Those of the rollouts that have ended, once all that exist have or the time is up.

        Nothing is polled here: a hint wakes the waiter, who then reads what it was about.
        """
        ns = await self._ns()
        pending = {ended_key(ns, name): name for name in await self._read(queries.present, rollout_ids)}
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
            ended += await self._read_watched(queries.get_ended, rollout_ids[start : start + 1000])
        return ended

    async def poll_watched(self) -> None:
        """Make up for hints that were lost between processes: look at what is waited for, all at once."""
        wanted: dict[int, list[str]] = {}
        for key in self.storage.signals.watched(ENDED_CHANNEL):
            ns, _, rollout_id = key.partition("/")
            wanted.setdefault(int(ns), []).append(rollout_id)
        for number, ids in wanted.items():
            for start in range(0, len(ids), POLL_ROWS):
                ended = await self.storage.read(
                    queries.ended_among, ids[start : start + POLL_ROWS], ns=number
                )
                self.storage.signals.publish([(ENDED_CHANNEL, ended_key(number, name)) for name in ended])

    def start_timers(self, watchdog_interval: float | None) -> None:
        """Run the watchdog by itself, and the polling where other processes write too."""
        if watchdog_interval is not None:
            self.storage.timers.every(watchdog_interval, self.sweep_alone)
        if self.storage.engine == "postgres":
            self.storage.timers.every(POLL_SECONDS, self.poll_watched)

    async def close(self) -> None:
        """Finish giving back claims, then close the storage."""
        await self._finish_returns()
        await self.storage.close()
