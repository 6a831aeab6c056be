"""The connection of a gRPC client: its states, back-off, deadlines, reconnecting, and its errors."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from tests.kernel.support import until
from tests.server.grpc.support import T0, free_port, serving

from perdure import InMemoryLightningStore
from perdure.client.grpc import GrpcMemory, connection
from perdure.client.grpc.connection import (
    CallCancelled,
    CallTimeout,
    ConnectionFailed,
    ConnectTimeout,
    DnsFailure,
    ServerUnavailable,
    TlsFailure,
    connection_failure,
)
from perdure.client.tls import ClientTls
from perdure.errors import InvalidInput, Unauthorized
from perdure.kernel.config import SecretKey
from perdure.kernel.errors import PerdureError, StorageClosed, StorageUnavailable
from perdure.kernel.ids import RandomIds, ulid
from perdure.kernel.lifecycle import CONNECTION, STATES
from perdure.memory.records import NewMemoryEvent

SECRET = SecretKey("a-key-of-some-length")
Steps = list[tuple[str, str, str]]


def new_event(number: int = 0) -> NewMemoryEvent:
    return NewMemoryEvent(event_id=ulid(T0 + number, RandomIds()), session_id="s", text=f"event {number}")


def state_of(memory: GrpcMemory) -> str:
    return memory.state


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(connection, "LONGEST_PAUSE", 0.05)


@asynccontextmanager
async def client(address: str, **options: Any) -> AsyncIterator[tuple[GrpcMemory, Steps]]:
    steps: Steps = []
    options.setdefault("patience", 10.0)
    async with GrpcMemory(address, on_transition=lambda *step: steps.append(step), **options) as memory:
        yield memory, steps
    for before, event, after in steps:
        assert CONNECTION.step(before, event) == after


class Behaviour:
    """A gRPC server that answers each call of memory as configured."""

    def __init__(self, *codes: grpc.StatusCode | None, hangs: int = 0) -> None:
        self.codes = list(codes)
        self.hangs = hangs
        self.calls = 0

    async def answer(self, request: bytes, context: Any) -> bytes:
        self.calls += 1
        if self.hangs:
            self.hangs -= 1
            await asyncio.Event().wait()
        code = self.codes.pop(0) if self.codes else None
        if code is not None:
            await context.abort(code, "as it was told")
        return b""


@asynccontextmanager
async def behaving(behaviour: Behaviour, port: int = 0) -> AsyncIterator[str]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    methods = {"IngestEvent": grpc.unary_unary_rpc_method_handler(behaviour.answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("memory.MemoryService", methods),))
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{bound}"
    finally:
        await server.stop(None)


async def test_a_request_connects_and_goes_through_the_chart() -> None:
    async with InMemoryLightningStore() as store, serving(store) as served:
        async with client(served.address) as (memory, steps):
            assert state_of(memory) == "disconnected"
            assert (await memory.ingest(new_event())).created
            assert memory.state == "connected"
            assert steps == [
                ("disconnected", "connect", "connecting"),
                ("connecting", "established", "connected"),
                ("connected", "request started", "streaming"),
                ("streaming", "last response or error", "connected"),
            ]
            assert await memory.health() == "SERVING"
        assert state_of(memory) == "disconnected"
        with pytest.raises(StorageClosed):
            await memory.ingest(new_event())


async def test_a_refusal_leaves_the_connection_as_it_is() -> None:
    async with InMemoryLightningStore() as store, serving(store, api_key=SECRET) as served:
        async with client(served.address) as (memory, steps):
            with pytest.raises(Unauthorized):
                await memory.ingest(new_event())
            assert steps[-1] == ("streaming", "last response or error", "connected")
        async with client(served.address, token=str(SECRET)) as (memory, _):
            bad = new_event()
            bad.event_id = "no ulid"
            with pytest.raises(InvalidInput, match="ULID"):
                await memory.ingest(bad)
            with pytest.raises(InvalidInput, match="cannot be sent"):
                await memory.ingest(NewMemoryEvent(event_id="x", session_id="s", text="\ud800"))


async def test_a_name_that_does_not_resolve(quick: None) -> None:
    async with client("nobody.invalid:50051") as (memory, steps):
        with pytest.raises(DnsFailure) as caught:
            await memory.connect()
        assert "back-off" in caught.value.hint
        assert [after for _, _, after in steps] == ["connecting", "conn_failed", "disconnected"]


async def test_nobody_listens(quick: None) -> None:
    async with client(f"127.0.0.1:{free_port()}", patience=0.2) as (memory, steps):
        with pytest.raises(ConnectionFailed) as caught:
            await memory.ingest(new_event())
        assert "server is running" in caught.value.hint
        tries = [step for step in steps if step[1] == "connect"]
        assert len(tries) > 1, "it is tried again, with back-off"


async def test_a_server_that_does_not_accept(quick: None) -> None:
    """It listens, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with client(f"127.0.0.1:{silent.getsockname()[1]}", connect_timeout=0.1) as (memory, steps):
            with pytest.raises(ConnectTimeout) as caught:
                await memory.connect()
            assert "network" in caught.value.hint
            assert steps[-2] == ("connecting", "transport error", "conn_failed")


async def test_tls_where_there_is_none_is_not_retried(quick: None) -> None:
    async with behaving(Behaviour()) as address, client(address, tls=ClientTls()) as (memory, steps):
        with pytest.raises(TlsFailure) as caught:
            await memory.ingest(new_event())
        assert "certificates" in caught.value.hint
        assert len(steps) == 3


async def test_a_server_that_goes_away_and_comes_back(quick: None) -> None:
    port = free_port()
    async with client(f"127.0.0.1:{port}") as (memory, steps):
        async with behaving(Behaviour(), port):
            await memory.ingest(new_event())
        again = asyncio.create_task(memory.ingest(new_event()))
        await until(lambda: ("connecting", "transport error", "conn_failed") in steps)
        assert ("streaming", "server unavailable", "disconnected") in steps
        async with behaving(Behaviour(), port):
            await again
        assert memory.state == "connected"


async def test_a_server_that_stays_away_is_told_as_unavailable(quick: None) -> None:
    port = free_port()
    async with client(f"127.0.0.1:{port}", patience=0.0) as (memory, _):
        async with behaving(Behaviour(), port):
            await memory.connect()
        with pytest.raises(ServerUnavailable) as caught:
            await memory.ingest(new_event())
        assert "reconnects" in caught.value.hint


async def test_a_request_that_is_late_is_retried_on_the_same_connection(quick: None) -> None:
    behaviour = Behaviour(hangs=1)
    async with behaving(behaviour) as address, client(address, deadline=0.1) as (memory, steps):
        await memory.ingest(new_event())
        assert behaviour.calls == 2
        assert [step for step in steps if step[1] == "connect"] == [("disconnected", "connect", "connecting")]


async def test_requests_that_are_always_late_end_with_a_hint(quick: None) -> None:
    late = {"deadline": 0.05, "patience": 0.3}
    async with behaving(Behaviour(hangs=99)) as address, client(address, **late) as (memory, steps):
        with pytest.raises(CallTimeout) as caught:
            await memory.ingest(new_event())
        assert "deadline" in caught.value.hint
        assert ("streaming", "server unavailable", "disconnected") in steps, "after two in a row"


async def test_a_cancelled_request_and_other_codes(quick: None) -> None:
    codes = (grpc.StatusCode.CANCELLED, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ABORTED)
    async with behaving(Behaviour(*codes)) as address, client(address) as (memory, _):
        with pytest.raises(CallCancelled) as caught:
            await memory.ingest(new_event())
        assert "cancelled" in caught.value.hint
        with pytest.raises(InvalidInput, match="as it was told"):
            await memory.ingest(new_event())
        with pytest.raises(PerdureError, match="ABORTED"):
            await memory.ingest(new_event())
        assert memory.state == "connected"


async def test_trouble_with_the_database_is_waited_out(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    async with InMemoryLightningStore() as store, serving(store) as served:
        ingest, failures = served.app.services.memory.__class__.ingest, 2

        async def troubled(self: Any, event: NewMemoryEvent) -> Any:
            nonlocal failures
            if failures:
                failures -= 1
                raise StorageUnavailable("gone for a moment")
            return await ingest(self, event)

        monkeypatch.setattr("perdure.memory.service.Memory.ingest", troubled)
        async with client(served.address) as (memory, steps):
            assert (await memory.ingest(new_event())).created
            assert [step for step in steps if step[1] == "connect"] == steps[:1]


async def test_cancelling_a_caller_leaves_the_connection_usable(quick: None) -> None:
    behaviour = Behaviour(hangs=1)
    async with behaving(behaviour) as address, client(address) as (memory, _):
        waiting = asyncio.create_task(memory.ingest(new_event()))
        await until(lambda: behaviour.calls == 1)
        assert state_of(memory) == "streaming"
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert memory.state == "connected"
        await memory.ingest(new_event())


# --- streams of events ------------------------------------------------------------------------------------


async def batches(*sizes: int) -> AsyncIterator[Sequence[NewMemoryEvent]]:
    for place, size in enumerate(sizes):
        yield [new_event(place * 1000 + number) for number in range(size)]


async def test_a_stream_gives_what_became_of_each_batch() -> None:
    async with InMemoryLightningStore() as store, serving(store) as served:
        async with client(served.address) as (memory, _):
            found = [answers async for answers in memory.stream(batches(3, 0, 2, *[1] * 30))]
        assert [len(answers) for answers in found] == [3, 0, 2, *[1] * 30]
        assert all(answer.created for answers in found for answer in answers)


async def test_a_stream_goes_on_after_a_lost_connection(quick: None) -> None:
    """Unacknowledged events are sent again; each event is stored once."""
    port = free_port()
    go_on = asyncio.Event()

    async def source() -> AsyncIterator[Sequence[NewMemoryEvent]]:
        yield [new_event(1)]
        yield [new_event(2)]
        await go_on.wait()
        yield [new_event(3)]

    async with InMemoryLightningStore() as store, client(f"127.0.0.1:{port}") as (memory, steps):
        answers = memory.stream(source())
        async with serving(store, port=port):
            assert len(await anext(answers)) == 1
            assert len(await anext(answers)) == 1
        go_on.set()
        async with serving(store, port=port) as served:
            assert len(await anext(answers)) == 1
            assert [each async for each in answers] == []
            page = await served.app.services.memory.get_events()
            assert [event.text for event in page.items] == ["event 1", "event 2", "event 3"]
        assert ("connecting", "established", "connected") in steps[2:]


async def test_a_stream_ends_with_the_error_of_its_source_or_of_a_batch() -> None:
    async def broken() -> AsyncIterator[Sequence[NewMemoryEvent]]:
        yield [new_event()]
        raise KeyError("of the source")

    async def bad() -> AsyncIterator[Sequence[NewMemoryEvent]]:
        yield [NewMemoryEvent(event_id="no ulid", session_id="s")]

    async with InMemoryLightningStore() as store, serving(store) as served, client(served.address) as found:
        memory, _ = found
        answers = memory.stream(broken())
        assert len(await anext(answers)) == 1
        with pytest.raises(KeyError, match="of the source"):
            await anext(answers)
        with pytest.raises(InvalidInput, match="ULID"):
            await anext(memory.stream(bad()))


# --- pure -------------------------------------------------------------------------------------------------


def test_the_chart_is_that_of_the_seed() -> None:
    assert STATES == ("disconnected", "connecting", "connected", "streaming", "conn_failed")
    assert CONNECTION.step("conn_failed", "connection given up") == "disconnected"
    for state in STATES:
        assert CONNECTION.step(state, "closed") == "disconnected"
    assert not CONNECTION.moves("disconnected", "request started")


@pytest.mark.parametrize(
    ("detail", "kind"),
    [
        ("DNS resolution failed for x", DnsFailure),
        ("failed to connect; last error: Ssl handshake failed: CERTIFICATE_VERIFY_FAILED", TlsFailure),
        ("Socket closed: connection timed out", ConnectTimeout),
        ("Connection refused", ConnectionFailed),
    ],
)
def test_why_a_connection_failed(detail: str, kind: type[ConnectionFailed]) -> None:
    assert type(connection_failure(detail)) is kind


@pytest.mark.parametrize("address", ["localhost", "http://x", ":50051", "host:port", ""])
def test_addresses_are_checked(address: str) -> None:
    with pytest.raises(InvalidInput, match="HOST:PORT"):
        connection.GrpcConnection(address)
