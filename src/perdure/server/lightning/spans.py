"""The Agent-lightning protocol: spans and their numbers."""

from __future__ import annotations

from typing import Any

from perdure.client import lightning_wire as wire
from perdure.kernel.errors import BadQuery, NotFound, TooLarge
from perdure.kernel.pages import QueryPage
from perdure.rollouts.contract import LightningStore
from perdure.rollouts.records import MAX_SPANS, StoredSpans
from perdure.server.http.routes import Call
from perdure.server.lightning import protocol
from perdure.server.lightning.protocol import LightningResource, listed, ours
from perdure.spans.records import AnySpan, Span, build_record

JSON_SOURCE = "json"
"""Metric label for spans that arrive one by one or in lists."""

spans = LightningResource()


@spans.post(
    "/spans",
    "worker",
    "Store a span; null if it was stored before",
    body=Span,
    answer=Span,
    status=201,
    errors=(NotFound,),
)
async def add_span(call: Call) -> Any:
    (given,) = _taken(call.store, [call.body])
    span = await call.store.add_span(given)
    call.app.metrics.count_spans(JSON_SOURCE, int(span is not None), 1)
    return span


@spans.post(
    "/spans/bulk",
    "worker",
    "Store many spans",
    body=wire.SpansBody,
    answer=StoredSpans,
    status=201,
    errors=(NotFound, TooLarge),
)
async def add_many_spans(call: Call) -> StoredSpans:
    if len(call.body) > MAX_SPANS:
        raise TooLarge(f"the body has {len(call.body)} spans; at most {MAX_SPANS} are taken")
    spans = _taken(call.store, call.body)
    new = {_span_key(span) for span in await call.store.add_many_spans(spans)}
    stored = []
    for span in spans:
        key = _span_key(span)
        stored.append(key in new)
        # A duplicate within the request was not stored.
        new.discard(key)
    call.app.metrics.count_spans(JSON_SOURCE, sum(stored), len(stored))
    return StoredSpans(stored=stored)


def _taken(store: LightningStore, spans: list[Any]) -> list[Any]:
    """Return the spans for a store: as decoded for our own methods, as records for other stores."""
    if ours(store, "add_span", "add_many_spans") is not None:
        return spans
    return [build_record(span) for span in spans]


def _span_key(span: AnySpan) -> tuple[str, str, str]:
    return span.rollout_id, span.attempt_id, span.span_id


@spans.get(
    "/spans",
    "read",
    "Search a rollout's spans",
    query=wire.SpanSearch,
    answer=QueryPage[Any],
    errors=(BadQuery,),
)
@spans.post(
    "/spans/search",
    "read",
    "Search a rollout's spans",
    body=wire.SpanSearch,
    answer=QueryPage[Any],
    errors=(BadQuery,),
)
async def query_spans(call: Call) -> Any:
    return await listed(protocol.SPANS, call.store, call.body or call.query)


@spans.post(
    "/spans/next", "worker", "The next number for a span", body=wire.NextSequenceId, answer=wire.SequenceId
)
async def next_sequence_id(call: Call) -> wire.SequenceId:
    asked: wire.NextSequenceId = call.body
    number = await call.store.get_next_span_sequence_id(asked.rollout_id, asked.attempt_id)
    return wire.SequenceId(sequence_id=number)


@spans.post(
    "/spans/next/bulk",
    "worker",
    "The next numbers for many spans",
    body=wire.NextSequenceIds,
    answer=wire.SequenceIds,
)
async def next_sequence_ids(call: Call) -> wire.SequenceIds:
    numbers = await call.store.get_many_span_sequence_ids(call.body.pairs)
    return wire.SequenceIds(sequence_ids=list(numbers))
