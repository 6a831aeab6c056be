"""The SQL of the streams room, written once for both engines."""

from __future__ import annotations

from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement
from perdure.streams.tables import STREAM_EVENTS, STREAM_LINKS, STREAMS

# --- heads ------------------------------------------------------------------------------------------------

HEAD_VIEW = "stream, last_seq, last_ms, end_seq"
GET_HEAD = statement("SELECT " + HEAD_VIEW + " FROM streams WHERE ns = :ns AND stream = :stream")
GET_HEADS = statement("SELECT " + HEAD_VIEW + " FROM streams WHERE ns = :ns AND stream {among:streams}")
LOCK_HEADS = statement(
    "SELECT " + HEAD_VIEW + " FROM streams WHERE ns = :ns AND stream {among:streams} ORDER BY stream {lock}"
)
ADD_HEADS = BulkInsert(STREAMS)
MOVE_HEADS = BulkUpdate(STREAMS, sets=("last_seq", "last_ms", "end_seq", "end_time"), keys=("ns", "stream"))

# --- events -----------------------------------------------------------------------------------------------

ADD_EVENTS = BulkInsert(STREAM_EVENTS)
ADD_LINKS = BulkInsert(STREAM_LINKS)

# A page ends after so many events or with the one that makes its bodies too large.
_UP_TO_SIZE_FROM = (
    "SELECT seq, ms, source, attempt, event, body, ahead FROM"
    " (SELECT seq, ms, source, attempt, event, body,"
    " sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS ahead FROM"
)
_UP_TO_SIZE = " AS page) AS sized WHERE ahead < :size ORDER BY seq"

READ_EVENTS = statement(
    _UP_TO_SIZE_FROM
    + """
    (SELECT seq, ms, stream AS source, attempt, event, body
    FROM stream_events
    WHERE ns = :ns AND stream = :stream AND seq > :after
    ORDER BY seq
    LIMIT :limit)
    """
    + _UP_TO_SIZE
)
# The last link that begins at `after` or before may still hold some of what comes after it.
READ_JOINED = statement(
    _UP_TO_SIZE_FROM
    + """
    (SELECT l.seq + e.seq - l.source_seq AS seq, l.ms, l.source, e.attempt, e.event, e.body
    FROM stream_links AS l
    CROSS JOIN stream_events AS e
    WHERE l.ns = :ns AND l.stream = :stream
      AND l.seq >= coalesce((SELECT max(b.seq) FROM stream_links AS b
        WHERE b.ns = :ns AND b.stream = :stream AND b.seq <= :after), 0)
      AND e.ns = l.ns AND e.stream = l.source
      AND e.seq >= l.source_seq AND e.seq < l.source_seq + l.count
      AND l.seq + e.seq - l.source_seq > :after
    ORDER BY l.seq, e.seq
    LIMIT :limit)
    """
    + _UP_TO_SIZE
)

# --- dropping ---------------------------------------------------------------------------------------------

DROP_HEADS = statement("DELETE FROM streams WHERE ns = :ns AND stream {among:streams}")
DROP_EVENTS = statement("DELETE FROM stream_events WHERE ns = :ns AND stream {among:streams}")
DROP_LINKS = statement("DELETE FROM stream_links WHERE ns = :ns AND stream {among:streams}")
DROP_LINKS_TO = statement("DELETE FROM stream_links WHERE ns = :ns AND source {among:streams}")
ENDED_BEFORE = statement(
    """
    SELECT ns, stream, last_seq
    FROM streams
    WHERE end_time <= :before
    ORDER BY end_time
    LIMIT :n {skip}
    """
)

name_statements(globals())
