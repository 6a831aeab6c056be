"""The LightningStore contract, which every store implements."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self

from perdure.rollouts.records import (
    UNSET,
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    PaginatedResult,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    TaskInput,
    Unset,
    Worker,
    WorkerStatus,
)
from perdure.rollouts.resources import NamedResources, ResourcesUpdate
from perdure.service.callers import Caller
from perdure.spans.records import Span

FilterLogic = Literal["and", "or"]
SortOrder = Literal["asc", "desc"]
Queried = Literal["rollouts", "attempts", "spans", "resources", "workers"]


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a method by their names."""
    return {name: value for name, value in arguments.items() if name != "self"}


class LightningStore:
    """Coordinates agents' work: a queue of rollouts, their attempts and spans, resources and workers.

    Each method is atomic. Subclass it to put the contract over storage of your own;
    `perdure.testing.contract` holds the tests such a store should pass.
    """

    def in_namespace(self, namespace: str) -> LightningStore:
        """Return a store over the same database for another namespace; closing either closes both."""
        raise NotImplementedError(f"{type(self).__name__} has no namespaces")

    def acting_as(self, caller: Caller) -> LightningStore:
        """Return the store in the caller's namespace; with an audit, entries have the caller's name."""
        return self.in_namespace(caller.namespace)

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """The capabilities of this store; all false by default."""
        return LightningStoreCapabilities(
            thread_safe=False, async_safe=False, zero_copy=False, otlp_traces=False
        )

    async def statistics(self) -> LightningStoreStatistics:
        """Return the numbers of objects in the store."""
        return LightningStoreStatistics(name=type(self).__name__)

    def otlp_traces_endpoint(self) -> str:
        """Return the URL that accepts OTLP traces; it ends in `/v1/traces`."""
        raise NotImplementedError(f"{type(self).__name__} has no OTLP endpoint")

    async def start_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> AttemptedRollout:
        """Create a rollout and its first attempt at once, without the queue.

        Here and below, a second call with the same `idempotency_key` within a day returns the answer of the
        first and changes nothing. A key used with another method is a `Conflict`.
        """
        raise NotImplementedError

    async def enqueue_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        queue: str = "default",
        priority: int = 0,
        not_before: float | None = None,
        idempotency_key: str | None = None,
    ) -> Rollout:
        """Put a rollout at the tail of its queue.

        `resources_id` defaults to the latest resources. A higher `priority` is claimed first. `not_before` is
        the epoch second before which the rollout is not claimed. A second call with the same
        `idempotency_key` returns the rollout of the first.
        """
        raise NotImplementedError

    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRolloutRequest]) -> Sequence[Rollout]:
        """Enqueue many rollouts in their order."""
        raise NotImplementedError

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, queue: str = "default", idempotency_key: str | None = None
    ) -> AttemptedRollout | None:
        """Claim the next rollout and start its next attempt; None if the queue is empty.

        An empty claim does not use up its `idempotency_key`. A cancelled claim is released, unless it has a
        key, with which its caller may repeat it.
        """
        raise NotImplementedError

    async def dequeue_many_rollouts(
        self,
        *,
        limit: int = 1,
        worker_id: str | None = None,
        queue: str = "default",
        idempotency_key: str | None = None,
    ) -> Sequence[AttemptedRollout]:
        """Claim up to `limit` rollouts."""
        raise NotImplementedError

    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None, *, idempotency_key: str | None = None
    ) -> AttemptedRollout:
        """Start another attempt by hand, whatever the rollout's status and limits."""
        raise NotImplementedError

    async def add_span(self, span: Span) -> Span | None:
        """Store a span; None if it was stored before. It counts as a heartbeat of its attempt."""
        raise NotImplementedError

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Store many spans, and return those that were not stored before."""
        raise NotImplementedError

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        """Store an OpenTelemetry span; without `sequence_id` it gets the next number."""
        raise NotImplementedError

    async def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
    ) -> PaginatedResult[Rollout]:
        """Return a page of rollouts, each with its latest attempt if it has one.

        `status` and `rollout_ids` are older names of `status_in` and `rollout_id_in`.
        """
        status_in = status if status_in is None else status_in
        rollout_id_in = rollout_ids if rollout_id_in is None else rollout_id_in
        del status, rollout_ids
        return await self._query("rollouts", _given(locals()))

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        """Return a page of a rollout's attempts."""
        return await self._query("attempts", _given(locals()))

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        """Return a rollout, with its latest attempt if it has one."""
        raise NotImplementedError

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """Return the attempt with the highest sequence id."""
        raise NotImplementedError

    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[ResourcesUpdate]:
        """Return a page of resources, in the order in which they were added."""
        return await self._query("resources", _given(locals()))

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        raise NotImplementedError

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        """Return the resources that were added or updated last."""
        raise NotImplementedError

    async def add_resources(
        self, resources: NamedResources, *, idempotency_key: str | None = None
    ) -> ResourcesUpdate:
        """Store a new bundle as version 1."""
        raise NotImplementedError

    async def update_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        """Store the next version of a bundle, or version 1 if it is unknown."""
        raise NotImplementedError

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        """Return the next sequence id for a span of this rollout."""
        raise NotImplementedError

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        """Return the next sequence ids for many (rollout_id, attempt_id) pairs, in their order."""
        raise NotImplementedError

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> list[Rollout]:
        """Wait until all have ended or `timeout` seconds have passed; return those that have ended."""
        raise NotImplementedError

    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
    ) -> PaginatedResult[Span]:
        """Return a page of a rollout's spans; `attempt_id` may be `latest`."""
        return await self._query("spans", _given(locals()))

    async def update_rollout(
        self,
        rollout_id: str,
        input: TaskInput | Unset = UNSET,
        mode: RolloutMode | Unset | None = UNSET,
        resources_id: str | Unset | None = UNSET,
        status: RolloutStatus | Unset = UNSET,
        config: RolloutConfig | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Rollout:
        """Set the given fields. A status is set from any status."""
        raise NotImplementedError

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: dict[str, Any] | Unset = UNSET,
    ) -> Attempt:
        """Set the given fields; `attempt_id` may be `latest`. The rollout follows its latest attempt."""
        raise NotImplementedError

    async def query_workers(
        self,
        *,
        status_in: Sequence[WorkerStatus] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Worker]:
        """Return a page of workers."""
        return await self._query("workers", _given(locals()))

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        raise NotImplementedError

    async def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET) -> Worker:
        """Record a worker's heartbeat, and its statistics if given."""
        raise NotImplementedError

    async def _query(self, what: Queried, terms: dict[str, Any]) -> PaginatedResult[Any]:
        """Run a `query_` method that the store does not define, by its arguments."""
        raise NotImplementedError

    async def close(self) -> None:
        """Release the resources of the store; nothing by default."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
