"""Tables of graph checkpoints. Large values are the last columns."""

from __future__ import annotations

from perdure.kernel.storage.schema import Index, Table, blob, integer, text

GRAPH_THREADS = Table(
    "graph_threads", (integer("ns"), text("thread_id")), key=("ns", "thread_id"), in_key=True
)
"""One row per thread with checkpoints, pieces or writes. Every change locks the row first."""

GRAPH_CHECKPOINTS = Table(
    "graph_checkpoints",
    (
        integer("ns"),
        text("thread_id"),
        text("checkpoint_ns"),
        text("id"),
        text("parent_id", null=True),
        text("run_id", null=True),
        text("versions"),
        text("metadata"),
        text("form"),
        blob("body"),
        blob("earlier", null=True),
        blob("states", null=True),
    ),
    key=("ns", "thread_id", "checkpoint_ns", "id"),
    indexes=(
        Index("graph_checkpoints_run", ("ns", "run_id"), "run_id IS NOT NULL"),
        Index("graph_checkpoints_earlier", ("ns", "thread_id"), "earlier IS NOT NULL"),
    ),
)
"""Checkpoints without the values of their channels; `versions` names the pieces. `earlier` is the pack of
earlier checkpoints without rows. `states` is not null until the thread's states of these are unpacked."""

GRAPH_PIECES = Table(
    "graph_pieces",
    (
        integer("ns"),
        text("thread_id"),
        text("checkpoint_ns"),
        text("piece"),
        text("log", null=True),
        text("ranges", null=True),
        text("form", null=True),
        blob("body", null=True),
    ),
    key=("ns", "thread_id", "checkpoint_ns", "piece"),
)
"""Versions of channels: a value, or the ranges of a log that form a list."""

GRAPH_ITEMS = Table(
    "graph_items",
    (
        integer("ns"),
        text("thread_id"),
        text("log"),
        integer("position"),
        integer("count"),
        text("form"),
        blob("body"),
    ),
    key=("ns", "thread_id", "log", "position"),
)
"""Items of lists. Items added together share a row."""

GRAPH_WRITES = Table(
    "graph_writes",
    (
        integer("ns"),
        text("thread_id"),
        text("checkpoint_ns"),
        text("checkpoint_id"),
        text("task_id"),
        integer("idx"),
        text("task_path"),
        text("channel"),
        text("form"),
        blob("body"),
    ),
    key=("ns", "thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx"),
)
"""Writes of tasks after a checkpoint."""

TABLES = (GRAPH_THREADS, GRAPH_CHECKPOINTS, GRAPH_PIECES, GRAPH_ITEMS, GRAPH_WRITES)
