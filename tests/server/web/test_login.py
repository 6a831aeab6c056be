"""The login of the dashboard: a token in a cookie, which counts for the pages of this server alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from http.cookies import SimpleCookie

import pytest_asyncio
from tests.access.support import access_of
from tests.server.support import Answer, Visitor, serving

from perdure import InMemoryLightningStore
from perdure.access.guesses import FAILURES_AT_ONCE
from perdure.kernel.config import Key
from perdure.server.http.cookies import cookie_name, quoted, secret_in_cookie

KEY = Key("only-the-operator-knows; it has = and %")
OWN = {"Sec-Fetch-Site": "same-origin"}
FOREIGN = (
    {"Origin": "https://evil.test"},
    {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
)


@pytest_asyncio.fixture
async def visitor() -> AsyncIterator[Visitor]:
    async with InMemoryLightningStore() as store, serving(store, api_key=KEY) as visitor:
        yield visitor


async def login(visitor: Visitor, secret: str) -> Answer:
    return await visitor.post("/api/v1/login", headers={"x-api-key": secret} | OWN)


def cookie_of(answer: Answer) -> dict[str, str]:
    """The header with which a browser sends back what it was given."""
    jar = SimpleCookie(answer.headers["Set-Cookie"])
    return {"Cookie": "; ".join(f"{name}={morsel.coded_value}" for name, morsel in jar.items())}


async def make_token(visitor: Visitor, *scopes: str) -> str:
    _, secret = await access_of(visitor.app).create_token("dashboard", scopes=scopes, actor="test")
    return secret


async def test_no_script_and_no_other_path_gets_the_cookie(visitor: Visitor) -> None:
    answer = await login(visitor, await make_token(visitor, "read"))
    assert answer.status == 200
    assert answer.body["scopes"] == ["read"]
    (cookie,) = SimpleCookie(answer.headers["Set-Cookie"]).values()
    assert cookie["httponly"]
    assert cookie["samesite"] == "strict"
    assert cookie["path"] == "/api/v1/"
    assert cookie.key == cookie_name(visitor.url.removeprefix("http://"))


async def test_the_cookie_is_a_token_for_our_own_pages(visitor: Visitor) -> None:
    secret = await make_token(visitor, "read", "write")
    cookie = cookie_of(await login(visitor, secret))
    me = await visitor.get("/api/v1/me", headers=cookie | OWN)
    assert me.body["actor"] == secret.split("_")[1]
    made = await visitor.post("/api/v1/rollouts", json={"input": 1}, headers=cookie | OWN)
    assert made.status == 201
    audit = await visitor.get("/api/v1/audit", headers={"x-api-key": str(KEY)})
    actions = {(entry["actor"], entry["action"]) for entry in audit.body["items"]}
    assert (me.body["actor"], "enqueue_rollout") in actions, actions


async def test_the_cookie_counts_for_no_other_page_and_no_write_without_an_origin(visitor: Visitor) -> None:
    cookie = cookie_of(await login(visitor, str(KEY)))
    for headers in FOREIGN:
        for method in ("GET", "POST"):
            answer = await visitor.ask(
                method, "/api/v1/rollouts", json={"input": 1}, headers=cookie | headers
            )
            assert answer.status == 403, (method, headers)
    assert (await visitor.post("/api/v1/rollouts", json={"input": 1}, headers=cookie)).status == 403
    typed = {"Sec-Fetch-Site": "none"}
    assert (await visitor.post("/api/v1/rollouts", json={"input": 1}, headers=cookie | typed)).status == 403
    # A browser says nothing of a read on plain HTTP, and its own origin of every write.
    assert (await visitor.get("/api/v1/rollouts", headers=cookie)).body["total"] == 0
    own = {"Origin": visitor.url}
    assert (await visitor.post("/api/v1/rollouts", json={"input": 1}, headers=cookie | own)).status == 201


async def test_the_other_protocols_take_no_cookie(visitor: Visitor) -> None:
    cookie = cookie_of(await login(visitor, str(KEY)))
    for method, path in (("GET", "/v1/agl/rollouts"), ("POST", "/threads/search"), ("POST", "/v1/traces")):
        assert (await visitor.ask(method, path, headers=cookie | OWN)).status == 401, path


async def test_a_login_is_refused_and_limited_like_any_wrong_token(visitor: Visitor) -> None:
    worker = await make_token(visitor, "worker")
    assert (await login(visitor, worker)).status == 403
    answers = [await login(visitor, "pdr_wrong") for _ in range(int(FAILURES_AT_ONCE) + 5)]
    assert answers[0].status == 401
    assert "Set-Cookie" not in answers[0].headers
    assert answers[-1].status == 429
    guess = {"Cookie": f"{cookie_name(visitor.url.removeprefix('http://'))}=pdr_guess"}
    assert (await visitor.get("/api/v1/me", headers=guess | OWN)).status == 429


async def test_logging_out_ends_it(visitor: Visitor) -> None:
    cookie = cookie_of(await login(visitor, str(KEY)))
    answer = await visitor.post("/api/v1/logout", headers=cookie | OWN)
    (ended,) = SimpleCookie(answer.headers["Set-Cookie"]).values()
    assert (ended.value, ended["max-age"]) == ("", "0")
    for headers in FOREIGN:
        assert (await visitor.post("/api/v1/logout", headers=cookie | headers)).status == 403


async def test_a_revoked_token_ends_its_login(visitor: Visitor) -> None:
    secret = await make_token(visitor, "read")
    cookie = cookie_of(await login(visitor, secret))
    assert (await visitor.get("/api/v1/me", headers=cookie | OWN)).status == 200
    await access_of(visitor.app).revoke_token(secret.split("_")[1], actor="test")
    assert (await visitor.get("/api/v1/me", headers=cookie | OWN)).status == 401


async def test_where_no_token_is_needed_nobody_logs_in() -> None:
    async with InMemoryLightningStore() as store, serving(store) as visitor:
        answer = await visitor.post("/api/v1/login", headers=OWN)
        assert answer.body["actor"] == "anonymous"
        assert "Set-Cookie" not in answer.headers
        old = {"Cookie": f"{cookie_name(visitor.url.removeprefix('http://'))}=pdr_of_another_time"}
        assert (await visitor.get("/api/v1/me", headers=old | OWN)).body["actor"] == "anonymous"


def test_servers_on_one_host_do_not_share_a_cookie() -> None:
    host = "localhost:4747"
    cookies = f"a=b; {cookie_name(host)}={quoted('x=1; y')}; {cookie_name('localhost:1')}=other"
    assert secret_in_cookie(cookies, host) == "x=1; y"
    assert secret_in_cookie(cookies, "localhost") is None
    assert secret_in_cookie(None, host) is None
