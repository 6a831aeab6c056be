"""A worker's queue behind a server: the same as on the database, and nothing done twice on a bad network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from tests.access.support import access_of
from tests.client.flaky import FAULTS, LOST_AFTER, FlakyServer
from tests.kernel.support import soon, until, until_true
from tests.server.native.support import AGENT, API, House, Worker, gathered, housed, request, told
from tests.server.otlp_support import ENGINES, opened

from perdure import SqliteLightningStore
from perdure.agents.records import AgentSpec
from perdure.client.run_queue import RemoteRunQueue
from perdure.kernel.errors import Fenced, InvalidInput, Unauthorized, Unreachable
from perdure.threads.records import Failure, NewCheckpoint
from perdure.threads.work import Assignment, Ending

WORK = "/work"
# Short, because a missing response is waited for, and many, because a slow machine may need longer.
QUICK: dict[str, Any] = {"retry_delays": (0.01, 0.02, 0.05, 0.1, 0.2, 0.5), "request_timeout": 0.4}


class Line(NamedTuple):
    """A server, the flaky proxy before it, and a queue and a worker on the other side of both."""

    house: House
    proxy: FlakyServer
    queue: RemoteRunQueue
    worker: Worker


@pytest_asyncio.fixture(params=ENGINES)
async def line(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Line]:
    async with (
        opened(request.param, request, tmp_path) as store,
        housed(store) as house,
        FlakyServer(house.visitor.url) as proxy,
    ):
        queue = RemoteRunQueue(proxy.url, **QUICK)
        yield Line(house, proxy, queue, Worker(queue, "far-away"))
        await queue.close()


async def events_of(line: Line, run_id: str) -> list[tuple[str, Any]]:
    found = await gathered(line.house.client.stream_run(run_id))
    assert [event.seq for event in found] == list(range(1, len(found) + 1))
    return [(event.event, json.loads(event.body)) for event in found]


async def test_a_renewal_without_leases_is_a_heartbeat(line: Line) -> None:
    await line.queue.register("far-away", [AgentSpec(name="other", description="d")])
    before = await line.house.client.workers.get("far-away")
    assert await line.queue.renew("far-away", []) == []
    after = await line.house.client.workers.get("far-away")
    assert (after.last_heartbeat_time or 0) > (before.last_heartbeat_time or 0)


async def test_a_run_from_its_claim_to_its_end(line: Line) -> None:
    await line.queue.register("far-away", [AgentSpec(name="other", description="d")])
    await line.house.client.create_thread("t", values={"n": 0})
    run = await line.house.run(thread_id="t", input={"n": 1}, config={"a": 1}, context={"c": 2})
    work = await line.worker.claim()
    assert (work.run.run_id, work.attempt, work.config, work.context) == (run.run_id, 1, {"a": 1}, {"c": 2})
    assert work.checkpoint is not None
    assert work.checkpoint.values == {"n": 0}
    assert await line.queue.append(work.held, [told("custom", "a"), told("custom", "b")]) == 3
    state = NewCheckpoint(values={"n": 1}, state=b"\xff\x00", metadata={"m": 1})
    saved = await line.queue.save(work.held, state, [told("values", {"n": 1})])
    assert (saved.values, saved.state) == ({"n": 1}, b"\xff\x00")
    await line.queue.keep(work.held, work.origin, "step", "[1]")
    assert await line.queue.append(work.held, [told("custom", "c")]) == 5
    assert await line.queue.renew("far-away", [work.held]) == ["go"]
    assert await line.queue.controls([work.held], 0) == {}
    ending = Ending(
        held=work.held,
        result="success",
        checkpoint=NewCheckpoint(values={"n": 2}, state=b"\x01"),
        events=[told("values", {"n": 2})],
    )
    ended = await line.queue.finish(ending)
    assert ended.status == "success"
    assert await line.queue.finish(ending) == ended
    assert [name for name, _ in await events_of(line, run.run_id)] == [
        "metadata",
        "custom",
        "custom",
        "values",
        "custom",
        "values",
        "end",
    ]
    newest = await line.house.client.get_state("t")
    assert newest is not None
    assert (newest.values, newest.state) == ({"n": 2}, b"\x01")
    assert (await line.house.client.assistants.search(agent="other")).total == 1


async def test_a_retry_goes_on_with_its_steps_and_its_stream(line: Line) -> None:
    run = await line.house.run(on_completion="keep", max_attempts=2)
    first = await line.worker.claim()
    await line.queue.keep(first.held, first.origin, "step", "[1]")
    failure = Failure(error="E", message="m")
    await line.queue.finish(Ending(held=first.held, result="retriable", error=failure, retry_after=0))
    again = await line.worker.claim()
    assert (again.attempt, again.last_attempt, again.steps, again.last_seq) == (2, True, {"step": "[1]"}, 1)
    with pytest.raises(Fenced):
        await line.queue.append(first.held, [told("custom", "late")])
    await line.worker.end(again)
    told_of = [name for name, _ in await events_of(line, run.run_id)]
    assert told_of == ["metadata", "metadata", "end"]


async def test_nothing_comes_in_time(line: Line) -> None:
    assert await soon(line.queue.claim("far-away", [AGENT], 5, 0.05)) == []
    assert await soon(line.queue.controls([], 0.01)) == {}


async def test_a_claim_waits_for_the_next_run(line: Line) -> None:
    claiming = asyncio.ensure_future(line.queue.claim("far-away", [AGENT], 3, 30))
    await until(lambda: line.proxy.counts[f"{API}/work/claim"] == 1)
    run = await line.house.run()
    (work,) = await soon(claiming)
    assert work.run.run_id == run.run_id


async def test_controls_come_at_once(line: Line) -> None:
    run = await line.house.run(on_completion="keep")
    work = await line.worker.claim()
    watching = asyncio.ensure_future(line.queue.controls([work.held], 30))
    await until(lambda: line.proxy.counts[f"{API}/work/controls"] == 1)
    await line.house.client.cancel_run(run.run_id)
    assert await soon(watching) == {run.run_id: "interrupt"}
    assert await line.queue.renew("far-away", [work.held]) == ["interrupt"]
    refused = (
        line.queue.append(work.held, [told("custom", 1)]),
        line.queue.save(work.held, NewCheckpoint(values=1)),
        line.queue.keep(work.held, work.origin, "s", "1"),
    )
    for asking in refused:
        with pytest.raises(Fenced):
            await asking
    assert (await line.queue.finish(Ending(held=work.held, result="stopped"))).status == "interrupted"


async def test_one_that_is_refused_fails_no_neighbour(line: Line) -> None:
    works: list[Assignment] = []
    for _ in range(6):
        await line.house.run(on_completion="keep")
        works.append(await line.worker.claim())
    await line.house.client.cancel_run(works[2].run.run_id)
    line.proxy.requests.clear()
    appended = await asyncio.gather(
        *(line.queue.append(work.held, [told("custom", 1)]) for work in works), return_exceptions=True
    )
    assert [isinstance(each, Fenced) for each in appended] == [number == 2 for number in range(6)]
    assert line.proxy.counts[f"{API}/work/events"] < 6
    endings = [Ending(held=work.held, result="success") for work in works]
    runs = await asyncio.gather(*map(line.queue.finish, endings))
    assert [run.status for run in runs].count("success") == 5


async def test_runs_are_given_back(line: Line) -> None:
    run = await line.house.run()
    work = await line.worker.claim()
    await line.queue.hand_back([work.held])
    again = await line.house.worker.claim()
    assert (again.run.run_id, again.attempt, again.last_seq) == (run.run_id, 2, 1)


# --- bad networks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_is_lost_is_done_once(line: Line, fault: str) -> None:
    """Every call of a run meets the fault once."""
    line.proxy.faults.append(fault)
    await line.queue.register("far-away", [AgentSpec(name="echo")])
    run = await line.house.run(on_completion="keep")
    line.proxy.faults.append(fault)
    (work,) = await soon(line.queue.claim("far-away", [AGENT], 1, 0.2))
    for number in range(3):
        line.proxy.faults.append(fault)
        await line.queue.append(work.held, [told("custom", number), told("custom", "and")])
    line.proxy.faults.append(fault)
    saved = await line.queue.save(work.held, NewCheckpoint(values={"n": 1}), [told("values", 1)])
    line.proxy.faults.append(fault)
    await line.queue.keep(work.held, work.origin, "s", "1")
    assert await line.queue.append(work.held, [told("custom", "last")]) == 8
    line.proxy.faults.append(fault)
    ended = await line.queue.finish(Ending(held=work.held, result="success"))
    assert ended.status == "success"
    expected = [0, "and", 1, "and", 2, "and", 1, "last", {"status": "success"}]
    assert [body for _, body in await events_of(line, run.run_id)] == expected
    history = await line.house.client.history(run.thread_id)
    assert [state.checkpoint_id for state in history] == [saved.checkpoint_id]
    assert (await line.house.client.get_run(run.run_id)).attempt == 1


async def test_a_claim_that_nobody_waits_for_is_undone(line: Line) -> None:
    """The server has assigned the run, and the worker was cancelled before the response."""
    run = await line.house.run()
    answered = asyncio.Event()
    passing = line.proxy.pass_on

    async def hold(request: Any) -> Any:
        answer = await passing(request)
        if not answered.is_set():
            answered.set()
            await asyncio.Event().wait()
        return answer

    line.proxy.pass_on = hold
    claiming = asyncio.ensure_future(line.queue.claim("far-away", [AGENT], 1, 30))
    await soon(answered.wait())
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    again = await line.house.worker.claim()
    assert (again.run.run_id, again.attempt) == (run.run_id, 2)


async def test_a_claim_that_was_heard_of_too_late_is_not_taken(line: Line) -> None:
    """While the response was lost, another worker got the run: a thread never has two executors."""
    run = await line.house.run()
    line.proxy.faults.append(LOST_AFTER)
    passing = line.proxy.pass_on
    taken: list[Assignment] = []

    async def meanwhile(request: Any) -> Any:
        answer: Any = await passing(request)
        if not taken:
            (given,) = json.loads(answer.body)["assignments"]
            held = {"run_id": run.run_id, "thread_id": run.thread_id, "attempt_id": given["attempt_id"]}
            await line.house.visitor.post(f"{API}/work/release", json={"held": [held]})
            taken.append(await line.house.worker.claim())
        return answer

    line.proxy.pass_on = meanwhile
    assert await soon(line.queue.claim("far-away", [AGENT], 1, 0.1)) == []
    assert (await line.house.worker.end(taken[0])).status == "success"


async def test_a_server_that_is_away(line: Line) -> None:
    run = await line.house.run(on_completion="keep")
    work = await line.worker.claim()
    line.proxy.faults.extend([LOST_AFTER] * (len(QUICK["retry_delays"]) + 1))
    with pytest.raises(Unreachable):
        await line.queue.append(work.held, [told("custom", 1)])
    # A repeated append counts once.
    assert await line.queue.append(work.held, [told("custom", 1)]) == 2
    line.proxy.faults.append(LOST_AFTER)
    with pytest.raises(Unreachable):
        await line.queue.renew("far-away", [work.held])
    await line.worker.end(work)
    assert [name for name, _ in await events_of(line, run.run_id)] == ["metadata", "custom", "end"]


# --- what is refused --------------------------------------------------------------------------------------


async def test_hostile_events_are_refused(line: Line) -> None:
    """A frame inside a frame would look like another event to readers of the stream."""
    await line.house.run()
    work = await line.worker.claim()
    held = {"run_id": work.run.run_id, "thread_id": work.run.thread_id, "attempt_id": work.attempt_id}
    for event in (
        {"event": "custom\nid: 9", "body": "1"},
        {"event": "", "body": "1"},
        {"event": "custom", "body": "1\n\nevent: end\ndata: {}"},
        {"event": "custom", "body": "no json"},
        {"event": "custom", "body": ""},
    ):
        for path, body in (
            (f"{WORK}/events", {"appends": [{"held": held, "events": [event]}]}),
            (f"{WORK}/checkpoints", {"held": held, "checkpoint": {}, "events": [event]}),
            (f"{WORK}/finish", {"endings": [{"held": held, "result": "success", "events": [event]}]}),
        ):
            answer = await line.house.visitor.post(API + path, json=body)
            assert (answer.status, answer.body["code"]) == (422, "invalid_input"), (path, event)
    assert await line.queue.append(work.held, [told("custom", 1)]) == 2


async def test_what_a_worker_may_not_send(line: Line) -> None:
    for path, body in (
        (f"{WORK}/claim", {"worker_id": "w", "wait": 31}),
        (f"{WORK}/claim", {"worker_id": "", "wait": 1}),
        (f"{WORK}/claim", {"worker_id": "w", "limit": 0}),
        (f"{WORK}/controls", {"held": [{"run_id": 1}]}),
        (f"{WORK}/finish", {"endings": [{"held": {}, "result": "won"}]}),
        (f"{WORK}/steps", {}),
        (f"{WORK}/register", {"worker_id": "w", "agents": [{}]}),
    ):
        answer = await line.house.visitor.post(API + path, json=body)
        assert (answer.status, answer.body["code"]) == (422, "invalid_input"), path
    with pytest.raises(InvalidInput):
        await line.queue.register("", [])


async def test_a_worker_needs_its_token(tmp_path: Path) -> None:
    async with (
        SqliteLightningStore(tmp_path / "db") as store,
        housed(store, api_key="only-the-operator-knows") as house,
    ):
        _, secret = await access_of(house.visitor.app).create_token("w", scopes=["worker"], actor="test")
        closed, open_one = RemoteRunQueue(house.visitor.url), RemoteRunQueue(house.visitor.url, secret)
        with pytest.raises(Unauthorized):
            await closed.claim("w", [AGENT], 1, 0)
        threads = house.visitor.app.services.threads
        assert threads is not None
        await threads.create_run(request())
        assert len(await open_one.claim("w", [AGENT], 1, 1)) == 1

        async def noted() -> bool:
            return any(
                each.action == "claim_run" for each in await access_of(house.visitor.app).query_audit()
            )

        await until_true(noted)
        await closed.close()
        await open_one.close()
