"""The client on a network that loses requests and responses: nothing is lost, and nothing is doubled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from tests.client.flaky import BUSY, FAULTS, HEALTH, LOST_AFTER, LOST_BEFORE, PERHAPS_DONE, FlakyServer
from tests.client.line import AGL, PATIENT, Line, hasty

from perdure import (
    EnqueueRolloutRequest,
    LightningStore,
    LightningStoreClient,
    NamedResources,
    PromptTemplate,
    errors,
)
from perdure.testing.contract.support import finish, make_span, new_rollout, otel_span

PROMPT: NamedResources = {"p": PromptTemplate(template="{x}", engine="f-string")}


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


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_attempt_is_begun_once(line: Line, fault: str) -> None:
    queued = await line.store.enqueue_rollout("task")
    line.proxy.faults.append(fault)
    async with hasty(line.proxy) as client:
        started = await client.start_attempt(queued.rollout_id, "w")
    assert list(await line.store.query_attempts(queued.rollout_id)) == [started.attempt]
    sent = zip(line.proxy.keys, line.proxy.requests, strict=True)
    keys = [key for key, (_, path) in sent if path != HEALTH]
    assert keys[0] == keys[1] is not None


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


@pytest.mark.parametrize("code", ["storage_unavailable", "storage_full", "deadline_exceeded", None])
async def test_what_was_surely_not_done_is_repeated(line: Line, code: str | None) -> None:
    body = {"detail": "not now", "code": code}
    line.proxy.answers.append(web.json_response(body, status=503 if code else 408))
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
