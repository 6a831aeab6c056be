"""A web page cannot drive a server that asks for no key: every route of the table refuses it first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.access.support import access_of
from tests.security.test_doors import CLOSED, PUBLIC, code_of, name_of, path_of
from tests.server.support import Answer, Visitor, serving

from perdure import InMemoryLightningStore
from perdure.cli.hosting import dev
from perdure.kernel.config import SecretKey
from perdure.kernel.errors import StartRefused
from perdure.server.http.gate import LOCAL_ORIGINS, Origins
from perdure.server.table import ROUTES

KEY = SecretKey("only-the-operator-knows")
EVIL = "https://evil.test"
FOREIGN = (
    {"Origin": EVIL},
    {"Origin": "null"},
    {"Origin": EVIL, "Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
)
TAB = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
WRITES: tuple[tuple[str, Any], ...] = (
    ("/api/v1/rollouts", {"input": 1}),
    ("/api/v1/tokens", {"name": "first", "scopes": ["admin"]}),
    ("/v1/agl/queues/rollouts/enqueue", [{"input": 1}]),
    ("/threads", {}),
    ("/runs/cancel", {"status": "all"}),
)


@pytest_asyncio.fixture
async def store() -> AsyncIterator[InMemoryLightningStore]:
    async with InMemoryLightningStore() as opened:
        yield opened


@pytest_asyncio.fixture
async def visitor(store: InMemoryLightningStore) -> AsyncIterator[Visitor]:
    async with serving(store) as visitor:
        yield visitor


async def is_unchanged(visitor: Visitor) -> bool:
    """Whether nobody has written anything."""
    audit = await visitor.get("/api/v1/audit")
    return audit.status == 200 and audit.body["items"] == []


def is_refused(answer: Answer) -> bool:
    return answer.status == 403 and "cors_allow_origins" in str(answer.body)


async def test_a_page_of_another_origin_is_refused_on_every_route(visitor: Visitor) -> None:
    for route in CLOSED:
        for headers in FOREIGN:
            answer = await visitor.ask(route.method, path_of(route), headers=headers)
            assert is_refused(answer), (name_of(route), headers, answer)
    for path in ("/uix", "/nothing", "/api/v1/nothing", "/threads/x/y/z"):
        assert is_refused(await visitor.get(path, headers={"Origin": EVIL})), path
    assert await is_unchanged(visitor)


async def test_a_page_of_another_origin_may_ask_for_health(visitor: Visitor) -> None:
    for path in sorted(PUBLIC):
        assert (await visitor.get(path, headers={"Origin": EVIL, **TAB})).status == 200


async def test_programs_and_our_own_pages_are_answered(visitor: Visitor) -> None:
    own = visitor.url
    for headers in (
        {},
        {"Sec-Fetch-Mode": "cors"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "same-origin", "Origin": own},
        {"Origin": "http://LocalHost:4747", "Host": "localhost:4747"},
        {"Origin": "http://[::1]:4747", "Host": "[::1]:4747"},
        {"Origin": "https://localhost", "Host": "localhost"},
    ):
        assert (await visitor.get("/api/v1/rollouts", headers=headers)).status == 200, headers
    other_port = {"Origin": "http://localhost:4748", "Host": "localhost:4747"}
    assert is_refused(await visitor.get("/api/v1/rollouts", headers=other_port))


async def test_a_link_opens_pages_that_change_nothing_and_nothing_else(visitor: Visitor) -> None:
    assert (await visitor.get("/docs", headers=TAB)).status == 200
    for route in CLOSED:
        if not route.opens_in_tab:
            answer = await visitor.ask(route.method, path_of(route), headers=TAB)
            assert is_refused(answer), name_of(route)
    for headers in (
        {**TAB, "Sec-Fetch-Dest": "iframe"},
        {**TAB, "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        assert is_refused(await visitor.get("/docs", headers=headers)), headers
    assert (await visitor.ask("HEAD", "/docs", headers=TAB)).status == 403
    assert (await visitor.post("/docs", headers=TAB)).status == 403


def test_only_pages_open_in_a_tab() -> None:
    opening = {name_of(route) for route in ROUTES if route.opens_in_tab}
    pages = [route for route in ROUTES if route.answer_form == "text/html" and route.method == "GET"]
    assert opening == {name_of(route) for route in pages}
    assert all(name.startswith("GET ") for name in opening)


async def test_where_a_key_is_needed_the_key_decides(store: InMemoryLightningStore) -> None:
    async with serving(store, api_key=KEY) as visitor:
        for headers in FOREIGN:
            assert (await visitor.get("/api/v1/rollouts", headers=headers)).status == 401
            keyed = {**headers, "x-api-key": str(KEY)}
            assert (await visitor.get("/api/v1/rollouts", headers=keyed)).status == 200


async def test_from_the_first_token_on_the_token_decides(visitor: Visitor) -> None:
    page = {"Origin": EVIL}
    assert (await visitor.get("/api/v1/rollouts", headers=page)).status == 403
    _, secret = await access_of(visitor.app).create_token("one", scopes=("read",), actor="test")
    assert (await visitor.get("/api/v1/rollouts", headers=page)).status == 401
    keyed = {**page, "Authorization": f"Bearer {secret}"}
    assert (await visitor.get("/api/v1/rollouts", headers=keyed)).status == 200


async def test_without_authentication_pages_are_refused_on_any_address(store: InMemoryLightningStore) -> None:
    async with serving(store, host="0.0.0.0", insecure_no_auth=True) as visitor:
        assert is_refused(await visitor.get("/api/v1/rollouts", headers={"Origin": EVIL}))
        assert (await visitor.get("/api/v1/rollouts", headers={"Origin": visitor.url})).status == 200


async def test_a_refused_page_does_not_use_up_the_rate_limit(store: InMemoryLightningStore) -> None:
    async with serving(store, rate_limit=0.001) as visitor:
        for _ in range(20):
            assert (await visitor.get("/api/v1/rollouts", headers={"Origin": EVIL})).status == 403
        assert (await visitor.get("/api/v1/rollouts")).status == 200


# --- origins ----------------------------------------------------------------------------------------------


async def test_an_allowed_origin_passes(store: InMemoryLightningStore) -> None:
    allowed = ("https://ui.example", "http://localhost:*")
    async with serving(store, cors_allow_origins=allowed) as visitor:
        for origin, site in (
            ("https://ui.example", "cross-site"),
            ("http://localhost:3000", "same-site"),
            ("http://localhost", "same-site"),
        ):
            headers = {"Origin": origin, "Sec-Fetch-Site": site}
            answer = await visitor.get("/api/v1/rollouts", headers=headers)
            assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (200, origin)
        for origin in (
            "https://ui.example:8443",
            "http://localhost:3000.evil.test",
            "http://localhost.evil.test",
        ):
            answer = await visitor.get("/api/v1/rollouts", headers={"Origin": origin})
            assert is_refused(answer)
            assert "Access-Control-Allow-Origin" not in answer.headers
        # Without its origin, as an image or a form asks, even an allowed page is unknown.
        assert is_refused(await visitor.get("/api/v1/rollouts", headers={"Sec-Fetch-Site": "cross-site"}))


def test_local_origins_are_those_of_this_machine() -> None:
    local = Origins(LOCAL_ORIGINS)
    for name in ("localhost", "127.0.0.1", "[::1]"):
        for port in ("", ":1", ":3000", ":65535"):
            assert local.allow(f"http://{name}{port}")
            assert local.allow(f"https://{name}{port}")
    for origin in (
        "null",
        "http://localhost.evil.test",
        "http://127.0.0.1.evil.test:80",
        "http://localhost:x",
    ):
        assert not local.allow(origin)
    assert not Origins(()).allow("")
    assert Origins("*").allow("https://anyone.test")
    with pytest.raises(StartRefused):
        Origins(("*", "https://ui.example"))


@pytest.mark.parametrize(
    ("given", "allowed"),
    [("", LOCAL_ORIGINS), ("https://ui.example", ("https://ui.example", *LOCAL_ORIGINS)), ("*", ("*",))],
)
def test_dev_allows_the_pages_of_this_machine(
    given: str, allowed: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_CORS_ALLOW_ORIGINS", given)
    settings = dev._settings({"database_url": "memory:", "port": 0, "grpc_port": 0}).settings
    assert settings.cors_allow_origins == allowed


# --- bodies and hosts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "text/json", "json"]
)
async def test_a_body_needs_its_content_type(visitor: Visitor, kind: str | None) -> None:
    for path, body in WRITES:
        raw = visitor.session.post(
            visitor.url + path,
            data=str(body).replace("'", '"').encode(),
            headers={} if kind is None else {"Content-Type": kind},
            skip_auto_headers=("Content-Type",),
        )
        async with raw as response:
            assert response.status == 415, path
    assert await is_unchanged(visitor)


async def test_a_body_that_is_not_read_needs_its_content_type_too(visitor: Visitor) -> None:
    queued = (await visitor.post("/api/v1/rollouts", json={"input": 1})).body
    path = f"/api/v1/rollouts/{queued['rollout_id']}/cancel"
    plain = {"Content-Type": "text/plain"}
    assert code_of(await visitor.post(path, data=b"{}", headers=plain)) == "unsupported_media"
    assert (await visitor.get(f"/api/v1/rollouts/{queued['rollout_id']}")).body["status"] == "queuing"
    assert (await visitor.post(path, data=b"{}", headers={"Content-Type": "application/json"})).status == 200


async def test_an_empty_body_needs_no_content_type(visitor: Visitor) -> None:
    queued = (await visitor.post("/api/v1/rollouts", json={"input": 1})).body
    for path in (f"/api/v1/rollouts/{queued['rollout_id']}/cancel", "/api/v1/threads"):
        post = visitor.session.post(visitor.url + path, skip_auto_headers=("Content-Type",))
        async with post as response:
            assert response.status in (200, 201), path


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:4747", 200),
        ("LOCALHOST:1", 200),
        ("127.0.0.1:4747", 200),
        ("[::1]:4747", 200),
        ("known.example:8080", 200),
        ("evil.test", 403),
        ("evil.test:4747", 403),
        ("127.0.0.1.evil.test:4747", 403),
        ("localhost:4747.evil.test", 403),
        ("evil.test:localhost", 403),
        ("", 403),
    ],
)
async def test_a_host_name_is_checked_whatever_its_port(
    store: InMemoryLightningStore, host: str, status: int
) -> None:
    async with serving(store, allowed_hosts=("known.example",)) as visitor:
        for path in ("/healthz", "/api/v1/rollouts"):
            assert (await visitor.get(path, headers={"Host": host})).status == status
