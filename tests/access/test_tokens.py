"""Tokens: their stored form, the callers that they admit, and their end."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest
from tests.access.support import AccessHelper, age, everything_stored, open_engine, rows_of
from tests.kernel.support import until_true

from perdure import errors
from perdure.access import authentication
from perdure.access.model import Token
from perdure.kernel.storage.port import Operation
from perdure.rollouts.store import DatabaseLightningStore
from perdure.service.callers import Caller
from perdure.testing.contract.support import soon


class Counted:
    """A storage that counts calls, and can refuse to write."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage
        self.reads = 0
        self.full = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    async def read(self, operation: Operation[..., Any], /, *args: Any, **options: Any) -> Any:
        self.reads += 1
        return await self._storage.read(operation, *args, **options)

    async def run(self, operation: Operation[..., Any], /, *args: Any, **options: Any) -> Any:
        if self.full:
            raise errors.StorageFull()
        return await self._storage.run(operation, *args, **options)


def uncached(store: DatabaseLightningStore) -> AccessHelper:
    return AccessHelper(store.storage, cache_seconds=0.0)


def remembering(store: DatabaseLightningStore) -> tuple[AccessHelper, Counted]:
    """An access service that keeps its cached answers."""
    storage = Counted(store.storage)
    return AccessHelper(storage, cache_seconds=3600.0), storage


def altered(secret: str) -> str:
    return secret[:-1] + ("A" if secret[-1] != "A" else "B")


async def test_a_token_is_known_by_its_secret(access: AccessHelper) -> None:
    token, secret = await access.create_token(
        "ci", scopes=["read", "worker"], namespaces=["a", "b"], actor="anna"
    )
    found_token = await access.authenticate(secret)
    assert found_token is not None
    assert found_token.model_copy(update={"last_used_time": None}) == token
    assert (token.name, token.scopes, token.namespaces) == ("ci", ["read", "worker"], ["a", "b"])
    assert (token.expire_time, token.revoke_time, token.last_used_time) == (None, None, None)


async def test_what_is_not_a_secret_lets_nobody_in(access: AccessHelper) -> None:
    token, secret = await access.create_token("ci", actor="anna")
    foreign_checkpoints = [
        "",
        "pdr",
        token.token_id,
        altered(secret),
        secret + " ",
        secret.replace("pdr_", "pdr_f"),
    ]
    unknown = secret.replace(token.token_id, "0" * 16)
    assert [await access.authenticate(text) for text in [*foreign_checkpoints, unknown]] == [None] * 7


async def test_the_secret_is_stored_nowhere(store: DatabaseLightningStore, access: AccessHelper) -> None:
    _, secret = await access.create_token("ci", actor="anna")
    assert await access.authenticate(secret) is not None
    stored = await everything_stored(store.storage)
    assert secret not in stored
    assert secret[-43:] not in stored
    assert secret not in repr(vars(access)) + repr(vars(access.authentication._tokens._known))


async def test_two_keys_live_side_by_side_until_one_is_revoked(access: AccessHelper) -> None:
    old, old_secret = await access.create_token("ci", actor="anna")
    new, new_secret = await access.create_token("ci", actor="anna")
    assert [await access.authenticate(text) is not None for text in (old_secret, new_secret)] == [True, True]
    await access.revoke_token(old.token_id, actor="anna")
    assert await access.authenticate(old_secret) is None
    assert (await access.list_tokens())[1].token_id == new.token_id
    assert await access.authenticate(new_secret) is not None


async def test_tokens_are_listed_in_pages_of_those_that_the_caller_reaches(access: AccessHelper) -> None:
    for number in range(9):
        await access.create_token("ci", namespaces=["blue" if number % 3 else "default"], actor="anna")
    mine = Caller("ci", frozenset({"admin"}), "blue", ("blue",))
    for service, count in ((access.service, 9), (access.service.acting_as(mine), 6)):
        whole = list(await service.list_tokens())
        assert len(whole) == count
        for limit in (1, 2, 3, 6, 9):
            tokens: list[Token] = []
            cursor = None
            while True:
                page = await service.list_tokens(limit=limit, cursor=cursor)
                assert len(page) <= limit
                tokens += page
                cursor = page.next
                if cursor is None:
                    break
            assert tokens == whole
    assert (await access.service.list_tokens(limit=0)).items == []
    for broken in ("x", "W10"):
        with pytest.raises(errors.InvalidInput, match="cursor"):
            await access.service.list_tokens(cursor=broken)
        with pytest.raises(errors.InvalidInput, match="cursor"):
            await access.service.list_namespaces(cursor=broken)


async def test_namespaces_are_listed_in_pages(store: DatabaseLightningStore) -> None:
    access = uncached(store).service
    for name in ("c", "a", "b"):
        await store.in_namespace(name).add_resources({})
    whole = list(await access.list_namespaces())
    assert {"a", "b", "c"} <= set(whole)
    page = await access.list_namespaces(limit=1)
    listed = list(page)
    while page.next is not None:
        page = await access.list_namespaces(limit=1, cursor=page.next)
        listed += page
    assert listed == whole


async def test_a_token_expires(store: DatabaseLightningStore) -> None:
    access = uncached(store)
    token, secret = await access.create_token("ci", expires_in=60, actor="anna")
    assert token.expire_time == pytest.approx(token.create_time + 60)
    assert await access.authenticate(secret) is not None
    await age(store.storage, 61)
    assert await access.authenticate(secret) is None
    assert len(await access.list_tokens()) == 1


async def test_nobody_remembers_a_token_beyond_its_time(
    store: DatabaseLightningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    access, _ = remembering(store)
    _, secret = await access.create_token("ci", expires_in=60, actor="anna")
    assert await access.authenticate(secret) is not None
    await age(store.storage, 61)
    assert await access.authenticate(secret) is not None, "it is remembered"
    late = time.monotonic() + 61
    monkeypatch.setattr(authentication, "monotonic", lambda: late)
    assert await access.authenticate(secret) is None


async def test_revoking_is_heard_at_once_and_only_once(access: AccessHelper) -> None:
    token, secret = await access.create_token("ci", actor="anna")
    assert await access.authenticate(secret) is not None
    revoked = await access.revoke_token(token.token_id, actor="bert")
    assert revoked.revoke_time is not None
    assert await access.authenticate(secret) is None
    assert await access.revoke_token(token.token_id, actor="carl") == revoked
    assert [entry.actor for entry in await access.query_audit(action="revoke_token")] == ["bert"]


async def test_an_unknown_token_cannot_be_revoked(access: AccessHelper) -> None:
    with pytest.raises(errors.NotFound, match="f" * 16):
        await access.revoke_token("f" * 16, actor="anna")
    with pytest.raises(errors.InvalidInput):
        await access.revoke_token("\0", actor="anna")
    assert await access.query_audit() == []


async def test_bad_input_makes_no_token(access: AccessHelper) -> None:
    with pytest.raises(errors.InvalidInput, match="scopes"):
        await access.create_token("ci", scopes=["root"], actor="anna")
    assert (await access.list_tokens()).items == []
    assert not await access.is_closed()


# --- what is remembered -----------------------------------------------------------------------------------


async def test_answers_are_remembered_the_bad_ones_too(store: DatabaseLightningStore) -> None:
    access, storage = remembering(store)
    _, secret = await access.create_token("ci", actor="anna")
    for text in (secret, altered(secret)):
        first = await access.authenticate(text)
        before = storage.reads
        assert [await access.authenticate(text) for _ in range(3)] == [first] * 3
        assert storage.reads == before


async def test_callers_at_once_ask_together(store: DatabaseLightningStore) -> None:
    access, storage = remembering(store)
    _, secret = await access.create_token("ci", actor="anna")
    answers = await asyncio.gather(*(access.authenticate(secret) for _ in range(50)))
    assert None not in answers
    assert storage.reads <= 2


async def test_only_so_much_is_remembered(
    store: DatabaseLightningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "CACHE_SIZE", 10)
    access, storage = remembering(store)
    _, secret = await access.create_token("ci", actor="anna")
    for number in range(30):
        await access.authenticate(secret[:-8] + f"{number:08}")
        assert await access.authenticate(secret) is not None
    assert len(access.authentication._tokens._known._wrong) == 10
    assert storage.reads == 31, "what is asked for often is not crowded out"


async def test_an_answer_from_before_a_revocation_is_not_remembered(store: DatabaseLightningStore) -> None:
    access, _ = remembering(store)
    token, secret = await access.create_token("ci", actor="anna")
    _, answer = await asyncio.gather(
        access.revoke_token(token.token_id, actor="anna"), access.authenticate(secret)
    )
    assert answer is None or answer.token_id == token.token_id
    assert await access.authenticate(secret) is None


async def test_the_last_use_is_noted_once_a_minute(store: DatabaseLightningStore) -> None:
    access = uncached(store)
    _, secret = await access.create_token("ci", actor="anna")
    await access.authenticate(secret)
    (first,) = await access.list_tokens()
    assert first.last_used_time is not None
    await access.authenticate(secret)
    assert (await access.list_tokens()).items == [first]
    await age(store.storage, 61)
    await access.authenticate(secret)
    (later,) = await access.list_tokens()
    assert later.last_used_time is not None
    assert later.last_used_time > first.last_used_time


async def test_a_use_that_cannot_be_noted_keeps_nobody_out(
    store: DatabaseLightningStore, caplog: pytest.LogCaptureFixture
) -> None:
    access, storage = remembering(store)
    _, secret = await access.create_token("ci", actor="anna")
    storage.full = True
    with caplog.at_level(logging.WARNING):
        assert await access.authenticate(secret) is not None
    assert "could not be recorded" in caplog.text
    assert secret not in caplog.text


# --- whether every caller needs a token -------------------------------------------------------------------


async def test_the_first_token_closes_the_door_for_good(store: DatabaseLightningStore) -> None:
    access, _ = remembering(store)
    assert not await access.is_closed()
    token, _ = await access.create_token("ci", expires_in=1, actor="anna")
    assert await access.is_closed()
    await access.revoke_token(token.token_id, actor="anna")
    assert await access.is_closed()
    await age(store.storage, 1000)
    assert await AccessHelper(store.storage).is_closed(), "who opens the database later finds it closed too"


async def test_that_the_door_is_open_is_remembered_for_a_while(store: DatabaseLightningStore) -> None:
    access, storage = remembering(store)
    assert [await access.is_closed() for _ in range(5)] == [False] * 5
    assert storage.reads == 1


# --- between processes ------------------------------------------------------------------------------------


async def test_another_room_of_this_process_hears_of_it(store: DatabaseLightningStore) -> None:
    """The hint reaches every process that shares the signals."""
    await _hears(AccessHelper(store.storage), remembering(store)[0])


async def test_another_process_hears_of_it(database_url: str) -> None:
    async with open_engine(database_url) as here, open_engine(database_url) as there:
        await _hears(AccessHelper(here.storage), remembering(there)[0])


async def _hears(here: AccessHelper, there: AccessHelper) -> None:
    assert not await there.is_closed()
    token, secret = await here.create_token("ci", actor="anna")

    async def closed() -> bool:
        # A hint may be lost before another process listens.
        await here.create_token("another", actor="anna")
        return await there.is_closed()

    await soon(until_true(closed))
    assert await there.authenticate(secret) is not None

    async def refused() -> bool:
        await here.revoke_token(token.token_id, actor="anna")
        return await there.authenticate(secret) is None

    await soon(until_true(refused))


async def test_tokens_last(database_url: str, tmp_path: Any) -> None:
    for url in (database_url, str(tmp_path / "perdure.db")):
        async with open_engine(url) as store:
            _, secret = await AccessHelper(store.storage).create_token("ci", actor="anna")
        async with open_engine(url) as store:
            assert await AccessHelper(store.storage).authenticate(secret) is not None
            assert len(await rows_of(store.storage, "tokens")) == 1
