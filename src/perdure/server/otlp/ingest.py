"""Store the spans of an export: in the rollouts that they name, or in one created for their trace."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from perdure.access.model import Caller
from perdure.kernel.errors import NotFound
from perdure.rollouts.contract import LightningStore
from perdure.rollouts.kept_traces import KeptTrace
from perdure.rollouts.model import FAILED, SUCCEEDED
from perdure.rollouts.operations.spans import NewSpan
from perdure.rollouts.otlp import BAD_ID, NO_ROLLOUT, TOO_MANY, Received, Traces, receive
from perdure.rollouts.otlp_reader import Reader, records
from perdure.rollouts.records import AttemptStatus
from perdure.rollouts.service import Rollouts
from perdure.rollouts.span_writer import Answer
from perdure.runtime.app import StoreApp

__all__ = ["Outcome", "ingest"]

MAX_REASONS = 5
"""How many reasons an answer lists; a batch may name thousands of rollouts that do not exist."""
_LABELS = {NO_ROLLOUT: "no_rollout", BAD_ID: "bad_id", TOO_MANY: "too_many"}

logger = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """How many spans of an export were rejected, and why."""

    rejected: int = 0
    message: str = ""


async def ingest(app: StoreApp, caller: Caller, traces: Traces, source: str) -> Outcome:
    """Store every span that can be stored. One that was stored before counts as stored."""
    received = receive(traces)
    rollouts = app.rollouts_for(caller)
    if rollouts is not None and app.settings.keep_traces:
        answers = await _store_and_keep(rollouts, received)
    else:
        if received.unattributed:
            received.refuse(NO_ROLLOUT, len(received.unattributed))
        if rollouts is not None:
            answers = await _store(rollouts, received.spans, received.parts)
        else:
            answers = await _store_records(app.store_for(caller), received.spans, received.parts)
    for answer in answers:
        if isinstance(answer, NotFound):
            received.refuse(answer.message)
    _count(app, received, answers, source)
    return _outcome(received.refused)


async def _store(rollouts: Rollouts, spans: Sequence[NewSpan], parts: Mapping[str, bytes]) -> list[Answer]:
    return await rollouts.store_new_spans(spans, parts) if spans else []


# --- a store of another make ------------------------------------------------------------------------------


async def _store_records(
    store: LightningStore, spans: Sequence[NewSpan], parts: Mapping[str, bytes]
) -> list[Answer]:
    """Store the spans through the contract alone; an unknown attempt does not affect the others."""
    groups: dict[tuple[str, str], list[NewSpan]] = {}
    for span in spans:
        groups.setdefault((span.rollout_id, span.attempt_id), []).append(span)
    answers: dict[int, Answer] = {}
    for group in groups.values():
        answers.update(zip(map(id, group), await _store_group(store, group, parts), strict=True))
    return [answers[id(span)] for span in spans]


async def _store_group(
    store: LightningStore, group: Sequence[NewSpan], parts: Mapping[str, bytes]
) -> list[Answer]:
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


# --- traces of their own ----------------------------------------------------------------------------------


async def _store_and_keep(rollouts: Rollouts, received: Received) -> list[Answer]:
    """Store all spans; one that names no rollout goes to the rollout of its trace, created if missing."""
    kept = [span for span in received.unattributed if span.trace_id.strip("0")]
    if len(kept) < len(received.unattributed):
        received.refuse(NO_ROLLOUT, len(received.unattributed) - len(kept))
    for span in kept:
        trace = KeptTrace(span.trace_id)
        span.rollout_id, span.attempt_id = trace.rollout_id, trace.attempt_id
    spans = received.spans + kept
    answers = await _store(rollouts, spans, received.parts)
    missing = [span for span, answer in zip(spans, answers, strict=True) if isinstance(answer, NotFound)]
    missing = [span for span in missing if span.rollout_id == KeptTrace(span.trace_id).rollout_id]
    if missing:
        traces = _traces_of(missing, received.parts)
        await rollouts.start_missing([trace.request() for trace in traces])
        again = dict(zip(map(id, missing), await _store(rollouts, missing, received.parts), strict=True))
        answers = [again.get(id(span), answer) for span, answer in zip(spans, answers, strict=True)]
    await _end(rollouts, (span for span, answer in zip(spans, answers, strict=True) if type(answer) is int))
    return answers


def _traces_of(spans: Iterable[NewSpan], parts: Mapping[str, bytes]) -> list[KeptTrace]:
    reader = Reader(parts)
    traces: dict[str, KeptTrace] = {}
    for span in spans:
        if span.trace_id not in traces:
            service = reader.resource(span.resource_hash)["attributes"].get("service.name")
            traces[span.trace_id] = KeptTrace(span.trace_id, service if isinstance(service, str) else None)
    return list(traces.values())


async def _end(rollouts: Rollouts, stored: Iterable[NewSpan]) -> None:
    """End the traces whose root span has arrived: an exporter sends a span once it has ended."""
    for span in stored:
        trace = KeptTrace(span.trace_id)
        if span.parent_id is None and span.rollout_id == trace.rollout_id:
            status: AttemptStatus = FAILED if span.status_code == "ERROR" else SUCCEEDED
            await rollouts.update_attempt(trace.rollout_id, trace.attempt_id, status=status)


# --- what is reported -------------------------------------------------------------------------------------


def _count(app: StoreApp, received: Received, answers: Sequence[Answer], source: str) -> None:
    stored = sum(type(answer) is int for answer in answers)
    if stored:
        app.metrics.spans_ingested.labels(source).inc(stored)
    for reason, count in received.refused.items():
        app.metrics.spans_rejected.labels(_LABELS.get(reason, "not_found")).inc(count)


def _outcome(refused: Mapping[str, int]) -> Outcome:
    if not refused:
        return Outcome()
    reasons = [f"{count} × {reason}" for reason, count in list(refused.items())[:MAX_REASONS]]
    if len(refused) > MAX_REASONS:
        reasons.append("and more")
    outcome = Outcome(sum(refused.values()), "; ".join(reasons))
    logger.warning("%d spans were not stored: %s", *outcome)
    return outcome
