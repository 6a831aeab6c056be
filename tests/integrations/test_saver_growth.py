"""A thread grows with what is said in it, and reading it costs no more for all that came before."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from tests.integrations import programs
from tests.integrations.support import config_for, new_thread, put, rows_of

from perdure.integrations.langgraph import PerdureSaver
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.langgraph.codec import query_one
from perdure.langgraph.lists import MAX_SPANS, Lists
from perdure.langgraph.revival import strict_serializer

STEPS = 500
SIZE = statement(
    """
    SELECT
      (SELECT coalesce(sum(length(versions) + length(metadata) + length(body)), 0) FROM graph_checkpoints)
      + (SELECT coalesce(sum(coalesce(length(ranges), 0) + coalesce(length(body), 0)), 0) FROM graph_pieces)
      + (SELECT coalesce(sum(length(body)), 0) FROM graph_items)
      + (SELECT coalesce(sum(length(body)), 0) FROM graph_writes)
    """
)


class Measured:
    """A serializer that adds up what it writes."""

    def __init__(self, inner: SerializerProtocol) -> None:
        self.inner = inner
        self.written = 0

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        form, body = self.inner.dumps_typed(obj)
        self.written += len(body)
        return form, body

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return self.inner.loads_typed(data)


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[PerdureSaver]:
    with PerdureSaver(tmp_path / "agents.db") as opened:
        yield opened


async def _size(tx: Tx) -> int:
    row = await tx.one(SIZE)
    return int(row[0]) if row else 0


async def test_the_last_hundred_steps_cost_what_the_first_did(engine_url: str) -> None:
    async with PerdureSaver(engine_url) as saver:
        graph = programs.loop().compile(checkpointer=saver)
        config = config_for(new_thread())
        config["recursion_limit"] = 1000
        sizes, rows = [0], [0]
        for _ in range(STEPS // 100):
            # Each time the thread is taken up again, as in a conversation.
            await graph.ainvoke({"left": 100}, config, durability="async")
            sizes.append(await saver._opened.storage.read(_size))
            rows.append(await saver._opened.storage.read(_rows))
        grew = [after - before for before, after in pairwise(sizes)]
        counts = [after - before for before, after in pairwise(rows)]
        assert max(grew) < 1.3 * min(grew)
        assert max(counts) < 1.1 * min(counts)
        state = await graph.aget_state(config)
        assert len(state.values["messages"]) == STEPS


async def _rows(tx: Tx) -> int:
    row = await tx.one(
        statement(
            "SELECT (SELECT count(*) FROM graph_checkpoints) + (SELECT count(*) FROM graph_pieces)"
            " + (SELECT count(*) FROM graph_items) + (SELECT count(*) FROM graph_writes)"
        )
    )
    return int(row[0]) if row else 0


def test_a_list_that_only_grew_is_not_serialized_again(tmp_path: Path) -> None:
    measured = Measured(strict_serializer())
    with PerdureSaver(tmp_path / "agents.db", serde=measured) as saver:
        thread_id = new_thread()
        messages: list[Any] = []
        checkpoint = None
        costs = []
        for number in range(300):
            messages = [*messages, HumanMessage(f"This is message number {number:04}.", id=f"m{number:04}")]
            before = measured.written
            checkpoint = put(saver, thread_id, checkpoint, {"messages": messages})
            costs.append(measured.written - before)
        assert max(costs[10:]) <= min(costs[10:]) + 2


def test_reading_the_newest_state_costs_nothing_for_the_others(saver: PerdureSaver) -> None:
    thread_id = new_thread()
    checkpoint = None
    for number in range(400):
        items = [f"item {n}" for n in range(number, number + 10)]
        checkpoint = put(saver, thread_id, checkpoint, {"window": items, "step": number})

    async def read() -> Any:
        return await saver._graphs.find(query_one(config_for(thread_id)))

    (found,) = saver._opened.wait(read)
    (window,) = [value for value in found.values if value.channel == "window"]
    assert window.parts is not None
    # Ten items, of which the oldest may lie among others that came with them.
    assert len(window.parts) <= 10
    assert len(rows_of(saver, thread_id)["items"]) <= 401


def test_a_list_that_is_edited_everywhere_is_written_anew_now_and_then(saver: PerdureSaver) -> None:
    thread_id = new_thread()
    items = [f"item {n}" for n in range(200)]
    checkpoint = None
    expected = []
    for number in range(120):
        items = [*items[: (number * 37) % 200], f"edit {number}", *items[(number * 37) % 200 + 1 :]]
        checkpoint = put(saver, thread_id, checkpoint, {"list": items})
        expected.append((checkpoint["id"], list(items)))
    for checkpoint_id, value in expected:
        found = saver.get_tuple(config_for(thread_id, checkpoint_id))
        assert found is not None
        assert found.checkpoint["channel_values"]["list"] == value
    logs = {log for _, _, log, _ in rows_of(saver, thread_id)["pieces"]}
    assert 1 < len(logs) < 20
    spans = [len(text.split("],[")) for _, _, _, text in rows_of(saver, thread_id)["pieces"] if text]
    assert max(spans) <= MAX_SPANS + 1


def test_what_a_node_changes_in_place_is_kept(saver: PerdureSaver) -> None:
    thread_id = new_thread()
    items: list[Any] = [{"done": False}, AIMessage("draft", id="1"), ["a"], "text", 0.0, {"n": 1}]
    checkpoint = None
    expected = []
    for number in range(8):
        checkpoint = put(saver, thread_id, checkpoint, {"items": items})
        expected.append((checkpoint["id"], copy.deepcopy(items)))
        items[0]["done"] = not items[0]["done"]
        items[1].content = f"draft {number}"
        items[1].additional_kwargs["n"] = number
        items[2].append(number)
        items[4] = -items[4]
        items[5]["n"] = True if items[5]["n"] is not True else 1
    for checkpoint_id, value in expected:
        found = saver.get_tuple(config_for(thread_id, checkpoint_id))
        assert found is not None
        assert repr(found.checkpoint["channel_values"]["items"]) == repr(value)


@dataclasses.dataclass
class Thing:
    name: str


def test_things_that_look_alike_are_told_apart() -> None:
    lists = Lists(strict_serializer().dumps_typed)
    alike: list[Any] = [1, True, 1.0, "1", b"1", [1], {1: 1}, {"1": 1}, {1}, None, 0.0, -0.0, Thing("1")]
    alike += [{"name": "1"}, HumanMessage("1"), AIMessage("1"), HumanMessage("1").model_dump()]
    prints = lists.prints(["first", *alike])
    assert len(set(prints)) == len(prints)
    assert lists.prints(["first", *copy.deepcopy(alike)]) == prints


def test_only_so_much_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.langgraph.lists.MAX_BYTES", 1000)
    lists = Lists(strict_serializer().dumps_typed)
    for number in range(50):
        items = [f"{number} {n}" * 5 for n in range(10)]
        for version in "abcdef":
            cut = lists.cut(number, version, items)
            lists.remember(number, cut.seen)
    assert len(lists._seen) < 5
    assert lists._bytes == sum(
        len(p) for known in lists._seen.values() for seen in known for p in seen.prints
    )
    assert all(len(known) <= 3 for known in lists._seen.values())
