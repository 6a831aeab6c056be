"""The login of the dashboard: a secret in a cookie, which works only for pages of this server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from http.cookies import SimpleCookie

import pytest
import pytest_asyncio
from msgspec import structs
from tests.access.support import access_of, age, everything_stored, open_engine, rows_of
from tests.kernel.support import until_true
from tests.server.support import Answer, Visitor, serving

from perdure import InMemoryLightningStore
from perdure.access.guesses import FAILURES_AT_ONCE
from perdure.access.logins import LIFETIME, MOST_LOGINS
from perdure.access.service import retain
from perdure.kernel.config import SecretKey
from perdure.kernel.retention import Retention
from perdure.rollouts.store import DatabaseLightningStore
from perdure.server.http.gate import cookie_name, secret_in_cookie
from perdure.testing.contract.support import soon

KEY = SecretKey("only-the-operator-knows; it has = and %")
OWN = {"Sec-Fetch-Site": "same-origin"}
FOREIGN = (
    {"Origin": "https://evil.test"},
    {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
)


@pytest_asyncio.fixture
async def store(engine_url: str) -> AsyncIterator[DatabaseLightningStore]:
    async with open_engine(engine_url) as opened:
        yield opened


@pytest_asyncio.fixture
async def visitor() -> AsyncIterator[Visitor]:
    async with InMemoryLightningStore() as store, serving(store, api_key=KEY) as visitor:
        yield visitor


async def login(visitor: Visitor, secret: str) -> Answer:
    return await visitor.post("/api/v1/login", headers={"x-api-key": secret} | OWN)


def cookie_of(answer: Answer) -> dict[str, str]:
    """Return the header with which a browser sends the cookie back."""
    jar = SimpleCookie(answer.headers["Set-Cookie"])
    return {"Cookie": "; ".join(f"{name}={morsel.coded_value}" for name, morsel in jar.items())}


async def make_token(visitor: Visitor, *scopes: str) -> str:
    _, secret = await access_of(visitor.app).create_token("dashboard", scopes=scopes, actor="test")
    return secret


async def status_of(visitor: Visitor, cookie: dict[str, str]) -> int:
    return (await visitor.get("/api/v1/me", headers=cookie | OWN)).status


async def grow_old(store: DatabaseLightningStore, seconds: float) -> None:
    """Make every login this much older."""
    await age(store.storage, seconds)


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
    # On plain HTTP a browser sends no origin with reads, and its own origin with every write.
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


async def test_the_cookie_is_random_and_holds_nothing_of_the_key(visitor: Visitor) -> None:
    first, second = cookie_of(await login(visitor, str(KEY))), cookie_of(await login(visitor, str(KEY)))
    assert first != second
    for cookie in (first, second):
        assert str(KEY) not in cookie["Cookie"]
        assert (await status_of(visitor, cookie)) == 200
        secret = cookie["Cookie"].partition("=")[2]
        assert secret not in await everything_stored(visitor.app.services.storage)
        # The login is not a token, so it must not work as a header.
        assert (await visitor.get("/api/v1/me", headers={"x-api-key": secret})).status == 401
    for secret in (str(KEY), await make_token(visitor, "read")):
        kept = {"Cookie": f"{first['Cookie'].partition('=')[0]}={secret}"}
        assert (await status_of(visitor, kept)) == 401


async def test_logging_out_ends_it_on_the_server(visitor: Visitor) -> None:
    cookie, other = cookie_of(await login(visitor, str(KEY))), cookie_of(await login(visitor, str(KEY)))
    for headers in FOREIGN:
        assert (await visitor.post("/api/v1/logout", headers=cookie | headers)).status == 403
    answer = await visitor.post("/api/v1/logout", headers=cookie | OWN)
    (ended,) = SimpleCookie(answer.headers["Set-Cookie"]).values()
    assert (ended.value, ended["max-age"]) == ("", "0")
    assert await status_of(visitor, cookie) == 401
    assert await status_of(visitor, other) == 200
    audit = await visitor.get("/api/v1/audit", headers={"x-api-key": str(KEY)})
    assert [entry["action"] for entry in audit.body["items"]] == ["logout", "login", "login"]


async def test_a_login_ends_the_one_before_in_the_same_browser(visitor: Visitor) -> None:
    cookie = cookie_of(await login(visitor, str(KEY)))
    again = await visitor.post("/api/v1/login", headers={"x-api-key": str(KEY)} | OWN | cookie)
    assert await status_of(visitor, cookie) == 401
    assert await status_of(visitor, cookie_of(again)) == 200


async def test_a_login_with_the_key_ends_when_the_key_changes(visitor: Visitor) -> None:
    cookie = cookie_of(await login(visitor, str(KEY)))
    for key, status in (("another-key-of-the-operator", 401), (str(KEY), 200), (None, 401)):
        visitor.app.reloads.settings = structs.replace(
            visitor.app.settings, api_key=None if key is None else SecretKey(key)
        )
        await make_token(visitor, "read")
        assert await status_of(visitor, cookie) == status, key


async def test_a_login_that_nobody_uses_expires(store: DatabaseLightningStore) -> None:
    async with serving(store, api_key=KEY, login_idle_timeout=1000.0) as visitor:
        used, unused = cookie_of(await login(visitor, str(KEY))), cookie_of(await login(visitor, str(KEY)))
        for _ in range(3):
            await grow_old(store, 600)
            visitor.app.services.authentication.forget()
            assert await status_of(visitor, used) == 200
        assert await status_of(visitor, unused) == 401
        await retain(store.storage, Retention())
        assert len(await rows_of(store.storage, "logins")) == 1
        # A use within a minute writes nothing.
        before = await rows_of(store.storage, "logins")
        visitor.app.services.authentication.forget()
        assert await status_of(visitor, used) == 200
        assert await rows_of(store.storage, "logins") == before


async def test_a_login_that_is_used_ends_after_a_week(store: DatabaseLightningStore) -> None:
    async with serving(store, api_key=KEY) as visitor:
        cookie = cookie_of(await login(visitor, str(KEY)))
        for _ in range(int(LIFETIME / 80_000)):
            await grow_old(store, 80_000)
            visitor.app.services.authentication.forget()
            assert await status_of(visitor, cookie) == 200
        await grow_old(store, 80_000)
        visitor.app.services.authentication.forget()
        assert await status_of(visitor, cookie) == 401


async def test_a_credential_has_so_many_logins(store: DatabaseLightningStore) -> None:
    async with serving(store, api_key=KEY) as visitor:
        cookies = [cookie_of(await login(visitor, str(KEY))) for _ in range(MOST_LOGINS + 1)]
        token = cookie_of(await login(visitor, await make_token(visitor, "read")))
        assert len(await rows_of(store.storage, "logins")) == MOST_LOGINS + 1
        statuses = [await status_of(visitor, cookie) for cookie in (*cookies[:2], cookies[-1], token)]
        assert statuses == [401, 200, 200, 200]


async def test_a_login_counts_on_each_server_of_a_database_and_ends_on_each(database_url: str) -> None:
    async with (
        open_engine(database_url) as here,
        open_engine(database_url) as there,
        serving(here, api_key=KEY) as one,
        serving(there, api_key=KEY) as other,
    ):
        for secret in (str(KEY), await make_token(one, "read")):
            cookie = cookie_of(await login(one, secret))
            there_too = {"Cookie": cookie["Cookie"].replace(port_of(one), port_of(other))}
            assert await status_of(one, cookie) == 200
            assert await status_of(other, there_too) == 200
            await other.post("/api/v1/logout", headers=there_too | OWN)
            assert await status_of(other, there_too) == 401

            async def has_ended(cookie: dict[str, str] = cookie) -> bool:
                return await status_of(one, cookie) == 401

            await soon(until_true(has_ended))


def port_of(visitor: Visitor) -> str:
    return visitor.url.rpartition(":")[2]


@pytest.mark.parametrize(
    ("public_url", "secure"),
    [(None, False), ("http://perdure.example", False), ("https://perdure.example:8443/", True)],
)
async def test_the_cookie_is_for_tls_alone_where_the_public_url_is(
    public_url: str | None, secure: bool
) -> None:
    async with (
        InMemoryLightningStore() as store,
        serving(store, api_key=KEY, public_url=public_url) as visitor,
    ):
        answer = await login(visitor, str(KEY))
        (cookie,) = SimpleCookie(answer.headers["Set-Cookie"]).values()
        assert bool(cookie["secure"]) is secure
        # A proxy may change the Host, not the Origin.
        if public_url is not None:
            origin = {"Origin": public_url.rstrip("/")}
            headers = cookie_of(answer) | origin
            made = await visitor.post("/api/v1/rollouts", json={"input": 1}, headers=headers)
            assert made.status == 201


async def test_guessed_logins_are_limited_and_end_nobody_elses(visitor: Visitor) -> None:
    cookie = cookie_of(await login(visitor, str(KEY)))
    assert await status_of(visitor, cookie) == 200
    name, value = cookie["Cookie"].split("=")
    statuses = []
    for number in range(int(FAILURES_AT_ONCE) + 5):
        guess = {"Cookie": f"{name}={value[:-4]}{number:04}"}
        statuses.append((await visitor.get("/api/v1/me", headers=guess | OWN)).status)
        assert (await visitor.post("/api/v1/logout", headers=guess | OWN)).status in (401, 429)
    assert (statuses[0], statuses[-1]) == (401, 429)
    assert await status_of(visitor, cookie) == 200


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
    cookies = f"a=b; {cookie_name(host)}=mine; {cookie_name('localhost:1')}=other"
    assert secret_in_cookie(cookies, host) == "mine"
    assert secret_in_cookie(cookies, "localhost") is None
    assert secret_in_cookie(None, host) is None
