"""The tables of graphs. Large values are last columns."""

from __future__ import annotations

from perdure.kernel.storage.schema import Index, Table, blob, integer, text

GRAPH_THREADS = Table(
    "graph_threads", (integer("ns"), text("thread_id")), key=("ns", "thread_id"), in_key=True
)
"""One row for each thread that has something here: whoever changes anything of it has locked the row."""

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
"""A checkpoint without the values of its channels; `versions` says which pieces they are. Earlier ones that
have no rows are packed into `earlier`. `states` is not null while what their thread shows of them is still to
be unpacked, out of the pack."""

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
"""A version of a channel: a value, or the ranges of a log that make up a list."""

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
"""The items of lists, those that came together in one row."""

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
"""What the tasks after a checkpoint have written."""

TABLES = (GRAPH_THREADS, GRAPH_CHECKPOINTS, GRAPH_PIECES, GRAPH_ITEMS, GRAPH_WRITES)
