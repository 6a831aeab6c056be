"""Tables of streams."""

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
    in_key=True,
)
"""Head of each stream, locked by every append. `end_seq` is set once, with the last event."""

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
        text("thread_id", null=True),
        text("checkpoint_ns", null=True),
        text("checkpoint_id", null=True),
        text("keys", null=True),
        integer("size", null=True),
        integer("count", null=True),
    ),
    key=("ns", "stream", "seq"),
    indexes=(Index("stream_events_reference", ("ns", "thread_id"), "thread_id IS NOT NULL"),),
)
"""An event with its data in `body`, or, if `checkpoint_id` is set, a reference to the checkpoint with the
data and an empty body. `size` is the length of a reference's data. A row with a `count` contains that many
events, numbered from `seq`, as encoded by `model.encode_batch`."""

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
"""Links of a joined stream: `count` of its events are in `source`, from `source_seq` on."""

TABLES = (STREAMS, STREAM_EVENTS, STREAM_LINKS)
