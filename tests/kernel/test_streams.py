"""Whole channels: their followers, the kept keys, and that hints are published only if they are wanted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from tests.kernel.support import NS, THINGS, in_thread, soon, until

from perdure.kernel.changes import CHANNEL, ObjectChange, changes_from, follow, tell
from perdure.kernel.signals import shared
from perdure.kernel.signals.local import LocalSignals
from perdure.kernel.storage.port import Storage, Tx
from perdure.kernel.storage.postgres import PostgresStorage


async def test_a_follower_gets_what_begins_alike_in_its_order() -> None:
    hub = LocalSignals()
    stream = hub.follow("changes", "1/", 10)
    hub.publish([("changes", "1/b"), ("changes", "2/x"), ("other", "1/y"), ("changes", "1/a")])
    assert await soon(stream.next()) == ["1/b", "1/a"]
    hub.publish([("changes", "1/b")])
    hub.publish([("changes", "1/c")])
    hub.publish([("changes", "1/b")])
    await asyncio.sleep(0)
    assert await soon(stream.next()) == ["1/c", "1/b"]
    assert await stream.next(timeout=0) == []
    stream.close()
    stream.close()
    hub.publish([("changes", "1/d")])
    assert await stream.next(timeout=0) == []


async def test_a_follower_that_keeps_too_much_is_told_so_once() -> None:
    hub = LocalSignals()
    stream = hub.follow("changes", "", 3)
    hub.publish([("changes", str(number)) for number in range(4)])
    assert await soon(stream.next()) is None
    hub.publish([("changes", "after")])
    assert await soon(stream.next()) == ["after"]


async def test_a_channel_is_wanted_while_somebody_follows_it() -> None:
    hub = LocalSignals()
    assert not hub.wanted("changes")
    hub.watch("changes", ["a"])
    assert not hub.wanted("changes")
    first, second = hub.follow("changes", "", 1), hub.follow("changes", "x", 1)
    first.close()
    assert hub.wanted("changes")
    second.close()
    assert not hub.wanted("changes")
    assert hub.followed() == ()


async def test_a_follower_whose_loop_closed_is_forgotten() -> None:
    hub = LocalSignals()

    async def follow_and_leave() -> None:
        hub.follow("changes", "", 1)

    await in_thread(follow_and_leave)
    hub.publish([("changes", "a")])
    assert not hub.wanted("changes")


async def test_closing_wakes_followers() -> None:
    hub = LocalSignals()
    stream = hub.follow("changes", "", 1)
    waiting = asyncio.ensure_future(stream.next())
    await asyncio.sleep(0)
    threading.Thread(target=hub.close).start()
    assert await soon(waiting) == []
    assert not hub.wanted("changes")


# --- changes ----------------------------------------------------------------------------------------------


async def tell_of(tx: Tx, *names: str) -> bool:
    tell(tx, "thing", [(name, "new") for name in names])
    return tx.wants(CHANNEL)


async def test_an_operation_tells_of_changes_when_they_are_wanted(storage: Storage) -> None:
    assert await storage.run(tell_of, "a", ns=NS) is False
    stream = follow(storage.signals, [NS], 10)
    assert await storage.run(tell_of, "a", "b/c", ns=NS) is True
    assert await storage.run(tell_of, "d", ns=NS + 1) is True
    keys = await soon(stream.next())
    assert keys is not None
    assert changes_from(keys) == [ObjectChange("thing", "a", "new"), ObjectChange("thing", "b/c", "new")]
    stream.close()
    assert await storage.run(tell_of, "a", ns=NS) is False


# --- between processes ------------------------------------------------------------------------------------


@pytest.fixture
async def pair(postgres_url: str) -> AsyncIterator[tuple[PostgresStorage, PostgresStorage]]:
    """Two storages on one database, as in two processes."""
    storages = PostgresStorage(postgres_url, [THINGS]), PostgresStorage(postgres_url, [THINGS])
    yield storages
    for storage in storages:
        await storage.close()


async def test_what_one_process_follows_is_wanted_in_the_other(
    pair: tuple[PostgresStorage, PostgresStorage],
) -> None:
    here, there = pair
    there.signals.publish([("things", "a")])
    stream = here.signals.follow(CHANNEL, "", 10)
    await until(lambda: there.signals.wanted(CHANNEL))
    assert not there.signals.wanted("others")
    await soon(there.run(tell_of, "a", ns=NS))
    assert await soon(stream.next(30)) == [f"{NS}/thing/new/a"]
    stream.close()


async def test_a_process_that_comes_later_asks_what_is_wanted(
    pair: tuple[PostgresStorage, PostgresStorage],
) -> None:
    here, there = pair
    stream = here.signals.follow(CHANNEL, "", 10)
    here.signals.publish([("things", "a")])
    there.signals.publish([("things", "a")])
    await until(lambda: there.signals.wanted(CHANNEL))
    stream.close()


async def test_what_nobody_repeats_is_no_longer_wanted(
    pair: tuple[PostgresStorage, PostgresStorage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "WANTED_SECONDS", 1.0)
    here, there = pair
    there.signals.publish([("things", "a")])
    stream = here.signals.follow(CHANNEL, "", 10)
    await until(lambda: there.signals.wanted(CHANNEL))
    stream.close()
    await until(lambda: not there.signals.wanted(CHANNEL))
