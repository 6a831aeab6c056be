"""When the steps of a graph are stored, and where a run continues after a crash, an answer or a fork."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from tests.agents.support import Checkpoint, MemoryContext, Thread, run
from typing_extensions import TypedDict

from perdure.agents.context import Agent, AgentError
from perdure.checkpoints.records import CheckpointQuery
from perdure.langgraph.revival import strict_serializer
from perdure.worker.registry import Agents


class State(TypedDict, total=False):
    said: Annotated[list[str], operator.add]
    answer: str


Node = Callable[[State], Any]


def chain(**nodes: Node) -> StateGraph[State]:
    builder = StateGraph(State)
    # Its overloads do not accept a node of a union type.
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


def steps() -> StateGraph[State]:
    return chain(one=says("1"), two=says("2"))


# --- durability -------------------------------------------------------------------------------------------


async def test_by_default_a_short_run_is_kept_at_its_end_alone() -> None:
    ctx = MemoryContext()
    await run(agent_of(steps()), ctx, {"said": ["0"]})
    assert (ctx.graph.settled, ctx.graph.reads) == (1, 0)
    assert [each.metadata["step"] for each in ctx.thread.checkpoints] == [-1, 0, 1, 2]
    parents = [each.parent_id for each in ctx.thread.checkpoints]
    assert parents == [None, *(each.checkpoint_id for each in ctx.thread.checkpoints[:-1])]


async def test_sync_keeps_each_step_before_the_next_begins() -> None:
    seen: list[int] = []
    ctx = MemoryContext(options={"durability": "sync"})

    def counts(state: State) -> Any:
        seen.append(len(ctx.thread.checkpoints))
        return {"said": ["x"]}

    await run(agent_of(chain(one=counts, two=counts)), ctx, {"said": []})
    assert seen == [2, 3]


@pytest.mark.parametrize("options", [{"durability": "exit"}, {"checkpoint_during": False}])
async def test_exit_keeps_the_end_alone(options: dict[str, Any]) -> None:
    ctx = MemoryContext(options=options)
    await run(agent_of(steps()), ctx, {"said": ["0"]})
    (only,) = ctx.thread.checkpoints
    assert (only.values, only.next) == ({"said": ["0", "1", "2"]}, ())
    await run(agent_of(steps()), MemoryContext(ctx.thread, run_id="b", options=options), {"said": ["x"]})
    assert ctx.thread.checkpoints[-1].values == {"said": ["0", "1", "2", "x", "1", "2"]}


# --- after a crash ----------------------------------------------------------------------------------------


async def test_the_next_attempt_goes_on_where_a_lost_one_was() -> None:
    done: list[str] = []
    thread = Thread()
    lost = MemoryContext(thread, options={"durability": "sync"})

    def does(name: str) -> Node:
        def node(state: State) -> Any:
            done.append(name)
            if name == "three" and done.count("three") == 1:
                # The worker dies here: none of its later writes arrive.
                lost.graph.lost = True
            return {"said": [name]}

        return node

    agent = agent_of(chain(**{name: does(name) for name in ("one", "two", "three", "four")}))
    await run(agent, lost, {"said": ["0"]})
    assert thread.checkpoints[-1].values == {"said": ["0", "one", "two"]}
    ctx = MemoryContext(thread, attempt=2, options={"durability": "sync"})
    await run(agent, ctx, {"said": ["0"]})
    assert done == ["one", "two", "three", "four", "three", "four"]
    assert thread.checkpoints[-1].values == {"said": ["0", "one", "two", "three", "four"]}


async def test_a_crash_before_the_first_step_begins_anew() -> None:
    thread = Thread()
    lost = MemoryContext(thread)
    lost.graph.lost = True
    agent = agent_of(steps())
    await run(agent, lost, {"said": ["0"]})
    assert thread.checkpoints == []
    await run(agent, MemoryContext(thread, attempt=2), {"said": ["0"]})
    assert thread.checkpoints[-1].values == {"said": ["0", "1", "2"]}


async def test_a_command_is_not_carried_out_twice() -> None:
    failures = [ConnectionError("gone")]

    def fails_once(state: State) -> Any:
        if failures:
            raise failures.pop()
        return {"said": ["two"]}

    thread, agent = Thread(), agent_of(chain(one=says("1"), two=fails_once))
    failures.clear()
    await run(agent, MemoryContext(thread, run_id="a"), {"said": ["0"]})
    failures.append(ConnectionError("gone"))
    command = {"update": {"said": ["told"]}, "goto": "two"}
    with pytest.raises(ConnectionError):
        await run(agent, MemoryContext(thread, run_id="b", command=command), None)
    await run(agent, MemoryContext(thread, run_id="b", attempt=2, command=command), None)
    assert thread.checkpoints[-1].values == {"said": ["0", "1", "two", "told", "two"]}


async def test_what_was_undone_is_not_gone_on_from() -> None:
    thread, agent = Thread(), agent_of(steps())
    await run(agent, MemoryContext(thread, run_id="a"), {"said": ["a"]})
    kept = len(thread.checkpoints)
    await run(agent, MemoryContext(thread, run_id="b"), {"said": ["b"]})
    # Its checkpoints are still stored for a while.
    del thread.checkpoints[kept:]
    await run(agent, MemoryContext(thread, run_id="c"), {"said": ["c"]})
    assert thread.checkpoints[-1].values == {"said": ["a", "1", "2", "c", "1", "2"]}


# --- forks and subgraphs ----------------------------------------------------------------------------------


async def test_a_run_from_an_earlier_checkpoint() -> None:
    thread, agent = Thread(), agent_of(steps())
    await run(agent, MemoryContext(thread, run_id="a"), {"said": ["0"]})
    after_one = thread.checkpoints[2]
    assert (after_one.values, after_one.next) == ({"said": ["0", "1"]}, ("two",))
    fork = MemoryContext(thread, run_id="b", from_checkpoint=after_one.checkpoint_id)
    await run(agent, fork, None)
    assert thread.checkpoints[-1].values == {"said": ["0", "1", "2"]}
    assert thread.checkpoints[-1].run_id == "b"
    forked = next(each for each in thread.checkpoints if each.run_id == "b")
    assert forked.parent_id == after_one.checkpoint_id
    again = MemoryContext(thread, run_id="c", from_checkpoint=thread.checkpoints[1].checkpoint_id)
    await run(agent, again, {"said": ["other"]})
    assert thread.checkpoints[-1].values == {"said": ["0", "other", "1", "2"]}


async def test_several_are_asked_at_once() -> None:
    def asks(question: str) -> Node:
        return lambda state: {"said": [interrupt(question)]}

    builder: Any = StateGraph(State)
    for name in ("left", "right"):
        builder.add_node(name, asks(name))
        builder.add_edge(START, name)
    thread, agent = Thread(), agent_of(builder)
    await run(agent, MemoryContext(thread, run_id="a"), {})
    asked = thread.checkpoints[-1].interrupts
    assert sorted(each["value"] for each in asked) == ["left", "right"]
    assert len({each["task_id"] for each in asked}) == 2
    answers = {each["id"]: each["value"].upper() for each in asked}
    await run(agent, MemoryContext(thread, run_id="b", command={"resume": answers}), None)
    assert sorted(thread.checkpoints[-1].values["said"]) == ["LEFT", "RIGHT"]


async def test_a_subgraph_that_remembers() -> None:
    inner = chain(count=lambda state: {"said": [str(len(state.get("said", [])))]})
    outer = StateGraph(State)
    outer.add_node("inner", inner.compile(checkpointer=True))
    outer.add_edge(START, "inner")
    thread, agent = Thread(), agent_of(outer)
    for name in ("a", "b"):
        await run(agent, MemoryContext(thread, run_id=name), {"answer": name})
    found = await thread.graphs.find(CheckpointQuery(checkpoint_ns="inner"))
    assert {each.run_id for each in found} == {"a", "b"}


# --- channels that are stored as changes ------------------------------------------------------------------


def joined(before: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*before, *(word for write in writes for word in write)]


class Changing(TypedDict, total=False):
    said: Annotated[list[str], DeltaChannel(joined)]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_delta_channel(durability: str) -> None:
    builder = StateGraph(Changing)
    builder.add_node("one", lambda state: {"said": ["1"]})
    builder.add_node("two", lambda state: {"said": [str(len(state["said"]))]})
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    thread, agent = Thread(), agent_of(builder)
    options = {"durability": durability}
    await run(agent, MemoryContext(thread, run_id="a", options=options), {"said": ["0"]})
    assert thread.checkpoints[-1].values == {"said": ["0", "1", "2"]}
    await run(agent, MemoryContext(thread, run_id="b", options=options), {"said": ["again"]})
    assert thread.checkpoints[-1].values == {"said": ["0", "1", "2", "again", "1", "5"]}


# --- states of release 0.3.0 ------------------------------------------------------------------------------


def legacy_state(found: CheckpointTuple) -> bytes:
    """State as release 0.3.0 stored it, with integer versions."""
    serde = strict_serializer()
    versions = {name: int(str(each).split(".")[0]) for name, each in _versions(found).items()}
    seen = {
        node: {name: int(str(each).split(".")[0]) for name, each in known.items()}
        for node, known in found.checkpoint["versions_seen"].items()
    }
    whole = {**found.checkpoint, "channel_versions": versions, "versions_seen": seen}
    kept = [serde.dumps_typed(whole), serde.dumps_typed(found.metadata), None]
    writes = [
        [task_id, number, channel, serde.dumps_typed(value), ""]
        for number, (task_id, channel, value) in enumerate(found.pending_writes or ())
    ]
    checkpoint_id = found.checkpoint["id"]
    state = {"kept": {"": {checkpoint_id: kept}}, "writes": {"": {checkpoint_id: writes}}}
    return msgspec.msgpack.encode(state)


def _versions(found: CheckpointTuple) -> dict[str, Any]:
    return dict(found.checkpoint["channel_versions"])


@pytest.mark.parametrize("same_id", [True, False])
async def test_a_state_of_an_earlier_release_is_gone_on_from(same_id: bool) -> None:
    def asks(state: State) -> Any:
        return {"answer": interrupt("well?")}

    builder = chain(one=says("1"), asks=asks)
    saver = InMemorySaver()
    config: Any = {"configurable": {"thread_id": "t"}}
    await builder.compile(checkpointer=saver).ainvoke({"said": ["0"]}, config)
    found = await saver.aget_tuple(config)
    assert found is not None
    thread = Thread()
    thread.checkpoints.append(
        Checkpoint(
            checkpoint_id=found.checkpoint["id"] if same_id else "another",
            run_id="a",
            values={"said": ["0", "1"]},
            next=("asks",),
            interrupts=[{"id": "1", "value": "well?"}],
            metadata={},
            state=legacy_state(found),
        )
    )
    agent = agent_of(builder)
    await run(agent, MemoryContext(thread, run_id="b", command={"resume": "yes"}), None)
    last = thread.checkpoints[-1]
    assert (last.values, last.next) == ({"said": ["0", "1"], "answer": "yes"}, ())
    await run(agent, MemoryContext(thread, run_id="c"), {"said": ["x"]})
    assert thread.checkpoints[-1].values["said"] == ["0", "1", "x", "1"]


async def test_a_state_that_is_no_graphs() -> None:
    thread = Thread()
    made = Checkpoint(
        checkpoint_id="c", run_id="a", values=1, next=(), interrupts=[], metadata={}, state=b"garbage"
    )
    thread.checkpoints.append(made)
    with pytest.raises(AgentError, match="does not hold the state of a graph"):
        await run(agent_of(steps()), MemoryContext(thread, run_id="b"), {"said": []})
