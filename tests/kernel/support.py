"""Helpers for the kernel's tests: a table, operations on it, a gate that holds one, three databases."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import asyncpg

from perdure.kernel.signals.port import Hint
from perdure.kernel.storage.dialect import BulkUpdate, Statement, statement
from perdure.kernel.storage.port import Row, Storage, Tx
from perdure.kernel.storage.postgres import PostgresStorage
from perdure.kernel.storage.schema import Index, Table, blob, integer, text
from perdure.kernel.storage.sqlite import SqliteStorage

T = TypeVar("T")

PATIENCE = 20.0
"""Seconds within which every expected event happens, on the slowest machine."""

NS = 7

THINGS = Table(
    "things",
    (integer("ns"), text("id"), integer("size", null=True), text("note", null=True), blob("body", null=True)),
    key=("ns", "id"),
    indexes=(Index("things_size", ("ns", "size")),),
)

FIND = statement("SELECT size, note, body FROM things WHERE ns = :ns AND id = :id")
IDS = statement("SELECT id FROM things WHERE ns = :ns ORDER BY id")
AMONG = statement("SELECT id FROM things WHERE ns = :ns AND id {among:ids} ORDER BY id")
HAVING = statement("SELECT id FROM things WHERE ns = :ns AND {has:note,part} ORDER BY id")
ADD = statement("INSERT INTO things (ns, id, size) VALUES (:ns, :id, :size)")
RESIZE = statement("UPDATE things SET size = :size WHERE ns = :ns AND id {among:ids}")
NOW_AND_NS = statement("SELECT cast(:now AS bigint), cast(:ns AS bigint)")
RESIZE_EACH = BulkUpdate(THINGS, sets=("size",), keys=("ns", "id"), guards=("size",))

WAIT_AT_GATE: Statement[Row] = Statement(
    "SELECT 1", "SELECT pg_advisory_xact_lock_shared(42)", (), frozenset()
)


async def put(tx: Tx, name: str, size: int | None = None) -> str:
    await tx.insert_many(THINGS, [(tx.ns, name, size, None, None)])
    return name


async def put_and_fail(tx: Tx, name: str, error: BaseException) -> None:
    await put(tx, name)
    tx.hint("things", name)
    raise error


async def put_and_hint(tx: Tx, name: str) -> None:
    await put(tx, name)
    tx.hint("things", name)
    tx.hint("things", name)


async def get_ids(tx: Tx) -> list[str]:
    return [row[0] for row in await tx.all(IDS)]


async def stored(storage: Storage) -> list[str]:
    return await storage.read(get_ids, ns=NS)


def open_database(where: str, tables: Iterable[Table], **options: Any) -> Storage:
    """Open the storage at a path or a PostgreSQL URL."""
    if where.startswith("postgres"):
        return PostgresStorage(where, tables, **{"timeout": PATIENCE, **options})
    return SqliteStorage(where, tables, **options)


@dataclass(frozen=True)
class Database:
    """A database that a test may open several times: in sequence, or on PostgreSQL at once."""

    kind: str
    where: str

    def open(self, tables: Iterable[Table] = (THINGS,), /, **options: Any) -> Storage:
        return open_database(self.where, tables, **options)


class Gate:
    """Holds an operation in the middle of its transaction until the test opens it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._entered = threading.Event()
        self._opened = threading.Event()
        self._connection: asyncpg.Connection | None = None

    async def pass_through(self, tx: Tx, name: str) -> str:
        """Run as the operation: store `name`, wait at the gate, and return."""
        await put(tx, name)
        tx.hint("things", name)
        self._entered.set()
        if self._database.kind != "postgres":
            assert self._opened.wait(PATIENCE)
        await tx.one(WAIT_AT_GATE)
        return name

    async def entered(self) -> None:
        """Wait until an operation is at the gate."""
        await until(self._entered.is_set)

    async def open(self) -> None:
        self._opened.set()
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()

    @classmethod
    @contextlib.asynccontextmanager
    async def closed(cls, database: Database) -> AsyncIterator[Gate]:
        gate = cls(database)
        if database.kind == "postgres":
            gate._connection = await asyncpg.connect(database.where)
            await gate._connection.execute("SELECT pg_advisory_lock(42)")
        try:
            yield gate
        finally:
            await gate.open()


async def until(condition: Callable[[], bool]) -> None:
    """Poll a condition until it is true."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.002)


async def until_true(question: Callable[[], Awaitable[object]]) -> None:
    """Poll an awaitable condition until it is true."""
    async with asyncio.timeout(PATIENCE):
        while not await question():  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.005)


async def soon(awaitable: Awaitable[T]) -> T:
    """Return the awaitable's result, which must be available within `PATIENCE` seconds."""
    async with asyncio.timeout(PATIENCE):
        return await awaitable


def record_hints(storage: Storage) -> list[list[Hint]]:
    """Record every list of hints that the storage publishes from now on."""
    published: list[list[Hint]] = []
    publish = storage.signals.publish

    def record(hints: Iterable[Hint]) -> None:
        published.append(list(hints))
        publish(published[-1])

    storage.signals.publish = record  # type: ignore[method-assign]
    return published


def in_thread(work: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> Awaitable[T]:
    """Run a coroutine function in a separate thread and event loop."""

    async def call() -> T:
        return await work(*args, **options)

    return asyncio.to_thread(lambda: asyncio.run(call()))


def files_beside(path: Path) -> Mapping[str, bytes]:
    """Return the content of a file and of those with its name as a prefix."""
    return {file.name: file.read_bytes() for file in sorted(path.parent.glob(path.name + "*"))}
