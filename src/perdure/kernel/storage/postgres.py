"""The PostgreSQL driver: pooled connections, whole-operation retries, and no answer left in doubt.

Connections belong to one event loop in a thread of the driver's own, so that callers may come from any thread
and any loop, and may go away at any time.

An operation runs at READ COMMITTED. It is run again on a deadlock, a serialization failure, or a connection
lost before the commit was sent. If the commit's answer is lost, the server is asked what became of the
transaction; only if it cannot say is the outcome unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import coroutine
from typing import Any

import asyncpg

from perdure.kernel import errors
from perdure.kernel.background import Background
from perdure.kernel.ids import Ids, RandomIds
from perdure.kernel.signals.port import Hint, Signals
from perdure.kernel.signals.postgres import PostgresSignals
from perdure.kernel.storage import dialect
from perdure.kernel.storage.dialect import BulkUpdate, Statement
from perdure.kernel.storage.port import Engine, Operation, Result, Row, inside_operation, refuse_nested
from perdure.kernel.storage.postgres_connection import (
    CONTENDED,
    LOST,
    Connection,
    Connections,
    Pool,
    translate,
)
from perdure.kernel.storage.postgres_schema import upgrade
from perdure.kernel.storage.schema import Schema, Table

SHARDS = 16
_BEGIN_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
# After a crash the server gives out again the ids that had not reached the disk: an id is of one era.
_ERA = "pg_postmaster_start_time()::text || coalesce(pg_last_wal_replay_lsn()::text, '')"
_XID = f"pg_current_xact_id()::text || ' ' || {_ERA}"
# Operations find rows by key. On a table that has just grown the planner would rather read it whole
# (seen: 44 ms instead of 1 ms for an update of 60 rows), so the other ways are closed to it.
_KEYED = "".join(
    f", set_config('{name}', 'off', true)"
    for name in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit")
)
_SETTINGS = "set_config('statement_timeout', $1, true)" + _KEYED
_PRELUDE_WRITE = f"SELECT {_NOW}, {_XID}, {_SETTINGS}"
_PRELUDE_READ = f"SELECT {_NOW}, NULL, {_SETTINGS}"
_BUSY = "SELECT EXISTS (SELECT 1 FROM pg_stat_progress_create_index WHERE relid = $1::text::regclass)"
_BUILD_SECONDS = 86_400.0
_STATE = f"SELECT pg_xact_status($1::text::xid8), {_ERA}"


class PostgresTx:
    """A transaction on one connection."""

    def __init__(self, connection: Connection, ns: int | None, now: int, ids: Ids) -> None:
        self._connection = connection
        self.ns = ns
        self.now = now
        self.ids = ids
        self.shard = connection.get_server_pid() % SHARDS
        self.hints: dict[Hint, None] = {}
        self.waiting = False

    def _bind(self, sql: Statement, parameters: dict[str, Any]) -> list[Any]:
        parameters.setdefault("now", self.now)
        if self.ns is not None:
            parameters.setdefault("ns", self.ns)
        return sql.bind_postgres(parameters)

    async def one(self, sql: Statement, /, **parameters: Any) -> Row | None:
        row: Row | None = await self._wait(
            self._connection.fetchrow(sql.postgres, *self._bind(sql, parameters))
        )
        return row

    async def all(self, sql: Statement, /, **parameters: Any) -> Sequence[Row]:
        rows: Sequence[Row] = await self._wait(
            self._connection.fetch(sql.postgres, *self._bind(sql, parameters))
        )
        return rows

    async def execute(self, sql: Statement, /, **parameters: Any) -> int:
        return _count(await self._wait(self._connection.execute(sql.postgres, *self._bind(sql, parameters))))

    async def execute_many(self, sql: Statement, rows: Sequence[Mapping[str, Any]], /) -> None:
        if len(rows) == 1:
            await self.execute(sql, **rows[0])
        elif rows:
            bound = [self._bind(sql, dict(row)) for row in rows]
            await self._wait(self._connection.executemany(sql.postgres, bound))

    async def insert_many(self, table: Table, rows: Sequence[tuple[Any, ...]], /) -> None:
        if rows:
            folded, columns = dialect.fold(rows, keep=len(table.key) - 1)
            await self._wait(self._connection.execute(dialect.insert_postgres(table, folded), *columns))

    async def update_many(self, update: BulkUpdate, rows: Sequence[tuple[Any, ...]], /) -> int:
        if not rows:
            return 0
        folded, columns = dialect.fold(rows, keep=len(update.sets) + len(update.keys) - 1)
        return _count(
            await self._wait(self._connection.execute(dialect.update_postgres(update, folded), *columns))
        )

    async def lock(self, table: Table, keys: Sequence[tuple[Any, ...]], /) -> None:
        if keys:
            columns = list(zip(*keys, strict=True))
            await self._wait(self._connection.fetch(dialect.lock_postgres(table), *columns))

    async def existing(self, table: Table, keys: Sequence[tuple[Any, ...]], /) -> Sequence[Row]:
        if not keys:
            return []
        columns = list(zip(*keys, strict=True))
        found: Sequence[Row] = await self._wait(
            self._connection.fetch(dialect.existing_postgres(table), *columns)
        )
        return found

    def hint(self, channel: str, key: str) -> None:
        self.hints[channel, key] = None

    async def _wait(self, query: Coroutine[Any, Any, Any]) -> Any:
        self.waiting = True
        try:
            return await query
        finally:
            self.waiting = False


def _count(status: str) -> int:
    """The row count at the end of a command tag such as `UPDATE 3`."""
    tail = status.rpartition(" ")[2]
    return int(tail) if tail.isdigit() else 0


@coroutine
def _drive(operation: Coroutine[Any, Any, Any], tx: PostgresTx) -> Any:
    """Run an operation; whatever it awaits must be its transaction."""
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            awaited = operation.send(value) if error is None else operation.throw(error)
        except StopIteration as stop:
            return stop.value
        if not tx.waiting:
            operation.close()
            raise errors.SuspendedOperation()
        error = None
        try:
            value = yield awaited
        except BaseException as thrown:  # noqa: BLE001 - handed on to the operation
            error = thrown


@dataclass(slots=True)
class _Call:
    """One call of an operation, and whether it has got a connection."""

    operation: Operation[..., Any]
    args: tuple[Any, ...]
    ns: int | None
    write: bool
    started: bool = False


class PostgresStorage:
    """A PostgreSQL database, shared with any number of other processes."""

    engine: Engine = "postgres"

    def __init__(
        self,
        dsn: str,
        tables: Iterable[Table],
        *,
        pool_size: int = 4,
        timeout: float = 30.0,
        pgbouncer: bool = False,
        ids: Ids | None = None,
    ) -> None:
        self.schema = Schema(tables)
        self.ids: Ids = ids or RandomIds()
        self._timeout = timeout
        self._connections = Connections(dsn, size=pool_size, timeout=timeout, pgbouncer=pgbouncer)
        self.where = self._connections.where
        self.timers = Background("perdure-background")
        self.signals: Signals = PostgresSignals(self.timers, self._connections.single)
        self._upgraded = False
        self._missing_indexes: list[str] = []
        self._degraded: str | None = None
        self._closed = False

    async def run(self, operation: Operation[..., Result], /, *args: Any, ns: int | None = None) -> Result:
        refuse_nested()
        result: Result = await self._owned(_Call(operation, args, ns, write=True))
        return result

    async def read(self, operation: Operation[..., Result], /, *args: Any, ns: int | None = None) -> Result:
        refuse_nested()
        result: Result = await self._owned(_Call(operation, args, ns, write=False))
        return result

    background = run

    async def _owned(self, call: _Call) -> Any:
        """Cancelling the caller drops work that waits for a connection, never work that has started."""
        if self._closed:
            raise errors.StorageClosed()
        return await self.timers.ask(partial(self._until_deadline, call), started=lambda: call.started)

    async def _until_deadline(self, call: _Call) -> Any:
        inside_operation.set(True)
        deadline = time.monotonic() + self._timeout
        pause = 0.005
        for tries in itertools.count(1):
            try:
                result = await self._once(call, deadline)
                self._degraded = None
                return result
            except (*CONTENDED, *LOST, TimeoutError) as error:
                failure = errors.StorageClosed() if self._closed else translate(error, self.where)
                if isinstance(failure, errors.StorageUnavailable):
                    self._degraded = str(failure)
                if not self._may_retry(error, tries) or time.monotonic() + pause > deadline:
                    raise failure from error
            except asyncpg.PostgresError as error:
                raise translate(error, self.where) from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.5)
        return None

    def _may_retry(self, error: BaseException, tries: int) -> bool:
        """A server that was never reached is reported at once; so is a call that ran into its time limit."""
        # A value that cannot be bound stays so, and a key that is still taken is no race.
        hopeless = isinstance(error, TimeoutError | ValueError) or (
            isinstance(error, asyncpg.UniqueViolationError) and tries >= 5
        )
        return self._upgraded and not hopeless and not self._closed

    async def _once(self, call: _Call, deadline: float) -> Any:
        if self._closed:
            raise errors.StorageClosed()
        pool = await self._connections.pool(self._prepare)
        left = max(deadline - time.monotonic(), 0.01)
        async with pool.acquire(timeout=left) as connection:
            call.started = True
            try:
                await connection.execute(_BEGIN_WRITE if call.write else _BEGIN_READ)
                prelude = _PRELUDE_WRITE if call.write else _PRELUDE_READ
                async with asyncio.timeout(left):
                    row = await connection.fetchrow(prelude, str(int(left * 1000)))
                    assert row is not None
                    tx = PostgresTx(connection, call.ns, row[0], self.ids)
                    result = await _drive(call.operation(tx, *call.args), tx)
            except BaseException as error:
                await _abandon(connection, error)
                raise
            return await self._commit(connection, tx, row[1], result, deadline)

    async def _commit(
        self, connection: Connection, tx: PostgresTx, xid: str | None, result: Any, deadline: float
    ) -> Any:
        try:
            if await connection.execute("COMMIT") != "COMMIT":
                raise errors.StorageError(f"PostgreSQL at {self.where}: a hidden error undid the operation")
        except (*LOST, TimeoutError) as error:
            _discard(connection)
            if xid is not None and not await self._was_committed(xid, deadline, error):
                raise ConnectionResetError("the transaction was lost before its commit") from error
        except asyncio.CancelledError:
            raise errors.OutcomeUnknown(f"PostgreSQL at {self.where}: closed during the commit") from None
        if tx.hints:
            self.signals.publish(tx.hints)
        return result

    async def _was_committed(self, xid: str, deadline: float, cause: BaseException) -> bool:
        """Ask the server, on a new connection, what became of a transaction whose commit was not answered."""
        while time.monotonic() < deadline:
            try:
                state = await self._ask_state(xid)
            except (*LOST, TimeoutError, asyncpg.PostgresError):
                state = "unreachable"
            if state in ("committed", "aborted"):
                return state == "committed"
            await asyncio.sleep(0.05)
        raise errors.OutcomeUnknown(
            f"PostgreSQL at {self.where}: the commit was not answered: {cause}"
        ) from cause

    async def _ask_state(self, xid: str) -> str:
        connection = await self._connections.single()
        try:
            number, _, era = xid.partition(" ")
            state, now = await connection.fetchrow(_STATE, number)
            if now != era and state != "aborted":
                raise errors.OutcomeUnknown(f"PostgreSQL at {self.where} crashed during the commit")
            return str(state)
        except asyncpg.InvalidParameterValueError:
            # After a crash the id may lie in the server's future: it never reached the disk.
            return "aborted"
        finally:
            await connection.close(timeout=2.0)

    async def _prepare(self, pool: Pool) -> None:
        if not self._upgraded:
            async with pool.acquire() as connection:
                missing = await upgrade(connection, self.schema)
            self._missing_indexes = [index.name for _, index in missing]
            self._upgraded = True
            if missing:
                self.timers.spawn(self._build_indexes(missing))

    async def _build_indexes(self, missing: Sequence[tuple[Table, Any]]) -> None:
        connection = await self._connections.single()
        try:
            for table, index in missing:
                while await connection.fetchval(_BUSY, table.name):  # noqa: ASYNC110 - nothing announces it
                    await asyncio.sleep(1.0)
                text = dialect.create_index(table, index, concurrently=True)
                await connection.execute(text, timeout=_BUILD_SECONDS)
                self._missing_indexes.remove(index.name)
        finally:
            await connection.close()

    async def health(self) -> Mapping[str, Any]:
        return {
            "status": "degraded" if self._degraded else "ok",
            "reason": self._degraded,
            "indexes_being_built": list(self._missing_indexes),
        }

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.signals.close()
        self.timers.close(self._connections.close)


async def _abandon(connection: Connection, cause: BaseException) -> None:
    """Roll back; a connection that cannot, or that has been silent for too long, is of no more use."""
    if isinstance(cause, TimeoutError):
        _discard(connection)
        return
    try:
        await connection.execute("ROLLBACK", timeout=5.0)
    except (*LOST, TimeoutError, asyncpg.PostgresError):
        _discard(connection)


def _discard(connection: Connection) -> None:
    # The pool takes a connection back by itself when it is lost, and then refuses to cut it.
    with contextlib.suppress(asyncpg.InterfaceError):
        connection.terminate()
