"""Wrong tokens are limited, without locking out callers with valid ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
import pytest_asyncio
from tests.access.support import AccessHelper, access_of
from tests.access.test_tokens import Counted, altered
from tests.server.support import Visitor, serving
from tests.server.test_otlp_grpc import EXPORT

from perdure import InMemoryLightningStore
from perdure.access import authentication, guesses
from perdure.access.guesses import FAILURES_AT_ONCE, LOOK_UPS_A_SECOND, Guess, GuessLimits
from perdure.kernel.config import SecretKey
from perdure.kernel.errors import StartRefused, TooManyRequests
from perdure.rollouts.store import DatabaseLightningStore
from perdure.server.grpc.server import GrpcServer
from perdure.server.http.gate import TrustedProxies

KEY = SecretKey("only-the-operator-knows")
LOCAL = "the-secret-of-the-command-on-this-machine"
TOO_MANY = int(FAILURES_AT_ONCE) + 1
HERE = "127.0.0.1"
PROXY = "10.0.0.7"


def guess_number(number: int) -> str:
    """Build a secret in the form of a token."""
    return f"pdr_{number:016x}_{number:043d}"


@pytest.fixture
def standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits recover with time; with a frozen clock, each request counts."""
    monkeypatch.setattr(guesses, "monotonic", lambda: 1000.0)


@pytest_asyncio.fixture
async def visitor(standing_clock: None) -> AsyncIterator[Visitor]:
    async with InMemoryLightningStore() as store, serving(store, api_key=KEY) as visitor:
        visitor.app.local_secret = LOCAL
        yield visitor


async def statuses_of(visitor: Visitor, secrets: Sequence[str], **headers: str) -> list[int]:
    return [
        (await visitor.get("/api/v1/me", headers={"x-api-key": secret, **headers})).status
        for secret in secrets
    ]


async def create_tokens(visitor: Visitor, count: int) -> list[str]:
    helper = access_of(visitor.app)
    return [(await helper.create_token("t", scopes=["read"], actor="test"))[1] for _ in range(count)]


# --- who is limited, and who is not -------------------------------------------------------------------------


async def test_wrong_tokens_lock_out_neither_the_key_nor_the_command_nor_a_known_token(
    visitor: Visitor,
) -> None:
    known, unknown = await create_tokens(visitor, 2)
    right = [str(KEY), LOCAL, known]
    assert await statuses_of(visitor, right) == [200, 200, 200]
    wrong = await statuses_of(visitor, [guess_number(number) for number in range(TOO_MANY)])
    assert (wrong[0], wrong[-2], wrong[-1]) == (401, 401, 429)
    assert await statuses_of(visitor, right) == [200, 200, 200]
    # A known token is looked up again when its answer has expired, or when tokens have changed.
    visitor.app.services.authentication.forget()
    assert await statuses_of(visitor, right) == [200, 200, 200]
    assert await statuses_of(visitor, [unknown, "no-token-at-all"]) == [429, 429]
    answer = await visitor.get("/api/v1/me", headers={"x-api-key": unknown})
    assert answer.headers["Retry-After"] == "1"


async def test_a_known_token_that_was_revoked_is_an_unknown_one(visitor: Visitor) -> None:
    (secret,) = await create_tokens(visitor, 1)
    assert await statuses_of(visitor, [secret]) == [200]
    await access_of(visitor.app).revoke_token(secret.split("_")[1], actor="test")
    assert set(await statuses_of(visitor, [secret] * (TOO_MANY + 1))) == {401, 429}


async def test_right_tokens_use_up_no_limit(visitor: Visitor) -> None:
    secrets = await create_tokens(visitor, TOO_MANY + 10)
    assert set(await statuses_of(visitor, secrets)) == {200}


async def test_a_new_token_that_many_callers_send_at_once_is_looked_up_once(
    standing_clock: None, store: DatabaseLightningStore
) -> None:
    storage = Counted(store.storage)
    access = AccessHelper(storage)
    _, secret = await access.create_token("fleet", actor="test")
    guess = Guess(GuessLimits(), HERE)
    answers = await asyncio.gather(*(access.authenticate(secret, guess) for _ in range(5 * TOO_MANY)))
    assert None not in answers
    wrong = [access.authenticate(altered(secret), guess) for _ in range(5 * TOO_MANY)]
    refused = await asyncio.gather(*wrong, return_exceptions=True)
    assert sum(answer is None for answer in refused) == int(FAILURES_AT_ONCE)
    assert sum(isinstance(answer, TooManyRequests) for answer in refused) == 5 * TOO_MANY - FAILURES_AT_ONCE
    assert storage.reads < 20


async def test_wrong_tokens_displace_no_right_one(
    store: DatabaseLightningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "CACHE_SIZE", 10)
    storage = Counted(store.storage)
    access = AccessHelper(storage, cache_seconds=3600.0)
    _, secret = await access.create_token("ci", actor="test")
    assert await access.authenticate(secret) is not None
    for number in range(30):
        assert await access.authenticate(guess_number(number)) is None
    before = storage.reads
    assert await access.authenticate(secret) is not None
    assert storage.reads == before


# --- the bound of a server ----------------------------------------------------------------------------------


async def test_the_database_is_asked_for_so_many_unknown_tokens_a_second(
    store: DatabaseLightningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(guesses, "monotonic", lambda: now)
    storage = Counted(store.storage)
    access = AccessHelper(storage)
    limits = GuessLimits()

    async def ask(numbers: range) -> int:
        """Send unknown tokens from different addresses; return how many were looked up."""
        refused = 0
        for number in numbers:
            try:
                await access.authenticate(guess_number(number), Guess(limits, f"client {number}"))
            except TooManyRequests:
                refused += 1
        return len(numbers) - refused

    before = storage.reads
    assert await ask(range(150)) == LOOK_UPS_A_SECOND
    now += 0.5
    assert await ask(range(150, 300)) == LOOK_UPS_A_SECOND / 2
    assert storage.reads - before == LOOK_UPS_A_SECOND * 1.5
    # A request refused without a look-up does not count for its address.
    now += 10
    assert await ask(range(149, 150)) == 1


async def test_what_has_not_the_form_of_a_token_takes_nothing_from_the_server(
    standing_clock: None, store: DatabaseLightningStore
) -> None:
    access, limits = AccessHelper(store.storage), GuessLimits()
    for number in range(3 * int(LOOK_UPS_A_SECOND)):
        assert await access.authenticate("guess", Guess(limits, str(number))) is None
    assert await access.authenticate(guess_number(1), Guess(limits, HERE)) is None


async def test_http_and_grpc_share_the_limits(visitor: Visitor) -> None:
    server = GrpcServer(visitor.app, port=0)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"{HERE}:{server.port}") as channel:
            assert await grpc_status(channel, guess_number(1)) is grpc.StatusCode.UNAUTHENTICATED
            await statuses_of(visitor, [guess_number(number) for number in range(TOO_MANY)])
            assert await grpc_status(channel, guess_number(2)) is grpc.StatusCode.UNAVAILABLE
            assert await grpc_status(channel, str(KEY)) is grpc.StatusCode.OK
    finally:
        await server.stop()


async def grpc_status(channel: Any, secret: str) -> grpc.StatusCode:
    call = channel.unary_unary(EXPORT)(b"", metadata=[("x-api-key", secret)], wait_for_ready=True)
    return await call.code()


# --- behind a proxy -----------------------------------------------------------------------------------------


async def test_behind_a_trusted_proxy_each_client_has_a_limit_of_its_own(standing_clock: None) -> None:
    store = InMemoryLightningStore()
    async with store, serving(store, api_key=KEY, trusted_proxies=(HERE,)) as visitor:
        wrong = [guess_number(number) for number in range(TOO_MANY)]
        attack = await statuses_of(visitor, wrong, **{"X-Forwarded-For": "198.51.100.1"})
        assert attack[-1] == 429
        (unknown,) = await create_tokens(visitor, 1)
        # A client can write anything before the address that its proxy adds.
        forged = {"X-Forwarded-For": "203.0.113.9, 198.51.100.1"}
        assert await statuses_of(visitor, [unknown], **forged) == [429]
        assert await statuses_of(visitor, [unknown], **{"X-Forwarded-For": "198.51.100.2"}) == [200]


async def test_a_header_that_the_proxy_adds_counts_before_one_that_the_client_sent(
    standing_clock: None,
) -> None:
    store = InMemoryLightningStore()
    async with store, serving(store, api_key=KEY, trusted_proxies=(HERE,)) as visitor:
        statuses = []
        for number in range(TOO_MANY):
            pairs = [
                ("X-Forwarded-For", f"203.0.113.{number}"),
                ("X-Forwarded-For", "198.51.100.1"),
                ("x-api-key", guess_number(number)),
            ]
            async with visitor.session.get(visitor.url + "/api/v1/me", headers=pairs) as response:
                statuses.append(response.status)
        assert statuses[-1] == 429


async def test_without_trusted_proxies_the_header_says_nothing(visitor: Visitor) -> None:
    statuses = [
        (await statuses_of(visitor, [guess_number(number)], **{"X-Forwarded-For": f"203.0.113.{number}"}))[0]
        for number in range(TOO_MANY)
    ]
    assert statuses[-1] == 429


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        (PROXY, [], PROXY),
        ("192.0.2.1", ["203.0.113.9"], "192.0.2.1"),
        (PROXY, ["203.0.113.9"], "203.0.113.9"),
        (PROXY, ["203.0.113.9, 198.51.100.1, 10.0.0.8"], "198.51.100.1"),
        (PROXY, ["203.0.113.9", "198.51.100.1"], "198.51.100.1"),
        (PROXY, ["10.0.0.8, 10.0.0.9"], PROXY),
        (PROXY, ["203.0.113.9, nonsense, 10.0.0.8"], PROXY),
        (PROXY, ["203.0.113.9,"], PROXY),
        (PROXY, ["198.51.100.1:4711"], "198.51.100.1"),
        (PROXY, ["[2001:db8::5]:4711"], "2001:db8::5"),
        (PROXY, ["2001:DB8:0::5"], "2001:db8::5"),
        (PROXY, ["::ffff:198.51.100.1"], "198.51.100.1"),
        (f"::ffff:{PROXY}", ["198.51.100.1"], "198.51.100.1"),
        ("2001:db8:1::1", ["198.51.100.1"], "198.51.100.1"),
        ("local", ["198.51.100.1"], "local"),
        (PROXY, ["1.1.1.1," * 5000 + "198.51.100.1"], "198.51.100.1"),
        (PROXY, ["198.51.100.1" + ", 10.0.0.8" * 5000], PROXY),
    ],
)
def test_the_client_is_the_last_address_that_is_no_trusted_proxy(
    peer: str, forwarded: list[str], client: str
) -> None:
    proxies = TrustedProxies(("10.0.0.0/24", "2001:db8:1::/48"))
    assert proxies.find_client(peer, {"x-forwarded-for": forwarded}.__getitem__) == client


async def test_what_is_no_address_prevents_the_start() -> None:
    store = InMemoryLightningStore()
    with pytest.raises(StartRefused, match=r"trusted_proxies: 'my-proxy'.*10\.0\.0\.0/24"):
        async with store, serving(store, trusted_proxies=("my-proxy",)):
            raise AssertionError
