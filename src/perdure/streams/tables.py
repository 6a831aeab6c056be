"""The tables of the streams room."""

from __future__ import annotations

from perdure.kernel.storage.schema import Index, Table, integer, text

STREAMS = Table(
    "streams",
    (
        integer("ns"),
        text("stream"),
        integer("last_seq"),
        integer("last_ms"),
        integer("end_seq", null=True),
        integer("end_time", null=True),
    ),
    key=("ns", "stream"),
    indexes=(Index("streams_ended", ("end_time",), "end_time IS NOT NULL"),),
    hot=True,
)
"""The head of each stream: whoever appends has locked it. `end_seq` is set once, with the last event."""

STREAM_EVENTS = Table(
    "stream_events",
    (
        integer("ns"),
        text("stream"),
        integer("seq"),
        integer("ms"),
        integer("attempt"),
        text("event"),
        text("body"),
    ),
    key=("ns", "stream", "seq"),
)

STREAM_LINKS = Table(
    "stream_links",
    (
        integer("ns"),
        text("stream"),
        integer("seq"),
        integer("ms"),
        text("source"),
        integer("source_seq"),
        integer("count"),
    ),
    key=("ns", "stream", "seq"),
    indexes=(Index("stream_links_source", ("ns", "source")),),
)
"""Where a joined stream has its events: `count` of them, from `source_seq` on, stand in `source`."""

TABLES = (STREAMS, STREAM_EVENTS, STREAM_LINKS)
