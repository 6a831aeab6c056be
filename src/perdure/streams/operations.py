"""Operations on streams: append, read, drop.

Whoever appends has locked the heads of all streams concerned, in the order of their names. A head that does
not exist yet is inserted; of two who do so at once, one is run again and finds the other's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from perdure.kernel.errors import Conflict
from perdure.kernel.storage.port import Row, Tx
from perdure.streams import sql
from perdure.streams.model import Event, NewEvent

CHANNEL = "streams"
"""The channel of hints; a key is `<ns>/<stream>`."""

PAGE_EVENTS = 500
PAGE_BYTES = 1 << 20
EXPIRE_STREAMS = 50
EXPIRE_EVENTS = 1000


class Append(msgspec.Struct, frozen=True):
    """Events for the end of a stream, and of the stream that joins it with others."""

    stream: str
    events: Sequence[NewEvent]
    attempt: int = 0
    into: str | None = None
    ends: bool = False
    """Whether nothing comes after these; a joined stream never ends."""


class Place(msgspec.Struct, frozen=True):
    """Where a stream ended when something was appended to it."""

    last_seq: int
    ms: int


class Appended(msgspec.Struct, frozen=True):
    """Where the last event of an append stands: in its own stream, and in the joined one."""

    last_seq: int
    ms: int
    joined: Place | None = None


class Head(msgspec.Struct, frozen=True):
    """How far a stream goes now, and where it ends if that is known."""

    last_seq: int
    last_ms: int
    end_seq: int | None = None


class Page(NamedTuple):
    """A part of a stream. All events up to `reached` are in it or before it."""

    events: list[Event]
    head: Head | None
    reached: int


def hint_key(ns: int | None, stream: str) -> str:
    """The key of the hints that a stream has changed."""
    return f"{ns}/{stream}"


# --- append -----------------------------------------------------------------------------------------------


class _HeadRow(msgspec.Struct):
    """A locked head on its way back into the table."""

    stream: str
    last_seq: int = 0
    last_ms: int = 0
    end_seq: int | None = None
    end_time: int | None = None
    is_new: bool = False

    def take(self, count: int, ms: int) -> int:
        """The first of the next `count` numbers."""
        if self.end_seq is not None:
            raise Conflict(f"the stream {self.stream} has ended at {self.end_seq}")
        first = self.last_seq + 1
        self.last_seq += count
        self.last_ms = max(self.last_ms, ms)
        return first

    @property
    def place(self) -> Place:
        return Place(self.last_seq, self.last_ms)


async def append(tx: Tx, appends: Sequence[Append]) -> list[Appended]:
    """Append to streams, in the order given, and say where each append ended. Conflict if one has ended."""
    heads = await _lock_heads(tx, appends)
    events: list[tuple[Any, ...]] = []
    links: list[tuple[Any, ...]] = []
    done = [_place(tx, each, heads, events, links) for each in appends]
    ordered = [heads[stream] for stream in sorted(heads)]
    await tx.defer(
        (sql.ADD_HEADS, [_new_row(tx, head) for head in ordered if head.is_new]),
        (sql.MOVE_HEADS, [_moved_row(tx, head) for head in ordered if not head.is_new]),
        (sql.ADD_EVENTS, events),
        (sql.ADD_LINKS, links),
    )
    for stream in heads:
        tx.hint(CHANNEL, hint_key(tx.ns, stream))
    return done


async def _lock_heads(tx: Tx, appends: Sequence[Append]) -> dict[str, _HeadRow]:
    names = {each.stream for each in appends} | {each.into for each in appends if each.into is not None}
    found = {row[0]: _HeadRow(*row) for row in await tx.all(sql.LOCK_HEADS, streams=sorted(names))}
    return {name: found.get(name) or _HeadRow(name, is_new=True) for name in names}


def _place(
    tx: Tx,
    each: Append,
    heads: dict[str, _HeadRow],
    events: list[tuple[Any, ...]],
    links: list[tuple[Any, ...]],
) -> Appended:
    """Number the events of an append, and make them rows of the tables."""
    ns, stream, count, now = tx.ns, each.stream, len(each.events), tx.now // 1000
    head = heads[stream]
    first = head.take(count, now)
    ms, attempt = head.last_ms, each.attempt
    events += [(ns, stream, seq, ms, attempt, e.event, e.body) for seq, e in enumerate(each.events, first)]
    if each.ends:
        head.end_seq, head.end_time = head.last_seq, tx.now
    if each.into is None:
        return Appended(head.last_seq, ms)
    joined = heads[each.into]
    place = joined.take(count, now)
    if count:
        links.append((ns, each.into, place, joined.last_ms, stream, first, count))
    return Appended(head.last_seq, ms, joined.place)


def _new_row(tx: Tx, head: _HeadRow) -> tuple[Any, ...]:
    return tx.ns, head.stream, head.last_seq, head.last_ms, head.end_seq, head.end_time


def _moved_row(tx: Tx, head: _HeadRow) -> tuple[Any, ...]:
    return head.last_seq, head.last_ms, head.end_seq, head.end_time, tx.ns, head.stream


# --- read -------------------------------------------------------------------------------------------------


async def read(
    tx: Tx,
    stream: str,
    after: int,
    limit: int = PAGE_EVENTS,
    joined: bool = False,
    size: int = PAGE_BYTES,
) -> Page:
    """The events after a number, up to `limit` of them or somewhat more than `size` bytes, and the head."""
    row = await tx.one(sql.GET_HEAD, stream=stream)
    head = None if row is None else _head(row)
    if head is None or head.last_seq <= after:
        return Page([], head, after)
    wanted = sql.READ_JOINED if joined else sql.READ_EVENTS
    rows = await tx.all(wanted, stream=stream, after=after, limit=limit, size=size)
    reached = rows[-1][0] if _is_cut(rows, limit, size) else head.last_seq
    return Page([Event(*tuple(row)[:6]) for row in rows], head, reached)


def _is_cut(rows: Sequence[Row], limit: int, size: int) -> bool:
    """Whether more may follow. In a joined stream the rest may be gone with the streams it stood in."""
    if not rows:
        return False
    return len(rows) >= limit or rows[-1][6] + len(rows[-1][5].encode()) >= size


async def heads(tx: Tx, streams: Sequence[str]) -> dict[str, Head]:
    """The heads of those of the streams that exist."""
    return {row[0]: _head(row) for row in await tx.all(sql.GET_HEADS, streams=list(streams))}


def _head(row: Row) -> Head:
    return Head(row[1], row[2], row[3])


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
    rows = await tx.all(sql.ENDED_BEFORE, before=tx.now - age, n=EXPIRE_STREAMS)
    chosen: dict[int, list[str]] = {}
    events = count = 0
    for ns, stream, last_seq in rows:
        events += last_seq
        if count and events > EXPIRE_EVENTS:
            break
        chosen.setdefault(ns, []).append(stream)
        count += 1
    for ns in sorted(chosen):
        await _drop(tx, ns, sorted(chosen[ns]))
    return count
