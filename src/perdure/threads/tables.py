"""Tables of threads. Long values are the last columns, and only reads of one object select them."""

from __future__ import annotations

from perdure.kernel.storage.schema import Index, Table, blob, integer, text
from perdure.threads.seed_views import RUN_VIEW, THREAD_VIEW

THREADS = Table(
    "threads",
    (
        integer("ns"),
        text("id"),
        text("status"),
        text("rest"),
        integer("temporary", null=True),
        integer("single", null=True),
        integer("gone_at", null=True),
        integer("created_at"),
        integer("updated_at"),
        integer("state_at"),
        text("checkpoint_id", null=True),
        integer("steps"),
        text("error", null=True),
        text("config"),
        text("metadata"),
    ),
    key=("ns", "id"),
    indexes=(
        Index("threads_created", ("ns", "created_at"), "temporary IS NULL"),
        Index("threads_status", ("ns", "status", "created_at"), "temporary IS NULL"),
        Index("threads_updated", ("ns", "updated_at"), "temporary IS NULL"),
        Index("threads_gone", ("gone_at",), "gone_at IS NOT NULL"),
        Index("threads_single", ("ns", "created_at"), "single IS NOT NULL"),
    ),
    hot=True,
    deadlines=("gone_at",),
    views=(THREAD_VIEW,),
)

RUNS = Table(
    "runs",
    (
        integer("ns"),
        text("id"),
        text("thread_id"),
        text("assistant_id"),
        text("agent"),
        text("strategy"),
        integer("live", null=True),
        integer("gone_at", null=True),
        integer("created_at"),
        integer("updated_at"),
        integer("temporary", null=True),
        text("on_disconnect"),
        text("on_completion"),
        text("webhook", null=True),
        text("session_id", null=True),
        text("error", null=True),
    ),
    key=("ns", "id"),
    indexes=(
        Index("runs_thread", ("ns", "thread_id", "created_at DESC")),
        Index("runs_live", ("ns", "thread_id", "created_at"), "live IS NOT NULL"),
        Index("runs_created", ("ns", "created_at DESC")),
        Index("runs_gone", ("gone_at",), "gone_at IS NOT NULL"),
    ),
    hot=True,
    deadlines=("gone_at",),
    views=(RUN_VIEW,),
)

CHECKPOINTS = Table(
    "checkpoints",
    (
        integer("ns"),
        text("thread_id"),
        text("id"),
        integer("position"),
        integer("step"),
        text("parent_id", null=True),
        text("run_id", null=True),
        integer("attempt", null=True),
        integer("created_at"),
        text("next"),
        text("interrupts"),
        text("metadata"),
        text("output", null=True),
        text("body"),
        blob("state", null=True),
    ),
    key=("ns", "id", "thread_id"),
    indexes=(
        Index("checkpoints_position", ("ns", "thread_id", "position DESC")),
        Index("checkpoints_run", ("ns", "run_id"), "run_id IS NOT NULL"),
    ),
)

RUN_STEPS = Table(
    "run_steps",
    (
        integer("ns"),
        text("run_id"),
        text("name"),
        integer("attempt"),
        text("saved_by", null=True),
        integer("seq", null=True),
        text("within", null=True),
        text("body"),
    ),
    key=("ns", "run_id", "name"),
)

THREAD_LIFETIMES = Table(
    "thread_lifetimes",
    (
        integer("ns"),
        text("thread_id"),
        integer("expires_at"),
        integer("length"),
        text("strategy"),
    ),
    key=("ns", "thread_id"),
    indexes=(Index("thread_lifetimes_due", ("expires_at",)),),
)

REMOVED_RUNS = Table(
    "removed_runs",
    (integer("ns"), text("kind"), text("status"), integer("shard"), integer("total")),
    key=("ns", "kind", "status", "shard"),
    hot=True,
    filled_by="""
    INSERT INTO removed_runs (ns, kind, status, shard, total)
    SELECT r.ns, r.kind, r.status, 0, count(*) FROM rollouts AS r
    WHERE r.kind IN ('run', 'phase')
      AND NOT EXISTS (SELECT 1 FROM runs AS n WHERE n.ns = r.ns AND n.id = r.id)
    GROUP BY r.ns, r.kind, r.status
    """,
)
"""Number of rollouts that are traces of removed runs, so that lists need not count them."""

TABLES = (THREADS, RUNS, CHECKPOINTS, RUN_STEPS, THREAD_LIFETIMES, REMOVED_RUNS)
