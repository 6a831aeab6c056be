"""The tables of schedules."""

from perdure.kernel.storage.schema import Index, Table, integer, text

SCHEDULES = Table(
    "schedules",
    (
        integer("ns"),
        text("id"),
        text("name", null=True),
        text("origin", null=True),
        text("file", null=True),
        text("target"),
        text("expression"),
        text("timezone", null=True),
        integer("enabled"),
        integer("next_at", null=True),
        integer("due_at", null=True),
        integer("end_at", null=True),
        integer("jitter", null=True),
        text("overlap", null=True),
        text("misfire", null=True),
        integer("timeout", null=True),
        text("unless", null=True),
        text("assistant_id", null=True),
        text("thread_id", null=True),
        text("user_id", null=True),
        integer("created_at"),
        integer("updated_at"),
        integer("fired_at", null=True),
        integer("fired"),
        integer("refused"),
        integer("skipped", null=True),
        integer("failed", null=True),
        integer("running", null=True),
        text("started_id", null=True),
        text("error", null=True),
        text("last_result", null=True),
        text("last_error", null=True),
        integer("last_duration", null=True),
        text("metadata"),
        text("payload"),
        text("last_metadata", null=True),
    ),
    key=("ns", "id"),
    indexes=(
        Index("schedules_due", ("next_at",), "next_at IS NOT NULL"),
        Index("schedules_created", ("ns", "created_at", "id")),
        Index("schedules_assistant", ("ns", "assistant_id", "created_at", "id")),
        Index("schedules_thread", ("ns", "thread_id", "created_at", "id"), "thread_id IS NOT NULL"),
        Index("schedules_name", ("ns", "name"), "name IS NOT NULL", unique=True),
        Index("schedules_running", ("ns", "id"), "running > 0"),
    ),
)
"""Schedules. `next_at` is when the schedule fires, `due_at` the same time without jitter."""

FIRINGS = Table(
    "firings",
    (
        integer("ns"),
        text("schedule_id"),
        integer("due_at"),
        integer("fired_at"),
        text("started_id", null=True),
        text("error", null=True),
        text("source", null=True),
        text("actor", null=True),
        text("target", null=True),
        text("status", null=True),
        text("skipped", null=True),
        integer("ended_at", null=True),
        integer("duration", null=True),
        integer("open", null=True),
        text("metadata", null=True),
    ),
    key=("ns", "schedule_id", "due_at"),
    indexes=(Index("firings_open", ("ns", "schedule_id", "due_at"), "open IS NOT NULL"),),
)
"""The latest firings of each schedule. The key allows one firing per due time."""

CRON_OVERRIDES = Table(
    "cron_overrides",
    (
        integer("ns"),
        text("name"),
        integer("enabled", default=1),
        text("schedule", null=True),
        integer("updated_at"),
        text("updated_by", null=True),
    ),
    key=("ns", "name"),
)
"""Overrides of schedules' definitions. Without a row the definition applies."""

TABLES = (SCHEDULES, FIRINGS, CRON_OVERRIDES)
