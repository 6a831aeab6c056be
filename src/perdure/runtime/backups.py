"""Backups: a database and the logs of its sessions in one file, from either engine and for either engine.

A backup is of one moment, and is checked before it gets its name. Workspaces of workflow runs are not in it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from perdure.eventlog.moving import logs_to_files, logs_to_tables
from perdure.kernel import errors
from perdure.kernel.clock import to_micros
from perdure.kernel.config import Settings, mask_url
from perdure.kernel.record import Record
from perdure.kernel.storage import backup_file
from perdure.kernel.storage.ownership import Ownership, find_owner
from perdure.kernel.storage.schema import Schema, Table
from perdure.kernel.storage.sqlite_backup import (
    Progress,
    beside,
    check_file,
    copy_database,
    new_file,
    no_progress,
    sync,
)
from perdure.runtime.stores import TABLES, sqlite_file

SESSIONS = "agent-sessions"
POSTGRES = ("postgresql://", "postgres://")


class Backup(Record, kw_only=True):
    """A backup that was made or restored."""

    path: str
    bytes: int
    engine: str
    """The engine of the database that it is from."""
    version: str
    """The release of perdure that made it."""
    created_at: float
    session_files: int
    """How many files of session logs it has; those of PostgreSQL are in its tables."""


class Restored(Record, kw_only=True):
    """What was restored, and where that is kept which was there before."""

    database: str
    backup: Backup
    kept: list[str]


def describe(path: Path) -> Backup:
    """What a backup says of itself; a file that is no backup is refused."""
    note = backup_file.read_note(path)
    return Backup(
        path=str(path),
        bytes=path.stat().st_size,
        engine=note.engine,
        version=note.version,
        created_at=note.created_at,
        session_files=note.files,
    )


def get_sessions_folder(settings: Settings, file: Path) -> Path:
    """Where the logs of sessions are, for a database file."""
    return (Path(settings.state_dir) if settings.state_dir else file.resolve().parent) / SESSIONS


# --- making -------------------------------------------------------------------------------------------------


async def make_backup(
    database: str, target: Path, settings: Settings, progress: Progress = no_progress
) -> Backup:
    """Back a database up into a file. Servers and workers go on meanwhile."""
    file = sqlite_file(database)
    with new_file(target) as made:
        if file is not None:
            await asyncio.to_thread(copy_database, Path(file), made, progress)
            sessions = get_sessions_folder(settings, Path(file))
            await asyncio.to_thread(backup_file.complete, made, "sqlite", sessions)
        elif database.startswith(POSTGRES):
            await _copy_postgres(database, made, progress)
            await asyncio.to_thread(backup_file.complete, made, "postgres", None)
        else:
            raise errors.InvalidInput("a database in memory cannot be backed up")
        await asyncio.to_thread(_refuse_damaged, made, "the copy")
    return describe(target)


async def _copy_postgres(dsn: str, made: Path, progress: Progress) -> None:
    from perdure.kernel.storage.postgres_dump import dump

    schema = Schema(TABLES)
    connection = backup_file.new_database(made, schema)
    total = 0

    def write(table: Table, rows: Sequence[Sequence[Any]]) -> None:
        nonlocal total
        connection.executemany(backup_file.insert_into(table), rows)
        total += len(rows)
        progress(total, 0)

    try:
        connection.execute("BEGIN")
        await dump(dsn, schema, write)
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    finally:
        connection.close(True)


def _refuse_damaged(path: Path, what: str) -> None:
    problems = check_file(path)
    if problems:
        raise errors.NotADatabase(f"{what} is damaged: {problems[0]}")


# --- restoring ----------------------------------------------------------------------------------------------


def is_here(file: str) -> bool:
    """Whether a database file is on this machine, with something in it."""
    path = Path(file)
    return path.is_file() and path.stat().st_size > 0


async def holds_data(database: str) -> bool:
    """Whether something would be replaced by a restore."""
    file = sqlite_file(database)
    if file is not None:
        return is_here(file)
    from perdure.kernel.storage.postgres_dump import is_empty

    return not await is_empty(database)


def refuse_live(database: str) -> None:
    """A SQLite database that a process has open is not replaced."""
    file = sqlite_file(database)
    owner = None if file is None else find_owner(Path(file))
    if owner is not None:
        where = f" and serves it at {owner.url}" if owner.url else ""
        raise errors.Conflict(
            f"process {owner.pid} has {file} open{where}; stop it first (`perdure stop`). Nothing was changed"
        )


async def restore_backup(backup: Path, database: str, settings: Settings) -> Restored:
    """Put a backup in the place of a database. A file that was there is kept under another name."""
    found = describe(backup)
    await asyncio.to_thread(_refuse_damaged, backup, str(backup))
    refuse_live(database)
    file = sqlite_file(database)
    if file is not None:
        kept = await asyncio.to_thread(
            _restore_file, backup, Path(file), get_sessions_folder(settings, Path(file))
        )
        return Restored(database=file, backup=found, kept=kept)
    if not database.startswith(POSTGRES):
        raise errors.InvalidInput("a database in memory cannot be restored")
    await _restore_postgres(backup, database)
    return Restored(database=mask_url(database), backup=found, kept=[])


def _restore_file(backup: Path, target: Path, sessions: Path) -> list[str]:
    ownership = Ownership(target)
    extracted = sessions.with_name(f".{SESSIONS}.{os.getpid()}.tmp")
    try:
        with new_file(target) as made:
            copy_database(backup, made)
            has_files = backup_file.extract_files(made, extracted)
            backup_file.forget_backup(made)
            connection = backup_file.new_database(made, Schema(TABLES))
            try:
                # PostgreSQL has the logs of sessions in tables.
                has_files = logs_to_files(connection, extracted) or has_files
            finally:
                connection.close(True)
            sync(made)
            kept = _move_away(target, sessions if has_files else None)
        if has_files:
            extracted.replace(sessions)
        return kept
    finally:
        shutil.rmtree(extracted, ignore_errors=True)
        ownership.release()


def _move_away(target: Path, sessions: Path | None) -> list[str]:
    """Keep what is there under another name."""
    ending = ".before-restore-" + datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    kept = []
    for path in (target, *beside(target)):
        if path.exists():
            # A write-ahead log is found by the name of its database.
            moved = path.with_name(target.name + ending + path.name.removeprefix(target.name))
            path.replace(moved)
            kept.append(str(moved))
    if sessions is not None and sessions.exists():
        moved = sessions.with_name(sessions.name + ending)
        sessions.replace(moved)
        kept.append(str(moved))
    return kept


async def _restore_postgres(backup: Path, dsn: str) -> None:
    from perdure.kernel.storage.postgres_dump import load

    schema = Schema(TABLES)
    with TemporaryDirectory() as folder:
        made, files = Path(folder, "copy.db"), Path(folder, SESSIONS)
        await asyncio.to_thread(copy_database, backup, made)
        # A backup of an earlier release gets the tables and columns of this one.
        connection = backup_file.new_database(made, schema)
        try:
            if await asyncio.to_thread(backup_file.extract_files, made, files):
                logs_to_tables(files, connection, to_micros(describe(backup).created_at))
            await load(dsn, schema, lambda table: backup_file.read_rows(connection, table))
        finally:
            connection.close(True)
