"""Enqueues rollouts, or starts them at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter

import msgspec

from perdure.kernel import changes, ids
from perdure.kernel.errors import InvalidInput
from perdure.kernel.storage.port import Tx
from perdure.kernel.storage.rows import get_columns
from perdure.rollouts import sql, tables
from perdure.rollouts.model import (
    DEFAULT_QUEUE,
    PREPARING,
    QUEUED,
    ROLLOUT,
    TASK,
    Kinds,
    compute_deadline,
    decode_limits,
)
from perdure.rollouts.operations.conditions import NOT_OVERDUE
from perdure.rollouts.operations.lines import lock_lines
from perdure.rollouts.operations.work import ATTEMPTS_TOTAL, READY_CHANNEL, add_counts, add_total, ready_key
from perdure.rollouts.operations.workers import WorkerChanges
from perdure.rollouts.rows import (
    AttemptRow,
    ClaimedRollout,
    ClaimedRow,
    LineRow,
    NewRolloutRow,
    RolloutRecordRow,
    RolloutRow,
)
from perdure.service.audit import audit
from perdure.service.conditions import requires
from perdure.service.idempotency import keyed_as

_stored = attrgetter(*(name for name in get_columns(ClaimedRow) if name != "more"))


class NewRollout(msgspec.Struct, frozen=True):
    """A rollout to enqueue, with its bodies encoded."""

    input: str
    config: str
    metadata: str
    mode: str | None = None
    resources_id: str | None = None
    kind: str = TASK
    queue: str = DEFAULT_QUEUE
    agent: str | None = None
    """Only workers with this agent claim it; None for work without an agent."""
    priority: int = 0
    not_before: int | None = None
    line: str | None = None
    parent: str | None = None
    """The id of the object that it is a part of; None if it is not a part."""
    idempotency_key: str | None = None
    worker_id: str | None = None
    rollout_id: str | None = None
    attempt_id: str | None = None
    trace_id: str | None = None
    """The trace that its caller has started."""


class ClaimAtOnce:
    """Waiting claims, each for rollouts of some agents, that take rollouts while they are enqueued.

    Use it only if nothing was ready in the queue before. Otherwise rollouts that waited longer come first.
    """

    def __init__(self, queue: str, wanted: Sequence[tuple[Collection[str], int]]) -> None:
        self._queue = queue
        self._wanted = wanted
        self.taken: list[list[ClaimedRow]] = [[] for _ in wanted]
        """The rollouts that each claim has taken."""

    def take(self, rows: Sequence[NewRolloutRow]) -> set[str]:
        """Claim the ready rollouts among `rows`, in the order of the queue; return their ids."""
        ready = [row for row in rows if row.ready is not None and row.queue == self._queue]
        ready.sort(key=lambda row: (-row.priority, row.position))
        return {row.id for row in ready if self._take(row)}

    def _take(self, row: NewRolloutRow) -> bool:
        for (agents, limit), taken in zip(self._wanted, self.taken, strict=True):
            if row.agent in agents and len(taken) < limit:
                row.queued_as, row.status = row.status, ROLLOUT.step(row.status, "claimed")
                row.ready, row.attempts = None, row.attempts + 1
                taken.append(ClaimedRow._make((*_stored(row), None)))
                return True
        return False


@requires(NOT_OVERDUE)
async def enqueue_rollouts(tx: Tx, requests: Sequence[NewRollout], kinds: Kinds) -> list[RolloutRecordRow]:
    """Enqueue the requests of callers."""
    rows = await enqueue(tx, requests, kinds)
    await audit(tx, "enqueue_rollout", [row.id for row in rows])
    return rows


async def enqueue(
    tx: Tx,
    requests: Sequence[NewRollout],
    kinds: Kinds,
    first: int = 0,
    locked: dict[str, str | None] | None = None,
    taking: ClaimAtOnce | None = None,
    new_lines: Collection[str] = (),
) -> list[RolloutRecordRow]:
    """Enqueue each request, and return its rollout.

    `first` is the number of rollouts that this transaction has enqueued before, `locked` the holders of the
    locked lines. `new_lines` have new ids as names, so they are inserted without a lock. The caller next
    writes the claims of `taking` and the lines of these claims; no such line is in `new_lines`.
    If the idempotency key of a request exists, the answer is the first rollout with that key.
    """
    existing = await _find_by_keys(tx, requests)
    latest = await _latest_resources(tx, requests)
    holders = {} if locked is None else locked
    holders.update(dict.fromkeys(new_lines))
    holders.update(await _find_lines(tx, requests, holders))
    rows: list[NewRolloutRow] = []
    answers: list[RolloutRecordRow] = []
    held: list[LineRow] = []
    for request in requests:
        answer = existing.get(request.idempotency_key) if request.idempotency_key else None
        if answer is None:
            row = new_row(tx, request, first + len(rows), latest, holders, kinds)
            rows.append(row)
            if request.line is not None and holders[request.line] is None and row.ready is not None:
                holders[request.line] = row.id
                held.append(LineRow(request.line, row.id))
            answer = row.view
            if request.idempotency_key:
                existing[request.idempotency_key] = answer
        answers.append(answer)
    count_new(tx, rows)
    taken = set() if taking is None else taking.take(rows)
    waiting = [line for line in held if line.holder not in taken and line.line not in new_lines]
    added = [LineRow(line, holders[line]) for line in sorted(new_lines)]
    await tx.defer(sql.HOLD_LINES.of(waiting), sql.ADD_LINES.of(added), sql.ADD_ROLLOUTS.of(rows))
    return answers


async def _find_by_keys(tx: Tx, requests: Sequence[NewRollout]) -> dict[str, RolloutRecordRow]:
    keys = [request.idempotency_key for request in requests if request.idempotency_key]
    if not keys:
        return {}
    return {row.idempotency_key: row.view for row in await tx.all(sql.BY_IDEMPOTENCY_KEY, keys=keys)}


async def _latest_resources(tx: Tx, requests: Sequence[NewRollout]) -> str | None:
    if all(request.resources_id is not None for request in requests):
        return None
    if not await tx.probe(tables.ANY_RESOURCES):
        return None
    return await tx.one(sql.LATEST_RESOURCES_ID)


async def _find_lines(
    tx: Tx, requests: Sequence[NewRollout], locked: Mapping[str, str | None]
) -> dict[str, str | None]:
    names = [line for request in requests if (line := request.line) is not None and line not in locked]
    return await lock_lines(tx, names) if names else {}


def new_row(
    tx: Tx,
    request: NewRollout,
    ordinal: int,
    latest: str | None,
    holders: dict[str, str | None],
    kinds: Kinds,
) -> NewRolloutRow:
    """Build a row of rollouts. Exactly one of ready, due_at and behind is set."""
    if request.kind not in kinds:
        raise InvalidInput(f"no such kind of rollout: {request.kind}")
    start = tx.now + ordinal
    position = start
    ready: int | None = start
    due_at: int | None = None
    behind: int | None = None
    if request.not_before is not None and request.not_before > tx.wall + ordinal:
        due_at = tx.now + (request.not_before - tx.wall)
        position, ready = due_at + ordinal, None
    elif request.line is not None and holders[request.line] is not None:
        ready, behind = None, position
    resources_id = request.resources_id if request.resources_id is not None else latest
    return NewRolloutRow(
        id=request.rollout_id or ids.rollout_id(tx.ids),
        kind=request.kind,
        queue=request.queue,
        agent=request.agent,
        status=ROLLOUT.start["enqueued"],
        outcome=None,
        priority=request.priority,
        position=position,
        ready=ready,
        due_at=due_at,
        behind=behind,
        line=request.line,
        parent=request.parent,
        queued_as=None,
        attempts=0,
        mode=request.mode,
        resources_id=resources_id,
        start_time=start,
        end_time=None,
        idempotency_key=request.idempotency_key,
        config=request.config,
        metadata=request.metadata,
        input=request.input,
        trace_id=request.trace_id,
    )


def count_new(tx: Tx, rows: Sequence[NewRolloutRow]) -> None:
    """Count new rollouts, and publish them."""
    counts: dict[tuple[str, str], int] = {}
    for row in rows:
        counts[row.kind, row.status] = counts.get((row.kind, row.status), 0) + 1
        if row.status in QUEUED:
            tx.hint(READY_CHANNEL, ready_key(row.queue, row.agent))
    changes.tell(tx, "rollout", ((row.id, row.status) for row in rows))
    add_counts(tx, counts)


@requires(NOT_OVERDUE)
@keyed_as("start_rollout", ClaimedRollout)
async def start_rollouts(tx: Tx, requests: Sequence[NewRollout], kinds: Kinds) -> list[ClaimedRollout]:
    """Start rollouts without the queue, each with its first attempt."""
    latest = await _latest_resources(tx, requests)
    rows: list[NewRolloutRow] = []
    attempts: list[AttemptRow] = []
    workers = WorkerChanges(tx)
    for request in requests:
        row = new_row(tx, request, len(rows), latest, {}, kinds)
        row.status, row.ready, row.due_at, row.attempts = ROLLOUT.start["started"], None, None, 1
        rows.append(row)
        attempt = new_attempt(tx, row, 1, request.worker_id, request.attempt_id)
        attempts.append(attempt)
        workers.claimed(request.worker_id, row.id, attempt.id, dequeued=False)
    inserts = (sql.ADD_ROLLOUTS.of(rows), sql.ADD_ATTEMPTS.of(attempts))
    await tx.defer(*inserts, *await workers.changed())
    add_total(tx, ATTEMPTS_TOTAL, len(attempts))
    count_new(tx, rows)
    await audit(tx, "start_rollout", [attempt.name for attempt in attempts])
    return [ClaimedRollout(row.view, attempt.view) for row, attempt in zip(rows, attempts, strict=True)]


@requires(NOT_OVERDUE)
async def start_missing(tx: Tx, requests: Sequence[NewRollout], kinds: Kinds) -> list[ClaimedRollout]:
    """Start rollouts with given ids, except ids that already exist."""
    named = {request.rollout_id: request for request in requests}
    for rollout_id in await tx.all(sql.PRESENT, ids=sorted(str(name) for name in named)):
        del named[rollout_id]
    return await start_rollouts(tx, list(named.values()), kinds) if named else []


def new_attempt(
    tx: Tx,
    rollout: RolloutRow | NewRolloutRow | ClaimedRow,
    sequence_id: int,
    worker_id: str | None,
    attempt_id: str | None = None,
) -> AttemptRow:
    """Build an attempt of a rollout; the watchdog checks it if the rollout's config sets limits."""
    return AttemptRow(
        rollout_id=rollout.id,
        sequence_id=sequence_id,
        id=attempt_id or ids.attempt_id(tx.ids),
        status=PREPARING,
        start_time=tx.now,
        end_time=None,
        worker_id=worker_id,
        last_heartbeat_time=None,
        metadata=None,
        check_at=compute_deadline(decode_limits(rollout.config), tx.now, None),
        reason=None,
        charged=1,
        kind=rollout.kind,
        born=rollout.start_time,
        joined=None,
    )
