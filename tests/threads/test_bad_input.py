"""Bad input causes a clear error and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from tests.threads.support import LINES, World

from perdure.kernel.errors import InvalidInput, NotFound
from perdure.kernel.storage.dialect import statement
from perdure.threads.records import NewCheckpoint, RunCommand, RunRequest
from perdure.threads.work import Ending

COUNT = statement("SELECT count(*) FROM rollouts WHERE ns = :ns")
LONG = "x" * 256
NUL = "a\0b"

REQUESTS: dict[str, dict[str, Any]] = {
    "strategy": {"strategy": "queue"},
    "delay before now": {"after_seconds": -1},
    "delay of no time": {"after_seconds": float("nan")},
    "delay for ever": {"after_seconds": 1e12},
    "priority": {"priority": "high"},
    "priority too high": {"priority": 2**31},
    "attempts": {"max_attempts": 0},
    "time": {"timeout_seconds": 0},
    "disconnect": {"on_disconnect": "panic"},
    "completion": {"on_completion": "burn"},
    "existence": {"if_not_exists": "maybe"},
    "stream mode": {"stream_mode": "values"},
    "metadata": {"metadata": ["a"]},
    "metadata key": {"metadata": {LONG: 1}},
    "config": {"config": "fast"},
    "unserialisable input": {"input": object()},
    "bytes": {"input": b"\0"},
    "no number": {"input": [float("nan")]},
    "unserialisable context": {"context": {"x": object()}},
    "long thread": {"thread_id": LONG},
    "NUL": {"thread_id": NUL},
    "no text": {"thread_id": 5},
    "long assistant": {"assistant_id": LONG},
    "command without a thread": {"thread_id": None, "command": RunCommand(resume=1)},
    "checkpoint that no database holds": {"checkpoint_id": "a\0b"},
    "checkpoint without a thread": {"thread_id": None, "checkpoint_id": "x"},
}


@pytest.mark.parametrize("wrong", REQUESTS)
async def test_a_bad_request_is_refused(world: World, wrong: str) -> None:
    thread = await world.thread()
    options = {"thread_id": thread} | REQUESTS[wrong]
    with pytest.raises(InvalidInput):
        await world.run(**options)
    assert await world.rows(COUNT) == [(0,)]
    assert await world.rest(thread) == "idle"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"assistant_id": "nobody"}, "Assistant nobody not found"),
        ({"thread_id": "nowhere"}, "Thread nowhere not found"),
        (
            {"thread_id": "nowhere", "if_not_exists": "create", "checkpoint_id": "c"},
            "Checkpoint c not found in thread nowhere",
        ),
    ],
)
async def test_what_does_not_exist_is_named(world: World, options: dict[str, Any], words: str) -> None:
    with pytest.raises(NotFound, match=words):
        await world.run(**options)
    assert await world.rows(COUNT) == [(0,)]
    assert await world.rows(LINES) == []


@pytest.mark.parametrize(
    "options",
    [
        {"thread_id": LONG},
        {"thread_id": NUL},
        {"metadata": ["a"]},
        {"metadata": {"a": object()}},
        {"metadata": {NUL: 1}},
        {"config": "x"},
        {"values": object()},
        {"if_exists": "replace"},
    ],
)
async def test_a_bad_thread_is_refused(world: World, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        await world.threads.create_thread(**options)
    assert (await world.threads.search_threads()).total == 0


@pytest.mark.parametrize("change", [{"metadata": ["a"]}, {"metadata": []}, {"config": []}])
async def test_a_bad_change_of_a_thread_is_refused(world: World, change: dict[str, Any]) -> None:
    thread = await world.thread(metadata={"a": 1})
    with pytest.raises(InvalidInput):
        await world.threads.update_thread(thread, **change)
    assert (await world.threads.get_thread(thread)).metadata == {"a": 1}


@pytest.mark.parametrize("wrong", [NUL, LONG, "\udc80"])
async def test_odd_ids_are_unknown(world: World, wrong: str) -> None:
    threads = world.threads
    for call in (
        threads.get_thread,
        threads.delete_thread,
        threads.copy_thread,
        threads.get_state,
        threads.history,
        threads.update_thread,
        threads.get_run,
        threads.delete_run,
        threads.cancel_run,
        threads.follow_run,
        threads.follow_thread,
    ):
        with pytest.raises((InvalidInput, NotFound)):
            await call(wrong)
    with pytest.raises((InvalidInput, NotFound)):
        await threads.join_run(wrong, 0)
    with pytest.raises((InvalidInput, NotFound)):
        await threads.list_runs(thread_id=wrong)


async def test_a_state_that_cannot_be_kept_leaves_the_run_as_it_is(world: World) -> None:
    run = await world.run(await world.thread())
    held = (await world.take(run)).held
    for wrong in (object(), {"x": b"\0"}, float("inf")):
        with pytest.raises(InvalidInput):
            await world.save(held, wrong)
        with pytest.raises(InvalidInput):
            await world.queue.finish(
                Ending(held=held, result="success", checkpoint=NewCheckpoint(values=wrong))
            )
        with pytest.raises(InvalidInput):
            await world.threads.update_state(run.thread_id, wrong)
    assert await world.status(run) == "running"
    assert await world.kept(run.thread_id) == []
    await world.finish(held, values="fine")


async def test_too_many_at_once(world: World) -> None:
    with pytest.raises(InvalidInput, match="at most 1000"):
        await world.threads.create_runs([RunRequest(assistant_id="echo")] * 1001)
