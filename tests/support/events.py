"""The events in tables, each by itself, however many share a row."""

from __future__ import annotations

from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.streams.model import StoredEvents, StreamEvent, events_in

_ALL = statement(
    "SELECT seq, ms, stream AS source, attempt, event, body, count FROM stream_events WHERE ns = :ns"
    " ORDER BY stream, seq",
    row=StoredEvents,
)


async def stored_events(tx: Tx) -> list[StreamEvent]:
    """Return all events of a namespace, in the order of their streams; references have no body."""
    return events_in(await tx.all(_ALL))
