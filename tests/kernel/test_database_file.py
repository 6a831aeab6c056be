"""The file of a database: one process owns it under any path, and its loss is detected."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kernel.support import NS, THINGS, files_beside, put, stored, until, until_true

from perdure.kernel.errors import DatabaseOwned, OutcomeUnknown, StorageError, StorageUnavailable
from perdure.kernel.storage import sqlite as driver
from perdure.kernel.storage.sqlite import SqliteStorage

OPEN = """
import asyncio, sys
from perdure.kernel.errors import StorageError
from perdure.kernel.storage.sqlite import SqliteStorage

try:
    asyncio.run(SqliteStorage(sys.argv[1], ()).close())
    print("opened")
except StorageError as error:
    print(error.code, error)
"""


def _open_elsewhere(path: Path) -> str:
    """Return the error in another process that opens the file."""
    command = [sys.executable, "-c", OPEN, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


# --- other names ------------------------------------------------------------------------------------------


async def test_a_file_with_two_names_is_refused_and_left_alone(tmp_path: Path) -> None:
    path, other = tmp_path / "things.db", tmp_path / "other" / "things.db"
    await SqliteStorage(path, [THINGS]).close()
    other.parent.mkdir()
    other.hardlink_to(path)
    before = files_beside(path)
    for name in (path, other):
        with pytest.raises(StorageUnavailable, match=r"has 2 names \(hard links\)"):
            SqliteStorage(name, [THINGS])
    assert files_beside(path) == before
    other.unlink()
    await SqliteStorage(path, [THINGS]).close()


async def test_no_other_process_opens_a_file_by_a_link_or_a_new_name(tmp_path: Path) -> None:
    path = tmp_path / "things.db"
    storage = SqliteStorage(path, [THINGS])
    (tmp_path / "link.db").symlink_to(path)
    assert "database_owned" in _open_elsewhere(tmp_path / "link.db")
    (tmp_path / "hard.db").hardlink_to(path)
    assert "hard links" in _open_elsewhere(tmp_path / "hard.db")
    (tmp_path / "hard.db").unlink()
    moved = path.rename(tmp_path / "moved.db")
    assert "database_owned" in _open_elsewhere(moved)
    with pytest.raises(DatabaseOwned, match=str(os.getpid())):
        SqliteStorage(moved, [THINGS])
    await storage.close()
    assert _open_elsewhere(moved) == "opened\n"


async def test_no_other_process_opens_a_file_whose_lock_file_was_removed(tmp_path: Path) -> None:
    path = tmp_path / "things.db"
    storage = SqliteStorage(path, [THINGS])
    (tmp_path / "things.db.lock").unlink()
    assert "database_owned" in _open_elsewhere(path)
    await storage.close()


# --- lost files -------------------------------------------------------------------------------------------


def _remove(path: Path) -> None:
    path.unlink()


def _replace(path: Path) -> None:
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)


@pytest.mark.parametrize("lose", [_remove, _replace])
@pytest.mark.parametrize("suffix", ["", "-wal"])
async def test_a_lost_file_is_noticed_and_nothing_is_read_or_written_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lose: Callable[[Path], None], suffix: str
) -> None:
    monkeypatch.setattr(driver, "LOOK_SECONDS", 0.02)
    storage = SqliteStorage(tmp_path / "things.db", [THINGS])
    await storage.run(put, "first", ns=NS)
    assert (await storage.health())["status"] == "ok"
    lose(tmp_path / ("things.db" + suffix))
    await until(lambda: storage._engine.lost is not None)
    health = await storage.health()
    assert health["status"] == "degraded"
    assert "was removed or replaced; restart" in health["reason"]
    assert str(tmp_path) not in health["reason"]
    for call in (storage.run(put, "second", ns=NS), storage.background(put, "third", ns=NS), stored(storage)):
        with pytest.raises(StorageUnavailable, match="was removed or replaced"):
            await call
    await storage.close()


@pytest.mark.parametrize("suffix", ["", "-wal"])
async def test_a_commit_notices_by_itself_that_its_file_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(driver, "LOOK_SECONDS", 600.0)
    storage = SqliteStorage(tmp_path / "things.db", [THINGS], timeout=6000.0)
    await storage.run(put, "first", ns=NS)
    _remove(tmp_path / ("things.db" + suffix))
    names = map(str, itertools.count())
    refused: list[StorageError] = []

    async def is_refused() -> bool:
        try:
            await storage.run(put, next(names), ns=NS)
        except StorageError as error:
            refused.append(error)
        return bool(refused)

    await until_true(is_refused)
    assert isinstance(refused[0], OutcomeUnknown)
    assert (await storage.health())["status"] == "degraded"
    await storage.close()


async def test_a_new_reader_notices_that_the_file_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "LOOK_SECONDS", 600.0)
    storage = SqliteStorage(tmp_path / "things.db", [THINGS], timeout=6000.0)
    await storage.run(put, "first", ns=NS)
    _replace(tmp_path / "things.db")
    with pytest.raises(StorageUnavailable, match="was removed or replaced"):
        await stored(storage)
    await storage.close()


async def test_what_was_in_a_removed_log_is_saved_by_the_close(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "things.db", [THINGS])
    await storage.run(put, "first", ns=NS)
    (tmp_path / "things.db-wal").unlink()
    await storage.close()
    again = SqliteStorage(tmp_path / "things.db", [THINGS])
    assert await stored(again) == ["first"]
    await again.close()


async def test_a_new_file_under_the_old_name_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "things.db"
    await SqliteStorage(tmp_path / "new.db", [THINGS]).close()
    storage = SqliteStorage(path, [THINGS])
    await storage.run(put, "first", ns=NS)
    (tmp_path / "new.db").rename(path)
    content = path.read_bytes()
    await storage.close()
    assert path.read_bytes() == content


async def test_a_lost_connection_is_not_opened_again_on_another_file(tmp_path: Path) -> None:
    path = tmp_path / "things.db"
    storage = SqliteStorage(path, [THINGS], timeout=6000.0)
    storage._engine._recover()
    _replace(path)
    with pytest.raises(StorageUnavailable, match="was removed or replaced"):
        await storage.run(put, "first", ns=NS)
    await storage.close()
