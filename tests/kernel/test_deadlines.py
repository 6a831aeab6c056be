"""No statement outlives its caller, its deadline or its storage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from tests.kernel.support import NS, PATIENCE, Database, put, soon, stored

from perdure.kernel.errors import DeadlineExceeded, OutcomeUnknown, StorageClosed
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Storage, Tx

COUNT_FOR_MINUTES = statement(
    "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000) "
    "SELECT count(*) FROM n"
)
RESIZE_FOR_MINUTES = statement(
    "UPDATE things SET size = (WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL "
    "SELECT i + 1 FROM n WHERE i < 1000000000) SELECT count(*) FROM n) WHERE ns = :ns"
)
DEADLINE = 0.4
READERS = 2


class Heavy:
    """Operations that take minutes, with a count of started ones."""

    def __init__(self) -> None:
        self.begun = 0

    async def read(self, tx: Tx) -> None:
        self.begun += 1
        await tx.one(COUNT_FOR_MINUTES)

    async def read_in_small_parts(self, tx: Tx) -> None:
        self.begun += 1
        while True:
            await tx.one(statement("SELECT 1"))

    async def write(self, tx: Tx) -> None:
        self.begun += 1
        await put(tx, "heavy")
        await tx.execute(RESIZE_FOR_MINUTES)

    async def have_begun(self, number: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.begun < number:  # noqa: ASYNC110 - counted by other threads
                await asyncio.sleep(0.002)


@pytest.fixture
def heavy() -> Heavy:
    return Heavy()


@pytest.fixture
async def patient(database: Database) -> AsyncIterator[Storage]:
    """A storage with a deadline longer than any test, and as many connections as SQLite has readers."""
    options = {"pool_size": READERS} if database.kind == "postgres" else {}
    opened = database.open(timeout=600.0, **options)
    await opened.run(put, "first", ns=NS)
    yield opened
    await opened.close()


@pytest.mark.parametrize("name", ["read", "read_in_small_parts"])
async def test_a_read_ends_with_its_caller(patient: Storage, heavy: Heavy, name: str) -> None:
    reads = [asyncio.ensure_future(patient.read(getattr(heavy, name), ns=NS)) for _ in range(READERS)]
    await heavy.have_begun(1)
    for read in reads:
        read.cancel()
    await asyncio.wait(reads)
    assert all(read.cancelled() for read in reads)
    assert await soon(stored(patient)) == ["first"]


async def test_a_read_ends_at_its_deadline(database: Database, heavy: Heavy) -> None:
    storage = database.open(timeout=DEADLINE)
    await storage.run(put, "first", ns=NS)
    with pytest.raises(DeadlineExceeded):
        await soon(storage.read(heavy.read, ns=NS))
    assert (await storage.health())["status"] == "ok"
    assert await soon(stored(storage)) == ["first"]
    await storage.close()


async def test_a_write_ends_at_its_deadline_and_its_neighbours_are_written(
    database: Database, heavy: Heavy
) -> None:
    storage = database.open(timeout=DEADLINE)
    await storage.run(put, "first", ns=NS)
    calls = [
        asyncio.ensure_future(soon(call))
        for call in (
            storage.run(put, "before", ns=NS),
            storage.run(heavy.write, ns=NS),
            storage.run(put, "after", ns=NS),
        )
    ]
    before, stopped, after = await asyncio.gather(*calls, return_exceptions=True)
    assert (before, after) == ("before", "after")
    assert isinstance(stopped, DeadlineExceeded)
    assert await stored(storage) == ["after", "before", "first"]
    assert (await storage.health())["status"] == "ok"
    await storage.close()


async def test_a_cancelled_caller_does_not_harm_its_group(patient: Storage) -> None:
    calls = [asyncio.ensure_future(patient.run(put, f"n{number}", ns=NS)) for number in range(9)]
    await asyncio.sleep(0)
    calls[4].cancel()
    await asyncio.wait(calls)
    assert {call.result() for call in calls if not call.cancelled()} <= set(await stored(patient))


async def test_a_close_does_not_wait_for_reads(database: Database, heavy: Heavy) -> None:
    storage = database.open(timeout=600.0)
    await storage.run(put, "first", ns=NS)
    reads = [asyncio.ensure_future(storage.read(heavy.read, ns=NS)) for _ in range(5)]
    await heavy.have_begun(1)
    began = time.monotonic()
    await storage.close()
    assert time.monotonic() - began < PATIENCE
    results = await soon(asyncio.gather(*reads, return_exceptions=True))
    assert {type(result) for result in results} == {StorageClosed}


async def test_a_close_stops_writes_that_take_too_long(
    database: Database, heavy: Heavy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.kernel.storage.sqlite.CLOSE_SECONDS", 0.1)
    storage = database.open(timeout=600.0)
    await storage.run(put, "first", ns=NS)
    writes = [asyncio.ensure_future(storage.run(heavy.write, ns=NS)) for _ in range(3)]
    await heavy.have_begun(1)
    began = time.monotonic()
    await storage.close()
    assert time.monotonic() - began < PATIENCE
    results = await soon(asyncio.gather(*writes, return_exceptions=True))
    assert {type(result) for result in results} <= {StorageClosed, OutcomeUnknown}
    if database.kind != "memory":
        again = database.open()
        assert await stored(again) == ["first"]
        await again.close()
