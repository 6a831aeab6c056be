"""The path of a request: gate, table, body, handler, answer; and the refusals of each."""

from __future__ import annotations

import asyncio
import base64
import gzip
import io
import logging
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from tests.access.support import access_of
from tests.kernel.support import until
from tests.server.support import Visitor, serving
from yarl import URL

from perdure import InMemoryLightningStore
from perdure.kernel.config import SecretKey
from perdure.kernel.errors import Conflict, InvalidInput, StartRefused, TooLarge
from perdure.runtime.app import App, is_loopback
from perdure.server.http.bodies import NATIVE, inflate
from perdure.server.http.openapi import document
from perdure.server.http.routes import Call, Route, RouteTable
from perdure.server.http.server import HttpServer, bind, make_application

SECRET = SecretKey("a-key-of-some-length")


class Order(msgspec.Struct):
    """A body."""

    name: str
    count: int = 1


class Search(msgspec.Struct):
    """A query."""

    limit: int = 10
    status_in: list[str] | None = None


async def echo(call: Call) -> Any:
    return {
        "path": call.path,
        "query": call.query,
        "body": call.body,
        "actor": call.caller.actor,
        "namespace": call.caller.namespace,
    }


async def raw(call: Call) -> Any:
    return {"size": len(call.body)}


async def broken(call: Call) -> Any:
    raise ZeroDivisionError("the inside of the inside")


async def conflict(call: Call) -> Any:
    raise Conflict("it is busy")


async def endless(call: Call) -> Any:
    call.app.metrics.claims.labels("begun").inc()
    try:
        await asyncio.Event().wait()
    finally:
        call.app.metrics.claims.labels("left").inc()


def route(method: str, path: str, handler: Any = echo, **options: Any) -> Route:
    return Route(
        **{"method": method, "path": path, "handler": handler, "protocol": NATIVE, "scope": "read"} | options
    )


ROUTES = (
    route("GET", "/open", scope=None),
    route("GET", "/things/{name}", query=Search),
    route("GET", "/things/latest", handler=lambda call: _latest()),
    route("POST", "/things", body=Order, scope="write", status=201, answer=Order),
    route("POST", "/things/{name}", body=Order, body_optional=True, scope="write"),
    route("POST", "/raw", handler=raw, body=bytes, max_body=2000),
    route("GET", "/broken", handler=broken),
    route("GET", "/conflict", handler=conflict),
    route("GET", "/endless", handler=endless, ends_with_caller=True),
    route("GET", "/endless-read", handler=endless),
)


async def _latest() -> Any:
    return {"latest": True}


@pytest_asyncio.fixture
async def store() -> AsyncIterator[InMemoryLightningStore]:
    async with InMemoryLightningStore() as opened:
        yield opened


@pytest_asyncio.fixture
async def visitor(store: InMemoryLightningStore) -> AsyncIterator[Visitor]:
    async with serving(store, ROUTES) as visitor:
        yield visitor


async def test_a_handler_gets_path_query_and_body(visitor: Visitor) -> None:
    answer = await visitor.get("/things/a%2Fb?limit=3&status_in=x&status_in=y&other=1")
    assert answer.status == 200
    assert answer.body["path"] == {"name": "a/b"}
    assert answer.body["query"] == {"limit": 3, "status_in": ["x", "y"]}
    answer = await visitor.post("/things", json={"name": "n", "unknown": 1})
    assert (answer.status, answer.body["body"]) == (201, {"name": "n", "count": 1})
    assert (await visitor.post("/things/n")).body["body"] is None
    assert (await visitor.post("/things/n", json=None)).body["body"] is None


async def test_a_literal_path_wins_over_a_parameter(visitor: Visitor) -> None:
    assert (await visitor.get("/things/latest")).body == {"latest": True}
    assert (await visitor.post("/things/latest")).body["path"] == {"name": "latest"}


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "code"),
    [
        ("GET", "/nothing", {}, 404, "unknown_route"),
        ("GET", "/things/", {}, 404, "unknown_route"),
        ("DELETE", "/things/n", {}, 405, "method_not_allowed"),
        ("GET", "/things/%ff", {}, 422, "invalid_input"),
        ("GET", "/things/" + "x" * 9000, {}, 422, "invalid_input"),
        ("GET", "/things/n?limit=many", {}, 422, "invalid_input"),
        ("POST", "/things", {"data": b"{"}, 422, "invalid_input"),
        ("POST", "/things", {"data": b'{"name": "\xff"}'}, 422, "invalid_input"),
        ("POST", "/things", {"json": {"name": 1}}, 422, "invalid_input"),
        ("POST", "/things", {"json": {}}, 422, "invalid_input"),
        ("POST", "/things", {"data": b"[" * 100_000}, 422, "invalid_input"),
        (
            "POST",
            "/things",
            {"data": b"x=1", "headers": {"Content-Type": "text/plain"}},
            415,
            "unsupported_media",
        ),
        ("POST", "/things", {"data": b"x", "headers": {"Content-Encoding": "br"}}, 415, "unsupported_media"),
        ("POST", "/things", {"data": b"x", "headers": {"Content-Encoding": "gzip"}}, 422, "invalid_input"),
        ("POST", "/things", {"data": "large"}, 413, "too_large"),
        ("POST", "/raw", {"data": b"x" * 2001}, 413, "too_large"),
        ("GET", "/open", {"headers": {"Host": "evil.example"}}, 403, "forbidden"),
        ("GET", "/conflict", {}, 409, "conflict"),
        ("GET", "/broken", {}, 500, "internal"),
        ("GET", "/things/n", {"headers": {"Authorization": "Bearer wrong"}}, 401, "unauthorized"),
        ("GET", "/things/n", {"headers": {"Authorization": "Digest x"}}, 401, "unauthorized"),
        ("GET", "/things/n", {"headers": {"Authorization": "Basic %%"}}, 401, "unauthorized"),
    ],
)
async def test_what_is_wrong_is_said_with_its_code(
    visitor: Visitor, method: str, path: str, options: dict[str, Any], status: int, code: str
) -> None:
    answer = await _exact(visitor, method, path, options)
    assert (answer[0], answer[1]["code"]) == (status, code), answer
    assert answer[1]["request_id"] == answer[2]["X-Request-ID"]
    assert answer[2]["Content-Type"] == "application/problem+json"
    assert "Traceback" not in str(answer[1])
    assert "inside of the inside" not in str(answer[1])
    assert (await visitor.get("/open")).status == 200


async def _exact(visitor: Visitor, method: str, path: str, options: dict[str, Any]) -> Any:
    url = URL(visitor.url + path, encoded=True)
    headers = {"Content-Type": "application/json"} if "data" in options else {}
    if options.get("data") == "large":
        options = {"data": io.BytesIO(b"x" * (5 << 20))}
    options = options | {"headers": headers | options.get("headers", {})}
    async with visitor.session.request(method, url, **options) as response:
        return response.status, await response.json(content_type=None), dict(response.headers)


async def test_an_error_says_where_in_the_body_it_is(visitor: Visitor) -> None:
    answer = await visitor.post("/things", json={"name": "n", "count": "many"})
    assert answer.body["location"] == ["body", "count"]
    assert (await visitor.post("/things", json={})).body["location"] == ["body", "name"]
    assert (await visitor.get("/things/n?limit=x")).body["location"] == ["query", "limit"]


async def test_an_unexpected_error_is_in_the_log_alone(
    visitor: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        answer = await visitor.get("/broken", headers={"X-Request-ID": "mine"})
    assert answer.body["detail"] == "internal error; request mine, see the server's log"
    assert answer.body["request_id"] == "mine"
    assert "mine" in caplog.text
    assert "ZeroDivisionError" in caplog.text


async def test_a_packed_body_is_unpacked_within_bounds(visitor: Visitor) -> None:
    packed = {"Content-Encoding": "gzip"}
    answer = await visitor.post("/raw", data=gzip.compress(b"x" * 5000), headers=packed)
    assert answer.body == {"size": 5000}
    bomb = gzip.compress(b"\0" * (1 << 20))
    assert (await visitor.post("/raw", data=bomb, headers=packed)).status == 413
    with pytest.raises(TooLarge):
        inflate(gzip.compress(b"\0" * (200 << 20), 1)[: 1 << 20], 16 << 20)
    with pytest.raises(InvalidInput, match="too early"):
        inflate(gzip.compress(b"hello")[:-4], 1000)


def test_a_bomb_is_not_held_in_memory() -> None:
    """A compressed body is not decompressed beyond its limit."""
    limit, whole = 2 << 20, 64 << 20
    bomb = gzip.compress(b"\0" * whole, 1)
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            inflate(bomb, limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * limit < whole


@pytest.mark.parametrize("path", ["/endless", "/endless-read"])
async def test_a_caller_who_hangs_up_ends_its_handler(visitor: Visitor, path: str) -> None:
    asked = asyncio.ensure_future(visitor.get(path))
    count = visitor.app.metrics.registry.get_sample_value
    await until(lambda: bool(count("perdure_claims_total", {"result": "begun"})))
    asked.cancel()
    await until(lambda: bool(count("perdure_claims_total", {"result": "left"})))
    with pytest.raises(asyncio.CancelledError):
        await asked


async def test_headers_keep_browsers_from_guessing(visitor: Visitor) -> None:
    headers = (await visitor.get("/open")).headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert "Server" not in headers
    assert "Access-Control-Allow-Origin" not in headers


# --- keys and tokens --------------------------------------------------------------------------------------


async def test_with_a_key_every_route_but_the_public_ones_asks_for_it(store: InMemoryLightningStore) -> None:
    async with serving(store, ROUTES, api_key=SECRET) as visitor:
        assert (await visitor.get("/open")).status == 200
        for path in ("/things/n", "/nothing", "/open/", "/open/x"):
            answer = await visitor.get(path)
            assert (answer.status, answer.body["code"]) == (401, "unauthorized")
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert (await visitor.post("/things", data=io.BytesIO(b"x" * (5 << 20)))).status == 401
        basic = base64.b64encode(f"team:{SECRET}".encode()).decode()
        for headers, namespace in (
            ({"Authorization": f"Bearer {SECRET}"}, "default"),
            ({"x-api-key": SECRET}, "default"),
            ({"x-api-key": SECRET, "X-Perdure-Namespace": "lab"}, "lab"),
            ({"Authorization": f"Basic {basic}"}, "team"),
        ):
            answer = await visitor.get("/things/n", headers=headers)
            assert (answer.status, answer.body["actor"], answer.body["namespace"]) == (200, "key", namespace)


async def test_a_token_reaches_its_scopes_and_namespaces_only(store: InMemoryLightningStore) -> None:
    async with serving(store, ROUTES) as visitor:
        token, secret = await access_of(visitor.app).create_token(
            "reader", scopes=("read",), namespaces=("lab", "team"), actor="test"
        )
        assert (await visitor.get("/things/n")).status == 401
        visitor.headers = {"Authorization": f"Bearer {secret}"}
        answer = await visitor.get("/things/n")
        assert (answer.body["actor"], answer.body["namespace"]) == (token.token_id, "lab")
        assert (await visitor.post("/things", json={"name": "n"})).status == 403
        chosen = {"X-Perdure-Namespace": "team"}
        assert (await visitor.get("/things/n", headers=chosen)).body["namespace"] == "team"
        assert (await visitor.get("/things/n", headers={"X-Perdure-Namespace": "other"})).status == 403
        await access_of(visitor.app).revoke_token(token.token_id, actor="test")
        assert (await visitor.get("/things/n")).status == 401


async def test_guessing_is_slowed_down(store: InMemoryLightningStore) -> None:
    async with serving(store, ROUTES, api_key=SECRET) as visitor:
        statuses = [
            (await visitor.get("/things/n", headers={"x-api-key": f"guess-{number}"})).status
            for number in range(80)
        ]
        assert statuses[0] == 401
        assert statuses[-1] == 429


async def test_a_rate_limit_holds_for_each_actor(store: InMemoryLightningStore) -> None:
    async with serving(store, ROUTES, rate_limit=0.001) as visitor:
        statuses = [(await visitor.get("/things/n")).status for _ in range(12)]
        assert statuses[:10] == [200] * 10
        assert statuses[-1] == 429


async def test_beyond_this_machine_a_key_is_needed(store: InMemoryLightningStore) -> None:
    with pytest.raises(StartRefused, match=r"PERDURE_API_KEY.*insecure_no_auth"):
        async with serving(store, ROUTES, host="0.0.0.0"):
            raise AssertionError
    async with serving(store, ROUTES, host="0.0.0.0", insecure_no_auth=True) as visitor:
        assert (await visitor.get("/things/n")).status == 200


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org")))


async def test_origins_are_named_or_refused(store: InMemoryLightningStore) -> None:
    async with serving(store, ROUTES, cors_allow_origins=("https://ui.example",)) as visitor:
        mine = await visitor.get("/open", headers={"Origin": "https://ui.example"})
        assert mine.headers["Access-Control-Allow-Origin"] == "https://ui.example"
        assert "Access-Control-Allow-Credentials" not in mine.headers
        other = await visitor.get("/open", headers={"Origin": "https://evil.example"})
        assert "Access-Control-Allow-Origin" not in other.headers


# --- the server -------------------------------------------------------------------------------------------


async def test_a_taken_port_is_said_at_once(store: InMemoryLightningStore) -> None:
    taken = bind("127.0.0.1", 0)
    try:
        server = HttpServer(make_application(App(store), ROUTES), port=taken.getsockname()[1])
        with pytest.raises(StartRefused, match="cannot listen"):
            server.start()
    finally:
        taken.close()


def test_no_route_stands_twice() -> None:
    with pytest.raises(ValueError, match="is twice in"):
        RouteTable((*ROUTES, route("GET", "/open")))


def test_the_document_is_derived_from_the_table() -> None:
    drawn = document(ROUTES)
    assert set(drawn["paths"]) == {route.path for route in ROUTES}
    posted = drawn["paths"]["/things"]["post"]
    assert posted["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/Order"
    }
    assert posted["security"] == [{"token": ["write"]}]
    assert "security" not in drawn["paths"]["/open"]["get"]
    assert {"401", "403", "422", "413"} <= set(posted["responses"])
