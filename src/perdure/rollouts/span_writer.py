"""Writes spans: each body once, each shared resource once, within a limit of memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from perdure.kernel.errors import NotFound
from perdure.spans import encoding as span_encoding
from perdure.spans.records import AnySpan, OtelResource, Span, build_record
from perdure.spans.rows import NewSpan

if TYPE_CHECKING:
    from perdure.rollouts.operations import joining
    from perdure.rollouts.span_service import SpanService

REMEMBERED_PARTS = 10_000
SPANS_A_CALL = 500
SPANS_A_CHUNK = 1000

Answer = int | None | NotFound
"""Result of storing a span: its sequence id, None if it was stored before, or why it was not stored."""

logger = logging.getLogger(__name__)


class Eviction:
    """Limits of the bytes of spans in a store: above `threshold`, evict the oldest until `safe` bytes remain.

    All namespaces of a store share one limit.
    """

    def __init__(self, threshold: int, safe: int, size_of: Callable[[Span], int] | None = None) -> None:
        self.threshold = threshold
        self.safe = safe
        self.size_of = size_of
        self._held = 0
        self._busy = False

    async def after(self, rollouts: SpanService, stored_bytes: int) -> None:
        """Count stored bytes, and evict if they exceed the threshold."""
        self._held += stored_bytes
        if self._held > self.threshold and not self._busy:
            self._busy = True
            try:
                self._held -= await rollouts.evict_spans(self._held - self.safe)
            finally:
                self._busy = False


class SpanWriter:
    """Writes the spans of one namespace."""

    def __init__(self, rollouts: SpanService, eviction: Eviction | None) -> None:
        self._rollouts = rollouts
        self._eviction = eviction
        self._saved_parts: set[str] = set()
        self._services: dict[str, str] = {}
        self._last_resource: dict[str, Any] = {}
        self._last_part: span_encoding.Part | None = None

    async def store(self, spans: Sequence[AnySpan], *, numbered: bool) -> list[int | None]:
        """Store spans, 500 in a transaction; a resource that was written before is not sent again."""
        if len(spans) > SPANS_A_CALL:
            stored: list[int | None] = []
            for start in range(0, len(spans), SPANS_A_CALL):
                stored += await self.store(spans[start : start + SPANS_A_CALL], numbered=numbered)
            return stored
        forms, size_of = self._rollouts.forms, self._eviction.size_of if self._eviction else None
        new: list[NewSpan] = []
        parts: dict[str, bytes] = {}
        for span in spans:
            part = self._part(span)
            if part is not None:
                parts[part.hash] = part.body
            size = size_of(build_record(span)) if size_of else None
            new.append(span_encoding.new_span(span, part, forms, numbered=numbered, size=size))
        parts |= forms.parts_of([span.scope_hash for span in new])
        stored = await self._store(new, parts)
        if None in stored:
            for span, number in zip(spans, stored, strict=True):
                if number is None:
                    logger.error("Duplicated span added: %s of attempt %s", span.span_id, span.attempt_id)
        return stored

    async def store_together(self, spans: Sequence[NewSpan], parts: Mapping[str, bytes]) -> list[int | None]:
        """Store spans of any number of attempts in one transaction, or none if an attempt is unknown."""
        stored: list[int | None] = []
        for start in range(0, len(spans), SPANS_A_CHUNK):
            stored += await self._store(spans[start : start + SPANS_A_CHUNK], parts)
        return stored

    async def store_each(self, spans: Sequence[NewSpan], parts: Mapping[str, bytes]) -> list[Answer]:
        """Store spans of any number of attempts; an unknown attempt does not block the spans of others."""
        groups: dict[tuple[str, str], list[NewSpan]] = {}
        for span in spans:
            groups.setdefault((span.rollout_id, span.attempt_id), []).append(span)
        if len(groups) == 1:
            return await self._store_group(spans, parts)
        stored = await asyncio.gather(
            *(self._store_group(group, parts) for group in groups.values()), return_exceptions=True
        )
        answers: dict[int, Answer] = {}
        for group, answer in zip(groups.values(), stored, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            answers.update(zip(map(id, group), answer, strict=True))
        return [answers[id(span)] for span in spans]

    async def store_otlp(
        self,
        named: Sequence[NewSpan],
        unnamed: Sequence[NewSpan],
        parts: Mapping[str, bytes],
        *,
        keep: bool,
    ) -> list[joining.Answer]:
        """Store the spans of a request, 1,000 in a transaction, parents before their children."""
        self._name_services([*named, *unnamed], parts)
        everything = [*named, *unnamed]
        if len(everything) > SPANS_A_CHUNK:
            unnamed = sorted(unnamed, key=lambda span: span.start_ns or 0)
        ordered = [*named, *unnamed]
        unnamed_ids = set(map(id, unnamed))
        answers: dict[int, joining.Answer] = {}
        for start in range(0, len(ordered), SPANS_A_CHUNK):
            chunk = ordered[start : start + SPANS_A_CHUNK]
            own = [span for span in chunk if id(span) not in unnamed_ids]
            other = [span for span in chunk if id(span) in unnamed_ids]
            unsaved = [(name, body) for name, body in parts.items() if name not in self._saved_parts]
            stored = await self._rollouts.write_otlp_spans(own, other, unsaved, keep=keep)
            answers.update(zip(map(id, [*own, *other]), stored, strict=True))
            await self._after(chunk, [answers[id(span)] for span in chunk], parts)
        return [answers[id(span)] for span in everything]

    async def _store_group(self, group: Sequence[NewSpan], parts: Mapping[str, bytes]) -> list[Answer]:
        """Store the spans of one attempt, one chunk after the other, so that they are numbered in order."""
        used = {span.resource_hash for span in group}.union(span.scope_hash for span in group)
        own = {name: parts[name] for name in used if name is not None}
        stored: list[Answer] = []
        try:
            for start in range(0, len(group), SPANS_A_CHUNK):
                stored += await self._store(group[start : start + SPANS_A_CHUNK], own)
        except NotFound as error:
            return stored + [error] * (len(group) - len(stored))
        return stored

    async def _store(self, new: Sequence[NewSpan], parts: Mapping[str, bytes]) -> list[int | None]:
        unsaved = [(name, body) for name, body in parts.items() if name not in self._saved_parts]
        self._name_services(new, parts)
        stored = await self._rollouts.write_spans(new, unsaved)
        await self._after(new, stored, parts)
        return stored

    async def _after(
        self, spans: Sequence[NewSpan], stored: Sequence[object], parts: Mapping[str, bytes]
    ) -> None:
        """Remember which parts are written, and evict spans above the limit."""
        new = [span for span, number in zip(spans, stored, strict=True) if type(number) is int]
        if new:
            # Parts are written together with a new span. Without a new span they were not written.
            self._remember(parts)
        if self._eviction is not None:
            await self._eviction.after(self._rollouts, sum([span.size for span in new]))

    def _name_services(self, spans: Sequence[NewSpan], parts: Mapping[str, bytes]) -> None:
        """Set the service of each span from its resource; each resource is decoded once."""
        services = self._services
        for span in spans:
            name = span.resource_hash
            if name is None:
                continue
            if name not in services:
                if len(services) > REMEMBERED_PARTS:
                    services.clear()
                services[name] = span_encoding.decode_service(parts[name]) or ""
            span.service = services[name]

    def _part(self, span: AnySpan) -> span_encoding.Part | None:
        """Return the encoded resource of a span; do not encode a resource again that equals the last one."""
        resource = span.resource
        fields = vars(resource) if isinstance(resource, OtelResource) else asdict(resource)
        if fields != self._last_resource:
            self._last_part = span_encoding.resource_part(fields)
            self._last_resource = {**fields, "attributes": dict(resource.attributes)}
        return self._last_part

    def _remember(self, hashes: Iterable[str]) -> None:
        if len(self._saved_parts) > REMEMBERED_PARTS:
            self._saved_parts.clear()
        self._saved_parts.update(hashes)
