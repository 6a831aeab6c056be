"""What schedules start: jobs of the server, enqueued in the transaction that records the firing."""

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
"""Where a job finds which schedule started it, and when; what a definition says there is replaced."""


class JobTarget:
    """Enqueues jobs. A payload names the `job`, and has the `payload` that its function gets."""

    name = "job"

    def prepare(self, order: FiringRequest) -> NewJob:
        """The job that an order asks for, checked and encoded."""
        job, payload = order.payload.get(JOB_FIELD), order.payload.get(PAYLOAD_FIELD, {})
        unknown = order.payload.keys() - {JOB_FIELD, PAYLOAD_FIELD}
        if not isinstance(job, str) or not isinstance(payload, Mapping) or unknown:
            raise InvalidInput(
                f"a schedule of jobs has a payload with {JOB_FIELD!r}, the name of a job, and"
                f" {PAYLOAD_FIELD!r}, an object"
            )
        return new_job(job, {**payload, SCHEDULE_FIELD: build_origin(order)}, timeout=order.timeout)

    async def refusal(self, tx: Tx, thread_id: str | None) -> PerdureError | None:
        """A job has no thread."""
        return None if thread_id is None else InvalidInput("a schedule of jobs has no thread")

    async def start(self, tx: Tx, prepared: Sequence[NewJob]) -> Sequence[str | PerdureError]:
        """Enqueue the jobs; answers each with its id."""
        return await enqueue_jobs(tx, prepared)

    async def find(self, tx: Tx, started: Sequence[str]) -> Mapping[str, JobWithRollout]:
        """Read jobs; those that were removed are left out."""
        return {row.id: row for row in await get_jobs(tx, started)}

    def outcome(self, found: JobWithRollout) -> FiringOutcome | None:
        """How a job has ended, or None while it has not."""
        if found.status not in ENDED:
            return None
        duration = None if found.ended_at is None else max(found.ended_at - found.created_at, 0)
        if found.status == SUCCEEDED:
            return FiringOutcome(SUCCESS, duration, result=found.result)
        return FiringOutcome(FAILED, duration, found.error or found.status)

    def ended_key(self, ns: int, started_id: str) -> tuple[str, str]:
        """The hint that a job has ended."""
        return ENDED_CHANNEL, ended_key(ns, started_id)


def build_origin(order: FiringRequest) -> dict[str, object]:
    """Which schedule started something, for which time, and who triggered it."""
    return {
        "id": order.schedule_id,
        "name": order.name,
        "due_at": to_seconds(order.due_at),
        "source": order.source,
        "actor": order.actor,
    }
