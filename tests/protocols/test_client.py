"""The client against a network that loses requests and answers: nothing is lost, and nothing is doubled."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.protocols.flaky import BUSY, FAULTS, HEALTH, LOST_AFTER, LOST_BEFORE, PERHAPS_DONE, FlakyServer
from tests.protocols.support import serving

from perdure import (
    EnqueueRolloutRequest,
    LightningStore,
    LightningStoreClient,
    NamedResources,
    PromptTemplate,
    SqliteLightningStore,
    errors,
)
from perdure.protocols.lightning import client as client_module
from perdure.testing.contract.support import finish, make_span, new_rollout, otel_span, soon

AGL = "/v1/agl"
PROMPT: NamedResources = {"p": PromptTemplate(template="{x}", engine="f-string")}
PATIENT: dict[str, Any] = {"retry_delays": (0.01, 0.01, 0.01), "health_retry_delays": (0.01, 0.01)}


class Line:
    """A client, the flaky proxy that it speaks to, and the store behind both."""

    def __init__(self, client: LightningStoreClient, proxy: FlakyServer, store: LightningStore) -> None:
        self.client = client
        self.proxy = proxy
        self.store = store


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[Line]:
    async with (
        SqliteLightningStore(tmp_path / "db") as store,
        serving(store) as server,
        FlakyServer(server.url) as proxy,
        LightningStoreClient(proxy.url, **PATIENT) as client,
    ):
        yield Line(client, proxy, store)


@pytest.fixture
async def proxy() -> AsyncIterator[FlakyServer]:
    """A proxy with nothing behind it, which answers what it is given."""
    async with FlakyServer() as proxy:
        yield proxy


def hasty(proxy: FlakyServer) -> LightningStoreClient:
    """A client that waits half a second for an answer."""
    return LightningStoreClient(proxy.url, request_timeout=0.5, **PATIENT)


# --- writes that are repeated -------------------------------------------------------------------------------


async def enqueue_one(store: LightningStore) -> Any:
    return (await store.enqueue_rollout("task")).rollout_id


async def enqueue_many(store: LightningStore) -> Any:
    queued = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(3)])
    return [rollout.rollout_id for rollout in queued]


async def start_rollout(store: LightningStore) -> Any:
    started = await store.start_rollout("task", worker_id="w")
    return started.rollout_id, started.attempt.attempt_id


async def add_resources(store: LightningStore) -> Any:
    return (await store.add_resources(PROMPT)).resources_id


CREATORS: dict[str, tuple[Callable[[LightningStore], Awaitable[Any]], dict[str, int]]] = {
    "enqueue_rollout": (enqueue_one, {"total_rollouts": 1, "total_attempts": 0}),
    "enqueue_many_rollouts": (enqueue_many, {"total_rollouts": 3, "total_attempts": 0}),
    "start_rollout": (start_rollout, {"total_rollouts": 1, "total_attempts": 1}),
    "add_resources": (add_resources, {"total_resources": 1, "total_rollouts": 0}),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("creator", CREATORS)
async def test_what_is_made_is_made_once(line: Line, creator: str, fault: str) -> None:
    create, expected = CREATORS[creator]
    line.proxy.faults.append(fault)
    async with hasty(line.proxy) as client:
        assert await create(client)
    statistics: Any = await line.store.statistics()
    assert {name: statistics[name] for name in expected} == expected
    assert sum(line.proxy.counts.values()) == 2


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_claim_is_made_once(line: Line, fault: str) -> None:
    first, second = [(await line.store.enqueue_rollout(i)).rollout_id for i in range(2)]
    line.proxy.faults.append(fault)
    async with hasty(line.proxy) as client:
        claimed = await client.dequeue_rollout("w")
        assert claimed is not None
        assert claimed.rollout_id == first
        assert [one.rollout_id for one in await client.dequeue_many_rollouts(limit=5)] == [second]
    assert (await line.store.statistics())["total_attempts"] == 2
    keys = [
        key for key, (_, path) in zip(line.proxy.keys, line.proxy.requests, strict=True) if path != HEALTH
    ]
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_attempt_is_begun_once(line: Line, fault: str) -> None:
    queued = await line.store.enqueue_rollout("task")
    line.proxy.faults.append(fault)
    async with hasty(line.proxy) as client:
        started = await client.start_attempt(queued.rollout_id, "w")
    assert list(await line.store.query_attempts(queued.rollout_id)) == [started.attempt]


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_report_is_applied_once(line: Line, fault: str) -> None:
    started = await new_rollout(line.store)
    line.proxy.faults.append(fault)
    async with hasty(line.proxy) as client:
        assert (await finish(client, started)).status == "succeeded"
    assert [one.status for one in await line.store.query_attempts(started.rollout_id)] == ["succeeded"]


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_span_is_stored_once_and_counts_as_stored(line: Line, fault: str) -> None:
    started = await new_rollout(line.store)
    span, others = make_span(started), [make_span(started, i) for i in (2, 3)]
    async with hasty(line.proxy) as client:
        line.proxy.faults.append(fault)
        assert await client.add_span(span) is span
        line.proxy.faults.append(fault)
        assert list(await client.add_many_spans(others)) == others
    assert list(await line.store.query_spans(started.rollout_id)) == [span, *others]


async def test_a_copy_in_a_repeated_batch_is_still_a_copy(line: Line) -> None:
    started = await new_rollout(line.store)
    span = make_span(started)
    line.proxy.faults.append(LOST_AFTER)
    assert list(await line.client.add_many_spans([span, span])) == [span]


async def test_a_known_span_is_none_unless_the_request_was_repeated(line: Line) -> None:
    span = make_span(await new_rollout(line.store))
    await line.store.add_span(span)
    assert await line.client.add_span(span) is None
    assert line.proxy.counts == {f"{AGL}/spans/bulk": 1}


async def test_an_otel_span_is_stored_once(line: Line) -> None:
    started = await new_rollout(line.store)
    line.proxy.faults.extend((LOST_AFTER, LOST_AFTER))
    ids = (started.rollout_id, started.attempt.attempt_id)
    span = await line.client.add_otel_span(*ids, otel_span())
    assert span is not None
    assert list(await line.store.query_spans(started.rollout_id)) == [span]


@pytest.mark.parametrize("fault", PERHAPS_DONE)
@pytest.mark.parametrize("write", ["update_resources", "update_rollout", "latest attempt"])
async def test_what_cannot_be_repeated_is_not(line: Line, write: str, fault: str) -> None:
    started = await new_rollout(line.store)
    line.proxy.faults.append(fault)
    async with hasty(line.proxy) as client:
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "update_resources": lambda: client.update_resources("r", PROMPT),
            "update_rollout": lambda: client.update_rollout(started.rollout_id, status="requeuing"),
            "latest attempt": lambda: client.update_attempt(started.rollout_id, "latest", status="failed"),
        }
        with pytest.raises(errors.OutcomeUnknown):
            await calls[write]()
    assert sum(line.proxy.counts.values()) == 1


async def test_what_was_surely_not_done_is_repeated(line: Line, proxy: FlakyServer) -> None:
    detail = {"detail": "The database cannot be reached.", "code": "storage_unavailable"}
    line.proxy.answers.append(web.json_response(detail, status=503))
    assert (await line.client.update_resources("r", PROMPT)).version == 1
    assert line.proxy.counts == {f"{AGL}/resources/r": 2}


# --- when to try again --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
async def test_reads_are_repeated(line: Line, fault: str) -> None:
    queued = await line.store.enqueue_rollout("task")
    line.proxy.faults.extend((fault, fault))
    async with hasty(line.proxy) as client:
        assert await client.get_rollout_by_id(queued.rollout_id) == queued
    assert sum(line.proxy.counts.values()) == 3


async def test_the_server_is_asked_for_its_health_before_each_repetition(line: Line) -> None:
    line.proxy.faults.extend((BUSY, BUSY))
    line.proxy.ill = 2
    await line.client.statistics()
    asked = f"{AGL}/statistics"
    expected = [asked, HEALTH, HEALTH, HEALTH, asked, HEALTH, asked]
    assert [path for _, path in line.proxy.requests] == expected


async def test_nothing_is_sent_to_an_ill_server(proxy: FlakyServer) -> None:
    proxy.faults.append(BUSY)
    proxy.ill = 100
    async with hasty(proxy) as client:
        with pytest.raises(errors.Unreachable):
            await client.statistics()
    assert proxy.counts == {f"{AGL}/statistics": 1}
    assert len(proxy.requests) == 1 + 3 * 3


async def test_without_delays_nothing_is_repeated(proxy: FlakyServer) -> None:
    proxy.faults.append(LOST_BEFORE)
    async with LightningStoreClient(proxy.url, retry_delays=()) as client:
        with pytest.raises(errors.Unreachable):
            await client.query_rollouts()
        proxy.faults.append(LOST_BEFORE)
        with pytest.raises(errors.OutcomeUnknown):
            await client.enqueue_rollout("task")
    assert sum(proxy.counts.values()) == len(proxy.requests) == 2


async def test_without_probes_the_delays_alone_count(line: Line) -> None:
    line.proxy.faults.append(BUSY)
    async with LightningStoreClient(line.proxy.url, retry_delays=(0.01,), health_retry_delays=()) as client:
        await client.statistics()
    assert [path for _, path in line.proxy.requests] == [f"{AGL}/statistics"] * 2


async def test_nobody_listens(unused_tcp_port: int) -> None:
    async with LightningStoreClient(f"http://127.0.0.1:{unused_tcp_port}", **PATIENT) as client:
        with pytest.raises(errors.Unreachable, match=str(unused_tcp_port)):
            await client.enqueue_rollout("task")
        with pytest.raises(ConnectionError):
            await client.dequeue_rollout()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 413, 422, 429])
async def test_a_refusal_is_final(proxy: FlakyServer, status: int) -> None:
    proxy.answers.append(web.json_response({"detail": "no", "code": "unknown_to_us"}, status=status))
    async with hasty(proxy) as client:
        with pytest.raises(errors.PerdureError, match="no") as refused:
            await client.dequeue_rollout()
    assert refused.value.http_status == status
    assert len(proxy.requests) == 1


async def test_the_servers_errors_are_raised_as_they_are(line: Line) -> None:
    with pytest.raises(errors.NotFound, match="ro-missing"):
        await line.client.update_rollout("ro-missing", metadata={})
    with pytest.raises(errors.BadQuery, match="sort_by"):
        await line.client.query_rollouts(sort_by="bogus")
    with pytest.raises(errors.InvalidInput, match="mode"):
        await line.client.start_rollout("task", mode="bogus")
    assert HEALTH not in {path for _, path in line.proxy.requests}


async def test_an_answer_of_another_server(proxy: FlakyServer) -> None:
    proxy.answers.extend(web.Response(text="<html>", content_type="text/html") for _ in range(3))
    async with hasty(proxy) as client:
        for call in (client.statistics(), client.query_rollouts(), client.enqueue_rollout("task")):
            with pytest.raises(errors.Unreachable, match="perdure"):
                await call


async def test_a_redirect_is_not_followed(proxy: FlakyServer) -> None:
    proxy.answers.append(web.Response(status=307, headers={"Location": "http://127.0.0.1:1/"}))
    async with hasty(proxy) as client:
        with pytest.raises(errors.Unreachable, match="307"):
            await client.statistics()


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
    monkeypatch.setattr(client_module, "WAIT_SECONDS", 0.1)
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


# --- who calls, from where ----------------------------------------------------------------------------------


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
