"""Runs over HTTP: created, awaited, cancelled and deleted, with every error that their routes declare."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from tests.kernel.support import soon, until_true
from tests.server.native.support import API, House, Worker, request, told

from perdure import InMemoryLightningStore
from perdure.kernel.errors import Conflict, InvalidInput, NotFound, StorageUnavailable
from perdure.runtime.app import App
from perdure.server.http import long_responses
from perdure.server.http.server import HttpServer
from perdure.server.table import build_application
from perdure.threads import ends
from perdure.threads.records import Failure, NewCheckpoint
from perdure.threads.work import Ending


async def test_a_run_from_its_request_to_its_end(house: House) -> None:
    made = await house.client.create_thread("a thread/1", metadata={"team": "a"})
    assert made.status == "idle"
    run = await house.run(thread_id="a thread/1", input={"n": 1}, metadata={"k": "v"})
    assert (run.status, run.thread_id, run.kwargs.input) == ("pending", "a thread/1", {"n": 1})
    assert (await house.client.get_thread("a thread/1")).status == "busy"
    joining = asyncio.ensure_future(house.client.join_run(run.run_id))
    ended = await house.worker.do({"n": 2})
    assert ended.status == "success"
    end = await soon(joining)
    assert (end.run, end.values) == (await house.client.get_run(run.run_id), {"n": 2})
    thread = await house.client.get_thread("a thread/1")
    assert (thread.status, thread.values) == ("idle", {"n": 2})
    assert list(await house.client.list_runs(thread_id="a thread/1")) == [end.run]
    assert await house.client.get_run(run.run_id, "a thread/1") == end.run
    with pytest.raises(NotFound):
        await house.client.get_run(run.run_id, "another")


async def test_the_client_does_what_the_room_does(house: House) -> None:
    """The client and the service fulfil the same contract."""
    room = house.visitor.app.services.threads
    await house.client.create_thread("t")
    runs = [await house.run(thread_id="t", multitask_strategy="enqueue", input=n) for n in range(3)]
    await house.worker.do({"at": 1})
    for ours, theirs in (
        (house.client.get_thread("t"), room.get_thread("t")),
        (house.client.get_run(runs[0].run_id), room.get_run(runs[0].run_id)),
        (house.client.list_runs(thread_id="t"), room.list_runs(thread_id="t")),
        (house.client.list_runs(status="pending"), room.list_runs(status="pending")),
        (house.client.list_runs(limit=0), room.list_runs(limit=0)),
        (house.client.get_state("t"), room.get_state("t")),
        (house.client.history("t"), room.history("t")),
        (house.client.search_threads(), room.search_threads()),
        (house.client.join_run(runs[0].run_id), room.join_run(runs[0].run_id)),
    ):
        assert await ours == await theirs


async def test_a_repeated_key_gives_the_first_run(quick: House) -> None:
    first = await quick.client.create_run(request(), idempotency_key="k")
    assert await quick.client.create_run(request(), idempotency_key="k") == first
    answer = await quick.visitor.post(
        API + "/runs", json={"assistant_id": "echo"}, headers={"Idempotency-Key": "k"}
    )
    assert (answer.status, answer.body["run_id"]) == (201, first.run_id)
    assert answer.headers["Content-Location"] == f"{API}/runs/{first.run_id}"
    assert (await quick.client.list_runs()).total == 1


async def test_many_runs_are_made_or_none(quick: House) -> None:
    runs = await quick.client.create_runs([request(input=n) for n in range(3)])
    assert [run.kwargs.input for run in runs] == [0, 1, 2]
    with pytest.raises(NotFound):
        await quick.client.create_runs([request(), request(assistant_id="nobody")])
    assert (await quick.client.list_runs()).total == 3


async def test_what_cannot_be_made(quick: House) -> None:
    await quick.client.create_thread("t")
    await quick.run(thread_id="t")
    for fields, error in (
        ({"assistant_id": "nobody"}, NotFound),
        ({"thread_id": "nowhere"}, NotFound),
        ({"thread_id": "t"}, Conflict),
        ({"webhook": "ftp://example.com"}, InvalidInput),
    ):
        with pytest.raises(error):
            await quick.client.create_run(request(**fields))
    for body in (
        {},
        {"assistant_id": 1},
        {"assistant_id": "echo", "nonsense": 1},
        {"assistant_id": "echo", "after_seconds": -1},
        {"assistant_id": "echo", "multitask_strategy": "fight"},
    ):
        answer = await quick.visitor.post(API + "/runs", json=body)
        assert (answer.status, answer.body["code"]) == (422, "invalid_input"), body
    assert (await quick.client.list_runs()).total == 1


# --- waiting ----------------------------------------------------------------------------------------------


async def test_a_run_is_made_and_awaited(house: House) -> None:
    waited = asyncio.ensure_future(house.client.wait(request(input=1)))
    await house.worker.do({"answer": 42})
    end = await soon(waited)
    assert (end.run.status, end.values, end.run.temporary) == ("success", {"answer": 42}, False)
    assert (await house.client.get_run(end.run.run_id)).status == "success"
    state = await house.client.get_state(end.run.thread_id)
    assert state is not None
    assert state.values == {"answer": 42}


async def test_a_temporary_run_is_gone_after_its_end(house: House) -> None:
    waited = asyncio.ensure_future(house.client.wait(request(input=1, on_completion="delete")))
    await house.worker.do({"answer": 42})
    end = await soon(waited)
    assert (end.run.status, end.values, end.run.temporary) == ("success", {"answer": 42}, True)
    with pytest.raises(NotFound):
        await house.client.get_run(end.run.run_id)


async def test_a_failure_is_an_end_too(quick: House) -> None:
    await quick.client.create_thread("t")
    waited = asyncio.ensure_future(quick.client.wait(request(thread_id="t")))
    work = await quick.worker.claim()
    failure = Failure(error="ValueError", message="no")
    await quick.worker.queue.finish(Ending(held=work.held, result="error", error=failure))
    end = await soon(waited)
    assert (end.run.status, end.run.error) == ("error", failure)


async def test_blank_lines_keep_a_wait_alive(quick: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_responses, "ALIVE_SECONDS", 0.02)
    async with quick.visitor.session.post(
        quick.visitor.url + API + "/runs/wait", json={"assistant_id": "echo", "on_completion": "keep"}
    ) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "application/json"
        for _ in range(3):
            assert await soon(response.content.read(1)) == b"\n"
        run_id = response.headers["Content-Location"].rpartition("/")[2]
        assert response.headers["Location"] == f"{API}/runs/{run_id}/wait"
        await quick.worker.do({"n": 1})
        end = await response.json(content_type=None)
    assert (end["run"]["run_id"], end["values"]) == (run_id, {"n": 1})


async def test_an_error_after_the_first_blank_line_stands_in_the_body(
    quick: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_responses, "ALIVE_SECONDS", 0.02)
    monkeypatch.setattr(ends, "POLL_SECONDS", 0.02)
    run = await quick.run()
    url = f"{quick.visitor.url}{API}/runs/{run.run_id}/wait"
    async with quick.visitor.session.get(url) as response:
        assert await soon(response.content.read(1)) == b"\n"

        async def broken(*_: Any) -> bool:
            raise StorageUnavailable("gone")

        threads = next(iter(quick.visitor.app.services._by_caller.values())).threads
        monkeypatch.setattr(threads, "read_one", broken)
        body = await soon(response.json(content_type=None))
    assert (response.status, body["code"]) == (200, "storage_unavailable")


async def test_a_wait_has_its_time(quick: House) -> None:
    run = await quick.run()
    answer = await quick.visitor.get(f"{API}/runs/{run.run_id}/wait", params={"timeout": "0.01"})
    assert (answer.status, answer.body) == (200, None)
    with pytest.raises(TimeoutError):
        await quick.client.join_run(run.run_id, timeout=0.01)
    with pytest.raises(NotFound):
        await quick.client.join_run("nobody")
    with pytest.raises(InvalidInput):
        await quick.client.join_run(run.run_id, timeout=float("nan"))
    head = await soon(quick.visitor.ask("HEAD", f"{API}/runs/{run.run_id}/wait"))
    assert head.status == 200


async def test_a_server_that_stops_ends_its_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first blank line the wait ends with a status, after it with an error in the body."""
    async with InMemoryLightningStore() as store:
        app = App(store)
        server = HttpServer(build_application(app))
        async with server, aiohttp.ClientSession() as session:
            await Worker(app.services.run_queue.in_namespace("default")).register()
            begun = {"assistant_id": "echo", "on_disconnect": "cancel", "on_completion": "keep"}
            early = asyncio.ensure_future(session.post(server.url + API + "/runs/wait", json=begun))
            threads = app.services.threads

            async def waits() -> bool:
                return (await threads.list_runs()).total == 1

            await until_true(waits)
            await asyncio.to_thread(server.stop)
            answer = await soon(early)
            assert (answer.status, (await answer.json(content_type=None))["code"]) == (503, "storage_closed")
            # The server disconnected, not the caller.
            assert [run.status for run in await threads.list_runs()] == ["pending"]


async def test_who_hangs_up_cancels_what_it_waits_for(house: House) -> None:
    body = {"assistant_id": "echo", "on_disconnect": "cancel", "thread_id": "t", "if_not_exists": "create"}
    asking = asyncio.ensure_future(house.visitor.post(API + "/runs/wait", json=body))
    work = await house.worker.claim()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)

    async def cancelled() -> bool:
        return (await house.client.get_run(work.run.run_id)).status == "interrupted"

    await until_true(cancelled)
    assert await soon(house.worker.queue.controls([work.held], 20)) == {work.run.run_id: "interrupt"}


async def test_who_hangs_up_cancels_nothing_by_default(quick: House) -> None:
    body = {"assistant_id": "echo", "thread_id": "t", "if_not_exists": "create"}
    asking = asyncio.ensure_future(quick.visitor.post(API + "/runs/wait", json=body))
    work = await quick.worker.claim()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert (await quick.worker.end(work)).status == "success"


# --- ending -----------------------------------------------------------------------------------------------


async def test_a_run_is_cancelled(house: House) -> None:
    await house.client.create_thread("t")
    run = await house.run(thread_id="t")
    assert (await house.client.cancel_run(run.run_id)).status == "interrupted"
    with pytest.raises(Conflict):
        await house.client.cancel_run(run.run_id)
    with pytest.raises(NotFound):
        await house.client.cancel_run("nobody")
    with pytest.raises(InvalidInput):
        await house.client.cancel_run(run.run_id, action="burn")  # type: ignore[arg-type]


async def test_a_cancel_waits_for_the_worker_to_stop(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_responses, "ALIVE_SECONDS", 0.05)
    await house.client.create_thread("t")
    run = await house.run(thread_id="t")
    work = await house.worker.claim()
    cancelling = asyncio.ensure_future(house.client.cancel_run(run.run_id, action="rollback", wait=True))
    assert await soon(house.worker.queue.controls([work.held], 20)) == {run.run_id: "rollback"}
    assert not cancelling.done()
    await house.worker.queue.finish(Ending(held=work.held, result="stopped"))
    assert (await soon(cancelling)).status == "rollback"


async def test_many_are_cancelled(quick: House) -> None:
    for name in ("a", "b"):
        await quick.client.create_thread(name)
    a, b = [await quick.run(thread_id=name) for name in ("a", "b")]
    waiting_one = await quick.run(thread_id="a", multitask_strategy="enqueue")
    ended = await quick.client.cancel_runs(thread_id="a", status="pending")
    assert {run.run_id for run in ended} == {a.run_id, waiting_one.run_id}
    assert [run.run_id for run in await quick.client.cancel_runs(run_ids=[a.run_id, b.run_id])] == [b.run_id]
    assert await quick.client.cancel_runs() == []
    answer = await quick.visitor.post(API + "/runs/cancel", json={"status": "success"})
    assert answer.status == 422


async def test_a_run_is_removed(house: House) -> None:
    await house.client.create_thread("t")
    run = await house.run(thread_id="t")
    await house.worker.do({"n": 1})
    await house.client.delete_run(run.run_id)
    for asking in (house.client.get_run(run.run_id), house.client.delete_run(run.run_id)):
        with pytest.raises(NotFound):
            await asking
    assert (await house.client.get_thread("t")).status == "idle"


async def test_the_queue_is_told_of(quick: House) -> None:
    await quick.run()
    found = await quick.client.stats()
    assert (found["n_pending"], found["n_running"]) == (1, 0)


async def test_checkpoints_travel_whole(quick: House) -> None:
    await quick.client.create_thread("t")
    await quick.run(thread_id="t")
    work = await quick.worker.claim()
    saved = await quick.worker.queue.save(
        work.held,
        NewCheckpoint(values={"a": [1]}, next=["b"], state=b"\x00\xff"),
        [told("values", {"a": [1]})],
    )
    assert await quick.client.get_state("t") == saved
    assert saved.state == b"\x00\xff"
