"""Trace of one attempt: the attempt's span, and spans of its steps, its graph and the agent's tracer.

The spans of a worker are queued and stored in batches, so that agents do not wait.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple
from urllib.parse import unquote

from perdure.agents.context import StepResult
from perdure.agents.records import RecordedSpan
from perdure.kernel.errors import PerdureError
from perdure.kernel.version import VERSION
from perdure.rollouts.contract import LightningStore
from perdure.rollouts.service import Rollouts
from perdure.spans import encoding as span_encoding
from perdure.spans.recording import (
    OpenSpan,
    SpanRecorder,
    SpanRef,
    enter_span,
    new_span_id,
    parse_traceparent,
    share_span,
)
from perdure.spans.records import OtelResource
from perdure.threads.work import Assignment
from perdure.worker.options import WorkerOptions

# --- the queue of spans -----------------------------------------------------------------------------------


MAX_SPANS = 10_000
"""Maximum number of spans in the queue; further spans are dropped and the loss is logged."""
MAX_BYTES = 64 << 20
BATCH = 500
LINGER_SECONDS = 1.0
"""How long spans wait for others, so that a batch is worth its transactions."""
SPAN_BYTES = 500
"""Approximate size of a span without its texts, in bytes."""

logger = logging.getLogger(__name__)


class PendingSpan(NamedTuple):
    """Span to store, with its attempt."""

    rollout_id: str
    attempt_id: str
    span: RecordedSpan
    size: int


class SpanQueue:
    """Takes spans from any thread; `flush` stores them in the worker's loop.

    With `rollouts`, the service of the store's database, spans are stored without building records.
    """

    def __init__(
        self,
        store: LightningStore,
        worker_id: str,
        rollouts: Rollouts | None = None,
        *,
        max_spans: int = MAX_SPANS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._store, self._rollouts = store, rollouts
        self.dropped = 0
        """Number of spans that this worker could not store."""
        self._service = OtelResource(attributes=build_service(worker_id), schema_url="")
        self._part = span_encoding.resource_part(vars(self._service))
        self._limits = (max_spans, max_bytes)
        self._waiting: deque[PendingSpan] = deque()
        self._bytes = 0
        self._newly_dropped = 0
        self._flushed = time.monotonic()
        self._lock = threading.Lock()
        self._writing = asyncio.Lock()

    def put(self, rollout_id: str, attempt_id: str, span: RecordedSpan) -> None:
        """Add a span, from any thread. It is dropped if the queue is full."""
        size = SPAN_BYTES + sum(len(value) for value in span.attributes.values() if type(value) is str)
        with self._lock:
            if len(self._waiting) >= self._limits[0] or self._bytes + size > self._limits[1]:
                self._newly_dropped += 1
                return
            self._bytes += size
            self._waiting.append(PendingSpan(rollout_id, attempt_id, span, size))

    def size(self) -> int:
        """Return the number of spans in the queue."""
        return len(self._waiting)

    @property
    def due(self) -> bool:
        """True if a batch is full, or its first span has waited long enough."""
        return len(self._waiting) >= BATCH or time.monotonic() - self._flushed >= LINGER_SECONDS

    async def flush(self) -> None:
        """Store the queued spans. If the store fails, they stay in the queue; no error is raised."""
        async with self._writing:
            self._flushed = time.monotonic()
            self._report()
            while batch := self._take():
                try:
                    await self._write(batch)
                except asyncio.CancelledError:
                    # The worker stops. `close` stores these spans again; a repeated write is harmless.
                    self._restore(batch)
                    raise
                except PerdureError as error:
                    if error.http_status < 500:
                        await self._write_each(batch)
                        continue
                    logger.warning("%d spans wait, because the store fails: %s", len(batch), error.message)
                    self._restore(batch)
                    return

    async def close(self, seconds: float) -> None:
        """Store the queued spans within `seconds`. Spans that are not stored are lost, and logged."""
        try:
            async with asyncio.timeout(seconds):
                await self.flush()
        except TimeoutError:
            logger.warning("the store did not take the last spans within %g s", seconds)
        with self._lock:
            self._newly_dropped += len(self._waiting)
            self._waiting.clear()
        self._report()

    def _take(self) -> list[PendingSpan]:
        with self._lock:
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            self._bytes -= sum(pending.size for pending in batch)
        return batch

    def _restore(self, batch: Sequence[PendingSpan]) -> None:
        with self._lock:
            self._waiting.extendleft(reversed(batch))
            self._bytes += sum(pending.size for pending in batch)

    def _report(self) -> None:
        with self._lock:
            dropped, self._newly_dropped = self._newly_dropped, 0
        if dropped:
            self.dropped += dropped
            logger.warning("%d spans were dropped, because they arrive faster than they are stored", dropped)

    # --- writing

    async def _write(self, batch: Sequence[PendingSpan]) -> None:
        if self._rollouts is not None:
            await self._write_rows(self._rollouts, batch)
        else:
            await self._store.add_many_spans(
                [
                    span_encoding.build_span(item.span, item.rollout_id, item.attempt_id, self._service)
                    for item in batch
                ]
            )

    async def _write_rows(self, rollouts: Rollouts, batch: Sequence[PendingSpan]) -> None:
        part, forms = self._part, rollouts.forms
        assert part is not None
        rows = [
            span_encoding.recorded_span(item.span, item.rollout_id, item.attempt_id, part, forms)
            for item in batch
        ]
        parts = {part.hash: part.body, **forms.parts_of([row.scope_hash for row in rows])}
        for answer in await rollouts.store_span_batch(rows, parts):
            if isinstance(answer, PerdureError):
                self._drop(answer)

    async def _write_each(self, batch: Sequence[PendingSpan]) -> None:
        """Store each span separately, because the store refuses a span of the batch."""
        for item in batch:
            try:
                await self._write([item])
            except PerdureError as error:
                self._drop(error)

    def _drop(self, error: PerdureError) -> None:
        self.dropped += 1
        logger.warning("a span was refused: %s", error.message)


def build_service(worker_id: str) -> dict[str, Any]:
    """Build the resource of a worker's spans. OpenTelemetry's variables add to it."""
    pairs = (
        pair.partition("=") for pair in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",") if pair
    )
    given = {name.strip(): unquote(value.strip()) for name, _, value in pairs}
    return {
        "service.name": "perdure",
        **given,
        **({"service.name": name} if (name := os.environ.get("OTEL_SERVICE_NAME")) else {}),
        "service.instance.id": worker_id,
        "telemetry.sdk.name": "perdure",
        "telemetry.sdk.language": "python",
        "telemetry.sdk.version": VERSION,
    }


# --- the trace --------------------------------------------------------------------------------------------


NUMBERS = 1_000_000
"""Span numbers per attempt, so that spans of later attempts sort after it."""
FAILED = frozenset({"error", "retriable", "timeout", "lost"})
"""Results of an attempt that set the status of its span to an error."""


class NoSpan:
    """Span that records nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None

    def __enter__(self) -> NoSpan:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class NoTracer:
    """Tracer that records nothing, for when OpenTelemetry is missing (`pip install 'perdure[otel]'`)."""

    def start_span(self, *args: Any, **kwargs: Any) -> NoSpan:
        return NoSpan()

    @contextmanager
    def start_as_current_span(self, *args: Any, **kwargs: Any) -> Iterator[NoSpan]:
        yield NoSpan()


class Tracing:
    """Trace of one attempt, recorded to the worker's queue of spans.

    Without a queue nothing is recorded. Spans of `ctx.tracer` are stored before the attempt ends, whether or
    not the attempt is sampled.
    """

    def __init__(self, queue: SpanQueue | None, assignment: Assignment, options: WorkerOptions) -> None:
        run = assignment.run
        self._queue = queue
        self._ids = (run.run_id, assignment.attempt_id)
        first = (assignment.attempt - 1) * NUMBERS + 1
        self._numbers = itertools.count(first + 1)
        self._tracer: Any = None
        self._explicit = False
        parent = parse_traceparent(run.kwargs.traceparent)
        self._caller = None if parent is None else parent[0]
        trace_id = self._caller.trace_id if self._caller else build_trace_id(run.run_id)
        self._root: OpenSpan | None = None
        self.content = options.trace_content
        self.recorder: SpanRecorder | None = None
        """Records spans of the attempt; None if it is not sampled."""
        if queue is not None and is_sampled(trace_id, options.trace_sample, parent and parent[1]):
            self._begin(SpanRef(trace_id, new_span_id()), first, assignment, options)
        self._ref = self._root.ref if self._root else self._caller
        self.traceparent = self._ref and self._ref.traceparent(sampled=self._root is not None)
        self._trace_id = trace_id

    def _begin(self, ref: SpanRef, number: int, assignment: Assignment, options: WorkerOptions) -> None:
        run = assignment.run
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": run.agent,
            "gen_ai.agent.id": run.assistant_id,
            "gen_ai.conversation.id": run.thread_id,
            "perdure.attempt": assignment.attempt,
        }
        self.recorder = SpanRecorder(ref, self.record, content=options.trace_content)
        above = self._caller.span_id if self._caller else None
        self._root = OpenSpan(
            self.recorder,
            f"invoke_agent {run.agent}",
            attributes,
            ref=ref,
            parent_id=above,
            number=number,
        )

    # --- in the agent's loop

    def enter(self) -> None:
        """Make the attempt's span the current span of the running task, and of LangChain's calls in it."""
        span = self._root or self._ref
        if span is not None:
            enter_span(span)
        if self.recorder is not None:
            follow_langchain(self.recorder)

    def step(self, name: str, action: Any, *, replayed: bool) -> AbstractContextManager[object]:
        """Open the span of a step while the step is executed, or while its stored result is read."""
        return step_span(self.recorder, name, action, replayed=replayed)

    def record(self, span: RecordedSpan) -> None:
        """Store a span that has ended, from any thread."""
        if self._queue is None:
            return
        if not span.number:
            span.number = next(self._numbers)
        if not span.span_id:
            span.span_id = new_span_id()
        if not span.trace_id:
            span.trace_id = self._trace_id
            span.parent_id = span.parent_id or (self._ref and self._ref.span_id)
        self._queue.put(*self._ids, span)

    @property
    def tracer(self) -> Any:
        """OpenTelemetry tracer that puts spans below the current span."""
        if self._tracer is None:
            self._tracer = self._make()
        share_span()
        return self._tracer

    def _make(self) -> Any:
        if self._queue is None:
            return NoTracer()
        return make_tracer(self._record_explicit, self._trace_id)

    def _record_explicit(self, span: RecordedSpan) -> None:
        self._explicit = True
        self.record(span)

    # --- in the worker's loop

    async def store_explicit(self) -> None:
        """Store the spans of the agent's own tracer, so that they exist when the run ends."""
        if self._explicit and self._queue is not None:
            self._explicit = False
            await self._queue.flush()

    def end(self, result: str, error: BaseException | None) -> None:
        """End the span of the attempt."""
        if self._root is None:
            return
        self._root.attributes["perdure.result"] = result
        if result in FAILED:
            failure = error if isinstance(error, Exception) else None
            self._root.end(failure, failed=None if failure is not None else result)
        else:
            self._root.end()


def step_span(
    recorder: SpanRecorder | None, name: str, action: Any, *, replayed: bool
) -> AbstractContextManager[object]:
    """Open the span of a step, unless the attempt is not traced or the step's process has recorded it."""
    if recorder is None or (isinstance(action, StepResult) and action.traced):
        return nullcontext()
    attributes: dict[str, Any] = {"perdure.step": name}
    if replayed:
        attributes["perdure.replayed"] = True
    return _Step(recorder, name, attributes, action)


class _Step:
    """Span of a step. If the result comes from another process, the step may have its own start time."""

    def __init__(self, recorder: SpanRecorder, name: str, attributes: dict[str, Any], action: Any) -> None:
        self._span = recorder.start(f"step {name}", attributes)
        if isinstance(action, StepResult) and action.start_time is not None:
            self._span.start = min(action.start_time, self._span.start)

    def __enter__(self) -> None:
        enter_span(self._span)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._span.end(error)


def follow_langchain(recorder: SpanRecorder) -> None:
    """Record LangChain's graphs, models and tools in the running task, if LangChain is imported."""
    if "langchain_core" in sys.modules:
        from perdure.langgraph.tracing import follow

        follow(recorder)


def make_tracer(take: Callable[[RecordedSpan], None], trace_id: str) -> Any:
    """Create an OpenTelemetry tracer that passes its spans to `take`, or a no-op tracer without it."""
    try:
        from perdure.spans.otel_tracer import build_tracer
    except ModuleNotFoundError:
        return NoTracer()
    return build_tracer(take, trace_id)


def is_sampled(trace_id: str, ratio: float, parent: bool | None) -> bool:
    """Return whether to record a trace: like its caller's trace, otherwise a share of all, by trace ID."""
    if ratio <= 0 or parent is not None:
        return ratio > 0 and bool(parent)
    return ratio >= 1 or int(trace_id[16:], 16) < ratio * 2**64


def build_trace_id(run_id: str) -> str:
    """Build the trace ID of a run, shared by all its attempts: the run ID, or a hash of it."""
    try:
        return uuid.UUID(run_id).hex
    except ValueError:
        return uuid.uuid5(uuid.NAMESPACE_OID, run_id).hex
