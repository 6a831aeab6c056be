"""What the outbox says of new spans, so that they need not be read again to be listed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import msgspec

from perdure.rollouts.operations.spans import NewSpan
from perdure.rollouts.rows import RolloutFiguresRow, SpanFiguresRow, TraceNameRow, TraceRow
from perdure.rollouts.traces.figures import Figures, may_have_figures

MAX_NAME = 250
"""How many characters of a span's name are listed."""
NO_REWARD = -1


class SpanNote(msgspec.Struct, array_like=True, frozen=True):
    """What is told of a new span."""

    rollout_id: str
    attempt_id: str
    span_id: str
    trace_id: str
    name: str
    start_ns: int
    end_ns: int
    failed: bool
    has_parent: bool
    has_figures: bool
    """Whether its body must be read."""
    resource_hash: str | None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.rollout_id, self.attempt_id, self.span_id


class _Batch(msgspec.Struct, frozen=True):
    """The notes of a batch of spans."""

    ns: int
    spans: list[SpanNote]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Batch).decode


def note_of(span: NewSpan) -> str:
    """The note of a span, as JSON."""
    start = span.start_ns or span.end_ns or time.time_ns()
    return _encode(
        SpanNote(
            span.rollout_id,
            span.attempt_id,
            span.span_id,
            span.trace_id,
            span.name[:MAX_NAME],
            start,
            max(start, span.end_ns or 0),
            span.status_code == "ERROR",
            span.parent_id is not None,
            may_have_figures(span.body),
            span.resource_hash,
        )
    ).decode()


def read_notes(body: str) -> tuple[int, list[SpanNote]]:
    """The namespace of a batch, and the notes of its spans."""
    batch = _decode(body)
    return batch.ns, batch.spans


class Found(msgspec.Struct, frozen=True):
    """A new span with what was taken out of it. `number` is its place among the spans of its rollout."""

    note: SpanNote
    service: str
    figures: Figures = Figures()
    number: int = 0

    @property
    def reward(self) -> str | None:
        return None if self.figures.reward is None else repr(self.figures.reward)

    @property
    def reward_at(self) -> int:
        return NO_REWARD if self.figures.reward is None else self.number


# --- rows -------------------------------------------------------------------------------------------------


def span_rows(found: Iterable[Found]) -> list[SpanFiguresRow]:
    """The rows of the spans that have figures."""
    return sorted(
        SpanFiguresRow(
            each.note.rollout_id,
            each.note.attempt_id,
            each.note.span_id,
            each.note.trace_id,
            each.note.start_ns,
            each.figures.input_tokens,
            each.figures.output_tokens,
            each.reward,
        )
        for each in found
        if each.figures.present
    )


def rollout_rows(found: Iterable[Found]) -> list[RolloutFiguresRow]:
    """What is to be added to the rollouts, in the order of their ids."""
    sums: dict[str, RolloutFiguresRow] = {}
    for each in found:
        if not each.figures.present:
            continue
        id = each.note.rollout_id
        known = sums.get(id) or RolloutFiguresRow(id, 0, 0, NO_REWARD, None)
        last = each.reward_at >= known.reward_at and each.reward is not None
        sums[id] = RolloutFiguresRow(
            id,
            known.input_tokens + each.figures.input_tokens,
            known.output_tokens + each.figures.output_tokens,
            each.reward_at if last else known.reward_at,
            each.reward if last else known.reward,
        )
    return [sums[id] for id in sorted(sums)]


def trace_rows(found: Iterable[Found]) -> list[TraceRow]:
    """What is to be added to the traces, in the order of their ids."""
    sums: dict[str, TraceRow] = {}
    for each in found:
        new = _trace_row(each)
        known = sums.get(new.trace_id)
        sums[new.trace_id] = new if known is None else _joined(known, new)
    return [sums[id] for id in sorted(sums)]


def _trace_row(each: Found) -> TraceRow:
    note = each.note
    return TraceRow(
        note.trace_id,
        note.start_ns,
        note.end_ns,
        1,
        int(note.failed),
        each.figures.input_tokens,
        each.figures.output_tokens,
        int(not note.has_parent),
        each.reward_at,
        each.reward,
        note.rollout_id,
        each.service,
        note.name,
    )


def _joined(one: TraceRow, two: TraceRow) -> TraceRow:
    """Two parts of a trace as one, by the rules of `ADD_TRACES`."""
    first = min(one, two, key=lambda row: (-row.rooted, row.start_ns))
    last = max(one, two, key=lambda row: row.reward_at)
    return first._replace(
        start_ns=min(one.start_ns, two.start_ns),
        end_ns=max(one.end_ns, two.end_ns),
        spans=one.spans + two.spans,
        errors=one.errors + two.errors,
        input_tokens=one.input_tokens + two.input_tokens,
        output_tokens=one.output_tokens + two.output_tokens,
        reward_at=last.reward_at,
        reward=last.reward,
    )


def name_rows(found: Sequence[Found]) -> list[TraceNameRow]:
    """The names of spans in each trace, each once."""
    names: dict[tuple[str, str], int] = {}
    for each in found:
        key = (each.note.trace_id, each.note.name)
        names[key] = min(names.get(key, each.note.start_ns), each.note.start_ns)
    return [TraceNameRow(*key, start_ns) for key, start_ns in sorted(names.items())]
