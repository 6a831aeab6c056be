"""States that graphs show: which events refer to checkpoints, and that every reader gets the same data."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from tests.kernel.support import soon
from tests.support.events import stored_events
from typing_extensions import TypedDict

from perdure.embedding.perdure import Perdure
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.streams.model import REFERENCE_SIZE, StreamEvent
from perdure.threads.records import RunRequest
from perdure.worker.registry import Agents

STEPS = 10
LONG = "x" * REFERENCE_SIZE
SHOWN = statement(
    "SELECT seq, checkpoint_id FROM stream_events WHERE ns = :ns AND stream = :stream"
    " AND checkpoint_id IS NOT NULL"
)


@dataclass
class Point:
    x: int
    y: int


class Chat(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]


class Plain(TypedDict, total=False):
    items: Annotated[list[Any], operator.add]
    note: dict[str, Any]
    count: int


class Shown(TypedDict, total=False):
    items: list[Any]


def loop(node: Any, schema: Any = Plain, **options: Any) -> Any:
    """Build a graph that runs one node a few times."""
    builder: Any = StateGraph(schema, **options)
    builder.add_node("step", node)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: END if len(_listed(state)) > STEPS else "step")
    return builder


def _listed(state: Any) -> list[Any]:
    found: list[Any] = state.get("messages") or state.get("items") or []
    return found


def talk(state: Any) -> Any:
    number = len(state["messages"])
    if number % 2:
        call = {"name": "look", "args": {"at": [1, 2.5, None]}, "id": f"call {number}"}
        return {"messages": [AIMessage(content=LONG, tool_calls=[call], id=f"m{number}")]}
    answer = ToolMessage(content="ü\u2028" + LONG, tool_call_id=f"call {number - 1}", id=f"m{number}")
    return {"messages": [answer]}


def grow(state: Any) -> Any:
    number = len(state["items"])
    note = {"text": LONG, "number": number, "inf": float("inf"), "raw": b"bytes"}
    return {"items": [{"number": number, "text": LONG}], "note": note, "count": number}


def grow_with_objects(state: Any) -> Any:
    made = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    return {"items": [{"text": LONG, "at": made, "where": Point(1, 2), "set": {"a"}, 1: "number"}]}


def change_in_place(state: Any) -> Any:
    for item in state["items"]:
        item["seen"] = item.get("seen", 0) + 1
    return {"items": [{"text": LONG}]}


def nest() -> Any:
    inner = loop(grow).compile()
    builder: Any = StateGraph(Plain)
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    return builder


GRAPHS = {
    "chat": loop(talk, Chat),
    "plain": loop(grow),
    "shows some": loop(grow, output_schema=Shown),
    "objects": loop(grow_with_objects),
    "in place": loop(change_in_place),
    "nested": nest(),
}


@pytest.fixture(params=["sqlite", "postgres"])
async def perdure(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Perdure]:
    agents = Agents()
    for name, graph in GRAPHS.items():
        agents.register(name, graph)
    url = f"sqlite:///{tmp_path}/shown.db"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    async with Perdure(url, agents=agents) as opened:
        yield opened


async def _rows(tx: Tx, stream: str) -> list[Any]:
    shown = {row[0]: row[1] for row in await tx.all(SHOWN, stream=stream)}
    events = [event for event in await stored_events(tx) if event.source == stream]
    return [(event.event, event.body, shown.get(event.seq)) for event in events]


async def run(
    perdure: Perdure, name: str, thread_id: str | None = None, **options: Any
) -> tuple[list[StreamEvent], list[tuple[str, str, str | None]]]:
    """Return the `values` events of a run, as its reader got them, and their stored rows."""
    threads = perdure.threads
    said = {"messages": [{"role": "human", "content": "hi", "id": "m0"}]}
    request = RunRequest(
        assistant_id=name,
        thread_id=thread_id or (await threads.create_thread()).thread_id,
        input=said if name == "chat" else {"items": [{}]},
        stream_mode=["values"],
        options=options,
    )
    made = await threads.create_run(request)
    live = [event async for burst in threads.stream_run(made.run_id) for event in burst]
    stored = await threads.storage.read(_rows, made.run_id, ns=await threads.ns())
    again = [event async for burst in threads.stream_run(made.run_id) for event in burst]
    assert again == live
    assert live[-1].body == '{"status":"success"}'
    middle = live[len(live) // 2]
    after = [event async for burst in threads.stream_run(made.run_id, middle.id) for event in burst]
    assert after == live[len(live) // 2 + 1 :]
    assert [event for event in live if event.body == "null"] == []
    return live, [row for row in stored if row[0].startswith("values")]


def references(rows: list[tuple[str, str, str | None]]) -> tuple[int, int]:
    """Count the events that refer to checkpoints, and all events with long data."""
    refer = sum(checkpoint is not None for _, _, checkpoint in rows)
    return refer, refer + sum(len(body) >= REFERENCE_SIZE for _, body, _ in rows)


@pytest.mark.parametrize("durability", ["async", "sync"])
@pytest.mark.parametrize("name", ["chat", "plain", "shows some"])
async def test_states_of_plain_data_and_messages_are_stored_once(
    perdure: Perdure, name: str, durability: str
) -> None:
    _, rows = await soon(run(perdure, name, durability=durability))
    assert references(rows) == (STEPS, STEPS)


async def test_a_second_run_shows_what_the_first_has_stored(perdure: Perdure) -> None:
    thread = (await perdure.threads.create_thread()).thread_id
    await soon(run(perdure, "plain", thread))
    _, rows = await soon(run(perdure, "plain", thread))
    assert references(rows) == (2, 2)


async def test_subgraphs_show_their_own_checkpoints(perdure: Perdure) -> None:
    events, rows = await soon(run(perdure, "nested", stream_subgraphs=True))
    refer, long = references(rows)
    assert refer > STEPS
    assert long - refer <= 1
    assert any(event.event.startswith("values|inner:") for event in events)


async def test_without_checkpoints_on_the_way_the_states_are_stored(perdure: Perdure) -> None:
    _, rows = await soon(run(perdure, "plain", durability="exit"))
    refer, long = references(rows)
    assert (refer <= 1, long) == (True, STEPS)


@pytest.mark.parametrize("name", ["objects", "in place"])
async def test_what_only_the_graph_can_show_is_stored_as_it_was_shown(perdure: Perdure, name: str) -> None:
    """`run` asserts that every reader gets the same data as the first."""
    _, rows = await soon(run(perdure, name))
    assert references(rows)[1] == STEPS
