"""Operations on jobs: enqueue, claim, renew, finish, cancel and remove."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.jobs import sql
from perdure.jobs.model import (
    CANCELLED_TEXT,
    INTERNAL_QUEUE,
    JOB,
    LOST,
    ClaimedJob,
    JobEnd,
    JobEndRow,
    JobLease,
    JobRow,
    JobWithRollout,
    NewJob,
    ReadyNamespaceRow,
)
from perdure.kernel import ids
from perdure.kernel.errors import NotFound
from perdure.kernel.storage.port import Tx
from perdure.rollouts import sql as rollouts_sql
from perdure.rollouts.model import (
    ATTEMPT,
    CANCELLED,
    ENDED,
    FAILED,
    LIVE,
    SUCCEEDED,
    TIMEOUT,
    AttemptStart,
    EndedRollout,
    Kinds,
    RolloutKind,
    reported,
    set_to,
)
from perdure.rollouts.operations.claim import Claim, claim
from perdure.rollouts.operations.enqueue import NewRollout, enqueue
from perdure.rollouts.operations.remove import remove_rollouts
from perdure.rollouts.operations.report import save_all
from perdure.rollouts.operations.work import AttemptRow, LockedRollouts, RolloutRow
from perdure.rollouts.operations.workers import WorkerChanges
from perdure.rollouts.rows import HeartbeatRow
from perdure.service.audit import audit

REMOVE_ROWS = 100


# --- the handlers of the kind -------------------------------------------------------------------------------


async def _begin(tx: Tx, starts: Sequence[AttemptStart]) -> None:
    """Let the keys of jobs go: who enqueues now gets another job, since this one may have read already."""
    waiting = await tx.all(sql.LOCK_BEGINNING, ids=sorted(each.rollout_id for each in starts))
    if waiting:
        await tx.execute(sql.BEGIN, ids=[row.id for row in waiting])


async def _end(tx: Tx, ended: Sequence[EndedRollout]) -> None:
    """Write how jobs ended. One that did not say so itself was lost or cancelled."""
    await tx.defer(sql.SAVE_ENDS.of([_end_row(each, tx.now) for each in ended]))


def _end_row(ended: EndedRollout, now: int) -> JobEndRow:
    if isinstance(ended.note, JobEnd):
        return JobEndRow(ended.rollout_id, None, now, ended.note.error, ended.note.result)
    return JobEndRow(ended.rollout_id, None, now, CANCELLED_TEXT if ended.status == CANCELLED else LOST, None)


JOB_KIND = RolloutKind(JOB, final=True, on_claimed=_begin, on_ended=_end)
_KINDS = Kinds(JOB_KIND)


# --- enqueueing ---------------------------------------------------------------------------------------------


async def enqueue_jobs(tx: Tx, jobs: Sequence[NewJob]) -> list[str]:
    """Enqueue jobs, inside any operation; answers each with the id of its job.

    One with a `key` is answered with the job of that name and key that waits, if there is one. It is locked
    until the transaction ends, so that the job sees what the transaction wrote. In the order of locks the
    rows of `jobs` come after those of the domains, and before workers.
    """
    waiting = await _waiting(tx, jobs)
    known = await _known(tx, jobs)
    answers: list[str] = []
    rows: list[JobRow] = []
    rollouts: list[NewRollout] = []
    for job in jobs:
        found = waiting.get((job.name, job.key)) if job.key is not None else None
        found = found or (known.get(job.idempotency_key) if job.idempotency_key else None)
        if found is None:
            row = _new_row(tx, job)
            rows.append(row)
            rollouts.append(_rollout_of(tx, job, row))
            found = row.id
            if job.key is not None:
                waiting[job.name, job.key] = found
            if job.idempotency_key is not None:
                known[job.idempotency_key] = found
        answers.append(found)
    if rows:
        await tx.write(sql.ADD.of(rows))
        await enqueue(tx, rollouts, _KINDS)
    return answers


async def _waiting(tx: Tx, jobs: Sequence[NewJob]) -> dict[tuple[str, str | None], str]:
    """The jobs that wait to begin, locked, by name and key."""
    keys: dict[str, set[str]] = {}
    for job in jobs:
        if job.key is not None:
            keys.setdefault(job.name, set()).add(job.key)
    found: dict[tuple[str, str | None], str] = {}
    for name in sorted(keys):
        rows = await tx.all(sql.LOCK_WAITING, name=name, keys=sorted(keys[name]))
        found.update({(row.name, row.waiting_key): row.id for row in rows})
    return found


async def _known(tx: Tx, jobs: Sequence[NewJob]) -> dict[str, str]:
    keys = sorted({_unique(job.idempotency_key): job.idempotency_key for job in jobs if job.idempotency_key})
    if not keys:
        return {}
    rows = await tx.all(rollouts_sql.BY_IDEMPOTENCY_KEY, keys=keys)
    return {row.idempotency_key.removeprefix(_unique("")): row.view.id for row in rows}


def _unique(key: str) -> str:
    """The idempotency key of a rollout: those of jobs are apart from those of callers."""
    return "job/" + key


def _new_row(tx: Tx, job: NewJob) -> JobRow:
    return JobRow(
        id=ids.rollout_id(tx.ids),
        name=job.name,
        key=job.key,
        waiting_key=job.key,
        created_at=tx.now,
        ended_at=None,
        error=None,
        payload=job.payload,
        result=None,
    )


def _rollout_of(tx: Tx, job: NewJob, row: JobRow) -> NewRollout:
    return NewRollout(
        input="null",
        config=job.config,
        metadata="{}",
        kind=JOB,
        queue=INTERNAL_QUEUE,
        agent=job.name,
        not_before=tx.wall + job.delay if job.delay else None,
        idempotency_key=None if job.idempotency_key is None else _unique(job.idempotency_key),
        rollout_id=row.id,
    )


# --- executing ----------------------------------------------------------------------------------------------


async def ready_namespaces(tx: Tx, names: Sequence[str]) -> list[ReadyNamespaceRow]:
    """The namespaces in which jobs of these names are ready."""
    return await tx.all(sql.READY_NAMESPACES, queue=INTERNAL_QUEUE, names=list(names))


async def claim_jobs(tx: Tx, limit: int, names: Sequence[str], kinds: Kinds) -> list[ClaimedJob]:
    """Claim the next jobs of these names."""
    (share,) = await claim(tx, [Claim(None, limit)], [INTERNAL_QUEUE], [JOB], kinds, names)
    claimed = {each.rollout.id: each for each in share}
    if not claimed:
        return []
    return [
        ClaimedJob(
            JobLease(row.id, claimed[row.id].attempt.id),
            row.name,
            row.key,
            claimed[row.id].attempt.sequence_id,
            row.payload,
            claimed[row.id].rollout.config,
        )
        for row in await tx.all(sql.GET, ids=list(claimed))
    ]


async def renew_jobs(tx: Tx, leases: Sequence[JobLease], kinds: Kinds) -> list[bool]:
    """Renew the leases that still hold, and tell of each whether it does."""
    work = LockedRollouts(tx, kinds)
    await work.load([each.job_id for each in leases], [JOB], lined=False)
    kept: list[bool] = []
    rows: list[HeartbeatRow] = []
    for lease in leases:
        rollout, attempt = _holder(work, lease) or (None, None)
        kept.append(rollout is not None and rollout.status in LIVE)
        if attempt is not None and rollout is not None and rollout.status in LIVE:
            rows.append(HeartbeatRow(attempt.rollout_id, attempt.sequence_id, tx.now))
    await tx.write(rollouts_sql.HEARTBEAT.of(rows))
    return kept


def _holder(work: LockedRollouts, lease: JobLease) -> tuple[RolloutRow, AttemptRow] | None:
    """The job and the attempt of a lease that still holds."""
    rollout = work.rollouts.get(lease.job_id)
    latest = None if rollout is None else work.latest(lease.job_id)
    if rollout is None or latest is None or latest.id != lease.attempt_id or latest.status not in LIVE:
        return None
    return rollout, latest


async def finish_jobs(tx: Tx, ends: Sequence[JobEnd], kinds: Kinds) -> list[bool]:
    """End attempts, and tell of each whether it held its job. One that failed may be tried again."""
    work = LockedRollouts(tx, kinds)
    await work.load([end.lease.job_id for end in ends], [JOB], lined=False)
    failures: list[JobEndRow] = []
    answers: list[bool] = []
    for end in ends:
        found = _holder(work, end.lease)
        answers.append(found is not None)
        if found is not None:
            failures += _finish(work, *found, end)
    await tx.defer(sql.SAVE_ENDS.of(failures))
    await save_all(work, WorkerChanges(tx), False)
    return answers


def _finish(work: LockedRollouts, rollout: RolloutRow, attempt: AttemptRow, end: JobEnd) -> list[JobEndRow]:
    """Apply an end; gives what is written of a job that is tried again."""
    status = SUCCEEDED if end.error is None else TIMEOUT if end.timeout else FAILED
    attempt.status = ATTEMPT.step(attempt.status, reported(status))
    attempt.end_time, attempt.reason = work.tx.now, status
    attempt.check_at, attempt.dirty = None, True
    if rollout.status in ENDED:
        # It was cancelled meanwhile, and its executor has stopped now.
        work.stopped.append(rollout)
        return []
    if status == FAILED and work.tries(attempt) < end.max_attempts:
        work.move(rollout, "reported failure, retry", status, delay=end.delay)
        return [JobEndRow(rollout.id, None, None, end.error, None)]
    work.notes[rollout.id] = end
    if status == SUCCEEDED:
        work.move(rollout, reported(SUCCEEDED), status)
    else:
        work.move(rollout, "reported failure, no retry", status)
    return []


async def release_jobs(tx: Tx, leases: Sequence[JobLease], kinds: Kinds) -> None:
    """Give jobs back that nobody executes: uncharged, and ready at once."""
    work = LockedRollouts(tx, kinds)
    await work.load([each.job_id for each in leases], [JOB], lined=False)
    for lease in leases:
        found = _holder(work, lease)
        if found is not None:
            work.release(*found)
    await save_all(work, WorkerChanges(tx), False)


# --- reading and removing -----------------------------------------------------------------------------------


async def get_jobs(tx: Tx, job_ids: Sequence[str]) -> list[JobWithRollout]:
    """Jobs by their ids; those that were removed are left out."""
    return await tx.all(sql.VIEW, ids=list(job_ids)) if job_ids else []


async def cancel_job(tx: Tx, job_id: str, kinds: Kinds) -> None:
    """Cancel a job that has not ended. Its executor stops when it renews its lease."""
    work = LockedRollouts(tx, kinds)
    await work.load([job_id], [JOB], lined=False)
    rollout = work.rollouts.get(job_id)
    if rollout is None:
        raise NotFound(f"Job {job_id} not found")
    if rollout.status not in ENDED:
        work.move(rollout, set_to(CANCELLED))
    await save_all(work, WorkerChanges(tx), False)
    await audit(tx, "cancel_job", [job_id])


async def remove_ended(tx: Tx, kept: int) -> int:
    """Delete some of the jobs that ended so many microseconds ago, in every namespace."""
    rows = await tx.all(sql.ENDED, before=tx.now - kept, n=REMOVE_ROWS)
    here = tx.ns
    try:
        for ns in sorted({row.ns for row in rows}):
            tx.ns = ns
            gone = sorted(row.id for row in rows if row.ns == ns)
            await remove_rollouts(tx, gone, JOB)
            await tx.execute(sql.DROP, ids=gone)
    finally:
        tx.ns = here
    return len(rows)
