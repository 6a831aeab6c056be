"""Agents that are functions, good and bad."""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
import threading
from collections.abc import AsyncIterator, Generator
from contextvars import ContextVar
from typing import Any

import pytest
from tests.agents.support import PATIENCE, MemoryContext, Thread, run, start

from perdure.agents.context import AgentError, Cancelled, Context, Interrupted
from perdure.agents.functions import FunctionAgent
from perdure.kernel.errors import Conflict, InvalidInput, NotFound
from perdure.worker.registry import Agents

LABEL: ContextVar[str] = ContextVar("LABEL", default="none")


@pytest.fixture
def agents() -> Agents:
    return Agents()


# --- the registry -----------------------------------------------------------------------------------------


async def test_an_agent_is_registered_by_its_name(agents: Agents) -> None:
    @agents.agent("greet")
    async def greet(ctx: Context, input: Any) -> Any:
        """Say hello.

        At length.
        """
        return {"greeting": f"Hello, {input}!"}

    @agents.agent("other", description="Given.")
    def other(ctx: Context, input: Any) -> Any:
        return input

    assert agents.names == ["greet", "other"] == list(agents)
    assert [(spec.name, spec.description, spec.kind) for spec in agents.specs] == [
        ("greet", "Say hello.", "function"),
        ("other", "Given.", "function"),
    ]
    assert "greet" in agents
    assert len(agents) == 2
    assert (agents["greet"].blocking, agents["other"].blocking) == (False, True)
    assert agents.get("nobody") is None
    assert await run(agents["greet"], MemoryContext(), "Anna") == {"greeting": "Hello, Anna!"}
    assert await greet(MemoryContext(), "you") == {"greeting": "Hello, you!"}


def test_who_is_not_there(agents: Agents) -> None:
    with pytest.raises(NotFound, match="has none"):
        agents["nobody"]
    agents.register("a", lambda ctx, input: input)
    with pytest.raises(NotFound, match="nobody not found; this worker has a"):
        agents["nobody"]
    with pytest.raises(Conflict, match="'a' is registered twice"):
        agents.register("a", lambda ctx, input: input)


def test_what_cannot_be_an_agent(agents: Agents) -> None:
    def three(ctx: Any, input: Any, more: Any) -> None: ...

    def keyword(ctx: Any, input: Any, *, more: Any) -> None: ...

    for name, target in {"": print, "number": 3, "text": "module:var", "three": three, "kw": keyword}.items():
        with pytest.raises(InvalidInput):
            agents.register(name, target)
    assert not agents


def test_a_wrong_number_of_parameters_is_refused_at_registration(agents: Agents) -> None:
    def one(input: Any) -> None: ...

    def three(ctx: Any, input: Any, more: Any) -> None: ...

    for target, taken in ((one, "one"), (three, "three")):
        with pytest.raises(InvalidInput) as refused:
            agents.register(taken, target)
        expected = f"agent {taken!r} must take two parameters (ctx, input); it takes {taken}"
        assert refused.value.message == expected
    assert agents.register("factory", one, is_factory=True).spec.kind == "graph"


# --- what a function may be -------------------------------------------------------------------------------


async def test_a_generator_tells_as_it_goes(agents: Agents) -> None:
    @agents.agent("tell")
    async def tell(ctx: Context, input: Any) -> AsyncIterator[Any]:
        yield {"n": 1}
        yield "updates", {"node": 2}
        yield "values", {"state": 3}
        yield ("a", "b", "c")

    ctx = MemoryContext()
    assert await run(agents["tell"], ctx) is None
    assert ctx.events == [
        ("custom", {"n": 1}),
        ("updates", {"node": 2}),
        ("values", {"state": 3}),
        ("custom", ["a", "b", "c"]),
    ]
    assert await ctx.load() == {"state": 3}


async def test_a_sync_function_has_a_thread(agents: Agents) -> None:
    LABEL.set("given")

    def work(ctx: Context, input: Any) -> Any:
        name = threading.current_thread().name
        ctx.call(lambda: ctx.emit({"in": name}))
        return {"thread": threading.get_ident(), "label": LABEL.get(), "input": input}

    ctx = MemoryContext()
    answer = await run(agents.register("work", work), ctx, 5)
    assert answer["thread"] != threading.get_ident()
    assert (answer["label"], answer["input"]) == ("given", 5)
    assert ctx.events == [("custom", {"in": "perdure-agent"})]


async def test_a_sync_generator_too(agents: Agents) -> None:
    def work(ctx: Context, input: Any) -> Generator[Any, None, Any]:
        yield "updates", 1
        yield {"n": 2}
        return {"done": True}

    ctx = MemoryContext()
    assert await run(agents.register("work", work), ctx) == {"done": True}
    assert ctx.events == [("updates", 1), ("custom", {"n": 2})]


async def test_other_things_that_can_be_called(agents: Agents) -> None:
    class Asynchronous:
        async def __call__(self, ctx: Context, input: Any) -> Any:
            return {"got": input}

    async def three(more: int, ctx: Context, input: Any) -> Any:
        return more + input

    async def late(ctx: Context, input: Any) -> Any:
        return input

    assert not agents.register("object", Asynchronous()).blocking
    assert not agents.register("partial", functools.partial(three, 1)).blocking
    agents.register("lambda", lambda ctx, input: late(ctx, input))
    assert await run(agents["object"], MemoryContext(), 1) == {"got": 1}
    assert await run(agents["partial"], MemoryContext(), 1) == 2
    assert await run(agents["lambda"], MemoryContext(), 3) == 3


async def test_a_step_is_done_once(agents: Agents) -> None:
    done: list[str] = []

    def first_step() -> int:
        done.append("first")
        return len(done)

    @agents.agent("work")
    async def work(ctx: Context, input: Any) -> Any:
        first = await ctx.step("first", first_step)
        if ctx.attempt == 1:
            raise ConnectionError("gone")
        return {"first": first, "kept": dict(ctx.steps)}

    thread = Thread()
    with pytest.raises(ConnectionError):
        await run(agents["work"], MemoryContext(thread))
    answer = await run(agents["work"], MemoryContext(thread, attempt=2))
    assert answer == {"first": 1, "kept": {"first": 1}}
    assert done == ["first"]


@pytest.mark.parametrize("blocking", [False, True])
async def test_an_interrupt_ends_the_run_until_it_is_answered(agents: Agents, blocking: bool) -> None:
    async def ask(ctx: Context, input: Any) -> Any:
        try:
            return {"answer": await ctx.interrupt("really?")}
        except Exception:  # noqa: BLE001 - what careless agents do
            return {"answer": "an agent that catches everything"}

    def ask_in_thread(ctx: Context, input: Any) -> Any:
        return {"answer": ctx.call(lambda: ctx.interrupt("really?"))}

    agent = agents.register("ask", ask_in_thread if blocking else ask)
    with pytest.raises(Interrupted) as asked:
        await run(agent, MemoryContext())
    assert asked.value.interrupts == [{"id": "0", "value": "really?"}]
    assert await run(agent, MemoryContext(answers=["yes"])) == {"answer": "yes"}


# --- bad ones ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocking", [False, True])
async def test_what_an_agent_raises_is_raised(agents: Agents, blocking: bool) -> None:
    async def fail(ctx: Context, input: Any) -> Any:
        raise input

    def fail_in_thread(ctx: Context, input: Any) -> Any:
        raise input

    agent = agents.register("fail", fail_in_thread if blocking else fail)
    for error in (ValueError("bad"), TimeoutError("slow"), KeyError("x")):
        with pytest.raises(type(error)):
            await run(agent, MemoryContext(), error)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await run(agent, MemoryContext(), StopIteration("x"))
    with pytest.raises(AgentError, match=r"exit\(3\)") as ended:
        await run(agent, MemoryContext(), SystemExit(3))
    assert ended.value.error == "SystemExit"


async def test_an_agent_that_ends_its_process_does_not(agents: Agents) -> None:
    agent = agents.register("exit", lambda ctx, input: sys.exit("bye"))
    with pytest.raises(AgentError, match=r"exit\('bye'\)"):
        await run(agent, MemoryContext())

    def interrupt(ctx: Context, input: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(AgentError, match="KeyboardInterrupt"):
        await run(agents.register("interrupt", interrupt), MemoryContext())


async def test_what_is_not_json_is_refused_where_it_is_told(agents: Agents) -> None:
    @agents.agent("bad")
    async def bad(ctx: Context, input: Any) -> AsyncIterator[Any]:
        yield {"fine": 1}
        yield object()

    ctx = MemoryContext()
    with pytest.raises(InvalidInput, match="objects of type object"):
        await run(agents["bad"], ctx)
    assert ctx.events == [("custom", {"fine": 1})]


async def test_a_generator_is_closed_when_it_is_cancelled(agents: Agents) -> None:
    closed = asyncio.Event()

    @agents.agent("endless")
    async def endless(ctx: Context, input: Any) -> AsyncIterator[Any]:
        try:
            while True:
                yield "tick"
        finally:
            closed.set()

    ctx = MemoryContext()
    task = start(agents["endless"], ctx)
    await ctx.until("custom")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed.is_set()


async def test_a_sync_agent_that_notices_ends_as_it_says(agents: Agents) -> None:
    def work(ctx: Context, input: Any) -> None:
        while True:
            ctx.call(lambda: ctx.emit("tick"))

    ctx = MemoryContext()
    task = start(agents.register("work", work), ctx)
    await ctx.until("custom")
    ctx.action = "interrupt"
    with pytest.raises(Cancelled) as cancelled:
        await task
    assert cancelled.value.action == "interrupt"


async def test_a_sync_agent_that_hangs_is_left_behind(
    agents: Agents, caplog: pytest.LogCaptureFixture
) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def hang(ctx: Context, input: Any) -> None:
        begun.set()
        go_on.wait(PATIENCE)
        ended.set()

    agent = agents.register("hang", hang)
    assert isinstance(agent, FunctionAgent)
    agent.grace = 0.01
    with caplog.at_level(logging.WARNING):
        task = start(agent, MemoryContext())
        await asyncio.to_thread(begun.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert "thread is abandoned" in caplog.text
    go_on.set()
    assert await asyncio.to_thread(ended.wait, PATIENCE)


async def test_a_sync_agent_that_ends_within_its_grace_is_waited_for(agents: Agents) -> None:
    begun, ended = threading.Event(), threading.Event()
    ctx = MemoryContext()

    def slow(context: Context, input: Any) -> None:
        begun.set()
        while not context.cancelled:
            ended.wait(0.001)
        ended.set()

    agent = agents.register("slow", slow)
    assert isinstance(agent, FunctionAgent)
    agent.grace = PATIENCE
    task = start(agent, ctx)
    await asyncio.to_thread(begun.wait, PATIENCE)
    ctx.action = "rollback"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
