"""Mutated OTLP requests over HTTP and gRPC: each is answered, none is a server error."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from tests.server.otlp_support import Batch, Home, begun, recording

from perdure import InMemoryLightningStore
from perdure.kernel.config import Settings
from perdure.runtime.app import App
from perdure.server.grpc.otlp import TRACE_SERVICE
from perdure.server.grpc.server import GrpcServer
from perdure.server.http.server import HttpServer, make_application
from perdure.server.otlp.routes import ROUTES

EXAMPLES = 50
"""Examples of each kind; `./dev chaos` runs more."""
FAULTS = {
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DATA_LOSS,
}


class Doors(NamedTuple):
    """A server with both protocols, and the rollout of its spans."""

    store: InMemoryLightningStore
    home: Home
    http: http.client.HTTPConnection
    export: Any


@contextmanager
def opened() -> Iterator[Doors]:
    store = InMemoryLightningStore()
    app = App(store, Settings(keep_traces=True))
    rpc = GrpcServer(app, port=0)
    server = HttpServer(make_application(app, ROUTES, [rpc]))
    port = server.start()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    channel = grpc.insecure_channel(f"127.0.0.1:{rpc.port}")
    home = asyncio.run(begun(store))
    yield Doors(store, home, connection, channel.unary_unary(f"/{TRACE_SERVICE}/Export"))
    channel.close()
    connection.close()
    server.stop()
    asyncio.run(store.close())


@pytest.fixture(scope="module")
def doors() -> Iterator[Doors]:
    with opened() as both:
        yield both


def seeds(home: Home) -> list[bytes]:
    """Return valid requests."""
    with recording(resource=home.attributes) as recorder:
        rich = encode_spans([recorder.rich_span(), recorder.plain_span()]).SerializeToString()
    batch = Batch()
    batch.add("root").parent_span_id = b""
    batch.add("given", rollout_id=home.rollout_id, attempt_id=home.attempt_id, span_sequence_id="3")
    return [rich, batch.bytes()]


Mutation = tuple[str, float, bytes]
mutations = st.lists(
    st.tuples(
        st.sampled_from(["replace", "insert", "delete", "repeat"]), st.floats(0, 1), st.binary(max_size=6)
    ),
    min_size=1,
    max_size=8,
)


def mutated(data: bytes, changes: list[Mutation]) -> bytes:
    for how, where, piece in changes:
        at = int(where * len(data))
        end = at + max(len(piece), 1)
        if how == "replace":
            data = data[:at] + piece + data[at + len(piece) :]
        elif how == "insert":
            data = data[:at] + piece + data[at:]
        elif how == "delete":
            data = data[:at] + data[end:]
        else:
            data = data[:end] + data[at:]
    return data


def post(doors: Doors, data: bytes, form: str, **headers: str) -> tuple[int, bytes]:
    doors.http.request("POST", "/v1/traces", data, {"Content-Type": form, **headers})
    answer = doors.http.getresponse()
    return answer.status, answer.read()


def check_alive(doors: Doors) -> None:
    """Check that a valid request is still accepted, and all stored data is readable."""
    batch = Batch(doors.home)
    batch.add()
    assert post(doors, batch.bytes(), "application/x-protobuf") == (200, b"")
    assert doors.export(batch.bytes()) == b""
    everything = asyncio.run(doors.store.query_rollouts())
    for rollout in everything.items:
        asyncio.run(doors.store.query_spans(rollout.rollout_id))


def ask_mutated(doors: Doors, which: int, changes: list[Mutation]) -> None:
    data = mutated(seeds(doors.home)[which], changes)
    status, _ = post(doors, data, "application/x-protobuf")
    assert status < 500
    try:
        doors.export(data)
    except grpc.RpcError as error:
        assert error.code() not in FAULTS  # noqa: PT017
    check_alive(doors)


def ask_noise(doors: Doors, data: bytes) -> None:
    assert post(doors, data, "application/x-protobuf")[0] < 500
    assert post(doors, data, "application/json")[0] < 500
    assert post(doors, data, "application/x-protobuf", **{"Content-Encoding": "gzip"})[0] < 500
    try:
        doors.export(data)
    except grpc.RpcError as error:
        assert error.code() not in FAULTS  # noqa: PT017


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
)
NAMES = (
    "resourceSpans resource scopeSpans scope spans attributes key value stringValue intValue doubleValue"
    " bytesValue arrayValue kvlistValue values traceId spanId parentSpanId kind status code events links"
    " flags timeUnixNano startTimeUnixNano"
)
names = st.sampled_from(NAMES.split())
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=20,
)
JSON_SPAN = {"traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331", "name": "n"}


def ask_json(doors: Doors, span: dict[str, Any], resource: Any) -> None:
    group = {"resource": resource, "scopeSpans": [{"spans": [{**JSON_SPAN, **span}]}]}
    for body in ({"resourceSpans": [group]}, span, resource):
        status, answer = post(doors, json.dumps(body).encode(), "application/json")
        assert status in (200, 400)
        json.loads(answer)
    check_alive(doors)


def search(doors: Doors, examples: int, ask: Callable[..., None], **parts: st.SearchStrategy[Any]) -> None:
    """Send this many examples of the parts of a request."""

    @settings(max_examples=examples)
    @given(st.fixed_dictionaries(parts))
    def ask_with(request: dict[str, Any]) -> None:
        ask(doors, **request)

    ask_with()


def mutate(doors: Doors, examples: int) -> None:
    search(doors, examples, ask_mutated, which=st.integers(0, 1), changes=mutations)


def make_noise(doors: Doors, examples: int) -> None:
    search(doors, examples, ask_noise, data=st.binary(max_size=200))


def shape(doors: Doors, examples: int) -> None:
    search(doors, examples, ask_json, span=st.dictionaries(names, trees, max_size=5), resource=trees)


def test_mutated_protobuf_at_both_doors(doors: Doors) -> None:
    mutate(doors, EXAMPLES)


def test_noise_at_both_doors(doors: Doors) -> None:
    make_noise(doors, EXAMPLES)


def test_json_of_any_shape(doors: Doors) -> None:
    shape(doors, EXAMPLES)


def run(examples: int) -> None:
    """Run the long form."""
    with opened() as doors:
        for each in (mutate, make_noise, shape):
            each(doors, examples)
