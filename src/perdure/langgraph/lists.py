"""Compares a list with its earlier versions, so that only new items are written.

A fingerprint of each item is remembered when it is written or read, since nodes may change items in place.
It is made of all bytes of the item; for messages and plain data that is much cheaper than serializing.
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
"""The fingerprint of an item."""

MAX_BYTES = 32 << 20
"""How many bytes of fingerprints are remembered, unless one list alone takes more."""
VERSIONS = 3
"""How many versions of each list are remembered."""
MAX_SPANS = 32
"""A list in more ranges than these is written in full."""
SHORT = 4
"""A list with fewer items is written in full."""

# What is not plain data is left to the serializer, which distinguishes types that look alike.
_PLAIN = (
    ormsgpack.OPT_NON_STR_KEYS
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_UUID
    | ormsgpack.OPT_REPLACE_SURROGATES
)
# No plain data begins with this byte.
_OBJECT = b"\xc1"


class Seen(NamedTuple):
    """A version of a list: the fingerprints of its items, and its number of ranges (0 if written in full)."""

    version: str
    prints: Sequence[Print]
    spans: int


class Cut(NamedTuple):
    """How a list is written: in full, or as spans of `base` and of the items at the indexes in `own`."""

    seen: Seen
    base: str | None = None
    spans: list[SpliceRange] | None = None
    own: Sequence[int] = ()


class Lists:
    """The newest versions of lists, by thread, namespace and channel. Thread-safe."""

    def __init__(self, serialize: Callable[[Any], tuple[str, bytes]]) -> None:
        self._serialize = serialize
        self._lock = threading.Lock()
        self._seen: OrderedDict[Hashable, list[Seen]] = OrderedDict()
        self._bytes = 0

    def prints(self, items: Sequence[Any]) -> list[Print]:
        """The fingerprints of items; none for lists where comparing costs more than writing."""
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
        """Decide how to write the next version of a list. `remember` it afterwards."""
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
            known = self._seen.setdefault(place, [])
            self._seen.move_to_end(place)
            for other in [each for each in known if each.version == seen.version]:
                self._drop(known, other)
            known.append(seen)
            self._bytes += _size(seen)
            if len(known) > VERSIONS:
                self._drop(known, known[0])
            while self._bytes > MAX_BYTES and len(self._seen) > 1:
                _, gone = self._seen.popitem(last=False)
                self._bytes -= sum(map(_size, gone))
            while self._bytes > MAX_BYTES and len(known) > 1:
                self._drop(known, known[0])

    def _drop(self, known: list[Seen], seen: Seen) -> None:
        known.remove(seen)
        self._bytes -= _size(seen)

    def forget(self) -> None:
        """Forget everything: the next version of each list is written in full."""
        with self._lock:
            self._seen.clear()
            self._bytes = 0


def _size(seen: Seen) -> int:
    return sum(map(len, seen.prints))


def _is_worth_it(items: Sequence[Any]) -> bool:
    """Whether comparing pays off: numbers are as small as the spans."""
    return bool(items) and not isinstance(items[0], int | float)


@lru_cache(maxsize=1024)
def _mark(kind: type) -> bytes:
    return b"".join((_OBJECT, kind.__module__.encode(), b".", kind.__qualname__.encode(), _OBJECT))


# --- how two lists differ ---------------------------------------------------------------------------------


def _best(prints: Sequence[Print], earlier: Sequence[Seen]) -> tuple[Seen, list[SpliceRange]] | None:
    """The earlier version that shares the most with a list, and the spans to take from it."""
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
    """A list as ranges of an earlier one and of itself (`own`), with indexes into the respective list."""
    same = _common_start(prints, base)
    spans = [SpliceRange(False, 0, same)] if same else []
    if same == len(base) or same == len(prints):
        return [*spans, SpliceRange(True, same, len(prints))] if same < len(prints) else spans
    places = {each: at for at, each in enumerate(base) if at >= same}
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
    """The index after the last one taken, if the item is there: equal items keep their order."""
    last = spans[-1] if spans else None
    if last is None or last.own or last.stop >= len(base) or base[last.stop] != item:
        return None
    return last.stop


def _share(prints: list[Print], base: Sequence[Print], spans: Sequence[SpliceRange]) -> None:
    """Share the fingerprints that two versions have in common."""
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
    """The same spans with the own items numbered among themselves, as they are written."""
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
    """The number of ranges of a new version: a last own range continues where the base ends."""
    inside = sum(1 for span in spans[:-1] if span.own)
    taken = sum(1 for span in spans if not span.own)
    return base.spans + inside + max(taken - 1, 0)
