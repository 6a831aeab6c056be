"""Errors of the LangGraph protocol: the status that `langgraph_sdk` converts, and `{"detail": …}`."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import (
    APIStatusError,
    AuthenticationError,
    BadRequestError,
    ConflictError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
    UnprocessableEntityError,
)
from tests.server.langgraph.conftest import serving
from tests.server.langgraph.project import project

from perdure.server.table import ROUTES
from perdure.testing.serving import ServerProcess

KEY = "only-the-operator-knows"


@pytest_asyncio.fixture
async def session(server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url) as opened:
        yield opened


def check(answer: httpx.Response, status: int) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert isinstance(answer.json()["detail"], str)
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    "path",
    [
        "/assistants/nothing/here/at/all",
        "/threads/x/nothing",
        "/threads/x/state/y/z",
        "/runs/x/y/z/nothing",
    ],
)
async def test_a_path_that_leads_nowhere(session: httpx.AsyncClient, path: str) -> None:
    check(await session.get(path), 404)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("PUT", "/threads", {"POST"}), ("GET", "/threads", {"POST"}), ("PUT", "/assistants", {"POST"})],
)
async def test_a_method_that_a_path_does_not_take(
    session: httpx.AsyncClient, method: str, path: str, allowed: set[str]
) -> None:
    answer = await session.request(method, path)
    check(answer, 405)
    assert allowed <= set(answer.headers["allow"].split(", "))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff", b'{"metadata": 1}', b"[" * 100_000])
async def test_a_body_that_is_not_what_it_must_be(session: httpx.AsyncClient, body: bytes) -> None:
    answer = await session.post("/threads", content=body, headers={"Content-Type": "application/json"})
    check(answer, 422)


async def test_a_detail_says_where_it_is_wrong(session: httpx.AsyncClient) -> None:
    answer = await session.post("/threads/search", json={"limit": "ten"})
    check(answer, 422)
    assert "limit" in answer.json()["detail"]


async def test_unknown_fields_do_no_harm(session: httpx.AsyncClient) -> None:
    answer = await session.post("/threads", json={"what_a_later_release_sends": 1})
    assert answer.status_code == 200


async def test_a_body_in_another_form(session: httpx.AsyncClient) -> None:
    answer = await session.post("/threads", content=b"a=1", headers={"Content-Type": "text/plain"})
    check(answer, 415)


def _ids() -> list[tuple[str, str]]:
    """List every route of this protocol with an id in its path."""
    routes = [route for route in ROUTES if route.protocol.name == "langgraph"]
    names = ("{thread_id}", "{assistant_id}", "{run_id}", "{cron_id}")
    return [(route.method, route.path) for route in routes if any(name in route.path for name in names)]


async def test_no_path_takes_an_id_that_is_no_uuid(session: httpx.AsyncClient) -> None:
    assert len(_ids()) > 20
    for method, path in _ids():
        bad = path
        for name in ("thread_id", "assistant_id", "run_id", "cron_id"):
            bad = bad.replace("{" + name + "}", "no-uuid")
        bad = bad.replace("{checkpoint_id}", str(uuid.uuid4())).replace("{namespace}", "sub")
        has_body = method in ("POST", "PATCH", "PUT")
        answer = await session.request(method, bad, json={} if has_body else None)
        # Missing features answer 501 to every caller.
        assert answer.status_code in (422, 501), (method, path, answer.text)
        assert isinstance(answer.json()["detail"], str)


async def test_each_status_is_an_error_of_its_own(client: LangGraphClient, tmp_path: Path) -> None:
    nobody = str(uuid.uuid4())
    with pytest.raises(NotFoundError) as missing:
        await client.threads.get(nobody)
    assert nobody in missing.value.message
    assert missing.value.code == "not_found"
    assert missing.value.request_id
    thread = await client.threads.create()
    with pytest.raises(ConflictError):
        await client.threads.create(thread_id=thread["thread_id"])
    with pytest.raises(UnprocessableEntityError):
        await client.threads.get("no-uuid")
    with pytest.raises(BadRequestError):
        await client.assistants.create("given", config={"configurable": {"a": 1}}, context={"b": 1})


# --- callers ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Start a server that requires a key, and accepts few requests per second and small bodies."""
    folder = project(tmp_path_factory.mktemp("closed"), ("noop",))
    limits = {"PERDURE_API_KEY": KEY, "PERDURE_MAX_BODY_BYTES": "10000"}
    with serving(folder, f"sqlite:///{folder / 'perdure.db'}", **limits) as started:
        yield started


async def test_without_a_key_nobody_comes_in(closed: ServerProcess) -> None:
    async with get_client(url=closed.url) as client:
        with pytest.raises(AuthenticationError):
            await client.threads.create()
    async with get_client(url=closed.url, api_key="wrong") as client:
        with pytest.raises(AuthenticationError):
            await client.threads.create()
    async with httpx.AsyncClient(base_url=closed.url) as session:
        answer = await session.get("/threads/x/nothing")
        check(answer, 401)
        assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_a_key_comes_in_either_way(closed: ServerProcess) -> None:
    async with get_client(url=closed.url, api_key=KEY) as client:
        assert (await client.threads.create())["status"] == "idle"
    async with get_client(url=closed.url, headers={"Authorization": f"Bearer {KEY}"}) as client:
        assert (await client.threads.create())["status"] == "idle"


async def test_a_token_may_do_what_its_scopes_say(closed: ServerProcess) -> None:
    async with httpx.AsyncClient(base_url=closed.url, headers={"x-api-key": KEY}) as session:
        body = {"name": "reader", "scopes": ["read"], "without_admin": True}
        made = await session.post("/api/v1/tokens", json=body)
        secret = made.json()["secret"]
    async with get_client(url=closed.url, api_key=secret) as client:
        assert isinstance(await client.threads.search(), list)
        with pytest.raises(PermissionDeniedError):
            await client.threads.create()


async def test_a_namespace_keeps_its_threads_to_itself(closed: ServerProcess) -> None:
    headers = {"X-Perdure-Namespace": "theirs"}
    async with (
        get_client(url=closed.url, api_key=KEY, headers=headers) as theirs,
        get_client(url=closed.url, api_key=KEY) as ours,
    ):
        thread = await theirs.threads.create()
        with pytest.raises(NotFoundError):
            await ours.threads.get(thread["thread_id"])
        assert (await theirs.threads.get(thread["thread_id"]))["status"] == "idle"


async def test_a_body_that_is_too_large(closed: ServerProcess) -> None:
    async with get_client(url=closed.url, api_key=KEY) as client:
        with pytest.raises(APIStatusError) as refused:
            await client.threads.create(metadata={"long": "x" * 20_000})
        assert refused.value.status_code == 413
        assert isinstance(refused.value.body, dict)
        assert refused.value.body["detail"]


async def test_who_asks_too_often_is_told_to_wait(tmp_path: Path) -> None:
    folder = project(tmp_path / "project", ())
    with serving(folder, "memory:", PERDURE_RATE_LIMIT="1") as started:
        async with get_client(url=started.url) as client:
            answers = await asyncio.gather(
                *(client.threads.search() for _ in range(50)), return_exceptions=True
            )
    assert any(isinstance(each, RateLimitError) for each in answers)


async def test_no_answer_shows_the_inside(session: httpx.AsyncClient) -> None:
    bodies: list[Any] = [{"metadata": {"a\x00b": 1}}, {"metadata": {"": 1}}, {"metadata": {"a" * 300: 1}}]
    for body in bodies:
        answer = await session.post("/threads", json=body)
        assert answer.status_code in (200, 422), answer.text
        assert "Traceback" not in answer.text
