"""The background thread, which outlives any caller's event loop: answers, errors, and its end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest
from tests.kernel.support import in_thread, soon, until

from perdure.kernel.background import Background
from perdure.kernel.errors import StorageClosed, StorageUnavailable


@pytest.fixture
def background() -> Iterator[Background]:
    created = Background("perdure-test")
    yield created
    created.close()
    assert "perdure-test" not in {thread.name for thread in threading.enumerate()}


async def _name_of_thread() -> str:
    return threading.current_thread().name


async def test_it_starts_with_the_first_that_is_asked(background: Background) -> None:
    assert "perdure-test" not in {thread.name for thread in threading.enumerate()}
    assert await background.ask(_name_of_thread) == "perdure-test"


async def test_an_error_comes_back_to_whoever_asked(background: Background) -> None:
    async def fail() -> None:
        raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        await background.ask(fail)


@pytest.mark.parametrize("error", [SystemExit(2), KeyboardInterrupt()])
async def test_nothing_that_is_asked_ends_the_thread(background: Background, error: BaseException) -> None:
    async def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        await background.ask(fail)
    assert await soon(background.ask(_name_of_thread)) == "perdure-test"


def test_whoever_has_no_loop_waits(background: Background) -> None:
    async def fail() -> None:
        raise LookupError("no such thing")

    async def wait_here() -> None:
        background.wait(_name_of_thread)

    assert background.wait(_name_of_thread) == "perdure-test"
    with pytest.raises(LookupError, match="no such thing"):
        background.wait(fail)
    with pytest.raises(RuntimeError, match="wait for itself"):
        background.wait(wait_here)


async def test_nobody_waits_for_a_thread_that_ends(background: Background) -> None:
    entered = threading.Event()

    async def wait() -> None:
        entered.set()
        await asyncio.get_running_loop().create_future()

    waiting = asyncio.create_task(asyncio.to_thread(background.wait, wait))
    await until(entered.is_set)
    await asyncio.to_thread(background.close)
    with pytest.raises(StorageClosed):
        await soon(waiting)
    with pytest.raises(StorageClosed):
        background.wait(_name_of_thread)


async def test_cancelling_whoever_asked_cancels_the_work(background: Background) -> None:
    entered, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        entered.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    call = asyncio.ensure_future(background.ask(wait))
    await until(entered.is_set)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(ended.is_set)


async def test_work_that_has_gone_too_far_goes_on(background: Background) -> None:
    entered, leave, ended = threading.Event(), asyncio.Event(), threading.Event()

    async def work() -> None:
        entered.set()
        await leave.wait()
        ended.set()

    call = asyncio.ensure_future(background.ask(work, started=entered.is_set))
    await until(entered.is_set)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    async def let() -> None:
        leave.set()

    await background.ask(let)
    await until(ended.is_set)


async def test_a_closed_thread_says_so_at_once(background: Background) -> None:
    await background.ask(_name_of_thread)
    background.close()
    with pytest.raises(StorageClosed):
        await soon(background.ask(_name_of_thread))
    background.spawn(_name_of_thread())
    background.close()


async def test_whoever_waits_at_the_close_is_told(background: Background) -> None:
    entered = threading.Event()

    async def wait() -> None:
        entered.set()
        await asyncio.get_running_loop().create_future()

    calls = [asyncio.ensure_future(background.ask(wait)) for _ in range(3)]
    await until(entered.is_set)
    await asyncio.to_thread(background.close)
    results = await soon(asyncio.gather(*calls, return_exceptions=True))
    assert [type(result) for result in results] == [StorageClosed] * 3


@pytest.mark.parametrize("round_", range(5))
async def test_nobody_hangs_who_asks_while_it_closes(background: Background, round_: int) -> None:
    begin = threading.Barrier(5)

    async def ask() -> set[type]:
        begin.wait()
        calls = [background.ask(_name_of_thread) for _ in range(100)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        return {type(result) for result in results}

    asking = [asyncio.ensure_future(in_thread(ask)) for _ in range(4)]
    await asyncio.to_thread(begin.wait)
    await asyncio.to_thread(background.close)
    results: set[type] = set().union(*await soon(asyncio.gather(*asking)))
    assert results <= {str, StorageClosed}


async def test_what_runs_is_cancelled_and_then_the_last_thing_is_done(background: Background) -> None:
    order: list[str] = []
    entered = threading.Event()

    async def run() -> None:
        entered.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            order.append("cancelled")

    async def last() -> None:
        order.append("last")

    background.spawn(run())
    await until(entered.is_set)
    background.close(last)
    assert order == ["cancelled", "last"]


async def test_a_periodic_action_survives_its_errors(
    background: Background, caplog: pytest.LogCaptureFixture
) -> None:
    times: list[int] = []

    async def act() -> None:
        times.append(len(times))
        if len(times) < 3:
            raise LookupError("not yet")

    background.every(0.001, act)
    await until(lambda: len(times) >= 5)
    assert [record.exc_info is not None for record in caplog.records].count(True) == 2
    assert "a periodic action failed; retrying in" in caplog.text


async def test_a_database_that_is_away_is_one_line_once_it_has_been_reached(
    background: Background, caplog: pytest.LogCaptureFixture
) -> None:
    times: list[int] = []

    async def act() -> None:
        times.append(len(times))
        background.reached = len(times) >= 2
        if len(times) < 3:
            raise StorageUnavailable("nobody listens")

    background.reached = False
    with caplog.at_level("DEBUG", "perdure.kernel.background"):
        background.every(0.001, act)
        await until(lambda: len(times) >= 4)
    assert [(record.levelname, record.exc_info) for record in caplog.records] == [
        ("DEBUG", None),
        ("WARNING", None),
    ]
    assert caplog.text.count("retrying in 0.001 s: nobody listens") == 2


async def test_a_periodic_action_ends_with_its_store(
    background: Background, caplog: pytest.LogCaptureFixture
) -> None:
    times: list[int] = []

    async def act() -> None:
        times.append(1)
        raise StorageClosed

    background.every(0.001, act)
    await until(lambda: bool(times))
    count = await background.ask(_count_tasks)
    await until(lambda: len(times) == 1)
    assert count <= 2
    assert caplog.records == []


async def _count_tasks() -> int:
    return len(asyncio.all_tasks())


async def test_work_that_fails_unseen_is_logged(
    background: Background, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise LookupError("nobody asked")

    with caplog.at_level(logging.ERROR):
        background.spawn(fail())
        await until(lambda: "nobody asked" in caplog.text)
