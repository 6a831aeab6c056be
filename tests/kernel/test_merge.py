"""Merging of calls: which calls share a batch, its size, and errors of single calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.support import in_thread, soon, until

from perdure import InMemoryLightningStore, SqliteLightningStore
from perdure.kernel.errors import NotFound, StorageUnavailable
from perdure.kernel.merge import BATCH_BYTES, BATCH_ITEMS, OVERLAP_ROWS, TURNS, Merger
from perdure.rollouts.store import DatabaseLightningStore

PATIENCE = 60.0
"""Longer than any test."""


class Batches:
    """A batch function that records its items and runs when it is released."""

    def __init__(self, *, held: bool = False) -> None:
        self.seen: list[list[Any]] = []
        self._free = asyncio.Event()
        if not held:
            self._free.set()

    async def __call__(self, items: Sequence[Any]) -> Sequence[Any]:
        self.seen.append(list(items))
        await self._free.wait()
        return [f"<{item}>" for item in items]

    def release(self) -> None:
        self._free.set()


async def _let_tasks_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_queues_while_a_batch_runs_is_the_next_batch() -> None:
    merger, batches = Merger(), Batches(held=True)
    calls = [merger.call("key", batches, 0)]
    await _let_tasks_run()
    calls += [merger.call("key", batches, item) for item in (1, 2, 3)]
    await _let_tasks_run()
    assert batches.seen == [[0]]
    batches.release()
    assert await soon(asyncio.gather(*calls)) == ["<0>", "<1>", "<2>", "<3>"]
    assert batches.seen == [[0], [1, 2, 3]]


async def test_calls_made_at_once_share_a_batch_in_their_order() -> None:
    merger, batches = Merger(), Batches()
    calls = [merger.call("key", batches, item) for item in range(100)]
    assert await asyncio.gather(*calls) == [f"<{item}>" for item in range(100)]
    assert batches.seen == [list(range(100))]


async def test_a_batch_takes_what_the_next_turns_of_the_loop_bring() -> None:
    merger, batches = Merger(), Batches()
    calls = [merger.call("key", batches, 0)]
    for item in (1, 2):
        await asyncio.sleep(0)
        calls.append(merger.call("key", batches, item))
    assert batches.seen == []
    await _let_tasks_run()
    assert batches.seen == [[0, 1, 2]]
    assert await asyncio.gather(*calls) == ["<0>", "<1>", "<2>"]


async def test_a_call_that_stays_alone_is_not_delayed_by_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    merger, batches = Merger(), Batches()

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a timer was set")

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", refuse)
    monkeypatch.setattr(asyncio.get_running_loop(), "call_at", refuse)
    assert await merger.call("key", batches, 0) == "<0>"


async def test_only_calls_with_equal_keys_merge() -> None:
    merger, batches = Merger(), Batches()
    keys = [("claim", "a"), ("claim", "b"), "claim", ("claim", "a")]
    await asyncio.gather(*(merger.call(key, batches, number) for number, key in enumerate(keys)))
    assert sorted(batches.seen) == [[0, 3], [1], [2]]


async def test_a_batch_has_at_most_so_many_items() -> None:
    merger, batches = Merger(), Batches()
    await asyncio.gather(*(merger.call("key", batches, item) for item in range(BATCH_ITEMS * 2 + 1)))
    assert [len(batch) for batch in batches.seen] == [256, 256, 1]
    assert [item for batch in batches.seen for item in batch] == list(range(BATCH_ITEMS * 2 + 1))


async def test_a_batch_has_at_most_so_many_bytes_and_at_least_one_item() -> None:
    assert BATCH_BYTES == 1_048_576
    merger, batches = Merger(), Batches()
    sizes = [BATCH_BYTES // 2, BATCH_BYTES // 2, 1, BATCH_BYTES * 3, 0, 5]
    calls = [merger.call("key", batches, number, size=size) for number, size in enumerate(sizes)]
    await asyncio.gather(*calls)
    assert batches.seen == [[0, 1], [2], [3], [4, 5]]


async def test_a_batch_has_at_most_so_many_rows_and_at_least_one_item() -> None:
    merger, batches = Merger(), Batches()
    rows = [600, 400, 1, 5000, 1]
    await asyncio.gather(*(merger.call("key", batches, n, rows=size) for n, size in enumerate(rows)))
    assert batches.seen == [[0, 1], [2], [3], [4]]


async def test_where_several_batches_may_run_many_rows_do_not_wait() -> None:
    merger, batches = Merger(2), Batches(held=True)
    calls = [merger.call("key", batches, 0, rows=100)]
    await _let_tasks_run()
    calls += [merger.call("key", batches, 1, rows=OVERLAP_ROWS - 1)]
    await _let_tasks_run()
    assert batches.seen == [[0]]
    calls += [merger.call("key", batches, item) for item in (2, 3)]
    await _let_tasks_run()
    assert batches.seen == [[0], [1, 2, 3]]
    calls += [merger.call("key", batches, 4, rows=500)]
    await _let_tasks_run()
    assert len(batches.seen) == 2
    batches.release()
    assert await soon(asyncio.gather(*calls)) == [f"<{n}>" for n in range(5)]


async def test_a_batch_waits_for_the_callers_that_were_answered_last() -> None:
    merger, batches = Merger(), Batches()
    last, back = range(3), range(10, 13)
    first = [merger.call("key", batches, item, gather=PATIENCE) for item in last]
    await soon(asyncio.gather(*first))
    calls = []
    for item in back:
        await _let_tasks_run()
        assert batches.seen == [list(last)]
        calls.append(merger.call("key", batches, item, gather=PATIENCE))
    await soon(asyncio.gather(*calls))
    assert batches.seen == [list(last), list(back)]


async def test_callers_that_do_not_come_back_are_not_waited_for_long() -> None:
    merger, batches = Merger(), Batches()
    first = [merger.call("key", batches, item, gather=0.001) for item in range(3)]
    await soon(asyncio.gather(*first))
    await soon(merger.call("key", batches, "one", gather=0.001))
    assert batches.seen[1:] == [["one"]]


async def test_a_caller_alone_gathers_nothing() -> None:
    merger, batches = Merger(), Batches()
    for item in range(3):
        await soon(merger.call("key", batches, item, gather=PATIENCE))
    assert batches.seen == [[0], [1], [2]]


async def test_an_exception_among_the_answers_is_for_its_own_caller() -> None:
    async def answer(items: Sequence[int]) -> list[Any]:
        return [NotFound(str(item)) if item % 2 else item for item in items]

    merger = Merger()
    results = await asyncio.gather(*(merger.call("key", answer, n) for n in range(4)), return_exceptions=True)
    assert [type(result) for result in results] == [int, NotFound, int, NotFound]


async def test_one_bad_item_never_fails_its_neighbours() -> None:
    seen: list[list[int]] = []

    async def divide(items: Sequence[int]) -> list[float]:
        seen.append(list(items))
        return [10 / item for item in items]

    merger = Merger()
    calls = [merger.call("key", divide, item) for item in (1, 0, 2)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert results[0] == 10
    assert isinstance(results[1], ZeroDivisionError)
    assert results[2] == 5
    assert seen == [[1, 0, 2], [1], [0], [2]]


async def test_a_storage_error_is_every_callers_and_is_not_tried_again() -> None:
    seen: list[list[int]] = []

    async def fail(items: Sequence[int]) -> list[Any]:
        seen.append(list(items))
        raise StorageUnavailable("gone")

    merger = Merger()
    calls = [merger.call("key", fail, item) for item in range(3)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [StorageUnavailable] * 3
    assert seen == [[0, 1, 2]]


async def test_a_lane_that_failed_works_again() -> None:
    async def fail(items: Sequence[int]) -> list[Any]:
        raise StorageUnavailable("gone")

    merger, batches = Merger(), Batches()
    with pytest.raises(StorageUnavailable):
        await merger.call("key", fail, 1)
    assert await soon(merger.call("key", batches, 2)) == "<2>"


async def test_a_caller_that_has_gone_takes_its_item_with_it() -> None:
    merger, batches = Merger(), Batches(held=True)
    first = merger.call("key", batches, 0)
    await _let_tasks_run()
    queued = [merger.call("key", batches, item) for item in (1, 2, 3)]
    queued[1].cancel()
    batches.release()
    assert list(await soon(asyncio.gather(first, queued[0], queued[2]))) == ["<0>", "<1>", "<3>"]
    assert batches.seen == [[0], [1, 3]]


async def test_callers_that_have_all_gone_leave_nothing_to_do() -> None:
    merger, batches = Merger(), Batches(held=True)
    first = merger.call("key", batches, 0)
    await _let_tasks_run()
    for call in [merger.call("key", batches, item) for item in (1, 2)]:
        call.cancel()
    batches.release()
    assert await soon(first) == "<0>"
    assert await soon(merger.call("key", batches, 4)) == "<4>"
    assert batches.seen == [[0], [4]]


async def test_what_reached_nobody_is_handed_on() -> None:
    merger, batches = Merger(), Batches(held=True)
    lost: list[Any] = []
    calls = [merger.call("key", batches, item, undelivered=lost.append) for item in range(3)]
    await _let_tasks_run()
    calls[1].cancel()
    batches.release()
    assert list(await soon(asyncio.gather(calls[0], calls[2]))) == ["<0>", "<2>"]
    assert lost == ["<1>"]


async def test_an_error_that_reached_nobody_is_not_handed_on() -> None:
    lost: list[Any] = []
    entered, leave = asyncio.Event(), asyncio.Event()

    async def fail(items: Sequence[int]) -> list[Any]:
        entered.set()
        await leave.wait()
        raise StorageUnavailable("gone")

    merger = Merger()
    calls = [merger.call("key", fail, item, undelivered=lost.append) for item in range(2)]
    await entered.wait()
    calls[0].cancel()
    leave.set()
    with pytest.raises(StorageUnavailable):
        await soon(calls[1])
    assert lost == []


async def test_each_event_loop_has_lanes_of_its_own() -> None:
    merger = Merger()
    seen: list[list[int]] = []

    async def answer(items: Sequence[int]) -> Sequence[int]:
        seen.append(list(items))
        return items

    async def work(start: int) -> list[int]:
        return list(await asyncio.gather(*(merger.call("key", answer, start + n) for n in range(50))))

    results = await soon(asyncio.gather(*(in_thread(work, start) for start in (0, 100, 200))))
    assert results == [list(range(start, start + 50)) for start in (0, 100, 200)]
    assert sorted(item for batch in seen for item in batch) == [*results[0], *results[1], *results[2]]


async def test_what_no_code_expects_ends_the_callers_of_its_batch_too() -> None:
    class Broken(BaseException):
        pass

    entered, leave = asyncio.Event(), asyncio.Event()

    async def fail(items: Sequence[int]) -> list[Any]:
        entered.set()
        await leave.wait()
        raise Broken

    merger = Merger()
    calls = [merger.call("key", fail, item) for item in range(2)]
    await entered.wait()
    calls.append(merger.call("key", fail, 2))
    leave.set()
    results = await soon(asyncio.gather(*calls, return_exceptions=True))
    assert all(isinstance(result, BaseException) for result in results)


# --- claims without a caller, through the store -----------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DatabaseLightningStore]:
    created: DatabaseLightningStore = (
        InMemoryLightningStore(watchdog_interval=None)
        if request.param == "memory"
        else SqliteLightningStore(tmp_path / "db", watchdog_interval=None)
    )
    async with created as opened:
        yield opened


async def _assert_given_back(store: DatabaseLightningStore, rollout_ids: list[str]) -> None:
    """Assert that all rollouts are queued in their old order, without an attempt."""
    rollouts = store.rollouts
    await until(lambda: not rollouts._merger._tasks and not rollouts._releases)
    claimed = await store.dequeue_many_rollouts(limit=10)
    assert [rollout.rollout_id for rollout in claimed] == rollout_ids
    assert {rollout.attempt.sequence_id for rollout in claimed} == {1}
    assert [len(list(await store.query_attempts(id))) for id in rollout_ids] == [1] * len(rollout_ids)


async def test_a_claim_is_given_back_when_its_caller_went_while_the_batch_ran(
    store: DatabaseLightningStore,
) -> None:
    ids = [(await store.enqueue_rollout(n)).rollout_id for n in range(3)]
    for _ in range(10):
        call = asyncio.ensure_future(store.dequeue_rollout("worker"))
        for _ in range(3 + TURNS):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
    await _assert_given_back(store, ids)
    worker = await store.get_worker_by_id("worker")
    assert worker is None or worker.current_rollout_id is None


async def test_a_claim_is_given_back_when_its_caller_went_before_it_looked(
    store: DatabaseLightningStore,
) -> None:
    """The answer is there and the caller is woken, but cancelled before its next step."""
    ids = [(await store.enqueue_rollout(n)).rollout_id for n in range(2)]
    call = asyncio.ensure_future(store.dequeue_rollout())
    loop = asyncio.get_running_loop()
    settle = loop.create_future()

    def cancel_when_answered() -> None:
        if call.done():
            settle.set_result(None)
            return
        waiting: asyncio.Future[Any] | None = getattr(call, "_fut_waiter", None)
        if waiting is not None and waiting.done():
            call.cancel()
            settle.set_result(None)
        else:
            loop.call_soon(cancel_when_answered)

    cancel_when_answered()
    await soon(settle)
    await asyncio.wait([call])
    assert call.cancelled()
    await _assert_given_back(store, ids)
