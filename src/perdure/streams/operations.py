"""Operations on streams: append, read, delete.

An append locks the heads of all its streams, in the order of their names. If two transactions insert the same
new head, one of them is run again and finds the other's head.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from perdure.kernel.storage.port import Tx
from perdure.streams import sql
from perdure.streams.model import (
    EventBodyRow,
    Head,
    LockedHead,
    NewEvent,
    Reference,
    SentEvent,
    StreamEnd,
    StreamEvent,
    StreamEventRow,
    StreamLinkRow,
    batch_end,
    encode_batch,
    events_in,
    new_head,
)

CHANNEL = "streams"
"""Channel of hints; a key is `<ns>/<stream>`."""

PAGE_EVENTS = 500
PAGE_BYTES = 1 << 20
EXPIRE_STREAMS = 50
EXPIRE_EVENTS = 1000
STORE_SIZE = 4 << 20
"""Approximate size of reference data stored per statement."""


class StreamAppend(msgspec.Struct, frozen=True):
    """Events to append to a stream, and to the stream that joins it with others."""

    stream: str
    events: Sequence[NewEvent]
    attempt: int = 0
    into: str | None = None
    ends: bool = False
    """True if these are the last events; a joined stream never ends."""
    thread_id: str | None = None
    """Thread of the checkpoints that these events show."""


class StreamAppended(msgspec.Struct, frozen=True):
    """Last position after an append: in the stream itself, and in the joined stream."""

    last_seq: int
    ms: int
    joined: StreamEnd | None = None


AppendedEvents = tuple[StreamAppend, StreamAppended]
"""Events appended to the stream of a run, with their position."""


class StreamSlice(NamedTuple):
    """A part of a stream, with all events up to `reached`."""

    events: list[StreamEvent]
    head: Head | None
    reached: int


def hint_key(ns: int | None, stream: str) -> str:
    """Return the key of a stream's hints."""
    return f"{ns}/{stream}"


# --- append -----------------------------------------------------------------------------------------------


async def append(tx: Tx, appends: Sequence[StreamAppend]) -> list[StreamAppended]:
    """Append to streams in the given order; return the end of each append. Conflict if a stream has ended."""
    heads = await _lock_heads(tx, appends)
    events: list[StreamEventRow] = []
    links: list[StreamLinkRow] = []
    done = [_place(tx, item, heads, events, links) for item in appends]
    ordered = [heads[stream] for stream in sorted(heads)]
    await tx.defer(
        sql.ADD_HEADS.of([head for head in ordered if head.is_new]),
        sql.MOVE_HEADS.of([head for head in ordered if not head.is_new]),
        sql.ADD_EVENTS.of(events),
        sql.ADD_LINKS.of(links),
    )
    for stream in heads:
        tx.hint(CHANNEL, hint_key(tx.ns, stream))
    return done


async def _lock_heads(tx: Tx, appends: Sequence[StreamAppend]) -> dict[str, LockedHead]:
    names = {item.stream for item in appends} | {item.into for item in appends if item.into is not None}
    existing = {head.stream: head for head in await tx.all(sql.LOCK_HEADS, streams=sorted(names))}
    return {name: existing.get(name) or new_head(name) for name in names}


def _place(
    tx: Tx,
    append: StreamAppend,
    heads: dict[str, LockedHead],
    events: list[StreamEventRow],
    links: list[StreamLinkRow],
) -> StreamAppended:
    """Number the events of an append, and add their rows."""
    stream, count, now = append.stream, len(append.events), tx.now // 1000
    head = heads[stream]
    first = head.take(count, now)
    ms = head.last_ms
    start = 0
    while start < count:
        end = batch_end(append.events, start)
        events.append(_build_row(append, start, end, first + start, ms))
        start = end
    if append.ends:
        head.end_seq, head.end_time = head.last_seq, tx.now
    if append.into is None:
        return StreamAppended(head.last_seq, ms)
    joined = heads[append.into]
    seq = joined.take(count, now)
    if count:
        links.append(
            StreamLinkRow(
                stream=append.into, seq=seq, ms=joined.last_ms, source=stream, source_seq=first, count=count
            )
        )
    return StreamAppended(head.last_seq, ms, joined.place)


def _build_row(append: StreamAppend, start: int, end: int, seq: int, ms: int) -> StreamEventRow:
    """Build the row of some events of an append; the first has the number `seq`."""
    stream, attempt, new = append.stream, append.attempt, append.events[start]
    if end > start + 1:
        event, body = encode_batch(append.events[start:end])
        return StreamEventRow(stream, seq, ms, attempt, event, body, count=end - start)
    shown = new.shown
    if shown is None:
        return StreamEventRow(stream, seq, ms, attempt, new.event, new.body)
    return StreamEventRow(
        stream=stream,
        seq=seq,
        ms=ms,
        attempt=attempt,
        event=new.event,
        body="",
        thread_id=append.thread_id,
        checkpoint_ns=shown.checkpoint_ns,
        checkpoint_id=shown.checkpoint_id,
        keys=shown.keys,
        size=_count_bytes(new.body),
    )


# --- read -------------------------------------------------------------------------------------------------


Resolve = Callable[[Tx, Collection[Reference]], Awaitable[Mapping[Reference, str]]]
"""Function that returns the data, as JSON, of references."""


async def read(
    tx: Tx,
    stream: str,
    after: int,
    limit: int = PAGE_EVENTS,
    joined: bool = False,
    size: int = PAGE_BYTES,
    resolve: Resolve | None = None,
) -> StreamSlice:
    """Return the events after a number, up to `limit` or slightly more than `size` bytes, and the head."""
    head = await tx.one(sql.GET_HEAD, stream=stream)
    if head is None or head.last_seq <= after:
        return StreamSlice([], head, after)
    wanted = sql.READ_JOINED if joined else sql.READ_EVENTS
    stored = await tx.all(wanted, stream=stream, after=after, limit=limit, size=size)
    total = sum([_count_bytes(row.body) for row in stored])
    events = events_in(stored, after, limit)
    if resolve is not None and any(not event.body for event in events):
        chosen = sql.READ_JOINED_REFERENCES if joined else sql.READ_REFERENCES
        rows = await tx.all(chosen, stream=stream, after=after, last=events[-1].seq)
        total += sum([row.size for row in rows])
        events = await _resolved(tx, events, {row.seq: row.reference for row in rows}, resolve)
    # The events after the last one of a joined stream may have been deleted with their own streams.
    is_cut = len(events) >= limit or total >= size
    return StreamSlice(events, head, events[-1].seq if is_cut else head.last_seq)


async def _resolved(
    tx: Tx, events: Sequence[StreamEvent], references: Mapping[int, Reference], resolve: Resolve
) -> list[StreamEvent]:
    """Replace references by their data; a reference whose checkpoint is lost becomes null."""
    bodies = await resolve(tx, set(references.values()))
    return [
        event
        if (reference := references.get(event.seq)) is None
        else msgspec.structs.replace(event, body=bodies.get(reference, "null"))
        for event in events
    ]


def _count_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


async def heads(tx: Tx, streams: Sequence[str]) -> dict[str, Head]:
    """Return the heads of the existing streams among these."""
    return {head.stream: head for head in await tx.all(sql.GET_HEADS, streams=list(streams))}


async def sent_after(tx: Tx, stream: str, after: int) -> list[SentEvent]:
    """Return all stored events after a number, to detect the few appends that may be repeated."""
    rows = await tx.all(sql.SENT_AFTER, stream=stream, after=after)
    return [SentEvent(event.seq, event.attempt, event.event, event.body) for event in events_in(rows, after)]


# --- references -------------------------------------------------------------------------------------------


async def store_bodies(
    tx: Tx, thread_id: str, is_removed: Callable[[Reference], bool], resolve: Resolve
) -> None:
    """Store the data of events whose checkpoints are about to be removed."""
    rows = await tx.all(sql.REFERENCES_TO, thread_id=thread_id)
    chosen = sorted([row for row in rows if is_removed(row.reference)], key=lambda row: (row.stream, row.seq))
    while chosen:
        size = count = 0
        while count < len(chosen) and size < STORE_SIZE:
            size += chosen[count].size
            count += 1
        some, chosen = chosen[:count], chosen[count:]
        resolved = await resolve(tx, {row.reference for row in some})
        bodies = [EventBodyRow(row.stream, row.seq, resolved.get(row.reference, "null")) for row in some]
        await tx.write(sql.STORE_BODIES.of(bodies))


# --- drop -------------------------------------------------------------------------------------------------


async def drop(tx: Tx, streams: Iterable[str]) -> None:
    """Delete streams with their events; in joined streams, the numbers of their events stay unused."""
    await _drop(tx, tx.ns, sorted(set(streams)))


async def _drop(tx: Tx, ns: int | None, streams: list[str]) -> None:
    if not streams:
        return
    await tx.all(sql.LOCK_HEADS, ns=ns, streams=streams)
    for deletion in (sql.DROP_LINKS_TO, sql.DROP_LINKS, sql.DROP_EVENTS, sql.DROP_HEADS):
        await tx.execute(deletion, ns=ns, streams=streams)
    for stream in streams:
        tx.hint(CHANNEL, hint_key(ns, stream))


async def expire(tx: Tx, age: int) -> int:
    """Delete some streams that ended more than `age` microseconds ago; return how many."""
    ended = await tx.all(sql.ENDED_BEFORE, before=tx.now - age, n=EXPIRE_STREAMS)
    chosen: dict[int, list[str]] = {}
    events = count = 0
    for row in ended:
        events += row.last_seq
        if count and events > EXPIRE_EVENTS:
            break
        chosen.setdefault(row.ns, []).append(row.stream)
        count += 1
    for ns in sorted(chosen):
        await _drop(tx, ns, sorted(chosen[ns]))
    return count


async def first_of_source(tx: Tx, stream: str, at: int) -> int | None:
    """Return the position of a source's first event in a joined stream; the source is that at `at`."""
    link = await tx.one(sql.LINK_AT, stream=stream, at=at)
    first = None if link is None else await tx.one(sql.FIRST_LINK_TO, source=link.source)
    return None if first is None else first.seq
