"""Ownership of a database file by one process.

The owner holds an advisory lock on `<file>.lock`, which the operating system releases when the process ends,
also after a crash; the content only names the owner. A second lock, on the database file itself, excludes
processes that use another path of the same file.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import sys
import weakref
from pathlib import Path
from typing import Any, NamedTuple

from perdure.kernel.errors import DatabaseOwned, NotADatabase, ReadOnlyDatabase, StorageUnavailable
from perdure.kernel.files import is_alive, is_locked, lock

Identity = tuple[int, int]
"""Device and inode of a file."""
_LOCKED_BYTE = 1 << 50
"""A byte beyond the end of any database, so that the lock does not collide with SQLite's locks."""

_held: weakref.WeakSet[Ownership] = weakref.WeakSet()


class Owner(NamedTuple):
    """Owner of a database file, and the URL where it serves it."""

    pid: int
    url: str | None


class Ownership:
    """The exclusive right of this process to one database file."""

    def __init__(self, database: Path, url: str | None = None) -> None:
        self.path = lock_path(database)
        self.identity: Identity | None = None
        self._database = database
        self._file: int | None = None
        self._descriptor: int | None = self._open()
        try:
            lock(self._descriptor)
        except OSError:
            holder = _read_content(self.path)
            self.release()
            raise DatabaseOwned(_describe(database, holder)) from None
        self._write({"pid": os.getpid(), "url": url})
        _held.add(self)

    def lock_file(self) -> None:
        """Lock the database file itself; create it if it does not exist."""
        identity = get_identity(self._database)
        # Closing a second descriptor of the file would release SQLite's locks in this process.
        if identity is not None and any(ownership.identity == identity for ownership in _held):
            raise DatabaseOwned(_describe(self._database, {"pid": os.getpid()}))
        self._file = open_private(self._database)
        status = os.fstat(self._file)
        if status.st_nlink > 1:
            raise StorageUnavailable(
                f"{self._database} has {status.st_nlink} names (hard links); a database must have one, since "
                "its write-ahead log is found by its name. Remove the other names."
            )
        if not _lock_byte(self._file):
            raise DatabaseOwned(f"{self._database} is in use by another process, under another path")
        self.identity = (status.st_dev, status.st_ino)

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        except OSError as error:
            raise ReadOnlyDatabase(f"cannot write {self.path}: {error.strerror}") from None

    def _write(self, content: dict[str, Any]) -> None:
        assert self._descriptor is not None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(content).encode(), 0)

    def release(self) -> None:
        """Release the locks; the lock file stays, because removing it would race with the next owner."""
        descriptors = (self._file, self._descriptor)
        self._file = self._descriptor = self.identity = None
        for descriptor in descriptors:
            if descriptor is not None:
                os.close(descriptor)


def _describe(database: Path, holder: dict[str, Any]) -> str:
    who = f"process {holder['pid']}" if "pid" in holder else "another process"
    where = f", which serves it at {holder['url']}" if holder.get("url") else ""
    return f"{database} is in use by {who}{where}; only one process may open a SQLite database"


def find_owner(database: Path) -> Owner | None:
    """Return the process that has a database file open, or None."""
    path = lock_path(database)
    content = _read_content(path)
    pid, url = content.get("pid"), content.get("url")
    if not isinstance(pid, int) or not is_alive(pid) or not is_locked(path):
        return None
    return Owner(pid, url if isinstance(url, str) else None)


def lock_path(database: Path) -> Path:
    """Return the path of the lock file of a database."""
    return database.with_name(database.name + ".lock")


def _read_content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text() or "{}")
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _lock_byte(descriptor: int) -> bool:
    """Lock one byte of a file for this descriptor; False if another process has locked it."""
    if sys.platform != "linux":
        return True
    import fcntl

    wanted = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, _LOCKED_BYTE, 1, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, wanted)
    except OSError as error:
        # Some file systems have no such locks.
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True


def get_identity(path: str | os.PathLike[str]) -> Identity | None:
    """Return the identity of the file at a path, or None without a file."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def open_private(path: Path) -> int:
    """Open a file. A new one is readable only by its owner; SQLite would use the umask's mode."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    except IsADirectoryError:
        raise NotADatabase(f"{path} is a directory") from None
    except FileNotFoundError:
        raise StorageUnavailable(f"the directory of {path} does not exist") from None
    except OSError as error:
        raise ReadOnlyDatabase(f"cannot write {path}: {error.strerror}") from None


def _forget_in_child() -> None:
    # A forked child shares the lock; it must not keep the lock after the owner has ended.
    for ownership in list(_held):
        ownership.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
