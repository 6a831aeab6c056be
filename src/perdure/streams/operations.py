"""Operations on streams: append, read, drop.

An append locks the heads of all its streams, in the order of their names. A head that does not exist yet is
inserted; of two transactions that do so at once, one is run again and finds the other's.
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
"""The channel of hints; a key is `<ns>/<stream>`."""

PAGE_EVENTS = 500
PAGE_BYTES = 1 << 20
EXPIRE_STREAMS = 50
EXPIRE_EVENTS = 1000
STORE_SIZE = 4 << 20
"""About how much data of references is stored at once."""


class StreamAppend(msgspec.Struct, frozen=True):
    """Events for the end of a stream, and of the stream that joins it with others."""

    stream: str
    events: Sequence[NewEvent]
    attempt: int = 0
    into: str | None = None
    ends: bool = False
    """Whether nothing comes after these; a joined stream never ends."""
    thread_id: str | None = None
    """The thread that has the checkpoints which these events show."""


class StreamAppended(msgspec.Struct, frozen=True):
    """The place of the last event of an append: in its own stream, and in the joined one."""

    last_seq: int
    ms: int
    joined: StreamEnd | None = None


AppendedEvents = tuple[StreamAppend, StreamAppended]
"""Events that were appended to the stream of a run, and their position."""


class StreamSlice(NamedTuple):
    """A part of a stream. All events up to `reached` are in it or before it."""

    events: list[StreamEvent]
    head: Head | None
    reached: int


def hint_key(ns: int | None, stream: str) -> str:
    """The key of the hints that a stream has changed."""
    return f"{ns}/{stream}"


# --- append -----------------------------------------------------------------------------------------------


async def append(tx: Tx, appends: Sequence[StreamAppend]) -> list[StreamAppended]:
    """Append to streams, in the order given; returns where each append ended. Conflict if one has ended."""
    heads = await _lock_heads(tx, appends)
    events: list[StreamEventRow] = []
    links: list[StreamLinkRow] = []
    done = [_place(tx, each, heads, events, links) for each in appends]
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
    names = {each.stream for each in appends} | {each.into for each in appends if each.into is not None}
    found = {head.stream: head for head in await tx.all(sql.LOCK_HEADS, streams=sorted(names))}
    return {name: found.get(name) or new_head(name) for name in names}


def _place(
    tx: Tx,
    each: StreamAppend,
    heads: dict[str, LockedHead],
    events: list[StreamEventRow],
    links: list[StreamLinkRow],
) -> StreamAppended:
    """Number the events of an append, and make them rows of the tables."""
    stream, count, now = each.stream, len(each.events), tx.now // 1000
    head = heads[stream]
    first = head.take(count, now)
    ms = head.last_ms
    start = 0
    while start < count:
        end = batch_end(each.events, start)
        events.append(_row(each, start, end, first + start, ms))
        start = end
    if each.ends:
        head.end_seq, head.end_time = head.last_seq, tx.now
    if each.into is None:
        return StreamAppended(head.last_seq, ms)
    joined = heads[each.into]
    seq = joined.take(count, now)
    if count:
        links.append(
            StreamLinkRow(
                stream=each.into, seq=seq, ms=joined.last_ms, source=stream, source_seq=first, count=count
            )
        )
    return StreamAppended(head.last_seq, ms, joined.place)


def _row(each: StreamAppend, start: int, end: int, seq: int, ms: int) -> StreamEventRow:
    """The row of some events of an append, of which the first has the number `seq`."""
    stream, attempt, new = each.stream, each.attempt, each.events[start]
    if end > start + 1:
        event, body = encode_batch(each.events[start:end])
        return StreamEventRow(stream, seq, ms, attempt, event, body, count=end - start)
    if new.shown is None:
        return StreamEventRow(stream, seq, ms, attempt, new.event, new.body)
    return _reference_row(each, seq, ms, new)


def _reference_row(each: StreamAppend, seq: int, ms: int, new: NewEvent) -> StreamEventRow:
    shown = new.shown
    assert shown is not None
    return StreamEventRow(
        stream=each.stream,
        seq=seq,
        ms=ms,
        attempt=each.attempt,
        event=new.event,
        body="",
        thread_id=each.thread_id,
        checkpoint_ns=shown.checkpoint_ns,
        checkpoint_id=shown.checkpoint_id,
        keys=shown.keys,
        size=_octets(new.body),
    )


# --- read -------------------------------------------------------------------------------------------------


Resolve = Callable[[Tx, Collection[Reference]], Awaitable[Mapping[Reference, str]]]
"""Gives the data, as JSON, that each reference stands for."""


async def read(
    tx: Tx,
    stream: str,
    after: int,
    limit: int = PAGE_EVENTS,
    joined: bool = False,
    size: int = PAGE_BYTES,
    resolve: Resolve | None = None,
) -> StreamSlice:
    """The events after a number, up to `limit` of them or somewhat more than `size` bytes, and the head."""
    head = await tx.one(sql.GET_HEAD, stream=stream)
    if head is None or head.last_seq <= after:
        return StreamSlice([], head, after)
    wanted = sql.READ_JOINED if joined else sql.READ_EVENTS
    found = await tx.all(wanted, stream=stream, after=after, limit=limit, size=size)
    total = sum([_octets(row.body) for row in found])
    events = events_in(found, after, limit)
    if resolve is not None and any(not event.body for event in events):
        chosen = sql.READ_JOINED_REFERENCES if joined else sql.READ_REFERENCES
        rows = await tx.all(chosen, stream=stream, after=after, last=events[-1].seq)
        total += sum([row.size for row in rows])
        events = await _resolved(tx, events, {row.seq: row.reference for row in rows}, resolve)
    # In a joined stream what follows may be gone with the streams it was in.
    is_cut = len(events) >= limit or total >= size
    return StreamSlice(events, head, events[-1].seq if is_cut else head.last_seq)


async def _resolved(
    tx: Tx, events: Sequence[StreamEvent], references: Mapping[int, Reference], resolve: Resolve
) -> list[StreamEvent]:
    """The events with the data of those that are references; one whose checkpoint is lost shows null."""
    found = await resolve(tx, set(references.values()))
    return [
        event
        if (reference := references.get(event.seq)) is None
        else msgspec.structs.replace(event, body=found.get(reference, "null"))
        for event in events
    ]


def _octets(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


async def heads(tx: Tx, streams: Sequence[str]) -> dict[str, Head]:
    """The heads of those of the streams that exist."""
    return {head.stream: head for head in await tx.all(sql.GET_HEADS, streams=list(streams))}


async def sent_after(tx: Tx, stream: str, after: int) -> list[SentEvent]:
    """All events after a number, as they are stored: for the few of a call that may be a repeated one."""
    rows = await tx.all(sql.SENT_AFTER, stream=stream, after=after)
    return [SentEvent(event.seq, event.attempt, event.event, event.body) for event in events_in(rows, after)]


# --- references -------------------------------------------------------------------------------------------


async def store_bodies(
    tx: Tx, thread_id: str, is_removed: Callable[[Reference], bool], resolve: Resolve
) -> None:
    """Store their data in the events whose checkpoints are about to be removed."""
    rows = await tx.all(sql.REFERENCES_TO, thread_id=thread_id)
    chosen = sorted([row for row in rows if is_removed(row.reference)], key=lambda row: (row.stream, row.seq))
    while chosen:
        size = count = 0
        while count < len(chosen) and size < STORE_SIZE:
            size += chosen[count].size
            count += 1
        some, chosen = chosen[:count], chosen[count:]
        found = await resolve(tx, {row.reference for row in some})
        bodies = [EventBodyRow(row.stream, row.seq, found.get(row.reference, "null")) for row in some]
        await tx.write(sql.STORE_BODIES.of(bodies))


# --- drop -------------------------------------------------------------------------------------------------


async def drop(tx: Tx, streams: Iterable[str]) -> None:
    """Remove streams with their events; where they were joined, their places stay empty."""
    await _drop(tx, tx.ns, sorted(set(streams)))


async def _drop(tx: Tx, ns: int | None, streams: list[str]) -> None:
    if not streams:
        return
    await tx.all(sql.LOCK_HEADS, ns=ns, streams=streams)
    for each in (sql.DROP_LINKS_TO, sql.DROP_LINKS, sql.DROP_EVENTS, sql.DROP_HEADS):
        await tx.execute(each, ns=ns, streams=streams)
    for stream in streams:
        tx.hint(CHANNEL, hint_key(ns, stream))


async def expire(tx: Tx, age: int) -> int:
    """Drop some of the streams that ended more than `age` microseconds ago; returns how many."""
    ended = await tx.all(sql.ENDED_BEFORE, before=tx.now - age, n=EXPIRE_STREAMS)
    chosen: dict[int, list[str]] = {}
    events = count = 0
    for each in ended:
        events += each.last_seq
        if count and events > EXPIRE_EVENTS:
            break
        chosen.setdefault(each.ns, []).append(each.stream)
        count += 1
    for ns in sorted(chosen):
        await _drop(tx, ns, sorted(chosen[ns]))
    return count


async def first_of_source(tx: Tx, stream: str, at: int) -> int | None:
    """Where a joined stream has the first event of the source that it has at a place, or None."""
    found = await tx.one(sql.LINK_AT, stream=stream, at=at)
    first = None if found is None else await tx.one(sql.FIRST_LINK_TO, source=found.source)
    return None if first is None else first.seq
