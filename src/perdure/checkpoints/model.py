"""Pure rules of graph checkpoints: the items of a version, and what no checkpoint needs any more.

The items of a list are consecutive in a log. A version of the list consists of ranges of that log. New items
are appended to the log, wherever they are in the list, so that nothing is ever copied.
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
"""Items of a log from a position to before another."""

MAX_THREAD_ID = 512
MAX_NS = 1024
MAX_ID = 256
MAX_CHANNEL = 400
MAX_VERSION = 128

# Ranges with a smaller gap than this are read together.
GAP = 32

DELTA_COUNTERS = "counters_since_delta_snapshot"
"""Key of LangGraph's metadata with the channels that are stored as changes to an earlier value."""


class LogSegment(NamedTuple):
    """Items of a log that were stored together."""

    position: int
    stop: int
    items: Typed


# --- names ------------------------------------------------------------------------------------------------


def piece_key(channel: str, version: Version) -> str:
    """Build the key of the piece that has a channel's version."""
    return f"{version} {channel}"


def _are_plain(texts: Sequence[str]) -> bool:
    """Return whether all texts are valid names of any kind. This fast check accepts nearly all names."""
    try:
        joined = "".join(texts)
    except TypeError:
        return False
    return joined.isascii() and "\0" not in joined and max(map(len, texts), default=0) <= MAX_VERSION


def check_put(put: GraphPut) -> None:
    """Refuse invalid names, and pieces whose spans are inconsistent."""
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
    """Refuse invalid names."""
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
    """Refuse invalid names."""
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
            raise InvalidInput(f"channel {piece.channel}: items {span.start} to {span.stop} do not exist")
        if not span.own and piece.base is None:
            raise InvalidInput(f"channel {piece.channel}: a span of an earlier version needs `base`")


def check_strategy(strategy: str) -> PruneStrategy:
    return check_choice(strategy, get_args(PruneStrategy), "strategy")


# --- ranges -----------------------------------------------------------------------------------------------


def laid_out(spans: Sequence[SpliceRange], base: Sequence[Range], end: int) -> list[Range]:
    """Return the ranges of a new version, whose own items begin at `end` of the log."""
    ranges: list[Range] = []
    for span in spans:
        if span.own:
            ranges.append((end + span.start, end + span.stop))
        else:
            ranges += cut(base, span.start, span.stop)
    return joined(ranges)


def cut(ranges: Sequence[Range], start: int, stop: int) -> list[Range]:
    """Return the ranges of the items from `start` to before `stop` of a list that consists of `ranges`."""
    parts: list[Range] = []
    offset = 0
    for first, last in ranges:
        length = last - first
        low, high = max(start - offset, 0), min(stop - offset, length)
        if low < high:
            parts.append((first + low, first + high))
        offset += length
    if stop > offset:
        raise InvalidInput(f"an earlier version has {offset} items, not {stop}")
    return parts


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Merge adjacent ranges without changing the order of items."""
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
    """Return sorted ranges that cover all items once; gaps of up to `gap` items are included."""
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
    """Build the list that consists of these ranges, from the segments of its log, which are in order."""
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


# --- what checkpoints need --------------------------------------------------------------------------------


def unneeded(segments: Iterable[tuple[int, int]], ranges: Iterable[Range]) -> list[int]:
    """Return the positions of segments without an item in any range. Segments are (position, count)."""
    kept = covered(ranges)
    starts, stops = [first for first, _ in kept], [last for _, last in kept]
    left: list[int] = []
    for position, count in segments:
        at = bisect_right(starts, position + count - 1) - 1
        if at < 0 or stops[at] <= position:
            left.append(position)
    return left


class KnownCheckpoint(NamedTuple):
    """Fields of a checkpoint that decide which others it needs."""

    parent_id: str | None
    versions: Mapping[str, Version]
    metadata: Mapping[str, Any]


def needed(latest: str, stored: Mapping[str, KnownCheckpoint], pieces: frozenset[str] | set[str]) -> set[str]:
    """Return a checkpoint and its ancestors, back to a value of each channel that is stored as changes."""
    kept = {latest}
    open_channels = set(stored[latest].metadata.get(DELTA_COUNTERS) or ())
    at: str | None = latest
    while at is not None and at in stored:
        checkpoint = stored[at]
        open_channels -= {name for name in open_channels if _has_piece(name, checkpoint, pieces)}
        if not open_channels:
            break
        at = checkpoint.parent_id
        if at is None or at in kept or at not in stored:
            break
        kept.add(at)
    return kept


def _has_piece(channel: str, checkpoint: KnownCheckpoint, pieces: frozenset[str] | set[str]) -> bool:
    return channel in checkpoint.versions and piece_key(channel, checkpoint.versions[channel]) in pieces
