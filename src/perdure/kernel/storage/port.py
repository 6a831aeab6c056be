"""What an engine offers: run an operation in a transaction, or read in one.

An operation is an `async def` whose first argument is a `Tx`. It awaits nothing but that transaction, may run
more than once, and returns its result. The driver owns its execution.
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
    """In whose name the transaction writes; None is perdure itself, which leaves no audit entry."""
    now: int
    """The time for deadlines and orders, later than in any transaction before on SQLite."""
    wall: int
    """The time that a clock on the wall shows, for schedules and the ends of tokens."""
    ids: Ids
    shard: int

    async def one(self, sql: Statement[R], /, **parameters: Any) -> R | None:
        """The first row, or None."""
        ...

    async def all(self, sql: Statement[R], /, **parameters: Any) -> list[R]:
        """Every row."""
        ...

    async def execute(self, sql: Statement[Any], /, **parameters: Any) -> int:
        """Run a write and return how many rows it changed."""
        ...

    async def execute_many(self, sql: Statement[Any], rows: Sequence[Mapping[str, Any]], /) -> None:
        """Run one write for each mapping of parameters."""
        ...

    async def insert_many(self, table: Table, rows: Sequence[tuple[Any, ...]], /) -> None:
        """Insert whole rows, in the order of the table's columns."""
        ...

    async def insert_new(self, insert: BulkInsert[R], rows: Sequence[R], /) -> set[tuple[Any, ...]]:
        """Insert the rows whose key nobody has; returns their keys. The insert does nothing on a conflict.

        Rows are given in the order of their keys, each key once.
        """
        ...

    async def update_many(self, update: BulkUpdate[R], rows: Sequence[R], /) -> int:
        """Update many rows with values of their own; returns how many were changed."""
        ...

    async def write(self, *writes: Write) -> list[int]:
        """Several bulk writes, of different tables; returns how many rows each changed.

        They reach PostgreSQL as one statement, so that none sees what another has written.
        """
        ...

    async def defer(self, *writes: Write) -> None:
        """Bulk writes whose counts nobody wants.

        They reach PostgreSQL with the next write, before anything that concerns their tables, and at the end
        of the operation, so that it is asked less often.
        """
        ...

    async def expect(self, write: Write, otherwise: Callable[[], Awaitable[None]]) -> None:
        """Defer a bulk write that should write each of its rows; if it did not, `otherwise` is awaited."""
        ...

    def add(self, insert: BulkInsert[R], rows: Sequence[R], /) -> None:
        """Add to totals at the end of the operation: the last column of each row to that of its key.

        The totals of one key are added up first. Their rows are locked after all others.
        """
        ...

    async def lock(self, table: Table, keys: Sequence[tuple[Any, ...]], /) -> None:
        """Lock rows by their primary key, in ascending order. Nothing to do on SQLite."""
        ...

    async def existing(self, table: Table, keys: Sequence[tuple[Any, ...]], /) -> set[tuple[Any, ...]]:
        """Which of these primary keys are in the table."""
        ...

    async def compact(self, full_text: FullText, /) -> bool:
        """Merge some pieces of a full-text index; returns whether there may be more to merge."""
        ...

    async def probe(self, probe: Probe, /) -> bool:
        """The answer to a question that a table declares."""
        ...

    def hint(self, channel: str, key: str, times: int = 1) -> None:
        """Publish (channel, key) after the commit. A hint may be lost; nothing may depend on it."""
        ...

    def take_hints(self, channel: str, keys: Iterable[str]) -> dict[str, int]:
        """Take back hints; gives those that there were, and how many of each."""
        ...

    def count(self, name: str, label: str, seconds: float | None = None, times: int = 1) -> None:
        """Note that something happened so many times, and how long it took each time; it counts once the
        transaction is committed."""
        ...

    def wants(self, channel: str, /) -> bool:
        """Whether anybody follows a channel, so that hints for followers alone are worth making."""
        ...


Operation = Callable[Concatenate[Tx, P], Coroutine[Any, Any, Result]]


class Storage(Protocol):
    """A database, open."""

    engine: Engine
    signals: Signals
    timers: Background
    ids: Ids
    tally: Tally
    """What committed operations counted."""

    def run(
        self,
        operation: Operation[..., Result],
        /,
        *args: Any,
        ns: int | None = None,
        actor: str | None = None,
    ) -> Awaitable[Result]:
        """Run a writing operation in the name of `actor`; returns its result once it is durable."""
        ...

    def read(
        self, operation: Operation[..., Result], /, *args: Any, ns: int | None = None
    ) -> Awaitable[Result]:
        """Run a reading operation on one consistent snapshot."""
        ...

    def background(
        self, operation: Operation[..., Result], /, *args: Any, ns: int | None = None
    ) -> Awaitable[Result]:
        """Run a writing operation in the lane that yields to callers."""
        ...

    async def health(self) -> Mapping[str, Any]:
        """`status` is ok or degraded, with the reason and any index still to be built."""
        ...

    def free_bytes(self) -> int | None:
        """How much space the disk of the database has; None if this machine cannot tell."""
        ...

    async def integrity(self) -> list[str]:
        """What the engine finds wrong with its own structures; nothing, if it is whole."""
        ...

    async def close(self) -> None: ...


inside_operation: ContextVar[bool] = ContextVar("inside_operation", default=False)


def refuse_nested() -> None:
    """Operations compose by passing their transaction on, never by opening another."""
    if inside_operation.get():
        raise NestedOperation()
