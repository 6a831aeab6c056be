"""Store the spans of an export in attempts, or keep them with their trace."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from perdure.kernel.errors import NotFound
from perdure.rollouts.contract import LightningStore
from perdure.rollouts.operations.joining import NOT_KEPT, Answer
from perdure.rollouts.service import Rollouts
from perdure.runtime.app import StoreApp
from perdure.service.callers import Caller
from perdure.spans.otlp import (
    BAD_ID,
    NO_ROLLOUT,
    NO_TRACE,
    NO_TRACE_ID,
    TOO_MANY,
    DecodedTraces,
    Received,
    receive,
)
from perdure.spans.otlp_reader import records
from perdure.spans.rows import NewSpan

__all__ = ["IngestOutcome", "ingest"]

MAX_REASONS = 5
"""Maximum reasons in a response; a batch may name thousands of missing rollouts."""
_LABELS = {NO_ROLLOUT: "no_rollout", NO_TRACE_ID: "no_rollout", BAD_ID: "bad_id", TOO_MANY: "too_many"}

logger = logging.getLogger(__name__)


class IngestOutcome(NamedTuple):
    """The number of rejected spans of an export, and the reasons."""

    rejected: int = 0
    message: str = ""


async def ingest(app: StoreApp, caller: Caller, traces: DecodedTraces, source: str) -> IngestOutcome:
    """Store every span that can be stored. A span that is already stored counts as stored."""
    received = receive(traces)
    rollouts = app.rollouts_for(caller)
    unnamed = received.unattributed
    if rollouts is None:
        if unnamed:
            received.refuse(NO_ROLLOUT, len(unnamed))
        answers: Sequence[Answer] = await _store_records(
            app.store_for(caller), received.spans, received.parts
        )
    elif not unnamed:
        answers = await _store(rollouts, received.spans, received.parts)
    else:
        traced = [span for span in unnamed if span.trace_id != NO_TRACE]
        if len(traced) < len(unnamed):
            received.refuse(NO_TRACE_ID, len(unnamed) - len(traced))
        answers = await rollouts.store_otlp_spans(
            received.spans, traced, received.parts, keep=app.settings.keep_traces
        )
    for answer in answers:
        if isinstance(answer, NotFound):
            received.refuse(answer.message)
        elif answer is NOT_KEPT:
            received.refuse(NO_ROLLOUT)
    _count(app, received, answers, source)
    return _outcome(received.refused)


async def _store(
    rollouts: Rollouts, spans: Sequence[NewSpan], parts: Mapping[str, bytes]
) -> Sequence[Answer]:
    return await rollouts.store_new_spans(spans, parts) if spans else []


# --- third-party stores -----------------------------------------------------------------------------------


async def _store_records(
    store: LightningStore, spans: Sequence[NewSpan], parts: Mapping[str, bytes]
) -> Sequence[Answer]:
    """Store spans through the LightningStore contract. An unknown attempt does not affect the others."""
    groups: dict[tuple[str, str], list[NewSpan]] = {}
    for span in spans:
        groups.setdefault((span.rollout_id, span.attempt_id), []).append(span)
    answers: dict[int, Answer] = {}
    for group in groups.values():
        answers.update(zip(map(id, group), await _store_group(store, group, parts), strict=True))
    return [answers[id(span)] for span in spans]


async def _store_group(
    store: LightningStore, group: Sequence[NewSpan], parts: Mapping[str, bytes]
) -> Sequence[Answer]:
    try:
        open_ends = [span for span in group if span.sequence_id is None]
        pairs = [(span.rollout_id, span.attempt_id) for span in open_ends]
        numbers = await store.get_many_span_sequence_ids(pairs) if pairs else ()
        for span, number in zip(open_ends, numbers, strict=True):
            span.sequence_id = number
        stored = {
            span.span_id: span.sequence_id for span in await store.add_many_spans(records(group, parts))
        }
    except ValueError as error:
        return [NotFound(str(error))] * len(group)
    return [stored.get(span.span_id) for span in group]


# --- metrics and the response -----------------------------------------------------------------------------


def _count(app: StoreApp, received: Received, answers: Sequence[Answer], source: str) -> None:
    stored = sum(type(answer) is int for answer in answers)
    if stored:
        app.metrics.spans_ingested.labels(source).inc(stored)
    for reason, count in received.refused.items():
        app.metrics.spans_rejected.labels(_LABELS.get(reason, "not_found")).inc(count)


def _outcome(refused: Mapping[str, int]) -> IngestOutcome:
    if not refused:
        return IngestOutcome()
    reasons = [f"{count} × {reason}" for reason, count in list(refused.items())[:MAX_REASONS]]
    if len(refused) > MAX_REASONS:
        reasons.append("and more")
    outcome = IngestOutcome(sum(refused.values()), "; ".join(reasons))
    logger.warning("%d spans were not stored: %s", *outcome)
    return outcome
