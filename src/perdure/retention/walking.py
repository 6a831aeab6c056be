"""How old data is found and deleted: page by page through a namespace, in transactions of bounded size."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from perdure.kernel.clock import to_micros
from perdure.kernel.storage.port import Storage
from perdure.service.namespaces import list_namespaces


class DueItem(NamedTuple):
    """Something that is too old, and as how many it counts."""

    id: str
    number: int = 1


class DuePage(NamedTuple):
    """A page of what is too old, and the place where the next one begins; None after the last."""

    due: Sequence[DueItem]
    next: Any = None


class Dropped(NamedTuple):
    """What a transaction has deleted, and the ids for which there is more to delete."""

    deleted: int
    left: Sequence[str] = ()


class SweepResult(NamedTuple):
    """How much a sweep deleted, or found, and whether it came to the end."""

    deleted: int
    complete: bool = True


class Budget:
    """How long a sweep may take; without a number, as long as it needs."""

    def __init__(self, seconds: float | None = None) -> None:
        self._until = None if seconds is None else time.monotonic() + seconds

    @property
    def is_spent(self) -> bool:
        return self._until is not None and time.monotonic() >= self._until


class RetainedKind(Protocol):
    """A kind of data that is deleted because of its age."""

    @property
    def name(self) -> str: ...

    @property
    def seconds(self) -> float | None: ...

    async def sweep(self, storage: Storage, budget: Budget) -> SweepResult:
        """Delete what is too old."""
        ...

    async def count(self, storage: Storage, budget: Budget) -> SweepResult:
        """Count what `sweep` would delete."""
        ...


@dataclass(frozen=True, slots=True)
class Walk:
    """A way through the data of a namespace, in the order of an index.

    `find` reads a page of what is too old from a place on, `drop` locks what was found, looks again, and
    deletes some of it. Both are operations; they get the age in microseconds.
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
        async for ns, walk, found in self._pages(storage):
            left: Sequence[str] = [each.id for each in found]
            while left:
                if budget.is_spent:
                    return SweepResult(total, complete=False)
                dropped: Dropped = await storage.background(walk.drop, self.age, left, *walk.args, ns=ns)
                total, left = total + dropped.deleted, dropped.left
        return SweepResult(total)

    async def count(self, storage: Storage, budget: Budget) -> SweepResult:
        total = 0
        async for _, _, found in self._pages(storage):
            total += sum(each.number for each in found)
            if budget.is_spent:
                return SweepResult(total, complete=False)
        return SweepResult(total)

    async def _pages(self, storage: Storage) -> AsyncIterator[tuple[int, Walk, Sequence[DueItem]]]:
        for ns in sorted(await storage.read(list_namespaces)):
            for walk in self.walks:
                place: Any = None
                while True:
                    found: DuePage = await storage.read(walk.find, self.age, place, *walk.args, ns=ns)
                    yield ns, walk, found.due
                    place = found.next
                    if place is None:
                        break


Chunk = Callable[[Storage, int], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class ChunkedKind:
    """A kind of data of which each chunk is found and deleted by one operation, in every namespace."""

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
