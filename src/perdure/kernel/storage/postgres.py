"""The PostgreSQL driver: pooled connections, retries of whole operations, and resolution of lost commits.

Connections belong to one event loop in the driver's own thread, so that callers may use any thread and loop,
and may be cancelled at any time.

An operation runs at READ COMMITTED. It is retried after a deadlock, a serialization failure, or a connection
lost before the commit was sent. If the answer to a commit is lost, the driver asks the server for the state
of the transaction. The outcome is unknown only if the server cannot answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import asyncpg

from perdure.kernel import errors
from perdure.kernel.background import Background
from perdure.kernel.ids import Ids, RandomIds
from perdure.kernel.retry import Backoff
from perdure.kernel.signals.port import Signals, find_carrier
from perdure.kernel.signals.postgres import PostgresSignals
from perdure.kernel.storage import ddl
from perdure.kernel.storage.port import Check, Engine, Operation, Result, inside_operation, refuse_nested
from perdure.kernel.storage.postgres_connection import (
    CONTENDED,
    LOST,
    Connection,
    Pool,
    PostgresPool,
    translate,
)
from perdure.kernel.storage.postgres_schema import upgrade
from perdure.kernel.storage.postgres_tx import BEGIN_READ, BEGIN_WRITE, ERA, XID, PostgresTx, drive, prelude
from perdure.kernel.storage.schema import Schema, Table
from perdure.kernel.tally import Tally

_BUSY = "SELECT EXISTS (SELECT 1 FROM pg_stat_progress_create_index WHERE relid = $1::text::regclass)"
_BUILD_SECONDS = 86_400.0
_BUILD_PAUSE = 1.0
_UNKNOWN_TABLES = """
SELECT quote_ident(relname) FROM pg_stat_user_tables
WHERE schemaname = current_schema() AND relname = ANY($1) AND n_live_tup > 500
  AND last_analyze IS NULL AND last_autoanalyze IS NULL
"""
_BACKOFF = Backoff(0.005, 0.5)
_ANALYZE_SECONDS = 1.0
_STATE = "SELECT pg_xact_status($1::text::xid8), " + ERA


@dataclass(slots=True)
class _Call:
    """A call of an operation; `started` is true once it has a connection."""

    operation: Operation[..., Any]
    args: tuple[Any, ...]
    ns: int | None
    actor: str | None = None
    before: Sequence[Check] = ()
    write: bool = False
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
        signals: Callable[[Background], Signals] | None = None,
    ) -> None:
        self.schema = Schema(tables)
        self.ids: Ids = ids or RandomIds()
        self.tally = Tally()
        self._timeout = timeout
        self._connections = PostgresPool(dsn, size=pool_size, timeout=timeout, pgbouncer=pgbouncer)
        self.where = self._connections.where
        self.timers = Background("perdure-background", busy=True)
        self.timers.reached = False
        self.signals: Signals = (
            signals(self.timers) if signals else PostgresSignals(self.timers, self._connections)
        )
        self._begin_write = self._begin_read = ""
        self._probes = self.schema.probes
        self._write_prelude = prelude(XID, self._probes)
        self._read_prelude = prelude("NULL", self._probes)
        self._upgraded = False
        self._missing_indexes: list[str] = []
        self._degraded: str | None = None
        self._closed = False

    async def run(
        self,
        operation: Operation[..., Result],
        /,
        *args: Any,
        ns: int | None = None,
        actor: str | None = None,
        before: Sequence[Check] = (),
    ) -> Result:
        result: Result = await self._submit(_Call(operation, args, ns, actor, before, write=True))
        return result

    async def read(
        self,
        operation: Operation[..., Result],
        /,
        *args: Any,
        ns: int | None = None,
        before: Sequence[Check] = (),
    ) -> Result:
        result: Result = await self._submit(_Call(operation, args, ns, before=before))
        return result

    background = run

    def _submit(self, call: _Call) -> Coroutine[Any, Any, Any]:
        """Run a call in the driver's thread.

        Cancelling the caller ends a read, and drops a write that waits for a connection. A write that has
        started continues.
        """
        refuse_nested()
        if self._closed:
            raise errors.StorageClosed()
        return self.timers.ask(
            partial(self._until_deadline, call), started=lambda: call.write and call.started
        )

    async def _until_deadline(self, call: _Call) -> Any:
        inside_operation.set(True)
        deadline = time.monotonic() + self._timeout
        for tries in itertools.count(1):
            try:
                result = await self._once(call, deadline)
                self._degraded = None
                return result
            except (*CONTENDED, *LOST, TimeoutError) as error:
                failure = errors.StorageClosed() if self._closed else translate(error, self.where)
                if isinstance(failure, errors.StorageUnavailable):
                    self._degraded = str(failure)
                pause = _BACKOFF.delay(tries)
                if not self._may_retry(error, tries) or time.monotonic() + pause > deadline:
                    raise failure from error
            except asyncpg.PostgresError as error:
                raise translate(error, self.where) from error
            await asyncio.sleep(pause)
        return None

    def _may_retry(self, error: BaseException, tries: int) -> bool:
        """Return whether to retry: not after a time limit, and not if the server was never reached.

        A server that is starting up counts as reached.
        """
        # A value that cannot be bound never can, and a key still taken after 5 tries is no race.
        hopeless = isinstance(error, TimeoutError | ValueError) or (
            isinstance(error, asyncpg.UniqueViolationError) and tries >= 5
        )
        reached = self._upgraded or isinstance(error, asyncpg.CannotConnectNowError)
        return reached and not hopeless and not self._closed

    async def _once(self, call: _Call, deadline: float) -> Any:
        if self._closed:
            raise errors.StorageClosed()
        pool = await self._connections.pool(self._prepare)
        left = max(deadline - time.monotonic(), 0.01)
        async with pool.acquire(timeout=left) as connection:
            call.started = True
            try:
                await connection.execute(self._begin_write if call.write else self._begin_read)
                first = self._write_prelude if call.write else self._read_prelude
                async with asyncio.timeout(left):
                    row = await connection.fetchrow(first, str(int(left * 1000)))
                    assert row is not None
                    answers = dict(zip(self._probes, row[2:], strict=False))
                    tx = PostgresTx(
                        connection, call.ns, row[0], self.ids, answers, self.signals.wanted, call.actor
                    )
                    for check in call.before:
                        await check(tx)
                    result = await drive(call.operation(tx, *call.args), tx)
            except BaseException as error:
                await _abandon(connection, error)
                raise
            return await self._commit(connection, tx, row[1], result, deadline)

    async def _commit(
        self, connection: Connection, tx: PostgresTx, xid: str | None, result: Any, deadline: float
    ) -> Any:
        try:
            if await connection.execute("COMMIT") != "COMMIT":
                raise errors.StorageError(
                    f"PostgreSQL at {self.where}: an error inside the operation rolled it back"
                )
        except (*LOST, TimeoutError) as error:
            _discard(connection)
            if xid is not None and not await self._was_committed(xid, deadline, error):
                raise ConnectionResetError("the transaction was lost before its commit") from error
        except asyncio.CancelledError:
            _discard(connection)
            if xid is None:
                # A read has no outcome, and its cancelled caller would not receive an error.
                raise
            raise errors.OutcomeUnknown(f"PostgreSQL at {self.where}: closed during the commit") from None
        if tx.notes:
            self.tally.add(tx.notes)
        if tx.hints:
            self.signals.publish(tx.hints)
        return result

    async def _was_committed(self, xid: str, deadline: float, cause: BaseException) -> bool:
        """Ask the server, on a new connection, whether a transaction with a lost answer was committed."""
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
            async with connection.transaction():
                state, now = await connection.fetchrow(_STATE, number)
            if now != era and state != "aborted":
                raise errors.OutcomeUnknown(f"PostgreSQL at {self.where} crashed during the commit")
            return str(state)
        except asyncpg.InvalidParameterValueError:
            # After a crash the id may lie in the server's future: the transaction never reached the disk.
            return "aborted"
        finally:
            await connection.close(timeout=2.0)

    async def _prepare(self, pool: Pool) -> None:
        self._begin_write = self._connections.begin(BEGIN_WRITE)
        self._begin_read = self._connections.begin(BEGIN_READ)
        if not self._upgraded:
            async with pool.acquire() as connection:
                missing = await upgrade(connection, self.schema)
            self._missing_indexes = [index.name for _, index in missing]
            self._upgraded = self.timers.reached = True
            self.timers.every(_ANALYZE_SECONDS, self._analyze)
            if missing:
                self.timers.spawn(self._build_indexes(missing))

    async def _analyze(self) -> None:
        """Analyze tables that have grown before the server analyzed them.

        Without statistics the planner assumes that every namespace is a small part of a table.
        """
        pool = await self._connections.pool(self._prepare)
        async with pool.acquire(timeout=self._timeout) as connection:
            # In a transaction, because a pooler may send the parts of a statement to 2 sessions.
            async with connection.transaction():
                rows = await connection.fetch(_UNKNOWN_TABLES, list(self.schema.tables))
            for row in rows:
                await connection.execute("ANALYZE " + row[0])

    async def _build_indexes(self, missing: Sequence[tuple[Table, Any]]) -> None:
        """Build indexes one by one. If another process builds one of the same table, wait for it."""
        connection = await self._connections.single()
        try:
            while missing:
                try:
                    for table, index in missing:
                        await _wait_until_idle(connection, table)
                        text = ddl.create_index(table, index, concurrently=True)
                        await connection.execute(text, timeout=_BUILD_SECONDS)
                        self._missing_indexes.remove(index.name)
                    return
                except asyncpg.DeadlockDetectedError:
                    # Another process has started a build of the same table in the same moment.
                    for table, _ in missing:
                        await _wait_until_idle(connection, table)
                    missing = await upgrade(connection, self.schema)
                    self._missing_indexes = [index.name for _, index in missing]
        finally:
            await connection.close()

    async def health(self) -> Mapping[str, Any]:
        return {
            "status": "degraded" if self._degraded else "ok",
            "reason": self._degraded,
            "indexes_being_built": list(self._missing_indexes),
            "connections": self._connections.sizes(),
            **self._carrier_health(),
        }

    def _carrier_health(self) -> Mapping[str, Any]:
        """Return the health of Redis if it carries the signals; it may be down without harm."""
        carrier = find_carrier(self.signals)
        if carrier is None:
            return {}
        status, reason = carrier.status()
        return {
            "redis": status,
            "redis_reason": reason,
            "redis_connections": dict(carrier.pool_statistics()),
        }

    def free_bytes(self) -> int | None:
        """Return None: the disk belongs to the database server."""
        return None

    async def integrity(self) -> list[str]:
        """Return nothing: PostgreSQL checks pages on every read, and foreign keys on every write."""
        return []

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.signals.close()
        self.timers.close(self._connections.close)


async def _wait_until_idle(connection: Connection, table: Table) -> None:
    """Wait until no index of a table is being built."""
    while await _is_busy(connection, table):  # noqa: ASYNC110 - nothing announces it
        await asyncio.sleep(_BUILD_PAUSE)


async def _is_busy(connection: Connection, table: Table) -> bool:
    """Return whether an index of a table is being built."""
    async with connection.transaction():
        return bool(await connection.fetchval(_BUSY, table.name))


async def _abandon(connection: Connection, cause: BaseException) -> None:
    """Roll back; close a connection that fails to, or that timed out."""
    if isinstance(cause, TimeoutError):
        _discard(connection)
        return
    try:
        await connection.execute("ROLLBACK", timeout=5.0)
    except (*LOST, TimeoutError, asyncpg.PostgresError):
        _discard(connection)


def _discard(connection: Connection) -> None:
    # The pool takes back a lost connection itself; terminating it then raises InterfaceError.
    with contextlib.suppress(asyncpg.InterfaceError):
        connection.terminate()
