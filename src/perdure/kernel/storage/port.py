"""Interface of an engine: run an operation in a transaction, or read in one.

An operation is an `async def` whose first argument is a `Tx`. It awaits only that transaction, may run more
than once, and returns its result. The driver owns its execution.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar

from perdure.kernel.background import Background
from perdure.kernel.errors import NestedOperation
from perdure.kernel.ids import Ids
from perdure.kernel.signals.port import Signals
from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, Statement, Write
from perdure.kernel.storage.rows import R, Row
from perdure.kernel.storage.schema import FullText, Probe, Table
from perdure.kernel.tally import Tally

__all__ = ["Engine", "Operation", "Result", "Row", "Storage", "Tx", "inside_operation", "refuse_nested"]

Result = TypeVar("Result")
P = ParamSpec("P")

Engine = Literal["sqlite", "postgres"]


class Tx(Protocol):
    """A transaction: the only thing an operation may await."""

    ns: int | None
    actor: str | None
    """Actor of the transaction's audit entries; None is perdure itself, which leaves no entry."""
    now: int
    """Time for deadlines and orders; on SQLite later than in any earlier transaction."""
    wall: int
    """Wall clock's time, for schedules and the expiry of tokens."""
    ids: Ids
    shard: int

    async def one(self, sql: Statement[R], /, **parameters: Any) -> R | None:
        """Return the first row, or None."""
        ...

    async def all(self, sql: Statement[R], /, **parameters: Any) -> list[R]:
        """Return every row."""
        ...

    async def execute(self, sql: Statement[Any], /, **parameters: Any) -> int:
        """Run a write and return the number of changed rows."""
        ...

    async def execute_many(self, sql: Statement[Any], rows: Sequence[Mapping[str, Any]], /) -> None:
        """Run one write for each mapping of parameters."""
        ...

    async def insert_many(self, table: Table, rows: Sequence[tuple[Any, ...]], /) -> None:
        """Insert whole rows, in the order of the table's columns."""
        ...

    async def insert_new(self, insert: BulkInsert[R], rows: Sequence[R], /) -> set[tuple[Any, ...]]:
        """Insert the rows whose key is free and return their keys; the insert must do nothing on a conflict.

        Pass the rows in the order of their keys, without duplicates.
        """
        ...

    async def update_many(self, update: BulkUpdate[R], rows: Sequence[R], /) -> int:
        """Update many rows, each with its own values; return the number of changed rows."""
        ...

    async def write(self, *writes: Write) -> list[int]:
        """Run several bulk writes of different tables; return the number of rows that each changed.

        PostgreSQL receives them as one statement, so that none sees another's changes.
        """
        ...

    async def defer(self, *writes: Write) -> None:
        """Queue bulk writes whose counts are not needed.

        PostgreSQL receives them with the next write, before any statement on their tables, and at the end of
        the operation. This saves round trips.
        """
        ...

    async def expect(self, write: Write, otherwise: Callable[[], Awaitable[None]]) -> None:
        """Defer a bulk write that should write all its rows; otherwise await `otherwise`."""
        ...

    def add(self, insert: BulkInsert[R], rows: Sequence[R], /) -> None:
        """Add the last column of each row to the total of its key, at the end of the operation.

        Changes of one key are summed first. The rows of totals are locked last.
        """
        ...

    async def lock(self, table: Table, keys: Sequence[tuple[Any, ...]], /) -> None:
        """Lock rows by primary key, in ascending order. On SQLite this does nothing."""
        ...

    async def existing(self, table: Table, keys: Sequence[tuple[Any, ...]], /) -> set[tuple[Any, ...]]:
        """Return the primary keys that are in the table."""
        ...

    async def compact(self, full_text: FullText, /) -> bool:
        """Merge some segments of a full-text index; return whether there may be more to merge."""
        ...

    async def probe(self, probe: Probe, /) -> bool:
        """Return the answer of a table's probe."""
        ...

    def hint(self, channel: str, key: str, times: int = 1) -> None:
        """Publish (channel, key) after the commit. A hint may be lost; nothing may depend on it."""
        ...

    def take_hints(self, channel: str, keys: Iterable[str]) -> dict[str, int]:
        """Remove hints from this transaction; return the removed keys with their counts."""
        ...

    def count(self, name: str, label: str, seconds: float | None = None, times: int = 1) -> None:
        """Record that an event happened `times` times, each in `seconds`; it counts after the commit."""
        ...

    def wants(self, channel: str, /) -> bool:
        """Return whether a channel has followers; without any, hints only for followers can be omitted."""
        ...


Operation = Callable[Concatenate[Tx, P], Coroutine[Any, Any, Result]]
Check = Callable[[Tx], Coroutine[Any, Any, None]]
"""Part of a transaction that runs before its operation, and raises if the operation must not run."""


class Storage(Protocol):
    """An open database."""

    engine: Engine
    signals: Signals
    timers: Background
    ids: Ids
    tally: Tally
    """Counts of committed operations."""

    def run(
        self,
        operation: Operation[..., Result],
        /,
        *args: Any,
        ns: int | None = None,
        actor: str | None = None,
        before: Sequence[Check] = (),
    ) -> Awaitable[Result]:
        """Run a writing operation as `actor`, after the checks; return its result once it is durable."""
        ...

    def read(
        self,
        operation: Operation[..., Result],
        /,
        *args: Any,
        ns: int | None = None,
        before: Sequence[Check] = (),
    ) -> Awaitable[Result]:
        """Run a reading operation on one consistent snapshot, after the checks."""
        ...

    def background(
        self, operation: Operation[..., Result], /, *args: Any, ns: int | None = None
    ) -> Awaitable[Result]:
        """Run a writing operation in the lane that yields to callers."""
        ...

    async def health(self) -> Mapping[str, Any]:
        """Return `status` (ok or degraded), the reason, and the indexes still to be built."""
        ...

    def free_bytes(self) -> int | None:
        """Return the free space on the database's disk; None if this machine cannot read it."""
        ...

    async def integrity(self) -> list[str]:
        """Return the engine's findings of damage in its own structures; empty if there are none."""
        ...

    async def close(self) -> None: ...


inside_operation: ContextVar[bool] = ContextVar("inside_operation", default=False)


def refuse_nested() -> None:
    """Raise NestedOperation inside an operation: operations compose by passing their transaction on."""
    if inside_operation.get():
        raise NestedOperation()
