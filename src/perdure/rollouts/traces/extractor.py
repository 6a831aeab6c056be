"""The outbox consumer that takes figures out of new spans, and keeps the list of traces."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.codec import decode_json
from perdure.kernel.storage.port import Storage
from perdure.outbox.model import Effect, Undeliverable
from perdure.rollouts import encoding
from perdure.rollouts.operations.spans import FIGURES
from perdure.rollouts.rows import SpanBody
from perdure.rollouts.traces import operations
from perdure.rollouts.traces.figures import Figures, figures_of
from perdure.rollouts.traces.notes import (
    Found,
    SpanNote,
    name_rows,
    read_notes,
    rollout_rows,
    span_rows,
    trace_rows,
)
from perdure.rollouts.traces.operations import Extracted

REMEMBERED_SERVICES = 10_000
NO_SERVICE = ""

Key = tuple[str, str, str]


class SpanExtractor:
    """Adds what is new in a batch of spans to the rows that lists read.

    The effect is removed in the same transaction, so that nothing counts twice; it names only spans that
    were not stored before.
    """

    name = FIGURES

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._services: dict[tuple[int, str], str] = {}

    async def deliver(self, effect: Effect) -> None:
        if effect.body is None:
            raise Undeliverable("it does not say which spans are new")
        ns, notes = read_notes(effect.body)
        bodies = await self._read(ns, notes)
        found = [self._found(ns, note, bodies.get(note.key)) for note in notes]
        extracted = Extracted(
            effect.id, span_rows(found), rollout_rows(found), trace_rows(found), name_rows(found)
        )
        await self._storage.run(operations.add_extracted, extracted, ns=ns)

    async def _read(self, ns: int, notes: Sequence[SpanNote]) -> dict[Key, SpanBody]:
        """Read the spans that may have figures, and the services that are not known yet."""
        attempts: dict[operations.Attempt, list[str]] = {}
        for note in notes:
            if note.has_figures:
                attempts.setdefault((note.rollout_id, note.attempt_id), []).append(note.span_id)
        hashes = {note.resource_hash for note in notes if note.resource_hash is not None}
        unknown = [each for each in hashes if (ns, each) not in self._services]
        if not attempts and not unknown:
            return {}
        read = await self._storage.read(operations.get_bodies, attempts, unknown, ns=ns)
        if len(self._services) > REMEMBERED_SERVICES:
            self._services.clear()
        for name, body in read.parts.items():
            self._services[ns, name] = encoding.service_of(body) or NO_SERVICE
        return {(row.rollout_id, row.attempt_id, row.span_id): row for row in read.spans}

    def _found(self, ns: int, note: SpanNote, row: SpanBody | None) -> Found:
        service = self._services.get((ns, note.resource_hash or ""), NO_SERVICE)
        if row is None:
            return Found(note, service)
        return Found(note, service, _figures(note, row), row.sequence_id)


def _figures(note: SpanNote, row: SpanBody) -> Figures:
    body = bytes(row.body)
    if row.format == encoding.JSON:
        return figures_of(note.name, decode_json(body).get("attributes") or {})
    from perdure.rollouts.otlp_reader import attributes_in

    return figures_of(note.name, attributes_in(body))
