"""Comparison of a list with its earlier versions, so that only new items are written.

A fingerprint of each item is remembered when it is written or read, since nodes may change items in place. It
covers all bytes of the item; for messages and plain data it is much cheaper than serializing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import ormsgpack
from pydantic import BaseModel

from perdure.checkpoints.records import SpliceRange

Print = bytes
"""Fingerprint of an item."""

MAX_BYTES = 32 << 20
"""Largest total size of remembered fingerprints; a single list may exceed it."""
VERSIONS = 3
"""Number of versions of each list that are remembered."""
MAX_SPANS = 32
"""Most ranges of a list; a list with more is written in full."""
SHORT = 4
"""Least number of items; a shorter list is written in full."""

# Other data than plain data goes to the serializer, which distinguishes types that look alike.
_PLAIN = (
    ormsgpack.OPT_NON_STR_KEYS
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_UUID
    | ormsgpack.OPT_REPLACE_SURROGATES
)
# Plain data never begins with this byte.
_OBJECT = b"\xc1"


class Seen(NamedTuple):
    """Version of a list: the fingerprints of its items, and its number of ranges (0 if written in full)."""

    version: str
    prints: Sequence[Print]
    spans: int


class Cut(NamedTuple):
    """How to write a list: in full, or as spans of `base` and of the items at the indexes in `own`."""

    seen: Seen
    base: str | None = None
    spans: list[SpliceRange] | None = None
    own: Sequence[int] = ()


class Lists:
    """Newest versions of lists, by thread, namespace and channel. Thread-safe."""

    def __init__(self, serialize: Callable[[Any], tuple[str, bytes]]) -> None:
        self._serialize = serialize
        self._lock = threading.Lock()
        self._seen: OrderedDict[Hashable, list[Seen]] = OrderedDict()
        self._bytes = 0

    def prints(self, items: Sequence[Any]) -> list[Print]:
        """Return the fingerprints of items; empty if comparing the list costs more than writing it."""
        return [self._print(item) for item in items] if _is_worth_it(items) else []

    def _print(self, item: Any) -> Print:
        try:
            if isinstance(item, BaseModel):
                fields = (vars(item), item.__pydantic_extra__)
                return _mark(type(item)) + ormsgpack.packb(fields, option=_PLAIN)
            return ormsgpack.packb(item, option=_PLAIN)
        except (TypeError, ValueError):
            form, body = self._serialize(item)
            return b"".join((_OBJECT, form.encode(), _OBJECT, body))

    def cut(self, place: Hashable, version: str, items: Sequence[Any]) -> Cut:
        """Decide how to write the next version of a list. Call `remember` afterwards."""
        prints = self.prints(items)
        with self._lock:
            earlier = list(self._seen.get(place, ())) if prints else []
        best = _best(prints, earlier)
        if best is None:
            return Cut(Seen(version, prints, 0))
        base, spans = best
        _share(prints, base.prints, spans)
        if base.spans and (ranges := _ranges(base, spans)) <= MAX_SPANS:
            own = [at for span in spans if span.own for at in range(span.start, span.stop)]
            return Cut(Seen(version, prints, ranges), base.version, _numbered(spans), own)
        if len(items) < SHORT:
            return Cut(Seen(version, prints, 0))
        return Cut(Seen(version, prints, 1), None, [SpliceRange(True, 0, len(items))], range(len(items)))

    def remember(self, place: Hashable, seen: Seen) -> None:
        """Remember a version, and forget the oldest ones beyond the limits."""
        if not seen.prints:
            return
        with self._lock:
            versions = self._seen.setdefault(place, [])
            self._seen.move_to_end(place)
            for other in [other for other in versions if other.version == seen.version]:
                self._drop(versions, other)
            versions.append(seen)
            self._bytes += _size(seen)
            if len(versions) > VERSIONS:
                self._drop(versions, versions[0])
            while self._bytes > MAX_BYTES and len(self._seen) > 1:
                _, gone = self._seen.popitem(last=False)
                self._bytes -= sum(map(_size, gone))
            while self._bytes > MAX_BYTES and len(versions) > 1:
                self._drop(versions, versions[0])

    def _drop(self, versions: list[Seen], seen: Seen) -> None:
        versions.remove(seen)
        self._bytes -= _size(seen)

    def forget(self) -> None:
        """Forget everything: the next version of each list is written in full."""
        with self._lock:
            self._seen.clear()
            self._bytes = 0


def _size(seen: Seen) -> int:
    return sum(map(len, seen.prints))


def _is_worth_it(items: Sequence[Any]) -> bool:
    """Return whether comparing pays off. Numbers are as small as the spans."""
    return bool(items) and not isinstance(items[0], int | float)


@lru_cache(maxsize=1024)
def _mark(kind: type) -> bytes:
    return b"".join((_OBJECT, kind.__module__.encode(), b".", kind.__qualname__.encode(), _OBJECT))


# --- how two lists differ ---------------------------------------------------------------------------------


def _best(prints: Sequence[Print], earlier: Sequence[Seen]) -> tuple[Seen, list[SpliceRange]] | None:
    """Find the earlier version that shares most items with a list, and the spans to take from it."""
    best: tuple[Seen, list[SpliceRange]] | None = None
    most = 0
    for seen in reversed(earlier):
        spans = _compared(prints, seen.prints)
        shared = sum(span.stop - span.start for span in spans if not span.own)
        if shared > most:
            best, most = (seen, spans), shared
        if shared == len(seen.prints):
            break
    return best if 2 * most >= len(prints) else None


def _compared(prints: Sequence[Print], base: Sequence[Print]) -> list[SpliceRange]:
    """Split a list into ranges of an earlier one and of itself (`own`), with indexes into each list."""
    same = _common_start(prints, base)
    spans = [SpliceRange(False, 0, same)] if same else []
    if same == len(base) or same == len(prints):
        return [*spans, SpliceRange(True, same, len(prints))] if same < len(prints) else spans
    places = {item: at for at, item in enumerate(base) if at >= same}
    for at in range(same, len(prints)):
        place = _next(spans, prints[at], base) or places.get(prints[at])
        _add(spans, place is None, at if place is None else place)
    return spans


def _common_start(prints: Sequence[Print], base: Sequence[Print]) -> int:
    shorter = min(len(prints), len(base))
    if prints[:shorter] == base[:shorter]:
        return shorter
    return next(at for at in range(shorter) if prints[at] != base[at])


def _next(spans: Sequence[SpliceRange], item: Print, base: Sequence[Print]) -> int | None:
    """Return the index after the last item taken if `item` is there, so that equal items keep their order."""
    last = spans[-1] if spans else None
    if last is None or last.own or last.stop >= len(base) or base[last.stop] != item:
        return None
    return last.stop


def _share(prints: list[Print], base: Sequence[Print], spans: Sequence[SpliceRange]) -> None:
    """Share the fingerprint objects that two versions have in common."""
    at = 0
    for span in spans:
        length = span.stop - span.start
        if not span.own:
            prints[at : at + length] = base[span.start : span.stop]
        at += length


def _add(spans: list[SpliceRange], own: bool, at: int) -> None:
    if spans and spans[-1].own == own and spans[-1].stop == at:
        spans[-1] = SpliceRange(own, spans[-1].start, at + 1)
    else:
        spans.append(SpliceRange(own, at, at + 1))


def _numbered(spans: Sequence[SpliceRange]) -> list[SpliceRange]:
    """Number the own items among themselves, as they are written."""
    done: list[SpliceRange] = []
    count = 0
    for span in spans:
        if span.own:
            length = span.stop - span.start
            done.append(SpliceRange(True, count, count + length))
            count += length
        else:
            done.append(span)
    return done


def _ranges(base: Seen, spans: Sequence[SpliceRange]) -> int:
    """Count the ranges of a new version. A last own range continues the end of the base."""
    inside = sum(1 for span in spans[:-1] if span.own)
    taken = sum(1 for span in spans if not span.own)
    return base.spans + inside + max(taken - 1, 0)
