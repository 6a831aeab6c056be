"""Where a graph comes from: an object that is one, a builder to compile, or a function that makes one."""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import Any, Literal

from langgraph.checkpoint.serde.base import SerializerProtocol

from perdure.agents.context import AgentError
from perdure.kernel.errors import InvalidInput
from perdure.langgraph.declared_types import serializer_of
from perdure.langgraph.detect import is_builder, is_graph, names_runtime

Access = Literal["threads.create_run", "threads.update", "threads.read", "assistants.read"]
"""What a graph is made for; its factory may want to know."""

EXECUTION: Access = "threads.create_run"


class Surroundings(typing.NamedTuple):
    """What a factory may ask for."""

    config: Mapping[str, Any]
    access: Access
    store: Any = None
    context: Any = None


class GraphFactory:
    """Gives the graph of an agent; one that is made by a function is made anew for every use."""

    def __init__(self, name: str, target: Any) -> None:
        self._name = name
        self._target = compiled(name, target)
        self.made: Any = self._target if is_graph(self._target) else None
        """The graph, where it is always the same."""
        self._arguments = None if self.made is not None else _arguments(self._target)
        self._serializer: SerializerProtocol | None = None

    def serializer(self, graph: Any) -> SerializerProtocol:
        """What reads and writes the values of the graph."""
        if graph is not self.made:
            return serializer_of(graph)
        if self._serializer is None:
            self._serializer = serializer_of(graph)
        return self._serializer

    @asynccontextmanager
    async def opened(self, around: Surroundings) -> AsyncIterator[Any]:
        """The graph, for as long as it is used."""
        if self.made is not None:
            yield self.made
            return
        made = self._target(**self._given(around))
        made = await made if inspect.isawaitable(made) else made
        if isinstance(made, AbstractAsyncContextManager):
            async with made as graph:
                yield self._checked(graph)
        elif isinstance(made, AbstractContextManager):
            with made as graph:
                yield self._checked(graph)
        else:
            yield self._checked(made)

    def _given(self, around: Surroundings) -> dict[str, Any]:
        making: dict[str, Callable[[], Any]] = {
            "config": lambda: around.config,
            "runtime": lambda: _runtime(around),
        }
        return {name: making[what]() for name, what in (self._arguments or {}).items()}

    def _checked(self, made: Any) -> Any:
        graph = compiled(self._name, made)
        if is_graph(graph):
            return graph
        raise AgentError(
            f"the agent {self._name!r} made a {type(made).__name__}, which is no graph;"
            " an agent that is a function takes (ctx, input)"
        )


def compiled(name: str, target: Any) -> Any:
    if not is_builder(target):
        return target
    try:
        return target.compile()
    except Exception as error:
        raise InvalidInput(f"the graph of the agent {name!r} does not compile: {error}") from error


def _arguments(factory: Any) -> dict[str, str]:
    """What each parameter of a factory is given: the config, or the server's runtime."""
    parameters = [
        each
        for each in inspect.signature(factory).parameters.values()
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
    told = {each.name: "runtime" if names_runtime(each) else "config" for each in parameters}
    return dict(list(told.items())[:2])


def _runtime(around: Surroundings) -> Any:
    from langgraph_sdk.runtime import _ExecutionRuntime, _ReadRuntime

    configurable = around.config.get("configurable") or {}
    user = configurable.get("langgraph_auth_user")
    if around.access == EXECUTION:
        return _ExecutionRuntime(
            access_context=around.access, user=user, store=around.store, context=around.context
        )
    return _ReadRuntime(access_context=around.access, user=user, store=around.store)
