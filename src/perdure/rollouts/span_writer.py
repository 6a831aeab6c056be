"""Storing spans: each body once, each shared resource once, and within the memory that is allowed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from perdure.rollouts import encoding
from perdure.rollouts.operations.spans import NewSpan
from perdure.rollouts.service import Rollouts
from perdure.rollouts.spans import OtelResource, Span

REMEMBERED_PARTS = 10_000

logger = logging.getLogger(__name__)


class Eviction:
    """How many bytes of spans a store may hold: above `threshold` the oldest go, until it is down to `safe`.

    One is shared by all the namespaces of a store.
    """

    def __init__(self, threshold: int, safe: int, size_of: Callable[[Span], int] | None = None) -> None:
        self.threshold = threshold
        self.safe = safe
        self.size_of = size_of
        self._held = 0
        self._busy = False

    async def after(self, rollouts: Rollouts, stored_bytes: int) -> None:
        """Count what was stored, and evict if it is too much now."""
        self._held += stored_bytes
        if self._held > self.threshold and not self._busy:
            self._busy = True
            try:
                self._held -= await rollouts.evict_spans(self._held - self.safe)
            finally:
                self._busy = False


class SpanWriter:
    """Writes the spans of one namespace."""

    def __init__(self, rollouts: Rollouts, eviction: Eviction | None) -> None:
        self._rollouts = rollouts
        self._eviction = eviction
        self._saved_parts: set[str] = set()
        self._last_resource: dict[str, Any] = {}
        self._last_part: encoding.Part | None = None

    async def store(self, spans: Sequence[Span], *, numbered: bool) -> list[int | None]:
        """Store spans; a resource that was written before is not sent again."""
        size_of = self._eviction.size_of if self._eviction else None
        new: list[NewSpan] = []
        parts: dict[str, bytes] = {}
        for span in spans:
            part = self._part(span.resource)
            if part is not None and part[0] not in self._saved_parts:
                parts[part[0]] = part[1]
            size = size_of(span) if size_of else None
            new.append(encoding.new_span(span, part, numbered=numbered, size=size))
        stored = await self._rollouts.add_spans(new, list(parts.items()))
        self._remember(parts)
        size = _stored_bytes(new, stored)
        if self._eviction is not None:
            await self._eviction.after(self._rollouts, size)
        return stored

    def _part(self, resource: OtelResource) -> encoding.Part | None:
        """A resource encoded; one like the last is not encoded again."""
        fields = vars(resource)
        if fields != self._last_resource:
            self._last_part = encoding.resource_part(resource)
            self._last_resource = {**fields, "attributes": dict(resource.attributes)}
        return self._last_part

    def _remember(self, hashes: Iterable[str]) -> None:
        if len(self._saved_parts) > REMEMBERED_PARTS:
            self._saved_parts.clear()
        self._saved_parts.update(hashes)


def _stored_bytes(spans: Sequence[NewSpan], stored: Sequence[int | None]) -> int:
    """The size of what was not stored before; the rest is worth a line in the log."""
    size = 0
    for span, number in zip(spans, stored, strict=True):
        if number is None:
            logger.error("Duplicated span added: %s of attempt %s", span.span_id, span.attempt_id)
        else:
            size += span.size
    return size
