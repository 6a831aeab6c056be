"""The worker: claims runs, renews their leases, executes their agents and reports the results.

Claiming, renewing and reporting happen in a separate event loop, which no agent can block. A worker claims
again at once while there may be more runs, otherwise after a hint.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from perdure.agents.confinement import check_sandbox, find_user
from perdure.executions.model import WORKFLOWS_QUEUE
from perdure.graph_requests.service import GraphRequests
from perdure.kernel.background import Background
from perdure.kernel.clock import boottime
from perdure.kernel.errors import InvalidInput, PerdureError, StartRefused
from perdure.kernel.metrics import Metrics
from perdure.kernel.retry import LONGEST_PAUSE, Backoff, retry_until
from perdure.memory.service import Memory
from perdure.rollouts.contract import LightningStore
from perdure.rollouts.service import Rollouts
from perdure.runs.claimer import Claimer
from perdure.runs.queue import RunQueue
from perdure.threads.work import Assignment, Lease
from perdure.worker.built_in import HttpRules, built_in_agents
from perdure.worker.execution import HANDED_BACK, LOST, SHUTDOWN, AttemptExecution, WorkerDeps
from perdure.worker.graph_requests import GraphRequestLoop
from perdure.worker.health import BEAT_SECONDS, Pulse, QueueStats, Statistics
from perdure.worker.isolation import AgentLoops
from perdure.worker.options import ASYNC_RUNS, WorkerOptions
from perdure.worker.phase import Workspaces
from perdure.worker.retry_policy import RetryPolicy
from perdure.worker.tracing import SpanQueue

if TYPE_CHECKING:
    from perdure.agents.context import Agent
    from perdure.worker.registry import Agents

# --- claims -----------------------------------------------------------------------------------------------


class Lane:
    """Slots that some agents of a worker share, so that they do not wait for runs of other agents."""

    def __init__(self, names: Callable[[], list[str]], slots: int) -> None:
        self.names = names
        """Returns the names of these agents."""
        self.slots = slots
        self.executing: set[str] = set()
        """Attempts that occupy a slot."""
        self.freed = asyncio.Event()

    def free(self) -> int:
        """Return how many more runs the lane can take."""
        return self.slots - len(self.executing)


class WorkerClaims:
    """Claims of one worker, in its event loop.

    The claimer exists from before a claim until the worker is full. So a hint between two claims is not lost,
    and a full worker takes no hint from other workers.
    """

    def __init__(self, queue: RunQueue, options: WorkerOptions) -> None:
        self._queue = queue
        self._options = options
        self._claimer: Claimer | None = None
        self._agents: Sequence[str] = ()

    async def next(self, agents: Sequence[str], free: Callable[[], int]) -> list[Assignment]:
        """Wait for runs of these agents, and return up to `free()`; none after the polling interval."""
        options, assignments = self._options, None
        if self._claimer is not None and agents == self._agents:
            assignments = await self._claimer.next(free, options.interval)
        else:
            self.close()
            self._claimer = self._queue.claimer(options.worker_id, agents, options.queues)
            self._agents = agents
        if self._claimer is None:
            return await self._queue.claim(
                options.worker_id, agents, free(), options.interval, options.queues
            )
        if assignments is None:
            assignments = await self._claimer.claim(free())
        if free() <= len(assignments):
            self.close()
        return assignments

    def close(self) -> None:
        """Stop watching for hints; the next call claims at once."""
        if self._claimer is not None:
            self._claimer.close()
            self._claimer = None


# --- the worker -------------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
READY_RENEWALS = 4
"""Renewal periods without an answer after which a worker is not ready."""
WATCH_SECONDS = 0.05
"""Age of a run from which the worker watches for its cancellation."""
GATHER_SECONDS = 0.002
"""How long a full worker waits for more runs to end, so that one call claims for all free slots."""
LAST_CLAIM_SECONDS = 0.1
"""Time that a pending claim has to end when the worker stops; its runs are handed back."""
HAND_BACK_SECONDS = 5.0
SIGN_OFF_SECONDS = 1.0


class RunWorker:
    """Executes the runs of a queue with its agents, from `start` to `stop`.

    Both may be called in any event loop. The worker closes the queue when it stops. `store` stores the spans
    of agents and has the resources of runs. `rollouts` is the service of the store's database, if there is
    one; it stores spans faster. `requests` come from servers without the worker's graphs. Agents search
    `memory`.
    """

    def __init__(
        self,
        queue: RunQueue,
        agents: Agents,
        options: WorkerOptions | None = None,
        *,
        store: LightningStore | None = None,
        rollouts: Rollouts | None = None,
        requests: GraphRequests | None = None,
        memory: Memory | None = None,
        metrics: Metrics | None = None,
        queue_stats: QueueStats | None = None,
    ) -> None:
        self.options = options or WorkerOptions()
        self.worker_id = self.options.worker_id
        self._queue = queue
        self._spans = None if store is None else SpanQueue(store, self.worker_id, rollouts)
        if metrics is not None and self._spans is not None:
            metrics.span_queue_size.set_function(self._spans.size)
        rules = HttpRules(self.options.http_allow_private, self.options.http_allowed_hosts)
        serves_phases = WORKFLOWS_QUEUE in self.options.queues
        self._deps = WorkerDeps(
            queue=queue,
            agents=agents,
            loops=AgentLoops(isolated=self.options.isolated_loops),
            options=self.options,
            retry_policy=RetryPolicy(self.options.retriable),
            store=store,
            memory=memory,
            spans=self._spans,
            active=lambda: self.active,
            built_in=built_in_agents(agents.callables, rules) if serves_phases else {},
            workspaces=Workspaces(self.options.workspaces),
        )
        self._pulse = Pulse()
        self._graph_requests = (
            None if requests is None else GraphRequestLoop(requests, self._deps, self._pulse)
        )
        self._control = Background("perdure-worker", busy=True)
        self._lanes = self._make_lanes()
        self.statistics = Statistics(self.slots, metrics, queue_stats)
        self._executions: dict[str, AttemptExecution] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._claiming: list[asyncio.Task[None]] = []
        self._loops: list[asyncio.Task[None]] = []
        self._stopping = False
        self._renewed: float | None = None

    @property
    def is_ready(self) -> bool:
        """True if the worker claims runs, and its queue recently answered a renewal or the registration."""
        renewed = self._renewed
        silence = READY_RENEWALS * self._renew_period()
        return not self._stopping and renewed is not None and boottime() - renewed < silence

    def _make_lanes(self) -> list[Lane]:
        """Create one lane for all agents, or one for async agents and one for agents that occupy a core."""
        agents, built_in = self._deps.agents, self._deps.built_in
        if self.options.concurrency is not None:
            return [Lane(lambda: [*agents.names, *built_in], self.options.concurrency)]

        def names(*, occupying: bool) -> list[str]:
            all_agents = {**agents, **built_in}
            return [name for name, agent in all_agents.items() if _occupies_core(agent) is occupying]

        cores = os.cpu_count() or 1
        return [
            Lane(partial(names, occupying=False), ASYNC_RUNS),
            Lane(partial(names, occupying=True), cores),
        ]

    @property
    def slots(self) -> int:
        """Number of runs that the worker can execute concurrently."""
        return sum(lane.slots for lane in self._lanes if lane.names()) or self._lanes[0].slots

    @property
    def active(self) -> int:
        """Number of runs that the worker is executing."""
        return len(self._executions)

    async def start(self) -> None:
        """Register the agents and start claiming; retry until the queue is reachable.

        StartRefused if commands cannot be confined as the options require.
        """
        await asyncio.to_thread(self._check_confinement)
        await self._control.ask(self._start)

    def _check_confinement(self) -> None:
        options = self.options
        try:
            if options.command_sandbox is not None:
                check_sandbox()
            if options.command_uid is not None:
                find_user(str(options.command_uid))
        except InvalidInput as error:
            raise StartRefused(f"{error.message} (settings command_sandbox and command_uid)") from error

    async def stop_claiming(self) -> None:
        """Stop claiming; claimed runs continue until `stop`."""
        self._stopping = True
        await self._control.ask(self._end_claiming)

    async def drain(self) -> None:
        """Stop claiming, and wait until all claimed runs have ended; `stop` is still needed."""
        await self.stop_claiming()
        await self._control.ask(self._drain)

    async def stop(self, grace: float | None = None) -> None:
        """Stop claiming, let runs end within the grace period, and hand the others back."""
        self._stopping = True
        try:
            await self._control.ask(lambda: self._stop(self.options.grace if grace is None else grace))
        finally:
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._control.close()
        self._deps.loops.close()

    # --- in the worker's own loop

    async def _start(self) -> None:
        self._begun = asyncio.Event()
        self._claimed = asyncio.Event()
        self.statistics.concurrency = self.slots
        await retry_until(
            lambda: self._queue.register(
                self.worker_id,
                self._deps.agents.specs,
                self.slots,
                self.options.queues,
                sorted(self._deps.built_in),
            ),
            what=f"worker {self.worker_id}",
            still_owned=lambda: not self._stopping,
            idempotent=True,
        )
        self._renewed = boottime()
        self._claiming = [asyncio.create_task(self._claim(lane)) for lane in self._lanes]
        self._loops = [
            asyncio.create_task(_again(lambda: 0.0, self._keep_leases)),
            asyncio.create_task(_again(lambda: 0.0, self._listen)),
            asyncio.create_task(_again(lambda: LOOK_SECONDS, self._look)),
            asyncio.create_task(_again(lambda: BEAT_SECONDS, self._pulse.beat)),
            asyncio.create_task(_again(lambda: self.options.stats_interval, self.statistics.log)),
        ]
        if self._graph_requests is not None:
            self._graph_requests.start()

    async def _claim(self, lane: Lane) -> None:
        claims = WorkerClaims(self._queue, self.options)
        try:
            await self._claim_with(claims, lane)
        finally:
            claims.close()

    async def _claim_with(self, claims: WorkerClaims, lane: Lane) -> None:
        backoff = Backoff()
        while not self._stopping:
            if lane.free() <= 0:
                lane.freed.clear()
                await lane.freed.wait()
                await asyncio.sleep(GATHER_SECONDS)
                continue
            try:
                agents = lane.names()
                if not agents:
                    await asyncio.sleep(self.options.interval)
                    continue
                sent = boottime()
                assignments = await claims.next(agents, lane.free)
                await self._take(assignments, self._pulse.answered(sent), lane)
                backoff.reset()
            except PerdureError as error:
                claims.close()
                pause = backoff.next()
                logger.warning(
                    "cannot claim runs: %s: %s; retrying in %.1f s", error.code, error.message, pause
                )
                await asyncio.sleep(pause)

    async def _take(self, assignments: Sequence[Assignment], claimed: float, lane: Lane) -> None:
        self.statistics.count_claim(len(assignments))
        if self._stopping:
            await self._hand_back([assignment.held for assignment in assignments])
            return
        for assignment in assignments:
            execution = AttemptExecution(self._deps, assignment, claimed)
            self._executions[assignment.attempt_id] = execution
            lane.executing.add(assignment.attempt_id)
            task = asyncio.create_task(self._run(execution), name=execution.name)
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        self.statistics.active = len(self._executions)
        self._begun.set()
        self._claimed.set()

    async def _run(self, execution: AttemptExecution) -> None:
        try:
            result = await execution.run()
        except Exception:
            logger.exception("%s: the worker failed to execute it", execution.name)
            result = LOST
        self.statistics.count_run(result)
        if result != HANDED_BACK:
            self._forget(execution)

    def _forget(self, execution: AttemptExecution) -> None:
        attempt_id = execution.assignment.attempt_id
        self._executions.pop(attempt_id, None)
        self.statistics.active = len(self._executions)
        for lane in self._lanes:
            if attempt_id in lane.executing:
                lane.executing.remove(attempt_id)
                lane.freed.set()

    # --- leases and controls

    def _renew_period(self) -> float:
        leases = [execution.assignment.lease_seconds for execution in self._executions.values()]
        return min([self.options.heartbeat, *leases]) / 3

    async def _keep_leases(self) -> None:
        """Wait until the leases must be renewed, then renew them. A claim may shorten the wait."""
        began = boottime()
        while (left := began + self._renew_period() - boottime()) > 0:
            self._claimed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._claimed.wait(), left)
        await self._renew()

    async def _renew(self) -> None:
        """Renew all leases in one call. A lease is lost if it was not renewed for its whole duration."""
        executions = list(self._executions.values())
        sent = boottime()
        try:
            async with asyncio.timeout(self._renew_period() * 2):
                verdicts = await self._queue.renew(self.worker_id, [held.lease for held in executions])
        except (PerdureError, TimeoutError) as error:
            logger.warning("cannot renew %d leases: %s: %s", len(executions), type(error).__name__, error)
        else:
            self._renewed = boottime()
            for execution, verdict in zip(executions, verdicts, strict=True):
                execution.renewed = max(execution.renewed, sent)
                if verdict != "go":
                    execution.request_stop(verdict)
        for execution in executions:
            if boottime() - execution.renewed > execution.assignment.lease_seconds:
                execution.expire()

    def _watched(self) -> list[Lease]:
        """Return the leases to watch for cancellation; for a run with several attempts, the latest."""
        old = boottime() - WATCH_SECONDS
        leases = {
            execution.lease.run_id: execution.lease
            for execution in self._executions.values()
            if execution.started <= old and execution.stop_action is None
        }
        return list(leases.values())

    async def _listen(self) -> None:
        """Wait for requests to cancel any of the runs, except runs that have just started."""
        leases = self._watched()
        if not leases:
            self._begun.clear()
            if not self._executions:
                await self._begun.wait()
            await asyncio.sleep(WATCH_SECONDS)
            return
        request = asyncio.ensure_future(self._queue.controls(leases, self.options.interval))
        try:
            while not request.done() and not self._has_more(leases):
                await self._wait_for_start_or(request)
            if request.done():
                self._apply(await request, leases)
        except PerdureError as error:
            logger.warning("cannot wait for cancellations: %s: %s", error.code, error.message)
            await asyncio.sleep(min(LONGEST_PAUSE, self._renew_period()))
        finally:
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)

    async def _wait_for_start_or(self, request: asyncio.Future[Any]) -> None:
        """Wait for the response, or until a run that started meanwhile must be watched too."""
        begun = asyncio.ensure_future(self._begun.wait())
        await asyncio.wait((request, begun), return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        if self._begun.is_set():
            self._begun.clear()
            await asyncio.wait((request,), timeout=WATCH_SECONDS * 2)

    def _has_more(self, leases: Iterable[Lease]) -> bool:
        watched = {lease.attempt_id for lease in leases}
        return any(lease.attempt_id not in watched for lease in self._watched())

    def _apply(self, verdicts: dict[str, Any], leases: Sequence[Lease]) -> None:
        """Stop the watched attempts with a verdict to stop. A run may have been claimed again meanwhile."""
        asked = {lease.attempt_id for lease in leases}
        for execution in list(self._executions.values()):
            verdict = verdicts.get(execution.lease.run_id, "go")
            if verdict != "go" and execution.lease.attempt_id in asked:
                execution.request_stop(verdict)

    async def _look(self) -> None:
        """Check whether an agent blocks the event loop, and store finished spans."""
        self._deps.loops.look()
        if self._spans is not None and self._spans.due:
            await self._spans.flush()

    # --- stopping

    async def _stop(self, grace: float) -> None:
        logger.info("worker %s stops; it executes %d runs", self.worker_id, len(self._executions))
        await self._end_claiming()
        await self._sign_off()
        if self._graph_requests is not None:
            await self._graph_requests.stop()
        if self._running:
            await asyncio.wait(self._running, timeout=grace)
        for execution in list(self._executions.values()):
            execution.request_stop(SHUTDOWN)
        if self._running:
            leases = [execution.assignment.lease_seconds for execution in self._executions.values()]
            await asyncio.wait(self._running, timeout=max(leases, default=0.0) + HAND_BACK_SECONDS)
        stopped = [execution for execution in self._executions.values() if execution.result == HANDED_BACK]
        await self._hand_back([execution.lease for execution in stopped])
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        if self._spans is not None:
            await self._spans.close(HAND_BACK_SECONDS)
        await self._queue.close()

    async def _drain(self) -> None:
        await self._sign_off()
        while self._running:
            await asyncio.wait(self._running)

    async def _sign_off(self) -> None:
        """Deregister this worker. If that fails, missing heartbeats show later that it has stopped."""
        try:
            async with asyncio.timeout(SIGN_OFF_SECONDS):
                await self._queue.deregister(self.worker_id)
        except (PerdureError, TimeoutError) as error:
            logger.warning("worker %s cannot sign off: %s: %s", self.worker_id, type(error).__name__, error)

    async def _end_claiming(self) -> None:
        if self._graph_requests is not None:
            await self._graph_requests.stop_claiming()
        claiming, self._claiming = self._claiming, []
        if not claiming:
            return
        for lane in self._lanes:
            lane.freed.set()
        await asyncio.wait(claiming, timeout=LAST_CLAIM_SECONDS)
        for task in claiming:
            task.cancel()
        await asyncio.gather(*claiming, return_exceptions=True)

    async def _hand_back(self, leases: Sequence[Lease]) -> None:
        if not leases:
            return
        logger.info("worker %s hands %d runs back to the queue", self.worker_id, len(leases))
        until = time.monotonic() + HAND_BACK_SECONDS
        try:
            await retry_until(
                lambda: self._queue.hand_back(leases),
                what=f"handing {len(leases)} runs back",
                still_owned=lambda: time.monotonic() < until,
                idempotent=True,
            )
        except PerdureError as error:
            logger.error("%d runs are retried when their leases expire: %s", len(leases), error.message)


def _occupies_core(agent: Agent) -> bool:
    """Return whether a run of the agent occupies its own thread or process."""
    return agent.blocking or agent.spec.kind == "command"


async def _again(period: Callable[[], float], action: Callable[[], Awaitable[object]]) -> None:
    """Repeat an action forever; errors are logged."""
    while True:
        await asyncio.sleep(period())
        try:
            await action()
        except Exception:
            logger.exception("a background task of the worker failed; it continues")
            await asyncio.sleep(LONGEST_PAUSE)
