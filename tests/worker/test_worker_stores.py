"""Workers on the real queue: in memory, on a SQLite file and on PostgreSQL."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.kinds import KINDS
from tests.worker.worker_support import QUICK

from perdure.kernel.errors import StorageUnavailable
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runs.queue import RunQueue
from perdure.runtime.stores import open_store
from perdure.threads.policy import Policy
from perdure.threads.records import RunCommand, RunEnd, RunRequest
from perdure.threads.service import Threads
from perdure.worker.options import WorkerOptions
from perdure.worker.registry import Agents
from perdure.worker.worker import RunWorker


class Place:
    """Database with its threads and agents."""

    def __init__(self, store: DatabaseLightningStore, lease: float) -> None:
        self.store = store
        self.threads = Threads(store.storage, KINDS, policy=Policy(lease=lease, grace=5.0))
        self.agents = Agents()
        self.begun = threading.Event()

    def worker(self, **options: Any) -> RunWorker:
        queue = RunQueue.beside(self.threads)
        return RunWorker(queue, self.agents, WorkerOptions(**{**QUICK, **options}), store=self.store)

    @asynccontextmanager
    async def working(self, **options: Any) -> AsyncIterator[RunWorker]:
        worker = self.worker(**options)
        await worker.start()
        try:
            yield worker
        finally:
            await worker.stop()

    async def ask(self, agent: str, input: Any = None, **more: Any) -> str:
        request = RunRequest(assistant_id=agent, input=input, if_not_exists="create", **more)
        return (await self.threads.create_run(request)).run_id

    async def ended(self, run_id: str) -> RunEnd:
        return await self.threads.join_run(run_id, 30)

    async def told(self, run_id: str) -> list[Any]:
        """Return the events of an ended run, from first to last."""
        events = [event async for burst in self.threads.stream_run(run_id) for event in burst]
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        return events

    async def began(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, 20)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/runs.db"
    return str(request.getfixturevalue("database_url"))


@pytest.fixture
async def open_place(url: str) -> AsyncIterator[Callable[[float], Place]]:
    places: list[Place] = []

    def make(lease: float = 10.0) -> Place:
        places.append(Place(open_store(url, watchdog_interval=0.1), lease))
        return places[-1]

    yield make
    for place in places:
        await place.store.close()


@pytest.fixture
def place(open_place: Callable[..., Place]) -> Place:
    @(made := open_place()).agents.agent("adder")
    async def adder(ctx: Any, input: Any) -> Any:
        await ctx.emit({"adding": input})
        return {"sum": (await ctx.load() or {"sum": 0})["sum"] + input}

    @made.agents.agent("waiting")
    async def waiting(ctx: Any, input: Any) -> None:
        await ctx.save({"began": True}, next=("waiting",))
        made.begun.set()
        await asyncio.Event().wait()

    return made


async def test_runs_of_a_thread_work_on_its_state(place: Place) -> None:
    async with place.working():
        for number, total in ((1, 1), (2, 3), (3, 6)):
            end = await place.ended(await place.ask("adder", number, thread_id="one"))
            assert (end.run.status, end.values) == ("success", {"sum": total})
        told = await place.told(end.run.run_id)
    assert [event.event for event in told] == ["metadata", "custom", "values", "end"]
    assert (await place.threads.get_thread("one")).status == "idle"


async def test_many_runs_end_once_each(place: Place) -> None:
    async with place.working(concurrency=8), place.working(concurrency=8):
        runs = [
            await place.ask("adder", 1, thread_id=f"t{number % 7}", multitask_strategy="enqueue")
            for number in range(35)
        ]
        ends = [await place.ended(run_id) for run_id in runs]
    assert {end.run.status for end in ends} == {"success"}
    assert {end.run.attempt for end in ends} == {1}
    for number in range(7):
        assert (await place.threads.get_thread(f"t{number}")).values == {"sum": 5}


async def test_a_run_that_keeps_failing_says_what_may_help(place: Place) -> None:
    @place.agents.agent("flaky")
    async def flaky(ctx: Any, input: Any) -> None:
        raise ConnectionError("no line")

    async with place.working():
        end = await place.ended(await place.ask("flaky", max_attempts=2, thread_id="one"))
        told = await place.told(end.run.run_id)
    assert (end.run.status, end.run.attempt) == ("error", 2)
    assert end.run.error is not None
    for words in ("exceeded max attempts (2)", "async I/O", "BG_JOB_ISOLATED_LOOPS=true", "no line"):
        assert words in end.run.error.message
    assert [event.event for event in told] == ["metadata", "metadata", "error", "end"]
    assert [event.attempt for event in told[:2]] == [1, 2]


async def test_what_an_agent_raises_is_told_to_its_readers(place: Place) -> None:
    @place.agents.agent("bad")
    async def bad(ctx: Any, input: Any) -> None:
        raise ValueError("no")

    async with place.working():
        end = await place.ended(await place.ask("bad", thread_id="one"))
        told = await place.told(end.run.run_id)
    assert [event.body for event in told if event.event == "error"] == [
        '{"error":"ValueError","message":"no"}'
    ]
    assert (await place.threads.get_thread("one")).status == "error"


@pytest.mark.parametrize(("action", "status"), [("interrupt", "interrupted"), ("rollback", "rollback")])
async def test_a_cancelled_run_lets_go_of_its_thread(place: Place, action: Any, status: str) -> None:
    async with place.working(interval=5.0):
        run_id = await place.ask("waiting", thread_id="one")
        await place.began()
        run = await place.threads.cancel_run(run_id, action=action, wait=True)
        assert run.status == status
        end = await place.ended(await place.ask("adder", 1, thread_id="two"))
        assert end.run.status == "success"
    assert await place.threads.get_state("one") is None if action == "rollback" else True


async def test_a_run_out_of_time_ends_as_timeout(place: Place) -> None:
    async with place.working():
        end = await place.ended(await place.ask("waiting", timeout_seconds=0.1, thread_id="one"))
    assert end.run.status == "timeout"
    assert (await place.threads.get_thread("one")).status == "error"


async def test_a_question_is_answered_by_a_later_run(place: Place) -> None:
    @place.agents.agent("asker")
    async def asker(ctx: Any, input: Any) -> Any:
        made = await ctx.step("make", lambda: {"n": input})
        return {"made": made, "answer": await ctx.interrupt("well?")}

    async with place.working():
        asked = await place.ended(await place.ask("asker", 7, thread_id="one"))
        thread = await place.threads.get_thread("one")
        done = await place.ended(await place.ask("asker", thread_id="one", command=RunCommand(resume="yes")))
    assert (asked.run.status, thread.status) == ("success", "interrupted")
    assert [each.value for each in thread.interrupts] == ["well?"]
    assert done.values == {"made": {"n": 7}, "answer": "yes"}
    assert (await place.threads.get_thread("one")).status == "idle"


async def test_a_worker_that_is_cut_off_loses_its_run_to_another(open_place: Callable[..., Place]) -> None:
    place = open_place(1.0)
    attempts: list[int] = []

    @place.agents.agent("worker")
    async def work(ctx: Any, input: Any) -> Any:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            place.begun.set()
            await asyncio.Event().wait()
        return ctx.attempt

    cut_off = place.worker()

    async def unreachable(*args: Any) -> Any:
        raise StorageUnavailable

    cut_off._queue.renew = cut_off._queue.controls = unreachable  # type: ignore[method-assign, assignment]
    await cut_off.start()
    run_id = await place.ask("worker", thread_id="one")
    await place.began()
    cut_off._queue.claim_now = unreachable  # type: ignore[method-assign, assignment]
    async with place.working():
        end = await place.ended(run_id)
        await cut_off.stop()
    assert (end.run.status, end.run.attempt, end.values) == ("success", 2, 2)
    assert attempts == [1, 2]


async def test_a_worker_that_stops_hands_its_runs_to_another_at_once(
    open_place: Callable[..., Place],
) -> None:
    place = open_place(60.0)

    @place.agents.agent("worker")
    async def work(ctx: Any, input: Any) -> Any:
        await ctx.step("count", lambda: 1)
        if ctx.attempt == 1:
            place.begun.set()
            await asyncio.Event().wait()
        return {"attempt": ctx.attempt, "kept": ctx.steps}

    first = place.worker()
    await first.start()
    run_id = await place.ask("worker", thread_id="one", max_attempts=1)
    await place.began()
    async with place.working():
        await first.stop(grace=0.0)
        end = await place.ended(run_id)
    assert end.values == {"attempt": 2, "kept": {"count": 1}}


async def test_what_an_agent_traces_is_stored_with_its_run(place: Place) -> None:
    @place.agents.agent("traced")
    async def traced(ctx: Any, input: Any) -> None:
        with ctx.tracer.start_as_current_span("outer") as outer:
            outer.set_attribute("question", "why")
            with ctx.tracer.start_as_current_span("inner"):
                pass
        await asyncio.to_thread(ctx.tracer.start_span("from a thread").end)

    parent = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
    async with place.working():
        alone = await place.ended(await place.ask("traced", thread_id="one"))
        joined = await place.ended(await place.ask("traced", thread_id="two", traceparent=parent))
    spans = {span.name: span for span in await place.store.query_spans(alone.run.run_id)}
    assert set(spans) == {"invoke_agent traced", "outer", "inner", "from a thread"}
    assert spans["inner"].parent_id == spans["outer"].span_id
    assert {span.trace_id for span in spans.values()} == {alone.run.run_id.replace("-", "")}
    assert spans["outer"].attributes == {"question": "why"}
    assert spans["outer"].parent_id == spans["from a thread"].parent_id
    assert spans["outer"].parent_id == spans["invoke_agent traced"].span_id
    spans = {span.name: span for span in await place.store.query_spans(joined.run.run_id)}
    attempt, outer = spans["invoke_agent traced"], spans["outer"]
    assert (attempt.trace_id, attempt.parent_id) == ("ab" * 16, "cd" * 8)
    assert (outer.trace_id, outer.parent_id) == ("ab" * 16, attempt.span_id)


async def test_ten_thousand_events_arrive_in_order(place: Place) -> None:
    @place.agents.agent("flood")
    async def flood(ctx: Any, input: Any) -> None:
        for number in range(10_000):
            await ctx.emit(number)

    async with place.working():
        told = await place.told(await place.ask("flood", thread_id="one"))
    assert [int(event.body) for event in told if event.event == "custom"] == list(range(10_000))
