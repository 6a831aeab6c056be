"""Agents by name: the registry that a worker runs from. It is filled by code, never by what is stored."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from perdure.agents.agent import Agent
from perdure.agents.commands import Command, CommandAgent
from perdure.agents.functions import FunctionAgent
from perdure.agents.records import AgentSpec
from perdure.assistants.model import check_description
from perdure.kernel.checks import check_name
from perdure.kernel.errors import Conflict, InvalidInput, NotFound
from perdure.langgraph.detect import is_builder, is_graph, names_runtime

T = TypeVar("T")


class Agents(Mapping[str, Agent]):
    """Agents by name.

    ```python
    agents = Agents()

    @agents.agent("greet", description="Says hello.")
    async def greet(ctx, input):
        return {"greeting": f"Hello, {input['name']}!"}
    ```
    """

    def __init__(self) -> None:
        self._agents: dict[str, Agent] = {}

    def agent(self, name: str, *, description: str | None = None) -> Callable[[T], T]:
        """Register what is decorated, and leave it as it is."""

        def decorate(target: T) -> T:
            self.register(name, target, description=description)
            return target

        return decorate

    def register(self, name: str, target: Any, *, description: str | None = None) -> Agent:
        """Add an agent: a function `(ctx, input)`, a LangGraph graph or a factory of one, or a `Command`.

        Another registry stands for the agent of the same name in it.
        """
        check_name(name, "the name of an agent")
        if name in self._agents:
            raise Conflict(f"the agent {name!r} is registered twice")
        if isinstance(target, Agents):
            made = target[name]
        else:
            words = description if description is not None else _words(target)
            made = make_agent(name, target, check_description(words))
        self._agents[name] = made
        return made

    def include(self, others: Agents) -> None:
        """Add all agents of another registry."""
        for name in others:
            if name in self._agents:
                raise Conflict(f"the agent {name!r} is registered twice")
            self._agents[name] = others[name]

    @property
    def names(self) -> list[str]:
        return sorted(self._agents)

    @property
    def specs(self) -> list[AgentSpec]:
        """What a worker tells of its agents."""
        return [self._agents[name].spec for name in self.names]

    def __getitem__(self, name: str) -> Agent:
        try:
            return self._agents[name]
        except KeyError:
            known = ", ".join(self.names) or "none"
            raise NotFound(f"Agent {name} not found; this worker has {known}") from None

    def get(self, name: str, default: Any = None) -> Any:
        return self._agents.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self._agents

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self._agents)


def make_agent(name: str, target: Any, description: str | None = None) -> Agent:
    """An agent out of whatever can be one."""
    if isinstance(target, Command):
        return CommandAgent(AgentSpec(name=name, description=description, kind="command"), target)
    if is_graph(target) or is_builder(target):
        return _graph(name, target, description)
    if not callable(target):
        raise InvalidInput(f"the agent {name!r} is a {type(target).__name__}, which cannot be run")
    if _takes(name, target, 2) and not _makes_graphs(target):
        return FunctionAgent(AgentSpec(name=name, description=description), target)
    if _takes(name, target, 0) or _takes(name, target, 1) or _makes_graphs(target):
        return _graph(name, target, description)
    raise InvalidInput(
        f"the agent {name!r} takes other arguments than an agent's: a function takes (ctx, input),"
        " a factory of graphs takes nothing, (config), (runtime: ServerRuntime) or both"
    )


def _graph(name: str, target: Any, description: str | None) -> Agent:
    try:
        from perdure.langgraph.agent import GraphAgent
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"the agent {name!r} is a graph, which needs LangGraph: pip install 'perdure[langgraph]'"
        ) from error
    return GraphAgent(name, target, description)


def _takes(name: str, target: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(target).bind(*range(count))
    except TypeError:
        return False
    except ValueError as error:
        raise InvalidInput(f"the agent {name!r} does not say which arguments it takes: {error}") from error
    return True


def _makes_graphs(target: Any) -> bool:
    """Whether a function of two parameters asks for a server's runtime, as only factories of graphs do."""
    parameters = list(inspect.signature(target).parameters.values())
    return len(parameters) == 2 and any(map(names_runtime, parameters))


def _words(target: Any) -> str | None:
    """The first line of what a function says of itself."""
    text = inspect.getdoc(target) if inspect.isroutine(target) else None
    return text.strip().partition("\n")[0] or None if text else None
