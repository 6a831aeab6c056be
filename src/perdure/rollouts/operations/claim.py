"""Claims of rollouts from the queue, and their release."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from perdure.kernel import changes
from perdure.kernel.clock import to_seconds
from perdure.kernel.errors import NotFound
from perdure.kernel.storage.dialect import Write
from perdure.kernel.storage.port import Tx
from perdure.kernel.tally import grouped
from perdure.rollouts import claim_sql, sql, tables
from perdure.rollouts.hold_sql import HoldRow
from perdure.rollouts.model import (
    PREPARING,
    QUEUED,
    QUEUING,
    REQUEUING,
    ROLLOUT,
    AttemptStart,
    Handler,
    Kinds,
)
from perdure.rollouts.operations import holds, lines
from perdure.rollouts.operations.conditions import LINES_LOCKED, NOT_OVERDUE
from perdure.rollouts.operations.enqueue import new_attempt
from perdure.rollouts.operations.report import save_all
from perdure.rollouts.operations.work import (
    ATTEMPTS_TOTAL,
    READY_CHANNEL,
    WAITED,
    LockedRollouts,
    add_counts,
    add_total,
    ready_key,
)
from perdure.rollouts.operations.workers import WorkerChanges
from perdure.rollouts.rows import AttemptRow, ClaimedRollout, ClaimedRow, LineRow, ReturnedRow
from perdure.service.audit import audit
from perdure.service.conditions import requires
from perdure.service.idempotency import keyed_as

_PLACE = attrgetter("kind", "queued_as", "status")
DUE_ROWS = 500
SPARE_ROWS = 8
"""Number of rollouts of each agent to read beyond the limit, because other claims may have locked some."""
MORE_SPARE_ROWS = 1000
"""Number for a second try, after other claims had locked all rollouts of the first try."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker's request for up to `limit` rollouts."""

    worker_id: str | None
    limit: int


@requires(NOT_OVERDUE)
@keyed_as("dequeue_rollout", list[ClaimedRollout])
async def claim_rollouts(
    tx: Tx, claims: Sequence[Claim], queue: str, kind: str, kinds: Kinds
) -> list[list[ClaimedRollout]]:
    """Return the next rollouts of the queue for each claim of a caller."""
    answers = await claim(tx, claims, [queue], [kind], kinds)
    await audit(tx, "dequeue_rollout", (pair.name for share in answers for pair in share))
    return answers


async def claim(
    tx: Tx,
    claims: Sequence[Claim],
    queues: Sequence[str],
    names: Sequence[str],
    kinds: Kinds,
    agents: Sequence[str] | None = None,
) -> list[list[ClaimedRollout]]:
    """Return the next rollouts of the queues for each claim, each with its new attempt, in one transaction.

    `names` are the kinds of rollouts. With `agents`, return rollouts of these agents. Otherwise return
    rollouts of one queue and kind without an agent.
    """
    await promote_due(tx)
    hold_rows, kind_names = await holds.holds(tx), names
    if hold_rows:
        claims, queues, names = _apply_holds(hold_rows, claims, queues, names)
    wanted = sum(item.limit for item in claims)
    rows = await _take(tx, queues, names, wanted, agents) if wanted and queues else []
    rows.sort(key=lambda row: (-row.priority, row.position))
    if agents is not None and rows and await _has_more(tx, rows, wanted, queues, names, agents):
        # A hint wakes one worker: a claim that leaves rollouts wakes the next worker.
        for queue in queues:
            for agent in agents:
                tx.hint(READY_CHANNEL, ready_key(queue, agent))
    return await begin_attempts(tx, claims, rows, kind_names, kinds, quietly=agents is not None)


async def begin_attempts(
    tx: Tx,
    claims: Sequence[Claim],
    rows: Sequence[ClaimedRow],
    names: Sequence[str],
    kinds: Kinds,
    *,
    quietly: bool,
) -> list[list[ClaimedRollout]]:
    """Distribute claimed rollouts, of the kinds with these names, each with its new attempt."""
    answers, attempts = _share(tx, claims, rows)
    changes.tell(tx, "rollout", ((row.id, row.status) for row in rows))
    _count_waits(tx, rows)
    writes = [sql.ADD_ATTEMPTS.of(attempts), _holding(rows, attempts)]
    starts = _starts(rows, attempts, kinds)
    if starts:
        # Handlers run before later writes in the order of locks.
        await tx.write(*writes)
        for handler, started in starts.items():
            await handler(tx, started)
        writes = []
    counts = all(kinds[name].counted for name in names)
    workers = await _tell_workers(tx, claims, answers, kinds, counts=counts, quietly=quietly)
    await tx.defer(*writes, *await workers.changed())
    add_counts(tx, _moved(rows))
    add_total(tx, ATTEMPTS_TOTAL, len(attempts))
    return answers


def _apply_holds(
    hold_rows: Sequence[HoldRow], claims: Sequence[Claim], queues: Sequence[str], names: Sequence[str]
) -> tuple[Sequence[Claim], Sequence[str], Sequence[str]]:
    """Return the claims, with limit 0 for drained workers, and the queues that are not paused."""
    paused, drained = holds.held(hold_rows, holds.QUEUE), holds.held(hold_rows, holds.WORKER)
    claims = [Claim(item.worker_id, 0) if item.worker_id in drained else item for item in claims]
    pairs = [(queue, name) for queue, name in zip(queues, names, strict=True) if queue not in paused]
    return claims, [queue for queue, _ in pairs], [name for _, name in pairs]


def _starts(
    rows: Sequence[ClaimedRow], attempts: Sequence[AttemptRow], kinds: Kinds
) -> dict[Handler[AttemptStart], list[AttemptStart]]:
    """Collect the new attempts for each handler of the kinds of the claimed rollouts."""
    starts: dict[Handler[AttemptStart], list[AttemptStart]] = {}
    if all(kinds[name].on_claimed is None for name in {row.kind for row in rows}):
        return starts
    for row, attempt in zip(rows, attempts, strict=True):
        handler = kinds[row.kind].on_claimed
        if handler is not None:
            starts.setdefault(handler, []).append(_start(row, attempt))
    return starts


def _start(row: ClaimedRow, attempt: AttemptRow) -> AttemptStart:
    return AttemptStart(
        rollout_id=row.id,
        attempt_id=attempt.id,
        sequence_id=attempt.sequence_id,
        worker_id=attempt.worker_id,
        queue=row.queue,
        line=row.line,
        parent=row.parent,
    )


async def _take(
    tx: Tx, queues: Sequence[str], names: Sequence[str], wanted: int, agents: Sequence[str] | None
) -> list[ClaimedRow]:
    terms = {"n": wanted, "target": ROLLOUT.step(QUEUING, "claimed")}
    if agents is None or (len(queues) == len(names) == len(agents) == 1):
        (queue,), (kind,) = queues, names
        if agents is None:
            return await tx.all(claim_sql.CLAIM, queue=queue, kind=kind, **terms)
        (agent,) = agents
        return await tx.all(claim_sql.CLAIM_OF_AGENT, queue=queue, kind=kind, agent=agent, **terms)
    many = {"queues": queues, "kinds": names, "agents": agents}
    for spare in (SPARE_ROWS, MORE_SPARE_ROWS):
        rows = await tx.all(claim_sql.CLAIM_OF_AGENTS, seen=wanted + spare, **many, **terms)
        if rows:
            break
    return rows


async def _has_more(
    tx: Tx,
    rows: Sequence[ClaimedRow],
    wanted: int,
    queues: Sequence[str],
    names: Sequence[str],
    agents: Sequence[str],
) -> bool:
    """Return whether rollouts are left after a claim, because it was full or others had locks."""
    more = next(row.more for row in rows)
    if more is not None:
        return more
    full = len(rows) == wanted
    return full and await tx.one(claim_sql.ANY_READY, queues=queues, agents=agents, kinds=names) is not None


def _share(
    tx: Tx, claims: Sequence[Claim], rows: Sequence[ClaimedRow]
) -> tuple[list[list[ClaimedRollout]], list[AttemptRow]]:
    """Distribute the rollouts in the order of the claims."""
    attempts: list[AttemptRow] = []
    answers: list[list[ClaimedRollout]] = []
    left = iter(rows)
    for item in claims:
        share: list[ClaimedRollout] = []
        for _, row in zip(range(item.limit), left, strict=False):
            attempt = new_attempt(tx, row, row.attempts, item.worker_id)
            attempts.append(attempt)
            share.append(ClaimedRollout(row.view, attempt.view))
        answers.append(share)
    return answers, attempts


def _count_waits(tx: Tx, rows: Sequence[ClaimedRow]) -> None:
    """Count the waiting times of rollouts that were never claimed before."""
    for queue in {row.queue for row in rows}:
        first = [row.position for row in rows if row.attempts == 1 and row.queue == queue]
        for seconds, times in grouped([to_seconds(max(tx.now - position, 0)) for position in first]):
            tx.count(WAITED, queue, seconds, times)


def _moved(rows: Sequence[ClaimedRow]) -> dict[tuple[str, str], int]:
    counts: Counter[tuple[str, str]] = Counter()
    for (kind, queued_as, status), count in Counter(map(_PLACE, rows)).items():
        counts[kind, queued_as] -= count
        counts[kind, status] += count
    return counts


async def _tell_workers(
    tx: Tx,
    claims: Sequence[Claim],
    answers: Sequence[Sequence[ClaimedRollout]],
    kinds: Kinds,
    *,
    counts: bool,
    quietly: bool,
) -> WorkerChanges:
    """Link each worker to the last rollout that it got; a worker without a rollout is idle.

    With `counts`, rollouts count as held. With `quietly`, write nothing for workers that were idle.
    """
    workers = WorkerChanges(tx, kinds)
    unserved = [item.worker_id for item, share in zip(claims, answers, strict=True) if not share]
    idle = await workers.idle_among(unserved) if quietly else frozenset()
    for item, share in zip(claims, answers, strict=True):
        if share:
            last = share[-1]
            runs = len(share) if counts else 0
            workers.claimed(item.worker_id, last.rollout.id, last.attempt.id, dequeued=True, runs=runs)
        elif item.worker_id not in idle:
            workers.found_nothing(item.worker_id)
    return workers


def _holding(rows: Sequence[ClaimedRow], attempts: Sequence[AttemptRow]) -> Write:
    """Return the write that makes new attempts the holders of their lines."""
    pairs = zip(rows, attempts, strict=True)
    return sql.HOLD_LINES.of(
        [LineRow(row.line, row.id, attempt.id) for row, attempt in pairs if row.line is not None]
    )


async def promote_due(tx: Tx) -> None:
    """Make delayed rollouts ready when their time has come."""
    if not await tx.probe(tables.DUE):
        return
    await lines.promote_due_in_lines(tx, DUE_ROWS)
    for row in await tx.all(sql.PROMOTE_DUE, n=DUE_ROWS):
        tx.hint(READY_CHANNEL, ready_key(row.queue, row.agent))


@requires(NOT_OVERDUE, LINES_LOCKED)
async def release_rollouts(
    tx: Tx, claimed: Sequence[tuple[str, str]], kinds: Kinds, lined: bool = False
) -> None:
    """Revert claims, (rollout_id, attempt_id), whose answer did not reach the caller.

    The attempt never started, and the rollout is ready again at its old position. The attempt is deleted. If
    handlers of its kind know the attempt, it ends as released instead, and does not count.
    """
    work = LockedRollouts(tx, kinds)
    await work.load([rollout_id for rollout_id, _ in claimed], kinds.names(), lined=lined)
    workers = WorkerChanges(tx, kinds)
    for rollout_id, attempt_id in claimed:
        rollout = work.rollouts.get(rollout_id)
        latest = work.attempts[rollout_id][-1] if rollout and work.attempts[rollout_id] else None
        if rollout is None or latest is None or latest.id != attempt_id:
            continue
        notified = kinds[rollout.kind].tells_of_attempts
        if latest.status != PREPARING or not (notified or rollout.status == PREPARING):
            # A report or a span has arrived meanwhile, and must be kept.
            continue
        if notified:
            work.release(rollout, latest)
            workers.released(latest)
            continue
        queued = rollout.queued_as if rollout.queued_as in QUEUED else REQUEUING
        attempts = rollout.attempts
        back = ReturnedRow(rollout_id, queued, rollout.position, attempts - 1, rollout.status, attempts)
        if await tx.update_many(sql.GIVE_BACK, [back]):
            dropped = await tx.execute(sql.DROP_ATTEMPT, id=rollout_id, sequence_id=latest.sequence_id)
            add_total(tx, ATTEMPTS_TOTAL, -dropped)
            workers.released(latest)
            work.attempts[rollout_id].pop()
            for previous in work.attempts[rollout_id][-1:]:
                # It is the latest again, and may be live again.
                previous.watch(rollout.limits)
            work.count(rollout.kind, rollout.status, -1)
            work.count(rollout.kind, queued, 1)
            tx.hint(READY_CHANNEL, ready_key(rollout.queue, rollout.agent))
            changes.tell(tx, "rollout", [(rollout_id, queued)])
    await save_all(work, workers, lined)
    await audit(tx, "release_rollout", [rollout_id + "/" + attempt_id for rollout_id, attempt_id in claimed])


@requires(NOT_OVERDUE, LINES_LOCKED)
@keyed_as("start_attempt", ClaimedRollout)
async def start_attempts(
    tx: Tx, requests: Sequence[tuple[str, str | None]], kind: str, kinds: Kinds, lined: bool = False
) -> list[ClaimedRollout | NotFound]:
    """Start another attempt of each (rollout_id, worker_id), whatever its status and limits."""
    work = LockedRollouts(tx, kinds)
    await work.load([rollout_id for rollout_id, _ in requests], [kind], lined=lined)
    workers = WorkerChanges(tx, kinds)
    started: list[AttemptRow | NotFound] = []
    for rollout_id, worker_id in requests:
        rollout = work.rollouts.get(rollout_id)
        if rollout is None:
            started.append(NotFound(f"Rollout {rollout_id} not found"))
            continue
        for attempt in work.attempts[rollout_id]:
            if attempt.check_at is not None:
                attempt.check_at, attempt.dirty = None, True
        work.move(rollout, "attempt started")
        rollout.attempts += 1
        new = new_attempt(tx, rollout, rollout.attempts, worker_id)
        started.append(new)
        workers.claimed(worker_id, rollout_id, new.id, dequeued=False)
    attempts = [attempt for attempt in started if not isinstance(attempt, NotFound)]
    await work.save(sql.ADD_ATTEMPTS.of(attempts), *await workers.changed())
    work.add_counts()
    add_total(tx, ATTEMPTS_TOTAL, len(attempts))
    views = {row.id: row for row in await tx.all(sql.GET_ROLLOUTS, ids=list(work.rollouts), kinds=[kind])}
    await audit(tx, "start_attempt", [attempt.name for attempt in attempts])
    return [
        item if isinstance(item, NotFound) else ClaimedRollout(views[item.rollout_id], item.view)
        for item in started
    ]
