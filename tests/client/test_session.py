"""The session of all clients: addresses, paths, headers, and errors that keep their class."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from aiohttp import web
from starlette.requests import Request
from tests.client.flaky import FlakyServer

from perdure import errors
from perdure.client.session import HttpSession, error_from, path_segment
from perdure.kernel.codec import encode_wire
from perdure.server.http.bodies import problem
from perdure.server.lightning.protocol import LIGHTNING


@pytest.fixture
async def proxy() -> AsyncIterator[FlakyServer]:
    async with FlakyServer() as proxy:
        yield proxy


def every_error(kind: type[errors.PerdureError] = errors.PerdureError) -> Iterator[type[errors.PerdureError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from every_error(each)


ONE_NAME = (errors.BadQuery, errors.BadRequest, errors.BadBody)
ERRORS = [kind for kind in every_error() if kind.__module__ == "perdure.kernel.errors"]


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_comes_home_as_it_left(kind: type[errors.PerdureError]) -> None:
    error = kind("what happened")
    request = Request({"type": "http", "method": "GET", "path": "/", "headers": []})
    shaped = {
        "native": (error.http_status, encode_wire(problem(error, "1", "/"))),
        "lightning": (
            (answer := LIGHTNING.refuse(error, "1", request)).status_code,
            bytes(answer.body),
        ),
    }
    for protocol, (status, body) in shaped.items():
        found = error_from(status, body)
        # The native API has one name for bad parts of a request.
        one_name = protocol == "native" and issubclass(kind, ONE_NAME)
        assert type(found) is (errors.InvalidInput if one_name else kind)
        assert found.message.endswith("what happened")


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (422, b'{"detail":[{"loc":["body","mode"],"msg":"no"}]}', errors.InvalidInput, "body.mode: no"),
        (404, b"<html>", errors.NotFound, "404"),
        (502, b"<html>", errors.Unreachable, "502"),
        (500, b'{"detail":"Internal server error"}', errors.Unreachable, "Internal"),
        (418, b"[]", errors.InvalidInput, "418"),
        (429, b'{"code":[],"detail":7}', errors.TooManyRequests, "429"),
        (307, b"", errors.Unreachable, "307"),
    ],
)
def test_an_answer_of_another_make(status: int, body: bytes, kind: type[Exception], message: str) -> None:
    found = error_from(status, body)
    assert type(found) is kind
    assert message in str(found)


@pytest.mark.parametrize(
    "address", ["", "localhost:4747", "ftp://localhost", "http://", "http://a/?b=c", "http://[::1", None, 3]
)
def test_an_address_that_is_none(address: Any) -> None:
    with pytest.raises(errors.InvalidInput, match="address"):
        HttpSession(address)


def test_secrets_in_the_address_are_taken_out() -> None:
    session = HttpSession("https://team:the%2Fsecret@example.test/perdure/")
    assert session.base_url == "https://example.test/perdure"
    assert (session.namespace, session.token) == ("team", "the/secret")
    assert HttpSession("http://:secret@localhost").namespace is None


@pytest.mark.parametrize("namespace", ["Ünï", "a\nb", " a", "a\x00"])
def test_a_namespace_that_cannot_travel(namespace: str) -> None:
    with pytest.raises(errors.InvalidInput, match="namespace"):
        HttpSession("http://localhost", namespace=namespace)
    with pytest.raises(errors.InvalidInput, match="namespace"):
        HttpSession("http://localhost").in_namespace(namespace)


@pytest.mark.parametrize("text", ["a/b", "..", ".", "a?b#c", "a b", "%2F", "Ü👋", "a+b", "latest"])
async def test_an_id_is_one_step_of_a_path(proxy: FlakyServer, text: str) -> None:
    paths: list[str] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        paths.append(request.raw_path)
        return web.json_response(request.path)

    proxy.pass_on = answer
    session = HttpSession(proxy.url)
    found = (await session.request("GET", f"/x/{path_segment(text, 'id')}/y", query=[("q", "a b&c")])).json()
    assert found == f"/x/{text}/y"
    assert paths[0].partition("?")[0].count("/") == 3
    await session.close()


async def test_headers(proxy: FlakyServer) -> None:
    seen: list[dict[str, str]] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        seen.append(dict(request.headers))
        return web.json_response(None)

    proxy.pass_on = answer
    session = HttpSession(proxy.url, token="secret", namespace="team")
    for each in (session, session.in_namespace("other")):
        await each.request("POST", "/", body=b"{}", headers={"Idempotency-Key": "k"})
    names = ("Authorization", "X-Perdure-Namespace", "Idempotency-Key", "Content-Type")
    expected = ("Bearer secret", "team", "k", "application/json")
    assert tuple(seen[0][name] for name in names) == expected
    assert seen[1]["X-Perdure-Namespace"] == "other"
    await session.close()


async def test_lines_come_as_they_are_sent(proxy: FlakyServer) -> None:
    proxy.answers.append(web.Response(body=b"event: changed\ndata: 1\r\n\nlast"))
    proxy.answers.append(web.json_response({"code": "forbidden", "detail": "no"}, status=403))
    session = HttpSession(proxy.url)
    assert [line async for line in session.lines("/changes")] == [b"event: changed", b"data: 1", b"", b"last"]
    with pytest.raises(errors.Forbidden):
        _ = [line async for line in session.lines("/changes")]
    await session.close()
