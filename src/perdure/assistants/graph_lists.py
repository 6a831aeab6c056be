"""How a list differs from its earlier versions, so that only what is new in it is written.

What an item is made of is written down when it is kept or read, since nodes may change their items in place.
Two items are the same if they are made of the same; what cannot be taken apart is compared by its bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel

from perdure.graphs.records import Span

Print = Hashable
"""What an item is made of."""

MAX_ITEMS = 50_000
"""So many items are remembered in all."""
VERSIONS = 3
"""So many versions of each list are remembered."""
MAX_SPANS = 32
"""A list in more ranges than these is written anew."""
SHORT = 4
"""A list with fewer items is written as a whole."""

_ATOMS = frozenset({str, int, bytes, type(None)})
_TRUE, _FALSE = object(), object()


class Seen(NamedTuple):
    """A version of a list: its items, and in how many ranges they lie; in none if it was written whole."""

    version: str
    prints: Sequence[Print]
    spans: int


class Cut(NamedTuple):
    """How a list is written: whole, or in spans of `base` and of the items at the places in `own`."""

    seen: Seen
    base: str | None = None
    spans: list[Span] | None = None
    own: Sequence[int] = ()


class _Opaque(Exception):
    """Something that cannot be taken apart."""


class Lists:
    """The newest versions of lists, by the places where they are kept. Safe from many threads."""

    def __init__(self, serialize: Callable[[Any], tuple[str, bytes]]) -> None:
        self._serialize = serialize
        self._lock = threading.Lock()
        self._seen: OrderedDict[Hashable, list[Seen]] = OrderedDict()
        self._items = 0

    def prints(self, items: Sequence[Any]) -> list[Print]:
        """What each item is made of."""
        return [item if type(item) is str else self._print(item) for item in items]

    def _print(self, item: Any) -> Print:
        found: list[Any] = []
        try:
            _take_apart(item, found)
        except _Opaque:
            form, body = self._serialize(item)
            return (type(item), form, hashlib.blake2b(body, digest_size=20).digest())
        return tuple(found)

    def cut(self, place: Hashable, version: str, items: Sequence[Any]) -> Cut:
        """How the next version of a list is written. Once that is done, `remember` it."""
        if not _is_worth_it(items):
            return Cut(Seen(version, (), 0))
        prints = self.prints(items)
        with self._lock:
            earlier = list(self._seen.get(place, ()))
        best = _best(prints, earlier)
        if best is None:
            return Cut(Seen(version, prints, 0))
        base, spans = best
        own = [at for span in spans if span.own for at in range(span.start, span.stop)]
        if base.spans and (ranges := _ranges(base, spans)) <= MAX_SPANS:
            return Cut(Seen(version, prints, ranges), base.version, _numbered(spans), own)
        if len(items) < SHORT:
            return Cut(Seen(version, prints, 0))
        return Cut(Seen(version, prints, 1), None, [Span(True, 0, len(items))], range(len(items)))

    def remember(self, place: Hashable, seen: Seen) -> None:
        """Keep a version in mind, and forget what is oldest where it is too much."""
        if not seen.prints:
            return
        with self._lock:
            known = self._seen.setdefault(place, [])
            self._seen.move_to_end(place)
            for other in [each for each in known if each.version == seen.version]:
                self._drop(known, other)
            known.append(seen)
            self._items += len(seen.prints)
            if len(known) > VERSIONS:
                self._drop(known, known[0])
            while self._items > MAX_ITEMS and len(self._seen) > 1:
                _, gone = self._seen.popitem(last=False)
                self._items -= sum(len(each.prints) for each in gone)

    def _drop(self, known: list[Seen], seen: Seen) -> None:
        known.remove(seen)
        self._items -= len(seen.prints)

    def forget(self) -> None:
        """Know nothing any more: the next version of each list is written whole."""
        with self._lock:
            self._seen.clear()
            self._items = 0


def _is_worth_it(items: Sequence[Any]) -> bool:
    """Numbers take no more room than the words about them."""
    return bool(items) and not isinstance(items[0], int | float)


# --- what an item is made of ------------------------------------------------------------------------------


def _take_apart(item: Any, found: list[Any]) -> None:
    """Add what an item is made of: its texts and numbers, with the kind and size of what holds them."""
    kind = type(item)
    if kind in _ATOMS:
        found.append(item)
    elif kind is dict:
        found += (dict, len(item))
        for key, value in item.items():
            _take_apart(key, found)
            _take_apart(value, found)
    elif kind is list or kind is tuple:
        found += (kind, len(item))
        for value in item:
            _take_apart(value, found)
    elif kind is bool:
        found.append(_TRUE if item else _FALSE)
    elif kind is float:
        found += (float, item.hex())
    else:
        _take_object_apart(item, kind, found)


def _take_object_apart(item: Any, kind: type, found: list[Any]) -> None:
    found.append(kind)
    if isinstance(item, BaseModel):
        for value in vars(item).values():
            _take_apart(value, found)
        _take_apart(item.__pydantic_extra__, found)
    elif dataclasses.is_dataclass(item):
        for each in dataclasses.fields(item):
            _take_apart(getattr(item, each.name), found)
    else:
        raise _Opaque


# --- how two lists differ ---------------------------------------------------------------------------------


def _best(prints: Sequence[Print], earlier: Sequence[Seen]) -> tuple[Seen, list[Span]] | None:
    """The version that shares the most with a list, the newest first, and what is to be taken from it."""
    best: tuple[Seen, list[Span]] | None = None
    most = 0
    for seen in reversed(earlier):
        spans = _compared(prints, seen.prints)
        shared = sum(span.stop - span.start for span in spans if not span.own)
        if shared > most:
            best, most = (seen, spans), shared
        if shared == len(seen.prints):
            break
    return best if 2 * most >= len(prints) else None


def _compared(prints: Sequence[Print], base: Sequence[Print]) -> list[Span]:
    """A list in ranges of an earlier one and of itself (`own`); places are those in the respective list."""
    same = _common_start(prints, base)
    spans = [Span(False, 0, same)] if same else []
    if same == len(base) or same == len(prints):
        return [*spans, Span(True, same, len(prints))] if same < len(prints) else spans
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


def _next(spans: Sequence[Span], item: Print, base: Sequence[Print]) -> int | None:
    """The place after the last one that was taken, if the item stands there: equal ones keep their order."""
    last = spans[-1] if spans else None
    if last is None or last.own or last.stop >= len(base) or base[last.stop] != item:
        return None
    return last.stop


def _add(spans: list[Span], own: bool, at: int) -> None:
    if spans and spans[-1].own == own and spans[-1].stop == at:
        spans[-1] = Span(own, spans[-1].start, at + 1)
    else:
        spans.append(Span(own, at, at + 1))


def _numbered(spans: Sequence[Span]) -> list[Span]:
    """The same with the own items counted among themselves, as they are written."""
    done: list[Span] = []
    count = 0
    for span in spans:
        if span.own:
            length = span.stop - span.start
            done.append(Span(True, count, count + length))
            count += length
        else:
            done.append(span)
    return done


def _ranges(base: Seen, spans: Sequence[Span]) -> int:
    """In how many ranges a new version will lie: what comes last is written where the base ends."""
    inside = sum(1 for span in spans[:-1] if span.own)
    taken = sum(1 for span in spans if not span.own)
    return base.spans + inside + max(taken - 1, 0)
