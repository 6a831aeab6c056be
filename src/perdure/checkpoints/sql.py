"""SQL of graph checkpoints, the same for both engines."""

from __future__ import annotations

from perdure.checkpoints.rows import (
    AncestorRow,
    BaseRow,
    CheckpointBaseRow,
    CheckpointKey,
    CheckpointRow,
    CheckpointThreadRow,
    CheckpointVersions,
    ListItemsRow,
    PackedRow,
    PieceRow,
    RangesRow,
    SegmentRow,
    StoredRow,
    VersionsRow,
    WriteRow,
    WrittenRow,
)
from perdure.checkpoints.tables import (
    GRAPH_CHECKPOINTS,
    GRAPH_ITEMS,
    GRAPH_PIECES,
    GRAPH_THREADS,
    GRAPH_WRITES,
)
from perdure.kernel.storage.dialect import BulkInsert, name_statements, statement
from perdure.kernel.storage.filters import ListField, Listing, SortKey, SortOrder

# --- storing ----------------------------------------------------------------------------------------------

# Lock threads, in the order of their IDs.
LOCK_THREADS = statement(
    """
    SELECT thread_id FROM graph_threads
    WHERE ns = :ns AND thread_id {among:thread_ids}
    ORDER BY thread_id {lock}
    """,
    row=str,
)
# Add threads with their first checkpoint, piece or write.
ADD_THREADS = BulkInsert(GRAPH_THREADS, CheckpointThreadRow, on_conflict="NOTHING")
# Store checkpoints; replace existing ones.
PUT_CHECKPOINTS = BulkInsert(
    GRAPH_CHECKPOINTS,
    CheckpointRow,
    on_conflict="UPDATE SET parent_id = excluded.parent_id, run_id = excluded.run_id,"
    " versions = excluded.versions, metadata = excluded.metadata, form = excluded.form, body = excluded.body,"
    " earlier = excluded.earlier, states = excluded.states",
)
# Store versions of channels; replace existing ones.
PUT_PIECES = BulkInsert(
    GRAPH_PIECES,
    PieceRow,
    on_conflict="UPDATE SET log = excluded.log, ranges = excluded.ranges, form = excluded.form,"
    " body = excluded.body",
)
# Add items to the logs of lists.
ADD_ITEMS = BulkInsert(GRAPH_ITEMS, ListItemsRow)
# Store writes. Only writes with a negative number (errors, interrupts, resumes) replace earlier ones.
PUT_WRITES = BulkInsert(
    GRAPH_WRITES,
    WriteRow,
    on_conflict="UPDATE SET task_path = excluded.task_path, channel = excluded.channel, form = excluded.form,"
    " body = excluded.body WHERE excluded.idx < 0",
)
# Lists that new versions build on, and the ends of their logs.
FIND_BASES = statement(
    """
    SELECT p.thread_id, p.checkpoint_ns, p.piece, p.log, p.ranges,
      (SELECT i.position + i.count FROM graph_items AS i
        WHERE i.ns = p.ns AND i.thread_id = p.thread_id AND i.log = p.log
        ORDER BY i.position DESC LIMIT 1) AS stop
    FROM graph_pieces AS p
    WHERE p.ns = :ns AND p.thread_id {among:thread_ids} AND p.checkpoint_ns {among:namespaces}
      AND p.piece {among:pieces} AND p.log IS NOT NULL
    """,
    row=BaseRow,
)

# A thread, out of these, with packed checkpoints.
IS_PACKED = statement(
    """
    SELECT thread_id FROM graph_checkpoints
    WHERE ns = :ns AND thread_id {among:thread_ids} AND earlier IS NOT NULL
    LIMIT 1
    """,
    row=str,
)
# The checkpoints of threads that have packs.
PACKED = statement(
    """
    SELECT {columns}
    FROM graph_checkpoints
    WHERE ns = :ns AND thread_id {among:thread_ids} AND earlier IS NOT NULL
    ORDER BY thread_id, id
    """,
    row=PackedRow,
)
# Add unpacked checkpoints, unless they are stored.
ADD_CHECKPOINTS = BulkInsert(GRAPH_CHECKPOINTS, CheckpointRow, on_conflict="NOTHING")
# Add unpacked versions of channels, unless they are stored.
ADD_PIECES = BulkInsert(GRAPH_PIECES, PieceRow, on_conflict="NOTHING")
# Add unpacked writes, unless they are stored.
ADD_WRITES = BulkInsert(GRAPH_WRITES, WriteRow, on_conflict="NOTHING")
# Drop unpacked packs, except packs whose states are still packed.
CLEAR_PACKS = statement(
    """
    UPDATE graph_checkpoints SET earlier = NULL
    WHERE ns = :ns AND thread_id {among:thread_ids} AND earlier IS NOT NULL AND states IS NULL
    """
)
# Drop all packs of threads.
CLEAR_ALL_PACKS = statement(
    """
    UPDATE graph_checkpoints SET earlier = NULL, states = NULL
    WHERE ns = :ns AND thread_id {among:thread_ids} AND earlier IS NOT NULL
    """
)

# Checkpoints, out of these, that these runs stored.
STORED_BY = statement(
    """
    SELECT {columns}
    FROM graph_checkpoints
    WHERE ns = :ns AND thread_id {among:thread_ids} AND checkpoint_ns {among:namespaces} AND id {among:ids}
      AND run_id || '' {among:run_ids}
    """,
    row=StoredRow,
)

# --- reading ----------------------------------------------------------------------------------------------

FIELDS = {
    "thread_id": ListField("thread_id", "text"),
    "checkpoint_ns": ListField("checkpoint_ns", "text"),
    "checkpoint_id": ListField("id", "text"),
}
# Checkpoints before an id.
LIST_CHECKPOINTS = Listing("{columns}", "graph_checkpoints WHERE ns = :ns AND id < :before", CheckpointRow)
NEWEST_FIRST = SortOrder(
    (SortKey("id", "text", descending=True), SortKey("thread_id", "text"), SortKey("checkpoint_ns", "text"))
)
# Versions of channels.
READ_PIECES = statement(
    """
    SELECT {columns}
    FROM graph_pieces
    WHERE ns = :ns AND thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND piece {among:pieces}
    """,
    row=PieceRow,
)
# The versions of the channels of checkpoints, which name their pieces.
VERSIONS_OF = statement(
    """
    SELECT {columns}
    FROM graph_checkpoints
    WHERE ns = :ns AND thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND id {among:ids}
    """,
    row=CheckpointVersions,
)
# The items of a range of a log. The last row that begins at `start` or before may contain the first item.
READ_ITEMS = statement(
    """
    SELECT {columns}
    FROM graph_items
    WHERE ns = :ns AND thread_id = :thread_id AND log = :log AND position < :stop
      AND position >= coalesce((SELECT max(b.position) FROM graph_items AS b
        WHERE b.ns = :ns AND b.thread_id = :thread_id AND b.log = :log AND b.position <= :start), 0)
    ORDER BY position
    """,
    row=ListItemsRow,
)
# The writes after checkpoints, in the order in which they are applied.
READ_WRITES = statement(
    """
    SELECT {columns}
    FROM graph_writes
    WHERE ns = :ns AND thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id {among:ids}
    ORDER BY checkpoint_id, task_path, task_id, idx
    """,
    row=WriteRow,
)
# A checkpoint and its nearest ancestors.
ANCESTORS = statement(
    """
    WITH RECURSIVE line (id, parent_id, versions, depth) AS (
      SELECT c.id, c.parent_id, c.versions, 0
      FROM graph_checkpoints AS c
      WHERE c.ns = :ns AND c.thread_id = :thread_id AND c.checkpoint_ns = :checkpoint_ns AND c.id = :id
      UNION ALL
      SELECT c.id, c.parent_id, c.versions, l.depth + 1
      FROM line AS l
      CROSS JOIN graph_checkpoints AS c
      WHERE c.ns = :ns AND c.thread_id = :thread_id AND c.checkpoint_ns = :checkpoint_ns
        AND c.id = l.parent_id AND l.depth < :depth
    )
    SELECT {columns} FROM line ORDER BY depth
    """,
    row=AncestorRow,
)
# The newest checkpoint of a namespace of a thread.
LATEST_ID = statement(
    """
    SELECT id FROM graph_checkpoints
    WHERE ns = :ns AND thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns
    ORDER BY id DESC LIMIT 1
    """,
    row=str,
)

# --- removing ---------------------------------------------------------------------------------------------

# The checkpoints that runs stored.
OF_RUNS = statement(
    """
    SELECT {columns}
    FROM graph_checkpoints
    WHERE ns = :ns AND run_id {among:run_ids}
    ORDER BY {plain:thread_id}, checkpoint_ns, id
    """,
    row=CheckpointKey,
)
# The checkpoints of a thread, with the columns that decide which are needed.
OF_THREAD = statement(
    """
    SELECT {columns}
    FROM graph_checkpoints
    WHERE ns = :ns AND thread_id = :thread_id
    ORDER BY checkpoint_ns, id
    """,
    row=CheckpointBaseRow,
)
# The versions that the checkpoints of a thread name.
VERSIONS_OF_THREAD = statement(
    "SELECT {columns} FROM graph_checkpoints WHERE ns = :ns AND thread_id = :thread_id", row=VersionsRow
)
# The pieces of a thread, without their values.
PIECES_OF_THREAD = statement(
    "SELECT {columns} FROM graph_pieces WHERE ns = :ns AND thread_id = :thread_id", row=RangesRow
)
# The positions of all items of a thread.
ITEMS_OF_THREAD = statement(
    "SELECT {columns} FROM graph_items WHERE ns = :ns AND thread_id = :thread_id", row=SegmentRow
)
# The checkpoints of a thread that have writes.
PLACES_WRITTEN = statement(
    "SELECT DISTINCT {columns} FROM graph_writes WHERE ns = :ns AND thread_id = :thread_id", row=WrittenRow
)
# Drop checkpoints of a namespace of a thread.
DROP_CHECKPOINTS = statement(
    """
    DELETE FROM graph_checkpoints
    WHERE ns = :ns AND thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND id {among:ids}
    """
)
# Drop the writes after checkpoints.
DROP_WRITES = statement(
    """
    DELETE FROM graph_writes
    WHERE ns = :ns AND thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id {among:ids}
    """
)
# Drop pieces of a namespace of a thread.
DROP_PIECES = statement(
    """
    DELETE FROM graph_pieces
    WHERE ns = :ns AND thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND piece {among:pieces}
    """
)
# Drop items of a log.
DROP_ITEMS = statement(
    """
    DELETE FROM graph_items
    WHERE ns = :ns AND thread_id = :thread_id AND log = :log AND position {among:positions}
    """
)
# Drop all checkpoints of threads.
DROP_ALL_CHECKPOINTS = statement(
    "DELETE FROM graph_checkpoints WHERE ns = :ns AND thread_id {among:thread_ids}"
)
# Drop all pieces of threads.
DROP_ALL_PIECES = statement("DELETE FROM graph_pieces WHERE ns = :ns AND thread_id {among:thread_ids}")
# Drop all items of threads.
DROP_ALL_ITEMS = statement("DELETE FROM graph_items WHERE ns = :ns AND thread_id {among:thread_ids}")
# Drop all writes of threads.
DROP_ALL_WRITES = statement("DELETE FROM graph_writes WHERE ns = :ns AND thread_id {among:thread_ids}")
# Drop threads.
DROP_THREADS = statement("DELETE FROM graph_threads WHERE ns = :ns AND thread_id {among:thread_ids}")

# --- copying ----------------------------------------------------------------------------------------------

# Copy the checkpoints of a thread, without their runs, so that deleting a run does not change the copy.
COPY_CHECKPOINTS = statement(
    """
    INSERT INTO graph_checkpoints
      (ns, thread_id, checkpoint_ns, id, parent_id, run_id, versions, metadata, form, body)
    SELECT ns, :target, checkpoint_ns, id, parent_id, NULL, versions, metadata, form, body
    FROM graph_checkpoints WHERE ns = :ns AND thread_id = :source
    ON CONFLICT (ns, thread_id, checkpoint_ns, id) DO NOTHING
    """
)
# Copy the pieces of a thread.
COPY_PIECES = statement(
    """
    INSERT INTO graph_pieces (ns, thread_id, checkpoint_ns, piece, log, ranges, form, body)
    SELECT ns, :target, checkpoint_ns, piece, log, ranges, form, body
    FROM graph_pieces WHERE ns = :ns AND thread_id = :source
    ON CONFLICT (ns, thread_id, checkpoint_ns, piece) DO NOTHING
    """
)
# Copy the items of a thread.
COPY_ITEMS = statement(
    """
    INSERT INTO graph_items (ns, thread_id, log, position, count, form, body)
    SELECT ns, :target, log, position, count, form, body
    FROM graph_items WHERE ns = :ns AND thread_id = :source
    ON CONFLICT (ns, thread_id, log, position) DO NOTHING
    """
)
# Copy the writes of a thread.
COPY_WRITES = statement(
    """
    INSERT INTO graph_writes
      (ns, thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, form, body)
    SELECT ns, :target, checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, form, body
    FROM graph_writes WHERE ns = :ns AND thread_id = :source
    ON CONFLICT (ns, thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO NOTHING
    """
)

name_statements(globals())
