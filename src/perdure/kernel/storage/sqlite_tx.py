"""A transaction on SQLite."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import apsw

from perdure.kernel import errors
from perdure.kernel.ids import Ids
from perdure.kernel.signals.port import Hint, Wanted, nobody_wants
from perdure.kernel.storage import dialect, fulltext
from perdure.kernel.storage.dialect import Bulk, BulkInsert, BulkUpdate, Statement, Write
from perdure.kernel.storage.rows import R
from perdure.kernel.storage.schema import FullText, Probe, Table
from perdure.kernel.storage.totals import TotalChanges
from perdure.kernel.tally import TallyEntry


def finish(operation: Coroutine[Any, Any, Any]) -> Any:
    """Run an operation to its end and return its result. It must not suspend."""
    try:
        operation.send(None)
    except StopIteration as stop:
        return stop.value
    return refuse_suspended(operation)


def refuse_suspended(operation: Coroutine[Any, Any, Any]) -> NoReturn:
    """Raise SuspendedOperation for an operation that awaited something other than its transaction."""
    operation.close()
    raise errors.SuspendedOperation()


class SqliteTx:
    """A transaction on one connection; every method ends without suspending."""

    __slots__ = (
        "_totals",
        "actor",
        "connection",
        "hints",
        "ids",
        "notes",
        "now",
        "ns",
        "shard",
        "wall",
        "wants",
    )

    def __init__(
        self,
        connection: apsw.Connection,
        ns: int | None,
        now: int,
        ids: Ids,
        wants: Wanted = nobody_wants,
        actor: str | None = None,
        wall: int | None = None,
    ) -> None:
        self.connection = connection
        self.ns = ns
        self.actor = actor
        self.now = now
        self.wall = now if wall is None else wall
        self.ids = ids
        self.shard = 0
        self.hints: dict[Hint, int] = {}
        self.notes: list[TallyEntry] = []
        self.wants = wants
        self._totals = TotalChanges()

    def _bind(self, sql: Statement[Any], parameters: dict[str, Any]) -> tuple[str, Mapping[str, Any]]:
        parameters.setdefault("now", self.now)
        parameters.setdefault("wall", self.wall)
        if self.ns is not None:
            parameters.setdefault("ns", self.ns)
        try:
            return sql.bind_sqlite(parameters)
        except TypeError as error:
            # Callers pass checked texts, so another type in a list was read from a damaged row.
            raise errors.NotADatabase(f"the database is damaged: {error}") from error

    async def one(self, sql: Statement[R], /, **parameters: Any) -> R | None:
        row: R | None = sql.record(self.connection.execute(*self._bind(sql, parameters)).fetchone())
        return row

    async def all(self, sql: Statement[R], /, **parameters: Any) -> list[R]:
        return sql.records(self.connection.execute(*self._bind(sql, parameters)).fetchall())

    async def execute(self, sql: Statement[Any], /, **parameters: Any) -> int:
        before = self.connection.total_changes()
        self.connection.execute(*self._bind(sql, parameters)).fetchall()
        return self.connection.total_changes() - before

    async def execute_many(self, sql: Statement[Any], rows: Sequence[Mapping[str, Any]], /) -> None:
        for row in rows:
            self.connection.execute(*self._bind(sql, dict(row)))

    async def insert_many(self, table: Table, rows: Sequence[tuple[Any, ...]], /) -> None:
        self._write(dialect.plain_insert(table), rows)

    async def insert_new(self, insert: BulkInsert[R], rows: Sequence[R], /) -> set[tuple[Any, ...]]:
        text, values = dialect.write_sqlite(insert, rows, self.ns)
        return set(self.connection.executemany(dialect.returning_keys(insert, text), values))

    async def update_many(self, update: BulkUpdate[R], rows: Sequence[R], /) -> int:
        return self._write(update, rows)

    async def write(self, *writes: Write) -> list[int]:
        return [self._write(bulk, rows) for bulk, rows in writes]

    async def defer(self, *writes: Write) -> None:
        for bulk, rows in writes:
            self._write(bulk, rows)

    async def expect(self, write: Write, otherwise: Callable[[], Awaitable[None]]) -> None:
        if self._write(*write) != len(write[1]):
            await otherwise()

    def add(self, insert: BulkInsert[R], rows: Sequence[R], /) -> None:
        self._totals.add(self.ns, insert, rows)

    def finish(self) -> None:
        """Write the totals, at the end of the operation."""
        if self._totals:
            for ns, writes in self._totals.take().items():
                for bulk, rows in writes:
                    self.connection.executemany(*dialect.write_sqlite(bulk, rows, ns))

    def _write(self, bulk: Bulk, rows: Sequence[Any]) -> int:
        if not rows:
            return 0
        if bulk.seldom is not None:
            self.connection.executemany(*dialect.write_sqlite(bulk.seldom, rows, self.ns))
        before = self.connection.total_changes()
        self.connection.executemany(*dialect.write_sqlite(bulk, rows, self.ns))
        return self.connection.total_changes() - before

    async def lock(self, table: Table, keys: Sequence[tuple[Any, ...]], /) -> None:
        return None

    async def existing(self, table: Table, keys: Sequence[tuple[Any, ...]], /) -> set[tuple[Any, ...]]:
        return set(self.connection.executemany(dialect.existing_sqlite(table), keys))

    async def compact(self, full_text: FullText, /) -> bool:
        before = self.connection.total_changes()
        self.connection.execute(fulltext.merge_sqlite(full_text))
        # FTS5 itself counts as one change.
        return self.connection.total_changes() - before > 1

    async def probe(self, probe: Probe, /) -> bool:
        return await self.one(dialect.probe_statement(probe)) is not None

    def hint(self, channel: str, key: str, times: int = 1) -> None:
        self.hints[channel, key] = self.hints.get((channel, key), 0) + times

    def take_hints(self, channel: str, keys: Iterable[str]) -> dict[str, int]:
        return {key: times for key in keys if (times := self.hints.pop((channel, key), 0))}

    def count(self, name: str, label: str, seconds: float | None = None, times: int = 1) -> None:
        self.notes.append(TallyEntry(name, self.ns, label, seconds, times))
