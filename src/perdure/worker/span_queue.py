"""Queue of a worker's spans for the store. They are stored in batches, so that agents do not wait."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from perdure.agents.records import RecordedSpan
from perdure.kernel.errors import PerdureError
from perdure.kernel.version import VERSION
from perdure.rollouts.contract import LightningStore
from perdure.rollouts.service import Rollouts
from perdure.spans import encoding as span_encoding
from perdure.spans.records import OtelResource

MAX_SPANS = 10_000
"""Most spans in the queue; further spans are dropped, which is logged."""
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
                    # The worker stops. `close` stores these spans again, which is harmless.
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
        """Store each span separately, since the store refuses one of them."""
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
