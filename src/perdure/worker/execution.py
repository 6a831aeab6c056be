"""Execution of one attempt, in the worker's loop. Only the agent's code runs in another loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from perdure.agents.confinement import Confinement
from perdure.agents.context import Agent, AgentError, Cancelled, Interrupted, Retriable
from perdure.agents.records import AgentSpec
from perdure.checkpoints.records import GraphSteps
from perdure.kernel.clock import boottime, human_duration
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import Conflict, Fenced, PerdureError
from perdure.kernel.log_fields import set_log_fields
from perdure.kernel.retry import retry_until
from perdure.memory.service import Memory
from perdure.rollouts.contract import LightningStore
from perdure.runs.queue import RunQueue
from perdure.streams.model import VALUES, NewEvent
from perdure.threads.encoding import begin_event
from perdure.threads.model import RETRY_BACKOFF, took_too_long
from perdure.threads.records import Failure, NewCheckpoint
from perdure.threads.work import Assignment, Ending, Lease
from perdure.worker.context import RunContext
from perdure.worker.emitter import Emitter, keep_last
from perdure.worker.isolation import AgentEnd, AgentJob, AgentLoops
from perdure.worker.options import WorkerOptions
from perdure.worker.phase import PhaseWork, Workspaces, build_phase
from perdure.worker.retry_policy import RetryPolicy, build_failure
from perdure.worker.session_writer import SessionWriter
from perdure.worker.tracing import SpanQueue, Tracing

if TYPE_CHECKING:
    from perdure.worker.registry import Agents

logger = logging.getLogger(__name__)

LOST = "lost"
RETRIABLE: Final = "retriable"
SHUTDOWN = "shutdown"
TIMEOUT = "timeout"
HANDED_BACK = "handed back"
SURELY_OVER = 3.0
"""Lease durations after the last renewal until another worker certainly may have the run."""
SHUTDOWN_SECONDS = 1.0
"""Time that agents have to stop when the worker stops."""
LAST_SECONDS = 0.5
"""Time that an agent has to stop after a second cancel."""


class WorkerDeps(msgspec.Struct, frozen=True, kw_only=True):
    """Dependencies that all executions of a worker share."""

    queue: RunQueue
    agents: Agents
    loops: AgentLoops
    options: WorkerOptions
    retry_policy: RetryPolicy
    store: LightningStore | None = None
    memory: Memory | None = None
    spans: SpanQueue | None = None
    active: Callable[[], int] = lambda: 1
    """Returns the number of runs that the worker executes now."""
    built_in: Mapping[str, Agent] = {}
    """Agents that execute commands, scripts, calls and requests of phases."""
    workspaces: Workspaces = Workspaces(None)


class TimeLimit(NamedTuple):
    """Time limit of an attempt, and the setting that it comes from."""

    seconds: float | None
    source: str | None


NO_LIMIT: Final = TimeLimit(None, None)


def find_limit(assignment: Assignment, spec: AgentSpec, setting: float | None) -> TimeLimit:
    """Return the limit of an attempt: from the run, the agent, the settings, or the agent's default."""
    if assignment.timeout_seconds:
        return TimeLimit(assignment.timeout_seconds, None)
    if spec.timeout is not None:
        return TimeLimit(spec.timeout, f"timeout of agent {spec.name}")
    set_by_server = assignment.server_timeout_seconds or setting
    if set_by_server is not None:
        return TimeLimit(set_by_server, "setting BG_JOB_TIMEOUT_SECS")
    return TimeLimit(spec.default_timeout, "default; set BG_JOB_TIMEOUT_SECS or the timeout of the agent")


class AgentResult(msgspec.Struct, frozen=True):
    """Return value of an agent, also as JSON."""

    values: Any
    body: str


class AttemptExecution:
    """Execution of one attempt by this worker."""

    def __init__(self, deps: WorkerDeps, assignment: Assignment, claimed: float | None = None) -> None:
        self.assignment = assignment
        self.lease: Lease = assignment.held
        self.started = boottime()
        self.renewed = self.started if claimed is None else claimed
        """Time, by `boottime`, from which the lease certainly runs."""
        self.lost = False
        self.result: str | None = None
        self._deps = deps
        self._stop_request: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._concluding = False
        self._limit = NO_LIMIT
        run = assignment.run
        self.name = f"run {run.run_id} of agent {run.agent}"
        self._emitter = Emitter(
            deps.queue,
            self.lease,
            self._still_owned,
            lease_over=self.lease_over,
            last=assignment.last_seq,
            active=deps.active,
        )
        self.tracing = Tracing(deps.spans, assignment, deps.options)
        self._session = SessionWriter(deps.queue, assignment, deps.options, self._still_owned)
        self._phase = (
            None if assignment.phase is None else PhaseWork(assignment, self._session, deps.workspaces)
        )
        self.context = RunContext(
            assignment,
            deps.queue,
            self._emitter,
            self.tracing,
            self._session,
            store=deps.store,
            phase=None if self._phase is None else build_phase(assignment, self._phase.place()),
            memory=deps.memory,
            still_owned=self._still_owned,
            lease_over=self.lease_over,
            confinement=self._confinement(),
        )

    def _confinement(self) -> Confinement:
        facts, phase = self.assignment.phase, self._phase
        return self._deps.options.confinement(
            required=facts is not None and facts.sandbox is not None,
            network=facts is not None and facts.network,
            workspace=None if phase is None else phase.place(),
        )

    @property
    def stop_action(self) -> str | None:
        """Action of the request to stop, if any."""
        return self._stop_request.result() if self._stop_request.done() else None

    def request_stop(self, action: str) -> None:
        """Stop: interrupt, rollback, timeout, shutdown, or the lease is lost. The first request wins."""
        self.lost = self.lost or action == LOST
        if not self._stop_request.done():
            self._stop_request.set_result(action)

    def expire(self) -> None:
        """Stop the agent because the lease expired. A report of its end that has started continues."""
        if not self._concluding:
            self.request_stop(LOST)

    def _still_owned(self) -> bool:
        lease = self.assignment.lease_seconds
        return not self.lost and boottime() - self.renewed < SURELY_OVER * lease

    def lease_over(self) -> bool:
        """Return whether the lease is over, for example after a freeze. Then this worker starts nothing more.

        Thread-safe.
        """
        if not self.lost and boottime() - self.renewed > self.assignment.lease_seconds:
            logger.warning("%s: attempt %d: the lease is over", self.name, self.assignment.attempt)
            self.lost = True
        return self.lost

    async def run(self) -> str:
        """Execute the attempt and report its end; return the result."""
        run = self.assignment.run
        set_log_fields(
            run_id=run.run_id, thread_id=run.thread_id, agent=run.agent, attempt=self.assignment.attempt
        )
        ended: AgentEnd | None = None
        number = self.assignment.attempt
        logger.info("%s started%s", self.name, "" if number == 1 else f", attempt {number}")
        try:
            ended = await self._execute()
            self._concluding = True
            await self.tracing.store_explicit()
            await self._session.drain()
            self.result = await self._conclude(ended)
        except Fenced:
            logger.warning("%s: attempt %d has lost its lease", self.name, self.assignment.attempt)
            self.result = LOST
        except PerdureError as error:
            logger.error("%s: cannot report its end: %s: %s", self.name, error.code, error.message)
            self.result = LOST
        finally:
            self._emitter.close()
            self._session.close()
            self.tracing.end(self.result or LOST, None if ended is None else ended.error)
        seconds = human_duration(boottime() - self.started)
        status = "failed, and is to be retried" if self.result == RETRIABLE else self.result
        logger.info("%s ended after %s: %s", self.name, seconds, status)
        return self.result

    # --- executing the agent

    async def _execute(self) -> AgentEnd:
        assignment = self.assignment
        if not assignment.begun:
            self._emitter.begin(begin_event(assignment.run.run_id, assignment.attempt))
        agent = self._agent()
        self._limit = find_limit(assignment, agent.spec, self._deps.options.timeout)
        job = self._deps.loops.start(lambda: self._main(agent), self.name)
        await asyncio.wait(
            (job.done, self._stop_request), timeout=self._limit.seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if not job.done.done():
            self.request_stop(TIMEOUT)
            await self._stop(job, agent)
        return (
            job.done.result() if job.done.done() else AgentEnd(error=TimeoutError("the agent did not stop"))
        )

    def _agent(self) -> Agent:
        """Return the agent of the run. Built-in agents execute only phases, never runs of callers."""
        name, deps = self.assignment.run.agent, self._deps
        return deps.built_in[name] if self._is_built_in else deps.agents[name]

    @property
    def _is_built_in(self) -> bool:
        return self._phase is not None and self.assignment.run.agent in self._deps.built_in

    async def _main(self, agent: Agent) -> AgentResult | None:
        """Run the agent's code in its own loop, and encode its return value there."""
        await self.context.enter()
        if self.lease_over():
            raise Cancelled(LOST)
        if self._phase is not None:
            self._phase.begin(agent, built_in=self._is_built_in)
        values = await agent.run(self.context, self.context.input)
        if self._phase is not None:
            values = self._phase.returned(values, self.context.graph.last)
        return (
            None
            if values is None
            else AgentResult(values, encode_json(values, what="the return value of the agent"))
        )

    async def _stop(self, job: AgentJob, agent: Agent) -> None:
        action = self.stop_action or LOST
        logger.info("stopping %s: %s", self.name, action)
        self.context.cancel(action)
        if not agent.blocking:
            job.cancel()
        longest = self._deps.options.cancel_grace
        await asyncio.wait(
            (job.done,), timeout=min(longest, SHUTDOWN_SECONDS) if action == SHUTDOWN else longest
        )
        if job.done.done():
            return
        job.cancel()
        await asyncio.wait((job.done,), timeout=min(longest, LAST_SECONDS))
        if not job.done.done():
            self._deps.loops.abandon(job)

    # --- reporting the end

    async def _conclude(self, ended: AgentEnd) -> str:
        action = self.stop_action
        if self.lost:
            return LOST
        if isinstance(ended.error, Interrupted):
            # The checkpoint of the interrupt keeps the values of the thread.
            await self.context.load()
        if action in ("interrupt", "rollback"):
            async with self._emitter.sending:
                # The run is fenced, so steps that are being sent come back.
                keeps = action == "interrupt" and isinstance(self._emitter.failure, Fenced | None)
                graph = self._emitter.take_steps() if keeps else None
            stopped = Ending(held=self.lease, result="stopped", graph=graph)
            await self._finish(await self._with_report(stopped, ended))
            return "stopped"
        if action == TIMEOUT:
            failure = took_too_long(self._limit.seconds, self._limit.source)
            late = Ending(held=self.lease, result="timeout", error=failure)
            return await self._end(await self._with_report(late, ended))
        if action == SHUTDOWN and ended.error is not None and not isinstance(ended.error, Interrupted):
            await self._emitter.drain()
            return HANDED_BACK
        ending = self._ending(ended)
        if ending.result != RETRIABLE:
            self.context.end_replay()
        return await self._end(await self._with_report(ending, ended))

    async def _with_report(self, ending: Ending, ended: AgentEnd) -> Ending:
        """Add to an ending the report of its phase. The session's last lines are written first."""
        if self._phase is None:
            return ending
        reported = self._phase.report(ending, ended.error)
        await self._session.drain()
        return reported

    def _ending(self, ended: AgentEnd) -> Ending:
        # A run has not succeeded if its events could not be written.
        error = _write_error(self._emitter.failure) or ended.error
        if isinstance(error, Interrupted):
            return Ending(held=self.lease, result="success", checkpoint=self._interrupted(error))
        if error is None:
            return self._succeeded(ended.value)
        if self._deps.retry_policy.is_retriable(error):
            logger.warning("%s: attempt %d failed", self.name, self.assignment.attempt, exc_info=error)
            return Ending(
                held=self.lease,
                result=RETRIABLE,
                error=build_failure(error),
                retry_after=self._retry_after(error),
            )
        logger.error("%s failed", self.name, exc_info=error)
        return Ending(held=self.lease, result="error", error=build_failure(error))

    def _retry_after(self, error: BaseException) -> float:
        if isinstance(error, Retriable) and error.after is not None:
            return error.after
        return RETRY_BACKOFF.delay(self.assignment.attempt)

    def _succeeded(self, result: AgentResult | None) -> Ending:
        saved = self.context.checkpoint
        if result is None or (result.body == self.context.saved and saved is not None and not saved.next):
            return Ending(held=self.lease, result="success")
        checkpoint = NewCheckpoint(values=result.values, parent_id=self.context.checkpoint_id)
        events = [NewEvent(VALUES, result.body)] if VALUES in self.context.stream_mode else []
        return Ending(held=self.lease, result="success", checkpoint=checkpoint, events=events)

    def _interrupted(self, interrupted: Interrupted) -> NewCheckpoint:
        """Build the checkpoint that waits for an answer, with the agent's last saved state."""
        checkpoint = self.context.checkpoint
        ours = checkpoint if checkpoint is not None and checkpoint.run_id == self.lease.run_id else None
        return NewCheckpoint(
            values=checkpoint.values if checkpoint is not None else None,
            next=(ours.next if ours is not None else None) or [self.assignment.run.agent],
            interrupts=self.context.questions(interrupted.interrupts),
            metadata={**(ours.metadata if ours is not None else {}), **self.context.resume_metadata()},
            state=ours.state if ours is not None else None,
            parent_id=self.context.checkpoint_id,
        )

    async def _end(self, ending: Ending) -> str:
        """Report the end together with the pending events."""
        async with self._emitter.sending:
            graph = self._remaining_steps(ending)
            events = [*self._emitter.take(), *ending.events]
            try:
                await self._finish(msgspec.structs.replace(ending, events=events, graph=graph))
            except PerdureError as error:
                if isinstance(error, Fenced) or error.http_status >= 500:
                    raise
                logger.error(
                    "%s: the report of its end was refused: %s: %s", self.name, error.code, error.message
                )
                failure = Failure(error=type(error).__name__, message=error.public)
                ending = Ending(held=self.lease, result="error", error=failure)
                await self._finish(ending)
        return ending.result

    def _remaining_steps(self, ending: Ending) -> GraphSteps | None:
        """Return the pending steps of the graph; only the last step if the thread is deleted now."""
        if self._emitter.failure is not None:
            return None
        steps = self._emitter.take_steps()
        over = self.assignment.run.temporary and ending.result == "success" and self._phase is None
        return keep_last(steps) if steps is not None and over else steps

    async def _finish(self, ending: Ending) -> None:
        await retry_until(
            lambda: self._deps.queue.finish(ending),
            what=f"the end of run {self.lease.run_id}",
            still_owned=self._still_owned,
            idempotent=True,
        )


def _write_error(failure: PerdureError | None) -> BaseException | None:
    """Convert the error of a failed write to an error of the attempt. A conflict in the stream is retried."""
    if isinstance(failure, Conflict):
        return AgentError(failure.message, error=type(failure).__name__, retriable=True)
    return failure
