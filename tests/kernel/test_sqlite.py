"""The SQLite driver: files that it opens or refuses, and files that it leaves on the disk."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.kernel.support import NS, THINGS, files_beside, put, soon, stored

from perdure.kernel.errors import (
    InvalidInput,
    NewerSchema,
    NotADatabase,
    ReadOnlyDatabase,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from perdure.kernel.storage.sqlite import READERS, SqliteStorage
from perdure.kernel.storage.sqlite_engine import READER_CACHE_KIB, WRITER_CACHE_KIB, translate


def opened(path: Path, **options: Any) -> SqliteStorage:
    return SqliteStorage(path, [THINGS], **options)


async def make(path: Path, *names: str) -> None:
    storage = opened(path)
    for name in names:
        await storage.run(put, name, ns=NS)
    await storage.close()


def pragma(storage: SqliteStorage, name: str) -> Any:
    ((value,),) = storage._engine.connection.execute("PRAGMA " + name).fetchall()
    return value


# --- snapshots --------------------------------------------------------------------------------------------


async def test_a_cursor_that_is_held_keeps_no_reader_on_its_snapshot(tmp_path: Path) -> None:
    storage = opened(tmp_path / "things.db")
    for name in ("a", "b", "c"):
        await storage.run(put, name, ns=NS)
    held: list[apsw.Cursor] = []

    async def hold(tx: Any) -> None:
        cursor = tx.connection.execute("SELECT id FROM things")
        cursor.fetchone()
        held.append(cursor)

    for _ in range(READERS):
        await storage.read(hold, ns=NS)
    await storage.run(put, "d", ns=NS)
    for _ in range(2 * READERS):
        assert await stored(storage) == ["a", "b", "c", "d"]
    assert all(running.job is None for running in storage._running)
    await storage.close()


# --- how much memory it takes -----------------------------------------------------------------------------


async def test_the_pages_that_connections_keep_are_bounded(tmp_path: Path) -> None:
    storage = opened(tmp_path / "things.db")
    name = "x" * 400_000
    for number in range(60):
        await storage.run(put, f"{number} {name}", ns=NS)
    assert len(await stored(storage)) == 60
    readers = [storage._idle.get() for _ in range(storage._idle.qsize())]
    kept = [
        connection.status(apsw.SQLITE_DBSTATUS_CACHE_USED)[0]
        for connection in (storage._engine.connection, *(reader.connection for reader in readers))
    ]
    # A page is a little larger in memory than in the file.
    assert 8_000_000 < kept[0] < 1.1 * 1024 * WRITER_CACHE_KIB
    assert readers
    assert all(size < 1.1 * 1024 * READER_CACHE_KIB for size in kept[1:])
    for reader in readers:
        storage._idle.put(reader)
    await storage.close()


# --- what it leaves on the disk ---------------------------------------------------------------------------


async def test_everything_is_in_the_one_file_after_the_close(tmp_path: Path) -> None:
    path = tmp_path / "things.db"
    await make(path, "a", "b")
    assert sorted(files_beside(path)) == ["things.db", "things.db.lock"]
    shutil.copy(path, tmp_path / "copy.db")
    copy = opened(tmp_path / "copy.db")
    assert await stored(copy) == ["a", "b"]
    await copy.close()


async def test_the_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = tmp_path / "things.db"
        storage = opened(path)
        await storage.run(put, "a", ns=NS)
        await stored(storage)
        modes = {name: stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in files_beside(path)}
        await storage.close()
    finally:
        os.umask(before)
    names = ["things.db", "things.db-shm", "things.db-wal", "things.db.lock"]
    assert modes == dict.fromkeys(names, 0o600)


@pytest.mark.parametrize(("option", "level"), [("FULL", 2), ("NORMAL", 1), ("EXTRA", 3)])
async def test_how_safely_it_writes(tmp_path: Path, option: str, level: int) -> None:
    storage = opened(tmp_path / "things.db", synchronous=option)
    assert pragma(storage, "journal_mode") == "wal"
    assert pragma(storage, "synchronous") == level
    await storage.close()


async def test_an_acknowledged_write_survives_without_a_close(tmp_path: Path) -> None:
    path = tmp_path / "things.db"
    storage = opened(path)
    await storage.run(put, "a", ns=NS)
    copied = tmp_path / "copied"
    copied.mkdir()
    for file in (path, path.with_name("things.db-wal")):
        shutil.copy(file, copied)
    copy = opened(copied / "things.db")
    assert await stored(copy) == ["a"]
    await copy.close()
    await storage.close()


async def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    (tmp_path / "things.db").touch()
    await make(tmp_path / "things.db", "a")


async def test_a_path_may_be_relative_and_stays_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage = opened(Path("things.db"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert storage.path == str(tmp_path / "things.db")
    await storage.run(put, "a", ns=NS)
    assert await stored(storage) == ["a"]
    await storage.close()


# --- what it refuses --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"no",
        b"not a database\n" * 400,
        b"SQLite format 3\0",
        bytes(range(256)) * 32,
        b"SQLite format 3\0" + b"\xff" * 4096,
    ],
)
def test_a_file_that_is_not_a_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(NotADatabase, match=r"notes\.txt"):
        opened(path)
    assert path.read_bytes() == content


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    other = apsw.Connection(str(path))
    other.execute("CREATE TABLE recipes (name); INSERT INTO recipes VALUES ('soup')")
    other.close()
    before = path.read_bytes()
    with pytest.raises(NotADatabase, match="not a perdure database"):
        opened(path)
    assert path.read_bytes() == before
    assert sorted(files_beside(path)) == ["other.db", "other.db.lock"]


def test_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(NotADatabase, match="directory"):
        opened(tmp_path / "folder")


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match="missing"):
        opened(tmp_path / "missing" / "things.db")
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(InvalidInput):
        opened(Path("a\0b"))


def test_an_unknown_level_of_safety_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="OFF"):
        opened(tmp_path / "things.db", synchronous="OFF")


async def test_a_refusal_leaves_the_file_to_others(tmp_path: Path) -> None:
    path = tmp_path / "things.db"
    with pytest.raises(InvalidInput):
        opened(path, synchronous="OFF")
    await make(path, "a")


@pytest.mark.parametrize("compatible", [True, False])
async def test_a_newer_generation_is_refused_and_left_alone(tmp_path: Path, compatible: bool) -> None:
    """Also if perdure's tables could not be added to the newer ones."""
    path = tmp_path / "things.db"
    await make(path, "a")
    newer = apsw.Connection(str(path))
    newer.execute("UPDATE perdure_meta SET value = '999' WHERE name = 'schema'")
    if not compatible:
        newer.execute("DROP TABLE things; CREATE VIEW things AS SELECT 1")
    newer.close()
    before = path.read_bytes()
    with pytest.raises(NewerSchema, match="999"):
        opened(path)
    assert path.read_bytes() == before


async def test_damage_is_reported_and_nothing_hangs(tmp_path: Path) -> None:
    path = tmp_path / "things.db"
    await make(path, *(f"n{n:04}" for n in range(300)))
    content = bytearray(path.read_bytes())
    content[4096 * 2 :] = b"\xa5" * (len(content) - 4096 * 2)
    path.write_bytes(content)
    with pytest.raises(NotADatabase):
        await _open_and_read(path)


async def _open_and_read(path: Path) -> None:
    storage = opened(path)
    try:
        await soon(stored(storage))
    finally:
        await soon(storage.close())


async def test_a_reader_that_cannot_open_the_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "things.db"
    storage = opened(path)
    for name in files_beside(path):
        os.unlink(tmp_path / name)
    with pytest.raises(StorageError):
        await soon(stored(storage))
    await storage.close()


async def test_a_reader_that_failed_is_of_use_again(tmp_path: Path) -> None:
    storage = opened(tmp_path / "things.db")

    async def fail(tx: Any) -> None:
        raise LookupError

    results = await asyncio.gather(*(storage.read(fail) for _ in range(20)), return_exceptions=True)
    assert {type(result) for result in results} == {LookupError}
    assert await soon(stored(storage)) == []
    await storage.close()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (apsw.FullError, StorageFull),
        (apsw.NotADBError, NotADatabase),
        (apsw.CorruptError, NotADatabase),
        (apsw.ReadOnlyError, ReadOnlyDatabase),
        (apsw.CantOpenError, StorageUnavailable),
        (apsw.IOError, StorageUnavailable),
        (apsw.BusyError, StorageUnavailable),
        (apsw.NoMemError, StorageUnavailable),
        (apsw.SQLError, StorageError),
        (apsw.ConstraintError, StorageError),
    ],
)
def test_each_error_of_the_engine_is_one_of_ours(theirs: type[apsw.Error], ours: type[StorageError]) -> None:
    translated = translate(theirs("what went wrong"), "things.db")
    assert type(translated) is ours
    assert "things.db" in str(translated)
    assert "what went wrong" in str(translated)


def test_other_errors_stay_what_they_are() -> None:
    error = LookupError("no")
    assert translate(error, "things.db") is error


# --- without write access ---------------------------------------------------------------------------------

OPEN_AS_SOMEBODY = """
import os, sys
from perdure.kernel.errors import PerdureError
from perdure.kernel.storage.schema import Table, text
from perdure.kernel.storage.sqlite import SqliteStorage

if os.getuid() == 0:
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
try:
    SqliteStorage(sys.argv[1], [Table("things", (text("id"),), key=("id",))])
except PerdureError as error:
    print(type(error).__name__, error)
else:
    print("opened")
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that an unprivileged user can reach and own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        give(folder, 0o755)
        yield folder
        folder.chmod(0o755)


def give(path: Path, mode: int) -> None:
    path.chmod(mode)
    if os.getuid() == 0:
        os.chown(path, pwd.getpwnam("nobody").pw_uid, -1)


def open_as_somebody(path: Path) -> str:
    somebody = str(pwd.getpwnam("nobody").pw_uid)
    command = [sys.executable, "-c", OPEN_AS_SOMEBODY, str(path), somebody]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_whoever_may_write_opens(shared: Path) -> None:
    assert open_as_somebody(shared / "things.db") == "opened\n"


@pytest.mark.parametrize("mode", [0o400, 0o444, 0o000])
def test_a_file_that_cannot_be_written_is_refused(shared: Path, mode: int) -> None:
    path = shared / "things.db"
    assert open_as_somebody(path) == "opened\n"
    before = path.read_bytes()
    give(path, mode)
    answer = open_as_somebody(path)
    assert answer.startswith("ReadOnlyDatabase")
    assert str(path) in answer
    assert path.read_bytes() == before


@pytest.mark.parametrize("existing", [True, False])
def test_a_directory_that_cannot_be_written_is_refused(shared: Path, existing: bool) -> None:
    path = shared / "things.db"
    if existing:
        assert open_as_somebody(path) == "opened\n"
        path.with_name("things.db.lock").unlink()
    give(shared, 0o555)
    answer = open_as_somebody(path)
    assert answer.startswith("ReadOnlyDatabase")
    assert str(path) in answer


def test_a_lock_that_cannot_be_written_is_refused(shared: Path) -> None:
    path = shared / "things.db"
    assert open_as_somebody(path) == "opened\n"
    give(path.with_name("things.db.lock"), 0o444)
    assert open_as_somebody(path).startswith("ReadOnlyDatabase")
