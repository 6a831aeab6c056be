"""Counts of a database, in one namespace or in many."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from perdure.kernel.storage.port import Tx
from perdure.rollouts import sql
from perdure.rollouts.operations.holds import QUEUE, held, holds
from perdure.rollouts.rows import NamespaceCount, ReadyCount
from perdure.service.namespaces import list_namespaces

States = dict[str, dict[str, int]]
"""For each namespace, the number of rows in each status."""


class Depth(NamedTuple):
    """A queue with numbers of rollouts that wait for a worker, for their time, and in a line; the time since
    which the oldest rollout waits, and the time since which the queue is paused."""

    ns: int
    queue: str
    ready: int
    delayed: int
    waiting: int
    oldest: int | None
    paused: int | None = None


class Glance(NamedTuple):
    """The counts that a scrape reads. `now` is the database's time."""

    now: int
    rollouts: States
    workers: States
    names: Mapping[int, str]
    queues: list[Depth]


async def ping(tx: Tx) -> int:
    """Return the database's time, to check that it can be reached."""
    return tx.now


async def glance(tx: Tx, namespaces: Collection[str] | None) -> Glance:
    """Return all counts, in these namespaces or in all."""
    names = await _numbers(tx, namespaces)
    return Glance(
        tx.now,
        _states(names, await tx.all(sql.ROLLOUTS_BY_STATUS, numbers=list(names))),
        _states(names, await tx.all(sql.WORKERS_BY_STATUS, numbers=list(names))),
        names,
        await depths(tx, names),
    )


async def queues_here(tx: Tx) -> tuple[int, list[Depth]]:
    """Return the time, and the queues of this namespace that are paused or have waiting rollouts."""
    ns = tx.ns or 0
    paused = held(await holds(tx), QUEUE)
    by_name = {depth.queue: depth for depth in await depths(tx, [ns])}
    for queue, since in paused.items():
        by_name[queue] = by_name.get(queue, Depth(ns, queue, 0, 0, 0, None))._replace(paused=since)
    return tx.now, [by_name[queue] for queue in sorted(by_name)]


async def queues(tx: Tx, namespaces: Collection[str] | None) -> tuple[int, Mapping[int, str], list[Depth]]:
    """Return the time, the names of the namespaces, and their queues with waiting rollouts."""
    names = await _numbers(tx, namespaces)
    return tx.now, names, await depths(tx, names)


async def _numbers(tx: Tx, namespaces: Collection[str] | None) -> Mapping[int, str]:
    names = await list_namespaces(tx)
    return {number: name for number, name in names.items() if namespaces is None or name in namespaces}


def _states(names: Mapping[int, str], rows: Collection[NamespaceCount]) -> States:
    states: States = {}
    for row in rows:
        states.setdefault(names[row.ns], {})[row.status] = int(row.total)
    return states


async def depths(tx: Tx, numbers: Collection[int] | None = None) -> list[Depth]:
    """Return the queues with waiting rollouts, in the namespaces with these numbers or in all."""
    numbers = list(await list_namespaces(tx)) if numbers is None else list(numbers)
    ready = {(row.ns, row.queue): row for row in await tx.all(sql.READY_BY_QUEUE, numbers=numbers)}
    due = {(row.ns, row.queue): row.total for row in await tx.all(sql.DUE_BY_QUEUE, numbers=numbers)}
    behind = {(row.ns, row.queue): row.total for row in await tx.all(sql.BEHIND_BY_QUEUE, numbers=numbers)}
    queues = []
    for ns, queue in sorted({*ready, *due, *behind}):
        row = ready.get((ns, queue)) or ReadyCount(ns, queue, 0, None)
        waiting = (due.get((ns, queue), 0), behind.get((ns, queue), 0))
        queues.append(Depth(ns, queue, row.total, *waiting, row.oldest))
    return queues
