"""The SQL of the graphs room, written once for both engines."""

from __future__ import annotations

from perdure.graphs.tables import GRAPH_CHECKPOINTS, GRAPH_ITEMS, GRAPH_PIECES, GRAPH_THREADS, GRAPH_WRITES
from perdure.kernel.storage.dialect import BulkInsert, name_statements, statement
from perdure.kernel.storage.filters import Field, Listing

# --- keeping ----------------------------------------------------------------------------------------------

LOCK_THREADS = statement(
    """
    SELECT thread_id FROM graph_threads
    WHERE ns = :ns AND thread_id {among:thread_ids}
    ORDER BY thread_id {lock}
    """
)
ADD_THREADS = BulkInsert(GRAPH_THREADS, on_conflict="NOTHING")
PUT_CHECKPOINTS = BulkInsert(
    GRAPH_CHECKPOINTS,
    on_conflict="UPDATE SET parent_id = excluded.parent_id, run_id = excluded.run_id,"
    " versions = excluded.versions, metadata = excluded.metadata, form = excluded.form, body = excluded.body",
)
PUT_PIECES = BulkInsert(
    GRAPH_PIECES,
    on_conflict="UPDATE SET log = excluded.log, ranges = excluded.ranges, form = excluded.form,"
    " body = excluded.body",
)
ADD_ITEMS = BulkInsert(GRAPH_ITEMS)
# Only what LangGraph numbers below zero (errors, interrupts, resumes) is ever written again.
PUT_WRITES = BulkInsert(
    GRAPH_WRITES,
    on_conflict="UPDATE SET task_path = excluded.task_path, channel = excluded.channel, form = excluded.form,"
    " body = excluded.body WHERE excluded.idx < 0",
)
FIND_BASES = statement(
    """
    SELECT p.thread_id, p.checkpoint_ns, p.piece, p.log, p.ranges,
      (SELECT i.position + i.count FROM graph_items AS i
        WHERE i.ns = p.ns AND i.thread_id = p.thread_id AND i.log = p.log
        ORDER BY i.position DESC LIMIT 1) AS stop
    FROM graph_pieces AS p
    WHERE p.ns = :ns AND p.thread_id {among:thread_ids} AND p.checkpoint_ns {among:namespaces}
      AND p.piece {among:pieces} AND p.log IS NOT NULL
    """
)

# --- reading ----------------------------------------------------------------------------------------------

CHECKPOINT_VIEW = "thread_id, checkpoint_ns, id, parent_id, run_id, versions, metadata, form, body"
FIELDS = {
    "thread_id": Field("thread_id", "text"),
    "checkpoint_ns": Field("checkpoint_ns", "text"),
    "checkpoint_id": Field("id", "text"),
}
LIST_CHECKPOINTS = Listing(CHECKPOINT_VIEW, "graph_checkpoints WHERE ns = :ns AND id < :before")
NEWEST_FIRST = " ORDER BY id DESC, thread_id, checkpoint_ns"
READ_PIECES = statement(
    """
    SELECT piece, log, ranges, form, body
    FROM graph_pieces
    WHERE ns = :ns AND thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND piece {among:pieces}
    """
)
# The last segment that begins at `start` or before may hold it.
READ_ITEMS = statement(
    """
    SELECT position, count, form, body
    FROM graph_items
    WHERE ns = :ns AND thread_id = :thread_id AND log = :log AND position < :stop
      AND position >= coalesce((SELECT max(b.position) FROM graph_items AS b
        WHERE b.ns = :ns AND b.thread_id = :thread_id AND b.log = :log AND b.position <= :start), 0)
    ORDER BY position
    """
)
WRITE_VIEW = "checkpoint_id, task_id, task_path, idx, channel, form, body"
READ_WRITES = statement(
    "SELECT "
    + WRITE_VIEW
    + """
    FROM graph_writes
    WHERE ns = :ns AND thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id {among:ids}
    ORDER BY checkpoint_id, task_path, task_id, idx
    """
)
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
    SELECT id, parent_id, versions FROM line ORDER BY depth
    """
)
LATEST_ID = statement(
    """
    SELECT id FROM graph_checkpoints
    WHERE ns = :ns AND thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns
    ORDER BY id DESC LIMIT 1
    """
)

# --- removing ---------------------------------------------------------------------------------------------

OF_RUNS = statement(
    """
    SELECT thread_id, checkpoint_ns, id
    FROM graph_checkpoints
    WHERE ns = :ns AND run_id {among:run_ids}
    ORDER BY {plain:thread_id}, checkpoint_ns, id
    """
)
OF_THREAD = statement(
    """
    SELECT checkpoint_ns, id, parent_id, versions, metadata
    FROM graph_checkpoints
    WHERE ns = :ns AND thread_id = :thread_id
    ORDER BY checkpoint_ns, id
    """
)
VERSIONS_OF_THREAD = statement(
    "SELECT checkpoint_ns, versions FROM graph_checkpoints WHERE ns = :ns AND thread_id = :thread_id"
)
PIECES_OF_THREAD = statement(
    "SELECT checkpoint_ns, piece, log, ranges FROM graph_pieces WHERE ns = :ns AND thread_id = :thread_id"
)
ITEMS_OF_THREAD = statement(
    "SELECT log, position, count FROM graph_items WHERE ns = :ns AND thread_id = :thread_id"
)
PLACES_WRITTEN = statement(
    "SELECT DISTINCT checkpoint_ns, checkpoint_id FROM graph_writes WHERE ns = :ns AND thread_id = :thread_id"
)
DROP_CHECKPOINTS = statement(
    """
    DELETE FROM graph_checkpoints
    WHERE ns = :ns AND thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND id {among:ids}
    """
)
DROP_WRITES = statement(
    """
    DELETE FROM graph_writes
    WHERE ns = :ns AND thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id {among:ids}
    """
)
DROP_PIECES = statement(
    """
    DELETE FROM graph_pieces
    WHERE ns = :ns AND thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND piece {among:pieces}
    """
)
DROP_ITEMS = statement(
    """
    DELETE FROM graph_items
    WHERE ns = :ns AND thread_id = :thread_id AND log = :log AND position {among:positions}
    """
)
DROP_THREADS = (
    statement("DELETE FROM graph_checkpoints WHERE ns = :ns AND thread_id {among:thread_ids}"),
    statement("DELETE FROM graph_pieces WHERE ns = :ns AND thread_id {among:thread_ids}"),
    statement("DELETE FROM graph_items WHERE ns = :ns AND thread_id {among:thread_ids}"),
    statement("DELETE FROM graph_writes WHERE ns = :ns AND thread_id {among:thread_ids}"),
    statement("DELETE FROM graph_threads WHERE ns = :ns AND thread_id {among:thread_ids}"),
)

# --- copying ----------------------------------------------------------------------------------------------

# The run that made a checkpoint made it in its own thread: removing that run leaves the copy alone.
COPY = (
    statement(
        """
        INSERT INTO graph_checkpoints
          (ns, thread_id, checkpoint_ns, id, parent_id, run_id, versions, metadata, form, body)
        SELECT ns, :target, checkpoint_ns, id, parent_id, NULL, versions, metadata, form, body
        FROM graph_checkpoints WHERE ns = :ns AND thread_id = :source
        ON CONFLICT (ns, thread_id, checkpoint_ns, id) DO NOTHING
        """
    ),
    statement(
        """
        INSERT INTO graph_pieces (ns, thread_id, checkpoint_ns, piece, log, ranges, form, body)
        SELECT ns, :target, checkpoint_ns, piece, log, ranges, form, body
        FROM graph_pieces WHERE ns = :ns AND thread_id = :source
        ON CONFLICT (ns, thread_id, checkpoint_ns, piece) DO NOTHING
        """
    ),
    statement(
        """
        INSERT INTO graph_items (ns, thread_id, log, position, count, form, body)
        SELECT ns, :target, log, position, count, form, body
        FROM graph_items WHERE ns = :ns AND thread_id = :source
        ON CONFLICT (ns, thread_id, log, position) DO NOTHING
        """
    ),
    statement(
        """
        INSERT INTO graph_writes
          (ns, thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, form, body)
        SELECT ns, :target, checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, form, body
        FROM graph_writes WHERE ns = :ns AND thread_id = :source
        ON CONFLICT (ns, thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO NOTHING
        """
    ),
)

name_statements(globals())
