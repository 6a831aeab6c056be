"""Requests for a run on a busy thread."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import ConflictError, NotFoundError
from tests.server.langgraph.run_support import Gate, ids_of, new_thread, started, until_thread


async def test_reject_lets_one_of_many_in(client: LangGraphClient, tmp_path: Path) -> None:
    thread_id, gate = await new_thread(client), Gate(tmp_path)
    asking = [
        client.runs.create(thread_id, "slow", input=gate.input, multitask_strategy="reject") for _ in range(8)
    ]
    answers = await asyncio.gather(*asking, return_exceptions=True)
    won = [each for each in answers if not isinstance(each, BaseException)]
    assert len(won) == 1
    assert all(isinstance(each, ConflictError) for each in answers if isinstance(each, BaseException))
    assert len(await client.runs.list(thread_id)) == 1
    gate.open()
    await client.runs.join(thread_id, won[0]["run_id"])


async def test_a_refusal_says_what_the_thread_is_busy_with(client: LangGraphClient, tmp_path: Path) -> None:
    thread_id, gate = await new_thread(client), Gate(tmp_path)
    run_id = await started(client, thread_id, gate)
    with pytest.raises(ConflictError, match=run_id):
        await client.runs.create(thread_id, "noop", input={}, multitask_strategy="reject")
    gate.open()
    await client.runs.join(thread_id, run_id)
    await client.runs.wait(thread_id, "noop", input={}, multitask_strategy="reject")


async def test_runs_stand_in_line(client: LangGraphClient, tmp_path: Path) -> None:
    """Enqueue is the default; each run continues from the end of the previous one."""
    thread_id, gate = await new_thread(client), Gate(tmp_path)
    first = await started(client, thread_id, gate)
    later = [await client.runs.create(thread_id, "steps", input={"n": n}) for n in (10, 20)]
    assert {run["multitask_strategy"] for run in later} == {"enqueue"}
    statuses = {run["run_id"]: run["status"] for run in await client.runs.list(thread_id)}
    assert statuses == {first: "running", **dict.fromkeys(ids_of(later), "pending")}
    gate.open()
    values = await client.runs.join(thread_id, later[-1]["run_id"])
    steps = ["one", "two", "three"]
    assert values["log"] == ["before", "waited", "after", *steps, *steps]
    assert values["n"] == 23


async def test_each_who_waits_gets_the_values_of_its_own_run(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    waiting = [client.runs.wait(thread_id, "steps", input={"n": 10 * number}) for number in range(4)]
    found: list[Any] = await asyncio.gather(*waiting)
    assert sorted(values["n"] for values in found) == [3, 13, 23, 33]
    assert sorted(len(values["log"]) for values in found) == [3, 6, 9, 12]


async def test_interrupt_keeps_what_was_done(client: LangGraphClient, tmp_path: Path) -> None:
    thread_id, gate = await new_thread(client), Gate(tmp_path)
    running = await started(client, thread_id, gate)
    waiting = await client.runs.create(thread_id, "noop", input={}, multitask_strategy="enqueue")
    values: Any = await client.runs.wait(thread_id, "steps", input={"n": 5}, multitask_strategy="interrupt")
    assert (values["n"], values["log"]) == (8, ["before", "one", "two", "three"])
    for run_id in (running, waiting["run_id"]):
        assert (await client.runs.get(thread_id, run_id))["status"] == "interrupted"


async def test_rollback_undoes_what_was_done(client: LangGraphClient, tmp_path: Path) -> None:
    thread_id, gate = await new_thread(client), Gate(tmp_path)
    await client.runs.wait(thread_id, "steps", input={"n": 0})
    before = await client.threads.get_history(thread_id, limit=100)
    running = await started(client, thread_id, gate)
    waiting = await client.runs.create(thread_id, "noop", input={})
    values: Any = await client.runs.wait(thread_id, "steps", input={"n": 5}, multitask_strategy="rollback")
    assert values["log"] == ["one", "two", "three"] * 2
    for run_id in (running, waiting["run_id"]):
        with pytest.raises(NotFoundError):
            await client.runs.get(thread_id, run_id)
    assert running not in ids_of(await client.runs.list(thread_id))
    after = await client.threads.get_history(thread_id, limit=100)
    assert after[-len(before) :] == before


async def test_a_cancel_by_rollback_leaves_no_trace(client: LangGraphClient, tmp_path: Path) -> None:
    thread_id, gate = await new_thread(client), Gate(tmp_path)
    await client.runs.wait(thread_id, "steps", input={"n": 0})
    before = await client.threads.get_history(thread_id, limit=100)
    run_id = await started(client, thread_id, gate)
    await client.runs.cancel(thread_id, run_id, action="rollback", wait=True)
    with pytest.raises(NotFoundError):
        await client.runs.get(thread_id, run_id)
    await until_thread(client, thread_id, "idle")
    assert await client.threads.get_history(thread_id, limit=100) == before
    assert len(await client.runs.list(thread_id)) == 1
