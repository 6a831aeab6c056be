"""Tables of rollouts."""

from __future__ import annotations

from perdure.kernel.storage.schema import Index, Probe, Table, integer, text
from perdure.spans.tables import (
    MODEL_CALLS,
    ROLLOUT_FIGURES,
    SPAN_COUNTERS,
    SPAN_PARTS,
    SPANS,
    TRACE_NAMES,
    TRACES,
    USAGE_ADDED,
)

OVERDUE = Probe("attempts", "check_at")
DUE = Probe("rollouts", "due_at")
HELD = Probe("claim_holds", "since")
ANY_RESOURCES = Probe("resources")

ROLLOUTS = Table(
    "rollouts",
    (
        integer("ns"),
        text("id"),
        text("kind"),
        text("queue"),
        text("agent", null=True),
        text("status"),
        text("outcome", null=True),
        integer("priority"),
        integer("position"),
        integer("ready", null=True),
        integer("due_at", null=True),
        integer("behind", null=True),
        text("line", null=True),
        text("parent", null=True),
        text("queued_as", null=True),
        integer("attempts"),
        text("mode", null=True),
        text("resources_id", null=True),
        integer("start_time"),
        integer("end_time", null=True),
        text("idempotency_key", null=True),
        text("config"),
        text("metadata"),
        text("input"),
        text("trace_id", null=True),
    ),
    key=("ns", "id"),
    indexes=(
        Index("rollouts_claim", ("ns", "queue", "agent", "priority DESC", "ready"), "ready IS NOT NULL"),
        Index("rollouts_no_agent", ("ns", "id"), "agent IS NULL AND line IS NOT NULL AND end_time IS NULL"),
        Index("rollouts_due", ("due_at",), "due_at IS NOT NULL"),
        Index("rollouts_behind", ("ns", "line", "priority DESC", "behind"), "behind IS NOT NULL"),
        Index("rollouts_line", ("ns", "line", "position DESC"), "line IS NOT NULL"),
        Index("rollouts_parent", ("ns", "parent", "start_time"), "parent IS NOT NULL"),
        Index("rollouts_status", ("ns", "kind", "status", "start_time")),
        Index(
            "rollouts_outcome",
            ("ns", "kind", "outcome", "start_time"),
            "outcome IS NOT NULL AND line IS NOT NULL",
        ),
        Index("rollouts_trace", ("ns", "trace_id"), "trace_id IS NOT NULL"),
        Index("rollouts_idempotency", ("ns", "idempotency_key"), "idempotency_key IS NOT NULL", unique=True),
    ),
    hot=True,
    probes=(DUE,),
    deadlines=("due_at",),
)

ATTEMPTS = Table(
    "attempts",
    (
        integer("ns"),
        text("rollout_id"),
        integer("sequence_id"),
        text("id"),
        text("status"),
        integer("start_time"),
        integer("end_time", null=True),
        text("worker_id", null=True),
        integer("last_heartbeat_time", null=True),
        integer("check_at", null=True),
        text("reason", null=True),
        integer("charged", default=1),
        text("kind"),
        integer("born"),
        text("metadata", null=True),
        integer("joined", null=True),
    ),
    key=("ns", "rollout_id", "sequence_id"),
    indexes=(
        Index("attempts_check", ("check_at",), "check_at IS NOT NULL"),
        Index("attempts_id", ("ns", "id")),
    ),
    hot=True,
    # Each row is updated once, when the attempt ends.
    fill=50,
    probes=(OVERDUE,),
    deadlines=("check_at", "start_time", "last_heartbeat_time"),
)

LINES = Table(
    "lines",
    (
        integer("ns"),
        text("line"),
        text("holder", null=True),
        text("holder_attempt", null=True),
        integer("release_by", null=True),
    ),
    key=("ns", "line"),
    hot=True,
    in_key=True,
    deadlines=("release_by",),
)

COUNTS = Table(
    "rollout_counts",
    (integer("ns"), text("kind"), text("status"), integer("shard"), integer("total")),
    key=("ns", "kind", "status", "shard"),
    hot=True,
)

WORKERS = Table(
    "workers",
    (
        integer("ns"),
        text("id"),
        text("status"),
        integer("last_heartbeat_time", null=True),
        integer("last_dequeue_time", null=True),
        integer("last_busy_time", null=True),
        integer("last_idle_time", null=True),
        text("current_rollout_id", null=True),
        text("current_attempt_id", null=True),
        integer("held", null=True),
        integer("stopped_at", null=True),
        text("process", null=True),
        text("heartbeat_stats", null=True),
    ),
    key=("ns", "id"),
    hot=True,
)

CLAIM_HOLDS = Table(
    "claim_holds",
    (integer("ns"), text("kind"), text("name"), integer("since")),
    key=("ns", "kind", "name"),
    indexes=(Index("claim_holds_since", ("since",)),),
    probes=(HELD,),
)
"""The paused queues and the drained workers."""

RESOURCES = Table(
    "resources",
    (
        integer("ns"),
        text("id"),
        integer("version"),
        integer("create_time"),
        integer("update_time"),
        text("body"),
    ),
    key=("ns", "id"),
    indexes=(Index("resources_latest", ("ns", "update_time")),),
    probes=(ANY_RESOURCES,),
)

RESOURCE_VERSIONS = Table(
    "resource_versions",
    (integer("ns"), text("id"), integer("version"), integer("time"), text("body")),
    key=("ns", "id", "version"),
)


KEPT_TRACES = Table(
    "kept_traces",
    (
        integer("ns"),
        text("rollout_id"),
        integer("start_ns"),
        integer("end_ns"),
        integer("rooted"),
        text("linked", null=True),
    ),
    key=("ns", "rollout_id"),
    hot=True,
    in_key=True,
)
"""Figures of kept traces from their spans: start, end, whether the root span is stored, and `linked`: the
attempts of the trace that were live when it was kept, one per line."""


TOTALS = Table(
    "rollout_totals",
    (integer("ns"), text("name"), integer("shard"), integer("total")),
    key=("ns", "name", "shard"),
    hot=True,
    in_key=True,
    filled_by="""
    INSERT INTO rollout_totals (ns, name, shard, total)
    SELECT ns, 'attempts', 0, count(*) FROM attempts GROUP BY ns
    UNION ALL SELECT ns, 'spans', 0, sum(spans) FROM span_counters GROUP BY ns
    UNION ALL SELECT ns, 'span_bytes', 0, sum(bytes) FROM span_counters GROUP BY ns
    """,
)
"""Totals of rows that belong to rollouts; `rollout_counts` has the totals of the rollouts themselves."""


TABLES = (
    ROLLOUTS,
    ATTEMPTS,
    LINES,
    COUNTS,
    WORKERS,
    CLAIM_HOLDS,
    RESOURCES,
    RESOURCE_VERSIONS,
    SPANS,
    SPAN_PARTS,
    SPAN_COUNTERS,
    ROLLOUT_FIGURES,
    KEPT_TRACES,
    MODEL_CALLS,
    TRACES,
    TRACE_NAMES,
    USAGE_ADDED,
    TOTALS,
)
