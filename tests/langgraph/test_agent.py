"""Agents that are LangGraph graphs, executed by the real LangGraph."""

from __future__ import annotations

import asyncio
import dataclasses
import operator
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from enum import Enum
from typing import Annotated, Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels import LastValue
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.managed import IsLastStep, RemainingSteps
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from langgraph_sdk.runtime import ServerRuntime
from tests.agents.support import MemoryContext, Thread, run, start
from typing_extensions import TypedDict

from perdure.agents.context import Agent, AgentError, Cancelled
from perdure.checkpoints.records import CheckpointQuery, GraphChanges, GraphPut
from perdure.kernel.errors import InvalidInput
from perdure.langgraph.shapes import schemas
from perdure.worker.registry import Agents


class State(TypedDict, total=False):
    said: Annotated[list[str], operator.add]
    answer: str


Node = Callable[[State], Any]


def chain(*nodes: tuple[str, Node]) -> StateGraph[State]:
    builder = StateGraph(State)
    # Its overloads do not accept a node of a union type.
    adding: Any = builder
    last = START
    for name, node in nodes:
        adding.add_node(name, node)
        builder.add_edge(last, name)
        last = name
    builder.add_edge(last, END)
    return builder


def says(word: str) -> Node:
    return lambda state: {"said": [word]}


def agent_of(target: Any) -> Agent:
    return Agents().register("graph", target)


def two_steps() -> StateGraph[State]:
    return chain(("one", says("1")), ("two", says("2")))


# --- kinds of graphs --------------------------------------------------------------------------------------


def simple_factory() -> Any:
    return two_steps()


def factory_with_config(config: RunnableConfig) -> Any:
    return chain(("one", says(config["configurable"]["word"]))).compile()


def factory_with_runtime(runtime: ServerRuntime[Any]) -> Any:
    assert runtime.execution_runtime is not None
    assert runtime.access_context == "threads.create_run"
    return two_steps()


async def async_factory_with_both(runtime: ServerRuntime[Any], config: RunnableConfig) -> Any:
    assert config["configurable"]["graph_id"] == "graph"
    return factory_with_runtime(runtime)


async def async_factory() -> Any:
    return two_steps().compile()


@contextmanager
def managed_factory() -> Iterator[Any]:
    yield two_steps()


@asynccontextmanager
async def async_managed_factory(config: RunnableConfig) -> AsyncIterator[Any]:
    yield two_steps().compile()


@pytest.mark.parametrize(
    "target",
    [
        two_steps(),
        two_steps().compile(),
        simple_factory,
        factory_with_runtime,
        async_factory_with_both,
        async_factory,
        managed_factory,
        async_managed_factory,
    ],
)
async def test_whatever_makes_a_graph(target: Any) -> None:
    agent = agent_of(target)
    assert (agent.spec.kind, agent.blocking) == ("graph", False)
    ctx = MemoryContext()
    assert await run(agent, ctx, {"said": ["0"]}) is None
    assert await ctx.load() == {"said": ["0", "1", "2"]}
    assert ctx.checkpoint is not None
    assert ctx.checkpoint.next == ()


async def test_a_factory_sees_the_config() -> None:
    ctx = MemoryContext(config={"configurable": {"word": "given", "thread_id": "stolen", "__secret": 1}})
    await run(agent_of(factory_with_config), ctx, {})
    assert await ctx.load() == {"said": ["given"]}


async def test_a_factory_of_something_else() -> None:
    def no_graph() -> Any:
        return {"no": "graph"}

    with pytest.raises(AgentError, match="or return a graph; it returned a dict"):
        await run(agent_of(no_graph), MemoryContext())


def test_a_graph_that_does_not_compile() -> None:
    with pytest.raises(InvalidInput, match="graph of the agent 'graph' does not compile"):
        agent_of(StateGraph(State))


def test_a_graph_says_what_it_takes() -> None:
    schema = agent_of(two_steps()).spec.input_schema
    assert schema is not None
    assert set(schema["properties"]) == {"said", "answer"}


# --- state ------------------------------------------------------------------------------------------------


async def test_each_step_is_kept_under_its_own_id() -> None:
    ctx = MemoryContext()
    await run(agent_of(two_steps()), ctx, {"said": ["0"]})
    kept = [(each.values, each.next) for each in ctx.thread.checkpoints]
    assert kept == [
        ({}, ("__start__",)),
        ({"said": ["0"]}, ("one",)),
        ({"said": ["0", "1"]}, ("two",)),
        ({"said": ["0", "1", "2"]}, ()),
    ]
    assert [each.metadata["step"] for each in ctx.thread.checkpoints] == [-1, 0, 1, 2]
    ids = [each.checkpoint_id for each in ctx.thread.checkpoints]
    assert ids == sorted(set(ids))


async def test_a_thread_remembers_from_run_to_run() -> None:
    thread, agent = Thread(), agent_of(two_steps())
    await run(agent, MemoryContext(thread, run_id="a"), {"said": ["0"]})
    await run(agent, MemoryContext(thread, run_id="b"), {"said": ["again"]})
    assert thread.checkpoints[-1].values == {"said": ["0", "1", "2", "again", "1", "2"]}


async def test_values_that_no_graph_made_are_where_it_begins() -> None:
    agent = agent_of(two_steps())
    for given, expected in (({"said": ["y"]}, ["x", "y", "1", "2"]), (None, ["x", "1", "2"])):
        thread = Thread()
        await MemoryContext(thread, run_id="a").save({"said": ["x"], "unknown": 1})
        await run(agent, MemoryContext(thread, run_id="b"), given)
        assert thread.checkpoints[-1].values == {"said": expected}
    odd = Thread()
    await MemoryContext(odd, run_id="a").save(["no", "object"])
    await run(agent, MemoryContext(odd, run_id="b"), {"said": ["y"]})
    assert odd.checkpoints[-1].values == {"said": ["y", "1", "2"]}


async def test_a_retry_goes_on_after_the_last_step() -> None:
    done: list[str] = []

    def first(state: State) -> Any:
        done.append("first")
        return {"said": ["first"]}

    def second(state: State) -> Any:
        done.append("second")
        if done.count("second") == 1:
            raise ConnectionError("gone")
        return {"said": ["second"]}

    thread, agent = Thread(), agent_of(chain(("first", first), ("second", second)))
    with pytest.raises(ConnectionError):
        await run(agent, MemoryContext(thread), {"said": ["in"]})
    ctx = MemoryContext(thread, attempt=2)
    await run(agent, ctx, {"said": ["in"]})
    assert await ctx.load() == {"said": ["in", "first", "second"]}
    assert done == ["first", "second", "second"]
    # Run it again, as after a crash between the last step and the end of the run.
    await run(agent, MemoryContext(thread, attempt=3), {"said": ["in"]})
    assert thread.checkpoints[-1].values == {"said": ["in", "first", "second"]}


async def test_what_ran_beside_a_failure_is_not_done_again() -> None:
    done: list[str] = []

    def good(state: State) -> Any:
        done.append("good")
        return {"said": ["good"]}

    async def bad(state: State) -> Any:
        await asyncio.sleep(0.01)
        done.append("bad")
        if done.count("bad") == 1:
            raise ConnectionError("gone")
        return {"said": ["bad"]}

    builder = StateGraph(State)
    for name, node in (("good", good), ("bad", bad)):
        builder.add_node(name, node)
        builder.add_edge(START, name)
    thread, agent = Thread(), agent_of(builder)
    with pytest.raises(ConnectionError):
        await run(agent, MemoryContext(thread), {})
    await run(agent, MemoryContext(thread, attempt=2), {})
    assert sorted(thread.checkpoints[-1].values["said"]) == ["bad", "good"]
    assert done == ["good", "bad", "bad"]


class Colour(Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    colour: Colour


class Typed(TypedDict, total=False):
    point: Point
    messages: Annotated[list[AnyMessage], add_messages]


async def test_the_types_of_a_graph_come_back() -> None:
    seen: list[Any] = []

    def look(state: Typed) -> Any:
        seen.append((state["point"], state["messages"][-1]))
        return {"messages": [AIMessage("hello", id="2")]}

    builder = StateGraph(Typed)
    builder.add_node("look", look)
    builder.add_edge(START, "look")
    thread, agent = Thread(), agent_of(builder)
    human = HumanMessage("hi", id="1")
    await run(agent, MemoryContext(thread, run_id="a"), {"point": Point(1, Colour.RED), "messages": [human]})
    await run(agent, MemoryContext(thread, run_id="b"), {"messages": []})
    assert [each[0] for each in seen] == [Point(1, Colour.RED)] * 2
    assert [type(each[1]) for each in seen] == [HumanMessage, AIMessage]
    values = thread.checkpoints[-1].values
    assert values["point"] == {"x": 1, "colour": "red"}
    assert [(each["type"], each["content"]) for each in values["messages"]] == [
        ("human", "hi"),
        ("ai", "hello"),
    ]


async def test_stored_bytes_are_never_code() -> None:
    thread, agent = Thread(), agent_of(two_steps())
    await run(agent, MemoryContext(thread, run_id="a"), {"said": ["0"]})
    (newest,) = await thread.graphs.find(CheckpointQuery(checkpoint_ns="", limit=1))
    put = GraphPut(
        thread_id=newest.thread_id,
        checkpoint_id=newest.checkpoint_id,
        parent_id=newest.parent_id,
        checkpoint=("pickle", newest.checkpoint[1]),
        metadata=newest.metadata,
        versions=newest.versions,
    )
    await thread.graphs.put(GraphChanges(puts=[put]))
    with pytest.raises(NotImplementedError, match="pickle"):
        await run(agent, MemoryContext(thread, run_id="b"), {"said": ["1"]})


# --- interrupts -------------------------------------------------------------------------------------------


def asks(state: State) -> Any:
    return {"answer": interrupt("first?") + interrupt("second?")}


@pytest.mark.parametrize("nested", ["no", "node", "sync", "async"])
async def test_a_graph_asks_and_goes_on(nested: str) -> None:
    done: list[str] = []

    def before(state: State) -> Any:
        done.append("before")
        return {"said": ["before"]}

    inner = chain(("before", before), ("asks", asks))
    outer: Any = inner
    if nested == "node":
        outer = StateGraph(State).add_node("inner", inner.compile()).add_edge(START, "inner")
    elif nested != "no":
        graph = inner.compile()

        def invokes(state: State) -> Any:
            return graph.invoke({})

        async def invokes_and_waits(state: State) -> Any:
            return await graph.ainvoke({})

        node: Any = invokes if nested == "sync" else invokes_and_waits
        outer = chain(("inner", node))
    thread, agent = Thread(), agent_of(outer)
    ctx = MemoryContext(thread, run_id="a", stream_mode=["updates"])
    await run(agent, ctx, {})
    assert ctx.checkpoint is not None
    assert ctx.checkpoint.next == (("asks",) if nested == "no" else ("inner",))
    assert [each["value"] for each in ctx.checkpoint.interrupts] == ["first?"]
    assert [name for name, data in ctx.events if "__interrupt__" in data] == ["updates"]

    ctx = MemoryContext(thread, run_id="b", command={"resume": "yes, "})
    await run(agent, ctx, None)
    assert [each["value"] for each in thread.checkpoints[-1].interrupts] == ["second?"]

    ctx = MemoryContext(thread, run_id="c", command={"resume": "and yes"})
    await run(agent, ctx, None)
    last = thread.checkpoints[-1]
    assert (last.values["answer"], last.next, last.interrupts) == ("yes, and yes", (), [])
    assert done == ["before"]


async def test_a_resumed_run_that_fails_keeps_the_answer() -> None:
    failures = [ConnectionError("gone")]

    def asks_and_fails(state: State) -> Any:
        answer = interrupt("well?")
        if failures:
            raise failures.pop()
        return {"answer": answer}

    thread, agent = Thread(), agent_of(chain(("asks", asks_and_fails)))
    await run(agent, MemoryContext(thread, run_id="a"), {})
    with pytest.raises(ConnectionError):
        await run(agent, MemoryContext(thread, run_id="b", command={"resume": "yes"}), None)
    await run(agent, MemoryContext(thread, run_id="b", attempt=2, command={"resume": "yes"}), None)
    assert thread.checkpoints[-1].values["answer"] == "yes"


async def test_a_stop_before_and_after_a_node() -> None:
    thread, agent = Thread(), agent_of(two_steps())
    await run(
        agent, MemoryContext(thread, run_id="a", options={"interrupt_before": ["two"]}), {"said": ["0"]}
    )
    assert (thread.checkpoints[-1].values, thread.checkpoints[-1].next) == ({"said": ["0", "1"]}, ("two",))
    await run(agent, MemoryContext(thread, run_id="b"), None)
    assert (thread.checkpoints[-1].values, thread.checkpoints[-1].next) == ({"said": ["0", "1", "2"]}, ())
    await run(agent, MemoryContext(thread, run_id="c", options={"interrupt_after": "*"}), {"said": ["x"]})
    assert thread.checkpoints[-1].next == ("two",)


async def test_a_command_may_update_and_jump() -> None:
    thread, agent = Thread(), agent_of(two_steps())
    await run(agent, MemoryContext(thread, run_id="a"), {"said": ["0"]})
    ctx = MemoryContext(thread, run_id="b", command={"update": {"said": ["jumped"]}, "goto": "two"})
    await run(agent, ctx, None)
    assert thread.checkpoints[-1].values["said"] == ["0", "1", "2", "jumped", "2"]
    ctx = MemoryContext(thread, run_id="c", command={"goto": [{"node": "two", "input": {"said": []}}]})
    await run(agent, ctx, None)
    assert thread.checkpoints[-1].values["said"] == ["0", "1", "2", "jumped", "2", "2"]


# --- streams ----------------------------------------------------------------------------------------------


async def test_values_and_updates() -> None:
    ctx = MemoryContext(stream_mode=["values", "updates"])
    await run(agent_of(two_steps()), ctx, {"said": ["0"]})
    assert ctx.events == [
        ("values", {"said": ["0"]}),
        ("updates", {"one": {"said": ["1"]}}),
        ("values", {"said": ["0", "1"]}),
        ("updates", {"two": {"said": ["2"]}}),
        ("values", {"said": ["0", "1", "2"]}),
    ]


async def test_custom_and_other_modes() -> None:
    def node(state: State) -> Any:
        get_stream_writer()({"progress": 1})
        return {"said": ["x"]}

    agent = agent_of(chain(("node", node)))
    ctx = MemoryContext(stream_mode=["custom"])
    await run(agent, ctx, {})
    assert ctx.events == [("custom", {"progress": 1})]
    ctx = MemoryContext(stream_mode=["debug", "tasks", "checkpoints"])
    await run(agent, ctx, {})
    assert {name for name, _ in ctx.events} == {"debug", "tasks", "checkpoints"}
    ctx = MemoryContext(stream_mode=[])
    await run(agent, ctx, {})
    assert ctx.events == []
    assert await ctx.load() == {"said": ["x"]}
    with pytest.raises(InvalidInput, match="no stream mode 'tools'"):
        await run(agent, MemoryContext(stream_mode=["tools"]), {})


async def test_subgraphs_name_their_place() -> None:
    inner = chain(("deep", says("deep"))).compile()
    outer = StateGraph(State).add_node("inner", inner).add_edge(START, "inner")
    ctx = MemoryContext(stream_mode=["updates"], options={"stream_subgraphs": True})
    await run(agent_of(outer), ctx, {})
    first, second = (name for name, _ in ctx.events)
    assert first.startswith("updates|inner:")
    assert second == "updates"


async def test_messages_as_they_grow() -> None:
    model = GenericFakeChatModel(messages=iter([AIMessage("hello big world")] * 2))

    async def talk(state: Typed) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(Typed)
    builder.add_node("talk", talk)
    builder.add_edge(START, "talk")
    given = {"messages": [HumanMessage("hi", id="1")]}
    ctx = MemoryContext(stream_mode=["messages-tuple"])
    await run(agent_of(builder), ctx, given)
    assert {name for name, _ in ctx.events} == {"messages"}
    assert "".join(data[0]["content"] for _, data in ctx.events) == "hello big world"
    assert {data[1]["langgraph_node"] for _, data in ctx.events} == {"talk"}
    ctx = MemoryContext(stream_mode=["messages"])
    await run(agent_of(builder), ctx, given)
    assert ctx.events[0][0] == "messages/metadata"
    grown = [data[0]["content"] for name, data in ctx.events if name == "messages/partial"]
    assert grown[-1] == "hello big world"
    assert grown == sorted(grown, key=len)


# --- what nodes see ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Surroundings:
    user: str


async def test_a_node_sees_its_run() -> None:
    seen: dict[str, Any] = {}

    def look(state: State, config: RunnableConfig, runtime: Runtime[Surroundings]) -> Any:
        seen.update(config["configurable"], user=runtime.context.user, metadata=config["metadata"])
        seen["limit"] = config["recursion_limit"]
        return {}

    builder = StateGraph(State, context_schema=Surroundings)
    builder.add_node("look", look)  # type: ignore[arg-type]
    builder.add_edge(START, "look")
    ctx = MemoryContext(
        context={"user": "anna"}, config={"recursion_limit": 7, "configurable": {"model": "small"}}, attempt=2
    )
    await run(agent_of(builder), ctx, {"said": []})
    assert (seen["thread_id"], seen["run_id"], seen["graph_id"]) == (ctx.thread_id, ctx.run_id, "graph")
    assert (seen["user"], seen["model"], seen["limit"]) == ("anna", "small", 7)
    assert seen["metadata"]["run_attempt"] == 2
    assert seen["metadata"]["given"] == "metadata"


# --- invalid graphs ---------------------------------------------------------------------------------------


async def test_what_a_node_raises_is_raised() -> None:
    def fail(state: State) -> Any:
        raise ValueError("bad node")

    with pytest.raises(ValueError, match="bad node"):
        await run(agent_of(chain(("fail", fail))), MemoryContext(), {})


async def test_a_state_that_is_no_json() -> None:
    def odd(state: State) -> Any:
        return {"answer": {1, 2}.__iter__()}

    with pytest.raises((InvalidInput, TypeError)):
        await run(agent_of(chain(("odd", odd))), MemoryContext(), {"said": []})


async def test_a_graph_without_an_input() -> None:
    with pytest.raises(Exception, match="input"):
        await run(agent_of(two_steps()), MemoryContext(), None)


async def test_a_graph_is_cancelled() -> None:
    begun = asyncio.Event()

    async def hang(state: State) -> Any:
        begun.set()
        await asyncio.Event().wait()

    ctx = MemoryContext()
    task = start(agent_of(chain(("one", says("1")), ("hang", hang))), ctx, {"said": ["0"]})
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ctx.checkpoint is not None
    assert (ctx.checkpoint.values, ctx.checkpoint.next) == ({"said": ["0", "1"]}, ("hang",))


async def test_a_graph_whose_run_was_lost_stops() -> None:
    ctx = MemoryContext()

    def lose(state: State) -> Any:
        ctx.action = "lost"
        return {"said": ["lost"]}

    done: list[str] = []
    agent = agent_of(chain(("lose", lose), ("after", lambda state: done.append("after"))))
    with pytest.raises(Cancelled):
        await run(agent, ctx, {"said": []})
    assert done == []


# --- managed values and unreadable types ------------------------------------------------------------------


class Managed(TypedDict, total=False):
    said: Annotated[list[str], operator.add]
    remaining: RemainingSteps
    last: IsLastStep


def managed_steps() -> StateGraph[Managed]:
    def counts(state: Managed) -> dict[str, Any]:
        return {"said": [f"{state['remaining']} {state['last']}"]}

    builder = StateGraph(Managed)
    builder.add_node("counts", counts)
    builder.add_edge(START, "counts")
    builder.add_edge("counts", END)
    return builder


async def test_managed_values_are_neither_stored_nor_shown() -> None:
    agent = agent_of(managed_steps())
    ctx = MemoryContext(config={"recursion_limit": 9}, stream_mode=("values", "updates"))
    await run(agent, ctx, {"said": ["0"]})
    assert await ctx.load() == {"said": ["0", "8 False"]}
    shapes = schemas(managed_steps().compile())
    assert set(shapes["state_schema"]["properties"]) == {"said"}


class Secretive(LastValue[str]):
    """Channel without a declared type."""

    @property
    def ValueType(self) -> type[str]:  # noqa: N802 - LangGraph's name
        raise RuntimeError("no comment")


async def test_a_type_that_cannot_be_read_fails_no_run(caplog: pytest.LogCaptureFixture) -> None:
    builder = chain(("one", says("1")))
    builder.channels["answer"] = Secretive(str, "answer")
    ctx = MemoryContext()
    await run(agent_of(builder), ctx, {"answer": "a"})
    assert await ctx.load() == {"said": ["1"], "answer": "a"}
    assert "the type of channel answer is unknown: no comment" in caplog.text
