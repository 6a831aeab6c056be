"""Creates the graph of an agent from a compiled graph, a builder, or a factory function."""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import Any, Literal

from langgraph.checkpoint.serde.base import SerializerProtocol

from perdure.agents.context import AgentError
from perdure.kernel.errors import InvalidInput
from perdure.langgraph.declared_types import build_serializer
from perdure.langgraph.detect import is_builder, is_graph, names_runtime
from perdure.langgraph.revival import own_types

Access = Literal["threads.create_run", "threads.update", "threads.read", "assistants.read"]
"""What a graph is used for, as its factory sees it."""

EXECUTION: Access = "threads.create_run"


class FactoryContext(typing.NamedTuple):
    """What a factory function may take as arguments."""

    config: Mapping[str, Any]
    access: Access
    store: Any = None
    context: Any = None


class GraphFactory:
    """Gives the graph of an agent. A factory function is called for every use."""

    def __init__(self, name: str, target: Any) -> None:
        self._name = name
        self._target = compiled(name, target)
        self.graph: Any = self._target if is_graph(self._target) else None
        """The graph; None if a factory function creates it."""
        self._arguments = None if self.graph is not None else _arguments(self._target)
        self._serializer: SerializerProtocol | None = None
        self._own = own_types()

    def serializer(self, graph: Any) -> SerializerProtocol:
        """The serializer of the values of the graph."""
        if graph is not self.graph:
            # A factory may import what its graph needs.
            return build_serializer(graph, own_types())
        if self._serializer is None:
            self._serializer = build_serializer(graph, self._own)
        return self._serializer

    @asynccontextmanager
    async def open(self, context: FactoryContext) -> AsyncIterator[Any]:
        """The graph, until the block ends."""
        if self.graph is not None:
            yield self.graph
            return
        made = self._target(**self._given(context))
        made = await made if inspect.isawaitable(made) else made
        if isinstance(made, AbstractAsyncContextManager):
            async with made as graph:
                yield self._checked(graph)
        elif isinstance(made, AbstractContextManager):
            with made as graph:
                yield self._checked(graph)
        else:
            yield self._checked(made)

    def _given(self, context: FactoryContext) -> dict[str, Any]:
        making: dict[str, Callable[[], Any]] = {
            "config": lambda: context.config,
            "runtime": lambda: _runtime(context),
        }
        return {name: making[what]() for name, what in (self._arguments or {}).items()}

    def _checked(self, made: Any) -> Any:
        graph = compiled(self._name, made)
        if is_graph(graph):
            return graph
        raise AgentError(
            f"agent {self._name!r} must take two parameters (ctx, input), or return a graph;"
            f" it returned a {type(made).__name__}"
        )


def compiled(name: str, target: Any) -> Any:
    if not is_builder(target):
        return target
    try:
        return target.compile()
    except Exception as error:
        raise InvalidInput(f"the graph of the agent {name!r} does not compile: {error}") from error


def _arguments(factory: Any) -> dict[str, str]:
    """Which parameters of a factory take the config, and which the server's runtime."""
    parameters = [
        each
        for each in inspect.signature(factory).parameters.values()
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
    kinds = {each.name: "runtime" if names_runtime(each) else "config" for each in parameters}
    return dict(list(kinds.items())[:2])


def _runtime(context: FactoryContext) -> Any:
    from langgraph_sdk.runtime import _ExecutionRuntime, _ReadRuntime

    configurable = context.config.get("configurable") or {}
    user = configurable.get("langgraph_auth_user")
    if context.access == EXECUTION:
        return _ExecutionRuntime(
            access_context=context.access, user=user, store=context.store, context=context.context
        )
    return _ReadRuntime(access_context=context.access, user=user, store=context.store)
