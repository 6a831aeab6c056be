"""SQLite without threads: one connection, its transactions, and groups of operations in one commit."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from perdure.kernel import errors
from perdure.kernel.clock import MICROS, Clock
from perdure.kernel.ids import Ids
from perdure.kernel.signals.port import Hint, Wanted, nobody_wants
from perdure.kernel.storage import ddl, dialect, fulltext
from perdure.kernel.storage.ownership import Identity, get_identity, open_private
from perdure.kernel.storage.port import Check
from perdure.kernel.storage.schema import (
    LARGE_TABLE_ROWS,
    META,
    SCHEMA_GENERATION,
    Index,
    Schema,
    Table,
)
from perdure.kernel.storage.sqlite_tx import SqliteTx, finish, refuse_suspended
from perdure.kernel.tally import Tally, TallyEntry

logger = logging.getLogger(__name__)

MEMORY = ":memory:"
TRIES = 3
APPLICATION_ID = 0x70657264
_WRITE_FLAGS = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
_READ_FLAGS = apsw.SQLITE_OPEN_READONLY
LOST = "the database file or its write-ahead log was removed or replaced; restart the server"
CHECK_SECONDS = 0.05
"""Seconds that a commit trusts the last check of the files: 2 calls of stat cost 4 us."""
WRITER_CACHE_KIB = 16_384
"""Cache of the writer: the size of the log at a checkpoint. It is kept until the writer closes."""
READER_CACHE_KIB = 8_192
"""Cache of each reader. Every commit empties it, so a larger cache would help only one scan."""
_PRESENT = """
SELECT present.name, columns.name FROM sqlite_schema AS present
LEFT JOIN pragma_table_info(present.name) AS columns ON present.type = 'table'
"""
"""Names of all objects in a database, with the columns of its tables."""
_STATEMENTS = 512
"""More than the number of statements: preparing one again costs more than keeping it."""

_ERRORS: tuple[tuple[type[Exception], type[errors.StorageError]], ...] = (
    (apsw.FullError, errors.StorageFull),
    (apsw.NotADBError, errors.NotADatabase),
    (apsw.CorruptError, errors.NotADatabase),
    (UnicodeDecodeError, errors.NotADatabase),
    (apsw.ReadOnlyError, errors.ReadOnlyDatabase),
    (apsw.CantOpenError, errors.StorageUnavailable),
    (apsw.IOError, errors.StorageUnavailable),
    (apsw.BusyError, errors.StorageUnavailable),
    (apsw.NoMemError, errors.StorageUnavailable),
)


def translate(error: BaseException, path: str) -> BaseException:
    """Translate a SQLite error to a perdure error; return other errors unchanged."""
    if isinstance(error, RuntimeError) and "event loop" in str(error):
        # The writer thread has no event loop: the operation awaited something that needs one.
        return errors.SuspendedOperation()
    if not isinstance(error, apsw.Error | UnicodeDecodeError):
        return error
    kind = next((ours for theirs, ours in _ERRORS if isinstance(error, theirs)), errors.StorageError)
    translated = kind(f"{path}: {error}")
    translated.__cause__ = error
    return translated


@dataclass(slots=True)
class WriterJob:
    """A call of an operation, the time of its first run, and its result or error."""

    operation: Callable[..., Coroutine[Any, Any, Any]]
    args: tuple[Any, ...]
    ns: int | None
    actor: str | None = None
    before: Sequence[Check] = ()
    writes: bool = True
    now: int = 0
    deadline: float = math.inf
    """Time limit in seconds of the monotonic clock."""
    stopped: BaseException | None = None
    """Reason of a stop, which becomes the error of an unfinished job."""
    result: Any = None
    error: BaseException | None = None
    hints: dict[Hint, int] = field(default_factory=dict)
    notes: list[TallyEntry] = field(default_factory=list)

    @property
    def hit_taken_id(self) -> bool:
        return self.error is not None and isinstance(self.error.__cause__, apsw.ConstraintError)


class Running:
    """The job that a connection runs. Any thread may interrupt it; no other job is affected."""

    __slots__ = ("_connection", "_lock", "_path", "closed", "job")

    def __init__(self, path: str) -> None:
        self._path = path
        self.job: WriterJob | None = None
        self.closed = False
        self._connection: apsw.Connection | None = None
        self._lock = threading.Lock()

    def run(self, job: WriterJob, tx: SqliteTx) -> None:
        """Run a job to its end, and store its result or error; the error of a stopped job is the reason.

        A transaction on SQLite never suspends, so an operation must not either.
        """
        self._connection, self.job = tx.connection, job
        job.error, job.hints, job.notes = None, tx.hints, tx.notes
        try:
            if self.closed or job.stopped is not None:
                raise job.stopped or errors.StorageClosed()
            for check in job.before:
                finish(check(tx))
            operation = job.operation(tx, *job.args)
            try:
                operation.send(None)
            except StopIteration as stop:
                job.result = stop.value
            else:
                refuse_suspended(operation)
            tx.finish()
        except apsw.InterruptError as error:
            job.error = job.stopped or translate(error, self._path)
        except BaseException as error:  # noqa: BLE001 - raised to the caller
            job.error = translate(error, self._path)
        finally:
            if job.error is not None:
                job.hints = {}
            with self._lock:
                self.job = None

    def stop(self, job: WriterJob | None, reason: BaseException) -> bool:
        """Stop a running or queued job; True if its statement was interrupted.

        Between two statements there is nothing to interrupt, so repeat the call until the job has ended.
        """
        if job is None:
            return False
        job.stopped = job.stopped or reason
        with self._lock:
            if self.job is not job or self._connection is None:
                return False
            self._connection.interrupt()
            return True


class SqliteEngine:
    """The writing connection. One thread uses it at a time."""

    def __init__(
        self,
        path: str,
        schema: Schema,
        *,
        clock: Clock,
        ids: Ids,
        synchronous: str = "FULL",
        timeout: float = 30.0,
        vfs: str | None = None,
    ) -> None:
        if synchronous not in ("FULL", "NORMAL", "EXTRA"):
            raise errors.InvalidInput(f"synchronous is {synchronous!r}; it must be FULL, NORMAL or EXTRA")
        self.path = path
        self.schema = schema
        self.clock = clock
        self.ids = ids
        self.wants: Wanted = nobody_wants
        self.degraded: str | None = None
        self.missing_indexes: list[tuple[Table, Index]] = []
        self.running = Running(path)
        self.tally = Tally()
        self._timeout = timeout
        self._broken = False
        self._synchronous = synchronous
        self._vfs = vfs
        self.lost: str | None = None
        """Reason why reads and writes are refused."""
        self._checked = 0.0
        self._identities: list[Identity | None] = []
        self.connection = self._open_checked()

    @property
    def in_memory(self) -> bool:
        return self.path == MEMORY

    def _open_checked(self) -> apsw.Connection:
        try:
            if not self.in_memory:
                os.close(open_private(Path(self.path)))
            connection = self.connect(_WRITE_FLAGS)
            try:
                self._upgrade(connection)
            except BaseException:
                connection.close()
                raise
            self._identities = self._found()
            return connection
        except (apsw.Error, UnicodeDecodeError) as error:
            raise translate(error, self.path) from error

    def connect(self, flags: int = _READ_FLAGS) -> apsw.Connection:
        """Open a connection with our settings; by default for reading."""
        connection = apsw.Connection(self.path, flags=flags, vfs=self._vfs, statementcachesize=_STATEMENTS)
        try:
            # Otherwise a statement is prepared again for every new value (measured: 50 us instead of 5).
            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
            connection.set_busy_timeout(5000)
            if flags == _WRITE_FLAGS:
                self._refuse_foreign(connection)
            for pragma in self._pragmas(flags):
                connection.execute(pragma).fetchall()
        except BaseException:
            connection.close()
            raise
        return connection

    def _pragmas(self, flags: int) -> list[str]:
        cache = WRITER_CACHE_KIB if flags == _WRITE_FLAGS else READER_CACHE_KIB
        pragmas = [
            "PRAGMA temp_store = MEMORY",
            "PRAGMA cache_size = -" + str(cache),
            "PRAGMA foreign_keys = ON",
        ]
        if flags == _WRITE_FLAGS:
            pragmas += ["PRAGMA journal_mode = WAL", "PRAGMA synchronous = " + self._synchronous]
            pragmas += ["PRAGMA wal_autocheckpoint = 4000", "PRAGMA journal_size_limit = 67108864"]
        return pragmas

    # --- the file ---------------------------------------------------------------------------------------

    def _found(self) -> list[Identity | None]:
        """Return the identities of the database file and of its write-ahead log."""
        return [] if self.in_memory else [get_identity(self.path), get_identity(self.path + "-wal")]

    def check_file(self) -> bool:
        """Return whether the files at the path are still the opened ones; callable from any thread."""
        self._checked = time.monotonic()
        identities = self._identities
        if self._found() != identities and not self._broken and identities is self._identities:
            self.lost = LOST
        return self.lost is None

    # --- schema -----------------------------------------------------------------------------------------

    def _upgrade(self, connection: apsw.Connection) -> None:
        with _immediate(connection):
            present: dict[str, set[str]] = {}
            for name, column in connection.execute(_PRESENT):
                present.setdefault(name, set()).add(column)
            for table in self.schema.tables.values():
                self._upgrade_table(connection, table, present)
            for view in self.schema.views:
                if view.name not in present:
                    connection.execute(view.create("sqlite"))
            connection.execute(
                "INSERT OR IGNORE INTO perdure_meta VALUES ('schema', ?)", (str(SCHEMA_GENERATION),)
            )
        connection.execute("PRAGMA application_id = " + str(APPLICATION_ID))

    def _refuse_foreign(self, connection: apsw.Connection) -> None:
        """Check the file before anything is changed, even its journal mode."""
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema").fetchall()}
        if names and META.name not in names:
            raise errors.NotADatabase(f"{self.path} is a SQLite database, but not a perdure database")
        if names:
            self._refuse_newer(connection)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)

    def _upgrade_table(
        self, connection: apsw.Connection, table: Table, present: Mapping[str, set[str]]
    ) -> None:
        if table.name not in present:
            connection.execute(ddl.create_table(table, "sqlite"))
            if table.filled_by is not None:
                connection.execute(table.filled_by)
        else:
            for column in table.columns:
                if column.name not in present[table.name]:
                    connection.execute(ddl.add_column(table, column, "sqlite"))
        if table.full_text is not None and table.full_text.name not in present:
            for text in fulltext.create_sqlite(table, table.full_text):
                connection.execute(text)
        missing = [index for index in table.indexes if index.name not in present]
        large = missing and table.name in present and _is_large(connection, table)
        for index in missing:
            if large:
                self.missing_indexes.append((table, index))
            else:
                connection.execute(ddl.create_index(table, index))

    def _refuse_newer(self, connection: apsw.Connection) -> None:
        row = connection.execute("SELECT value FROM perdure_meta WHERE name = 'schema'").fetchone()
        if row is not None and int(row[0]) > SCHEMA_GENERATION:
            raise errors.NewerSchema(
                f"{self.path} has schema {row[0]}; this release knows {SCHEMA_GENERATION}"
            )

    def build_index(self, table: Table, index: Index) -> None:
        """Build an index deferred at open; if it fails, the next open tries again."""
        # Unlike callers' writes, it does not delay a close.
        job = WriterJob(_create_index, (table, index), None, writes=False)
        self.running.run(job, SqliteTx(self.connection, None, 0, self.ids))
        if job.error is None:
            self.missing_indexes.remove((table, index))
        elif isinstance(job.error, errors.StorageError):
            self.degraded = f"{self.path}: the index {index.name} was not built: {job.error}"
        else:
            raise job.error

    # --- operations -------------------------------------------------------------------------------------

    def commit_group(self, jobs: Sequence[WriterJob]) -> dict[Hint, int]:
        """Run the jobs in one transaction and commit it; each then has its result or error.

        Return the hints to publish, with their counts.
        """
        if self.lost is not None:
            _refuse(jobs, errors.StorageUnavailable(self.lost, public=self.lost))
            return {}
        try:
            self._reopen()
            self._follow_wall_clock()
            self.connection.execute("BEGIN IMMEDIATE")
            # Without savepoints, for which SQLite would copy every changed page.
            for job in jobs:
                changes = self.connection.total_changes()
                self.running.run(job, self._begin(job))
                self._end(job)
                if job.error is not None and self._is_spoiled(job, changes):
                    self._run_guarded(jobs)
                    break
        except BaseException as error:  # noqa: BLE001 - raised to the caller
            self._fail(jobs, error)
            return {}
        return self._commit(jobs)

    def _follow_wall_clock(self) -> None:
        """After a forward step of the wall clock, move the stored deadlines, then the clock."""
        micros = self.clock.behind()
        if not micros:
            return
        with _immediate(self.connection):
            for table in self.schema.tables.values():
                if table.deadlines:
                    self.connection.execute(dialect.move_deadlines(table), (micros,) * len(table.deadlines))
        self.clock.follow(micros)
        logger.warning("the wall clock was set %.1f s ahead; deadlines were moved with it", micros / MICROS)

    def _begin(self, job: WriterJob) -> SqliteTx:
        """Create the transaction of a job's next run."""
        if not job.writes:
            # A reading job must not write, also on the writing connection.
            self.connection.execute("PRAGMA query_only = ON")
        job.now = job.now or self.clock.now()
        job.deadline = time.monotonic() + self._timeout
        wall = self.clock.wall(job.now)
        return SqliteTx(self.connection, job.ns, job.now, self.ids, self.wants, job.actor, wall)

    def _end(self, job: WriterJob) -> None:
        """Raise the error of a job that ended the transaction, unless the job was stopped."""
        if not job.writes:
            self.connection.execute("PRAGMA query_only = OFF")
        if not self.connection.in_transaction and (job.error is None or job.error is not job.stopped):
            raise job.error or errors.StorageUnavailable(f"{self.path}: transaction lost")

    def _is_spoiled(self, job: WriterJob, changes: int) -> bool:
        """Return whether a failed job left writes in the transaction, ended it, or should be tried again."""
        spoiled = job.hit_taken_id or self.connection.total_changes() != changes
        return spoiled or not self.connection.in_transaction

    def _run_guarded(self, jobs: Sequence[WriterJob]) -> None:
        """Run the jobs anew, each in a savepoint; restart the transaction without the jobs that broke it."""
        while True:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            left = [job for job in jobs if job.error is None or job.hit_taken_id]
            self.connection.execute("BEGIN IMMEDIATE")
            if all(self._run_in_savepoint(job) for job in left):
                return

    def _run_in_savepoint(self, job: WriterJob) -> bool:
        """Run a job in a savepoint, so that its failure undoes only its own writes; retry a taken random id.

        Return False if the transaction was lost, as after an interrupted write.
        """
        for _ in range(TRIES):
            self.connection.execute("SAVEPOINT operation")
            self.running.run(job, self._begin(job))
            self._end(job)
            if not self.connection.in_transaction:
                return False
            if job.error is not None:
                self.connection.execute("ROLLBACK TO operation")
            self.connection.execute("RELEASE operation")
            if not job.hit_taken_id:
                break
        return True

    def _commit(self, jobs: Sequence[WriterJob]) -> dict[Hint, int]:
        try:
            self.connection.execute("COMMIT")
        except BaseException as error:  # noqa: BLE001 - raised to the caller
            unknown = errors.OutcomeUnknown(f"{self.path}: the commit failed: {error}")
            self._fail(jobs, unknown)
            return {}
        if time.monotonic() > self._checked + CHECK_SECONDS and not self.check_file():
            _refuse(jobs, errors.OutcomeUnknown(self.lost))
            return {}
        # A full disk may refuse one operation without ending the transaction of the others.
        self.degraded = next(
            (
                str(job.error)
                for job in jobs
                if isinstance(job.error, errors.StorageError) and not job.stopped
            ),
            None,
        )
        notes = [note for job in jobs if job.error is None for note in job.notes]
        if notes:
            self.tally.add(notes)
        hints: dict[Hint, int] = {}
        for job in jobs:
            for hint, times in job.hints.items():
                hints[hint] = hints.get(hint, 0) + times
        return hints

    def _fail(self, jobs: Sequence[WriterJob], error: BaseException) -> None:
        """Fail every job of the group, because their transaction was lost."""
        cause = translate(error, self.path)
        self.degraded = str(cause)
        _refuse(jobs, cause)
        self._recover()

    def _recover(self) -> None:
        """Clean up after a failed transaction; the next group reopens the file."""
        if self.in_memory:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
        else:
            # Set before the close: with the last connection SQLite removes the write-ahead log.
            self._broken = True
            self.connection.close(True)

    def _reopen(self) -> None:
        if not self._broken:
            return
        if get_identity(self.path) != self._identities[0]:
            self.lost = LOST
            raise errors.StorageUnavailable(self.lost, public=self.lost)
        self.connection = self.connect(_WRITE_FLAGS)
        self._identities = self._found()
        self._broken = False

    def read(self, job: WriterJob, connection: apsw.Connection, running: Running) -> None:
        """Run a reading job on one snapshot of `connection`."""
        connection.execute("BEGIN")
        now = self.clock.now()
        running.run(job, SqliteTx(connection, job.ns, now, self.ids, wall=self.clock.wall(now)))
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def close(self) -> None:
        self.connection.close(True)


class _immediate:  # noqa: N801 - reads as a statement
    """BEGIN IMMEDIATE … COMMIT, or ROLLBACK on an error."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._connection.execute("COMMIT")
        elif self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def _refuse(jobs: Sequence[WriterJob], error: BaseException) -> None:
    for job in jobs:
        job.error = error
        job.hints = {}


async def _create_index(tx: SqliteTx, table: Table, index: Index) -> None:
    tx.connection.execute(ddl.create_index(table, index))


def _is_large(connection: apsw.Connection, table: Table) -> bool:
    text = "SELECT 1 FROM " + table.name + " LIMIT 1 OFFSET ?"
    return connection.execute(text, (LARGE_TABLE_ROWS,)).fetchone() is not None
