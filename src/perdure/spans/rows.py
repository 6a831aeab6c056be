"""Rows of spans and traces, and their figures."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from perdure.spans.figures import SpanFigures
from perdure.spans.usage import UsageSums


class SpanRow(msgspec.Struct):
    """A span to insert; `born` is the time when its rollout was created."""

    born: int
    rollout_id: str
    attempt_id: str
    span_id: str
    sequence_id: int
    ordinal: int
    trace_id: str
    parent_id: str | None
    name: str
    start_ns: int | None
    end_ns: int | None
    status_code: str
    size: int
    resource_hash: str | None
    scope_hash: str | None
    format: str
    body: bytes


class SpanRecordRow(NamedTuple):
    """The fields of a stored span that records need."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    resource_hash: str | None
    scope_hash: str | None
    format: str
    body: bytes
    start_ns: int | None = None
    end_ns: int | None = None
    ordinal: int = 0
    status_code: str = ""


class PartRow(NamedTuple):
    """A part that spans share, by its hash."""

    hash: str
    body: bytes


def part_hash(body: bytes) -> str:
    """Compute the key of a part. It is short, because each span contains the keys of its parts."""
    return urlsafe_b64encode(blake2b(body, digest_size=16).digest()).decode().rstrip("=")


class SpanCounterRow(NamedTuple):
    """Change of the counter of a rollout's spans."""

    rollout_id: str
    sequence: int
    spans: int
    bytes: int
    evicted: int


class EvictionRow(NamedTuple):
    """A rollout whose spans may be evicted."""

    ns: int
    rollout_id: str
    bytes: int
    start_time: int


class RolloutFiguresRow(msgspec.Struct):
    """The figures of a rollout; `reward_at` is the number of the span that has the reward, or -1."""

    rollout_id: str
    input_tokens: int
    output_tokens: int
    reward_at: int
    reward: str | None
    cached_tokens: int
    cost: int


class TraceRow(msgspec.Struct):
    """A trace. Its name, service and rollout come from its first span, `rooted` if that has no parent."""

    trace_id: str
    start_ns: int
    end_ns: int
    spans: int
    errors: int
    input_tokens: int
    output_tokens: int
    rooted: int
    reward_at: int
    reward: str | None
    rollout_id: str
    service: str
    name: str
    cached_tokens: int
    cost: int
    session_id: str | None


class UsageRow(UsageSums):
    """Usage of a rollout's spans of one kind of step, model, agent and user in an hour."""

    rollout_id: str
    hour: int
    kind: str
    model: str
    agent: str
    user_id: str


class TraceNameRow(NamedTuple):
    """A name of spans in a trace."""

    trace_id: str
    name: str
    start_ns: int


class TraceCursor(NamedTuple):
    """Position of a trace in lists, which are ordered by start."""

    start_ns: int
    trace_id: str


class NewSpan(msgspec.Struct, gc=False):
    """A span ready to store: a few scalar columns, and the rest unchanged."""

    rollout_id: str
    attempt_id: str
    span_id: str
    sequence_id: int | None
    trace_id: str
    parent_id: str | None
    name: str
    start_ns: int | None
    end_ns: int | None
    status_code: str
    size: int
    resource_hash: str | None
    scope_hash: str | None
    format: str
    body: bytes
    figures: SpanFigures | None = None
    service: str = ""
    """Name of the service in its resource."""
    session: str = ""
    """The conversation that it belongs to."""


class ModelCallRow(NamedTuple):
    """A model call of an attempt."""

    rollout_id: str
    attempt_id: str
    span_id: str
    parent_id: str | None
    start_ns: int
    end_ns: int
    response_id: str
