"""Who works: the workers that are alive, and how much each of them can take."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from perdure.access.operations import list_namespaces
from perdure.kernel.codec import decode_json
from perdure.kernel.errors import InvalidInput
from perdure.kernel.storage.port import Row, Tx
from perdure.rollouts.model import LIVE
from perdure.threads import sql
from perdure.threads.model import AGENTS_QUEUE, RUN
from perdure.threads.operations.queries import QueueStats, stats

MOST_WORKERS = 1000


class WorkerPresence(msgspec.Struct, frozen=True):
    """A worker: when it was last heard of, and what it said of itself."""

    id: str
    heard: int
    queue: str | None = None
    places: int | None = None


async def workers(tx: Tx) -> list[WorkerPresence]:
    """The workers of a namespace, those first that gave a sign of life last."""
    return [_presence(row) for row in await tx.all(sql.WHY_WORKERS, n=MOST_WORKERS)]


def _presence(row: Row) -> WorkerPresence:
    id, text, *signs = row
    stats = _stats(text)
    queue, places = stats.get("queue"), stats.get("max")
    return WorkerPresence(
        id,
        max(sign or 0 for sign in signs),
        queue if isinstance(queue, str) else None,
        places if isinstance(places, int) else None,
    )


def _stats(text: str | None) -> Mapping[str, Any]:
    try:
        found = None if text is None else decode_json(text)
    except InvalidInput:
        return {}
    return found if isinstance(found, dict) else {}


def serves(worker: WorkerPresence, kind: str, queue: str) -> bool:
    """Whether a worker claims from a queue. One that names none claims tasks, from wherever it likes."""
    return worker.queue == queue if kind == RUN or worker.queue is not None else True


class LiveWorkers(msgspec.Struct, frozen=True):
    """The workers that are alive, and their places, as far as they have told."""

    alive: int
    max: int
    active: int
    available: int


async def live_workers(tx: Tx, alive: int) -> LiveWorkers:
    """Those that execute runs and were heard of within `alive` microseconds."""
    found = [each for each in await workers(tx) if each.heard >= tx.now - alive]
    return await counted(tx, [each for each in found if serves(each, RUN, AGENTS_QUEUE)], RUN)


async def counted(tx: Tx, alive: Sequence[WorkerPresence], kind: str) -> LiveWorkers:
    rows = await tx.all(sql.HELD_BY_WORKERS, kind=kind, statuses=sorted(LIVE)) if alive else []
    held = {row[0]: int(row[1]) for row in rows}
    places = sum(worker.places or 0 for worker in alive)
    active = sum(held.get(worker.id, 0) for worker in alive)
    return LiveWorkers(len(alive), places, active, max(places - active, 0))


Standing = dict[str, tuple[QueueStats, LiveWorkers]]
"""For each namespace with runs, its queue and its workers."""


async def standing(tx: Tx, namespaces: Collection[str] | None, alive: int) -> Standing:
    """How the queue of runs stands in these namespaces, or in all."""
    names = await list_namespaces(tx)
    used = [int(row[0]) for row in await tx.all(sql.NAMESPACES_WITH, kind=RUN)]
    here, found = tx.ns, {}
    try:
        for ns in used:
            if namespaces is None or names[ns] in namespaces:
                tx.ns = ns
                found[names[ns]] = (await stats(tx), await live_workers(tx, alive))
    finally:
        tx.ns = here
    return found
