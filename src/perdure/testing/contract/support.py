"""Shared by the contract's modules: the harness of a store, and helpers to reach a state."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pytest

from perdure import (
    Attempt,
    AttemptedRollout,
    LightningStore,
    OtelResource,
    Rollout,
    RolloutConfig,
    Span,
    TraceStatus,
    Worker,
)
from perdure.rollouts.records import (
    ATTEMPT_STATUSES,
    ROLLOUT_STATUSES,
    AttemptStatus,
    RolloutStatus,
    WorkerStatus,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

__all__ = [
    "ATTEMPT_STATUSES",
    "ENDED",
    "PATIENCE",
    "QUEUED",
    "RETRIABLE",
    "ROLLOUT_STATUSES",
    "TERMINAL",
    "AttemptStatus",
    "Contract",
    "Harness",
    "RolloutStatus",
    "WorkerStatus",
    "claim",
    "drain",
    "finish",
    "get_rollout",
    "get_worker",
    "latest",
    "list_attempts",
    "make_span",
    "new_rollout",
    "otel_span",
    "retrying",
    "soon",
]

T = TypeVar("T")

QUEUED: tuple[RolloutStatus, ...] = ("queuing", "requeuing")
TERMINAL: tuple[RolloutStatus, ...] = ("failed", "succeeded", "cancelled")
RETRIABLE: tuple[AttemptStatus, ...] = ("failed", "timeout", "unresponsive")
ENDED: tuple[AttemptStatus, ...] = ("failed", "succeeded")

PATIENCE = 20.0
"""Seconds within which an expected event must happen, on the slowest machine."""

_span_numbers = itertools.count(1)


class Harness(Protocol):
    """Control over the clock: moves time for all data of the store."""

    async def advance(self, seconds: float) -> None:
        """Move all deadlines nearer by `seconds`, at once."""


class Contract:
    """Base of the suite's classes: each test is a coroutine with the fixtures `store` and `harness`."""

    pytestmark = pytest.mark.asyncio


async def soon(awaitable: Awaitable[T]) -> T:
    """Return the awaitable's result, which must come within the suite's patience."""
    async with asyncio.timeout(PATIENCE):
        return await awaitable


async def new_rollout(
    store: LightningStore, config: RolloutConfig | None = None, worker_id: str | None = None
) -> AttemptedRollout:
    """Start a rollout and return it with its first attempt."""
    return await store.start_rollout({"task": "contract"}, config=config, worker_id=worker_id)


def retrying(*statuses: AttemptStatus, max_attempts: int = 3, **limits: float) -> RolloutConfig:
    """Build a config that retries on these attempt statuses."""
    return RolloutConfig(max_attempts=max_attempts, retry_condition=list(statuses), **limits)


async def claim(store: LightningStore, worker_id: str | None = None) -> AttemptedRollout:
    """Claim the next rollout of the queue, which must not be empty."""
    claimed = await store.dequeue_rollout(worker_id)
    assert claimed is not None, "the queue is empty"
    return claimed


async def drain(store: LightningStore) -> list[str]:
    """Claim everything in the default queue, and return the ids in order."""
    ids: list[str] = []
    while (claimed := await store.dequeue_rollout()) is not None:
        ids.append(claimed.rollout_id)
    return ids


async def get_rollout(store: LightningStore, rollout_id: str) -> Rollout:
    """Return a rollout, which must exist."""
    rollout = await store.get_rollout_by_id(rollout_id)
    assert rollout is not None, rollout_id
    return rollout


async def latest(store: LightningStore, rollout_id: str) -> Attempt:
    """Return the rollout's latest attempt, which must exist."""
    attempt = await store.get_latest_attempt(rollout_id)
    assert attempt is not None, rollout_id
    return attempt


async def list_attempts(store: LightningStore, rollout_id: str) -> list[Attempt]:
    """Return the rollout's attempts, oldest first."""
    return list(await store.query_attempts(rollout_id))


async def get_worker(store: LightningStore, worker_id: str) -> Worker:
    """Return a worker, which must exist; reading it runs no watchdog."""
    worker = await store.get_worker_by_id(worker_id)
    assert worker is not None, worker_id
    return worker


async def finish(
    store: LightningStore, started: AttemptedRollout, status: AttemptStatus = "succeeded"
) -> Attempt:
    """Report the end of an attempt, as its runner does."""
    return await store.update_attempt(started.rollout_id, started.attempt.attempt_id, status=status)


def make_span(started: AttemptedRollout | Attempt, sequence_id: int = 1, **fields: Any) -> Span:
    """Build a span of the attempt with its own id; `fields` replace or extend the defaults."""
    attempt = started.attempt if isinstance(started, AttemptedRollout) else started
    number = next(_span_numbers)
    values: dict[str, Any] = {
        "rollout_id": attempt.rollout_id,
        "attempt_id": attempt.attempt_id,
        "sequence_id": sequence_id,
        "trace_id": f"{number:032x}",
        "span_id": f"{number:016x}",
        "parent_id": None,
        "name": "step",
        "status": TraceStatus(status_code="OK"),
        "attributes": {},
        "events": [],
        "links": [],
        "start_time": None,
        "end_time": None,
        "context": None,
        "parent": None,
        "resource": OtelResource(attributes={}, schema_url=""),
    }
    return Span(**{**values, **fields})


def otel_span(name: str = "otel", **attributes: Any) -> ReadableSpan:
    """Build a finished span, as the OpenTelemetry SDK passes it to an exporter."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("contract", "1.0").start_as_current_span(name, attributes=attributes) as span:
        span.add_event("halfway", {"percent": 50})
    return exporter.get_finished_spans()[0]
