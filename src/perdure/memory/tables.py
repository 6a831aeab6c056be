"""The tables of memory. Times are milliseconds since the epoch, as clients give them."""

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
"""Each event once, by its ULID. Its text is in `memory_texts`."""

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
"""What can be searched: the text of each event, node and grip. It is indexed once it has a `place`, which
holds the namespace in its high bits, so that a search reads one range of the index."""

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
"""For each namespace the last place that was given, how many documents have one, the place up to which they
have vectors, and when the last of these was stored."""

VECTORS = Table(
    "memory_vectors",
    (integer("ns"), integer("place"), blob("vector")),
    key=("ns", "place"),
)
"""What a document is compared by: a vector of length 1, as 32-bit floats, by its place."""

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
"""The table of contents as it is now: each node with its status and its latest complete `version`, 0 before
the first. It is `stale` while it may be due to be built. A segment names its first and last event; a day is
dirty where its segments have to be cut again."""

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
"""What nodes said, version by version: bullets with their grips, and keywords, as JSON."""

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
"""What ties lines of segments to events."""

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
"""How far each roll-up job came: written with each node that it built."""

FEEDS = Table(
    "memory_feeds",
    (integer("ns"), text("source"), integer("position"), integer("read_at")),
    key=("ns", "source"),
)
"""How far each log of a session has been read into memory, and when."""

TABLES = (EVENTS, TEXTS, COUNTERS, VECTORS, NODES, NODE_VERSIONS, GRIPS, CHECKPOINTS, FEEDS)
