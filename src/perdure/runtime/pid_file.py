"""The PID file of a background server: one for each database, in the runtime directory.

A lock shows whether the process of a PID file still runs. On SQLite it is the lock that the owner of the
database file holds anyway; otherwise it is on a file next to the PID file. The operating system drops both
whenever the process ends, so a leftover PID file has no effect.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

import msgspec

from perdure.kernel.errors import StartRefused
from perdure.kernel.files import is_alive, is_locked, lock
from perdure.kernel.lifecycle import STARTING, STOPPED
from perdure.kernel.storage.ownership import Owner, find_owner
from perdure.runtime.private_files import make_private, runtime_directory, write_private
from perdure.runtime.stores import MEMORY_URLS, sqlite_file

logger = logging.getLogger(__name__)

LONGEST_NAME = 40
POSTGRES_PORT = 5432


class DaemonRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The description of a background server, in a file next to its PID file."""

    pid: int
    status: str
    database: str
    """URL of the database, without a password."""
    url: str | None = None
    grpc_port: int | None = None
    workers: int = 1
    agents: list[str] = []
    started_at: float
    seconds_to_stop: float
    log_file: str | None = None
    directory: str
    """The working directory, whose settings and agents the server uses."""
    options: dict[str, Any] = {}
    """The options of its start, except the database."""


class DaemonFiles(NamedTuple):
    """Files of the server of one database."""

    pid: Path
    record: Path
    lock: Path
    log_name: str

    @classmethod
    def of(cls, database_url: str) -> Self:
        name = _build_name(database_url)
        folder = runtime_directory()
        return cls(folder / f"{name}.pid", folder / f"{name}.json", folder / f"{name}.lock", f"{name}.log")


class Daemon(NamedTuple):
    """The state of the server of a database."""

    status: str
    record: DaemonRecord | None
    """The record of the server, or of an earlier one."""
    owner: Owner | None
    """The process that has the SQLite file open, which may be another program."""

    @property
    def is_running(self) -> bool:
        """Whether the process of the record runs."""
        return self.status != STOPPED

    @property
    def crashed_pid(self) -> int | None:
        """The process that has ended without removing its PID file."""
        record = self.record
        return None if record is None or self.is_running or is_alive(record.pid) else record.pid


def find_daemon(database_url: str) -> Daemon:
    """Find the server of a database that was started with `perdure start`."""
    files = DaemonFiles.of(database_url)
    record = _read(files)
    file = sqlite_file(database_url)
    owner = None if file is None else find_owner(_resolved(file))
    if record is None:
        return Daemon(STOPPED, None, owner)
    if file is None:
        held = is_alive(record.pid) and is_locked(files.lock)
    else:
        held = owner is not None and owner.pid == record.pid
    return Daemon(record.status if held else STOPPED, record, owner)


def _read(files: DaemonFiles) -> DaemonRecord | None:
    try:
        record = msgspec.json.decode(files.record.read_bytes(), type=DaemonRecord)
        pid = int(files.pid.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return record if record.pid == pid else None


class PidFile:
    """The PID file of this process, from `take` to `remove`."""

    def __init__(self, database_url: str, record: DaemonRecord) -> None:
        self.record = record
        self._files = DaemonFiles.of(database_url)
        self._own_lock = sqlite_file(database_url) is None
        self._descriptor: int | None = None

    @property
    def path(self) -> Path:
        return self._files.pid

    def take(self) -> None:
        """Write the file, and replace a leftover one. On SQLite, call this after opening the database."""
        try:
            make_private(self._files.pid.parent)
            if self._own_lock:
                self._lock()
            write_private(self._files.pid, f"{self.record.pid}\n")
        except OSError as error:
            raise StartRefused(f"the PID file {self._files.pid} cannot be written: {error}") from None
        self.write_status(STARTING)

    def _lock(self) -> None:
        self._descriptor = os.open(
            self._files.lock, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600
        )
        try:
            lock(self._descriptor)
        except OSError:
            self._release()
            raise StartRefused(f"perdure is already running for {self.record.database}") from None

    def write_status(self, status: str, **facts: Any) -> None:
        """Write the status of this process, and new facts about it."""
        self.record = msgspec.structs.replace(self.record, status=status, **facts)
        write_private(self._files.record, msgspec.json.encode(self.record).decode())

    def remove(self) -> None:
        """Remove the file, unless it now belongs to another process.

        The lock file stays, because removing it would race with the next process that locks it.
        """
        record = _read(self._files)
        if record is not None and record.pid == self.record.pid:
            for path in (self._files.record, self._files.pid):
                path.unlink(missing_ok=True)
        self._release()

    def _release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


# --- names of databases -----------------------------------------------------------------------------------


def _build_name(database_url: str) -> str:
    """Build the readable, unique name of a database's files."""
    identity, label = _identity(database_url)
    digits = hashlib.sha256(identity.encode()).hexdigest()[:8]
    label = re.sub(r"[^A-Za-z0-9_]+", "-", label).strip("-")[:LONGEST_NAME]
    return f"{label}-{digits}" if label else digits


def _identity(database_url: str) -> tuple[str, str]:
    """Return the identity of a database without credentials, and a readable label."""
    file = sqlite_file(database_url)
    if file is not None:
        path = _resolved(file)
        return f"sqlite:{path}", path.stem
    if database_url in MEMORY_URLS:
        return "memory:", "memory"
    parts = urlsplit(database_url)
    query = parse_qs(parts.query)
    host = query.get("host", [parts.hostname or "localhost"])[0]
    port = query.get("port", [str(parts.port or POSTGRES_PORT)])[0]
    name = query.get("dbname", [parts.path.strip("/")])[0]
    return f"postgresql://{host}:{port}/{name}", name


def _resolved(file: str) -> Path:
    return Path(file).expanduser().resolve()
