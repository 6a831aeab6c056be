"""Tables of logs."""

from __future__ import annotations

from perdure.kernel.storage.schema import Index, Table, blob, integer, text

SESSION_LOGS = Table(
    "session_logs",
    (
        integer("ns"),
        text("project"),
        text("session_id"),
        text("subpath"),
        integer("last_seq"),
        integer("size"),
        integer("created_at"),
        integer("updated_at"),
    ),
    key=("ns", "session_id", "project", "subpath"),
    indexes=(Index("session_logs_updated", ("ns", "subpath", "updated_at")),),
    hot=True,
)
"""Head of each log, locked by every append."""

SESSION_LINES = Table(
    "session_lines",
    (
        integer("ns"),
        text("session_id"),
        text("project"),
        text("subpath"),
        integer("seq"),
        text("attempt_id", null=True),
        integer("number", null=True),
        text("body"),
    ),
    key=("ns", "session_id", "project", "subpath", "seq"),
    indexes=(
        Index(
            "session_lines_attempt",
            ("ns", "session_id", "project", "subpath", "attempt_id", "number"),
            "attempt_id IS NOT NULL",
        ),
    ),
)
"""A line, with its number within the attempt that wrote it."""

SESSION_BLOBS = Table(
    "session_blobs",
    (integer("ns"), text("digest"), integer("created_at"), blob("content")),
    key=("ns", "digest"),
)

TABLES = (SESSION_LOGS, SESSION_LINES, SESSION_BLOBS)
