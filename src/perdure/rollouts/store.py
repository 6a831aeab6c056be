"""The LightningStore contract over a database: Agent-lightning's names for the services' methods."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Self

from perdure.kernel.checks import check_text
from perdure.kernel.errors import InvalidInput
from perdure.kernel.storage.port import Storage
from perdure.rollouts import arguments, encoding
from perdure.rollouts.contract import LightningStore, Queried
from perdure.rollouts.records import (
    ROLLOUT_STATUSES,
    WORKER_STATUSES,
    AttemptedRollout,
    EnqueueRolloutRequest,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    PaginatedResult,
    Rollout,
)
from perdure.rollouts.resource_service import Resources
from perdure.rollouts.service import Rollouts
from perdure.rollouts.watchdog import Watchdog
from perdure.rollouts.workers import Workers
from perdure.service.callers import Caller
from perdure.spans.records import Span

MAX_CLAIM = 1000
_STATUSES: Mapping[str, Sequence[str]] = {"rollouts": ROLLOUT_STATUSES, "workers": WORKER_STATUSES}


class DatabaseLightningStore(LightningStore):
    """A store that keeps every acknowledged write in a database."""

    def __init__(self, rollouts: Rollouts) -> None:
        self._hold(rollouts)

    def _hold(self, rollouts: Rollouts) -> None:
        self.rollouts = rollouts
        self.resources = Resources.of_same(rollouts)
        self.workers = Workers.of_same(rollouts)

    @property
    def namespace(self) -> str:
        return self.rollouts.namespace

    @property
    def storage(self) -> Storage:
        """The database, shared with other services."""
        return self.rollouts.storage

    @property
    def watchdog(self) -> Watchdog:
        """The watchdog of this database."""
        return self.rollouts.watchdog

    def in_namespace(self, namespace: str) -> Self:
        """Return a store over the same database for another namespace; closing either closes both."""
        return self._sibling(self.rollouts.in_namespace(namespace))

    def acting_as(self, caller: Caller) -> Self:
        """Return the store in the caller's namespace; each write adds an audit entry in its transaction."""
        return self._sibling(self.rollouts.acting_as(caller))

    def _sibling(self, rollouts: Rollouts) -> Self:
        sibling = object.__new__(type(self))
        sibling.__dict__.update(self.__dict__)
        sibling._hold(rollouts)
        return sibling

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(
            thread_safe=True, async_safe=True, zero_copy=False, otlp_traces=False
        )

    async def statistics(self) -> LightningStoreStatistics:
        statistics = await self.rollouts.statistics()
        statistics["name"] = type(self).__name__
        return statistics

    async def health(self) -> Mapping[str, Any]:
        """Return whether the database works, and which indexes are still being built."""
        return await self.storage.health()

    async def close(self) -> None:
        await self.rollouts.close()

    async def enqueue_rollout(self, *args: Any, **options: Any) -> Rollout:
        return await self.rollouts.enqueue_new(encoding.new_rollout(*args, **options))

    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRolloutRequest]) -> Sequence[Rollout]:
        return await self.rollouts.enqueue_many(list(rollouts))

    async def dequeue_rollout(self, worker_id: str | None = None, **options: Any) -> AttemptedRollout | None:
        claimed = await self.rollouts.claim(worker_id, **options)
        return claimed[0] if claimed else None

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None, **options: Any
    ) -> Sequence[AttemptedRollout]:
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise InvalidInput(f"limit must be a whole number, not {limit!r}")
        if limit <= 0:
            return []
        return await self.rollouts.claim(worker_id, limit=min(limit, MAX_CLAIM), **options)

    async def add_span(self, span: Span) -> Span | None:
        (number,) = await self.rollouts.store_spans([span])
        return None if number is None else span

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        numbers = await self.rollouts.store_spans(spans)
        return [span for span, number in zip(spans, numbers, strict=True) if number is not None]

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        span = Span.from_opentelemetry(readable_span, rollout_id, attempt_id, sequence_id or 0)
        (number,) = await self.rollouts.store_spans([span], numbered=sequence_id is not None)
        if number is None:
            return None
        span.sequence_id = number
        return span

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        check_text(attempt_id, "attempt_id")
        return await self.rollouts.next_sequence_id(rollout_id)

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        for _, attempt_id in rollout_attempt_ids:
            check_text(attempt_id, "attempt_id")
        return await self.rollouts.next_sequence_ids([rollout_id for rollout_id, _ in rollout_attempt_ids])

    async def _query(self, what: Queried, terms: dict[str, Any]) -> PaginatedResult[Any]:
        if what in _STATUSES:
            arguments.within(terms["status_in"], _STATUSES[what], "status")
        within = [terms.pop(name) for name in _WITHIN[what]]
        query = arguments.contract_query(terms)
        if what == "resources":
            return await self.resources.query(query)
        if what == "workers":
            return await self.workers.query(query)
        method: Callable[..., Awaitable[PaginatedResult[Any]]] = getattr(self.rollouts, "query_" + what)
        return await method(*within, query)


_WITHIN: Mapping[Queried, Sequence[str]] = {
    "rollouts": (),
    "attempts": ("rollout_id",),
    "spans": ("rollout_id", "attempt_id"),
    "resources": (),
    "workers": (),
}
"""Arguments that select the parent object, besides the filters."""

_SAME: Mapping[str, tuple[str, str]] = {
    "start_rollout": ("rollouts", "start"),
    "start_attempt": ("rollouts", "start_attempt"),
    "get_rollout_by_id": ("rollouts", "find"),
    "get_latest_attempt": ("rollouts", "find_latest_attempt"),
    "update_rollout": ("rollouts", "update"),
    "update_attempt": ("rollouts", "update_attempt"),
    "wait_for_rollouts": ("rollouts", "wait"),
    "add_resources": ("resources", "add"),
    "update_resources": ("resources", "update"),
    "get_resources_by_id": ("resources", "find"),
    "get_latest_resources": ("resources", "find_latest"),
    "get_worker_by_id": ("workers", "find"),
    "update_worker": ("workers", "heartbeat"),
}
"""Methods of the contract with the same arguments and result as a method of a service."""


def _forward(name: str, service: str, method: str) -> Callable[..., Awaitable[Any]]:
    @wraps(getattr(LightningStore, name))
    def forward(self: DatabaseLightningStore, *args: Any, **options: Any) -> Any:
        return getattr(getattr(self, service), method)(*args, **options)

    return forward


for _name, (_service, _method) in _SAME.items():
    setattr(DatabaseLightningStore, _name, _forward(_name, _service, _method))
