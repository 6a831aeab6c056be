"""Backups: a database and its session logs in one file, from and for either engine; and scheduled backups.

A job of the server writes scheduled backups, and keeps the latest files in a directory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from perdure.eventlog.moving import logs_to_files, logs_to_tables
from perdure.jobs.model import JobContext
from perdure.kernel import errors
from perdure.kernel.clock import to_micros
from perdure.kernel.config import Settings, mask_url
from perdure.kernel.record import Record
from perdure.kernel.storage import backup_file
from perdure.kernel.storage.ownership import Ownership, find_owner
from perdure.kernel.storage.port import Storage
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
from perdure.runtime.services import state_folder
from perdure.runtime.stores import TABLES, sqlite_file

SESSIONS = "agent-sessions"
POSTGRES = ("postgresql://", "postgres://")


class Backup(Record, kw_only=True):
    """A backup that was created or restored."""

    path: str
    bytes: int
    engine: str
    """The engine of the source database."""
    version: str
    """The release of perdure that created it."""
    created_at: float
    session_files: int
    """Number of its session log files; PostgreSQL keeps the logs in tables."""


class Restored(Record, kw_only=True):
    """The result of a restore, and the new names of the files that it replaced."""

    database: str
    backup: Backup
    kept: list[str]


def describe(path: Path) -> Backup:
    """Read the description in a backup. Raise an error for other files."""
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
    """Return the folder of the session logs of a database file."""
    return (Path(settings.state_dir) if settings.state_dir else file.resolve().parent) / SESSIONS


# --- making -------------------------------------------------------------------------------------------------


async def make_backup(
    database: str, target: Path, settings: Settings, progress: Progress = no_progress
) -> Backup:
    """Back up a database into a file. Servers and workers continue in the meantime."""
    file = sqlite_file(database)
    with new_file(target) as copy:
        if file is not None:
            await asyncio.to_thread(copy_database, Path(file), copy, progress)
            sessions = get_sessions_folder(settings, Path(file))
            await asyncio.to_thread(backup_file.complete, copy, "sqlite", sessions)
        elif database.startswith(POSTGRES):
            await _copy_postgres(database, copy, progress)
            await asyncio.to_thread(backup_file.complete, copy, "postgres", None)
        else:
            raise errors.InvalidInput("a database in memory cannot be backed up")
        await asyncio.to_thread(_refuse_damaged, copy, "the copy")
    return describe(target)


async def _copy_postgres(dsn: str, copy: Path, progress: Progress) -> None:
    from perdure.kernel.storage.postgres_dump import dump

    schema = Schema(TABLES)
    connection = backup_file.new_database(copy, schema)
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
    """Return whether a database file exists on this machine and is not empty."""
    path = Path(file)
    return path.is_file() and path.stat().st_size > 0


async def holds_data(database: str) -> bool:
    """Return whether a restore would replace data."""
    file = sqlite_file(database)
    if file is not None:
        return is_here(file)
    from perdure.kernel.storage.postgres_dump import is_empty

    return not await is_empty(database)


def refuse_live(database: str) -> None:
    """Raise Conflict if a process has the SQLite database open."""
    file = sqlite_file(database)
    owner = None if file is None else find_owner(Path(file))
    if owner is not None:
        where = f" and serves it at {owner.url}" if owner.url else ""
        raise errors.Conflict(
            f"process {owner.pid} has {file} open{where}; stop it first (`perdure stop`). Nothing was changed"
        )


async def restore_backup(backup: Path, database: str, settings: Settings) -> Restored:
    """Replace a database by a backup. An existing file is renamed."""
    described = describe(backup)
    await asyncio.to_thread(_refuse_damaged, backup, str(backup))
    refuse_live(database)
    file = sqlite_file(database)
    if file is not None:
        kept = await asyncio.to_thread(
            _restore_file, backup, Path(file), get_sessions_folder(settings, Path(file))
        )
        return Restored(database=file, backup=described, kept=kept)
    if not database.startswith(POSTGRES):
        raise errors.InvalidInput("a database in memory cannot be restored")
    await _restore_postgres(backup, database)
    return Restored(database=mask_url(database), backup=described, kept=[])


def _restore_file(backup: Path, target: Path, sessions: Path) -> list[str]:
    ownership = Ownership(target)
    extracted = sessions.with_name(f".{SESSIONS}.{os.getpid()}.tmp")
    try:
        with new_file(target) as copy:
            copy_database(backup, copy)
            has_files = backup_file.extract_files(copy, extracted)
            backup_file.forget_backup(copy)
            connection = backup_file.new_database(copy, Schema(TABLES))
            try:
                # A backup of PostgreSQL has the session logs in tables.
                has_files = logs_to_files(connection, extracted) or has_files
            finally:
                connection.close(True)
            sync(copy)
            kept = _move_away(target, sessions if has_files else None)
        if has_files:
            extracted.replace(sessions)
        return kept
    finally:
        shutil.rmtree(extracted, ignore_errors=True)
        ownership.release()


def _move_away(target: Path, sessions: Path | None) -> list[str]:
    """Rename the existing files, and return their new names."""
    ending = ".before-restore-" + datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    kept = []
    for path in (target, *beside(target)):
        if path.exists():
            # SQLite finds a write-ahead log by the name of its database.
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
        copy, files = Path(folder, "copy.db"), Path(folder, SESSIONS)
        await asyncio.to_thread(copy_database, backup, copy)
        # A backup of an earlier release gets the tables and columns of this release.
        connection = backup_file.new_database(copy, schema)
        try:
            if await asyncio.to_thread(backup_file.extract_files, copy, files):
                logs_to_tables(files, connection, to_micros(describe(backup).created_at))
            await load(dsn, schema, lambda table: backup_file.read_rows(connection, table))
        finally:
            connection.close(True)


# --- scheduled backups ------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

BACKUP_JOB = "backup"
BACKUP_SECONDS = 6 * 3600.0
"""Maximum seconds of a backup."""


class ScheduledBackup:
    """Backs up the server's database. It is registered if `backup_schedule` is set."""

    def __init__(self, storage: Storage, settings: Settings) -> None:
        self._settings = settings
        self.folder = Path(settings.backup_dir or state_folder(settings, storage) / "backups")
        self.success_time: float | None = None
        """When this process last finished a backup, in epoch seconds."""

    async def run(self, context: JobContext, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Create a backup, then delete the oldest ones beyond `backup_keep`."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        backup = await make_backup(
            self._settings.database_url, self.folder / f"perdure-{stamp}.backup", self._settings
        )
        self.success_time = time.time()
        removed = self._remove_old()
        logger.info("backup %s: %.1f MB; %d old ones were removed", backup.path, backup.bytes / 1e6, removed)
        return {"path": backup.path, "bytes": backup.bytes, "removed": removed}

    def _remove_old(self) -> int:
        # The names sort by time.
        backups = sorted(self.folder.glob("perdure-*.backup"))
        old = backups[: max(len(backups) - self._settings.backup_keep, 0)]
        for path in old:
            path.unlink()
        return len(old)
