"""The SQL of memory, written once for both engines."""

from __future__ import annotations

from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement
from perdure.memory.model import (
    CitedRow,
    DocumentCitation,
    DocumentVectorRow,
    FeedRow,
    HitRow,
    IndexedDocumentRow,
    MemoryCounterRow,
    MemoryCountRow,
    MemoryEventRow,
    NewDocumentRow,
    NewEventRow,
    TextRow,
    VectorDocument,
)
from perdure.memory.nodes import (
    BuildProgressRow,
    ChildId,
    ChildNodeRow,
    ChildVersion,
    DueNodeRow,
    GripRow,
    NodeVersionRow,
    ShownNode,
    TocNodeRow,
)
from perdure.memory.segments import EventSize
from perdure.memory.tables import (
    CHECKPOINTS,
    COUNTERS,
    EVENTS,
    FEEDS,
    GRIPS,
    NODE_VERSIONS,
    NODES,
    TEXTS,
    VECTORS,
)

# --- events -----------------------------------------------------------------------------------------------

# Insert events; an existing event stays as it is.
ADD_EVENTS = BulkInsert(EVENTS, NewEventRow, on_conflict="NOTHING")
# Insert or replace documents; a replaced document leaves the index.
ADD_TEXTS = BulkInsert(
    TEXTS,
    TextRow,
    on_conflict="UPDATE SET timestamp_ms = excluded.timestamp_ms, agent = excluded.agent,"
    " place = excluded.place, tags = excluded.tags, body = excluded.body",
)
_EVENT = "e.id, e.session_id, e.timestamp_ms, e.type, e.role, e.agent, e.tokens, e.metadata, t.body"
_WITH_TEXT = " FROM memory_events AS e JOIN memory_texts AS t ON t.ns = e.ns AND t.id = e.id"
_BETWEEN = """
    WHERE e.ns = :ns AND e.timestamp_ms >= :low AND e.timestamp_ms <= :high
      AND (e.timestamp_ms, e.id) > (:after_ms, :after_id)
    ORDER BY e.timestamp_ms, e.id LIMIT :limit
    """
_OF_SESSION = """
    WHERE e.ns = :ns AND e.session_id = :session_id AND e.timestamp_ms >= :low AND e.timestamp_ms <= :high
      AND ({plain:e.timestamp_ms}, e.id) > (:after_ms, :after_id)
    ORDER BY e.timestamp_ms, e.id LIMIT :limit
    """
_BYTES = "SELECT octet_length(t.body)"
# The events between two times after a position, in their order.
EVENTS_BETWEEN = statement("SELECT " + _EVENT + _WITH_TEXT + _BETWEEN, row=MemoryEventRow)
# The sizes in bytes of the events' texts.
BYTES_BETWEEN = statement(_BYTES + _WITH_TEXT + _BETWEEN, row=int)
# The events of one session between two times after a position.
SESSION_BETWEEN = statement("SELECT " + _EVENT + _WITH_TEXT + _OF_SESSION, row=MemoryEventRow)
# The sizes in bytes of the texts of one session's events.
SESSION_BYTES_BETWEEN = statement(_BYTES + _WITH_TEXT + _OF_SESSION, row=int)
# Events by their ids.
GET_EVENTS = statement(
    "SELECT " + _EVENT + _WITH_TEXT + " WHERE e.ns = :ns AND e.id {among:ids}", row=MemoryEventRow
)
# Sessions and times of events.
CITED = statement(
    """
    SELECT e.id, e.session_id, e.timestamp_ms FROM {each:ids} CROSS JOIN memory_events AS e
    WHERE e.ns = :ns AND e.id = ids.value
    """,
    row=CitedRow,
)

# --- the index --------------------------------------------------------------------------------------------

# A batch of documents that are not indexed yet.
PENDING = statement(
    "SELECT id FROM memory_texts WHERE ns = :ns AND place IS NULL ORDER BY id LIMIT :limit", row=str
)
# Set the places of documents, which indexes them.
PLACE = BulkUpdate(TEXTS, NewDocumentRow, sets=("place",), keys=("ns", "id"), guards=("place",))
# The places of the documents with these ids that are indexed.
PLACED = statement(
    "SELECT place FROM memory_texts WHERE ns = :ns AND id {among:ids} AND place IS NOT NULL", row=int
)
# Delete documents.
DROP_TEXTS = statement("DELETE FROM memory_texts WHERE ns = :ns AND id {among:ids}")
# Delete the vectors of documents.
DROP_VECTORS = statement("DELETE FROM memory_vectors WHERE ns = :ns AND place {among:places}")
# The counters of a namespace, locked.
LOCK_COUNTER = statement("SELECT {columns} FROM memory_counters WHERE ns = :ns {lock}", row=MemoryCounterRow)
# The counters of a namespace.
GET_COUNTER = statement("SELECT {columns} FROM memory_counters WHERE ns = :ns", row=MemoryCounterRow)
# Insert the counters of a namespace.
ADD_COUNTER = BulkInsert(COUNTERS, MemoryCounterRow, on_conflict="NOTHING")
# Write back the counters of a namespace.
COUNT = BulkUpdate(
    COUNTERS, MemoryCounterRow, sets=("placed", "documents", "embedded", "embedded_at"), keys=("ns",)
)

# --- search -----------------------------------------------------------------------------------------------

_HIT = "t.id, t.kind, t.timestamp_ms, t.agent, t.place, substr(t.body, 1, :characters) AS body, f.score"
# The documents that match a query best.
SEARCH = statement(
    "SELECT "
    + _HIT
    + """
    FROM (SELECT place, score FROM {ranked:memory_texts,memory_words} AS r
          ORDER BY score DESC, place DESC LIMIT :limit) AS f
    JOIN memory_texts AS t ON t.place = f.place
    WHERE {plain:t.ns} = :ns ORDER BY f.score DESC, f.place DESC
    """,
    row=HitRow,
)
# The documents between two times that match a query best.
SEARCH_BETWEEN = statement(
    "SELECT "
    + _HIT
    + """
    FROM {ranked:memory_texts,memory_words} AS f JOIN memory_texts AS t ON t.place = f.place
    WHERE {plain:t.ns} = :ns AND t.timestamp_ms >= :since AND t.timestamp_ms <= :until
    ORDER BY f.score DESC, f.place DESC LIMIT :limit
    """,
    row=HitRow,
)

# --- vectors ----------------------------------------------------------------------------------------------

# Insert vectors; an existing vector stays.
ADD_VECTORS = BulkInsert(VECTORS, DocumentVectorRow, on_conflict="NOTHING")
# The next vectors of documents that exist.
VECTORS_AFTER = statement(
    """
    SELECT v.place, v.vector, t.tags, t.timestamp_ms FROM memory_vectors AS v
    JOIN memory_texts AS t ON t.place = v.place
    WHERE v.ns = :ns AND v.place > :after AND t.place IS NOT NULL ORDER BY v.place LIMIT :limit
    """,
    row=VectorDocument,
)
# One vector of a namespace, to find out the size of its vectors.
ONE_VECTOR = statement("SELECT {columns} FROM memory_vectors WHERE ns = :ns LIMIT 1", row=DocumentVectorRow)
_DOCUMENT = (
    "SELECT id, kind, timestamp_ms, agent, place, substr(body, 1, :characters) AS body, 0.0 AS score"
    " FROM memory_texts"
)
# The next documents after a place.
DOCUMENTS_AFTER = statement(
    _DOCUMENT
    + " WHERE {plain:ns} = :ns AND place IS NOT NULL AND place > :after AND place <= :high"
    + " ORDER BY place LIMIT :limit",
    row=HitRow,
)
# The documents at places.
DOCUMENTS_AT = statement(
    _DOCUMENT + " WHERE {plain:ns} = :ns AND place IS NOT NULL AND place {among:places}", row=HitRow
)

# --- the table of contents --------------------------------------------------------------------------------

# Insert nodes; an existing node stays as it is.
ADD_NODES = BulkInsert(NODES, TocNodeRow, on_conflict="NOTHING")
# Write back nodes.
SAVE_NODES = BulkUpdate(
    NODES,
    TocNodeRow,
    sets=(
        "start_ms",
        "end_ms",
        "status",
        "version",
        "stale",
        "changed_at",
        "retry_at",
        "builder",
        "building_until",
        "tries",
        "built_from",
        "error",
        "first_id",
        "last_id",
        "events",
        "tokens",
        "dirty_ms",
        "dirty_id",
        "dirty_end_ms",
    ),
    keys=("ns", "id"),
)
# Lock nodes, in the order of their ids.
LOCK_NODES = statement(
    "SELECT {columns} FROM memory_nodes WHERE ns = :ns AND id {among:ids} ORDER BY id {lock}", row=TocNodeRow
)
# Nodes by their ids.
GET_NODES = statement("SELECT {columns} FROM memory_nodes WHERE ns = :ns AND id {among:ids}", row=TocNodeRow)
# Mark a node for its next roll-up.
MARK_STALE = statement(
    "UPDATE memory_nodes SET stale = 1, changed_at = :now WHERE ns = :ns AND id = :id AND stale = 0"
)
# The last segment of a day that begins before a time.
SEGMENT_BEFORE = statement(
    """
    SELECT {columns} FROM memory_nodes
    WHERE ns = :ns AND parent_id = :day AND start_ms < :ms ORDER BY start_ms DESC, id DESC LIMIT 1
    """,
    row=TocNodeRow,
)
# The segments of a day from a time on, in their order.
SEGMENTS_FROM = statement(
    """
    SELECT {columns} FROM memory_nodes
    WHERE ns = :ns AND parent_id = :day AND start_ms >= :ms ORDER BY start_ms, id
    """,
    row=TocNodeRow,
)
# The sizes of events between two times, from a position on.
SIZES = statement(
    """
    SELECT {columns} FROM memory_events
    WHERE ns = :ns AND timestamp_ms >= :low AND timestamp_ms <= :high
      AND (timestamp_ms, id) >= (:from_ms, :from_id)
    ORDER BY timestamp_ms, id LIMIT :limit
    """,
    row=EventSize,
)
# The sizes of the events before a position, last first.
SIZES_BEFORE = statement(
    """
    SELECT {columns} FROM memory_events
    WHERE ns = :ns AND timestamp_ms >= :low AND timestamp_ms <= :from_ms
      AND (timestamp_ms, id) < (:from_ms, :from_id)
    ORDER BY timestamp_ms DESC, id DESC LIMIT :limit
    """,
    row=EventSize,
)
# Delete nodes.
DROP_NODES = statement("DELETE FROM memory_nodes WHERE ns = :ns AND id {among:ids}")
# Delete the versions of nodes.
DROP_VERSIONS = statement("DELETE FROM memory_node_versions WHERE ns = :ns AND node_id {among:ids}")
# The grips of nodes.
GRIPS_OF = statement("SELECT id FROM memory_grips WHERE ns = :ns AND node_id {among:ids}", row=str)
# Delete the grips of nodes.
DROP_GRIPS = statement("DELETE FROM memory_grips WHERE ns = :ns AND node_id {among:ids}")

# --- building ---------------------------------------------------------------------------------------------

_DUE = """
    stale = 1 AND level = :level AND end_ms <= :ended AND changed_at <= :before
      AND (retry_at IS NULL OR retry_at <= :now) AND (end_ms, ns, id) > (:after_ms, :after_ns, :after_id)
    ORDER BY end_ms, ns, id LIMIT :limit
    """
# A batch of nodes of a level that may be due, in all namespaces, in the order of their ends.
DUE = statement("SELECT {columns} FROM memory_nodes WHERE " + _DUE, row=DueNodeRow)
# A batch of nodes of a level that may be due, in one namespace.
DUE_IN = statement("SELECT {columns} FROM memory_nodes WHERE ns = :ns AND " + _DUE, row=DueNodeRow)
# When the next stale node of a level can be built, in any namespace: after its rest, at the retry of a failed
# build, or when the lease of its builder ends.
FIRST_DUE = statement(
    """
    SELECT min(CASE WHEN builder IS NOT NULL THEN building_until WHEN retry_at IS NULL THEN changed_at + :rest
      ELSE retry_at END)
    FROM memory_nodes WHERE stale = 1 AND level = :level
    """,
    row=int,
)
# The next children of a node that have a complete version, with their texts.
CHILD_TEXTS = statement(
    """
    SELECT n.id, n.start_ms, n.version, v.title, v.body FROM memory_nodes AS n
    JOIN memory_node_versions AS v ON v.ns = n.ns AND v.node_id = n.id AND v.version = n.version
    WHERE n.ns = :ns AND n.parent_id = :parent AND n.version > 0
      AND (n.start_ms, n.id) > (:after_ms, :after_id)
    ORDER BY n.start_ms, n.id LIMIT :limit
    """,
    row=ChildNodeRow,
)
# The children of a node that have a complete version.
CHILD_VERSIONS = statement(
    "SELECT id, version FROM memory_nodes WHERE ns = :ns AND parent_id = :parent AND version > 0",
    row=ChildVersion,
)
# The text of a version.
GET_VERSION = statement(
    "SELECT {columns} FROM memory_node_versions WHERE ns = :ns AND node_id = :id AND version = :version",
    row=NodeVersionRow,
)
# Insert versions.
ADD_VERSIONS = BulkInsert(NODE_VERSIONS, NodeVersionRow)
# Insert grips; a grip of an earlier version stays.
ADD_GRIPS = BulkInsert(GRIPS, GripRow, on_conflict="NOTHING")
# Write the progress of a job.
SET_CHECKPOINT = BulkInsert(
    CHECKPOINTS,
    BuildProgressRow,
    on_conflict="UPDATE SET level = excluded.level, node_id = excluded.node_id,"
    " last_processed_ms = excluded.last_processed_ms, created_at = excluded.created_at,"
    " processed = memory_checkpoints.processed + excluded.processed",
)
# The progress of the jobs of a namespace.
GET_CHECKPOINTS = statement(
    "SELECT {columns} FROM memory_checkpoints WHERE ns = :ns ORDER BY job", row=BuildProgressRow
)
# The events of a segment in their order, with the beginning of each text.
SEGMENT_EVENTS = statement(
    """
    SELECT e.id, e.session_id, e.timestamp_ms, e.type, e.role, e.agent, e.tokens, e.metadata,
      substr(t.body, 1, :characters) AS body
    FROM memory_events AS e JOIN memory_texts AS t ON t.ns = e.ns AND t.id = e.id
    WHERE e.ns = :ns AND e.timestamp_ms >= :low AND e.timestamp_ms <= :high
      AND (e.timestamp_ms, e.id) >= (:low, :low_id) AND (e.timestamp_ms, e.id) <= (:high, :high_id)
    ORDER BY e.timestamp_ms, e.id LIMIT :limit
    """,
    row=MemoryEventRow,
)

# --- reading ----------------------------------------------------------------------------------------------

_SHOWN = (
    "SELECT n.id, n.level, n.parent_id, n.start_ms, n.end_ms, n.status, n.version, n.error, v.title, v.body"
    " FROM memory_nodes AS n LEFT JOIN memory_node_versions AS v"
    " ON v.ns = n.ns AND v.node_id = n.id AND v.version = n.version WHERE n.ns = :ns AND "
)
# Nodes with their texts, by their ids.
SHOW_NODES = statement(_SHOWN + "n.id {among:ids}", row=ShownNode)
# The next children of a node, in order of time.
SHOW_CHILDREN = statement(
    _SHOWN
    + "n.parent_id = :parent AND (n.start_ms, n.id) > (:after_ms, :after_id)"
    + " ORDER BY n.start_ms, n.id LIMIT :limit",
    row=ShownNode,
)
# The nodes of a level, latest first.
SHOW_LEVEL = statement(
    _SHOWN + "n.level = :level AND n.start_ms <= :before ORDER BY n.start_ms DESC, n.id DESC LIMIT :limit",
    row=ShownNode,
)
# The children of nodes, in order of time.
CHILD_IDS = statement(
    """
    SELECT {columns} FROM memory_nodes WHERE ns = :ns AND parent_id {among:parents}
    ORDER BY parent_id, start_ms, id LIMIT :limit
    """,
    row=ChildId,
)
# Grips by their ids.
GET_GRIPS = statement("SELECT {columns} FROM memory_grips WHERE ns = :ns AND id {among:ids}", row=GripRow)
_BEFORE = """
    WHERE e.ns = :ns AND e.session_id = :session_id AND e.timestamp_ms >= :low AND e.timestamp_ms <= :at_ms
      AND (e.timestamp_ms, e.id) < (:at_ms, :at_id)
    ORDER BY e.timestamp_ms DESC, e.id DESC LIMIT :limit
    """
# The events of a session before a position, last first.
SESSION_BEFORE = statement("SELECT " + _EVENT + _WITH_TEXT + _BEFORE, row=MemoryEventRow)
# The sizes in bytes of the texts of a session's events before a position.
SESSION_BYTES_BEFORE = statement(_BYTES + _WITH_TEXT + _BEFORE, row=int)

_CITED = " AS document, e.id, e.session_id, e.timestamp_ms FROM "
_GRIP_EVENTS = """
    CROSS JOIN {elements:g.event_ids,numbers}
    JOIN memory_events AS e ON e.ns = g.ns AND e.id = numbers.value
    """
# The first events of grips, in the order of each grip.
CITED_BY_GRIPS = statement(
    "SELECT g.id"
    + _CITED
    + "memory_grips AS g"
    + _GRIP_EVENTS
    + " WHERE g.ns = :ns AND g.id {among:ids} AND numbers.key <= :most ORDER BY g.id, numbers.key",
    row=DocumentCitation,
)
# The first events of the grips of nodes, in the order of the lines of each node.
CITED_BY_NODES = statement(
    "SELECT n.id"
    + _CITED
    + """
    memory_nodes AS n
    JOIN memory_node_versions AS v ON v.ns = n.ns AND v.node_id = n.id AND v.version = n.version
    CROSS JOIN {elements:v.body,bullets,lines} CROSS JOIN {elements:lines.value,grip_ids,grips}
    JOIN memory_grips AS g ON g.ns = n.ns AND g.id = grips.value
    """
    + _GRIP_EVENTS
    + """
    WHERE n.ns = :ns AND n.id {among:ids} AND numbers.key <= :most
    ORDER BY n.id, lines.key, grips.key, numbers.key
    """,
    row=DocumentCitation,
)

# --- maintenance ------------------------------------------------------------------------------------------

# A batch of built nodes that are not yet marked to be built again.
BUILT = statement(
    """
    SELECT id FROM memory_nodes
    WHERE ns = :ns AND built_from IS NOT NULL AND substr(built_from, 1, 1) <> :again LIMIT :limit
    """,
    row=str,
)
# The time of the next event from a time on.
NEXT_EVENT = statement(
    "SELECT min(timestamp_ms) FROM memory_events WHERE ns = :ns AND timestamp_ms >= :ms", row=int
)
# The start of the next day in the table of contents from a time on.
NEXT_DAY = statement(
    "SELECT min(start_ms) FROM memory_nodes WHERE ns = :ns AND level = :level AND start_ms >= :ms", row=int
)
# Number of events between two times.
COUNT_BETWEEN = statement(
    "SELECT count(*) FROM memory_events WHERE ns = :ns AND timestamp_ms >= :low AND timestamp_ms <= :high",
    row=int,
)
# A batch of events between two times, locked.
LOCK_BETWEEN = statement(
    """
    SELECT id FROM memory_events WHERE ns = :ns AND timestamp_ms >= :low AND timestamp_ms <= :high
    ORDER BY timestamp_ms, id LIMIT :limit {lock}
    """,
    row=str,
)
# Delete events.
DROP_EVENTS = statement("DELETE FROM memory_events WHERE ns = :ns AND id {among:ids}")
# Delete the read positions of logs.
DROP_FEEDS = statement("DELETE FROM memory_feeds WHERE ns = :ns AND source {among:sources}")
# A batch of documents up to a place, in the order of their places.
PLACED_UNTIL = statement(
    """
    SELECT id, place FROM memory_texts
    WHERE {plain:ns} = :ns AND place IS NOT NULL AND place >= :low AND place <= :last
    ORDER BY place LIMIT :limit
    """,
    row=IndexedDocumentRow,
)
# Change the places of documents.
MOVE_PLACES = BulkUpdate(TEXTS, NewDocumentRow, sets=("place",), keys=("ns", "id"))

# --- sources of events ------------------------------------------------------------------------------------

# The read positions of logs.
GET_FEEDS = statement(
    "SELECT {columns} FROM memory_feeds WHERE ns = :ns AND source {among:sources}", row=FeedRow
)
# Write the read positions of logs.
SET_FEEDS = BulkInsert(
    FEEDS, FeedRow, on_conflict="UPDATE SET position = excluded.position, read_at = excluded.read_at"
)

# --- statistics -------------------------------------------------------------------------------------------

# Size of the memory of a namespace.
COUNTS = statement(
    """
    SELECT
      (SELECT count(*) FROM memory_events WHERE ns = :ns) AS events,
      (SELECT count(*) FROM memory_nodes WHERE ns = :ns) AS nodes,
      (SELECT count(*) FROM memory_grips WHERE ns = :ns) AS grips,
      (SELECT count(*) FROM outbox
       WHERE ns = :ns AND status = :open AND consumer {among:consumers}) AS outbox,
      (SELECT count(*) FROM memory_vectors WHERE ns = :ns) AS vectors,
      (SELECT count(*) FROM memory_nodes WHERE ns = :ns AND stale = 1) AS stale,
      (SELECT count(*) FROM memory_nodes WHERE ns = :ns AND status = :failed) AS failed,
      {database} AS path,
      {database_bytes} AS disk_bytes
    """,
    row=MemoryCountRow,
)

name_statements(globals())
