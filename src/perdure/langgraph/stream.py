"""Conversion of what a graph streams to events of its run, named as LangGraph's clients expect."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from functools import lru_cache
from typing import Any

from langchain_core.messages import BaseMessageChunk, message_chunk_to_message

from perdure.agents.context import Context
from perdure.kernel.errors import InvalidInput
from perdure.langgraph.shown import ShownStates
from perdure.langgraph.wire import debug_payload, encode_value
from perdure.streams.model import VALUES

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
