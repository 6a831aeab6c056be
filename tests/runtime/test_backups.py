"""Backups: made beside writers, restored to either engine, and refused where something would be lost."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure import PostgresLightningStore, SqliteLightningStore, open_store
from perdure.eventlog.port import LogName, compute_digest
from perdure.jobs.model import JobContext
from perdure.kernel.config import Settings
from perdure.kernel.errors import Conflict, InvalidInput, NotADatabase, NotFound, StorageFull
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runtime import backups
from perdure.runtime.backups import ScheduledBackup
from perdure.runtime.services import Services

SETTINGS = Settings()
FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"


async def filled(store: DatabaseLightningStore, count: int) -> None:
    """Enqueue rollouts, and let the first of them succeed."""
    for number in range(count):
        await store.enqueue_rollout({"number": number})
    claimed = await store.dequeue_rollout(worker_id="w")
    assert claimed is not None
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")


async def rollouts_in(url: str) -> int:
    async with open_store(url) as store:
        return len(await store.query_rollouts(limit=-1))


def old_database(path: Path, release: str) -> int:
    """Make the database of an earlier release; gives how many tasks it has."""
    connection = apsw.Connection(str(path))
    connection.execute((FIXTURES / f"release_{release}.sqlite.sql").read_text())
    found = connection.execute("SELECT 1 FROM rollouts WHERE kind = 'task' AND ns = 1").fetchall()
    connection.close()
    return len(found)


async def test_a_backup_is_of_one_moment_while_somebody_writes(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    async with SqliteLightningStore(file) as store:
        await filled(store, 20)
        log = tmp_path / "agent-sessions" / "projects" / "-app" / "s.jsonl"
        log.parent.mkdir(parents=True)
        log.write_text('{"a": 1}\n{"half')
        writing = asyncio.ensure_future(filled(store, 200))
        made = await backups.make_backup(str(file), tmp_path / "b.backup", SETTINGS)
        await writing
        assert (made.engine, made.session_files) == ("sqlite", 1)
        with pytest.raises(Conflict, match=r"has .*a\.db open"):
            await backups.restore_backup(tmp_path / "b.backup", str(file), SETTINGS)
    target = tmp_path / "c" / "c.db"
    target.parent.mkdir()
    restored = await backups.restore_backup(tmp_path / "b.backup", str(target), SETTINGS)
    assert restored.kept == []
    assert 20 <= await rollouts_in(str(target)) <= 220
    again = tmp_path / "c" / "agent-sessions" / "projects" / "-app" / "s.jsonl"
    assert again.read_text() == '{"a": 1}\n'
    async with SqliteLightningStore(target) as store:
        assert (await Services(store, SETTINGS).upkeep.verify()).ok


async def test_what_a_restore_replaces_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    async with SqliteLightningStore(file) as store:
        await filled(store, 3)
    await backups.make_backup(str(file), tmp_path / "b.backup", SETTINGS)
    async with SqliteLightningStore(file) as store:
        await filled(store, 4)
    assert await backups.holds_data(str(file))
    restored = await backups.restore_backup(tmp_path / "b.backup", str(file), SETTINGS)
    assert await rollouts_in(str(file)) == 3
    assert await rollouts_in(restored.kept[0]) == 7


async def test_what_is_no_backup_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database at all, but long enough to be read as one" * 100)
    async with SqliteLightningStore(tmp_path / "a.db") as store:
        await filled(store, 1)
    for name, error in (("text", NotADatabase), ("a.db", NotADatabase), ("missing", NotFound)):
        with pytest.raises(error):
            await backups.restore_backup(tmp_path / name, str(tmp_path / "x.db"), SETTINGS)
    with pytest.raises(InvalidInput, match="in memory"):
        await backups.make_backup("memory:", tmp_path / "b", SETTINGS)
    made = await backups.make_backup(str(tmp_path / "a.db"), tmp_path / "b", SETTINGS)
    data = bytearray((tmp_path / "b").read_bytes())
    data[8192:12288] = b"\xff" * 4096
    (tmp_path / "b").write_bytes(data)
    with pytest.raises(NotADatabase):
        await backups.restore_backup(tmp_path / "b", str(tmp_path / "x.db"), SETTINGS)
    assert made.bytes == len(data)
    assert not (tmp_path / "x.db").exists()


async def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with SqliteLightningStore(tmp_path / "a.db") as store:
        await filled(store, 50)
    plain = apsw.Connection

    def small(*args: object, **options: object) -> apsw.Connection:
        connection = plain(*args, **options)  # type: ignore[arg-type]
        if str(args[0]).endswith(".tmp"):
            connection.execute("PRAGMA max_page_count = 20").fetchall()
        return connection

    monkeypatch.setattr(apsw, "Connection", small)
    with pytest.raises(StorageFull, match="the disk is full; nothing was left behind"):
        await backups.make_backup(str(tmp_path / "a.db"), tmp_path / "b.backup", SETTINGS)
    assert [name for name in os.listdir(tmp_path) if "b.backup" in name] == []


async def test_a_database_of_an_earlier_release_is_backed_up_and_restored(tmp_path: Path) -> None:
    before = old_database(tmp_path / "old.db", "0_4_0")
    await backups.make_backup(str(tmp_path / "old.db"), tmp_path / "b.backup", SETTINGS)
    await backups.restore_backup(tmp_path / "b.backup", str(tmp_path / "new.db"), SETTINGS)
    assert await rollouts_in(str(tmp_path / "new.db")) == before > 0
    async with SqliteLightningStore(tmp_path / "new.db") as store:
        found = await Services(store, SETTINGS).upkeep.verify()
    assert found.items[0].ok


async def test_postgres_and_back(tmp_path: Path, database_url: str) -> None:
    """From a SQLite file to PostgreSQL, and to a SQLite file again."""
    async with SqliteLightningStore(tmp_path / "a.db") as store:
        await filled(store, 12)
    await backups.make_backup(str(tmp_path / "a.db"), tmp_path / "1.backup", SETTINGS)
    await backups.restore_backup(tmp_path / "1.backup", database_url, SETTINGS)
    assert await backups.holds_data(database_url)
    async with PostgresLightningStore(database_url) as store:
        await store.enqueue_rollout("live")
        with pytest.raises(Conflict, match="stop its servers and workers first"):
            await backups.restore_backup(tmp_path / "1.backup", database_url, SETTINGS)
        assert (await Services(store, SETTINGS).upkeep.verify()).ok
        made = await backups.make_backup(database_url, tmp_path / "2.backup", SETTINGS)
    assert made.engine == "postgres"
    await backups.restore_backup(tmp_path / "2.backup", str(tmp_path / "c.db"), SETTINGS)
    assert await rollouts_in(str(tmp_path / "c.db")) == 13


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Services]:
    services = Services.open(Settings(database_url=url))
    try:
        yield services
    finally:
        await services.close()


LINES = [b'{"n": %d, "text": "\xc3\xa9"}' % number for number in range(250)]


async def filled_logs(services: Services) -> None:
    """Logs of sessions and of a sub-agent, in two namespaces, by attempts and without, and a blob."""
    log = services.sessions.log
    assert await services.sessions.ns("write") == 1
    other = await services.sessions.in_namespace("other").ns("write")
    for ns in (1, other):
        await log.append(ns, LogName("-app", "s-1"), LINES[:3])
        await log.append(ns, LogName("-app", "s-1"), LINES[3:240], attempt_id="at-1")
        await log.append(ns, LogName("-app", "s-1"), LINES[:2], attempt_id="at-2", first=5)
        await log.append(ns, LogName("-app", "s-1", "agent-a/b"), LINES[:1])
    await log.put_blob(1, b"a blob")


async def logs_of(services: Services) -> Any:
    log = services.sessions.log
    other = await services.sessions.in_namespace("other").ns()
    names = (LogName("-app", "s-1"), LogName("-app", "s-1", "agent-a/b"))
    pages = [await log.read(ns, name, limit=1000) for ns in (1, other) for name in names]
    return [[line.body for line in page.lines] for page in pages if page is not None]


async def test_session_logs_move_between_files_and_tables(tmp_path: Path, database_url: str) -> None:
    """From files to the tables of PostgreSQL and back: every line once, and attempts go on."""
    async with opened(f"sqlite:///{tmp_path}/a.db") as first:
        await filled_logs(first)
        expected = await logs_of(first)
        assert [len(lines) for lines in expected] == [242, 1, 242, 1]
    made = await backups.make_backup(str(tmp_path / "a.db"), tmp_path / "1.backup", SETTINGS)
    assert made.session_files == 5
    await backups.restore_backup(tmp_path / "1.backup", database_url, SETTINGS)
    async with opened(database_url) as second:
        assert await logs_of(second) == expected
        assert await second.sessions.log.get_blob(1, compute_digest(b"a blob")) == b"a blob"
        # What an attempt has written already is not written again.
        await second.sessions.log.append(1, LogName("-app", "s-1"), LINES[3:240], attempt_id="at-1")
        assert await logs_of(second) == expected
        listed = await second.sessions.list()
        assert [each.session_id for each in listed] == ["s-1"]
    await backups.make_backup(database_url, tmp_path / "2.backup", SETTINGS)
    (tmp_path / "c").mkdir()
    await backups.restore_backup(tmp_path / "2.backup", str(tmp_path / "c" / "c.db"), SETTINGS)
    async with opened(f"sqlite:///{tmp_path}/c/c.db") as third:
        assert await logs_of(third) == expected
        assert await third.sessions.log.get_blob(1, compute_digest(b"a blob")) == b"a blob"
        await third.sessions.log.append(1, LogName("-app", "s-1"), LINES[:2], attempt_id="at-2", first=5)
        assert await logs_of(third) == expected
        assert (await third.upkeep.verify()).ok


async def test_verify_names_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    async with SqliteLightningStore(file) as store:
        await filled(store, 5)
    connection = apsw.Connection(str(file))
    connection.execute("DELETE FROM rollouts WHERE status = 'succeeded'")
    connection.execute("UPDATE rollouts SET ready = NULL")
    connection.close()
    async with SqliteLightningStore(file, watchdog_interval=None) as store:
        found = await Services(store, SETTINGS).upkeep.verify()
    broken = {each.check: each.found for each in found.items if not each.ok}
    assert not found.ok
    assert broken == {"attempts": 1, "queue_places": 4, "rollout_counts": 1}


async def test_backups_on_a_schedule_keep_the_latest(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    settings = Settings(database_url=str(file), backup_keep=2, backup_schedule="0 3 * * *")
    async with SqliteLightningStore(file) as store:
        await filled(store, 1)
        job = ScheduledBackup(store.storage, settings)
        folder = tmp_path / "backups"
        folder.mkdir()
        for day in (1, 2, 3):
            (folder / f"perdure-2020010{day}-000000.backup").write_text("old")
        context = JobContext(
            storage=store.storage, ns=1, namespace="default", job_id="j", name="backup", key=None, attempt=1
        )
        result = await job.run(context, {})
    assert result["removed"] == 2
    names = sorted(path.name for path in folder.iterdir())
    assert names[0] == "perdure-20200103-000000.backup"
    assert backups.describe(Path(result["path"])).engine == "sqlite"
    assert job.success_time is not None
    assert json.dumps(result)
