"""Conversion of what a graph streams to events of its run, named as LangGraph's clients expect.

A state is stored once: its event refers to its checkpoint. LangGraph streams a state and begins to store its
checkpoint right afterwards, in another task. So an event waits a few turns of the event loop for its
checkpoint. It refers to the checkpoint only if the stored pieces yield exactly the text of the event. This
covers hidden channels, all types, and values changed in place.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import lru_cache
from typing import Any

import msgspec
from langchain_core.messages import BaseMessageChunk, message_chunk_to_message

from perdure.agents.context import Context
from perdure.checkpoints.records import GraphPut, GraphTuple, GraphValue, Piece, Typed
from perdure.checkpoints.view import encode_keys, encode_typed, item_texts, key_text, list_text, value_text
from perdure.kernel.errors import InvalidInput, NotSupported
from perdure.langgraph.wire import debug_payload, encode_value
from perdure.streams.model import REFERENCE_SIZE, VALUES, Shown

# --- the checkpoint of an event ---------------------------------------------------------------------------


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


# --- events -----------------------------------------------------------------------------------------------


MODES = (
    VALUES,
    "updates",
    "custom",
    "messages",
    "messages-tuple",
    "debug",
    "tasks",
    "checkpoints",
    "events",
)
HIDDEN = "langsmith:hidden"


@lru_cache(maxsize=256)
def check_modes(given: tuple[str, ...]) -> tuple[str, ...]:
    modes = tuple(dict.fromkeys(given))
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        raise InvalidInput(f"a graph has no stream mode {unknown[0]!r}; it has {', '.join(MODES)}")
    return modes


def _wanted(modes: tuple[str, ...]) -> list[str]:
    """Return the modes to request from LangGraph, at least one."""
    names = ["messages" if mode == "messages-tuple" else mode for mode in modes if mode != "events"]
    return list(dict.fromkeys(names)) or ["updates"]


async def stream(
    ctx: Context,
    graph: Any,
    input: Any,
    options: Mapping[str, Any],
    shown: ShownStates | None = None,
) -> None:
    """Run the graph to its end, and emit the events of the requested modes in order.

    `options` are arguments of `astream`, including the config. `shown` finds states that are also stored in
    checkpoints.
    """
    modes = check_modes(ctx.stream_mode)
    emitter = _Emitter(ctx, modes, bool(options.get("subgraphs")), shown)
    arguments = {**options, "stream_mode": _wanted(modes)}
    if "events" in modes:
        async with aclosing(graph.astream_events(input, version="v2", **arguments)) as events:
            await _follow_events(ctx, emitter, events)
        return
    async with aclosing(graph.astream(input, **arguments)) as chunks:
        async for chunk in chunks:
            await emitter.chunk(chunk)


async def _follow_events(ctx: Context, emitter: _Emitter, events: AsyncIterator[Any]) -> None:
    """Emit the chunks of the graph itself by their modes, and all other events unchanged."""
    async for event in events:
        if HIDDEN in (event.get("tags") or ()):
            continue
        if event["event"] == "on_chain_stream" and event["run_id"] == ctx.run_id:
            await emitter.chunk(event["data"]["chunk"])
        else:
            await ctx.emit_json(encode_value(event), "events")


class _Emitter:
    """Emits the chunks that LangGraph streams as events."""

    def __init__(
        self, ctx: Context, modes: tuple[str, ...], subgraphs: bool, shown: ShownStates | None
    ) -> None:
        self._ctx = ctx
        self._modes = modes
        self._subgraphs = subgraphs
        self._shown = shown
        self._messages = _Messages(ctx, modes)

    async def chunk(self, chunk: Any) -> None:
        ns, mode, data = chunk if self._subgraphs else ((), *chunk)
        if mode == "messages":
            await self._messages.emit(ns, *data)
        elif mode in self._modes:
            await self._emit(mode, ns, _shown(mode, data))

    async def _emit(self, mode: str, ns: tuple[str, ...], data: Any) -> None:
        body = encode_value(data)
        states = self._shown if mode == VALUES else None
        shown = None if states is None else await states.find(ns, data, body)
        await self._ctx.emit_json(body, _name(mode, ns), shown)


def _name(mode: str, ns: tuple[str, ...]) -> str:
    return "|".join((mode, *ns)) if ns else mode


def _shown(mode: str, data: Any) -> Any:
    if mode == "debug" and data["type"] == "checkpoint":
        return {**data, "payload": debug_payload(data["payload"])}
    return data


class _Messages:
    """Emits growing messages: each piece with `messages-tuple`, the whole message so far with `messages`."""

    def __init__(self, ctx: Context, modes: tuple[str, ...]) -> None:
        self._ctx = ctx
        self._pieces = "messages-tuple" in modes
        self._wholes = "messages" in modes
        self._received: dict[str, Any] = {}

    async def emit(self, ns: tuple[str, ...], message: Any, metadata: Mapping[str, Any]) -> None:
        if self._pieces:
            await self._ctx.emit_json(encode_value([message, metadata]), _name("messages", ns))
        if self._wholes:
            await self._emit_whole(message, metadata)

    async def _emit_whole(self, message: Any, metadata: Mapping[str, Any]) -> None:
        received = self._received.get(message.id)
        if received is None:
            await self._ctx.emit_json(encode_value({message.id: {"metadata": metadata}}), "messages/metadata")
        growing = isinstance(message, BaseMessageChunk)
        whole = received + message if growing and received is not None else message
        self._received[message.id] = whole
        shown = message_chunk_to_message(whole) if growing else whole
        event = "messages/partial" if growing else "messages/complete"
        await self._ctx.emit_json(encode_value([shown]), event)
