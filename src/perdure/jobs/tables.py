"""Table of jobs. Each is a rollout; its payload and result are in this table."""

from __future__ import annotations

from perdure.kernel.storage.schema import Index, Table, integer, text

JOBS = Table(
    "jobs",
    (
        integer("ns"),
        text("id"),
        text("name"),
        text("key", null=True),
        text("waiting_key", null=True),
        integer("created_at"),
        integer("ended_at", null=True),
        text("error", null=True),
        text("payload"),
        text("result", null=True),
    ),
    key=("ns", "id"),
    indexes=(
        Index("jobs_waiting", ("ns", "name", "waiting_key"), "waiting_key IS NOT NULL", unique=True),
        Index("jobs_ended", ("ended_at",), "ended_at IS NOT NULL"),
    ),
    hot=True,
)
"""`waiting_key` is the key of a job that has not started, unique for each name."""

TABLES = (JOBS,)
