"""perdure inside a program: options, events, typed inputs, webhooks, and the same without `await`."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_type_hints

import pydantic
import pytest
from tests.outbox.webhooks.support import receiving

import perdure
import perdure.lightning
from perdure import Agents, LightningStoreServer, SqliteLightningStore, sync
from perdure.embedding.perdure import Perdure
from perdure.errors import InvalidInput, NotFound, StorageClosed
from perdure.kernel.background import Background
from perdure.threads.asking import RunOptions
from perdure.threads.records import RunRequest

agents = Agents()


@dataclass
class Dish:
    name: str
    parts: list[str] = dataclasses.field(default_factory=list)


class Order(pydantic.BaseModel):
    dish: Dish
    count: int = 1


@agents.agent
async def cook(ctx: Any, input: Dish) -> Any:
    """Cooks a dish."""
    return {"made": type(input).__name__, "name": input.name, "parts": input.parts}


@agents.agent()
def order(ctx: Any, input: Order) -> Any:
    return input


@agents.agent(description="Spells.")
async def spell(ctx: Any, input: Any) -> Any:
    for letter in input:
        yield letter


def test_an_agent_without_a_name_has_that_of_its_function() -> None:
    specs = {spec.name: spec for spec in agents.specs}
    assert list(specs) == ["cook", "order", "spell"]
    assert (specs["cook"].description, specs["spell"].description) == ("Cooks a dish.", "Spells.")
    assert specs["order"].input_schema is not None
    assert set(specs["order"].input_schema["properties"]) == {"dish", "count"}
    assert specs["cook"].input_schema is not None
    assert specs["spell"].input_schema is None
    with pytest.raises(InvalidInput, match=r'has no name; write @agents.agent\("name"\)'):
        agents.agent(lambda ctx, input: None)


def test_the_options_of_a_run_are_the_fields_of_its_request() -> None:
    fields = set(RunRequest.__struct_fields__) - {"assistant_id", "input"}
    assert set(get_type_hints(RunOptions)) == fields


async def test_inputs_are_of_the_class_that_the_agent_declares() -> None:
    async with Perdure("memory:", agents=agents) as opened:
        for given in (Dish("soup", ["leek"]), {"name": "soup", "parts": ["leek"]}):
            end = await opened.run("cook", given)
            assert end.values == {"made": "Dish", "name": "soup", "parts": ["leek"]}
        for asked in (Order(dish=Dish("tart")), {"dish": {"name": "tart"}}):
            end = await opened.run("order", asked)
            assert end.values == {"dish": {"name": "tart", "parts": []}, "count": 1}
        for agent, wrong, said in (
            ("cook", {"name": 7}, "the input does not fit Dish: Expected `str`, got `int` - at `$.name`"),
            ("order", {"dish": {"name": "a"}, "count": "many"}, "the input does not fit Order: count: Input"),
            ("cook", None, "the input does not fit Dish"),
        ):
            end = await opened.run(agent, wrong)
            assert end.run.status == "error"
            assert end.run.error is not None
            assert said in end.run.error.message
        with pytest.raises(InvalidInput, match="treads_id"):
            await opened.run("cook", Dish("a"), treads_id="t")  # type: ignore[call-arg]


async def test_streams_give_events_with_data_and_bursts_on_request() -> None:
    async with Perdure("memory:", agents=agents) as opened:
        events = [event async for event in opened.stream("spell", "ab")]
        assert [event.data for event in events if event.event == "custom"] == ["a", "b"]
        assert events[-1].event == "end"
        bursts = [burst async for burst in opened.stream_bursts("spell", "ab")]
        assert [event.event for burst in bursts for event in burst] == [event.event for event in events]


async def test_webhooks_of_a_program_are_delivered() -> None:
    program = Perdure("memory:", agents=agents, webhook_allow_loopback=True)
    async with receiving() as receiver, program as opened:
        await opened.run("cook", Dish("soup"), webhook=receiver.url)
        await receiver.has(1)
    assert json.loads(receiver.got[0].body)["values"]["name"] == "soup"


# --- without await ----------------------------------------------------------------------------------------


def test_a_program_without_await() -> None:
    with sync.Perdure("memory:", agents=agents) as opened:
        assert opened.run("cook", Dish("soup")).values["name"] == "soup"
        letters = (event.data for event in opened.stream("spell", "abc") if event.event == "custom")
        assert [next(letters), next(letters)] == ["a", "b"]
        letters.close()
        thread = opened.threads.create_thread()
        assert opened.threads.get_thread(thread.thread_id).thread_id == thread.thread_id
        with pytest.raises(NotFound):
            opened.threads.get_thread("nobody")
        rollout = opened.store.enqueue_rollout({"question": 1})
        assert opened.services.rollouts.in_namespace("default").get(rollout.rollout_id) is not None
        # Many threads may share it.
        ends: list[str] = []
        asking = [
            threading.Thread(target=lambda: ends.append(opened.run("cook", Dish("x")).run.status))
            for _ in range(4)
        ]
        for each in asking:
            each.start()
        for each in asking:
            each.join()
        assert ends == ["success"] * 4
        assert "create_thread" in dir(opened.threads)
    with pytest.raises(StorageClosed):
        opened.run("cook", Dish("late"))
    assert not [each for each in threading.enumerate() if each.name == "perdure-blocking"]


@pytest.fixture
def server() -> Iterator[str]:
    """A server in a thread of its own."""
    served = LightningStoreServer(SqliteLightningStore(":memory:"), port=0)
    portal = Background("test-server")
    portal.wait(served.start)
    yield served.endpoint
    portal.wait(served.close)
    portal.close()


def test_a_client_without_await(server: str) -> None:
    with sync.PerdureClient(server) as client:
        thread = client.create_thread(metadata={"a": 1})
        assert [each.thread_id for each in client.search_threads().items] == [thread.thread_id]
        assert client.assistants.search().items == []
        with pytest.raises(NotFound):
            client.run("nobody", 1)
        assert client.why(thread.thread_id) is not None
    with pytest.raises(StorageClosed):
        client.stats()


def test_the_names_of_agent_lightning_are_in_a_module_of_their_own() -> None:
    for name in perdure.lightning.__all__:
        assert getattr(perdure.lightning, name) is getattr(perdure, name)
    others = {"Agents", "Context", "Lifetime", "Perdure", "PerdureClient", "Retriable", "Run", "RunEnd"}
    others |= {"RunRequest", "Thread", "errors", "phase", "workflow", "__version__"}
    assert set(perdure.lightning.__all__) == set(perdure.__all__) - others
