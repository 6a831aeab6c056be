"""The worker: it claims runs, keeps their leases, has their agents executed, and tells their ends.

Claiming, renewing and finishing happen in a loop of the worker's own, which no agent can block.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from perdure.kernel.background import Background
from perdure.kernel.errors import PerdureError
from perdure.kernel.metrics import Metrics
from perdure.kernel.retry import LONGEST_PAUSE, Backoff, retry_until
from perdure.rollouts.contract import LightningStore
from perdure.threads.queue import RunQueue
from perdure.threads.work import Assignment, Lease
from perdure.worker.execution import HANDED_BACK, LOST, SHUTDOWN, Execution, WorkerDeps
from perdure.worker.isolation import AgentLoops
from perdure.worker.options import WorkerOptions
from perdure.worker.retry_policy import RetryPolicy
from perdure.worker.worker_stats import QueueStats, Statistics

if TYPE_CHECKING:
    from perdure.worker.registry import Agents

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
WATCH_SECONDS = 0.05
"""A run that ends sooner is not worth a watch for being cancelled."""
GATHER_SECONDS = 0.002
"""How long a worker that was full waits for more of its runs to end, to claim for all of them at once."""
LAST_CLAIM_SECONDS = 0.1
"""How long a claim that is under way may take when the worker stops: its runs are handed back."""
HAND_BACK_SECONDS = 5.0


class Worker:
    """Executes the runs of a queue with the agents it has, from `start` to `stop`.

    Both may be called in any event loop. The queue is the worker's own, which closes it when it stops.
    `store` keeps the spans of agents and knows the resources of runs.
    """

    def __init__(
        self,
        queue: RunQueue,
        agents: Agents,
        options: WorkerOptions | None = None,
        *,
        store: LightningStore | None = None,
        metrics: Metrics | None = None,
        queue_stats: QueueStats | None = None,
    ) -> None:
        self.options = options or WorkerOptions()
        self.worker_id = self.options.worker_id
        self.statistics = Statistics(self.options.concurrency, metrics, queue_stats)
        self._queue = queue
        self._tools = WorkerDeps(
            queue=queue,
            agents=agents,
            loops=AgentLoops(isolated=self.options.isolated_loops),
            options=self.options,
            judge=RetryPolicy(self.options.retriable),
            store=store,
            active=lambda: self.active,
        )
        self._control = Background("perdure-worker", busy=True)
        self._executions: dict[str, Execution] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._stopping = False

    @property
    def active(self) -> int:
        """How many runs it executes now."""
        return len(self._executions)

    async def start(self) -> None:
        """Say which agents there are, and begin to claim. A queue that cannot be reached is waited for."""
        await self._control.ask(self._start)

    async def stop(self, grace: float | None = None) -> None:
        """Claim no more, let runs end within the grace period, and hand the rest back."""
        self._stopping = True
        try:
            await self._control.ask(lambda: self._stop(self.options.grace if grace is None else grace))
        finally:
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._control.close()
        self._tools.loops.close()

    # --- in the worker's own loop

    async def _start(self) -> None:
        self._freed = asyncio.Event()
        self._begun = asyncio.Event()
        self._claimed = asyncio.Event()
        await retry_until(
            lambda: self._queue.register(self.worker_id, self._tools.agents.specs, self.options.concurrency),
            what=f"worker {self.worker_id}",
            still_owned=lambda: not self._stopping,
            idempotent=True,
        )
        self._loops = [
            asyncio.create_task(self._claim()),
            asyncio.create_task(_again(lambda: 0.0, self._keep_leases)),
            asyncio.create_task(_again(lambda: 0.0, self._listen)),
            asyncio.create_task(_again(lambda: LOOK_SECONDS, self._look)),
            asyncio.create_task(_again(lambda: self.options.stats_interval, self.statistics.tell)),
        ]

    async def _claim(self) -> None:
        backoff = Backoff()
        while not self._stopping:
            free = self.options.concurrency - len(self._executions)
            if free <= 0:
                self._freed.clear()
                await self._freed.wait()
                await asyncio.sleep(GATHER_SECONDS)
                continue
            try:
                await self._take(await self._queue.claim(self.worker_id, free, self.options.interval))
                backoff.reset()
            except PerdureError as error:
                pause = backoff.next()
                logger.warning("claiming: %s: %s; retrying in %.1f s", error.code, error.message, pause)
                await asyncio.sleep(pause)

    async def _take(self, assignments: Sequence[Assignment]) -> None:
        self.statistics.count_claim(len(assignments))
        if self._stopping:
            await self._hand_back([each.held for each in assignments])
            return
        for assignment in assignments:
            execution = Execution(self._tools, assignment)
            self._executions[assignment.attempt_id] = execution
            task = asyncio.create_task(self._run(execution), name=execution.name)
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        self.statistics.active = len(self._executions)
        self._begun.set()
        self._claimed.set()

    async def _run(self, execution: Execution) -> None:
        try:
            result = await execution.run()
        except Exception:
            logger.exception("%s: the worker failed to execute it", execution.name)
            result = LOST
        self.statistics.count_run(result)
        if result != HANDED_BACK:
            self._forget(execution)

    def _forget(self, execution: Execution) -> None:
        self._executions.pop(execution.assignment.attempt_id, None)
        self.statistics.active = len(self._executions)
        self._freed.set()

    # --- leases and controls

    def _renew_period(self) -> float:
        leases = [each.assignment.lease_seconds for each in self._executions.values()]
        return min([self.options.heartbeat, *leases]) / 3

    async def _keep_leases(self) -> None:
        """Wait until it is time to renew, which a claim may bring nearer; then renew."""
        began = time.monotonic()
        while (left := began + self._renew_period() - time.monotonic()) > 0:
            self._claimed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._claimed.wait(), left)
        await self._renew()

    async def _renew(self) -> None:
        """Renew every lease in one call; one that was not renewed for its whole length is lost."""
        executions = list(self._executions.values())
        asked = time.monotonic()
        try:
            async with asyncio.timeout(self._renew_period() * 2):
                verdicts = await self._queue.renew(self.worker_id, [each.held for each in executions])
        except (PerdureError, TimeoutError) as error:
            logger.warning("renewing %d leases: %s: %s", len(executions), type(error).__name__, error)
        else:
            for execution, verdict in zip(executions, verdicts, strict=True):
                execution.renewed = max(execution.renewed, asked)
                if verdict != "go":
                    execution.ask(verdict)
        for execution in executions:
            if time.monotonic() - execution.renewed > execution.assignment.lease_seconds:
                execution.expire()

    def _watched(self) -> list[Lease]:
        old = time.monotonic() - WATCH_SECONDS
        return [each.held for each in self._executions.values() if each.started <= old and each.asked is None]

    async def _listen(self) -> None:
        """Hear of cancels as soon as they come, for all runs that have been here for a moment."""
        held = self._watched()
        if not held:
            self._begun.clear()
            if not self._executions:
                await self._begun.wait()
            await asyncio.sleep(WATCH_SECONDS)
            return
        asking = asyncio.ensure_future(self._queue.controls(held, self.options.interval))
        try:
            while not asking.done() and not self._has_more(held):
                await self._begin_or(asking)
            if asking.done():
                self._tell(await asking)
        except PerdureError as error:
            logger.warning("listening for cancels: %s: %s", error.code, error.message)
            await asyncio.sleep(min(LONGEST_PAUSE, self._renew_period()))
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _begin_or(self, asking: asyncio.Future[Any]) -> None:
        """Wait for the answer, or until a run that began meanwhile is worth a watch."""
        begun = asyncio.ensure_future(self._begun.wait())
        await asyncio.wait((asking, begun), return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        if self._begun.is_set():
            self._begun.clear()
            await asyncio.wait((asking,), timeout=WATCH_SECONDS * 2)

    def _has_more(self, held: Iterable[Lease]) -> bool:
        known = {each.attempt_id for each in held}
        return any(each.attempt_id not in known for each in self._watched())

    def _tell(self, verdicts: dict[str, Any]) -> None:
        for execution in list(self._executions.values()):
            verdict = verdicts.get(execution.held.run_id, "go")
            if verdict != "go":
                execution.ask(verdict)

    async def _look(self) -> None:
        """See whether an agent blocks the others, and store what was traced so far."""
        self._tools.loops.look()
        for execution in list(self._executions.values()):
            await execution.tracing.flush()

    # --- the end

    async def _stop(self, grace: float) -> None:
        logger.info("worker %s stops; %d runs are under way", self.worker_id, len(self._executions))
        await self._end_claiming()
        if self._running:
            await asyncio.wait(self._running, timeout=grace)
        for execution in list(self._executions.values()):
            execution.ask(SHUTDOWN)
        if self._running:
            leases = [each.assignment.lease_seconds for each in self._executions.values()]
            await asyncio.wait(self._running, timeout=max(leases, default=0.0) + HAND_BACK_SECONDS)
        left = [each for each in self._executions.values() if each.result == HANDED_BACK]
        await self._hand_back([each.held for each in left])
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self._queue.close()

    async def _end_claiming(self) -> None:
        claiming = self._loops[:1]
        if not claiming:
            return
        self._freed.set()
        await asyncio.wait(claiming, timeout=LAST_CLAIM_SECONDS)
        claiming[0].cancel()
        await asyncio.gather(*claiming, return_exceptions=True)

    async def _hand_back(self, held: Sequence[Lease]) -> None:
        if not held:
            return
        logger.info("worker %s hands %d runs back", self.worker_id, len(held))
        until = time.monotonic() + HAND_BACK_SECONDS
        try:
            await retry_until(
                lambda: self._queue.hand_back(held),
                what=f"handing {len(held)} runs back",
                still_owned=lambda: time.monotonic() < until,
                idempotent=True,
            )
        except PerdureError as error:
            logger.error("%d runs wait for their leases to end: %s", len(held), error.message)


async def _again(period: Callable[[], float], action: Callable[[], Awaitable[object]]) -> None:
    """Do something for ever; what fails is logged, and done again."""
    while True:
        await asyncio.sleep(period())
        try:
            await action()
        except Exception:
            logger.exception("a loop of the worker failed; it goes on")
            await asyncio.sleep(LONGEST_PAUSE)
