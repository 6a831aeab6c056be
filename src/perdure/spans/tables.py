"""Tables of spans and traces, and their figures."""

from __future__ import annotations

from perdure.kernel.storage.schema import Index, Table, blob, integer, text
from perdure.spans import usage

SPANS = Table(
    "spans",
    (
        integer("ns"),
        integer("born"),
        text("rollout_id"),
        text("attempt_id"),
        text("span_id"),
        integer("sequence_id"),
        integer("ordinal"),
        text("trace_id"),
        text("parent_id", null=True),
        text("name"),
        integer("start_ns", null=True),
        integer("end_ns", null=True),
        text("status_code"),
        integer("size"),
        text("resource_hash", null=True),
        text("scope_hash", null=True),
        text("format"),
        blob("body"),
    ),
    key=("ns", "born", "rollout_id", "attempt_id", "span_id"),
    indexes=(
        Index("spans_sequence", ("ns", "born", "rollout_id", "sequence_id")),
        Index("spans_trace", ("ns", "trace_id")),
    ),
)
SPAN_PARTS = Table(
    "span_parts",
    (integer("ns"), text("hash"), blob("body")),
    key=("ns", "hash"),
)
SPAN_COUNTERS = Table(
    "span_counters",
    (
        integer("ns"),
        text("rollout_id"),
        integer("sequence"),
        integer("spans", default=0),
        integer("bytes", default=0),
        integer("evicted", default=0),
    ),
    key=("ns", "rollout_id"),
    hot=True,
    in_key=True,
)
ROLLOUT_FIGURES = Table(
    "rollout_figures",
    (
        integer("ns"),
        text("rollout_id"),
        integer("input_tokens"),
        integer("output_tokens"),
        integer("reward_at"),
        text("reward", null=True),
        integer("cached_tokens", default=0),
        integer("cost", default=0),
    ),
    key=("ns", "rollout_id"),
    hot=True,
    in_key=True,
)
MODEL_CALLS = Table(
    "model_calls",
    (
        integer("ns"),
        text("rollout_id"),
        text("attempt_id"),
        text("span_id"),
        text("parent_id", null=True),
        integer("start_ns"),
        integer("end_ns"),
        text("response_id"),
    ),
    key=("ns", "rollout_id", "attempt_id", "span_id"),
    indexes=(
        Index("model_calls_end", ("ns", "rollout_id", "attempt_id", "end_ns")),
        Index("model_calls_response", ("ns", "rollout_id", "attempt_id", "response_id")),
    ),
)
"""Model calls of attempts that spans of a framework have joined, so that each call counts once."""
TRACES = Table(
    "traces",
    (
        integer("ns"),
        text("trace_id"),
        integer("start_ns"),
        integer("end_ns"),
        integer("spans"),
        integer("errors"),
        integer("input_tokens"),
        integer("output_tokens"),
        integer("rooted"),
        integer("reward_at"),
        text("reward", null=True),
        text("rollout_id"),
        text("service"),
        text("name"),
        integer("cached_tokens", default=0),
        integer("cost", default=0),
        text("session_id", null=True),
    ),
    key=("ns", "trace_id"),
    in_key=True,
    indexes=(
        Index("traces_session", ("ns", "session_id", "start_ns", "trace_id"), "session_id IS NOT NULL"),
        Index("traces_start", ("ns", "start_ns", "trace_id")),
        Index("traces_service", ("ns", "service", "start_ns", "trace_id")),
        Index("traces_errors", ("ns", "start_ns", "trace_id"), "errors > 0"),
    ),
)
TRACE_NAMES = Table(
    "trace_names",
    (integer("ns"), text("trace_id"), text("name"), integer("start_ns")),
    key=("ns", "trace_id", "name"),
    in_key=True,
    indexes=(Index("trace_names_start", ("ns", "name", "start_ns", "trace_id")),),
)
USAGE_ADDED = Table(
    "usage_added",
    (
        integer("ns"),
        text("rollout_id"),
        integer("hour"),
        text("kind"),
        text("model"),
        text("agent"),
        text("user_id"),
        *usage.COLUMNS,
    ),
    key=("ns", "rollout_id", "hour", "kind", "model", "agent", "user_id"),
    hot=True,
)
"""Usage of new spans until it is added to the hours; `hour` is the start of the hour, in microseconds."""
