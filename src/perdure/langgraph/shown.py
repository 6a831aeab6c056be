"""Finds the checkpoint that a `values` event shows, so that the state is stored once.

LangGraph gives a state to its stream and begins to store the checkpoint right after it, in a task of its own.
So an event waits a few turns of the loop for its checkpoint. It refers to it only if the stored pieces give
exactly the text of the event: whichever channels are shown, whatever types they have, and whether something
was changed in place meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from perdure.checkpoints.records import GraphPut, GraphTuple, GraphValue, Piece, Typed
from perdure.checkpoints.texts import encode_keys, encode_typed, item_texts, key_text, list_text, value_text
from perdure.kernel.errors import InvalidInput, NotSupported
from perdure.streams.model import REFERENCE_SIZE, Shown

TURNS = 4
"""So many turns of the loop an event waits for its checkpoint."""
MISSES = 3
"""After so many events without one, the next ones do not wait: nothing is stored on the way, or only the
graph's own code can show it."""
VERSIONS = 4
"""So many versions of each channel are remembered; a list is based on one of the last few."""


class _Text(msgspec.Struct):
    """The JSON text of a version of a channel: made of its items, or of its value when it is asked for."""

    version: str
    value: Typed | None = None
    items: list[str] | None = None
    known: str | None = None

    def text(self) -> str | None:
        """The text; None if only the serializer of the value knows it."""
        if self.items is not None:
            return list_text(self.items)
        if self.known is None and self.value is not None:
            value, self.value = self.value, None
            with suppress(InvalidInput, NotSupported):
                self.known = encode_typed(value)
        return self.known


class _Namespace:
    """What is known of the graph, or of one of its subgraphs."""

    def __init__(self) -> None:
        self.texts: dict[str, list[_Text]] = {}
        self.put: GraphPut | None = None
        self.misses = 0
        """So many events in a row showed no checkpoint."""

    def text(self, channel: str, version: str) -> _Text | None:
        return next((each for each in self.texts.get(channel, ()) if each.version == version), None)

    def remember(self, channel: str, text: _Text | None) -> None:
        if text is None:
            return
        known = self.texts.setdefault(channel, [])
        known.append(text)
        del known[:-VERSIONS]


class ShownStates:
    """The states of one run. Safe from many threads, since sync nodes run subgraphs in threads of theirs."""

    def __init__(self) -> None:
        self.single: str | None = None
        """The channel whose value is the state of the graph, where it has no others."""
        self._lock = threading.Lock()
        self._namespaces: dict[str, _Namespace] = {}

    def read(self, found: GraphTuple) -> None:
        """A checkpoint was read, which the next ones build on."""
        known: dict[Typed, list[str]] = {}
        with self._lock:
            place = self._at(found.checkpoint_ns)
            for value in found.values:
                if place.text(value.channel, value.version) is None:
                    place.remember(value.channel, _text_read(value, known))

    def stored(self, put: GraphPut) -> None:
        """A checkpoint is on its way."""
        with self._lock:
            place = self._at(put.checkpoint_ns)
            for piece in put.pieces:
                place.remember(piece.channel, _text_stored(piece, place))
            place.put = put

    async def find(self, namespace: tuple[str, ...], data: Any, body: str) -> Shown | None:
        """The checkpoint that gives the text `body` of the state `data`, if there is one by now."""
        name = "|".join(namespace)
        keys = self._keys(name, data) if len(body) >= REFERENCE_SIZE else None
        if keys is None:
            return None
        place = self._at(name)
        turns = TURNS if place.misses < MISSES else 0
        compared: GraphPut | None = None
        while True:
            with self._lock:
                put = place.put
                if put is not compared and put is not None and self._is_shown(place, put, keys, body):
                    place.misses = 0
                    return Shown(put.checkpoint_id, put.checkpoint_ns, encode_keys(keys))
            compared = put
            if not turns:
                place.misses += 1
                return None
            turns -= 1
            await asyncio.sleep(0)

    def _keys(self, name: str, data: Any) -> list[str] | str | None:
        if not name and self.single is not None:
            return self.single
        return list(data) if type(data) is dict and all(type(key) is str for key in data) else None

    def _at(self, name: str) -> _Namespace:
        found = self._namespaces.get(name)
        return self._namespaces.setdefault(name, _Namespace()) if found is None else found

    def _is_shown(self, place: _Namespace, put: GraphPut, keys: list[str] | str, body: str) -> bool:
        """Whether a checkpoint gives this text."""
        wanted = [keys] if isinstance(keys, str) else keys
        known: list[str] = []
        for key in wanted:
            found = place.text(key, str(put.versions[key])) if key in put.versions else None
            text = None if found is None else found.text()
            if text is None:
                return False
            known.append(text)
        return body == known[0] if isinstance(keys, str) else _is_object(body, keys, known)


def _text_read(value: GraphValue, known: dict[Typed, list[str]]) -> _Text | None:
    """The text of a version that was read; None if only its own serializer knows it."""
    if value.parts is None:
        return _Text(value.version, value=value.value)
    try:
        value_text(value, known)
    except (InvalidInput, NotSupported):
        return None
    items = [each for part in value.parts for each in known[part.items][part.start : part.stop]]
    return _Text(value.version, items=items)


def _text_stored(piece: Piece, place: _Namespace) -> _Text | None:
    """The same of a version that is stored."""
    if piece.spans is None:
        return _Text(piece.version, value=piece.value)
    try:
        own = item_texts(piece.value) if piece.value is not None else []
    except (InvalidInput, NotSupported):
        return None
    base = None if piece.base is None else place.text(piece.channel, piece.base)
    items: list[str] = []
    for span in piece.spans:
        if span.own:
            items += own[span.start : span.stop]
        elif base is None or base.items is None:
            return None
        else:
            items += base.items[span.start : span.stop]
    return _Text(piece.version, items=items)


def _is_object(body: str, keys: Sequence[str], texts: Sequence[str]) -> bool:
    """Whether a text is that of an object with these values, without making it a second time."""
    at, start = 0, "{"
    for key, text in zip(keys, texts, strict=True):
        head = start + key_text(key)
        if not body.startswith(head, at) or not body.startswith(text, at + len(head)):
            return False
        at += len(head) + len(text)
        start = ","
    return body[at:] == "}" and bool(keys)
