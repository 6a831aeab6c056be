"""The sweeps: what is too old of each kind of data, and how it is deleted, in chunks between callers.

What an open run needs is in none of them: threads and runs are deleted by callers and only removed here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from perdure.access import operations as access
from perdure.access.tables import SYSTEM
from perdure.jobs import operations as jobs
from perdure.kernel.clock import to_micros
from perdure.kernel.retention import Retention
from perdure.kernel.storage.dialect import Statement
from perdure.kernel.storage.port import Storage, Tx
from perdure.outbox import operations as outbox
from perdure.outbox.model import DEAD, DELIVERED
from perdure.retention import sql
from perdure.statistics import operations as statistics
from perdure.statistics import sql as statistics_sql
from perdure.threads.operations import remove

Count = Callable[[Storage, int], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of data: how much of it is older than so many microseconds, and one chunk of its deletion."""

    name: str
    seconds: float | None
    count: Count
    chunk: Count

    async def sweep(self, storage: Storage) -> int:
        """Delete all that is too old; returns how much."""
        total = 0
        while some := await self.chunk(storage, self.age):
            total += some
        return total

    async def due(self, storage: Storage) -> int:
        """How much is too old."""
        return await self.count(storage, self.age)

    @property
    def age(self) -> int:
        return to_micros(self.seconds or 0.0)


async def _count(tx: Tx, counted: Statement[int], age: int, values: dict[str, Any]) -> int:
    return await tx.one(counted, before=tx.now - age, **values) or 0


def _counting(counted: Statement[int], **values: Any) -> Count:
    async def count(storage: Storage, age: int) -> int:
        return await storage.read(_count, counted, age, values)

    return count


def _deleting(operation: Any, *rest: Any, ns: int | None = None) -> Count:
    async def delete(storage: Storage, age: int) -> int:
        return int(await storage.background(operation, age, *rest, ns=ns))

    return delete


def kinds_of(retention: Retention) -> list[Kind]:
    """Every kind of data that is deleted because of its age, with how long it is kept."""
    system = partial(_deleting, ns=SYSTEM)
    return [
        Kind("audit", retention.audit, _counting(sql.OLD_AUDIT), system(access.trim_audit)),
        Kind("keys", retention.keys, _counting(sql.OLD_KEYS), system(access.trim_keys)),
        Kind(
            "delivered",
            retention.delivered,
            _counting(sql.OLD_EFFECTS, status=DELIVERED),
            _deleting(outbox.trim, DELIVERED),
        ),
        Kind("dead", retention.dead, _counting(sql.OLD_EFFECTS, status=DEAD), _deleting(outbox.trim, DEAD)),
        Kind("jobs", retention.jobs, _counting(sql.OLD_JOBS), _deleting(jobs.remove_ended)),
        Kind(
            "statistics",
            retention.statistics,
            _counting(statistics_sql.OLD_MINUTES),
            _deleting(statistics.trim),
        ),
        Kind("usage", retention.usage, _counting(statistics_sql.OLD_HOURS), _deleting(statistics.trim_hours)),
        Kind("removed", retention.removed, _counting(sql.OLD_REMOVED), _deleting(remove.purge)),
    ]
