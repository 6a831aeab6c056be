"""Tables of the outbox. A pending effect has `due_at`, an ended one `ended_at`."""

from perdure.kernel.storage.schema import Index, Table, integer, text

OUTBOX = Table(
    "outbox",
    (
        integer("ns"),
        text("id"),
        text("consumer"),
        text("subject"),
        text("target", null=True),
        text("status"),
        integer("attempts"),
        integer("answered"),
        integer("forgiven"),
        integer("created_at"),
        integer("since"),
        integer("due_at", null=True),
        integer("ended_at", null=True),
        text("last_error", null=True),
    ),
    key=("ns", "id"),
    indexes=(
        Index("outbox_due", ("consumer", "due_at"), where="due_at IS NOT NULL"),
        Index("outbox_again", ("consumer", "due_at"), where="due_at IS NOT NULL AND attempts > 0"),
        Index("outbox_ended", ("status", "ended_at"), where="ended_at IS NOT NULL"),
        Index("outbox_status", ("ns", "status", "id")),
        Index("outbox_subject", ("ns", "subject", "id")),
    ),
    hot=True,
    deadlines=("due_at", "since"),
)

BODIES = Table("outbox_bodies", (integer("ns"), text("id"), text("body")), key=("ns", "id"))

TABLES = (OUTBOX, BODIES)
