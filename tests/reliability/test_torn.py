"""Torn logs, damaged files, and the order of disk and answer on SQLite."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.chaos.damaged import damage_files, read_everything
from tests.chaos.scenario import Run, run_clean
from tests.chaos.stores import open_storage, store_over
from tests.chaos.torn import TornLogs
from tests.chaos.writer import NAMESPACE, Writer
from tests.reliability.recording_vfs import Journal, RecordingVFS

from perdure.kernel.errors import NotADatabase
from perdure.kernel.storage.sqlite import SqliteStorage
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runtime.stores import TABLES, wire

CUTS = 40
DAMAGES = 30
CALLERS = 64


def test_a_torn_log_gives_exactly_the_calls_before_the_tear(tmp_path: Path) -> None:
    def tear(run: Run) -> None:
        logs = TornLogs(run)
        logs.cut_at_every_end()
        logs.tear_all()

    run = run_clean(tear, CUTS, tmp_path)
    assert run.facts["transactions"] > 50
    assert run.done == CUTS + 2 * run.facts["transactions"]


def test_a_damaged_file_is_refused_by_name_or_readable(tmp_path: Path) -> None:
    run = run_clean(damage_files, DAMAGES, tmp_path)
    assert run.facts["not_a_database"] > 0


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (b'"max_attempts"', b'"max_\xdfttempts"'),
        (b'"max_attempts"', b'"max_attempts\\'),
        (b'{"token":"c', b'{"token":"\xff'),
        (b'{"token":"c', b'{"token":c"'),
        (b'{"llm":', b'{"llm"+'),
        (b"succeeded", b"succeedet"),
    ],
)
async def test_a_stored_record_that_is_damaged_is_called_so(tmp_path: Path, was: bytes, now: bytes) -> None:
    path = tmp_path / "damaged.db"
    store = store_over(open_storage(str(path)), NAMESPACE, 3600.0)
    await Writer(store, 0).round()
    await store.close()
    assert was in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(was, now))
    store = store_over(open_storage(str(path)), NAMESPACE, 3600.0)
    with pytest.raises(NotADatabase):
        await read_everything(store)
    await store.close()


@asynccontextmanager
async def _recorded(path: Path, journal: Journal, synchronous: str) -> AsyncIterator[DatabaseLightningStore]:
    vfs = RecordingVFS(f"recording-{id(journal)}", journal)
    storage = SqliteStorage(path, TABLES, synchronous=synchronous, vfs=vfs.name)
    store = DatabaseLightningStore(wire(storage))
    try:
        yield store
    finally:
        await store.close()
        vfs.unregister()


@pytest.mark.parametrize(("synchronous", "durable"), [("FULL", True), ("EXTRA", True), ("NORMAL", False)])
async def test_each_answered_write_was_on_the_disk_before(
    tmp_path: Path, synchronous: str, durable: bool
) -> None:
    """With NORMAL the log is not brought to the disk at a commit, which shows that the proof can fail."""
    journal = Journal()
    tokens = [f"token-{number:04}" for number in range(CALLERS)]
    async with _recorded(tmp_path / "synced.db", journal, synchronous) as store:

        async def enqueue(token: str) -> None:
            await store.enqueue_rollout({"token": token})
            journal.note("answer", token.encode())

        for token in tokens[:8]:
            await enqueue(token)
        await asyncio.gather(*map(enqueue, tokens[8:]))
    answered = [journal.synced_before_its_answer(token.encode()) for token in tokens]
    assert all(answered) if durable else not any(answered)


async def test_nobody_is_answered_while_the_disk_is_being_written(tmp_path: Path) -> None:
    journal = Journal()
    async with _recorded(tmp_path / "slow.db", journal, "FULL") as store:
        await store.enqueue_rollout("first")
        journal.syncing.clear()
        journal.may_sync.clear()
        try:
            calls = [asyncio.ensure_future(store.enqueue_rollout(number)) for number in range(8)]
            await asyncio.to_thread(journal.syncing.wait)
            # A reader is answered meanwhile, so that the loop has had its turns.
            assert len(await store.query_rollouts()) == 1
            assert not any(call.done() for call in calls)
        finally:
            journal.may_sync.set()
        assert len(await asyncio.gather(*calls)) == 8
