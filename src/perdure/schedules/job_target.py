"""Schedule target: jobs of the server, enqueued in the transaction that records the firing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.jobs.model import JobWithRollout, NewJob, new_job
from perdure.jobs.operations import enqueue_jobs, get_jobs
from perdure.kernel.clock import to_seconds
from perdure.kernel.errors import InvalidInput, PerdureError
from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import ENDED, SUCCEEDED
from perdure.rollouts.operations.work import ENDED_CHANNEL, ended_key
from perdure.schedules.model import FAILED, SUCCESS, FiringOutcome, FiringRequest

JOB_FIELD = "job"
PAYLOAD_FIELD = "payload"
SCHEDULE_FIELD = "schedule"
"""Key of a job's payload for its schedule and time; it replaces a value in the definition."""


class JobTarget:
    """Enqueue jobs. A payload names the `job`, and has the `payload` for its function."""

    name = "job"

    def prepare(self, order: FiringRequest) -> NewJob:
        """Build the job of a request, checked and encoded."""
        job, payload = order.payload.get(JOB_FIELD), order.payload.get(PAYLOAD_FIELD, {})
        unknown = order.payload.keys() - {JOB_FIELD, PAYLOAD_FIELD}
        if not isinstance(job, str) or not isinstance(payload, Mapping) or unknown:
            raise InvalidInput(
                f"a schedule of jobs has a payload with {JOB_FIELD!r}, the name of a job, and"
                f" {PAYLOAD_FIELD!r}, an object"
            )
        return new_job(job, {**payload, SCHEDULE_FIELD: build_origin(order)}, timeout=order.timeout)

    async def refusal(self, tx: Tx, thread_id: str | None) -> PerdureError | None:
        """Refuse a thread, which a job cannot have."""
        return None if thread_id is None else InvalidInput("a schedule of jobs has no thread")

    async def start(self, tx: Tx, prepared: Sequence[NewJob]) -> Sequence[str | PerdureError]:
        """Enqueue the jobs; return their ids."""
        return await enqueue_jobs(tx, prepared)

    async def find(self, tx: Tx, started: Sequence[str]) -> Mapping[str, JobWithRollout]:
        """Return the jobs that still exist."""
        return {row.id: row for row in await get_jobs(tx, started)}

    def outcome(self, job: JobWithRollout) -> FiringOutcome | None:
        """Return the outcome of a job; None while it has not ended."""
        if job.status not in ENDED:
            return None
        duration = None if job.ended_at is None else max(job.ended_at - job.created_at, 0)
        if job.status == SUCCEEDED:
            return FiringOutcome(SUCCESS, duration, result=job.result)
        return FiringOutcome(FAILED, duration, job.error or job.status)

    def ended_key(self, ns: int, started_id: str) -> tuple[str, str]:
        """Return the hint for the end of a job."""
        return ENDED_CHANNEL, ended_key(ns, started_id)


def build_origin(order: FiringRequest) -> dict[str, object]:
    """Return the schedule, the time and the caller that started something."""
    return {
        "id": order.schedule_id,
        "name": order.name,
        "due_at": to_seconds(order.due_at),
        "source": order.source,
        "actor": order.actor,
    }
