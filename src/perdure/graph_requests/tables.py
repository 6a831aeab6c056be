"""Tables of requests to workers and their answers. Each request is a rollout."""

from __future__ import annotations

from perdure.kernel.storage.schema import Index, Table, integer, text

GRAPH_REQUESTS = Table(
    "graph_requests",
    (
        integer("ns"),
        text("id"),
        text("agent"),
        text("thread_id"),
        text("actor", null=True),
        integer("expires_at"),
        text("call"),
    ),
    key=("ns", "id"),
    indexes=(Index("graph_requests_expired", ("expires_at",)),),
)

GRAPH_ANSWERS = Table(
    "graph_answers",
    (
        integer("ns"),
        text("id"),
        text("attempt_id"),
        text("error_code", null=True),
        text("error", null=True),
        text("answer", null=True),
    ),
    key=("ns", "id"),
)

TABLES = (GRAPH_REQUESTS, GRAPH_ANSWERS)
