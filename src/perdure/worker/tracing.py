"""Collects the spans of an agent and sends them to the store."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from perdure.kernel.errors import PerdureError
from perdure.rollouts.contract import LightningStore

logger = logging.getLogger(__name__)

MAX_WAITING = 10_000
BATCH = 500


class NoSpan:
    """A span that records nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None

    def __enter__(self) -> NoSpan:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class NoTracer:
    """A tracer that records nothing, if OpenTelemetry is not installed (`pip install 'perdure[otel]'`)."""

    def start_span(self, *args: Any, **kwargs: Any) -> NoSpan:
        return NoSpan()

    @contextmanager
    def start_as_current_span(self, *args: Any, **kwargs: Any) -> Iterator[NoSpan]:
        yield NoSpan()


class Tracing:
    """The trace of one attempt. OpenTelemetry is imported when the agent first uses the tracer."""

    def __init__(
        self, store: LightningStore | None, run_id: str, attempt_id: str, traceparent: str | None
    ) -> None:
        self._store = store
        self._ids = (run_id, attempt_id)
        self._traceparent = traceparent
        self._lock = threading.Lock()
        self._tracer: Any = None
        self._finished: list[Any] = []
        self._dropped = 0

    def enter(self) -> None:
        """Make the spans of the current task part of the trace of the run's creator."""
        if self._traceparent is None or self._store is None:
            return
        try:
            from perdure.rollouts.otel_tracer import enter_trace
        except ModuleNotFoundError:
            return
        enter_trace(self._traceparent)

    @property
    def tracer(self) -> Any:
        with self._lock:
            if self._tracer is None:
                self._tracer = self._make()
            return self._tracer

    def _make(self) -> Any:
        if self._store is None:
            return NoTracer()
        try:
            from perdure.rollouts.otel_tracer import make_tracer
        except ModuleNotFoundError:
            return NoTracer()
        return make_tracer(self._take, _trace_id(self._ids[0]))

    def _take(self, span: Any) -> None:
        with self._lock:
            if len(self._finished) < MAX_WAITING:
                self._finished.append(span)
            else:
                self._dropped += 1

    async def flush(self) -> None:
        """Store the finished spans. A failure is logged and never fails the run."""
        with self._lock:
            spans, self._finished = self._finished, []
            dropped, self._dropped = self._dropped, 0
        if dropped:
            logger.warning(
                "run %s creates spans faster than they are stored: %d dropped", self._ids[0], dropped
            )
        for start in range(0, len(spans), BATCH):
            await self._write(spans[start : start + BATCH])

    async def _write(self, spans: list[Any]) -> None:
        from perdure.rollouts.otel import span_from

        assert self._store is not None
        try:
            numbers = await self._store.get_many_span_sequence_ids([self._ids] * len(spans))
            await self._store.add_many_spans(
                [span_from(span, *self._ids, number) for span, number in zip(spans, numbers, strict=True)]
            )
        except PerdureError as error:
            logger.warning("%d spans of run %s were not stored: %s", len(spans), self._ids[0], error.message)


def _trace_id(run_id: str) -> int:
    """The trace id of a run, shared by all its attempts: the run id, or a hash of it."""
    try:
        return uuid.UUID(run_id).int
    except ValueError:
        return uuid.uuid5(uuid.NAMESPACE_OID, run_id).int
