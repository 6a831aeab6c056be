"""Creation of an agent's graph from a compiled graph, a builder, or a factory function."""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import Any, Literal

from langgraph.checkpoint.serde.base import SerializerProtocol

from perdure.agents.context import AgentError
from perdure.kernel.errors import InvalidInput
from perdure.langgraph.detect import is_builder, is_graph, names_runtime
from perdure.langgraph.revival import build_serializer, own_types

Access = Literal["threads.create_run", "threads.update", "threads.read", "assistants.read"]
"""Purpose for which a factory creates a graph."""

EXECUTION: Access = "threads.create_run"


class FactoryContext(typing.NamedTuple):
    """Values that a factory function may take as arguments."""

    config: Mapping[str, Any]
    access: Access
    store: Any = None
    context: Any = None


class GraphFactory:
    """Opens the graph of an agent. A factory function is called for every use."""

    def __init__(self, name: str, target: Any) -> None:
        self._name = name
        self._target = compiled(name, target)
        self.graph: Any = self._target if is_graph(self._target) else None
        """The graph; None if a factory function creates it."""
        self._arguments = None if self.graph is not None else _arguments(self._target)
        self._serializer: SerializerProtocol | None = None
        self._own = own_types()

    def serializer(self, graph: Any) -> SerializerProtocol:
        """Return the serializer of the graph's values."""
        if graph is not self.graph:
            # A factory may import what its graph needs.
            return build_serializer(graph, own_types())
        if self._serializer is None:
            self._serializer = build_serializer(graph, self._own)
        return self._serializer

    @asynccontextmanager
    async def open(self, context: FactoryContext) -> AsyncIterator[Any]:
        """Open the graph until the block ends."""
        if self.graph is not None:
            yield self.graph
            return
        builders: dict[str, Callable[[], Any]] = {
            "config": lambda: context.config,
            "runtime": lambda: _runtime(context),
        }
        arguments = {name: builders[what]() for name, what in (self._arguments or {}).items()}
        opened = self._target(**arguments)
        opened = await opened if inspect.isawaitable(opened) else opened
        if isinstance(opened, AbstractAsyncContextManager):
            async with opened as graph:
                yield self._checked(graph)
        elif isinstance(opened, AbstractContextManager):
            with opened as graph:
                yield self._checked(graph)
        else:
            yield self._checked(opened)

    def _checked(self, returned: Any) -> Any:
        graph = compiled(self._name, returned)
        if is_graph(graph):
            return graph
        raise AgentError(
            f"agent {self._name!r} must take two parameters (ctx, input), or return a graph;"
            f" it returned a {type(returned).__name__}"
        )


def compiled(name: str, target: Any) -> Any:
    if not is_builder(target):
        return target
    try:
        return target.compile()
    except Exception as error:
        raise InvalidInput(f"the graph of the agent {name!r} does not compile: {error}") from error


def _arguments(factory: Any) -> dict[str, str]:
    """Return which parameters of a factory take the config and which the server's runtime."""
    parameters = [
        parameter
        for parameter in inspect.signature(factory).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    kinds = {parameter.name: "runtime" if names_runtime(parameter) else "config" for parameter in parameters}
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
