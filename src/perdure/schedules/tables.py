"""The tables of schedules."""

from perdure.kernel.storage.schema import Index, Table, integer, text

SCHEDULES = Table(
    "schedules",
    (
        integer("ns"),
        text("id"),
        text("target"),
        text("expression"),
        text("timezone", null=True),
        integer("enabled"),
        integer("next_at", null=True),
        integer("end_at", null=True),
        text("assistant_id", null=True),
        text("thread_id", null=True),
        text("user_id", null=True),
        integer("created_at"),
        integer("updated_at"),
        integer("fired_at", null=True),
        integer("fired"),
        integer("refused"),
        text("started_id", null=True),
        text("error", null=True),
        text("metadata"),
        text("payload"),
    ),
    key=("ns", "id"),
    indexes=(
        Index("schedules_due", ("next_at",), "next_at IS NOT NULL"),
        Index("schedules_created", ("ns", "created_at", "id")),
        Index("schedules_assistant", ("ns", "assistant_id", "created_at", "id")),
        Index("schedules_thread", ("ns", "thread_id", "created_at", "id"), "thread_id IS NOT NULL"),
    ),
)
"""Each schedule as it is now. `next_at` is set while it waits for its time."""

FIRINGS = Table(
    "firings",
    (
        integer("ns"),
        text("schedule_id"),
        integer("due_at"),
        integer("fired_at"),
        text("started_id", null=True),
        text("error", null=True),
    ),
    key=("ns", "schedule_id", "due_at"),
)
"""The latest firings of each schedule: one for each time that has come, which its key sees to."""

TABLES = (SCHEDULES, FIRINGS)
