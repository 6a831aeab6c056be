"""Spans as lists show them: without what they hold."""

from __future__ import annotations

from typing import NamedTuple

from perdure.kernel.record import Record
from perdure.rollouts.traces.sums import ERROR


class SpanOutlineRow(NamedTuple):
    """What a list shows of a span."""

    rollout_id: str
    attempt_id: str
    span_id: str
    parent_id: str | None
    name: str
    start_ns: int | None
    end_ns: int | None
    status_code: str
    sequence_id: int
    ordinal: int
    size: int


class SpanOutline(Record, kw_only=True):
    """What a list shows of a span."""

    span_id: str
    parent_id: str | None
    name: str
    rollout_id: str
    attempt_id: str
    start_time: float | None
    end_time: float | None
    failed: bool


def outline_from(row: SpanOutlineRow) -> SpanOutline:
    return SpanOutline(
        span_id=row.span_id,
        parent_id=row.parent_id,
        name=row.name,
        rollout_id=row.rollout_id,
        attempt_id=row.attempt_id,
        start_time=None if row.start_ns is None else row.start_ns / 1e9,
        end_time=None if row.end_ns is None else row.end_ns / 1e9,
        failed=row.status_code == ERROR,
    )
