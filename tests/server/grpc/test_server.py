"""Health and reflection, which stock clients use, and malformed messages."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterable
from functools import partial
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tests.server.grpc.support import Served, event, free_port, serving, status_of

from perdure import InMemoryLightningStore
from perdure.kernel.config import SecretKey, Settings
from perdure.kernel.errors import StartRefused
from perdure.memory import messages as m
from perdure.memory.service import Memory
from perdure.runtime.app import App
from perdure.server.grpc import memory
from perdure.server.grpc.otlp import TRACE_SERVICE
from perdure.server.grpc.server import HEALTH_SERVICE, GrpcServer

SECRET = SecretKey("a-key-of-some-length")
Status = health_pb2.HealthCheckResponse
BAD = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)


async def test_a_stock_health_client_checks_and_watches() -> None:
    """Probes have no key. A watch sees the end before the server is gone."""
    async with InMemoryLightningStore() as store, serving(store, api_key=SECRET) as closed:
        stub = health_pb2_grpc.HealthStub(closed.channel)
        for service in ("", TRACE_SERVICE, m.SERVICE):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == Status.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(health_pb2.HealthCheckRequest(service="nobody"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=m.SERVICE))
        assert (await watch.read()).status == Status.SERVING
        async with asyncio.timeout(5):
            await closed.server.stop()
            assert (await watch.read()).status == Status.NOT_SERVING
            assert await watch.read() is grpc.aio.EOF


async def test_a_stopping_server_answers_what_is_under_way_and_refuses_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    ingest = Memory.ingest

    async def slow(self: Memory, *given: Any, **options: Any) -> Any:
        begun.set()
        await go_on.wait()
        return await ingest(self, *given, **options)

    monkeypatch.setattr(Memory, "ingest", slow)
    async with InMemoryLightningStore() as store, serving(store) as served, asyncio.timeout(20):
        under_way = asyncio.ensure_future(served.stub().call("IngestEvent", event=event()))
        await begun.wait()
        stop = asyncio.ensure_future(served.server.stop())
        await asyncio.sleep(0)
        with pytest.raises(grpc.aio.AioRpcError, match="the server is stopping") as caught:
            await served.stub().call("IngestEvent", event=event(1))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert not stop.done()
        go_on.set()
        assert (await under_way).created
        await stop


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_names_the_services_and_describes_them(version: str) -> None:
    async with InMemoryLightningStore() as store, serving(store, api_key=SECRET) as closed:
        invoke = closed.channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        asked = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=m.SERVICE),
        ]
        key = [("authorization", f"Bearer {SECRET}")]
        services, described = [answer async for answer in invoke(iter(asked), metadata=key)]
        names = {each.name for each in services.list_services_response.service}
        assert {TRACE_SERVICE, m.SERVICE, HEALTH_SERVICE} < names
        assert m.FILE.SerializeToString() in described.file_descriptor_response.file_descriptor_proto
        assert (await status_of(lambda: invoke(asked)))[0] is grpc.StatusCode.UNAUTHENTICATED


async def test_a_client_that_knows_nothing_can_call_by_reflection(served: Served) -> None:
    def call() -> bool:
        with grpc.insecure_channel(served.address) as channel:
            pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
            service = pool.FindServiceByName(m.SERVICE)
            method = service.FindMethodByName("IngestEvent")
            request = GetMessageClass(method.input_type)()
            request.event.ParseFromString(event().SerializeToString())
            invoke = channel.unary_unary(
                f"/{service.full_name}/{method.name}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            return bool(invoke(request, timeout=10).created)

    assert await asyncio.to_thread(call)


def _mutations(seed: bytes, chance: random.Random) -> Iterable[bytes]:
    yield b""
    yield chance.randbytes(200)
    yield b"\xff" * 50
    yield seed[: len(seed) // 2]
    for _ in range(6):
        data = bytearray(seed or b"\x0a\x00")
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        yield bytes(data)
    # Nested groups, too large lengths, strings that are not UTF-8, and only numbers.
    yield b"\x0b" * 500
    yield b"\x0a\xff\xff\xff\xff\x0f" + b"x"
    yield b"\x0a\x06\x0a\x04\xff\xfe\xfd\xfc"
    yield b"\x08" + b"\xff" * 9 + b"\x01"


async def test_no_bytes_give_an_internal_error(served: Served) -> None:
    chance = random.Random(7)
    seeds = {
        "IngestEvent": m.IngestEventRequest(event=m.Event.FromString(event().SerializeToString())),
        "IngestEvents": m.IngestEventsRequest(events=[m.Event.FromString(event().SerializeToString())]),
        "StreamEvents": m.IngestEventsRequest(events=[m.Event.FromString(event().SerializeToString())]),
        "TeleportSearch": m.TeleportSearchRequest(query='a -b "c', doc_type=2, limit=5, agent_filter="x"),
        "HybridSearch": m.HybridSearchRequest(query="a*", top_k=5, mode=3, time_filter={"start_ms": 5}),
        "BrowseToc": m.BrowseTocRequest(parent_id="toc:year:2024", limit=3, continuation_token="1:a"),
        "ExpandGrip": m.ExpandGripRequest(grip_id="grip:1:x", events_before=-1, events_after=2**31 - 1),
        "SearchNode": m.SearchNodeRequest(node_id="toc:year:2024", query="abc", fields=[1, 2], limit=-1),
        "SearchChildren": m.SearchChildrenRequest(query="abc def", child_level=3, token_budget=-7),
        "PauseJob": m.PauseJobRequest(job_name="nobody"),
        "GetNode": m.GetNodeRequest(node_id="toc:day:2024-01-15"),
        "GetEvents": m.GetEventsRequest(from_timestamp_ms=1, to_timestamp_ms=2, limit=5),
    }
    services = dict.fromkeys((*memory.METHODS, "StreamEvents"), m.SERVICE)
    methods = {**services, "Export": TRACE_SERVICE}
    for name, service in methods.items():
        seed = seeds[name].SerializeToString() if name in seeds else b""
        for data in _mutations(seed, chance):
            invoke = served.channel.stream_stream(f"/{service}/{name}")
            code, message = await status_of(partial(invoke, [data], timeout=20))
            assert code not in BAD, (name, data, message)
            assert "Traceback" not in message


async def test_what_breaks_inside_is_told_without_its_words(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*given: Any, **options: Any) -> Any:
        raise RuntimeError("secret words of the inside")

    monkeypatch.setattr("perdure.memory.service.Memory.ingest", broken)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.stub().call("IngestEvent", event=event())
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in str(caught.value.details()) + str(caught.value.trailing_metadata())


async def test_further_ports_serve_the_same_if_they_are_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free, busy = free_port(), taken.getsockname()[1]
        await _further(free, busy)


async def _further(free: int, busy: int) -> None:
    async with InMemoryLightningStore() as store:
        server = GrpcServer(App(store, Settings()), port=0, further=(busy, free))
        await server.start()
        try:
            assert server.ports[1:] == (free,)
            for port in server.ports:
                async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                    stub = health_pb2_grpc.HealthStub(channel)
                    assert (await stub.Check(health_pb2.HealthCheckRequest())).status == Status.SERVING
        finally:
            await server.stop()


async def test_a_port_in_use_refuses_the_start(served: Served) -> None:
    other = GrpcServer(served.app, port=served.server.port)
    with pytest.raises(StartRefused, match="cannot listen"):
        await other.start()
