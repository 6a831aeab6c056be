"""Registry of a worker's agents, by name. It is filled by code, never from stored data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, overload

import msgspec

from perdure.agents.commands import Command, CommandAgent
from perdure.agents.context import Agent
from perdure.agents.functions import FunctionAgent
from perdure.agents.records import DEFAULT_TIMEOUT, MAX_TIMEOUT, AgentSpec
from perdure.assistants.model import check_description
from perdure.executions.model import check_not_built_in
from perdure.kernel.checks import check_name
from perdure.kernel.errors import Conflict, InvalidInput, NotFound
from perdure.langgraph.detect import is_builder, is_graph, names_config, names_runtime

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])


class Agents(Mapping[str, Agent]):
    """Agents by name.

    ```python
    agents = Agents()

    @agents.agent
    async def greet(ctx, input):
        return {"greeting": f"Hello, {input['name']}!"}

    @agents.agent("part", description="Says goodbye.")
    async def say_goodbye(ctx, input):
        return {"greeting": f"Goodbye, {input['name']}!"}
    ```
    """

    def __init__(self) -> None:
        self._agents: dict[str, Agent] = {}
        self.callables: dict[str, Callable[..., Any]] = {}
        """Functions that phases of the type `callable` may call, by name."""
        self.handlers: dict[str, Callable[..., Any]] = {}
        """Functions that cron files and schedules may call, by name."""
        self.conditions: dict[str, Callable[..., Any]] = {}
        """Predicates that keep schedules from firing, by name."""
        self.not_loaded: dict[str, str] = {}
        """Agents that project files name but could not be loaded, with the reasons."""

    def handler(self, name: str) -> Callable[[C], C]:
        """Register the decorated async function as a handler of crons, and return it unchanged.

        A server or a program with these agents calls it with a `JobContext` and the `context` of the cron.
        """
        return _decorator(self.register_handler, name)

    def register_handler(self, name: str, function: Callable[..., Any]) -> None:
        """Let cron files and schedules call an async function by this name."""
        if not inspect.iscoroutinefunction(function):
            raise InvalidInput(f"handler {name!r} must be an async function (context, payload)")
        _add(self.handlers, "handler", name, function)

    def condition(self, name: str) -> Callable[[C], C]:
        """Register the decorated predicate, and return it unchanged.

        Schedules with `unless: name` do not fire while the predicate is true.
        """
        return _decorator(self.register_condition, name)

    def register_condition(self, name: str, predicate: Callable[..., Any]) -> None:
        """Register a predicate under a name for schedules. The predicate gets the firing request."""
        _add(self.conditions, "condition", name, predicate)

    def callable(self, name: str) -> Callable[[C], C]:
        """Register the decorated function for phases of the type `callable`, and return it unchanged.

        It is called with the input of the phase, or with a context and the input.
        """
        return _decorator(self.register_callable, name)

    def register_callable(self, name: str, function: Callable[..., Any]) -> None:
        """Let phases of the type `callable` call a function by this name."""
        _add(self.callables, "callable", name, function)

    @overload
    def agent(self, name: C, /) -> C: ...
    @overload
    def agent(
        self, name: str | None = None, *, description: str | None = None, timeout: float | None = None
    ) -> Callable[[T], T]: ...
    def agent(self, name: Any = None, *, description: str | None = None, timeout: float | None = None) -> Any:
        """Register the decorated object, and return it unchanged. The default name is the function's.

        `timeout` limits an attempt in seconds, unless its run has its own timeout.
        """

        def decorate(target: T) -> T:
            agent_name = name if isinstance(name, str) else _get_name(target)
            self.register(agent_name, target, description=description, timeout=timeout)
            return target

        return decorate if name is None or isinstance(name, str) else decorate(name)

    def register(
        self,
        name: str,
        target: Any,
        *,
        description: str | None = None,
        timeout: float | None = None,
        is_factory: bool = False,
        default_timeout: float = DEFAULT_TIMEOUT,
    ) -> Agent:
        """Add an agent: a function `(ctx, input)`, a LangGraph graph or a factory of one, or a `Command`.

        From another registry, the agent with the same name is taken. `is_factory` means that a function with
        one parameter creates graphs, independent of the parameter's name. `timeout` limits an attempt in
        seconds, unless its run has its own timeout; `default_timeout` applies if the server sets none either.
        """
        check_not_built_in(check_name(name, "the name of an agent"))
        if name in self._agents:
            raise Conflict(f"agent {name!r} is registered twice")
        if isinstance(target, Agents):
            agent = target[name]
        else:
            text = description if description is not None else _summary(target)
            agent = make_agent(name, target, check_description(text), is_factory=is_factory)
            agent.spec = msgspec.structs.replace(agent.spec, default_timeout=default_timeout)
        if timeout is not None:
            agent.spec = msgspec.structs.replace(agent.spec, timeout=_check_timeout(name, timeout))
        self._agents[name] = agent
        return agent

    def include(self, others: Agents) -> None:
        """Add all agents of another registry."""
        for name in others:
            if name in self._agents:
                raise Conflict(f"agent {name!r} is registered twice")
            self._agents[name] = others[name]
        for name, function in others.callables.items():
            self.register_callable(name, function)
        for name, function in others.handlers.items():
            self.register_handler(name, function)
        for name, predicate in others.conditions.items():
            self.register_condition(name, predicate)

    @property
    def names(self) -> list[str]:
        return sorted(self._agents)

    @property
    def specs(self) -> list[AgentSpec]:
        """Specs that a worker registers, sorted by name."""
        return [self._agents[name].spec for name in self.names]

    def __getitem__(self, name: str) -> Agent:
        try:
            return self._agents[name]
        except KeyError:
            names = ", ".join(self.names) or "none"
            raise NotFound(f"Agent {name} not found; this worker has {names}") from None

    def get(self, name: str, default: Any = None) -> Any:
        return self._agents.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self._agents

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self._agents)


def _check_timeout(name: str, timeout: object) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= MAX_TIMEOUT:
        limits = f"a number of seconds above 0, at most {MAX_TIMEOUT:g}"
        raise InvalidInput(f"the timeout of agent {name!r} is {timeout!r}; it must be {limits}")
    return float(timeout)


def _decorator(register: Callable[[str, Callable[..., Any]], None], name: str) -> Callable[[C], C]:
    def decorate(function: C) -> C:
        register(name, function)
        return function

    return decorate


def _add(
    functions: dict[str, Callable[..., Any]], what: str, name: str, function: Callable[..., Any]
) -> None:
    check_name(name, f"the name of a {what}")
    if not callable(function):
        raise InvalidInput(f"{what} {name!r} is a {type(function).__name__}, which cannot be called")
    if name in functions:
        raise Conflict(f"{what} {name!r} is registered twice")
    functions[name] = function


def make_agent(name: str, target: Any, description: str | None = None, *, is_factory: bool = False) -> Agent:
    """Create an agent from a command, a graph, a factory of graphs or a function."""
    if isinstance(target, Command):
        return CommandAgent(AgentSpec(name=name, description=description, kind="command"), target)
    if is_graph(target) or is_builder(target):
        return _graph(name, target, description)
    if not callable(target):
        raise InvalidInput(f"agent {name!r} is a {type(target).__name__}, which cannot be executed")
    if _takes(name, target, 2) and not _makes_graphs(target):
        return FunctionAgent(AgentSpec(name=name, description=description), target)
    if _takes(name, target, 0) or _makes_graphs(target) or (is_factory and _takes(name, target, 1)):
        return _graph(name, target, description)
    taken = _count(_parameters(target))
    raise InvalidInput(f"agent {name!r} must take two parameters (ctx, input); it takes {taken}")


def _graph(name: str, target: Any, description: str | None) -> Agent:
    try:
        from perdure.langgraph.agent import GraphAgent
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"agent {name!r} is a graph, which needs LangGraph: pip install 'perdure[langgraph]'"
        ) from error
    return GraphAgent(name, target, description)


def _takes(name: str, target: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(target).bind(*range(count))
    except TypeError:
        return False
    except ValueError as error:
        raise InvalidInput(f"cannot read the parameters of agent {name!r}: {error}") from error
    return True


def _parameters(target: Any) -> list[inspect.Parameter]:
    parameters = inspect.signature(target).parameters.values()
    return [item for item in parameters if item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)]


def _makes_graphs(target: Any) -> bool:
    """Return whether the parameters belong to a factory: a config, a server's runtime, or both."""
    parameters = _parameters(target)
    if len(parameters) == 1:
        return names_runtime(parameters[0]) or names_config(parameters[0])
    return len(parameters) == 2 and any(map(names_runtime, parameters))


def _get_name(target: Any) -> str:
    name = getattr(target, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise InvalidInput(f'this {type(target).__name__} has no name; write @agents.agent("name")')
    return name


def _count(parameters: list[inspect.Parameter]) -> str:
    words = ("none", "one", "two", "three", "four", "five")
    return words[len(parameters)] if len(parameters) < len(words) else str(len(parameters))


def _summary(target: Any) -> str | None:
    """Return the first line of a function's docstring."""
    text = inspect.getdoc(target) if inspect.isroutine(target) else None
    return text.strip().partition("\n")[0] or None if text else None
