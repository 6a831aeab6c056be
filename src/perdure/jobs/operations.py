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
    """Remove the waiting keys of jobs: a new job of the key is another one, since this one may have read."""
    waiting = await tx.all(sql.LOCK_BEGINNING, ids=sorted(start.rollout_id for start in starts))
    if waiting:
        await tx.execute(sql.BEGIN, ids=[row.id for row in waiting])


async def _end(tx: Tx, ended: Sequence[EndedRollout]) -> None:
    """Write the ends of jobs. A job without a report of its end was lost or cancelled."""
    await tx.defer(sql.SAVE_ENDS.of([_build_end(rollout, tx.now) for rollout in ended]))


def _build_end(ended: EndedRollout, now: int) -> JobEndRow:
    report = ended.report
    if isinstance(report, JobEnd):
        return JobEndRow(ended.rollout_id, None, now, report.error, report.result)
    return JobEndRow(ended.rollout_id, None, now, CANCELLED_TEXT if ended.status == CANCELLED else LOST, None)


JOB_KIND = RolloutKind(JOB, final=True, on_claimed=_begin, on_ended=_end)
_KINDS = Kinds(JOB_KIND)


# --- enqueueing ---------------------------------------------------------------------------------------------


async def enqueue_jobs(tx: Tx, jobs: Sequence[NewJob]) -> list[str]:
    """Enqueue jobs, inside any operation; return the id of each job.

    If a job of the same name and `key` waits, its id is returned. That job is locked until the transaction
    ends, so that it sees the writes of the transaction. In the order of locks the rows of `jobs` come after
    those of the domains, and before workers.
    """
    waiting = await _lock_waiting(tx, jobs)
    existing = await _find_by_keys(tx, jobs)
    answers: list[str] = []
    rows: list[JobRow] = []
    rollouts: list[NewRollout] = []
    for job in jobs:
        job_id = waiting.get((job.name, job.key)) if job.key is not None else None
        job_id = job_id or (existing.get(job.idempotency_key) if job.idempotency_key else None)
        if job_id is None:
            row = _new_row(tx, job)
            rows.append(row)
            rollouts.append(_build_rollout(tx, job, row))
            job_id = row.id
            if job.key is not None:
                waiting[job.name, job.key] = job_id
            if job.idempotency_key is not None:
                existing[job.idempotency_key] = job_id
        answers.append(job_id)
    if rows:
        await tx.write(sql.ADD.of(rows))
        await enqueue(tx, rollouts, _KINDS)
    return answers


async def _lock_waiting(tx: Tx, jobs: Sequence[NewJob]) -> dict[tuple[str, str | None], str]:
    """Lock the jobs that wait to start; return their ids by name and key."""
    keys: dict[str, set[str]] = {}
    for job in jobs:
        if job.key is not None:
            keys.setdefault(job.name, set()).add(job.key)
    waiting: dict[tuple[str, str | None], str] = {}
    for name in sorted(keys):
        rows = await tx.all(sql.LOCK_WAITING, name=name, keys=sorted(keys[name]))
        waiting.update({(row.name, row.waiting_key): row.id for row in rows})
    return waiting


async def _find_by_keys(tx: Tx, jobs: Sequence[NewJob]) -> dict[str, str]:
    keys = sorted({_rollout_key(job.idempotency_key) for job in jobs if job.idempotency_key})
    if not keys:
        return {}
    rows = await tx.all(rollouts_sql.BY_IDEMPOTENCY_KEY, keys=keys)
    return {row.idempotency_key.removeprefix(_rollout_key("")): row.view.id for row in rows}


def _rollout_key(key: str) -> str:
    """Return the idempotency key of a job's rollout, with a prefix that keys of callers do not have."""
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


def _build_rollout(tx: Tx, job: NewJob, row: JobRow) -> NewRollout:
    return NewRollout(
        input="null",
        config=job.config,
        metadata="{}",
        kind=JOB,
        queue=INTERNAL_QUEUE,
        agent=job.name,
        not_before=tx.wall + job.delay if job.delay else None,
        idempotency_key=None if job.idempotency_key is None else _rollout_key(job.idempotency_key),
        rollout_id=row.id,
    )


# --- executing ----------------------------------------------------------------------------------------------


async def ready_namespaces(tx: Tx, names: Sequence[str]) -> list[ReadyNamespaceRow]:
    """Return the namespaces in which jobs of these names are ready."""
    return await tx.all(sql.READY_NAMESPACES, queue=INTERNAL_QUEUE, names=list(names))


async def claim_jobs(tx: Tx, limit: int, names: Sequence[str], kinds: Kinds) -> list[ClaimedJob]:
    """Claim the next jobs of these names."""
    (share,) = await claim(tx, [Claim(None, limit)], [INTERNAL_QUEUE], [JOB], kinds, names)
    claimed = {pair.rollout.id: pair for pair in share}
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
    """Renew leases; return for each whether it still holds."""
    work = LockedRollouts(tx, kinds)
    await work.load([lease.job_id for lease in leases], [JOB], lined=False)
    kept: list[bool] = []
    rows: list[HeartbeatRow] = []
    for lease in leases:
        rollout, attempt = _get_held(work, lease) or (None, None)
        kept.append(rollout is not None and rollout.status in LIVE)
        if attempt is not None and rollout is not None and rollout.status in LIVE:
            rows.append(HeartbeatRow(attempt.rollout_id, attempt.sequence_id, tx.now))
    await tx.write(rollouts_sql.HEARTBEAT.of(rows))
    return kept


def _get_held(work: LockedRollouts, lease: JobLease) -> tuple[RolloutRow, AttemptRow] | None:
    """Return the job and the attempt of a lease that still holds."""
    rollout = work.rollouts.get(lease.job_id)
    latest = None if rollout is None else work.latest(lease.job_id)
    if rollout is None or latest is None or latest.id != lease.attempt_id or latest.status not in LIVE:
        return None
    return rollout, latest


async def finish_jobs(tx: Tx, ends: Sequence[JobEnd], kinds: Kinds) -> list[bool]:
    """End attempts; return for each whether it held its job. A failed attempt may be retried."""
    work = LockedRollouts(tx, kinds)
    await work.load([end.lease.job_id for end in ends], [JOB], lined=False)
    failures: list[JobEndRow] = []
    answers: list[bool] = []
    for end in ends:
        pair = _get_held(work, end.lease)
        answers.append(pair is not None)
        if pair is not None:
            failures += _finish(work, *pair, end)
    await tx.defer(sql.SAVE_ENDS.of(failures))
    await save_all(work, WorkerChanges(tx), False)
    return answers


def _finish(work: LockedRollouts, rollout: RolloutRow, attempt: AttemptRow, end: JobEnd) -> list[JobEndRow]:
    """Apply an end; return the row to write if the job is retried."""
    status = SUCCEEDED if end.error is None else TIMEOUT if end.timeout else FAILED
    attempt.status = ATTEMPT.step(attempt.status, reported(status))
    attempt.end_time, attempt.reason = work.tx.now, status
    attempt.check_at, attempt.dirty = None, True
    if rollout.status in ENDED:
        # The job was cancelled meanwhile, and its executor has stopped now.
        work.stopped.append(rollout)
        return []
    if status == FAILED and work.tries(attempt) < end.max_attempts:
        work.move(rollout, "reported failure, retry", status, delay=end.delay)
        return [JobEndRow(rollout.id, None, None, end.error, None)]
    work.reports[rollout.id] = end
    if status == SUCCEEDED:
        work.move(rollout, reported(SUCCEEDED), status)
    else:
        work.move(rollout, "reported failure, no retry", status)
    return []


async def release_jobs(tx: Tx, leases: Sequence[JobLease], kinds: Kinds) -> None:
    """Release jobs without an executor: the attempt does not count, and the job is ready at once."""
    work = LockedRollouts(tx, kinds)
    await work.load([lease.job_id for lease in leases], [JOB], lined=False)
    for lease in leases:
        pair = _get_held(work, lease)
        if pair is not None:
            work.release(*pair)
    await save_all(work, WorkerChanges(tx), False)


# --- reading and removing -----------------------------------------------------------------------------------


async def get_jobs(tx: Tx, job_ids: Sequence[str]) -> list[JobWithRollout]:
    """Return jobs by their ids; removed jobs are left out."""
    return await tx.all(sql.VIEW, ids=list(job_ids)) if job_ids else []


async def cancel_job(tx: Tx, job_id: str, kinds: Kinds) -> None:
    """Cancel a job that has not ended. Its executor stops at the next renewal of its lease."""
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
    """Delete some of the jobs that ended `kept` microseconds ago or earlier, in every namespace."""
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
