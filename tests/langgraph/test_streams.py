"""Events of a graph in each stream mode, and the JSON of its values."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph, add_messages
from langgraph.runtime import Runtime
from langgraph.types import Send, interrupt
from tests.agents.support import MemoryContext, Thread, run
from typing_extensions import TypedDict

from perdure.agents.context import Agent
from perdure.langgraph.wire import plain
from perdure.worker.registry import Agents


class State(TypedDict, total=False):
    said: Annotated[list[str], operator.add]
    answer: str


Node = Callable[..., Any]


def chain(**nodes: Node) -> StateGraph[State]:
    builder = StateGraph(State)
    adding: Any = builder
    last = START
    for name, node in nodes.items():
        adding.add_node(name, node)
        builder.add_edge(last, name)
        last = name
    return builder


def says(word: str) -> Node:
    return lambda state: {"said": [word]}


def agent_of(target: Any) -> Agent:
    return Agents().register("graph", target)


async def told(target: Any, input: Any, *modes: str, **more: Any) -> list[tuple[str, Any]]:
    """Return the events of a run in these modes."""
    ctx = MemoryContext(stream_mode=modes, **more)
    await run(agent_of(target), ctx, input)
    return ctx.events


# --- interrupts -------------------------------------------------------------------------------------------


def asks(state: State) -> Any:
    return {"answer": interrupt({"question": "well?"})}


async def test_a_question_is_told_with_the_updates() -> None:
    events = await told(chain(one=says("1"), asks=asks), {"said": ["0"]}, "values", "updates")
    assert [name for name, _ in events] == ["values", "updates", "values", "updates", "values"]
    assert list(events[-2][1]) == ["__interrupt__"]
    (question,) = events[-2][1]["__interrupt__"]
    assert question["value"] == {"question": "well?"}
    assert set(question) >= {"id", "value"}


async def test_a_question_is_told_as_values_where_nothing_else_was_asked_for() -> None:
    events = await told(chain(one=says("1"), asks=asks), {"said": ["0"]}, "values")
    assert [name for name, _ in events] == ["values"] * 3
    assert [list(data) for _, data in events[2:]] == [["said", "__interrupt__"]]
    events = await told(chain(asks=asks), {"said": ["0"]}, "custom")
    assert events == []


async def test_a_stop_before_a_node_asks_nothing() -> None:
    options = {"interrupt_before": ["two"]}
    builder = chain(one=says("1"), two=says("2"))
    events = await told(builder, {"said": ["0"]}, "values", options=options)
    assert [data for _, data in events] == [{"said": ["0"]}, {"said": ["0", "1"]}]
    events = await told(builder, {"said": ["0"]}, "updates", options=options)
    assert events[-1] == ("updates", {"__interrupt__": []})


async def test_a_resumed_run_begins_with_the_state() -> None:
    thread, agent = Thread(), agent_of(chain(one=says("1"), asks=asks))
    await run(agent, MemoryContext(thread, run_id="a"), {"said": ["0"]})
    ctx = MemoryContext(thread, run_id="b", command={"resume": "yes"}, stream_mode=["values"])
    await run(agent, ctx, None)
    assert ctx.events == [
        ("values", {"said": ["0", "1"]}),
        ("values", {"said": ["0", "1"], "answer": "yes"}),
    ]


# --- debug, tasks and subgraphs ---------------------------------------------------------------------------


async def test_debug_tells_where_each_checkpoint_is() -> None:
    events = [data for _, data in await told(chain(one=says("1")), {"said": ["0"]}, "debug")]
    assert [each["type"] for each in events] == [
        "checkpoint",
        "checkpoint",
        "task",
        "task_result",
        "checkpoint",
    ]
    checkpoints = [each["payload"] for each in events if each["type"] == "checkpoint"]
    assert all(set(each["checkpoint"]) >= {"thread_id", "checkpoint_id"} for each in checkpoints)
    before, after = checkpoints[0]["checkpoint"], checkpoints[1]["parent_checkpoint"]
    assert after["checkpoint_id"] == before["checkpoint_id"]
    assert [each["next"] for each in checkpoints] == [["__start__"], ["one"], []]
    assert {"step", "timestamp", "type", "payload"} <= set(events[0])


async def test_tasks_and_checkpoints() -> None:
    events = await told(chain(one=says("1")), {"said": ["0"]}, "tasks", "checkpoints")
    assert [name for name, _ in events] == ["checkpoints", "checkpoints", "tasks", "tasks", "checkpoints"]
    task, result = (data for name, data in events if name == "tasks")
    assert (task["name"], result["name"], result["result"]) == ("one", "one", {"said": ["1"]})


async def test_events_come_with_the_modes_beside_them() -> None:
    model = GenericFakeChatModel(messages=iter([AIMessage("hello world")]))

    async def talk(state: State) -> Any:
        message = await model.ainvoke("hi")
        return {"said": [message.content]}

    events = await told(chain(talk=talk), {"said": ["0"]}, "events", "values")
    kinds = {data["event"] for name, data in events if name == "events"}
    assert {"on_chain_start", "on_chat_model_start", "on_chat_model_stream", "on_chain_end"} <= kinds
    values = [data for name, data in events if name == "values"]
    assert values == [{"said": ["0"]}, {"said": ["0", "hello world"]}]


async def test_custom_events_of_subgraphs() -> None:
    def writes(state: State) -> Any:
        get_stream_writer()({"deep": True})
        return {}

    outer = StateGraph(State).add_node("inner", chain(writes=writes).compile()).add_edge(START, "inner")
    ((name, data),) = await told(outer, {"said": []}, "custom", options={"stream_subgraphs": True})
    assert name.startswith("custom|inner:")
    assert data == {"deep": True}


# --- messages ---------------------------------------------------------------------------------------------


class Talk(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]


def talking() -> StateGraph[Talk]:
    model = GenericFakeChatModel(messages=iter([AIMessage("hello big world")]))

    async def talk(state: Talk) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(Talk)
    builder.add_node("talk", talk)
    builder.add_edge(START, "talk")
    return builder


async def test_pieces_of_messages() -> None:
    events = await told(talking(), {"messages": [HumanMessage("hi", id="1")]}, "messages-tuple")
    assert {name for name, _ in events} == {"messages"}
    pieces = [data[0] for _, data in events]
    assert {piece["type"] for piece in pieces} == {"AIMessageChunk"}
    assert len({piece["id"] for piece in pieces}) == 1
    assert all(data[1]["langgraph_node"] == "talk" for _, data in events)


async def test_messages_so_far() -> None:
    events = await told(talking(), {"messages": [HumanMessage("hi", id="1")]}, "messages")
    first, *rest = events
    assert first[0] == "messages/metadata"
    ((message_id, about),) = first[1].items()
    assert about["metadata"]["langgraph_node"] == "talk"
    assert {name for name, _ in rest} == {"messages/partial"}
    assert {(data[0]["id"], data[0]["type"]) for _, data in rest} == {(message_id, "ai")}
    assert rest[-1][1][0]["content"] == "hello big world"


async def test_a_message_that_comes_whole() -> None:
    def answers(state: Talk) -> Any:
        return {"messages": [AIMessage("whole", id="2")]}

    builder = StateGraph(Talk)
    builder.add_node("answers", answers)
    builder.add_edge(START, "answers")
    events = await told(builder, {"messages": [HumanMessage("hi", id="1")]}, "messages")
    assert [name for name, _ in events] == ["messages/metadata", "messages/complete"]
    assert events[-1][1][0]["content"] == "whole"


async def test_messages_in_values_are_whole() -> None:
    events = await told(talking(), {"messages": [{"role": "user", "content": "hi"}]}, "values")
    human, ai = events[-1][1]["messages"]
    assert (human["type"], human["content"], ai["type"], ai["content"]) == (
        "human",
        "hi",
        "ai",
        "hello big world",
    )


# --- unusual values ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Point:
    x: int


class Odd:
    def __repr__(self) -> str:
        return "<odd>"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), None),
        ({"x": float("inf")}, {"x": None}),
        (b"\x00\xff", "AP8="),
        ({1, 2}, [1, 2]),
        ((1, "a"), [1, "a"]),
        (Point(3), {"x": 3}),
        (ValueError("bad"), {"error": "ValueError", "message": "bad"}),
        (Send("node", {"a": 1}), {"node": "node", "args": {"a": 1}}),
        (Decimal("1.5"), 1.5),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Odd(), "<odd>"),
        (Odd, "Odd"),
        ({(1, 2): "pair", 3: "three"}, {"(1, 2)": "pair", "3": "three"}),
        ("lone \ud800", "lone \N{REPLACEMENT CHARACTER}"),
        (Path("a/b"), "a/b"),
    ],
)
def test_what_nodes_make_can_be_shown(value: Any, shown: Any) -> None:
    found = plain({"it": value})["it"]
    assert found == shown


# --- what nodes see ---------------------------------------------------------------------------------------


class Surroundings(TypedDict, total=False):
    user: str


@pytest.mark.parametrize("given", ["context", "configurable"])
async def test_context_and_configurable_stand_for_each_other(given: str) -> None:
    seen: dict[str, Any] = {}

    def look(state: State, config: RunnableConfig, runtime: Runtime[Surroundings]) -> Any:
        seen["context"] = dict(runtime.context)
        seen["configurable"] = config["configurable"]["user"]
        return {}

    builder: Any = StateGraph(State, context_schema=Surroundings)
    builder.add_node("look", look)
    builder.add_edge(START, "look")
    named = {"user": "anna", "unknown": 1}
    ctx = (
        MemoryContext(context=named)
        if given == "context"
        else MemoryContext(config={"configurable": {**named, "thread_id": "stolen"}})
    )
    await run(agent_of(builder), ctx, {"said": []})
    assert seen == {"context": {"user": "anna"}, "configurable": "anna"}


async def test_how_often_a_graph_may_step() -> None:
    with pytest.raises(RecursionError):
        await told(chain(one=says("1"), two=says("2")), {"said": []}, config={"recursion_limit": 1})
