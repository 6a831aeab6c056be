"""The database at a glance: how much of what there is, in one namespace or in many."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from perdure.kernel.storage.port import Tx
from perdure.rollouts import sql
from perdure.rollouts.operations.holds import QUEUE, held, holds
from perdure.rollouts.rows import NamespaceCount, ReadyCount
from perdure.service.namespaces import list_namespaces

States = dict[str, dict[str, int]]
"""For each namespace, how many there are in each state."""


class Depth(NamedTuple):
    """How much waits in a queue: for a worker, for its time, in a line; since when the oldest
    waits, and since when it is paused."""

    ns: int
    queue: str
    ready: int
    delayed: int
    waiting: int
    oldest: int | None
    paused: int | None = None


class Glance(NamedTuple):
    """What a scrape reads. `now` is the database's time."""

    now: int
    rollouts: States
    workers: States
    names: Mapping[int, str]
    queues: list[Depth]


async def ping(tx: Tx) -> int:
    """The time; whoever gets it has reached the database."""
    return tx.now


async def glance(tx: Tx, namespaces: Collection[str] | None) -> Glance:
    """Everything that is counted, in these namespaces or in all."""
    names = await _numbers(tx, namespaces)
    return Glance(
        tx.now,
        _states(names, await tx.all(sql.ROLLOUTS_BY_STATUS, numbers=list(names))),
        _states(names, await tx.all(sql.WORKERS_BY_STATUS, numbers=list(names))),
        names,
        await depths(tx, names),
    )


async def queues_here(tx: Tx) -> tuple[int, list[Depth]]:
    """The queues of this namespace in which something waits or that are paused, and the time."""
    ns = tx.ns or 0
    paused = held(await holds(tx), QUEUE)
    found = {depth.queue: depth for depth in await depths(tx, [ns])}
    for queue, since in paused.items():
        found[queue] = found.get(queue, Depth(ns, queue, 0, 0, 0, None))._replace(paused=since)
    return tx.now, [found[queue] for queue in sorted(found)]


async def queues(tx: Tx, namespaces: Collection[str] | None) -> tuple[int, Mapping[int, str], list[Depth]]:
    """The queues in which something waits, the names of their namespaces, and the time."""
    names = await _numbers(tx, namespaces)
    return tx.now, names, await depths(tx, names)


async def _numbers(tx: Tx, namespaces: Collection[str] | None) -> Mapping[int, str]:
    known = await list_namespaces(tx)
    return {number: name for number, name in known.items() if namespaces is None or name in namespaces}


def _states(names: Mapping[int, str], rows: Collection[NamespaceCount]) -> States:
    states: States = {}
    for row in rows:
        states.setdefault(names[row.ns], {})[row.status] = int(row.total)
    return states


async def depths(tx: Tx, numbers: Collection[int] | None = None) -> list[Depth]:
    """The queues in which something waits, in the namespaces with these numbers or in all."""
    numbers = list(await list_namespaces(tx)) if numbers is None else list(numbers)
    ready = {(row.ns, row.queue): row for row in await tx.all(sql.READY_BY_QUEUE, numbers=numbers)}
    due = {(row.ns, row.queue): row.total for row in await tx.all(sql.DUE_BY_QUEUE, numbers=numbers)}
    behind = {(row.ns, row.queue): row.total for row in await tx.all(sql.BEHIND_BY_QUEUE, numbers=numbers)}
    found = []
    for ns, queue in sorted({*ready, *due, *behind}):
        row = ready.get((ns, queue)) or ReadyCount(ns, queue, 0, None)
        waiting = (due.get((ns, queue), 0), behind.get((ns, queue), 0))
        found.append(Depth(ns, queue, row.total, *waiting, row.oldest))
    return found
