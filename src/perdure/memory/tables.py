"""Tables of memory. Times are epoch milliseconds, as in agent-memory."""

from perdure.kernel.storage.schema import FullText, Index, Table, blob, integer, text

EVENTS = Table(
    "memory_events",
    (
        integer("ns"),
        text("id"),
        text("session_id"),
        integer("timestamp_ms"),
        integer("type"),
        integer("role"),
        text("agent", null=True),
        integer("tokens"),
        integer("received_at"),
        text("metadata"),
    ),
    key=("ns", "id"),
    indexes=(
        Index("memory_events_time", ("ns", "timestamp_ms", "id")),
        Index("memory_events_session", ("ns", "session_id", "timestamp_ms", "id")),
    ),
)
"""Events by ULID. Their texts are in `memory_texts`."""

TEXTS = Table(
    "memory_texts",
    (
        integer("ns"),
        text("id"),
        text("kind"),
        integer("timestamp_ms"),
        text("agent", null=True),
        integer("place", null=True),
        text("tags"),
        text("body"),
    ),
    key=("ns", "id"),
    indexes=(
        Index("memory_texts_place", ("place",), "place IS NOT NULL", unique=True),
        Index("memory_texts_pending", ("ns", "id"), "place IS NULL"),
    ),
    full_text=FullText("memory_words", "body"),
)
"""Searchable documents: the text of each event, node and grip. A document with a `place` is indexed. The
place has the namespace in its high bits, so that a search reads one range of the index."""

COUNTERS = Table(
    "memory_counters",
    (
        integer("ns"),
        integer("placed"),
        integer("documents"),
        integer("embedded"),
        integer("embedded_at", null=True),
    ),
    key=("ns",),
)
"""Counters of a namespace: the last place, the number of indexed documents, the place up to which documents
have vectors, and the time of the last stored vector."""

VECTORS = Table(
    "memory_vectors",
    (integer("ns"), integer("place"), blob("vector")),
    key=("ns", "place"),
)
"""Vectors of documents by place: length 1, 32-bit floats."""

NODES = Table(
    "memory_nodes",
    (
        integer("ns"),
        text("id"),
        integer("level"),
        text("parent_id", null=True),
        integer("start_ms"),
        integer("end_ms"),
        text("status"),
        integer("version"),
        integer("stale"),
        integer("changed_at"),
        integer("retry_at", null=True),
        text("builder", null=True),
        integer("building_until", null=True),
        integer("tries"),
        text("built_from", null=True),
        text("error", null=True),
        text("first_id", null=True),
        text("last_id", null=True),
        integer("events"),
        integer("tokens"),
        integer("dirty_ms", null=True),
        text("dirty_id", null=True),
        integer("dirty_end_ms", null=True),
    ),
    key=("ns", "id"),
    indexes=(
        Index("memory_nodes_children", ("ns", "parent_id", "start_ms", "id"), "parent_id IS NOT NULL"),
        Index("memory_nodes_level", ("ns", "level", "start_ms", "id")),
        Index("memory_nodes_stale", ("level", "end_ms", "ns", "id"), "stale = 1"),
    ),
)
"""Current table of contents: nodes with status and latest complete `version`, 0 before the first. A node is
`stale` while it may have to be built. A segment names its first and last event. The dirty columns of a day
name the range of time to cut into segments again."""

NODE_VERSIONS = Table(
    "memory_node_versions",
    (
        integer("ns"),
        text("node_id"),
        integer("version"),
        integer("created_at"),
        text("title"),
        text("body"),
    ),
    key=("ns", "node_id", "version"),
)
"""Texts of nodes by version: bullets with their grips, and keywords, as JSON."""

GRIPS = Table(
    "memory_grips",
    (
        integer("ns"),
        text("id"),
        text("node_id"),
        integer("timestamp_ms"),
        text("session_id"),
        text("source"),
        text("event_ids"),
        text("excerpt"),
    ),
    key=("ns", "id"),
    indexes=(Index("memory_grips_node", ("ns", "node_id", "id")),),
)
"""Links from lines of segments to events."""

CHECKPOINTS = Table(
    "memory_checkpoints",
    (
        integer("ns"),
        text("job"),
        integer("level"),
        text("node_id"),
        integer("last_processed_ms"),
        integer("processed"),
        integer("created_at"),
    ),
    key=("ns", "job"),
)
"""Progress of each roll-up job, written with each node that it builds."""

FEEDS = Table(
    "memory_feeds",
    (integer("ns"), text("source"), integer("position"), integer("read_at")),
    key=("ns", "source"),
)
"""Read position of each session log, with the time of the last read."""

TABLES = (EVENTS, TEXTS, COUNTERS, VECTORS, NODES, NODE_VERSIONS, GRIPS, CHECKPOINTS, FEEDS)
