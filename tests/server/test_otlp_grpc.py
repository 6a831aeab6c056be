"""OTLP over gRPC: the real exporter, callers, health, reflection, and all refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from tests.access.support import access_of
from tests.server.otlp_support import (
    ENGINES,
    Batch,
    Home,
    begun,
    deep_batch,
    opened,
    recording,
    spans_of,
)

from perdure import InMemoryLightningStore, LightningStore, Span
from perdure.kernel.config import SecretKey, Settings
from perdure.kernel.errors import StartRefused
from perdure.runtime.app import App, StoreApp, build_app
from perdure.server.grpc import server as grpc_server
from perdure.server.grpc.otlp import OTHER_SERVICES, TRACE_SERVICE
from perdure.server.grpc.server import GrpcServer

SECRET = SecretKey("a-key-of-some-length")
EXPORT = f"/{TRACE_SERVICE}/Export"


class ServerProtocol:
    """A server, and a channel to it."""

    def __init__(self, app: StoreApp, server: GrpcServer, channel: Any) -> None:
        self.app = app
        self.store = app.store
        self.channel = channel
        self.address = f"127.0.0.1:{server.port}"

    async def send(self, data: bytes, compression: Any = None, **metadata: str) -> tuple[int, str]:
        """Export, and return the number of rejected spans and the reason."""
        pairs = [(name.replace("_", "-"), value) for name, value in metadata.items()]
        call = self.channel.unary_unary(EXPORT)
        answer = await call(data, metadata=pairs, compression=compression, wait_for_ready=True)
        said = ExportTraceServiceResponse.FromString(answer).partial_success
        return said.rejected_spans, said.error_message

    async def refused(self, data: bytes, **metadata: str) -> grpc.StatusCode:
        """Export a request that is refused, and return the code."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.send(data, **metadata)
        return caught.value.code()


@asynccontextmanager
async def serving(store: LightningStore, **settings: Any) -> AsyncIterator[ServerProtocol]:
    app = build_app(store, Settings(**settings))
    server = GrpcServer(app, port=0)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            yield ServerProtocol(app, server, channel)
    finally:
        await server.stop()


@pytest_asyncio.fixture(params=ENGINES)
async def door(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ServerProtocol]:
    """Start a server on each engine."""
    async with opened(request.param, request, tmp_path) as store, serving(store) as door:
        yield door


@pytest_asyncio.fixture
async def closed() -> AsyncIterator[ServerProtocol]:
    """Start a server that requires a key."""
    async with InMemoryLightningStore() as store, serving(store, api_key=SECRET) as door:
        yield door


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_everything_of_a_span_arrives(door: ServerProtocol, compression: grpc.Compression) -> None:
    home = await begun(door.store)
    exporter = OTLPSpanExporter(endpoint=door.address, insecure=True, compression=compression)
    with recording(exporter, home.attributes) as recorder:
        made = await asyncio.to_thread(recorder.rich_span)
    (found,) = await spans_of(door.store, home)
    wanted = Span.from_opentelemetry(made, *home, sequence_id=1)
    assert found.model_extra == wanted.model_extra
    for name in ("name", "trace_id", "span_id", "parent_id", "attributes", "events", "status", "resource"):
        assert getattr(found, name) == getattr(wanted, name)


async def test_a_batch_sent_twice_is_stored_once(door: ServerProtocol) -> None:
    home = await begun(door.store)
    batch = Batch(home)
    for _ in range(512):
        batch.add()
    assert await door.send(batch.bytes()) == (0, "")
    assert await door.send(batch.bytes(), grpc.Compression.Gzip) == (0, "")
    assert [span.sequence_id for span in await spans_of(door.store, home)] == list(range(1, 513))


async def test_what_cannot_be_stored_is_counted(door: ServerProtocol) -> None:
    home = await begun(door.store)
    batch = Batch(home)
    batch.add("good")
    batch.add("lost", rollout_id="ro-nobody")
    rejected, message = await door.send(batch.bytes())
    assert (rejected, "ro-nobody" in message) == (1, True)
    assert [span.name for span in await spans_of(door.store, home)] == ["good"]


async def test_callers_show_their_key(closed: ServerProtocol) -> None:
    assert await closed.refused(b"") is grpc.StatusCode.UNAUTHENTICATED
    assert await closed.refused(b"", authorization="Bearer wrong") is grpc.StatusCode.UNAUTHENTICATED
    assert await closed.send(b"", authorization=f"Bearer {SECRET}") == (0, "")
    assert await closed.send(b"", x_api_key=SECRET) == (0, "")


async def test_callers_stay_in_their_namespace(closed: ServerProtocol) -> None:
    theirs = closed.store.in_namespace("theirs")
    home = await begun(theirs)
    batch = Batch(home)
    batch.add()
    _, secret = await access_of(closed.app).create_token("w", scopes=("worker",), actor="test")
    _, reader = await access_of(closed.app).create_token("r", scopes=("read",), actor="test")
    data = batch.bytes()
    assert (await closed.send(data, authorization=f"Bearer {secret}"))[0] == 1
    assert await closed.refused(data, x_api_key=secret, x_perdure_namespace="theirs") is (
        grpc.StatusCode.PERMISSION_DENIED
    )
    assert await closed.refused(data, x_api_key=reader) is grpc.StatusCode.PERMISSION_DENIED
    assert (await closed.send(data, x_api_key=SECRET, x_perdure_namespace="theirs"))[0] == 0
    assert len(await spans_of(theirs, home)) == 1


async def test_the_exporter_brings_its_key_along(closed: ServerProtocol) -> None:
    home = await begun(closed.store)
    exporter = OTLPSpanExporter(endpoint=closed.address, insecure=True, headers={"x-api-key": SECRET})
    with recording(exporter, home.attributes) as recorder:
        await asyncio.to_thread(recorder.plain_span)
    assert len(await spans_of(closed.store, home)) == 1


async def test_what_cannot_be_read_is_the_callers_error(door: ServerProtocol) -> None:
    for data in (b"\xff\xff", b"\x0a\x05abc", deep_batch(100), deep_batch(5_000)):
        assert await door.refused(data) is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await door.send(b"\xff")
    trailing = dict(caught.value.trailing_metadata() or ())
    details = trailing["grpc-status-details-bin"]
    assert isinstance(details, bytes)
    assert Status.FromString(details).code == grpc.StatusCode.INVALID_ARGUMENT.value[0]


async def test_too_large_is_refused(door: ServerProtocol) -> None:
    assert await door.refused(bytes(17 << 20)) is grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await door.send(bytes(40 << 20), grpc.Compression.Gzip)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await door.send(b"") == (0, "")


async def test_health_answers_anybody(closed: ServerProtocol) -> None:
    stub = health_pb2_grpc.HealthStub(closed.channel)
    for name in ("", TRACE_SERVICE):
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=name), wait_for_ready=True)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_reflection_answers_callers(closed: ServerProtocol) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(closed.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    call = stub.ServerReflectionInfo(iter([request]), metadata=[("x-api-key", SECRET)], wait_for_ready=True)
    names = [service.name async for answer in call for service in answer.list_services_response.service]
    assert TRACE_SERVICE in names
    refused = stub.ServerReflectionInfo(iter([request]))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        _ = [answer async for answer in refused]
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_other_services_are_not_there(door: ServerProtocol) -> None:
    call = door.channel.unary_unary("/opentelemetry.proto.collector.logs.v1.LogsService/Export")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"", wait_for_ready=True)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_other_signals_are_discarded_where_the_settings_say_so() -> None:
    async with (
        InMemoryLightningStore() as store,
        serving(store, discard_other_signals=True, api_key=SECRET) as door,
    ):
        for service in OTHER_SERVICES:
            call = door.channel.unary_unary(f"/{service}/Export")
            assert await call(b"", metadata=[("x-api-key", str(SECRET))], wait_for_ready=True) == b""
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"", wait_for_ready=True)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_traces_are_kept_here_too() -> None:
    async with InMemoryLightningStore() as store, serving(store, keep_traces=True) as door:
        batch = Batch()
        batch.add("root").parent_span_id = b""
        assert await door.send(batch.bytes()) == (0, "")
        (ended,) = await store.wait_for_rollouts(rollout_ids=["ro-" + batch.trace_id.hex()], timeout=0)
        assert ended.status == "succeeded"


async def test_what_the_storage_cannot_do_may_be_repeated() -> None:
    store = InMemoryLightningStore()
    async with serving(store) as door:
        batch = Batch(Home("ro-1", "at-1"))
        batch.add()
        await store.close()
        assert await door.refused(batch.bytes()) is grpc.StatusCode.UNAVAILABLE


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with InMemoryLightningStore() as store, serving(store, head_timeout=0.2) as door:
        reader, writer = await connect(door)
        async with asyncio.timeout(20):
            await reader.read()
        writer.close()


async def test_a_call_that_sends_nothing_is_ended() -> None:
    async with InMemoryLightningStore() as store, serving(store, body_timeout=0.2) as door:
        call = door.channel.stream_unary(EXPORT)()
        async with asyncio.timeout(20):
            assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "body_timeout" in await call.details()
        empty = door.channel.stream_unary(EXPORT)()
        await empty.done_writing()
        assert await empty.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_connections_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "MAX_CONNECTIONS", 3)
    async with InMemoryLightningStore() as store, serving(store) as door:
        assert await door.send(b"") == (0, "")
        opened = [await connect(door) for _ in range(8)]
        refused = [asyncio.ensure_future(reader.read()) for reader, _ in opened]
        async with asyncio.timeout(20):
            while sum(map(asyncio.Future.done, refused)) < 6:
                await asyncio.wait(
                    [each for each in refused if not each.done()], return_when=asyncio.FIRST_COMPLETED
                )
        assert await door.send(b"") == (0, "")
        for _, writer in opened:
            writer.transport.abort()
        await asyncio.gather(*refused, return_exceptions=True)


async def connect(door: ServerProtocol) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = door.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def test_it_does_not_open_the_door_to_everyone() -> None:
    async with InMemoryLightningStore() as store:
        with pytest.raises(StartRefused):
            await GrpcServer(App(store, Settings(host="0.0.0.0")), port=0).start()


async def test_several_servers_share_a_port() -> None:
    async with InMemoryLightningStore() as store:
        app = App(store)
        first = GrpcServer(app, port=0, shared=True)
        await first.start()
        second = GrpcServer(app, port=first.port, shared=True)
        await second.start()
        assert second.port == first.port
        await second.stop()
        await first.stop()


async def test_a_port_that_is_taken() -> None:
    async with InMemoryLightningStore() as store, serving(store) as door:
        taken = GrpcServer(door.app, port=int(door.address.rpartition(":")[2]))
        with pytest.raises(StartRefused, match="cannot listen"):
            await taken.start()
        await taken.stop()
