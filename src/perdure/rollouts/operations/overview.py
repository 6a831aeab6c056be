"""The database at a glance: how much of what there is, in one namespace or in many."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from perdure.access.operations import list_namespaces
from perdure.kernel.storage.port import Tx
from perdure.rollouts import sql
from perdure.rollouts.rows import NamespaceCount, ReadyCount

States = dict[str, dict[str, int]]
"""For each namespace, how many there are in each state."""


class Depth(NamedTuple):
    """How much waits in a queue: for a worker, for its time, in a line; and since when the oldest waits."""

    namespace: str
    queue: str
    ready: int
    delayed: int
    waiting: int
    oldest: int | None


class Glance(NamedTuple):
    """What a scrape reads. `now` is the database's time."""

    now: int
    rollouts: States
    workers: States
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
        await _queues(tx, names),
    )


async def queues(tx: Tx, namespaces: Collection[str] | None) -> tuple[int, list[Depth]]:
    """The queues in which something waits, and the time."""
    return tx.now, await _queues(tx, await _numbers(tx, namespaces))


async def _numbers(tx: Tx, namespaces: Collection[str] | None) -> Mapping[int, str]:
    known = await list_namespaces(tx)
    return {number: name for number, name in known.items() if namespaces is None or name in namespaces}


def _states(names: Mapping[int, str], rows: Collection[NamespaceCount]) -> States:
    states: States = {}
    for row in rows:
        states.setdefault(names[row.ns], {})[row.status] = int(row.total)
    return states


async def _queues(tx: Tx, names: Mapping[int, str]) -> list[Depth]:
    numbers = list(names)
    ready = {(row.ns, row.queue): row for row in await tx.all(sql.READY_BY_QUEUE, numbers=numbers)}
    due = {(row.ns, row.queue): row.total for row in await tx.all(sql.DUE_BY_QUEUE, numbers=numbers)}
    behind = {(row.ns, row.queue): row.total for row in await tx.all(sql.BEHIND_BY_QUEUE, numbers=numbers)}
    depths = []
    for ns, queue in sorted({*ready, *due, *behind}):
        found = ready.get((ns, queue)) or ReadyCount(ns, queue, 0, None)
        waiting = (due.get((ns, queue), 0), behind.get((ns, queue), 0))
        depths.append(Depth(names[ns], queue, found.total, *waiting, found.oldest))
    return depths
