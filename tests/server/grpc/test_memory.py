"""Memory over gRPC, as clients of agent-memory call it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import grpc
import pytest
from tests.access.support import access_of
from tests.kernel.support import until_true
from tests.server.grpc.original import BEYOND, Stub, kind
from tests.server.grpc.support import T0, Served, event, serving, status_of

from perdure import InMemoryLightningStore
from perdure.client.grpc.memory import GrpcMemory
from perdure.kernel.config import SecretKey
from perdure.memory import messages as m
from perdure.server.grpc import memory

SECRET = SecretKey("a-key-of-some-length")
Code = grpc.StatusCode


async def refused(stub: Stub, method: str, **fields: Any) -> tuple[grpc.StatusCode, str]:
    """Return the status and the message of a refused call."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.call(method, **fields)
    return caught.value.code(), caught.value.details() or ""


async def test_an_event_is_stored_once_and_read_by_its_time(served: Served) -> None:
    stub = served.stub()
    late = event(60, agent="Claude", metadata={"tool": "bash"}, event_type=4, role=4, text="é🎈")
    early = event(1, event_type=0, role=0)
    for each in (late, early):
        answer = await stub.call("IngestEvent", event=each)
        assert (answer.event_id, answer.created, answer.deduplicated) == (each.event_id, True, False)
    assert not (await stub.call("IngestEvent", event=late)).created
    page = await stub.call("GetEvents", from_timestamp_ms=T0, to_timestamp_ms=T0 + 60_000)
    assert [each.event_id for each in page.events] == [early.event_id, late.event_id]
    assert (page.events[0].event_type, page.events[0].role) == (2, 1)
    assert not page.events[0].HasField("agent")
    found = page.events[1]
    assert (found.agent, found.text, dict(found.metadata)) == ("claude", "é🎈", {"tool": "bash"})
    assert (found.event_type, found.role, found.timestamp_ms) == (4, 4, late.timestamp_ms)
    page = await stub.call("GetEvents", from_timestamp_ms=T0, to_timestamp_ms=T0 + 60_000, limit=1)
    assert ([each.event_id for each in page.events], page.has_more) == ([early.event_id], True)


async def test_one_id_ingested_by_many_at_once_is_created_once(served: Served) -> None:
    stub, each = served.stub(), event()
    answers = await asyncio.gather(*(stub.call("IngestEvent", event=each) for _ in range(20)))
    assert sum(answer.created for answer in answers) == 1


async def test_search_finds_events_and_cites_them(served: Served) -> None:
    stub = served.stub()
    wanted = event(5, text="the migration of the billing database failed", agent="claude")
    for each in (wanted, event(6, text="something else altogether", agent="codex")):
        await stub.call("IngestEvent", event=each)

    async def indexed() -> bool:
        return bool((await stub.call("TeleportSearch", query="billing")).total_docs == 2)

    await until_true(indexed)
    (found,) = (await stub.call("TeleportSearch", query="billing migration", doc_type=1000)).results
    assert (found.doc_id, found.agent, found.timestamp_ms) == (wanted.event_id, "claude", T0 + 5000)
    ours = m.TeleportSearchResult.FromString(found.SerializeToString())
    assert [cited.event_id for cited in ours.citations] == [wanted.event_id]
    assert "billing database" in ours.text_preview
    others = {"query": "billing", "doc_type": 1001, "agent_filter": "codex"}
    assert not (await stub.call("TeleportSearch", **others)).results
    # Without a type the results are nodes and grips, as in agent-memory.
    for doc_type in (0, 1, 2):
        assert not (await stub.call("TeleportSearch", query="billing", doc_type=doc_type)).results
    assert not (await stub.call("TeleportSearch", query="  ")).results
    hybrid = await stub.call("HybridSearch", query="billing", mode=3, target=1001)
    assert [match.doc_id for match in hybrid.matches] == [wanted.event_id]
    assert (hybrid.matches[0].doc_type, hybrid.mode_used) == ("event", 2)
    assert (hybrid.bm25_available, hybrid.vector_available) == (True, False)
    times = kind("TimeRange")(start_ms=T0 + 6000, end_ms=T0 + 7000)
    assert not (await stub.call("HybridSearch", query="billing", target=1001, time_filter=times)).matches


async def test_an_event_may_have_four_megabytes_of_text(served: Served) -> None:
    stub = served.stub()
    long = event(8, text="é" * (2 << 20))
    assert (await stub.call("IngestEvent", event=long)).created
    async with GrpcMemory(served.address) as client:
        page = await client.get_events(from_ms=T0 + 8000, to_ms=T0 + 8000)
    assert [each.text for each in page.items] == [long.text]


async def test_bad_requests_have_the_statuses_of_the_contract(served: Served) -> None:
    stub = served.stub()
    assert await refused(stub, "IngestEvent") == (Code.INVALID_ARGUMENT, "Event is required")
    for changes in (
        {"event_id": ""},
        {"event_id": "not-a-ulid"},
        {"session_id": " "},
        {"timestamp_ms": 2**63 - 1},
        {"timestamp_ms": -5},
        {"event_type": 99},
        {"role": -1},
        {"text": "x" * ((4 << 20) + 1)},
        {"metadata": {str(number): "" for number in range(100)}},
    ):
        code, message = await refused(stub, "IngestEvent", event=event(**changes))
        assert code is Code.INVALID_ARGUMENT, (changes, message)
    times: tuple[dict[str, int], ...] = ({"to_timestamp_ms": 2**63 - 1}, {"from_timestamp_ms": -1})
    for asked in times:
        assert (await refused(stub, "GetEvents", **asked))[0] is Code.INVALID_ARGUMENT
    for method in ("HybridSearch", "TeleportSearch"):
        for query in ("\0", "x" * 20_000):
            assert (await refused(stub, method, query=query))[0] is Code.INVALID_ARGUMENT
    for query in ("", " "):
        assert (await refused(stub, "HybridSearch", query=query))[0] is Code.INVALID_ARGUMENT
    assert (await refused(stub, "HybridSearch", query="a", mode=9))[0] is Code.INVALID_ARGUMENT
    assert (await refused(stub, "TeleportSearch", query="a", doc_type=77))[0] is Code.INVALID_ARGUMENT


async def test_methods_beyond_the_contract_are_not_implemented(served: Served) -> None:
    for method in (*BEYOND, "Nonsense"):
        invoke = served.channel.unary_unary(f"/memory.MemoryService/{method}")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await invoke(b"")
        assert caught.value.code() is Code.UNIMPLEMENTED, method


async def test_every_method_needs_its_scope() -> None:
    async with InMemoryLightningStore() as store, serving(store, api_key=SECRET) as closed:
        access = access_of(closed.app)
        secrets = {}
        for scope in ("read", "write", "worker"):
            _, secrets[scope] = await access.create_token(scope, scopes=(scope,), actor="test")
        methods = {name: method.scope for name, method in memory.METHODS.items()}
        for name, needed in {**methods, "StreamEvents": "write"}.items():
            invoke = closed.channel.stream_stream(f"/memory.MemoryService/{name}")
            for scope, secret in {**secrets, "": "wrong", "admin": str(SECRET)}.items():
                call = partial(invoke, iter([]), metadata=[("authorization", f"Bearer {secret}")])
                code, _ = await status_of(call)
                if not scope:
                    assert code is Code.UNAUTHENTICATED
                else:
                    assert (code is Code.PERMISSION_DENIED) == (scope not in (needed, "admin")), (name, scope)
            assert (await status_of(lambda: invoke(iter([]))))[0] is Code.UNAUTHENTICATED  # noqa: B023


async def test_namespaces_are_apart(served: Served) -> None:
    each = event()
    await served.stub(x_perdure_namespace="one").call("IngestEvent", event=each)
    asked = {"from_timestamp_ms": T0, "to_timestamp_ms": T0}
    assert not (await served.stub(x_perdure_namespace="two").call("GetEvents", **asked)).events
    assert (await served.stub(x_perdure_namespace="one").call("GetEvents", **asked)).events


# --- batches and streams ----------------------------------------------------------------------------------


def batch(*events: Any) -> Any:
    message = m.IngestEventsRequest()
    for each in events:
        message.events.add().ParseFromString(each.SerializeToString())
    return message


def stream(served: Served, requests: AsyncIterator[Any]) -> Any:
    return served.channel.stream_stream(
        "/memory.MemoryService/StreamEvents",
        request_serializer=m.IngestEventsRequest.SerializeToString,
        response_deserializer=m.IngestEventsResponse.FromString,
    )(requests)


async def test_a_batch_is_stored_whole_or_not_at_all(served: Served) -> None:
    invoke = served.channel.unary_unary(
        "/memory.MemoryService/IngestEvents",
        request_serializer=m.IngestEventsRequest.SerializeToString,
        response_deserializer=m.IngestEventsResponse.FromString,
    )
    events = [event(number) for number in range(10)]
    answer = await invoke(batch(*events, events[0]))
    assert [each.created for each in answer.results] == [True] * 10 + [False]
    assert [each.event_id for each in answer.results[:10]] == [each.event_id for each in events]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await invoke(batch(event(50), event(51, session_id="")))
    assert caught.value.code() is Code.INVALID_ARGUMENT
    page = await served.stub().call("GetEvents", from_timestamp_ms=T0, to_timestamp_ms=T0 + 99_000)
    assert len(page.events) == 10


async def test_a_stream_acknowledges_each_batch_in_order(served: Served) -> None:
    batches = [[event(ten * 10 + one) for one in range(10)] for ten in range(30)]

    async def requests() -> AsyncIterator[Any]:
        for events in batches:
            yield batch(*events)

    answers = [answer async for answer in stream(served, requests())]
    assert [[each.event_id for each in answer.results] for answer in answers] == [
        [each.event_id for each in events] for events in batches
    ]


async def test_a_bad_batch_ends_a_stream_after_the_good_ones(served: Served) -> None:
    async def requests() -> AsyncIterator[Any]:
        yield batch(event(1))
        yield batch(event(2))
        yield batch(event(3, event_id="bad"))

    call = stream(served, requests())
    for number in (1, 2):
        assert len((await call.read()).results) == 1, number
    assert (await status_of(lambda: call))[0] is Code.INVALID_ARGUMENT


async def test_a_stream_of_a_token_that_is_revoked_ends() -> None:
    async with InMemoryLightningStore() as store, serving(store, api_key=SECRET) as closed:
        access = access_of(closed.app)
        token, secret = await access.create_token("writer", scopes=("write",), actor="test")
        call = closed.channel.stream_stream("/memory.MemoryService/StreamEvents")(
            metadata=[("authorization", f"Bearer {secret}")]
        )
        await call.write(batch(event()).SerializeToString())
        assert await call.read() is not grpc.aio.EOF
        await access.revoke_token(token.token_id, actor="test")
        await call.write(batch(event(2)).SerializeToString())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is Code.UNAUTHENTICATED


async def test_an_idle_stream_ends(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "IDLE_SECONDS", 0.05)
    call = served.channel.stream_stream("/memory.MemoryService/StreamEvents")()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is Code.OK


async def test_a_stop_acknowledges_what_came_and_ends_streams(served: Served) -> None:
    call = served.channel.stream_stream("/memory.MemoryService/StreamEvents")()
    await call.write(batch(event(1)).SerializeToString())
    assert await call.read() is not grpc.aio.EOF
    async with asyncio.timeout(5):
        await served.server.stop()
        assert await call.read() is grpc.aio.EOF
