"""The jobs of one namespace: internal work of the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.jobs import model, operations
from perdure.jobs.records import Job
from perdure.kernel.checks import Id, check_id
from perdure.kernel.errors import NotFound
from perdure.kernel.signals.port import until
from perdure.rollouts.model import ENDED
from perdure.rollouts.operations.work import ENDED_CHANNEL, ended_key
from perdure.rollouts.watchdog import WatchedService
from perdure.service.endpoints import GET, POST, call

POLL_SECONDS = 1.0


class Jobs(WatchedService):
    """The jobs of one namespace. `JobExecutor` executes them."""

    async def enqueue(
        self,
        name: str,
        payload: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        idempotency_key: str | None = None,
        delay: float = 0.0,
        timeout: float | None = None,
        max_attempts: int | None = None,
    ) -> str:
        """Enqueue a job; return its id, or the id of a waiting job with this name and key.

        Operations call `enqueue_jobs` with their transaction instead.
        """
        job = model.new_job(
            name,
            payload,
            key=key,
            idempotency_key=idempotency_key,
            delay=delay,
            timeout=timeout,
            max_attempts=max_attempts,
        )
        (job_id,) = await self.write(operations.enqueue_jobs, [job])
        return job_id

    @call(GET("/jobs/{job_id}"), scope="read", errors=(NotFound,))
    async def get(self, job_id: Id) -> Job:
        """Get a job: its status, its result, and why it failed."""
        rows = await self.read(operations.get_jobs, [check_id(job_id, "job_id")])
        if not rows:
            raise NotFound(f"Job {job_id} not found")
        return model.row_to_job(next(iter(rows)))

    @call(POST("/jobs/{job_id}/cancel"), scope="write", errors=(NotFound,), repeatable=True)
    async def cancel(self, job_id: Id) -> Job:
        """Cancel a job. A job that has ended does not change."""
        await self.write(operations.cancel_job, check_id(job_id, "job_id"), self.kinds)
        return await self.get(job_id)

    async def join(self, job_id: str, timeout: float | None = None) -> Job:
        """Wait until a job has ended, or `timeout` seconds have passed."""
        await until(
            self.storage.signals,
            ENDED_CHANNEL,
            [ended_key(await self.ns(), job_id)],
            lambda _: self._has_ended(job_id),
            timeout=timeout,
            poll=POLL_SECONDS,
        )
        return await self.get(job_id)

    async def _has_ended(self, job_id: str) -> bool:
        return (await self.get(job_id)).status in ENDED
