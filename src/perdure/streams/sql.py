"""SQL of streams, written once for both engines."""

from __future__ import annotations

from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement
from perdure.streams.model import (
    EndedStream,
    EventBodyRow,
    Head,
    LockedHead,
    ReferenceRow,
    StoredEvents,
    StreamEventRow,
    StreamLinkRow,
)
from perdure.streams.tables import STREAM_EVENTS, STREAM_LINKS, STREAMS

# --- heads ------------------------------------------------------------------------------------------------

# Head of one stream.
GET_HEAD = statement("SELECT {columns} FROM streams WHERE ns = :ns AND stream = :stream", row=Head)
# Heads of some streams.
GET_HEADS = statement("SELECT {columns} FROM streams WHERE ns = :ns AND stream {among:streams}", row=Head)
# Lock the heads of some streams, in the order of their names.
LOCK_HEADS = statement(
    "SELECT {columns} FROM streams WHERE ns = :ns AND stream {among:streams} ORDER BY stream {lock}",
    row=LockedHead,
)
# Add the heads of new streams.
ADD_HEADS = BulkInsert(STREAMS, LockedHead)
# Write back the heads of streams that have grown or ended.
MOVE_HEADS = BulkUpdate(
    STREAMS, LockedHead, sets=("last_seq", "last_ms", "end_seq", "end_time"), keys=("ns", "stream")
)

# --- events -----------------------------------------------------------------------------------------------

# Add events to streams.
ADD_EVENTS = BulkInsert(STREAM_EVENTS, StreamEventRow)
# Add the places of events to joined streams.
ADD_LINKS = BulkInsert(STREAM_LINKS, StreamLinkRow)

# A page ends with the row that makes its data larger than `size`.
_PAGE = "SELECT {columns} FROM (SELECT {columns}, sum(length) OVER (ORDER BY seq) - length AS ahead"
_UP_TO_SIZE = " AS page) AS sized WHERE ahead < :size ORDER BY seq"

# The row that begins at or before `after` may contain later events.
_AFTER = """
    FROM stream_events AS e
    WHERE e.ns = :ns AND e.stream = :stream
      AND e.seq >= coalesce((SELECT max(b.seq) FROM stream_events AS b
        WHERE b.ns = :ns AND b.stream = :stream AND b.seq <= :after), 0)
      AND e.seq + coalesce(e.count, 1) - 1 > :after
    """

# A page of the events of a stream, whose numbers have no gaps.
READ_EVENTS = statement(
    _PAGE
    + """
    FROM (SELECT e.seq, e.ms, e.stream AS source, e.attempt, e.event, e.body, e.count,
      coalesce(e.size, octet_length(e.body)) AS length
    """
    + _AFTER
    + " AND e.seq <= :after + :limit)"
    + _UP_TO_SIZE,
    row=StoredEvents,
)
# All stored events of a stream after a number.
SENT_AFTER = statement(
    "SELECT e.seq, e.ms, e.stream AS source, e.attempt, e.event, e.body, e.count"
    + _AFTER
    + " ORDER BY e.seq",
    row=StoredEvents,
)
# A page of a joined stream. The last link at or before `after` may contain later events.
READ_JOINED = statement(
    _PAGE
    + """
    FROM (SELECT l.seq + e.seq - l.source_seq AS seq, l.ms, l.source, e.attempt, e.event, e.body, e.count,
      coalesce(e.size, octet_length(e.body)) AS length
    FROM stream_links AS l
    CROSS JOIN stream_events AS e
    WHERE l.ns = :ns AND l.stream = :stream
      AND l.seq >= coalesce((SELECT max(b.seq) FROM stream_links AS b
        WHERE b.ns = :ns AND b.stream = :stream AND b.seq <= :after), 0)
      AND e.ns = l.ns AND e.stream = l.source
      AND e.seq >= l.source_seq AND e.seq < l.source_seq + l.count
      AND l.seq + e.seq - l.source_seq + coalesce(e.count, 1) - 1 > :after
    ORDER BY l.seq, e.seq
    LIMIT :limit)
    """
    + _UP_TO_SIZE,
    row=StoredEvents,
)

# The link of a joined stream at or before a position, to another stream.
LINK_AT = statement(
    """
    SELECT {columns}
    FROM stream_links
    WHERE ns = :ns AND stream = :stream AND seq <= :at AND source <> :stream
    ORDER BY seq DESC
    LIMIT 1
    """,
    row=StreamLinkRow,
)
# The first link to a stream; only one stream joins it with others.
FIRST_LINK_TO = statement(
    "SELECT {columns} FROM stream_links WHERE ns = :ns AND source = :source ORDER BY source_seq LIMIT 1",
    row=StreamLinkRow,
)

# --- references -------------------------------------------------------------------------------------------

# References among the events of a page.
READ_REFERENCES = statement(
    """
    SELECT {columns}
    FROM stream_events
    WHERE ns = :ns AND stream = :stream AND seq > :after AND seq <= :last AND checkpoint_id IS NOT NULL
    """,
    row=ReferenceRow,
)
# References among the events of a page of a joined stream.
READ_JOINED_REFERENCES = statement(
    """
    SELECT e.stream, l.seq + e.seq - l.source_seq AS seq, e.size, e.thread_id, e.checkpoint_ns,
      e.checkpoint_id, e.keys
    FROM stream_links AS l
    CROSS JOIN stream_events AS e
    WHERE l.ns = :ns AND l.stream = :stream AND l.seq <= :last
      AND l.seq >= coalesce((SELECT max(b.seq) FROM stream_links AS b
        WHERE b.ns = :ns AND b.stream = :stream AND b.seq <= :after), 0)
      AND e.ns = l.ns AND e.stream = l.source
      AND e.seq >= l.source_seq AND e.seq < l.source_seq + l.count
      AND l.seq + e.seq - l.source_seq > :after AND l.seq + e.seq - l.source_seq <= :last
      AND e.checkpoint_id IS NOT NULL
    """,
    row=ReferenceRow,
)
# Events that refer to checkpoints of a thread.
REFERENCES_TO = statement(
    "SELECT {columns} FROM stream_events WHERE ns = :ns AND thread_id = :thread_id", row=ReferenceRow
)
# Replace references of events by their data.
STORE_BODIES = BulkUpdate(
    STREAM_EVENTS,
    EventBodyRow,
    sets=("body", "thread_id", "checkpoint_ns", "checkpoint_id", "keys", "size"),
    keys=("ns", "stream", "seq"),
)

# --- dropping ---------------------------------------------------------------------------------------------

# Delete the heads of streams.
DROP_HEADS = statement("DELETE FROM streams WHERE ns = :ns AND stream {among:streams}")
# Delete the events of streams.
DROP_EVENTS = statement("DELETE FROM stream_events WHERE ns = :ns AND stream {among:streams}")
# Delete the links of joined streams.
DROP_LINKS = statement("DELETE FROM stream_links WHERE ns = :ns AND stream {among:streams}")
# Delete the links to streams.
DROP_LINKS_TO = statement("DELETE FROM stream_links WHERE ns = :ns AND source {among:streams}")
# Some streams of all namespaces that ended before a time, the earliest first.
ENDED_BEFORE = statement(
    """
    SELECT {columns}
    FROM streams
    WHERE end_time <= :before
    ORDER BY end_time
    LIMIT :n {skip}
    """,
    row=EndedStream,
)

name_statements(globals())
