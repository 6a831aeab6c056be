"""The table of jobs. Each is a rollout; what is asked of it and what it answered stands here."""

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
"""`waiting_key` is the key of a job that has not begun, of which each name has one."""

TABLES = (JOBS,)
