"""Content of a backup: a SQLite database with a table of files and a header."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from perdure.kernel import errors
from perdure.kernel.clock import SystemClock
from perdure.kernel.ids import RandomIds
from perdure.kernel.storage.schema import META, Schema, Table
from perdure.kernel.storage.sqlite_backup import open_existing
from perdure.kernel.storage.sqlite_engine import SqliteEngine, translate
from perdure.kernel.version import VERSION

NOTE = "backup"
"""Name in `perdure_meta` of the header of a backup."""
PART = 1 << 20
ROWS = 1000

_MAKE_FILES = (
    "CREATE TABLE perdure_backup_files (path TEXT, part INTEGER, content BLOB, PRIMARY KEY (path, part))"
)
_ADD_FILE = "INSERT INTO perdure_backup_files VALUES (?, ?, ?)"
_READ_FILES = "SELECT path, part, content FROM perdure_backup_files ORDER BY path, part"
_COUNT_FILES = "SELECT count(DISTINCT path) FROM perdure_backup_files"


class BackupHeader(NamedTuple):
    """Header of a backup: version and engine of its source, creation time, number of files."""

    version: str
    engine: str
    created_at: float
    files: int


def read_note(path: Path) -> BackupHeader:
    """Read the header of a backup; refuse other files."""
    connection = open_existing(path)
    try:
        row = connection.execute("SELECT value FROM perdure_meta WHERE name = ?", (NOTE,)).fetchone()
        if row is None:
            raise errors.NotADatabase(
                f"{path} is a perdure database, but not a backup; make one with `perdure db backup`"
            )
        (files,) = connection.execute(_COUNT_FILES).fetchone() or (0,)
    except apsw.Error as error:
        raise translate(error, str(path)) from error
    finally:
        connection.close(True)
    return BackupHeader(**msgspec.json.decode(row[0]), files=files)


def insert_into(table: Table) -> str:
    values = ", ".join("?" * len(table.columns))
    # A new database already has its schema generation.
    verb = "INSERT OR REPLACE INTO " if table.name == META.name else "INSERT INTO "
    return verb + table.name + " (" + ", ".join(table.names) + ") VALUES (" + values + ")"


def new_database(path: Path, schema: Schema) -> apsw.Connection:
    """Open a database with all current tables; add what an existing one lacks."""
    engine = SqliteEngine(str(path), schema, clock=SystemClock(), ids=RandomIds())
    for table, index in list(engine.missing_indexes):
        engine.build_index(table, index)
    return engine.connection


def complete(backup: Path, engine: str, sessions: Path | None) -> None:
    """Add the session files. They only grow, so they contain everything that the database refers to."""
    connection = open_existing(backup, write=True)
    try:
        with connection:
            connection.execute(_MAKE_FILES)
            for path in session_files(sessions):
                parts = enumerate(_read_parts(path))
                name = str(path.relative_to(sessions or path))
                connection.executemany(_ADD_FILE, ((name, number, part) for number, part in parts))
            note = {"version": VERSION, "engine": engine, "created_at": time.time()}
            values = (NOTE, msgspec.json.encode(note).decode())
            connection.execute("INSERT OR REPLACE INTO perdure_meta VALUES (?, ?)", values)
    finally:
        connection.close(True)


def session_files(folder: Path | None) -> Iterator[Path]:
    """Yield the files of session logs, without links."""
    if folder is None:
        return
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(parent, name)
            if path.is_file() and not path.is_symlink():
                yield path


def _read_parts(path: Path) -> Iterator[bytes]:
    """Read a file in parts; of a log, only complete lines."""
    data = path.read_bytes()
    if path.suffix == ".jsonl":
        data = data[: data.rfind(b"\n") + 1]
    return (data[start : start + PART] for start in range(0, len(data) or 1, PART))


def extract_files(backup: Path, folder: Path) -> bool:
    """Write the session files below a folder; return whether there are any."""
    connection = open_existing(backup)
    has_files = False
    try:
        for path, part, content in connection.execute(_READ_FILES):
            place = (folder / path).resolve()
            if not place.is_relative_to(folder.resolve()):
                raise errors.NotADatabase(f"{backup} has a file outside of its folder: {path!r}")
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if part == 0 else os.O_APPEND)
            with os.fdopen(os.open(place, flags, 0o600), "wb") as file:
                file.write(content)
            has_files = True
    finally:
        connection.close(True)
    return has_files


def forget_backup(database: Path) -> None:
    """Turn a copy of a backup into a database."""
    connection = open_existing(database, write=True)
    try:
        with connection:
            connection.execute("DROP TABLE perdure_backup_files")
            connection.execute("DELETE FROM perdure_meta WHERE name = ?", (NOTE,))
    finally:
        connection.close(True)


def read_rows(connection: apsw.Connection, table: Table) -> Iterator[Iterable[Sequence[Any]]]:
    """Read the rows of a table in parts, without a backup's header."""
    rows = connection.execute("SELECT " + ", ".join(table.names) + " FROM " + table.name)
    while part := [row for _, row in zip(range(ROWS), rows, strict=False)]:
        yield [row for row in part if table.name != META.name or row[0] != NOTE]
