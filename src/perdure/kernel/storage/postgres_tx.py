"""A transaction on PostgreSQL: its first statement, its methods, and the execution of an operation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from types import MappingProxyType, coroutine
from typing import Any

from perdure.kernel import errors
from perdure.kernel.ids import Ids
from perdure.kernel.signals.port import Hint, Wanted, nobody_wants
from perdure.kernel.storage import dialect, fulltext
from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, Statement, Write
from perdure.kernel.storage.postgres_connection import Connection
from perdure.kernel.storage.rows import R
from perdure.kernel.storage.schema import FullText, Probe, Table
from perdure.kernel.storage.totals import TotalChanges
from perdure.kernel.tally import TallyEntry

SHARDS = 16
BEGIN_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
IDLE_SECONDS = 5.0
"""Maximum wait of a transaction for its next statement; a frozen process then loses its locks."""
_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
# After a crash the server reuses transaction ids that had not reached the disk, so an id is valid for one
# start.
ERA = "pg_postmaster_start_time()::text || coalesce(pg_last_wal_replay_lsn()::text, '')"
XID = f"pg_current_xact_id()::text || ' ' || {ERA}"


def prelude(xid: str, probes: Sequence[Probe]) -> str:
    """Build the first statement of a transaction: its time, id and settings, and the probes' answers."""
    exists = [" EXISTS (" + probe.sql.replace(":now", "t.now") + ")" for probe in probes]
    idle = str(round(IDLE_SECONDS * 1000))
    limits = (
        "set_config('statement_timeout', $1, true)",
        "set_config('idle_in_transaction_session_timeout', '" + idle + "', true)",
    )
    columns = ",".join(("t.now", xid, *exists, *limits))
    return " ".join(("SELECT", columns, "FROM (SELECT", _NOW, "AS now) AS t"))


class PostgresTx:
    """A transaction on one connection."""

    def __init__(
        self,
        connection: Connection,
        ns: int | None,
        now: int,
        ids: Ids,
        answers: Mapping[Probe, bool] = MappingProxyType({}),
        wants: Wanted = nobody_wants,
        actor: str | None = None,
    ) -> None:
        self._connection = connection
        self.ns = ns
        self.actor = actor
        self.now = self.wall = now
        self.ids = ids
        self.shard = connection.get_server_pid() % SHARDS
        self.hints: dict[Hint, int] = {}
        self.notes: list[TallyEntry] = []
        self.wants = wants
        self.waiting = False
        self._answers = answers
        self._later: list[Write] = []
        self._later_ns = ns
        self._otherwise: dict[int, Callable[[], Awaitable[None]]] = {}
        """Fallbacks of deferred writes, by their positions, for writes that did not write all their rows."""
        self._totals = TotalChanges()
        self._awaited: set[str] = set()
        """Tables of the deferred writes."""

    def _bind(self, sql: Statement[Any], parameters: dict[str, Any]) -> list[Any]:
        parameters.setdefault("now", self.now)
        parameters.setdefault("wall", self.wall)
        if self.ns is not None:
            parameters.setdefault("ns", self.ns)
        return sql.bind_postgres(parameters)

    async def one(self, sql: Statement[R], /, **parameters: Any) -> R | None:
        await self._settle(sql)
        row = await self._wait(self._connection.fetchrow(sql.postgres, *self._bind(sql, parameters)))
        record: R | None = sql.record(row)
        return record

    async def all(self, sql: Statement[R], /, **parameters: Any) -> list[R]:
        await self._settle(sql)
        rows = await self._wait(self._connection.fetch(sql.postgres, *self._bind(sql, parameters)))
        return sql.records(rows)

    async def execute(self, sql: Statement[Any], /, **parameters: Any) -> int:
        await self._settle(sql)
        return _count(await self._wait(self._connection.execute(sql.postgres, *self._bind(sql, parameters))))

    async def execute_many(self, sql: Statement[Any], rows: Sequence[Mapping[str, Any]], /) -> None:
        if len(rows) == 1:
            await self.execute(sql, **rows[0])
        elif rows:
            await self._settle(sql)
            bound = [self._bind(sql, dict(row)) for row in rows]
            await self._wait(self._connection.executemany(sql.postgres, bound))

    async def insert_many(self, table: Table, rows: Sequence[tuple[Any, ...]], /) -> None:
        await self.write((dialect.plain_insert(table), rows))

    async def insert_new(self, insert: BulkInsert[R], rows: Sequence[R], /) -> set[tuple[Any, ...]]:
        if not rows:
            return set()
        await self.flush()
        text, parameters = dialect.write_postgres([(insert, rows)], self.ns)
        keys = await self._wait(self._connection.fetch(dialect.returning_keys(insert, text), *parameters))
        return set(map(tuple, keys))

    async def update_many(self, update: BulkUpdate[R], rows: Sequence[R], /) -> int:
        return (await self.write((update, rows)))[0]

    async def write(self, *writes: Write) -> list[int]:
        if not any(rows for _, rows in writes):
            return [0] * len(writes)
        if not self._awaited.isdisjoint(_tables(writes)):
            await self.flush()
        return await self._send_later(*writes)

    async def defer(self, *writes: Write) -> None:
        tables = _tables(writes)
        if not self._awaited.isdisjoint(tables) or self._later_ns != self.ns:
            await self.flush()
        self._later_ns = self.ns
        self._later += [write for write in writes if write[1]]
        self._awaited |= tables

    async def expect(self, write: Write, otherwise: Callable[[], Awaitable[None]]) -> None:
        await self.defer(write)
        if write[1]:
            self._otherwise[len(self._later) - 1] = otherwise

    def add(self, insert: BulkInsert[R], rows: Sequence[R], /) -> None:
        self._totals.add(self.ns, insert, rows)

    async def flush(self) -> None:
        """Send the deferred writes."""
        if self._later:
            await self._send_later()

    async def finish(self) -> None:
        """Send the deferred writes and the totals, at the end of the operation."""
        for ns, writes in self._totals.take().items():
            self.ns = ns
            await self.write(*writes)
        await self.flush()

    async def _send_later(self, *writes: Write) -> list[int]:
        """Send the deferred writes with other writes; return the counts of the other writes."""
        later, self._later, self._awaited = self._later, [], set()
        otherwise, self._otherwise = self._otherwise, {}
        if writes and later and self._later_ns != self.ns:
            counts = [*await self._send(self._later_ns, *later), *await self._send(self.ns, *writes)]
        else:
            counts = await self._send(self._later_ns if later else self.ns, *later, *writes)
        for place, follow in otherwise.items():
            _, rows = later[place]
            if counts[place] != len(rows):
                await follow()
        return counts[len(later) :]

    async def _settle(self, sql: Statement[Any]) -> None:
        """Send the deferred writes before a statement on one of their tables."""
        if self._later and not sql.words.isdisjoint(self._awaited):
            await self.flush()

    async def _send(self, ns: int | None, *writes: Write) -> list[int]:
        wanted = [write for write in writes if write[1]]
        text, parameters = dialect.write_postgres(wanted, ns)
        if len(wanted) == 1:
            counts = [_count(await self._wait(self._connection.execute(text, *parameters)))]
        else:
            counts = list(await self._wait(self._connection.fetchrow(text, *parameters)))
        return [counts.pop(0) if rows else 0 for _, rows in writes]

    async def lock(self, table: Table, keys: Sequence[tuple[Any, ...]], /) -> None:
        if keys:
            await self.flush()
            parameters = dialect.key_arrays(table, keys)
            await self._wait(self._connection.fetch(dialect.lock_postgres(table), *parameters))

    async def existing(self, table: Table, keys: Sequence[tuple[Any, ...]], /) -> set[tuple[Any, ...]]:
        if not keys:
            return set()
        await self.flush()
        parameters = dialect.key_arrays(table, keys)
        rows = await self._wait(self._connection.fetch(dialect.existing_postgres(table), *parameters))
        return set(map(tuple, rows))

    async def compact(self, full_text: FullText, /) -> bool:
        await self._wait(self._connection.execute(fulltext.MERGE_POSTGRES, full_text.name + "_gin"))
        return False

    async def probe(self, probe: Probe, /) -> bool:
        if probe in self._answers:
            return self._answers[probe]
        return await self.one(dialect.probe_statement(probe)) is not None

    def hint(self, channel: str, key: str, times: int = 1) -> None:
        self.hints[channel, key] = self.hints.get((channel, key), 0) + times

    def take_hints(self, channel: str, keys: Iterable[str]) -> dict[str, int]:
        return {key: times for key in keys if (times := self.hints.pop((channel, key), 0))}

    def count(self, name: str, label: str, seconds: float | None = None, times: int = 1) -> None:
        self.notes.append(TallyEntry(name, self.ns, label, seconds, times))

    async def _wait(self, query: Coroutine[Any, Any, Any]) -> Any:
        self.waiting = True
        try:
            return await query
        finally:
            self.waiting = False


def _tables(writes: Sequence[Write]) -> set[str]:
    return {bulk.table.name for bulk, rows in writes if rows}


def _count(status: str) -> int:
    """Return the row count at the end of a command tag such as `UPDATE 3`."""
    tail = status.rpartition(" ")[2]
    return int(tail) if tail.isdigit() else 0


async def written(operation: Awaitable[Any], tx: PostgresTx) -> Any:
    """Run an operation, then its deferred writes."""
    result = await operation
    await tx.finish()
    return result


@coroutine
def drive(called: Coroutine[Any, Any, Any], tx: PostgresTx) -> Any:
    """Run an operation, which may await only its transaction."""
    operation = written(called, tx)
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
