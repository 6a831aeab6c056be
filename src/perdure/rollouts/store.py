"""The LightningStore contract over a database: what writes, and the store as a whole."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self, cast

from msgspec import structs

from perdure.access.model import Caller
from perdure.kernel.checks import check_text, optional_text
from perdure.kernel.errors import InvalidInput
from perdure.kernel.storage.port import Storage
from perdure.rollouts import arguments, encoding
from perdure.rollouts.operations.spans import NewSpan
from perdure.rollouts.reading import ReadingStore
from perdure.rollouts.records import (
    UNSET,
    Attempt,
    AttemptedRollout,
    EnqueueRolloutRequest,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    Rollout,
    Unset,
    Worker,
)
from perdure.rollouts.resources import NamedResources, ResourcesUpdate
from perdure.rollouts.service import Rollouts
from perdure.rollouts.span_writer import Answer, Eviction, SpanWriter
from perdure.rollouts.spans import Span
from perdure.rollouts.traces import KeptTrace
from perdure.rollouts.watchdog import Watchdog

SPANS_A_CALL = 500


class DatabaseLightningStore(ReadingStore):
    """A store whose every acknowledged write is in a database."""

    def __init__(self, rollouts: Rollouts, eviction: Eviction | None = None) -> None:
        self._rollouts = rollouts
        self._eviction = eviction
        self._spans = SpanWriter(rollouts, eviction)
        self._opened = time.monotonic()

    @property
    def namespace(self) -> str:
        return self._rollouts.namespace

    @property
    def storage(self) -> Storage:
        """The database underneath, for rooms that share it."""
        return self._rollouts.storage

    def in_namespace(self, namespace: str) -> Self:
        """A store over the same database that sees another namespace; closing either closes both."""
        return self._sibling(self._rollouts.in_namespace(check_text(namespace, "namespace")))

    def acting_as(self, namespace: str, actor: str) -> Self:
        """A sibling as of `in_namespace` whose every write leaves an audit entry in its own transaction."""
        check_text(namespace, "namespace")
        return self._sibling(self._rollouts.acting_as(Caller.trusted(check_text(actor, "actor"), namespace)))

    def _sibling(self, rollouts: Rollouts) -> Self:
        sibling = object.__new__(type(self))
        sibling.__dict__.update(self.__dict__)
        sibling._rollouts = rollouts
        sibling._spans = SpanWriter(rollouts, self._eviction)
        return sibling

    @property
    def watchdog(self) -> Watchdog:
        """What ends the overdue attempts of this database."""
        return self._rollouts.watchdog

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(
            thread_safe=True, async_safe=True, zero_copy=False, otlp_traces=False
        )

    async def statistics(self) -> LightningStoreStatistics:
        counts = await self._rollouts.statistics()
        statistics = LightningStoreStatistics(
            name=type(self).__name__, uptime=time.monotonic() - self._opened
        )
        statistics.update(cast("LightningStoreStatistics", counts))
        return statistics

    async def health(self) -> Mapping[str, Any]:
        """Whether the database works, and which indexes are still being built."""
        return await self._rollouts.storage.health()

    async def close(self) -> None:
        await self._rollouts.close()

    # --- the queue --------------------------------------------------------------------------------------

    async def start_rollout(
        self,
        input: Any,
        mode: Any = None,
        resources_id: str | None = None,
        config: Any = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> AttemptedRollout:
        request = encoding.new_rollout(input, mode, resources_id, config, metadata, worker_id=worker_id)
        return encoding.attempted_from(await self._rollouts.start(request, arguments.key(idempotency_key)))

    async def enqueue_rollout(
        self,
        input: Any,
        mode: Any = None,
        resources_id: str | None = None,
        config: Any = None,
        metadata: dict[str, Any] | None = None,
        *,
        queue: str = "default",
        priority: int = 0,
        not_before: float | None = None,
        idempotency_key: str | None = None,
    ) -> Rollout:
        request = encoding.new_rollout(
            input,
            mode,
            resources_id,
            config,
            metadata,
            queue=queue,
            priority=priority,
            not_before=not_before,
            idempotency_key=idempotency_key,
        )
        row = await self._rollouts.enqueue(request)
        return encoding.rollout_from(row)

    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRolloutRequest]) -> Sequence[Rollout]:
        requests = [encoding.from_request(request) for request in rollouts]
        return [encoding.rollout_from(row) for row in await self._rollouts.enqueue_many(requests)]

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, queue: str = "default", idempotency_key: str | None = None
    ) -> AttemptedRollout | None:
        claimed = await self.dequeue_many_rollouts(
            limit=1, worker_id=worker_id, queue=queue, idempotency_key=idempotency_key
        )
        return claimed[0] if claimed else None

    async def dequeue_many_rollouts(
        self,
        *,
        limit: int = 1,
        worker_id: str | None = None,
        queue: str = "default",
        idempotency_key: str | None = None,
    ) -> Sequence[AttemptedRollout]:
        worker_id = optional_text(worker_id, "worker_id")
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise InvalidInput(f"limit must be a whole number, not {limit!r}")
        key = arguments.key(idempotency_key)
        if limit <= 0:
            return []
        claimed = await self._rollouts.claim(worker_id, min(limit, 1000), check_text(queue, "queue"), key)
        return [encoding.attempted_from(pair) for pair in claimed]

    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None, *, idempotency_key: str | None = None
    ) -> AttemptedRollout:
        worker_id, key = optional_text(worker_id, "worker_id"), arguments.key(idempotency_key)
        claimed = await self._rollouts.start_attempt(check_text(rollout_id, "rollout_id"), worker_id, key)
        return encoding.attempted_from(claimed)

    # --- spans ------------------------------------------------------------------------------------------

    async def add_span(self, span: Span) -> Span | None:
        (number,) = await self._spans.store([span], numbered=True)
        return span if number is not None else None

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        stored: list[Span] = []
        for start in range(0, len(spans), SPANS_A_CALL):
            part = spans[start : start + SPANS_A_CALL]
            numbers = await self._spans.store(part, numbered=True)
            stored += [span for span, number in zip(part, numbers, strict=True) if number is not None]
        return stored

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        span = Span.from_opentelemetry(readable_span, rollout_id, attempt_id, sequence_id or 0)
        (number,) = await self._spans.store([span], numbered=sequence_id is not None)
        if number is None:
            return None
        span.sequence_id = number
        return span

    async def add_otlp_spans(self, spans: Sequence[NewSpan], parts: Mapping[str, bytes]) -> list[Answer]:
        """Store spans in the form in which OTLP brought them, with the parts that they share.

        Each is answered with its sequence id, None if it was known already, or why it is not stored: one
        that names an unknown rollout or attempt keeps no other back.
        """
        return await self._spans.store_each(spans, parts)

    async def keep_traces(self, traces: Sequence[KeptTrace]) -> None:
        """Make a rollout that is running for each trace that belongs to none, unless it is there."""
        await self._rollouts.start_missing([trace.request() for trace in traces])

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        return await self._rollouts.next_sequence_id(check_text(rollout_id, "rollout_id"))

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        ids = [check_text(rollout_id, "rollout_id") for rollout_id, _ in rollout_attempt_ids]
        return await self._rollouts.next_sequence_ids(ids)

    # --- rollouts and attempts --------------------------------------------------------------------------

    async def update_rollout(
        self,
        rollout_id: str,
        input: Any = UNSET,
        mode: Any = UNSET,
        resources_id: str | Unset | None = UNSET,
        status: Any = UNSET,
        config: Any = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
        *,
        only_from: Collection[str] | None = None,
    ) -> Rollout:
        """`only_from` names the statuses in which the rollout may be changed; in another it is a Conflict."""
        change = arguments.rollout_change(rollout_id, input, mode, resources_id, status, config, metadata)
        if only_from is not None:
            change = structs.replace(change, only_from=frozenset(only_from))
        return encoding.rollout_from(await self._rollouts.change(change))

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: Any = UNSET,
        worker_id: Any = UNSET,
        last_heartbeat_time: Any = UNSET,
        metadata: Any = UNSET,
    ) -> Attempt:
        told = (status, worker_id, last_heartbeat_time, metadata)
        report = arguments.attempt_report(rollout_id, attempt_id, *told)
        return encoding.attempt_from(await self._rollouts.report(report))

    # --- resources --------------------------------------------------------------------------------------

    async def add_resources(
        self, resources: NamedResources, *, idempotency_key: str | None = None
    ) -> ResourcesUpdate:
        body, key = encoding.encode_resources(resources), arguments.key(idempotency_key)
        return encoding.resources_from(await self._rollouts.add_resources(body, key))

    async def update_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        body = encoding.encode_resources(resources)
        row = await self._rollouts.update_resources(check_text(resources_id, "resources_id"), body)
        return encoding.resources_from(row)

    # --- workers ----------------------------------------------------------------------------------------

    async def update_worker(self, worker_id: str, heartbeat_stats: Any = UNSET) -> Worker:
        if heartbeat_stats is None:
            raise TypeError("heartbeat_stats cannot be None; leave it out to keep the last ones")
        stats = (
            None if heartbeat_stats is UNSET else encoding.encode_metadata(heartbeat_stats, "heartbeat_stats")
        )
        return encoding.worker_from(await self._rollouts.heartbeat(check_text(worker_id, "worker_id"), stats))
