"""Search for the checkpoint that a `values` event shows, so that the state is stored once.

LangGraph streams a state and begins to store its checkpoint right afterwards, in another task. So an event
waits a few turns of the event loop for its checkpoint. It refers to the checkpoint only if the stored pieces
yield exactly the text of the event. This covers hidden channels, all types, and values changed in place.
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
"""Turns of the event loop that an event waits for its checkpoint."""
MISSES = 3
"""After this number of events without a checkpoint, events do not wait: the graph stores nothing between
steps, or only its own code can show its states."""
VERSIONS = 4
"""Number of versions of each channel that are remembered; a list builds on one of the last few."""


class _Text(msgspec.Struct):
    """JSON text of a channel's version, built from its items, or on demand from its value."""

    version: str
    value: Typed | None = None
    items: list[str] | None = None
    cached: str | None = None

    def text(self) -> str | None:
        """Return the text; None if only the serializer can read the value."""
        if self.items is not None:
            return list_text(self.items)
        if self.cached is None and self.value is not None:
            value, self.value = self.value, None
            with suppress(InvalidInput, NotSupported):
                self.cached = encode_typed(value)
        return self.cached


class _Namespace:
    """Texts and last checkpoint of the graph, or of one of its subgraphs."""

    def __init__(self) -> None:
        self.texts: dict[str, list[_Text]] = {}
        self.put: GraphPut | None = None
        self.misses = 0
        """Number of consecutive events without a checkpoint."""

    def text(self, channel: str, version: str) -> _Text | None:
        return next((text for text in self.texts.get(channel, ()) if text.version == version), None)

    def remember(self, channel: str, text: _Text | None) -> None:
        if text is None:
            return
        texts = self.texts.setdefault(channel, [])
        texts.append(text)
        del texts[:-VERSIONS]


class ShownStates:
    """States of one run. Thread-safe, since sync nodes run subgraphs in their own threads."""

    def __init__(self) -> None:
        self.single: str | None = None
        """Channel whose value is the state of a graph without other channels."""
        self._lock = threading.Lock()
        self._namespaces: dict[str, _Namespace] = {}

    def read(self, stored: GraphTuple) -> None:
        """Remember a checkpoint that was read, because later ones build on it."""
        item_texts: dict[Typed, list[str]] = {}
        with self._lock:
            place = self._at(stored.checkpoint_ns)
            for value in stored.values:
                if place.text(value.channel, value.version) is None:
                    place.remember(value.channel, _text_read(value, item_texts))

    def stored(self, put: GraphPut) -> None:
        """Remember a checkpoint that is being stored."""
        with self._lock:
            place = self._at(put.checkpoint_ns)
            for piece in put.pieces:
                place.remember(piece.channel, _text_stored(piece, place))
            place.put = put

    async def find(self, namespace: tuple[str, ...], data: Any, body: str) -> Shown | None:
        """Find the checkpoint whose text of the state `data` is `body`, if it exists by now."""
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
        namespace = self._namespaces.get(name)
        return self._namespaces.setdefault(name, _Namespace()) if namespace is None else namespace

    def _is_shown(self, place: _Namespace, put: GraphPut, keys: list[str] | str, body: str) -> bool:
        """Return whether a checkpoint yields this text."""
        wanted = [keys] if isinstance(keys, str) else keys
        texts: list[str] = []
        for key in wanted:
            version = place.text(key, str(put.versions[key])) if key in put.versions else None
            text = None if version is None else version.text()
            if text is None:
                return False
            texts.append(text)
        return body == texts[0] if isinstance(keys, str) else _is_object(body, keys, texts)


def _text_read(value: GraphValue, known_items: dict[Typed, list[str]]) -> _Text | None:
    """Build the text of a version that was read; None if only its own serializer can read it."""
    if value.parts is None:
        return _Text(value.version, value=value.value)
    try:
        value_text(value, known_items)
    except (InvalidInput, NotSupported):
        return None
    items = [text for part in value.parts for text in known_items[part.items][part.start : part.stop]]
    return _Text(value.version, items=items)


def _text_stored(piece: Piece, place: _Namespace) -> _Text | None:
    """Build the text of a version that is being stored; None if only its own serializer can read it."""
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
    """Return whether a text is an object with these values, without building the object's text again."""
    at, start = 0, "{"
    for key, text in zip(keys, texts, strict=True):
        head = start + key_text(key)
        if not body.startswith(head, at) or not body.startswith(text, at + len(head)):
            return False
        at += len(head) + len(text)
        start = ","
    return body[at:] == "}" and bool(keys)
