"""The PostgreSQL driver against a server that is down, slow, cut off or in somebody's way."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from tests.kernel.proxy import Proxy, Trouble
from tests.kernel.support import (
    ADD,
    FIND,
    NS,
    RESIZE,
    THINGS,
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
    InvalidInput,
    NewerSchema,
    NotFound,
    OutcomeUnknown,
    PerdureError,
    ReadOnlyDatabase,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from perdure.kernel.storage.dialect import Statement
from perdure.kernel.storage.port import Tx
from perdure.kernel.storage.postgres import PostgresStorage
from perdure.kernel.storage.postgres_connection import translate

SECRET = "s3cr3t-pa55word"


def sql(text: str, *names: str) -> Statement:
    return Statement(text, text, names, frozenset())


def opened(url: str, **options: Any) -> PostgresStorage:
    return PostgresStorage(url, [THINGS], **{"timeout": 20.0, **options})


@pytest.fixture
async def storage(postgres_url: str) -> AsyncIterator[PostgresStorage]:
    made = opened(postgres_url)
    yield made
    await made.close()


@pytest.fixture
async def connection(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """Somebody else's connection to the same database."""
    made = await asyncpg.connect(postgres_url)
    yield made
    await made.close()


@pytest.fixture
async def proxy(postgres_url: str) -> AsyncIterator[Proxy]:
    async with Proxy.before(postgres_url) as made:
        yield made


def changed(url: str, **parts: str) -> str:
    """The URL with another user, password, host, port or database."""
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


async def refusal(url: str, **options: Any) -> PerdureError:
    """What the first call gets."""
    storage = opened(url, **options)
    try:
        with pytest.raises(PerdureError) as refused:
            await soon(storage.run(put, "a", ns=NS))
        return refused.value
    finally:
        await soon(storage.close())


def told(error: BaseException | None) -> str:
    """Everything that a log of the error would show."""
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


# --- a server that says nothing ---------------------------------------------------------------------------


async def test_a_server_that_never_answers_is_given_up(proxy: Proxy) -> None:
    proxy.trouble = "silence"
    error = await refusal(proxy.url, timeout=0.5)
    assert isinstance(error, DeadlineExceeded | StorageUnavailable)


@pytest.mark.parametrize("lane", ["run", "read"])
async def test_a_server_that_falls_silent_is_given_up(proxy: Proxy, lane: str) -> None:
    storage = opened(proxy.url, timeout=0.5)
    await storage.run(put, "before", ns=NS)
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
    storage = opened(proxy.url, timeout=1.0)
    await storage.run(put, "before", ns=NS)
    proxy.trouble = "silence at commit"
    with pytest.raises(OutcomeUnknown):
        await soon(storage.run(put, "perhaps", ns=NS))
    await proxy.cut()
    await soon(storage.close())


async def test_closing_does_not_wait_for_a_silent_server(proxy: Proxy) -> None:
    storage = opened(proxy.url, timeout=1.0)
    await storage.run(put, "before", ns=NS)
    proxy.trouble = "silence"
    await soon(storage.close())


async def test_a_slow_statement_ends_at_the_deadline(postgres_url: str) -> None:
    storage = opened(postgres_url, timeout=0.5)

    async def sleep(tx: Tx) -> None:
        await put(tx, "a")
        await tx.one(sql("SELECT pg_sleep(600)"))

    await storage.run(put, "before", ns=NS)
    with pytest.raises(DeadlineExceeded):
        await soon(storage.run(sleep, ns=NS))
    assert await stored(storage) == ["before"]
    await storage.close()


async def test_many_statements_together_end_at_the_deadline(postgres_url: str) -> None:
    storage = opened(postgres_url, timeout=0.6)

    async def sleep(tx: Tx) -> None:
        for _ in range(6):
            await tx.one(sql("SELECT pg_sleep(0.4)"))

    await storage.run(put, "before", ns=NS)
    with pytest.raises(DeadlineExceeded):
        await soon(storage.run(sleep, ns=NS))
    await storage.close()


async def test_a_row_that_somebody_holds_is_waited_for_until_the_deadline(
    postgres_url: str, connection: asyncpg.Connection
) -> None:
    storage = opened(postgres_url, timeout=0.5)
    await storage.run(put, "a", ns=NS)

    async def resize(tx: Tx) -> int:
        return await tx.execute(RESIZE, ids=["a"], size=5)

    async with connection.transaction():
        await connection.execute("UPDATE things SET size = 1")
        with pytest.raises(DeadlineExceeded):
            await soon(storage.run(resize, ns=NS))
    assert await soon(storage.run(resize, ns=NS)) == 1
    await storage.close()


async def test_more_callers_than_connections_wait_their_turn(postgres_url: str) -> None:
    storage = opened(postgres_url, pool_size=2)
    names = [f"n{n:03}" for n in range(100)]
    assert await asyncio.gather(*(storage.run(put, name, ns=NS) for name in names)) == names
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
    storage = opened(proxy.url, timeout=0.5)
    await storage.run(put, "before", ns=NS)

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


# --- two transactions that meet ---------------------------------------------------------------------------


async def test_the_victim_of_a_deadlock_runs_again(
    storage: PostgresStorage, connection: asyncpg.Connection, postgres_url: str
) -> None:
    await storage.run(put, "a", ns=NS)
    await storage.run(put, "b", ns=NS)
    runs: list[int] = []

    async def first_a_then_b(tx: Tx) -> None:
        runs.append(1)
        await tx.execute(RESIZE, ids=["a"], size=10)
        await tx.execute(RESIZE, ids=["b"], size=10)

    watcher = await asyncpg.connect(postgres_url)
    async with connection.transaction():
        await connection.execute("UPDATE things SET size = 1 WHERE id = 'b'")
        call = asyncio.ensure_future(storage.run(first_a_then_b, ns=NS))
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        await until_true(lambda: watcher.fetchval(waiting))
        await connection.execute("UPDATE things SET size = 2 WHERE id = 'a'")
    await soon(call)
    await watcher.close()
    assert len(runs) == 2
    rows = await connection.fetch("SELECT id, size FROM things ORDER BY id")
    assert [tuple(row) for row in rows] == [("a", 10), ("b", 10)]


@pytest.mark.parametrize("state", ["40001", "40P01"])
async def test_what_the_server_wants_tried_again_is_tried_again(storage: PostgresStorage, state: str) -> None:
    runs: list[int] = []
    fail = sql(f"DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '{state}'; END $$")

    async def write(tx: Tx) -> int:
        runs.append(1)
        await put(tx, f"n{len(runs)}")
        tx.hint("things", f"n{len(runs)}")
        if len(runs) < 4:
            await tx.execute(fail)
        return len(runs)

    assert await soon(storage.run(write, ns=NS)) == 4
    assert await stored(storage) == ["n4"]


async def test_a_race_for_a_key_is_decided_by_running_again(
    storage: PostgresStorage, connection: asyncpg.Connection
) -> None:
    """As two processes do that make the same namespace."""
    await storage.run(put, "first", ns=NS)

    async def ensure(tx: Tx, name: str) -> str:
        if await tx.one(FIND, id=name) is None:
            await tx.execute(ADD, id=name, size=1)
        return name

    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("INSERT INTO things (ns, id) VALUES ($1, 'a')", NS)
    call = asyncio.ensure_future(storage.run(ensure, "a", ns=NS))
    await until_true(lambda: _waits_for_lock(connection))
    await transaction.commit()
    assert await soon(call) == "a"


async def _waits_for_lock(connection: asyncpg.Connection) -> bool:
    return bool(await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))


async def test_rows_are_locked_so_that_nothing_is_decided_twice(storage: PostgresStorage) -> None:
    await storage.run(put, "counter", 0, ns=NS)

    async def count(tx: Tx) -> None:
        await tx.lock(THINGS, [(NS, "counter")])
        row = await tx.one(FIND, id="counter")
        assert row is not None
        await tx.execute(RESIZE, ids=["counter"], size=row[0] + 1)

    await asyncio.gather(*(storage.run(count, ns=NS) for _ in range(50)))

    async def look(tx: Tx) -> Any:
        row = await tx.one(FIND, id="counter")
        return row and row[0]

    assert await storage.read(look, ns=NS) == 50


async def test_locks_in_any_order_make_no_deadlock(storage: PostgresStorage) -> None:
    names = [f"n{n}" for n in range(20)]
    for name in names:
        await storage.run(put, name, 0, ns=NS)
    runs: list[int] = []

    async def count(tx: Tx, shift: int) -> None:
        runs.append(1)
        turned = names[shift:] + names[:shift]
        await tx.lock(THINGS, [(NS, name) for name in turned])
        await tx.execute(RESIZE, ids=turned, size=shift)

    await soon(asyncio.gather(*(storage.run(count, shift, ns=NS) for shift in range(20))))
    assert len(runs) == 20


# --- what may not be written ------------------------------------------------------------------------------


async def test_a_role_that_may_not_write_is_told(
    storage: PostgresStorage, connection: asyncpg.Connection
) -> None:
    await storage.run(put, "a", ns=NS)
    await connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE EXCEPTION 'permission denied for table things' USING ERRCODE = '42501'; END $$"
    )
    await connection.execute("CREATE TRIGGER refuse BEFORE INSERT ON things EXECUTE FUNCTION refuse()")
    with pytest.raises(ReadOnlyDatabase, match="permission denied"):
        await soon(storage.run(put, "b", ns=NS))
    assert await stored(storage) == ["a"]


async def test_a_newer_generation_is_refused_and_left_alone(
    postgres_url: str, connection: asyncpg.Connection
) -> None:
    storage = opened(postgres_url)
    await storage.run(put, "a", ns=NS)
    await storage.close()
    await connection.execute("UPDATE perdure_meta SET value = '999' WHERE name = 'schema'")
    await connection.execute("DROP TABLE things; CREATE VIEW things AS SELECT 1 AS one")
    error = await refusal(postgres_url)
    assert isinstance(error, NewerSchema)
    assert "999" in str(error)


async def test_many_processes_may_open_an_empty_database_at_once(postgres_url: str) -> None:
    storages = [opened(postgres_url) for _ in range(6)]
    calls = [each.run(put, f"n{number}", ns=NS) for number, each in enumerate(storages)]
    await soon(asyncio.gather(*calls))
    assert await stored(storages[0]) == [f"n{number}" for number in range(6)]
    await asyncio.gather(*(each.close() for each in storages))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (asyncpg.DiskFullError("x"), StorageFull),
        (asyncpg.OutOfMemoryError("x"), StorageUnavailable),
        (asyncpg.TooManyConnectionsError("x"), StorageUnavailable),
        (asyncpg.ReadOnlySQLTransactionError("x"), ReadOnlyDatabase),
        (asyncpg.InsufficientPrivilegeError("x"), ReadOnlyDatabase),
        (asyncpg.QueryCanceledError("x"), DeadlineExceeded),
        (asyncpg.LockNotAvailableError("x"), DeadlineExceeded),
        (asyncpg.InvalidPasswordError("x"), StorageUnavailable),
        (asyncpg.InvalidCatalogNameError("x"), StorageUnavailable),
        (asyncpg.AdminShutdownError("x"), StorageUnavailable),
        (asyncpg.CannotConnectNowError("x"), StorageUnavailable),
        (asyncpg.ConnectionDoesNotExistError("x"), StorageUnavailable),
        (asyncpg.DeadlockDetectedError("x"), StorageError),
        (asyncpg.UndefinedTableError("x"), StorageError),
        (asyncpg.ClientConfigurationError("x"), InvalidInput),
        (TimeoutError("x"), DeadlineExceeded),
        (ConnectionResetError("x"), StorageUnavailable),
        (OSError("x"), StorageUnavailable),
        (NotFound("x"), NotFound),
    ],
)
def test_each_error_of_the_server_is_one_of_ours(theirs: Exception, ours: type[PerdureError]) -> None:
    assert type(translate(theirs, "db.example:5432/things")) is ours


# --- a fork -----------------------------------------------------------------------------------------------

FORK = """
import asyncio, os, signal, sys, warnings

warnings.simplefilter("ignore", DeprecationWarning)
signal.alarm(60)

from perdure import PostgresLightningStore
from perdure.kernel.errors import StorageClosed

store = PostgresLightningStore(sys.argv[1])
asyncio.run(store.enqueue_rollout("before"))
from_child, to_parent = os.pipe()

if os.fork() == 0:
    signal.alarm(15)
    try:
        asyncio.run(store.enqueue_rollout("in the child"))
        os.write(to_parent, b"answered")
    except StorageClosed:
        os.write(to_parent, b"answered")
    os._exit(0)

os.close(to_parent)
os.wait()
print(os.read(from_child, 100).decode())
asyncio.run(store.enqueue_rollout("after"))
print("after")
asyncio.run(store.close())
"""


def test_a_fork_is_answered_and_harms_nobody(postgres_url: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(FORK), postgres_url]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
    assert answer.stdout.split("\n") == ["answered", "after", ""], answer.stderr
