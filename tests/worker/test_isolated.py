"""Agents in their own processes: they work like others, and their failures affect no other run."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.worker import isolated_agents
from tests.worker.worker_support import House

from perdure.agents.commands import isolated

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def house() -> House:
    house = House()
    for name in (
        "worker",
        "blocking",
        "blocking_loop",
        "waiting",
        "killing",
        "leaving",
        "asking",
        "odd",
        "overlapping",
    ):
        house.agents.register(name, isolated(f"tests.worker.isolated_agents:{name}", directory=ROOT))
    house.agents.register("absent", isolated("tests.runtime.no_such_module:agent", directory=ROOT))
    return house


async def test_an_agent_in_its_own_process_has_what_others_have(house: House) -> None:
    async with house.working():
        row = await house.queue.ended(house.queue.add("worker", os.getpid()))
    assert row.results == ["retriable", "success"]
    # The second attempt emits before it reaches the step that the first one saved.
    assert row.told("custom") == [{"attempt": 1, "pid": True}]
    assert row.told("values")[-1] == {"steps": [1, 10], "loaded": {"at": 2}, "key": ":x"}
    states = house.queue.checkpoints[row.run.thread_id]
    assert [(each.values, each.state, each.metadata) for each in states[:1]] == [
        ({"at": 1}, b"\x00own", {"a": 1})
    ]


@pytest.mark.parametrize("isolated_process", [False, True])
async def test_steps_of_the_same_name_keep_their_results(house: House, isolated_process: bool) -> None:
    name = "overlapping" if isolated_process else "inside"
    house.agents.register("inside", isolated_agents.overlapping)
    async with house.working():
        whole = await house.queue.ended(house.queue.add(name))
        half = await house.queue.ended(house.queue.add(name, "half"))
    first, second, inner = "first of attempt {}", "second of attempt {}", "inner of attempt {}"
    for row, began in ((whole, 1), (half, 2)):
        assert row.results == ["retriable", "success"]
        assert row.told("values")[-1] == [
            first.format(began),
            second.format(1),
            ["outer", inner.format(began)],
            f"after of attempt {began}",
        ]


async def test_it_can_ask(house: House) -> None:
    async with house.working():
        await house.queue.ended(house.queue.add("asking", thread_id="one"))
        row = await house.queue.ended(house.queue.add("asking", thread_id="one", resume=7))
    assert row.told("values") == [{"answer": 7}]


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        ("killing", "SIGKILL"),
        ("leaving", "exited with 3"),
        ("odd", "cannot be stored as JSON"),
        ("absent", "no_such_module"),
    ],
)
async def test_whatever_it_does_the_run_ends_with_an_error(house: House, agent: str, words: str) -> None:
    async with house.working():
        row = await house.queue.ended(house.queue.add(agent))
    assert row.run.status == "error"
    assert row.run.error is not None
    assert words in row.run.error.message


@pytest.mark.parametrize("agent", ["waiting", "blocking", "blocking_loop"])
async def test_it_is_stopped_and_killed_if_need_be(house: House, agent: str) -> None:
    async with house.working(cancel_grace=1.0):
        run_id = house.queue.add(agent)
        await house.queue.until(lambda: house.queue.rows[run_id].told("custom"))
        house.queue.cancel(run_id)
        began = time.monotonic()
        row: Any = await house.queue.ended(run_id)
    assert row.results == ["stopped"]
    assert time.monotonic() - began < 10
