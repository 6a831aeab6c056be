"""Generated requests to every route of the document: no answer is a 5xx, and none shows the inside."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from unittest import SkipTest

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.core.result import Err
from tests.support.databases import Databases

from perdure import InMemoryLightningStore
from perdure.kernel.config import SecretKey, Settings
from perdure.runtime.app import App
from perdure.runtime.stores import open_store
from perdure.server.http.openapi import document
from perdure.server.http.routes import Route
from perdure.server.http.server import HttpServer
from perdure.server.table import ROUTES, build_application

ENDLESS = {
    "/api/v1/changes",
    "/api/v1/runs/stream",
    "/api/v1/runs/wait",
    "/api/v1/runs/{run_id}/wait",
    "/api/v1/threads/{thread_id}/stream",
    "/api/v1/work/claim",
    "/api/v1/work/controls",
    "/api/v1/work/requests/claim",
    "/threads/{thread_id}/stream/events",
}
"""What lasts for as long as it is asked to."""
INSIDE = re.compile(r"Traceback|site-packages|File \\?\"|sqlite3?\.|apsw|asyncpg|SELECT .+ FROM|INSERT INTO")
KEY = SecretKey("a-key-of-some-length")
# A token that a request makes ends the time in which callers need none.
CREDENTIALS = {"Authorization": f"Bearer {KEY}"}
EXAMPLES = 3
STRIDE = 8
BODIES = (b"", b"{", b"null", b"[]", b'"\\u0000"', b'{"a": {"b": [1e999]}}', b"[" * 500, b'{"\xff": 1}')
STEPS = ("x", "%00")

# Protobuf is generated and mutated in tests/server instead.
ASKED = tuple(route for route in ROUTES if route.path not in ENDLESS and "json" in route.body_form)
SCHEMA = schemathesis.openapi.from_dict(document(ASKED, open_to_all=True))
OPERATIONS = [result.ok() for result in SCHEMA.get_all_operations() if not isinstance(result, Err)]


@contextlib.contextmanager
def serving(*databases: str) -> Iterator[list[str]]:
    """Servers of an empty database in memory, and of these."""
    stores = [InMemoryLightningStore(), *map(open_store, databases)]
    servers = [HttpServer(build_application(App(store, Settings(api_key=KEY)))) for store in stores]
    for server in servers:
        server.start()
    yield [server.url for server in servers]
    for server, store in zip(servers, stores, strict=True):
        server.stop()
        asyncio.run(store.close())


@pytest.fixture(scope="module")
def addresses(shared_postgres_url: str, databases: Databases) -> Iterator[list[str]]:
    """A server on each engine: a request is made once and sent to both, since making it takes long.

    No other test shares their databases: some requests change what holds for all namespaces.
    """
    with serving(databases.emptied(shared_postgres_url)) as urls:
        yield urls


class Answer(NamedTuple):
    """What `check` looks at, of a client that costs less than `requests` with its thousands of requests."""

    status_code: int
    text: str
    headers: Mapping[str, str]


def ask_wrongly(route: Route, client: http.client.HTTPConnection, pairs: Iterable[tuple[bytes, str]]) -> None:
    for junk, step in pairs:
        path = re.sub(r"\{\w+(:\w+)?\}", step, route.path)
        headers = {"Content-Type": "application/json", **CREDENTIALS}
        client.request(route.method, f"{path}?limit=-1&offset=x&wait=%00", junk, headers)
        answer = client.getresponse()
        told = {name.lower(): value for name, value in answer.getheaders()}
        check(Answer(answer.status, answer.read().decode(errors="replace"), told))


def ask_all_wrongly(addresses: list[str], *, every: bool) -> None:
    """Every route, with bodies and paths that nobody means: with `every`, each body at each path."""
    some = [*((body, STEPS[0]) for body in BODIES), *((BODIES[1], step) for step in STEPS[1:])]
    pairs = list(itertools.product(BODIES, STEPS)) if every else some
    for address in addresses:
        client = http.client.HTTPConnection(address.removeprefix("http://"), timeout=20)
        with contextlib.closing(client):
            for route in ASKED:
                without = [(b"", step) for step in STEPS]
                try:
                    ask_wrongly(route, client, without if route.body is None else pairs)
                except AssertionError as error:
                    raise AssertionError(f"{route.method} {route.path}") from error


def test_no_junk_breaks_the_server(addresses: list[str]) -> None:
    """`./dev chaos` sends each body to each path."""
    ask_all_wrongly(addresses, every=False)


def generate(operation: Any, mode: GenerationMode, addresses: list[str], examples: int) -> None:
    """Requests that fit the document, or requests that do not."""

    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case[Any]) -> None:
        for address in addresses:
            check(case.call(base_url=address, timeout=20, headers=CREDENTIALS))

    # A route that takes nothing at all cannot be asked wrongly.
    with contextlib.suppress(Unsatisfiable, SkipTest):
        ask()


@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize("operation", OPERATIONS[::STRIDE], ids=lambda operation: operation.label)
def test_no_generated_request_breaks_the_server(
    operation: Any, mode: GenerationMode, addresses: list[str]
) -> None:
    """A part of the routes, since making the requests takes long; `./dev chaos` asks all of them."""
    generate(operation, mode, addresses, EXAMPLES)


def run(examples: int, database: str) -> Iterator[str]:
    """The long run: so many requests of each kind to every route, on each engine."""
    with serving(database) as addresses:
        ask_all_wrongly(addresses, every=True)
        for operation in OPERATIONS:
            for mode in GenerationMode:
                generate(operation, mode, addresses, examples)
            yield operation.label


def check(response: Any) -> None:
    assert response.status_code < 500 or response.status_code == 501, response.text
    assert response.status_code != 401, response.text
    assert not INSIDE.search(response.text), response.text
    # What is not HTTP at all is refused before it gets an id.
    assert "x-request-id" in response.headers or response.text == "Invalid HTTP request received."


def test_every_route_is_asked() -> None:
    assert {operation.label for operation in OPERATIONS} == {
        f"{route.method} {route.path}" for route in ASKED
    }


def test_the_servers_still_serve(addresses: list[str]) -> None:
    for address in addresses:
        assert requests.get(address + "/readyz", timeout=5).status_code == 200
