"""Agents that are LangGraph graphs: compiled ones, builders, and factories. Needs `perdure[langgraph]`."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import typing
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from enum import Enum
from typing import Any
from uuid import UUID

from langchain_core.messages import BaseMessageChunk, message_chunk_to_message
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command, Send
from pydantic import BaseModel

from perdure.assistants.agents import is_builder, is_graph
from perdure.assistants.context import AgentError, Context
from perdure.assistants.graph_saver import RunSaver
from perdure.assistants.records import AgentSpec
from perdure.kernel.errors import InvalidInput, NotSupported

MODES = ("values", "updates", "custom", "messages", "messages-tuple", "debug", "tasks", "checkpoints")
CONFIG_KEYS = ("tags", "run_name", "max_concurrency", "recursion_limit")
RESERVED = ("thread_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map")
"""Keys of `configurable` that a caller cannot give, with all that begin with two underscores."""

logger = logging.getLogger(__name__)


class GraphAgent:
    """Runs a graph. Its state is the thread's: each step is kept, and a retry goes on after the last one."""

    blocking = False

    def __init__(self, name: str, target: Any, description: str | None = None) -> None:
        self._target = _compiled(name, target)
        schema = _input_schema(self._target) if is_graph(self._target) else None
        self.spec = AgentSpec(name=name, description=description, kind="graph", input_schema=schema)

    async def run(self, ctx: Context, input: Any) -> None:
        modes = _modes(ctx.stream_mode)
        config = _config(ctx, self.spec.name)
        async with self._opened(config) as made:
            saver = RunSaver(ctx, _serializer(made))
            graph = saver.graph = made.copy(update={"checkpointer": saver})
            await saver.seed()
            try:
                await _stream(ctx, graph, _beginning(ctx, saver, input), config, modes)
            except Exception:
                await _keep_what_is_there(ctx, saver)
                raise
            if saver.pending:
                await saver.save()

    @asynccontextmanager
    async def _opened(self, config: Mapping[str, Any]) -> AsyncIterator[Any]:
        """The graph; a factory makes one for each run."""
        if is_graph(self._target):
            yield self._target
            return
        made = self._target(config) if _wants_config(self._target) else self._target()
        made = await made if inspect.isawaitable(made) else made
        if isinstance(made, AbstractAsyncContextManager):
            async with made as graph:
                yield self._checked(graph)
        elif isinstance(made, AbstractContextManager):
            with made as graph:
                yield self._checked(graph)
        else:
            yield self._checked(made)

    def _checked(self, made: Any) -> Any:
        graph = _compiled(self.spec.name, made)
        if is_graph(graph):
            return graph
        raise AgentError(
            f"the agent {self.spec.name!r} made a {type(made).__name__}, which is no graph;"
            " an agent that is a function takes (ctx, input)"
        )


async def _keep_what_is_there(ctx: Context, saver: RunSaver) -> None:
    """Keep what the parts of a failed step have done, so that a retry need not do it again."""
    if not saver.pending or saver.graph is None:
        return
    try:
        await saver.save()
    except Exception:
        ctx.logger.warning("what a failed step has done could not be kept", exc_info=True)


def _compiled(name: str, target: Any) -> Any:
    if not is_builder(target):
        return target
    try:
        return target.compile()
    except Exception as error:
        raise InvalidInput(f"the graph of the agent {name!r} does not compile: {error}") from error


def _wants_config(factory: Any) -> bool:
    parameters = inspect.signature(factory).parameters.values()
    return any(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters)


def _input_schema(graph: Any) -> dict[str, Any] | None:
    try:
        return dict(graph.get_input_jsonschema())
    except Exception as error:  # noqa: BLE001 - a schema is a courtesy; types of the user's own may have none
        logger.debug("a graph has no schema of its input: %s", error)
        return None


# --- what a run begins with -------------------------------------------------------------------------------


def _config(ctx: Context, name: str) -> dict[str, Any]:
    given = ctx.config
    own = {
        "thread_id": ctx.thread_id,
        "run_id": ctx.run_id,
        "assistant_id": ctx.assistant_id,
        "graph_id": name,
    }
    told = {**ctx.metadata, **(given.get("metadata") or {}), **own, "run_attempt": ctx.attempt}
    return {
        **{key: given[key] for key in CONFIG_KEYS if given.get(key) is not None},
        "configurable": {**ctx.context, **_configurable(given), **own},
        "metadata": told,
        "run_id": _uuid(ctx.run_id),
    }


def _configurable(config: Mapping[str, Any]) -> dict[str, Any]:
    given = config.get("configurable") or {}
    return {key: given[key] for key in given if key not in RESERVED and not key.startswith("__")}


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _beginning(ctx: Context, saver: RunSaver, input: Any) -> Any:
    """What the graph gets: nothing where an earlier attempt got on, a command, or the input."""
    if saver.begun:
        return None
    command = ctx.command
    if not command:
        return input
    given = {key: command[key] for key in ("resume", "update") if command.get(key) is not None}
    goto = command.get("goto")
    if goto:
        given["goto"] = [_goto(each) for each in ([goto] if isinstance(goto, str | Mapping) else goto)]
    return Command(**given)


def _goto(target: Any) -> Any:
    return Send(target["node"], target.get("input")) if isinstance(target, Mapping) else target


def _serializer(graph: Any) -> JsonPlusSerializer:
    """Reads back plain data, LangGraph's own types, and those that the graph's channels declare."""
    if any(type(channel).__name__ == "DeltaChannel" for channel in graph.channels.values()):
        raise NotSupported("graphs with a DeltaChannel are not supported: their state is in many pieces")
    found: set[type] = set()
    for channel in graph.channels.values():
        for declared in (channel.ValueType, channel.UpdateType):
            _collect(declared, found)
    own = [(each.__module__, each.__name__) for each in found]
    return JsonPlusSerializer(pickle_fallback=False, allowed_msgpack_modules=own or None)


def _collect(declared: Any, found: set[type]) -> None:
    """Find the classes with values of their own that a type is made of."""
    for part in typing.get_args(declared):
        _collect(part, found)
    if not isinstance(declared, type) or declared in found or declared.__module__ == "builtins":
        return
    if issubclass(declared, Enum | BaseModel | tuple) or dataclasses.is_dataclass(declared):
        found.add(declared)
        for part in _hints(declared):
            _collect(part, found)
    elif typing.is_typeddict(declared):
        for part in _hints(declared):
            _collect(part, found)


def _hints(declared: type) -> Iterable[Any]:
    try:
        return typing.get_type_hints(declared).values()
    except (NameError, TypeError) as error:
        logger.debug("the types of %s cannot be read: %s", declared.__name__, error)
        return ()


# --- what a run tells -------------------------------------------------------------------------------------


def _modes(asked: Iterable[str]) -> tuple[str, ...]:
    modes = tuple(dict.fromkeys(asked))
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        raise InvalidInput(f"a graph has no stream mode {unknown[0]!r}; it has {', '.join(MODES)}")
    return modes


async def _stream(
    ctx: Context, graph: Any, beginning: Any, config: dict[str, Any], modes: tuple[str, ...]
) -> None:
    options = ctx.options
    subgraphs = bool(options.get("stream_subgraphs"))
    wanted = list(dict.fromkeys("messages" if mode == "messages-tuple" else mode for mode in modes))
    messages = _Messages(ctx, modes)
    async for item in graph.astream(
        beginning,
        config,
        context=_context(ctx, graph),
        stream_mode=wanted or ["values"],
        interrupt_before=options.get("interrupt_before"),
        interrupt_after=options.get("interrupt_after"),
        durability="sync",
        subgraphs=subgraphs,
    ):
        ns, mode, data = item if subgraphs else ((), *item)
        if mode == "messages":
            await messages.tell(ns, *data)
        elif mode in modes:
            await ctx.emit(data, "|".join((mode, *ns)))


def _context(ctx: Context, graph: Any) -> Any:
    given = dict(ctx.context)
    if given or getattr(graph, "context_schema", None) is None:
        return given or None
    return _configurable(ctx.config) or None


class _Messages:
    """Tells of messages as they grow: each piece with `messages-tuple`, the whole so far with `messages`."""

    def __init__(self, ctx: Context, modes: tuple[str, ...]) -> None:
        self._ctx = ctx
        self._pieces = "messages-tuple" in modes
        self._wholes = "messages" in modes
        self._known: dict[str, Any] = {}

    async def tell(self, ns: tuple[str, ...], message: Any, metadata: Mapping[str, Any]) -> None:
        if self._pieces:
            await self._ctx.emit([message, metadata], "|".join(("messages", *ns)))
        if self._wholes:
            await self._tell_whole(ns, message, metadata)

    async def _tell_whole(self, ns: tuple[str, ...], message: Any, metadata: Mapping[str, Any]) -> None:
        known = self._known.get(message.id)
        if known is None:
            await self._ctx.emit({message.id: {"metadata": metadata}}, "|".join(("messages/metadata", *ns)))
        growing = isinstance(message, BaseMessageChunk)
        whole = known + message if growing and known is not None else message
        self._known[message.id] = whole
        shown = message_chunk_to_message(whole) if growing else whole
        event = "messages/partial" if growing else "messages/complete"
        await self._ctx.emit([shown], "|".join((event, *ns)))
