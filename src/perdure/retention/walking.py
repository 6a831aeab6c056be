"""Search for and deletion of old data: page by page through a namespace, in bounded transactions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from perdure.kernel.clock import to_micros
from perdure.kernel.storage.port import Storage
from perdure.service.namespaces import list_namespaces


class DueItem(NamedTuple):
    """Data that is too old, and the number that it counts for."""

    id: str
    number: int = 1


DueItems = tuple[Sequence[DueItem], Any]
"""Some data that is too old, and the position to continue after; None after the last."""


class Dropped(NamedTuple):
    """Number of deleted data, and the ids with more to delete."""

    deleted: int
    left: Sequence[str] = ()


class SweepResult(NamedTuple):
    """How much a sweep deleted or counted, and whether it finished."""

    deleted: int
    complete: bool = True


class Budget:
    """Time limit of a sweep; None for no limit."""

    def __init__(self, seconds: float | None = None) -> None:
        self._until = None if seconds is None else time.monotonic() + seconds

    @property
    def is_spent(self) -> bool:
        return self._until is not None and time.monotonic() >= self._until


class RetainedKind(Protocol):
    """A kind of data that is deleted by age."""

    @property
    def name(self) -> str: ...

    @property
    def seconds(self) -> float | None: ...

    async def sweep(self, storage: Storage, budget: Budget) -> SweepResult:
        """Delete data that is too old."""
        ...

    async def count(self, storage: Storage, budget: Budget) -> SweepResult:
        """Count the rows that `sweep` would delete."""
        ...


@dataclass(frozen=True, slots=True)
class Walk:
    """A way through the data of a namespace, in the order of an index.

    `find` reads a page of data that is too old, from a position on. `drop` locks it, checks it again, and
    deletes a part. Both are operations that get the age in microseconds.
    """

    find: Callable[..., Any]
    drop: Callable[..., Any]
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class WalkedKind:
    """A kind of data that is found by walks through each namespace."""

    name: str
    seconds: float | None
    walks: Sequence[Walk]

    @property
    def age(self) -> int:
        return to_micros(self.seconds or 0.0)

    async def sweep(self, storage: Storage, budget: Budget) -> SweepResult:
        total = 0
        async for ns, walk, items in self._pages(storage):
            left: Sequence[str] = [item.id for item in items]
            while left:
                if budget.is_spent:
                    return SweepResult(total, complete=False)
                dropped: Dropped = await storage.background(walk.drop, self.age, left, *walk.args, ns=ns)
                total, left = total + dropped.deleted, dropped.left
        return SweepResult(total)

    async def count(self, storage: Storage, budget: Budget) -> SweepResult:
        total = 0
        async for _, _, items in self._pages(storage):
            total += sum(item.number for item in items)
            if budget.is_spent:
                return SweepResult(total, complete=False)
        return SweepResult(total)

    async def _pages(self, storage: Storage) -> AsyncIterator[tuple[int, Walk, Sequence[DueItem]]]:
        for ns in sorted(await storage.read(list_namespaces)):
            for walk in self.walks:
                place: Any = None
                while True:
                    items, place = await storage.read(walk.find, self.age, place, *walk.args, ns=ns)
                    yield ns, walk, items
                    if place is None:
                        break


Chunk = Callable[[Storage, int], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class ChunkedKind:
    """A kind of data. One operation finds and deletes its chunks, in every namespace."""

    name: str
    seconds: float | None
    counting: Chunk
    chunk: Chunk

    @property
    def age(self) -> int:
        return to_micros(self.seconds or 0.0)

    async def sweep(self, storage: Storage, budget: Budget) -> SweepResult:
        total = 0
        while some := await self.chunk(storage, self.age):
            total += some
            if budget.is_spent:
                return SweepResult(total, complete=False)
        return SweepResult(total)

    async def count(self, storage: Storage, budget: Budget) -> SweepResult:
        return SweepResult(await self.counting(storage, self.age))
