"""Runs on a worker: every way in which an agent can end, without effects on other runs."""

import asyncio
import sys
import threading
import time
from typing import Any

import pytest
from tests.worker.worker_support import House

from perdure.agents.context import Retriable
from perdure.kernel.errors import Conflict, OutcomeUnknown, StorageError, StorageUnavailable, Unreachable
from perdure.streams.model import NewEvent
from perdure.threads.work import Lease
from perdure.worker import emitter
from perdure.worker.retry_policy import LONGEST_MESSAGE, build_failure


@pytest.fixture
def house() -> House:
    return House()


async def test_a_run_is_executed_and_its_end_is_told_with_its_values(house: House) -> None:
    @house.agents.agent("adder")
    async def adder(ctx: Any, input: Any) -> Any:
        await ctx.emit({"half": 1})
        return {"sum": sum(input)}

    async with house.working() as worker:
        row = await house.queue.ended(house.queue.add("adder", [1, 2]))
    assert row.run.status == "success"
    assert row.told() == [
        ("metadata", {"run_id": row.run.run_id, "attempt": 1}),
        ("custom", {"half": 1}),
        ("values", {"sum": 3}),
        ("end", {"status": "success"}),
    ]
    assert house.queue.checkpoints[row.run.thread_id][-1].values == {"sum": 3}
    assert worker.statistics.runs == {"success": 1}
    assert [spec.name for spec in house.queue.agents] == ["adder"]


async def test_a_run_that_ends_at_once_is_told_in_one_transaction(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine even this run takes longer than events wait for others.
    monkeypatch.setattr(emitter, "LINGER_SECONDS", 60.0)

    @house.agents.agent("quick")
    async def quick(ctx: Any, input: Any) -> None:
        return None

    async with house.working():
        await house.queue.ended(house.queue.add("quick"))
    assert "append" not in {name for name, _ in house.queue.calls}


async def test_whoever_follows_a_run_gets_its_first_event_at_once(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emitter, "LINGER_SECONDS", 60.0)
    house.queue.followed = True
    append, appended = house.queue.append, threading.Event()

    async def append_and_tell(*args: Any) -> int:
        last = await append(*args)
        appended.set()
        return last

    monkeypatch.setattr(house.queue, "append", append_and_tell)

    @house.agents.agent("patient")
    async def patient(ctx: Any, input: Any) -> None:
        if not await asyncio.to_thread(appended.wait, 30):
            raise TimeoutError

    async with house.working():
        row = await house.queue.ended(house.queue.add("patient"))
    assert row.run.status == "success"
    assert [name for name, _ in row.told()] == ["metadata", "end"]


@pytest.mark.parametrize("ends", ["somebody reads it", "others may read it", "time is up", "it is full"])
async def test_events_that_nobody_reads_wait_while_the_worker_is_busy(
    house: House, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(emitter, "CROWDED_SECONDS", 0.001)
    monkeypatch.setattr(emitter, "UNREAD_TIMES", 5 if ends == "time is up" else 1_000_000)
    queue, looks = house.queue, 0

    def is_followed(held: Lease) -> bool | None:
        nonlocal looks
        looks += 1
        queue.tell()
        return queue.followed

    monkeypatch.setattr(queue, "is_followed", is_followed)
    queue.followed = False
    run_id = queue.add("quiet")
    row = queue.rows[run_id]
    (claimed,) = await queue.claim("w", ["quiet"], 1)
    events = emitter.Emitter(queue, claimed.held, lambda: True, last=0, active=lambda: 2, max_events=2)
    events.put(NewEvent("custom", "1"))
    await queue.until(lambda: looks >= 5)
    if ends != "time is up":
        assert row.events == []
    if ends == "somebody reads it":
        queue.followed = True
    elif ends == "others may read it":
        queue.followed = None
    elif ends == "it is full":
        events.put(NewEvent("custom", "2"))
    await queue.until(lambda: row.events)
    assert row.told("custom") == ([1, 2] if ends == "it is full" else [1])
    events.close()


async def test_values_are_told_to_whoever_asked_for_them_alone(house: House) -> None:
    @house.agents.agent("quiet")
    async def quiet(ctx: Any, input: Any) -> Any:
        return 1

    async with house.working():
        row = await house.queue.ended(house.queue.add("quiet", stream_mode=["custom"]))
    assert row.told("values") == []


async def test_a_worker_never_claims_more_than_it_can_run(house: House) -> None:
    counts = {"now": 0, "most": 0}

    @house.agents.agent("slow")
    async def slow(ctx: Any, input: Any) -> None:
        counts["now"] += 1
        counts["most"] = max(counts["most"], counts["now"])
        await asyncio.sleep(0.002)
        counts["now"] -= 1

    runs = [house.queue.add("slow") for _ in range(30)]
    async with house.working(concurrency=3):
        for run_id in runs:
            await house.queue.ended(run_id)
    assert counts["most"] == 3
    assert max(limit for name, limit in house.queue.calls if name == "claim") == 3


@pytest.mark.parametrize(
    ("error", "name", "message"),
    [
        (ValueError("no"), "ValueError", "no"),
        (TimeoutError("mine"), "TimeoutError", "mine"),
        (SystemExit(3), "SystemExit", "the agent called exit(3)"),
        (KeyboardInterrupt(), "KeyboardInterrupt", ""),
        (Conflict("a\0b"), "Conflict", "a\N{REPLACEMENT CHARACTER}b"),
        (
            ExceptionGroup("both", [ConnectionError(), ValueError()]),
            "ExceptionGroup",
            "both (2 sub-exceptions)",
        ),
    ],
)
async def test_what_an_agent_raises_is_the_runs_error(
    house: House, error: BaseException, name: str, message: str
) -> None:
    @house.agents.agent("bad")
    async def bad(ctx: Any, input: Any) -> None:
        raise error

    @house.agents.agent("good")
    async def good(ctx: Any, input: Any) -> str:
        return "well"

    async with house.working():
        row = await house.queue.ended(house.queue.add("bad"))
        after = await house.queue.ended(house.queue.add("good"))
    assert (row.run.status, row.run.attempt) == ("error", 1)
    assert row.run.error is not None
    assert (row.run.error.error, row.run.error.message) == (name, message)
    assert after.run.status == "success"


def test_what_an_error_says_can_be_stored() -> None:
    assert build_failure(ValueError("a \ud800")).message == "a ?"
    assert len(build_failure(ValueError("x" * 1_000_000)).message) == LONGEST_MESSAGE


async def test_an_error_that_cannot_be_read_is_still_an_error(house: House) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    @house.agents.agent("odd")
    async def odd(ctx: Any, input: Any) -> None:
        raise Odd

    async with house.working():
        row = await house.queue.ended(house.queue.add("odd"))
    assert row.run.error is not None
    assert row.run.error.message == "its message cannot be read: RuntimeError"


async def test_a_task_that_an_agent_leaves_behind_cannot_end_the_loop_of_others(house: House) -> None:
    @house.agents.agent("careless")
    async def careless(ctx: Any, input: Any) -> None:
        async def leave() -> None:
            sys.exit(1)

        await asyncio.wait([asyncio.ensure_future(leave())])

    @house.agents.agent("good")
    async def good(ctx: Any, input: Any) -> None:
        return None

    async with house.working():
        await house.queue.ended(house.queue.add("careless"))
        row = await house.queue.ended(house.queue.add("good"))
    assert row.run.status == "success"


class PoolError(Exception):
    """Stand-in for an error of a package that is not installed."""


PoolError.__module__ = "psycopg.errors"
PoolError.__name__ = PoolError.__qualname__ = "OperationalError"


class Mine(Exception):
    pass


@pytest.mark.parametrize(
    "error",
    [
        Retriable("again", after=0.01),
        ConnectionResetError("gone"),
        StorageUnavailable(),
        asyncio.CancelledError(),
        PoolError("closed"),
        Mine("named in the settings"),
        ExceptionGroup("both", [ConnectionError(), Retriable()]),
    ],
)
async def test_what_may_pass_is_tried_again(house: House, error: BaseException) -> None:
    @house.agents.agent("flaky")
    async def flaky(ctx: Any, input: Any) -> Any:
        if ctx.attempt < 3:
            raise error
        return ctx.attempt

    async with house.working(retriable=("Mine",)):
        row = await house.queue.ended(house.queue.add("flaky"))
    assert row.results == ["retriable", "retriable", "success"]
    assert [each["attempt"] for each in row.told("metadata")] == [1, 2, 3]
    assert row.told("error") == []


async def test_an_attempt_says_how_long_to_wait_for_the_next(house: House) -> None:
    @house.agents.agent("patient")
    async def patient(ctx: Any, input: Any) -> None:
        if ctx.attempt == 1:
            raise Retriable("busy", after=7.0)
        raise ConnectionError

    async with house.working():
        row = await house.queue.ended(house.queue.add("patient", max_attempts=3))
    first, second, _ = row.endings
    assert first.retry_after == 7.0
    assert second.retry_after is not None
    assert 0.5 <= second.retry_after <= 1.0


async def test_a_run_of_an_agent_that_the_worker_lacks_is_left_to_another(house: House) -> None:
    house.agents.register("present", lambda ctx, input: input)
    async with house.working():
        absent = house.queue.add("absent")
        row = await house.queue.ended(house.queue.add("present"))
    assert row.results == ["success"]
    assert house.queue.rows[absent].run.status == "pending"
    assert house.queue.rows[absent].run.attempt == 0


@pytest.mark.parametrize("value", [object(), b"bytes", float("nan"), {1: object()}])
async def test_what_is_no_json_ends_the_run_with_an_error(house: House, value: Any) -> None:
    @house.agents.agent("odd")
    async def odd(ctx: Any, input: Any) -> Any:
        if input == "emit":
            await ctx.emit(value)
        return value

    async with house.working():
        returned = await house.queue.ended(house.queue.add("odd"))
        emitted = await house.queue.ended(house.queue.add("odd", "emit"))
    for row in (returned, emitted):
        assert row.run.status == "error"
        assert row.run.error is not None
        assert row.run.error.error == "InvalidInput"


async def test_a_run_that_takes_too_long_ends_as_timeout(house: House) -> None:
    @house.agents.agent("endless")
    async def endless(ctx: Any, input: Any) -> None:
        await ctx.emit("before")
        await asyncio.Event().wait()

    async with house.working():
        row = await house.queue.ended(house.queue.add("endless", timeout=0.05))
    assert row.run.status == "timeout"
    assert row.run.error is not None
    assert "0.05 s" in row.run.error.message
    assert row.told("custom") == ["before"]


async def test_the_workers_own_timeout_counts_where_the_run_has_none(house: House) -> None:
    @house.agents.agent("endless")
    async def endless(ctx: Any, input: Any) -> None:
        await asyncio.Event().wait()

    async with house.working(timeout=0.05):
        row = await house.queue.ended(house.queue.add("endless"))
    assert row.run.status == "timeout"


async def test_a_sync_agent_runs_in_a_thread(house: House) -> None:
    @house.agents.agent("sync")
    def sync(ctx: Any, input: Any) -> Any:
        ctx.call(lambda: ctx.emit("from the thread"))
        kept = ctx.call(lambda: ctx.step("once", lambda: 5))
        return {"kept": kept, "loaded": ctx.call(ctx.load)}

    async with house.working():
        row = await house.queue.ended(house.queue.add("sync"))
    assert row.told("custom") == ["from the thread"]
    assert row.told("values") == [{"kept": 5, "loaded": None}]


async def test_a_queue_that_fails_for_a_while_loses_nothing(house: House) -> None:
    for name in ("register", "claim", "append", "save", "keep", "renew", "controls"):
        house.queue.faults[name] = [StorageUnavailable(), Unreachable()]
    house.queue.faults["finish"] = [StorageUnavailable(), OutcomeUnknown()]

    @house.agents.agent("worker")
    async def work(ctx: Any, input: Any) -> Any:
        for number in range(3):
            await ctx.emit(number)
        await house.queue.until(lambda: not house.queue.faults["append"])
        await ctx.step("once", lambda: 1)
        await ctx.save({"saved": True})
        return {"done": True}

    async with house.working(heartbeat=0.1):
        row = await house.queue.ended(house.queue.add("worker"))
        await house.queue.until(lambda: not any(house.queue.faults.values()))
    assert row.results == ["success"]
    assert row.told("custom") == [0, 1, 2]
    assert row.told("values") == [{"saved": True}, {"done": True}]


async def test_an_append_whose_answer_is_lost_is_repeated_and_done_once(house: House) -> None:
    house.queue.lost_answers["append"] = 1

    @house.agents.agent("teller")
    async def teller(ctx: Any, input: Any) -> None:
        for number in range(3):
            await ctx.emit(number)
            await house.queue.until(lambda: not house.queue.lost_answers["append"])

    async with house.working():
        row = await house.queue.ended(house.queue.add("teller"))
    assert row.results == ["success"]
    assert row.told("custom") == [0, 1, 2]


async def test_a_state_of_which_nobody_knows_whether_it_was_kept_ends_the_attempt(house: House) -> None:
    house.queue.lost_answers["save"] = 1

    @house.agents.agent("saver")
    async def saver(ctx: Any, input: Any) -> Any:
        try:
            await ctx.save({"attempt": ctx.attempt})
        except StorageError:
            assert ctx.attempt == 1
        return "done"

    async with house.working():
        row = await house.queue.ended(house.queue.add("saver"))
    assert row.results == ["retriable", "success"]
    assert row.told("values") == [{"attempt": 1}, {"attempt": 2}, "done"]


async def test_a_stream_in_disorder_is_tried_again(house: House) -> None:
    house.queue.faults["append"] = [Conflict("elsewhere")]

    @house.agents.agent("teller")
    async def teller(ctx: Any, input: Any) -> None:
        await ctx.emit(ctx.attempt)
        await house.queue.until(lambda: not house.queue.faults["append"])

    async with house.working():
        row = await house.queue.ended(house.queue.add("teller"))
    assert row.results == ["retriable", "success"]


async def test_an_end_that_is_refused_is_told_as_an_error(house: House) -> None:
    house.queue.faults["finish"] = [Conflict("bad checkpoint")]

    @house.agents.agent("worker")
    async def work(ctx: Any, input: Any) -> Any:
        return 1

    async with house.working():
        row = await house.queue.ended(house.queue.add("worker"))
    assert row.run.error is not None
    assert (row.run.error.error, row.run.error.message) == ("Conflict", "bad checkpoint")


async def test_the_runs_of_a_thread_follow_each_other_at_once(house: House) -> None:
    @house.agents.agent("counter")
    async def counter(ctx: Any, input: Any) -> Any:
        return (await ctx.load() or 0) + 1

    runs = [house.queue.add("counter", thread_id="one") for _ in range(10)]
    began = time.monotonic()
    async with house.working(interval=5.0):
        rows = [await house.queue.ended(run_id) for run_id in runs]
    assert [row.told("values") for row in rows] == [[number] for number in range(1, 11)]
    assert time.monotonic() - began < 25, "ten intervals would be fifty seconds"
