"""Copies of SQLite databases: made while a process writes, checked, and moved into place by a rename."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from perdure.kernel import errors
from perdure.kernel.storage.schema import META
from perdure.kernel.storage.sqlite_engine import translate

PAGES = 2000
"""Number of pages copied between reports of progress."""
Progress = Callable[[int, int], None]
"""Callback with the finished and the total number of pages."""


def no_progress(done: int, total: int) -> None:
    """Ignore the progress."""


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Yield a temporary file next to `target` and rename it at the end; on an error nothing is left.

    A disk error becomes a message that names the file.
    """
    if not target.parent.is_dir():
        raise errors.InvalidInput(f"the directory of {target} does not exist")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        yield temporary
        sync(temporary)
        temporary.replace(target)
        sync(target.parent)
    except (OSError, apsw.FullError, apsw.IOError) as error:
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
        elif isinstance(error, apsw.FullError):
            reason = "the disk is full"
        else:
            # SQLite does not report the system's error.
            reason = "the disk refuses more data; a quota or a limit on the size of files may be reached"
        raise errors.StorageFull(f"cannot write {target}: {reason}; nothing was left behind") from error
    except apsw.Error as error:
        raise translate(error, str(target)) from error
    finally:
        for left in (temporary, *beside(temporary)):
            with contextlib.suppress(FileNotFoundError):
                left.unlink()


def beside(file: Path) -> list[Path]:
    """Return the files that SQLite keeps next to a database."""
    return [file.with_name(file.name + ending) for ending in ("-wal", "-shm", "-journal")]


def sync(path: Path) -> None:
    """Wait until a file or a directory is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_existing(path: Path, *, write: bool = False) -> apsw.Connection:
    """Open an existing perdure database; refuse other files."""
    if not path.is_file():
        raise errors.NotFound(f"{path} does not exist")
    flags = apsw.SQLITE_OPEN_READWRITE if write else apsw.SQLITE_OPEN_READONLY
    try:
        connection = apsw.Connection(str(path), flags=flags)
        connection.set_busy_timeout(5000)
        row = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (META.name,)).fetchone()
    except apsw.Error as error:
        raise translate(error, str(path)) from error
    if row is None:
        raise errors.NotADatabase(f"{path} is not a perdure database")
    return connection


def copy_database(source: Path, target: Path, progress: Progress = no_progress) -> None:
    """Copy one snapshot of a database. Writers continue; the write-ahead log grows meanwhile."""
    reading = open_existing(source)
    writing = apsw.Connection(str(target))
    try:
        # The open transaction holds the snapshot; without it, a write would restart the copy.
        reading.execute("BEGIN")
        reading.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        with writing.backup("main", reading, "main") as backup:
            while not backup.done:
                backup.step(PAGES)
                progress(backup.page_count - backup.remaining, backup.page_count)
        # A backup is one file.
        writing.execute("PRAGMA journal_mode = DELETE").fetchall()
    finally:
        writing.close(True)
        reading.close(True)


def check_file(path: Path) -> list[str]:
    """Return SQLite's findings of damage in a database file; empty if there are none."""
    connection = open_existing(path)
    try:
        return find_problems(connection)
    except apsw.Error as error:
        return [str(error)]
    finally:
        connection.close(True)


def find_problems(connection: apsw.Connection) -> list[str]:
    """Return damage in the pages, indexes and foreign keys of a database, as SQLite reports it."""
    problems = [str(text) for (text,) in connection.execute("PRAGMA quick_check(20)").fetchall()]
    problems = [] if problems == ["ok"] else problems
    keys = connection.execute("PRAGMA foreign_key_check").fetchall()
    return problems + [
        f"a row of {table} refers to a row of {parent} that is missing" for table, _, parent, _ in keys[:20]
    ]
