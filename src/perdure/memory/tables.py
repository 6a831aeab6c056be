"""The tables of memory. Times are milliseconds since the epoch, as clients give them."""

from perdure.kernel.storage.schema import FullText, Index, Table, integer, text

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
    ),
    key=("ns",),
)
"""For each namespace the last place that was given, how many documents have one, and the place up to which
they have vectors."""

TABLES = (EVENTS, TEXTS, COUNTERS)
