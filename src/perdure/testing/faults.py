"""Faults below the store: a disk that fails the N-th write, and a connection that fails the N-th statement.

A sweep runs the same scenario with a fault at 1, 2, 3 …, until a run does not reach the fault.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Literal, Self

import apsw

__all__ = ["FULL", "IOERR", "Fault", "FaultyDisk", "FaultyStatements", "Manner", "sweep"]

FULL = apsw.SQLITE_FULL
IOERR = apsw.SQLITE_IOERR

Manner = Literal["refused", "rolled back", "answer lost"]
"""How a statement fails: it is not executed; its whole transaction is rolled back, as SQLite itself does on
a full disk; or it is executed and its answer is lost."""


class Fault:
    """Fails the call with the number `at`, counted from 1; 0 fails none. `code` is an SQLite error code."""

    def __init__(self, at: int = 0, code: int = FULL, manner: Manner = "refused") -> None:
        self.at = at
        self.code = code
        self.manner = manner
        self.calls = 0
        self.met: str | None = None

    def comes(self, what: str) -> bool:
        """Count a call. Return True if it must fail."""
        self.calls += 1
        if self.calls == self.at:
            self.met = what
        return self.calls == self.at

    def error(self) -> Exception:
        error = apsw.exception_for(self.code)
        error.args = (f"injected at call {self.at}: {self.met}",)
        return error


class _FaultyFile(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        path = name.filename() if isinstance(name, apsw.URIFilename) else name or "temporary"
        self._name = "wal" if path.endswith("-wal") else "database"
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite's name
        if self._disk.fault.comes(f"write of {len(data)} bytes to the {self._name}"):
            # A failing disk may have written a part.
            super().xWrite(bytes(data)[: len(data) // 2], offset)
            raise self._disk.fault.error()
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        if self._disk.fault.comes(f"sync of the {self._name}"):
            raise self._disk.fault.error()
        super().xSync(flags)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - SQLite's name
        if self._disk.fault.comes(f"truncation of the {self._name}"):
            raise self._disk.fault.error()
        super().xTruncate(newsize)


_names = itertools.count()


class FaultyDisk(apsw.VFS):
    """A VFS on top of SQLite's own. Pass its `name` to a storage, and put faults into `fault`.

    It has no shared memory, so connections opened while it is in use lock the file exclusively.
    """

    def __init__(self) -> None:
        self.name = f"perdure-faulty-{next(_names)}"
        self.fault = Fault()
        super().__init__(self.name, "")

    def xOpen(self, name: Any, flags: list[int]) -> _FaultyFile:  # noqa: N802 - SQLite's name
        return _FaultyFile(self, name, flags)

    def __enter__(self) -> Self:
        apsw.connection_hooks.append(_hold_alone)
        return self

    def __exit__(self, *_: object) -> None:
        apsw.connection_hooks.remove(_hold_alone)
        self.unregister()


def _hold_alone(connection: apsw.Connection) -> None:
    connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()


class FaultyStatements:
    """Fails the statement that `fault` selects, in connections opened while it is in use.

    `only` chooses the statements that count, such as only COMMIT.
    """

    def __init__(self, only: Callable[[str], bool] = lambda sql: True) -> None:
        self.fault = Fault()
        self._only = only
        self._quiet = False

    def __enter__(self) -> Self:
        apsw.connection_hooks.append(self.attach)
        return self

    def __exit__(self, *_: object) -> None:
        apsw.connection_hooks.remove(self.attach)

    def attach(self, connection: apsw.Connection) -> None:
        connection.exec_trace = self._trace

    def _trace(self, cursor: apsw.Cursor, sql: str, _bindings: Any) -> bool:
        if self._quiet or sql.startswith("PRAGMA") or not self._only(sql) or not self.fault.comes(sql):
            return True
        self._quiet = True
        try:
            self._spoil(cursor, sql)
        finally:
            self._quiet = False
        raise self.fault.error()

    def _spoil(self, cursor: apsw.Cursor, sql: str) -> None:
        connection = cursor.connection
        if self.fault.manner == "answer lost" and sql == "COMMIT":
            connection.execute(sql)
        elif self.fault.manner == "rolled back" and connection.in_transaction:
            connection.execute("ROLLBACK")


def sweep(scenario: Callable[[int], Fault], most: int = 2000) -> Iterator[Fault]:
    """Run a scenario with its fault at 1, 2, 3 …, and stop after the first run that does not reach it."""
    for at in range(1, most):
        fault = scenario(at)
        yield fault
        if fault.met is None:
            return
    raise AssertionError(f"the scenario does not end within {most} calls")
