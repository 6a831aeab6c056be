"""The rules of graph checkpoints, pure: which items a version has, and what no checkpoint needs any more.

The items of a list lie in a log, one after the other. A version of the list is made of ranges of that log.
What is new goes to the end of the log, wherever in the list it stands, so that nothing is ever copied.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from perdure.checkpoints.records import (
    CheckpointQuery,
    GraphDeltaQuery,
    GraphPut,
    GraphWrite,
    ListSlice,
    Piece,
    PruneStrategy,
    SpliceRange,
    Typed,
    Version,
)
from perdure.kernel.checks import check_choice, check_filter, check_text
from perdure.kernel.errors import InvalidInput, NotADatabase

Range = tuple[int, int]
"""The items of a log from one place to before another."""

MAX_THREAD_ID = 512
MAX_NS = 1024
MAX_ID = 256
MAX_CHANNEL = 400
MAX_VERSION = 128

# Ranges that lie no further apart than this are read at once.
GAP = 32

DELTA_COUNTERS = "counters_since_delta_snapshot"
"""Where LangGraph says in the metadata which channels are kept as changes to an earlier value."""


class LogSegment(NamedTuple):
    """Items of a log that were kept together."""

    position: int
    stop: int
    items: Typed


# --- names ------------------------------------------------------------------------------------------------


def piece_key(channel: str, version: Version) -> str:
    """What the piece of a channel's version is found by."""
    return f"{version} {channel}"


def _are_plain(texts: Sequence[str]) -> bool:
    """Whether all of these can be kept, whatever they name; that is quickly seen of nearly all."""
    try:
        joined = "".join(texts)
    except TypeError:
        return False
    return joined.isascii() and "\0" not in joined and max(map(len, texts), default=0) <= MAX_VERSION


def check_put(put: GraphPut) -> None:
    """Refuse names that cannot be kept, and lists that do not add up."""
    pieces = put.pieces
    names = (put.thread_id, put.checkpoint_ns, put.checkpoint_id, put.parent_id or "", put.run_id or "")
    versions = [*map(str, put.versions.values()), *[piece.version for piece in pieces]]
    channels = [piece.channel for piece in pieces]
    if _are_plain([*names, *put.versions, *channels, *versions]) and " " not in "".join(versions):
        for piece in pieces:
            if piece.spans is not None:
                _check_piece(piece)
        return
    _check_place(put.thread_id, put.checkpoint_ns, put.checkpoint_id)
    if put.parent_id is not None:
        check_text(put.parent_id, "parent_id", max_length=MAX_ID)
    if put.run_id is not None:
        check_text(put.run_id, "run_id")
    for channel, version in put.versions.items():
        _check_version(channel, str(version))
    for piece in pieces:
        _check_piece(piece)


def check_writes(writes: Sequence[GraphWrite]) -> None:
    """Refuse names that cannot be kept."""
    names: list[str] = []
    for write in writes:
        names += (write.thread_id, write.checkpoint_ns, write.checkpoint_id)
        names += (write.task_id, write.task_path, write.channel)
    if _are_plain(names):
        return
    for write in writes:
        _check_place(write.thread_id, write.checkpoint_ns, write.checkpoint_id)
        check_text(write.task_id, "task_id", max_length=MAX_ID)
        check_text(write.task_path, "task_path", max_length=MAX_NS)
        check_text(write.channel, "channel", max_length=MAX_CHANNEL)


def check_thread(thread_id: str) -> str:
    return check_text(thread_id, "thread_id", max_length=MAX_THREAD_ID)


def check_query(query: CheckpointQuery | GraphDeltaQuery) -> None:
    """Refuse names that nothing can have."""
    if query.thread_id is not None:
        check_thread(query.thread_id)
    if query.checkpoint_ns is not None:
        check_text(query.checkpoint_ns, "checkpoint_ns", max_length=MAX_NS)
    if query.checkpoint_id is not None:
        check_text(query.checkpoint_id, "checkpoint_id", max_length=MAX_ID)
    if isinstance(query, CheckpointQuery):
        check_filter(query.filter, "filter")
        if query.before is not None:
            check_text(query.before, "before", max_length=MAX_ID)
        return
    for channel in query.channels:
        check_text(channel, "channel", max_length=MAX_CHANNEL)


def _check_place(thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> None:
    check_thread(thread_id)
    check_text(checkpoint_ns, "checkpoint_ns", max_length=MAX_NS)
    check_text(checkpoint_id, "checkpoint_id", max_length=MAX_ID)


def _check_version(channel: str, version: str) -> None:
    check_text(channel, "channel", max_length=MAX_CHANNEL)
    if " " in check_text(version, "version", max_length=MAX_VERSION):
        raise InvalidInput(f"channel {channel}: the version {version!r} must not contain a space")


def _check_piece(piece: Piece) -> None:
    _check_version(piece.channel, piece.version)
    for span in piece.spans or ():
        limit = piece.count if span.own else None
        if not 0 <= span.start <= span.stop or (limit is not None and span.stop > limit):
            raise InvalidInput(f"channel {piece.channel}: there are no items {span.start} to {span.stop}")
        if not span.own and piece.base is None:
            raise InvalidInput(f"channel {piece.channel}: items of an earlier version, but of none")


def check_strategy(strategy: str) -> PruneStrategy:
    return check_choice(strategy, get_args(PruneStrategy), "strategy")


# --- ranges -----------------------------------------------------------------------------------------------


def laid_out(spans: Sequence[SpliceRange], base: Sequence[Range], end: int) -> list[Range]:
    """The ranges of a new version, whose own items begin at `end` of the log."""
    ranges: list[Range] = []
    for span in spans:
        if span.own:
            ranges.append((end + span.start, end + span.stop))
        else:
            ranges += cut(base, span.start, span.stop)
    return joined(ranges)


def cut(ranges: Sequence[Range], start: int, stop: int) -> list[Range]:
    """The ranges of the items from `start` to before `stop` of a list that lies in these ranges."""
    found: list[Range] = []
    offset = 0
    for first, last in ranges:
        length = last - first
        low, high = max(start - offset, 0), min(stop - offset, length)
        if low < high:
            found.append((first + low, first + high))
        offset += length
    if stop > offset:
        raise InvalidInput(f"an earlier version has {offset} items, not {stop}")
    return found


def joined(ranges: Iterable[Range]) -> list[Range]:
    """The same items in as few ranges as can be; their order counts."""
    done: list[Range] = []
    end: int | None = None
    for first, last in ranges:
        if first == end:
            begin, _ = done.pop()
            done.append((begin, last))
            end = last
        elif first < last:
            done.append((first, last))
            end = last
    return done


def covered(ranges: Iterable[Range], gap: int = 0) -> list[Range]:
    """All these items, each once, in the order of the log; what is no more than `gap` away comes along."""
    done: list[Range] = []
    end: int | None = None
    for first, last in sorted(ranges):
        if end is not None and first <= end + gap:
            begin, _ = done.pop()
            end = max(end, last)
            done.append((begin, end))
        elif first < last:
            done.append((first, last))
            end = last
    return done


def build_slices(ranges: Sequence[Range], segments: Sequence[LogSegment]) -> list[ListSlice]:
    """The list that lies in these ranges, out of the segments of its log, which are in order."""
    starts = [segment.position for segment in segments]
    parts: list[ListSlice] = []
    for first, last in ranges:
        at = bisect_right(starts, first) - 1
        while first < last:
            if not 0 <= at < len(segments) or not segments[at].position <= first < segments[at].stop:
                raise NotADatabase(f"the database is damaged: item {first} of a list is missing")
            segment = segments[at]
            stop = min(last, segment.stop)
            parts.append(ListSlice(segment.items, first - segment.position, stop - segment.position))
            first, at = stop, at + 1
    return parts


# --- what is needed ---------------------------------------------------------------------------------------


def unneeded(segments: Iterable[tuple[int, int]], ranges: Iterable[Range]) -> list[int]:
    """The places of the segments, given with their counts, of which no range has an item."""
    kept = covered(ranges)
    starts, stops = [first for first, _ in kept], [last for _, last in kept]
    left: list[int] = []
    for position, count in segments:
        at = bisect_right(starts, position + count - 1) - 1
        if at < 0 or stops[at] <= position:
            left.append(position)
    return left


class KnownCheckpoint(NamedTuple):
    """What of a checkpoint says which others it needs."""

    parent_id: str | None
    versions: Mapping[str, Version]
    metadata: Mapping[str, Any]


def needed(latest: str, known: Mapping[str, KnownCheckpoint], pieces: frozenset[str] | set[str]) -> set[str]:
    """A checkpoint, and its ancestors up to where each channel that is kept as changes has a value."""
    kept = {latest}
    open_channels = set(known[latest].metadata.get(DELTA_COUNTERS) or ())
    at: str | None = latest
    while at is not None and at in known:
        found = known[at]
        open_channels -= {name for name in open_channels if _has_piece(name, found, pieces)}
        if not open_channels:
            break
        at = found.parent_id
        if at is None or at in kept or at not in known:
            break
        kept.add(at)
    return kept


def _has_piece(channel: str, found: KnownCheckpoint, pieces: frozenset[str] | set[str]) -> bool:
    return channel in found.versions and piece_key(channel, found.versions[channel]) in pieces
