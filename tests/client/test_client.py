"""Behaviour of the client: merged requests, long waits, many threads and loops, one caller."""

from __future__ import annotations

import asyncio
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.client.flaky import LOST_AFTER, FlakyServer
from tests.client.line import AGL, PATIENT, Line, hasty
from tests.server.support import serving

from perdure import (
    AttemptedRollout,
    LightningStore,
    LightningStoreClient,
    SqliteLightningStore,
    errors,
)
from perdure.client import lightning as reading
from perdure.testing.contract.support import finish, make_span, new_rollout, soon

# --- merging ------------------------------------------------------------------------------------------------


async def test_concurrent_spans_share_requests(line: Line) -> None:
    started = await new_rollout(line.store)
    spans = [make_span(started, i) for i in range(1, 201)]
    assert await asyncio.gather(*map(line.client.add_span, spans)) == spans
    assert line.proxy.counts[f"{AGL}/spans/bulk"] <= 4
    assert list(await line.store.query_spans(started.rollout_id)) == spans


async def test_concurrent_enqueues_share_requests_and_keep_their_order(line: Line) -> None:
    queued = await asyncio.gather(*map(line.client.enqueue_rollout, range(200)))
    assert line.proxy.counts[f"{AGL}/queues/rollouts/enqueue"] <= 4
    assert [rollout.input for rollout in queued] == list(range(200))
    claimed = await line.store.dequeue_many_rollouts(limit=200)
    assert [one.rollout_id for one in claimed] == [one.rollout_id for one in queued]


async def test_concurrent_numbers_share_requests(line: Line) -> None:
    started = await new_rollout(line.store)
    ids = (started.rollout_id, started.attempt.attempt_id)
    numbers = await asyncio.gather(*(line.client.get_next_span_sequence_id(*ids) for _ in range(100)))
    assert sorted(numbers) == list(range(1, 101))
    assert line.proxy.counts[f"{AGL}/spans/next/bulk"] <= 4


async def test_concurrent_claims_share_requests(line: Line) -> None:
    queued = [(await line.store.enqueue_rollout(i)).rollout_id for i in range(60)]
    calls = [line.client.dequeue_rollout(f"w-{i}") for i in range(60)]
    claimed = [one for one in await asyncio.gather(*calls) if one is not None]
    assert sorted(one.rollout_id for one in claimed) == sorted(queued)
    assert {one.attempt.worker_id for one in claimed} == {f"w-{i}" for i in range(60)}
    assert line.proxy.counts[f"{AGL}/queues/rollouts/dequeue/bulk"] <= 4


async def test_concurrent_reports_share_requests(line: Line) -> None:
    started = [await new_rollout(line.store) for _ in range(60)]
    attempts = await asyncio.gather(*(finish(line.client, one) for one in started))
    assert [one.attempt_id for one in attempts] == [one.attempt.attempt_id for one in started]
    assert {one.status for one in attempts} == {"succeeded"}
    assert line.proxy.counts[f"{AGL}/attempts/bulk"] <= 4


async def test_one_bad_report_does_not_fail_its_neighbours(line: Line) -> None:
    started = [await new_rollout(line.store) for _ in range(5)]
    bad = line.client.update_attempt(started[0].rollout_id, "at-missing", status="failed")
    answers = await asyncio.gather(
        bad, *(finish(line.client, one) for one in started), return_exceptions=True
    )
    assert isinstance(answers[0], errors.NotFound)
    statuses = [(await line.store.query_attempts(one.rollout_id))[0].status for one in started]
    assert statuses == ["succeeded"] * 5


async def given_back(store: LightningStore) -> AttemptedRollout:
    """Return a rollout that was claimed for a disconnected caller, after it is queued again."""
    while (claimed := await store.dequeue_rollout("another")) is None:
        pass
    return claimed


async def test_a_claim_is_given_back_if_its_caller_goes_before_the_answer(line: Line) -> None:
    await line.store.enqueue_rollout("task")
    done, release = asyncio.Event(), asyncio.Event()
    ask = line.proxy.pass_on

    async def held(request: web.BaseRequest) -> web.Response:
        answer = await ask(request)
        done.set()
        await release.wait()
        return answer

    line.proxy.pass_on = held
    claiming = asyncio.create_task(line.client.dequeue_rollout("gone"))
    await soon(done.wait())
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    release.set()
    claimed = await soon(given_back(line.store))
    assert (claimed.input, claimed.attempt.sequence_id) == ("task", 2)


async def test_a_claim_is_given_back_if_its_caller_goes_with_the_answer(line: Line) -> None:
    await line.store.enqueue_rollout("task")
    merged = line.client._batches._merged

    def gone(*args: Any, **options: Any) -> asyncio.Future[Any]:
        answer = merged(*args, **options)
        answer.add_done_callback(lambda _: claiming.cancel())
        return answer

    line.client._batches._merged = gone  # type: ignore[method-assign]
    claiming = asyncio.create_task(line.client.dequeue_rollout("gone"))
    with pytest.raises(asyncio.CancelledError):
        await soon(claiming)
    claimed = await soon(given_back(line.store))
    assert (claimed.input, claimed.attempt.sequence_id) == ("task", 2)


async def test_many_spans_are_one_request(line: Line) -> None:
    started = await new_rollout(line.store)
    await line.client.add_many_spans([make_span(started, i) for i in range(1000)])
    assert line.proxy.counts == {f"{AGL}/spans/bulk": 1}


async def test_what_is_too_much_for_one_request_is_several(line: Line) -> None:
    started = await new_rollout(line.store)
    spans = [make_span(started, i) for i in range(2500)]
    assert len(await line.client.add_many_spans(spans)) == 2500
    assert line.proxy.counts == {f"{AGL}/spans/bulk": 3}
    large = [make_span(started, i, attributes={"text": "x" * 1_000_000}) for i in range(8)]
    assert len(await line.client.add_many_spans(large)) == 8
    assert line.proxy.counts == {f"{AGL}/spans/bulk": 3 + 3}


async def test_one_bad_span_does_not_fail_its_neighbours(line: Line) -> None:
    started = await new_rollout(line.store)
    spans = [make_span(started, i) for i in range(1, 11)]
    bad = make_span(started, rollout_id="ro-missing")
    calls = [line.client.add_span(span) for span in (*spans[:5], bad, *spans[5:])]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(answers.pop(5), errors.NotFound)
    assert answers == spans
    assert len(await line.store.query_spans(started.rollout_id)) == 10


async def test_an_error_about_none_of_them_is_told_to_all_at_once(proxy: FlakyServer) -> None:
    proxy.answers.extend(web.json_response({"code": "unauthorized"}, status=401) for _ in range(5))
    async with hasty(proxy) as client:
        calls = [client.enqueue_rollout(i) for i in range(50)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(answer) for answer in answers} == {errors.Unauthorized}
    assert len(proxy.requests) <= 2


async def test_namespaces_are_not_merged(line: Line) -> None:
    other = line.client.in_namespace("other")
    calls = [store.enqueue_rollout(i) for i in range(20) for store in (line.client, other)]
    await asyncio.gather(*calls)
    assert (await line.client.statistics())["total_rollouts"] == 20
    assert (await other.statistics())["total_rollouts"] == 20


# --- waiting ------------------------------------------------------------------------------------------------


async def test_a_long_wait_is_many_requests(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "WAIT_SECONDS", 0.1)
    started = await new_rollout(line.store)
    waiting = asyncio.create_task(line.client.wait_for_rollouts(rollout_ids=[started.rollout_id]))
    while line.proxy.counts[f"{AGL}/waits/rollouts"] < 3:
        await asyncio.wait([waiting], timeout=0.01)
    await finish(line.store, started)
    assert [rollout.status for rollout in await soon(waiting)] == ["succeeded"]


async def test_a_wait_outlives_the_timeout_of_a_request(line: Line) -> None:
    started = await new_rollout(line.store)
    async with LightningStoreClient(line.proxy.url, request_timeout=0.2, retry_delays=()) as client:
        assert await client.wait_for_rollouts(rollout_ids=[started.rollout_id], timeout=0.5) == []
    assert line.proxy.counts == {f"{AGL}/waits/rollouts": 1}


async def test_waits_do_not_stand_in_the_way(line: Line) -> None:
    started = await new_rollout(line.store)
    wait = line.client.wait_for_rollouts
    waiting = [asyncio.create_task(wait(rollout_ids=[started.rollout_id])) for _ in range(150)]
    while line.proxy.counts[f"{AGL}/waits/rollouts"] < 150:
        await asyncio.wait(waiting, timeout=0.01)
    await soon(finish(line.client, started))
    for waited in await soon(asyncio.gather(*waiting)):
        assert [rollout.rollout_id for rollout in waited] == [started.rollout_id]


async def test_a_wait_survives_the_loss_of_its_answer(line: Line) -> None:
    started = await new_rollout(line.store)
    await finish(line.store, started)
    line.proxy.faults.append(LOST_AFTER)
    assert len(await soon(line.client.wait_for_rollouts(rollout_ids=[started.rollout_id]))) == 1


# --- callers ------------------------------------------------------------------------------------------------


async def test_token_and_namespace(tmp_path: Path) -> None:
    key = "a-key-of-the-server"
    async with SqliteLightningStore(tmp_path / "db") as store, serving(store, api_key=key) as server:
        async with LightningStoreClient(server.url, **PATIENT) as stranger:
            with pytest.raises(errors.Unauthorized):
                await stranger.dequeue_rollout()
        host = server.url.removeprefix("http://")
        async with (
            LightningStoreClient(server.url, token=key, namespace="team") as by_argument,
            LightningStoreClient(f"http://team:{key}@{host}") as by_address,
        ):
            queued = await by_argument.enqueue_rollout("task")
            assert await by_address.get_rollout_by_id(queued.rollout_id) == queued
            assert key not in repr(by_address) + by_address.server_address
        assert await store.get_rollout_by_id(queued.rollout_id) is None
        assert await store.in_namespace("team").get_rollout_by_id(queued.rollout_id) == queued


async def test_pickles_to_its_arguments(line: Line) -> None:
    options: Any = {
        "token": "secret",
        "retry_delays": (0.5,),
        "health_retry_delays": (),
        "request_timeout": 7.0,
    }
    client = LightningStoreClient(line.proxy.url, connection_timeout=2.0, namespace="team", **options)
    async with client, pickle.loads(pickle.dumps(client)) as again:
        assert type(again) is LightningStoreClient
        assert again.__reduce__() == client.__reduce__()
        assert again.server_address == client.server_address


async def test_used_before_it_is_pickled(line: Line) -> None:
    queued = await line.client.enqueue_rollout("task")
    async with pickle.loads(pickle.dumps(line.client)) as again:
        assert await again.get_rollout_by_id(queued.rollout_id) == queued


async def test_many_threads_and_loops(line: Line) -> None:
    async def work(number: int) -> set[str]:
        spans = [make_span(started, i) for i in range(5)]
        assert await asyncio.gather(*map(line.client.add_span, spans)) == spans
        return {(await line.client.enqueue_rollout(number)).rollout_id for _ in range(5)}

    started = await new_rollout(line.store)
    before = threading.active_count()
    rounds = [asyncio.to_thread(asyncio.run, work(number)) for number in range(8)]
    made = set[str]().union(*await soon(asyncio.gather(*rounds)))
    assert len(made) == (await line.store.query_rollouts(status_in=["queuing"])).total == 40
    assert len(await line.store.query_spans(started.rollout_id)) == 40
    assert threading.active_count() <= before + 8


async def test_a_loop_takes_its_connections_along(line: Line) -> None:
    for _ in range(3):
        await asyncio.to_thread(asyncio.run, line.client.statistics())
    pools = line.client._session._pools
    assert pools._opened == {}
    await line.client.statistics()
    assert list(pools._opened) == [asyncio.get_running_loop()]


async def test_close_reaches_into_other_loops(line: Line) -> None:
    used, done = asyncio.Event(), asyncio.Event()
    here = asyncio.get_running_loop()

    async def elsewhere() -> bool:
        ended = asyncio.Event()
        there = asyncio.get_running_loop()
        await line.client.statistics()
        connections = await line.client._session._pools.get()

        async def watch() -> None:
            await done.wait()
            there.call_soon_threadsafe(ended.set)

        asyncio.run_coroutine_threadsafe(watch(), here)
        here.call_soon_threadsafe(used.set)
        await ended.wait()
        return connections.short.closed

    other = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
    await soon(used.wait())
    await line.client.close()
    done.set()
    assert await soon(other)


async def test_a_closed_client_says_so(line: Line) -> None:
    await line.client.statistics()
    await line.client.close()
    await line.client.close()
    for call in (line.client.statistics(), line.client.enqueue_rollout("task")):
        with pytest.raises(errors.StorageClosed):
            await call


async def test_closed_while_it_waits(line: Line) -> None:
    started = await new_rollout(line.store)
    waiting = asyncio.create_task(line.client.wait_for_rollouts(rollout_ids=[started.rollout_id]))
    while not line.proxy.requests:
        await asyncio.wait([waiting], timeout=0.01)
    await line.client.close()
    with pytest.raises(errors.StorageClosed):
        await soon(waiting)


def test_a_client_is_made_without_a_loop() -> None:
    client = LightningStoreClient("http://127.0.0.1:4747/")
    assert client.server_address == "http://127.0.0.1:4747/v1/agl"
    assert client.otlp_traces_endpoint() == "http://127.0.0.1:4747/v1/traces"
    assert client.capabilities == {
        "thread_safe": True,
        "async_safe": True,
        "zero_copy": True,
        "otlp_traces": True,
    }
