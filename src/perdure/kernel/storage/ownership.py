"""Which process owns a database file.

The owner holds an advisory lock on `<file>.lock`, which the operating system drops when the process ends
however it ends; the content only says who it is.
"""

from __future__ import annotations

import json
import os
import sys
import weakref
from pathlib import Path
from typing import Any

from perdure.kernel.errors import DatabaseOwned, ReadOnlyDatabase

_held: weakref.WeakSet[Ownership] = weakref.WeakSet()


class Ownership:
    """The exclusive right of this process to one database file."""

    def __init__(self, database: Path, url: str | None = None) -> None:
        self.path = database.with_name(database.name + ".lock")
        self._descriptor: int | None = self._open()
        try:
            _lock(self._descriptor)
        except OSError:
            holder = self._holder()
            self.release()
            raise DatabaseOwned(_describe(database, holder)) from None
        self._write({"pid": os.getpid(), "url": url})
        _held.add(self)

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        except OSError as error:
            raise ReadOnlyDatabase(f"cannot write {self.path}: {error.strerror}") from None

    def _holder(self) -> dict[str, Any]:
        try:
            content = json.loads(self.path.read_text() or "{}")
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _write(self, content: dict[str, Any]) -> None:
        assert self._descriptor is not None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(content).encode(), 0)

    def release(self) -> None:
        """Release the lock; the lock file stays, since removing it would race with the next owner."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _describe(database: Path, holder: dict[str, Any]) -> str:
    who = f"process {holder['pid']}" if "pid" in holder else "another process"
    where = f", which serves it at {holder['url']}" if holder.get("url") else ""
    return f"{database} is in use by {who}{where}; only one process may open a SQLite database"


def _lock(descriptor: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _forget_in_child() -> None:
    # A forked child shares the lock; it must not keep it alive after the owner has gone.
    for ownership in list(_held):
        ownership.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
