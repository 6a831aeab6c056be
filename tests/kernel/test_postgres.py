"""The PostgreSQL driver with a server that is down, slow, disconnected or locked."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
from collections.abc import AsyncIterator
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from tests.kernel.postgres_support import opened, refusal, sql
from tests.kernel.proxy import Proxy, Trouble
from tests.kernel.support import (
    ADD,
    NS,
    RESIZE,
    get_ids,
    in_thread,
    put,
    soon,
    stored,
    until,
    until_true,
)

from perdure.kernel.errors import (
    DeadlineExceeded,
    OutcomeUnknown,
    PerdureError,
    StorageError,
    StorageUnavailable,
)
from perdure.kernel.storage import postgres_tx
from perdure.kernel.storage.port import Tx
from perdure.kernel.storage.postgres import PostgresStorage

SECRET = "s3cr3t-pa55word"


@pytest.fixture
async def storage(postgres_url: str) -> AsyncIterator[PostgresStorage]:
    storage = opened(postgres_url)
    yield storage
    await storage.close()


@pytest.fixture
async def connection(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection of another program to the same database."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest.fixture
async def proxy(postgres_url: str) -> AsyncIterator[Proxy]:
    async with Proxy.before(postgres_url) as proxy:
        yield proxy


def changed(url: str, **parts: str) -> str:
    """Return the URL with another user, password, host, port or database."""
    split = urlsplit(url)
    given = {
        "user": split.username,
        "password": split.password,
        "host": split.hostname,
        "port": split.port,
        "database": split.path[1:],
        **parts,
    }
    netloc = f"{given['user']}:{given['password']}@{given['host']}:{given['port']}"
    return urlunsplit(split._replace(netloc=netloc, path="/" + str(given["database"])))


def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def told(error: BaseException | None) -> str:
    """Return everything that a log of the error would show."""
    return "" if error is None else str(error) + repr(error) + told(error.__cause__)


# --- a server that is not there ---------------------------------------------------------------------------


async def test_a_server_that_is_down_is_reported_at_once(postgres_url: str) -> None:
    started = time.monotonic()
    error = await refusal(changed(postgres_url, port=closed_port(), password=SECRET), timeout=60.0)
    assert isinstance(error, StorageUnavailable)
    assert time.monotonic() - started < 10
    assert SECRET not in told(error)
    assert "127.0.0.1" in str(error)


async def test_a_host_that_has_no_address_is_reported(postgres_url: str) -> None:
    error = await refusal(changed(postgres_url, host="no-such-host.invalid", password=SECRET))
    assert isinstance(error, StorageUnavailable)
    assert SECRET not in told(error)


async def test_a_wrong_password_is_reported_and_not_repeated(postgres_url: str) -> None:
    error = await refusal(changed(postgres_url, password=SECRET))
    assert isinstance(error, StorageUnavailable)
    assert "password authentication failed" in str(error)
    assert SECRET not in told(error)


async def test_an_unknown_database_or_user_is_reported(postgres_url: str) -> None:
    for parts in ({"database": "no_such_database"}, {"user": "nobody_known"}):
        assert isinstance(await refusal(changed(postgres_url, **parts)), StorageUnavailable)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://anna:{SECRET}/x@127.0.0.1/things",
        f"postgresql://anna:{SECRET}@127.0.0.1:port/things",
        f"postgresql://anna:{SECRET}@127.0.0.1:99999/things",
        f"postgresql://anna:{SECRET}@[::1/things",
        f"postgresql://anna:{SECRET}@127.0.0.1:1/things?sslmode=perhaps",
    ],
)
async def test_an_address_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(PerdureError) as refused:
        await _open_and_ask(url)
    assert SECRET not in told(refused.value)


async def _open_and_ask(url: str) -> None:
    storage = opened(url, timeout=5.0)
    try:
        await soon(storage.run(put, "a", ns=NS))
    finally:
        await soon(storage.close())


async def test_a_server_that_comes_up_later_is_used(proxy: Proxy) -> None:
    proxy.trouble = "refuse"
    storage = opened(proxy.url)
    with pytest.raises(StorageUnavailable):
        await soon(storage.run(put, "early", ns=NS))
    assert (await storage.health())["status"] == "degraded"
    proxy.trouble = "none"
    await soon(storage.run(put, "later", ns=NS))
    assert (await storage.health())["status"] == "ok"
    assert await stored(storage) == ["later"]
    await storage.close()


async def test_a_server_that_is_starting_up_is_waited_for(proxy: Proxy) -> None:
    proxy.trouble = "starting up"
    storage = opened(proxy.url)
    asked = asyncio.ensure_future(storage.run(put, "early", ns=NS))
    await until(lambda: proxy.connections > 1)
    proxy.trouble = "none"
    await soon(asked)
    assert await stored(storage) == ["early"]
    await storage.close()


async def test_a_server_that_does_not_come_up_is_reported_at_the_deadline(proxy: Proxy) -> None:
    proxy.trouble = "starting up"
    error = await refusal(proxy.url, timeout=0.5)
    assert isinstance(error, StorageUnavailable)
    assert "starting up" in str(error)


# --- a server that says nothing ---------------------------------------------------------------------------


async def test_a_server_that_never_answers_is_given_up(proxy: Proxy) -> None:
    proxy.trouble = "silence"
    error = await refusal(proxy.url, timeout=0.5)
    assert isinstance(error, DeadlineExceeded | StorageUnavailable)


async def hurried(url: str, timeout: float, first: str) -> PostgresStorage:
    """Open a storage with a short deadline; its tables and first row were created without one."""
    unhurried = opened(url)
    await unhurried.run(put, first, ns=NS)
    await unhurried.close()
    storage = opened(url, timeout=timeout)
    assert await stored(storage) == [first]
    return storage


@pytest.mark.parametrize("lane", ["run", "read"])
async def test_a_server_that_falls_silent_is_given_up(proxy: Proxy, lane: str) -> None:
    storage = await hurried(proxy.url, 0.5, "before")
    proxy.trouble = "silence"
    with pytest.raises((DeadlineExceeded, StorageUnavailable)):
        await soon(getattr(storage, lane)(get_ids, ns=NS))
    await proxy.cut()
    proxy.trouble = "none"
    await until_true(lambda: _works_again(storage))
    await soon(storage.close())


async def _works_again(storage: PostgresStorage) -> bool:
    try:
        return "before" in await stored(storage)
    except StorageError:
        return False


async def test_silence_at_the_commit_leaves_the_outcome_unknown(proxy: Proxy) -> None:
    storage = await hurried(proxy.url, 1.0, "before")
    proxy.trouble = "silence at commit"
    with pytest.raises(OutcomeUnknown):
        await soon(storage.run(put, "perhaps", ns=NS))
    await proxy.cut()
    await soon(storage.close())


async def test_closing_does_not_wait_for_a_silent_server(proxy: Proxy) -> None:
    storage = await hurried(proxy.url, 1.0, "before")
    proxy.trouble = "silence"
    await soon(storage.close())


async def test_a_slow_statement_ends_at_the_deadline(postgres_url: str) -> None:
    storage = await hurried(postgres_url, 0.5, "before")

    async def sleep(tx: Tx) -> None:
        await put(tx, "a")
        await tx.one(sql("SELECT pg_sleep(600)"))

    with pytest.raises(DeadlineExceeded):
        await soon(storage.run(sleep, ns=NS))
    assert await stored(storage) == ["before"]
    await storage.close()


async def test_many_statements_together_end_at_the_deadline(postgres_url: str) -> None:
    storage = await hurried(postgres_url, 0.6, "before")

    async def sleep(tx: Tx) -> None:
        for _ in range(6):
            await tx.one(sql("SELECT pg_sleep(0.4)"))

    with pytest.raises(DeadlineExceeded):
        await soon(storage.run(sleep, ns=NS))
    await storage.close()


async def test_a_row_that_somebody_holds_is_waited_for_until_the_deadline(
    postgres_url: str, connection: asyncpg.Connection
) -> None:
    storage = await hurried(postgres_url, 0.5, "a")

    async def resize(tx: Tx) -> int:
        return await tx.execute(RESIZE, ids=["a"], size=5)

    async with connection.transaction():
        await connection.execute("UPDATE things SET size = 1")
        with pytest.raises(DeadlineExceeded):
            await soon(storage.run(resize, ns=NS))
    assert await soon(storage.run(resize, ns=NS)) == 1
    await storage.close()


async def test_a_frozen_process_holds_its_locks_for_seconds(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after SIGSTOP: its connections stay open, and its transaction sends nothing more."""
    monkeypatch.setattr(postgres_tx, "IDLE_SECONDS", 0.2)
    frozen, other = opened(postgres_url), opened(postgres_url)
    await frozen.run(put, "a", ns=NS)
    holds, thawed = threading.Event(), threading.Event()
    tries: list[int] = []

    async def resize(tx: Tx, size: int) -> int:
        return await tx.execute(RESIZE, ids=["a"], size=size)

    async def freeze(tx: Tx) -> int:
        tries.append(await resize(tx, 1))
        if len(tries) == 1:
            holds.set()
            # This blocks the driver's own thread, which sends the rest of the transaction.
            thawed.wait(20.0)
        return await resize(tx, 2)

    call = asyncio.ensure_future(frozen.run(freeze, ns=NS))
    await soon(asyncio.to_thread(holds.wait))
    assert await soon(other.run(resize, 5, ns=NS)) == 1
    thawed.set()
    # Its work was rolled back and repeated.
    assert (await soon(call), tries) == (1, [1, 1])
    await frozen.close()
    await other.close()


async def test_more_callers_than_connections_wait_their_turn(postgres_url: str) -> None:
    storage = opened(postgres_url, pool_size=2)
    names = [f"n{n:03}" for n in range(100)]
    assert await asyncio.gather(*(storage.run(put, name, ns=NS) for name in names)) == names
    await storage.close()


async def test_looking_after_the_statistics_makes_no_new_connections(proxy: Proxy) -> None:
    """It runs every second, and connecting to the server is slow."""
    storage = opened(proxy.url)
    await storage.run(put, "a", ns=NS)
    await storage.timers.ask(storage._analyze)
    before = proxy.connections
    for _ in range(5):
        await storage.timers.ask(storage._analyze)
    assert proxy.connections == before
    await storage.close()


# --- connections that are cut -----------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["cut before commit", "lose answer"])
async def test_a_write_whose_connection_is_cut_is_applied_once(proxy: Proxy, trouble: Trouble) -> None:
    storage = opened(proxy.url)
    await storage.run(put, "before", ns=NS)
    runs: list[int] = []

    async def add(tx: Tx) -> int:
        runs.append(1)
        row = await tx.one(sql("SELECT count(*) FROM things WHERE ns = $1", "ns"))
        assert row is not None
        return await tx.execute(ADD, id=f"n{row[0]}", size=1)

    proxy.trouble = trouble
    assert await soon(storage.run(add, ns=NS)) == 1
    assert proxy.trouble == "none"
    assert await stored(storage) == ["before", "n1"]
    assert len(runs) == (1 if trouble == "lose answer" else 2)
    await storage.close()


async def test_hints_of_a_commit_whose_answer_was_lost_are_published(proxy: Proxy) -> None:
    storage = opened(proxy.url)
    await storage.run(put, "before", ns=NS)
    watch = storage.signals.watch("things", ["a"])

    async def hint(tx: Tx) -> None:
        await put(tx, "a")
        tx.hint("things", "a")

    proxy.trouble = "lose answer"
    await soon(storage.run(hint, ns=NS))
    assert await soon(watch.changed()) == {"a"}
    watch.close()
    await storage.close()


async def test_a_read_whose_connection_is_cut_is_read_again(proxy: Proxy) -> None:
    storage = opened(proxy.url)
    await storage.run(put, "before", ns=NS)
    await proxy.cut()
    assert await soon(stored(storage)) == ["before"]
    proxy.trouble = "lose answer"
    assert await soon(stored(storage)) == ["before"]
    await storage.close()


def _calls(storage: PostgresStorage) -> list[str]:
    """Return the calls that run in the driver's thread."""
    loop = storage.timers._loop
    assert loop is not None
    return [name for task in asyncio.all_tasks(loop) if "_contained" in (name := repr(task.get_coro()))]


async def test_a_read_that_is_cancelled_during_its_commit_leaves_no_error_behind(
    proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """No caller is left to receive an error, so the loop would print it when the call is collected."""
    storage = opened(proxy.url)
    await storage.run(put, "before", ns=NS)
    before = proxy.commits
    proxy.trouble = "silence at commit"
    call = asyncio.ensure_future(stored(storage))
    await until(lambda: proxy.commits > before)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(call)
    await until(lambda: not _calls(storage))
    proxy.trouble = "none"
    assert await soon(stored(storage)) == ["before"]
    await storage.close()
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_backends_that_are_ended_cost_nobody_an_answer(
    storage: PostgresStorage, connection: asyncpg.Connection
) -> None:
    await storage.run(put, "first", ns=NS)
    others = "application_name = 'perdure' AND datname = current_database() AND pid <> pg_backend_pid()"
    names: list[str] = []
    for round_ in range(5):
        calls = [asyncio.ensure_future(storage.run(put, f"r{round_}-{n:02}", ns=NS)) for n in range(20)]
        await connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE " + others)
        names += await soon(asyncio.gather(*calls))
    assert await stored(storage) == ["first", *sorted(names)]


async def test_an_outcome_that_nobody_can_tell_is_unknown(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = await hurried(proxy.url, 0.5, "before")

    async def cannot_say(xid: str) -> str:
        raise asyncpg.TooManyConnectionsError("sorry")

    monkeypatch.setattr(storage, "_ask_state", cannot_say)
    proxy.trouble = "lose answer"
    with pytest.raises(OutcomeUnknown):
        await soon(storage.run(put, "perhaps", ns=NS))
    await storage.close()


async def test_a_close_during_a_commit_says_nothing_that_is_not_so(proxy: Proxy, postgres_url: str) -> None:
    """`StorageClosed` would mean that nothing was written."""
    storage = opened(proxy.url)
    await storage.run(put, "before", ns=NS)
    before = proxy.commits
    proxy.trouble = "silence at commit"
    call = asyncio.ensure_future(storage.run(put, "perhaps", ns=NS))
    await until(lambda: proxy.commits > before)
    closing = asyncio.ensure_future(in_thread(storage.close))
    await until(lambda: storage._closed)
    proxy.trouble = "none"
    await soon(closing)
    (result,) = await soon(asyncio.gather(call, return_exceptions=True))
    again = opened(postgres_url)
    kept = "perhaps" in await stored(again)
    await again.close()
    assert isinstance(result, OutcomeUnknown) or result == "perhaps" or not kept
