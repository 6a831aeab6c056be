"""Executes jobs in every server, and in every program with an open database."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any

from perdure.jobs import operations
from perdure.jobs.model import (
    INTERNAL_QUEUE,
    LEASE_SECONDS,
    ClaimedJob,
    JobContext,
    JobEnd,
    JobLease,
    JobRegistry,
    JobSpec,
    ReadyNamespaceRow,
    check_body,
    job_limits,
    timed_out,
)
from perdure.kernel.clock import boottime, to_micros
from perdure.kernel.codec import decode_json
from perdure.kernel.errors import InvalidInput, StorageClosed, StorageError, error_text
from perdure.kernel.retry import Backoff, retry_until
from perdure.kernel.storage.port import Storage
from perdure.rollouts.model import Kinds
from perdure.rollouts.operations.work import READY_CHANNEL, ready_key

CONCURRENCY = 4
"""Maximum number of jobs that a process executes at once."""
POLL_SECONDS = 5.0
"""Interval of polling for jobs, if no hint arrives."""
GRACE_SECONDS = 5.0
"""How long jobs may take to end when the executor stops; the others are released."""
CANCEL_SECONDS = 5.0

logger = logging.getLogger(__name__)


class JobExecutor:
    """Executes the jobs of its functions, in every namespace, from `start` to `stop`.

    Any number of processes may execute jobs of one database: each job is held by one process at a time.
    """

    def __init__(
        self,
        storage: Storage,
        registry: JobRegistry,
        kinds: Kinds,
        *,
        concurrency: int = CONCURRENCY,
        poll: float = POLL_SECONDS,
    ) -> None:
        self.storage = storage
        self.registry = registry
        self.concurrency = concurrency
        self.poll = poll
        self._kinds = kinds
        self._executing: dict[asyncio.Task[None], tuple[ReadyNamespaceRow, JobLease]] = {}
        self._loops: list[asyncio.Task[None]] = []
        self._claiming: list[asyncio.Task[None]] = []
        self._stopping = False
        self._resting = False

    async def start(self) -> None:
        """Start to claim jobs, in the running event loop; a second call does nothing."""
        if self._loops:
            return
        self._stopping = False
        self._freed = asyncio.Event()
        loop = asyncio.get_running_loop()
        if self.registry.names():
            self._claiming = [loop.create_task(self._claim())]
            self._loops = [loop.create_task(self._renew())]

    async def stop_claiming(self) -> None:
        """Claim no more; jobs under way continue until `stop`."""
        self._stopping = True
        claiming, self._claiming = self._claiming, []
        for task in claiming:
            # A claim is never cancelled: its jobs would have no executor until their lease ends.
            if self._resting:
                task.cancel()
        await asyncio.gather(*claiming, return_exceptions=True)

    async def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Claim no more, let jobs end within `grace` seconds, and release the others without charge."""
        await self.stop_claiming()
        loops, self._loops = self._loops, []
        for task in loops:
            task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        if self._executing:
            renewing = asyncio.get_running_loop().create_task(self._renew())
            await asyncio.wait(list(self._executing), timeout=grace)
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
        left = dict(self._executing)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(list(left), timeout=CANCEL_SECONDS)
        with suppress(StorageError):
            # Other processes claim the jobs when their leases end.
            for namespace, lease in left.values():
                await self.storage.run(operations.release_jobs, [lease], self._kinds, ns=namespace.id)

    # --- claiming -----------------------------------------------------------------------------------------

    async def _claim(self) -> None:
        names = self.registry.names()
        keys = [ready_key(INTERNAL_QUEUE, name) for name in names]
        backoff = Backoff()
        with self.storage.signals.watch(READY_CHANNEL, keys) as watch:
            while not self._stopping:
                try:
                    count = await self._claim_some(names)
                except StorageClosed:
                    return
                except StorageError as error:
                    pause = backoff.next()
                    logger.warning("cannot claim jobs, trying again in %.1f s: %s", pause, error)
                    await self._rest(asyncio.sleep(pause))
                    continue
                backoff.reset()
                if not count and not self._stopping:
                    await self._rest(watch.changed(self.poll))

    async def _rest(self, awaited: Awaitable[Any]) -> None:
        """Wait while there is nothing to claim; `stop_claiming` cancels the wait."""
        self._resting = True
        try:
            await awaited
        finally:
            self._resting = False

    async def _claim_some(self, names: Sequence[str]) -> int:
        """Claim as many jobs as there is room for; return their number."""
        while len(self._executing) >= self.concurrency:
            self._freed.clear()
            await self._rest(self._freed.wait())
        claimed = 0
        for namespace in await self.storage.read(operations.ready_namespaces, names):
            room = self.concurrency - len(self._executing)
            if room <= 0 or self._stopping:
                break
            jobs = await self.storage.run(operations.claim_jobs, room, names, self._kinds, ns=namespace.id)
            claimed += len(jobs)
            for job in jobs:
                task = asyncio.get_running_loop().create_task(self._execute(namespace, job))
                self._executing[task] = (namespace, job.lease)
                task.add_done_callback(self._done)
        return claimed

    def _done(self, task: asyncio.Task[None]) -> None:
        self._executing.pop(task, None)
        self._freed.set()
        if not task.cancelled() and task.exception() is not None:
            logger.error("a job could not be finished", exc_info=task.exception())

    # --- executing ----------------------------------------------------------------------------------------

    async def _execute(self, namespace: ReadyNamespaceRow, job: ClaimedJob) -> None:
        """Execute one job, and write its end."""
        end = await self._result(namespace, self.registry[job.name], job)
        until = boottime() + LEASE_SECONDS
        try:
            (held,) = await retry_until(
                lambda: self.storage.run(operations.finish_jobs, [end], self._kinds, ns=namespace.id),
                what=f"finishing job {job.name}",
                still_owned=lambda: boottime() < until,
                idempotent=True,
            )
        except StorageError as error:
            logger.warning("job %s (%s) could not be finished: %s", job.name, job.lease.job_id, error)
            return
        if not held:
            logger.warning("job %s (%s) is executed by another process now", job.name, job.lease.job_id)

    async def _result(self, namespace: ReadyNamespaceRow, spec: JobSpec, job: ClaimedJob) -> JobEnd:
        limits = job_limits(job.config)
        timeout = limits.job_timeout or spec.timeout
        context = JobContext(
            storage=self.storage,
            ns=namespace.id,
            namespace=namespace.name,
            job_id=job.lease.job_id,
            name=job.name,
            key=job.key,
            attempt=job.attempt,
        )
        try:
            async with asyncio.timeout(timeout) as deadline:
                result = await spec.function(context, decode_json(job.payload))
            return JobEnd(job.lease, result=check_body(result or {}, "result"))
        except Exception as error:
            if isinstance(error, TimeoutError) and deadline.expired():
                logger.error("job %s (%s) took longer than %g s", job.name, job.lease.job_id, timeout)
                return JobEnd(job.lease, error=timed_out(timeout), timeout=True)
            logger.exception("job %s (%s) failed", job.name, job.lease.job_id)
            attempts = 1 if isinstance(error, InvalidInput) else limits.job_attempts or spec.max_attempts
            return JobEnd(
                job.lease,
                error=error_text(error),
                max_attempts=attempts,
                delay=to_micros(spec.pause(job.attempt)),
            )

    # --- leases -------------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        """Renew the leases of all jobs; cancel lost and cancelled jobs."""
        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
            by_namespace: dict[int, list[tuple[asyncio.Task[None], JobLease]]] = {}
            for task, (namespace, lease) in self._executing.items():
                by_namespace.setdefault(namespace.id, []).append((task, lease))
            for ns, held in by_namespace.items():
                await self._renew_some(ns, held)

    async def _renew_some(self, ns: int, held: Sequence[tuple[asyncio.Task[None], JobLease]]) -> None:
        leases = [lease for _, lease in held]
        try:
            kept = await self.storage.run(operations.renew_jobs, leases, self._kinds, ns=ns)
        except StorageError as error:
            logger.warning("cannot renew jobs: %s", error)
            return
        lost = [item for item, still_held in zip(held, kept, strict=True) if not still_held]
        for task, _ in lost:
            task.cancel()
        if lost:
            await asyncio.wait([task for task, _ in lost], timeout=CANCEL_SECONDS)
            # The attempt of a cancelled job is live until its executor reports its end.
            with suppress(StorageError):
                ends = [JobEnd(lease, error="stopped") for _, lease in lost]
                await self.storage.run(operations.finish_jobs, ends, self._kinds, ns=ns)
