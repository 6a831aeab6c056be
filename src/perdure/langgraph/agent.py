"""Agents that are LangGraph graphs: compiled graphs, builders, and factories. Needs `perdure[langgraph]`."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from uuid import UUID

from langgraph.types import Command, Send
from pydantic import BaseModel, TypeAdapter, ValidationError

from perdure.agents.context import AgentError, Context
from perdure.agents.functions import format_reason
from perdure.agents.records import AgentSpec
from perdure.langgraph.codec import GraphCodec
from perdure.langgraph.factory import EXECUTION, FactoryContext, GraphFactory
from perdure.langgraph.saver import RunSaver
from perdure.langgraph.shapes import input_schema
from perdure.langgraph.store import ItemStore, enter_run
from perdure.langgraph.stream import check_modes, stream

CONFIG_KEYS = ("tags", "run_name", "max_concurrency", "recursion_limit")
RESERVED = ("thread_id", "run_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map")
"""Keys of `configurable` that a caller cannot set, like all keys that begin with two underscores."""
CHECKPOINT_KEYS = ("checkpoint_id", "checkpoint_ns", "checkpoint_map")
"""Keys that name the checkpoint to continue from."""

SERVERS = "langgraph_"
"""Prefix of the keys of `configurable` that the server sets."""

UNNAMED = "LangGraph"

logger = logging.getLogger(__name__)


class GraphAgent:
    """Runs a graph on a thread's state. Each step is stored, and a retry continues after the last step."""

    blocking = False

    def __init__(self, name: str, target: Any, description: str | None = None) -> None:
        self.factory = GraphFactory(name, target)
        graph = self.factory.graph
        schema = None if graph is None else input_schema(graph)
        self.spec = AgentSpec(name=name, description=description, kind="graph", input_schema=schema)

    async def run(self, ctx: Context, input: Any) -> None:
        check_modes(ctx.stream_mode)
        config = _config(ctx, self.spec.name)
        store = _store(ctx)
        enter_run(ctx)
        context = FactoryContext(config, EXECUTION, store, _context(ctx))
        if self.factory.graph is not None:
            await self._run(ctx, input, self.factory.graph, context)
            return
        async with self.factory.open(context) as graph:
            await self._run(ctx, input, graph, context)

    async def _run(self, ctx: Context, input: Any, opened: Any, context: FactoryContext) -> None:
        config, store = context.config, context.store
        codec = GraphCodec(self.factory.serializer(opened))
        saver = RunSaver(ctx, codec, durable=get_durability(ctx.options) == "sync")
        graph = with_checkpointer(opened, self.spec.name, saver, store)
        await saver.start(graph)
        checkpoint = _requested_checkpoint(ctx)
        first = await saver.initial_input(input, _command(ctx), addressed=bool(checkpoint))
        if not saver.resumed:
            config["configurable"].update(checkpoint)
        options = _options(ctx, graph, config, context.context)
        await stream(ctx, graph, first, options, saver.shown)
        await saver.finish()


def with_checkpointer(original: Any, name: str, saver: Any, store: Any) -> Any:
    """Copy a graph, with perdure's checkpointer, its store if there is one, and a name."""
    graph = copy.copy(original)
    graph.checkpointer = saver
    if store is not None:
        graph.store = store
    if graph.name in (None, UNNAMED):
        graph.name = name
    return graph


def _store(ctx: Context) -> Any:
    """Return the store for the graph's nodes, if the run has one."""
    return None if ctx.items is None else ItemStore(ctx.items.batch, ctx.items.wait)


# --- config, context and command of a run -----------------------------------------------------------------


def _config(ctx: Context, name: str) -> dict[str, Any]:
    run_config = ctx.config
    own = {
        "thread_id": ctx.thread_id,
        "run_id": ctx.run_id,
        "assistant_id": ctx.assistant_id,
        "graph_id": name,
    }
    metadata = {**ctx.metadata, **(run_config.get("metadata") or {}), **own, "run_attempt": ctx.attempt}
    return {
        **{key: run_config[key] for key in CONFIG_KEYS if run_config.get(key) is not None},
        "configurable": {**_get_user(run_config), **ctx.context, **get_configurable(run_config), **own},
        "metadata": metadata,
        "run_id": _uuid(ctx.run_id),
    }


def _get_user(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the user that created the run, as a default for the caller's own value."""
    return {"user_id": str((config.get("configurable") or {}).get("langgraph_auth_user_id") or "")}


def get_configurable(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of `configurable` that a caller may set."""
    given = config.get("configurable") or {}
    return {key: given[key] for key in given if key not in RESERVED and not key.startswith("__")}


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _context(ctx: Context) -> dict[str, Any] | None:
    """Return the run's context, otherwise its `configurable`."""
    given = get_configurable(ctx.config)
    return dict(ctx.context) or {key: given[key] for key in given if not key.startswith(SERVERS)} or None


def _fitting_context(context: dict[str, Any] | None, graph: Any) -> Any:
    """Convert the context to the graph's schema, with its defaults; AgentError if it does not fit."""
    schema: Any = getattr(graph, "context_schema", None)
    if schema is None:
        return context
    names = _get_names(schema)
    fields = {key: part for key, part in (context or {}).items() if not names or key in names}
    if not _is_record(schema):
        return fields
    try:
        return schema(**fields)
    except (ValidationError, TypeError, ValueError) as error:
        raise AgentError(
            f"the context does not fit {schema.__name__} of graph {graph.name!r}: {format_reason(error)}",
            error=type(error).__name__,
        ) from error


def _is_record(schema: Any) -> bool:
    return isinstance(schema, type) and (dataclasses.is_dataclass(schema) or issubclass(schema, BaseModel))


@lru_cache(maxsize=256)
def _get_names(schema: type) -> frozenset[str]:
    """Return the fields of a context; none if it has no schema."""
    try:
        return frozenset(TypeAdapter(schema).json_schema().get("properties") or ())
    except Exception as error:  # noqa: BLE001 - types of users may have no schema
        logger.debug("no schema of the graph's context: %s", error)
        return frozenset()


def _requested_checkpoint(ctx: Context) -> dict[str, Any]:
    """Return the keys of the checkpoint to continue from."""
    if ctx.from_checkpoint is None or ctx.checkpoint is None or not ctx.checkpoint.graph:
        return {}
    given = ctx.options.get("checkpoint") or {}
    named = {key: given[key] for key in CHECKPOINT_KEYS if given.get(key) is not None}
    return {"checkpoint_ns": "", "checkpoint_id": ctx.from_checkpoint, **named}


def _command(ctx: Context) -> Command[Any] | None:
    return None if not ctx.command else build_command(ctx.command)


def build_command(command: Mapping[str, Any]) -> Command[Any]:
    """Build a LangGraph command from its JSON form."""
    given = {key: command[key] for key in ("resume", "update") if command.get(key) is not None}
    if _is_pairs(given.get("update")):
        given["update"] = [tuple(pair) for pair in given["update"]]
    goto = command.get("goto")
    if goto:
        given["goto"] = [_goto(target) for target in ([goto] if isinstance(goto, str | Mapping) else goto)]
    return Command(**given)


def _is_pairs(update: Any) -> bool:
    return isinstance(update, list) and all(
        isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in update
    )


def _goto(target: Any) -> Any:
    return Send(target["node"], target.get("input")) if isinstance(target, Mapping) else target


def _options(
    ctx: Context, graph: Any, config: Mapping[str, Any], context: dict[str, Any] | None
) -> dict[str, Any]:
    options = ctx.options
    return {
        "config": config,
        "context": _fitting_context(context, graph),
        "output_keys": graph.output_channels,
        "interrupt_before": options.get("interrupt_before"),
        "interrupt_after": options.get("interrupt_after"),
        "durability": get_durability(options),
        "subgraphs": bool(options.get("stream_subgraphs")),
    }


def get_durability(options: Mapping[str, Any]) -> str:
    """Return when the steps of a run are stored: before the next step, soon after each, or at the end."""
    given = options.get("durability")
    if given in ("sync", "async", "exit"):
        return str(given)
    return "exit" if options.get("checkpoint_during") is False else "async"
