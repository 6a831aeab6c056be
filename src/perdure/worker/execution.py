"""One attempt, from its assignment to its end: in the worker's loop, but for the agent's code."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.agents.context import AgentError, Interrupted, Retriable
from perdure.graphs.records import GraphSteps
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import Conflict, Fenced, PerdureError
from perdure.kernel.retry import retry_until
from perdure.rollouts.contract import LightningStore
from perdure.streams.model import VALUES, NewEvent
from perdure.threads.model import RETRY_BACKOFF, took_too_long
from perdure.threads.queue import RunQueue
from perdure.threads.records import Failure, NewCheckpoint
from perdure.threads.work import Assignment, Ending, Lease
from perdure.worker.context import METADATA, RunContext
from perdure.worker.emitter import Emitter
from perdure.worker.graph_steps import last_of
from perdure.worker.isolation import AgentLoops, Ended, Job
from perdure.worker.options import WorkerOptions
from perdure.worker.retry_policy import RetryPolicy, failure_of
from perdure.worker.tracing import Tracing

if TYPE_CHECKING:
    from perdure.agents.agent import Agent
    from perdure.worker.registry import Agents

logger = logging.getLogger(__name__)

LOST = "lost"
SHUTDOWN = "shutdown"
TIMEOUT = "timeout"
HANDED_BACK = "handed back"
SURELY_OVER = 3.0
"""So many leases after the last renewal, somebody else has the run."""
SHUTDOWN_SECONDS = 1.0
"""How long agents may take to stop when the worker ends."""
LAST_SECONDS = 0.5
"""How long an agent may take to stop when it is cancelled once more."""


class WorkerDeps(msgspec.Struct, frozen=True, kw_only=True):
    """What all executions of a worker share."""

    queue: RunQueue
    agents: Agents
    loops: AgentLoops
    options: WorkerOptions
    judge: RetryPolicy
    store: LightningStore | None = None
    active: Callable[[], int] = lambda: 1
    """How many runs the worker executes now."""


class NoSuchAgent(Retriable):
    """The run came to a worker that does not have its agent; another may."""


class AgentResult(msgspec.Struct, frozen=True):
    """What an agent gave: its values, and the same as JSON."""

    values: Any
    body: str


class Execution:
    """An attempt in the hands of this worker."""

    def __init__(self, tools: WorkerDeps, assignment: Assignment) -> None:
        self.assignment = assignment
        self.held: Lease = assignment.held
        self.started = self.renewed = time.monotonic()
        self.lost = False
        self.result: str | None = None
        self._tools = tools
        self._asked: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._concluding = False
        run = assignment.run
        self.name = f"run {run.run_id} of agent {run.agent}"
        self._emitter = Emitter(
            tools.queue,
            self.held,
            self._is_worthwhile,
            last=assignment.last_seq,
            active=tools.active,
        )
        traceparent = run.kwargs.traceparent
        self.tracing = Tracing(tools.store, run.run_id, assignment.attempt_id, traceparent)
        self.context = RunContext(
            assignment,
            tools.queue,
            self._emitter,
            self.tracing,
            store=tools.store,
            still_owned=self._is_worthwhile,
        )

    @property
    def asked(self) -> str | None:
        """What it was asked to stop for."""
        return self._asked.result() if self._asked.done() else None

    @property
    def timeout(self) -> float | None:
        return self.assignment.timeout_seconds or self._tools.options.timeout

    def ask(self, action: str) -> None:
        """Stop: as interrupt, rollback or shutdown wants it, or because the run is lost. The first counts."""
        self.lost = self.lost or action == LOST
        if not self._asked.done():
            self._asked.set_result(action)

    def expire(self) -> None:
        """No renewal got through for the length of a lease: an agent at work stops, an end is still told."""
        if not self._concluding:
            self.ask(LOST)

    def _is_worthwhile(self) -> bool:
        lease = self.assignment.lease_seconds
        return not self.lost and time.monotonic() - self.renewed < SURELY_OVER * lease

    async def run(self) -> str:
        """Execute the attempt and tell its end; gives the result."""
        try:
            ended = await self._execute()
            self._concluding = True
            await self.tracing.flush()
            self.result = await self._conclude(ended)
        except Fenced:
            logger.warning("%s: attempt %d holds it no longer", self.name, self.assignment.attempt)
            self.result = LOST
        except PerdureError as error:
            logger.error("%s: its end could not be told: %s: %s", self.name, error.code, error.message)
            self.result = LOST
        finally:
            self._emitter.close()
        return self.result

    # --- the agent

    async def _execute(self) -> Ended:
        run, number = self.assignment.run, self.assignment.attempt
        begun = {"run_id": run.run_id, "attempt": number}
        self._emitter.put(NewEvent(METADATA, encode_json(begun)))
        if run.agent not in self._tools.agents:
            known = ", ".join(self._tools.agents) or "none"
            return Ended(error=NoSuchAgent(f"this worker has no agent {run.agent!r}; it has {known}"))
        agent = self._tools.agents[run.agent]
        job = self._tools.loops.start(lambda: self._main(agent), self.name)
        await asyncio.wait((job.done, self._asked), timeout=self.timeout, return_when=asyncio.FIRST_COMPLETED)
        if not job.done.done():
            self.ask(TIMEOUT)
            await self._stop(job, agent)
        return job.done.result() if job.done.done() else Ended(error=TimeoutError("the agent does not stop"))

    async def _main(self, agent: Agent) -> AgentResult | None:
        """The agent's code, in its own loop; what it gives is made JSON there too."""
        self.context.enter()
        values = await agent.run(self.context, self.context.input)
        return (
            None
            if values is None
            else AgentResult(values, encode_json(values, what="what the agent returned"))
        )

    async def _stop(self, job: Job, agent: Agent) -> None:
        action = self.asked or LOST
        logger.info("%s is stopped: %s", self.name, action)
        self.context.cancel(action)
        if not agent.blocking:
            job.cancel()
        longest = self._tools.options.cancel_grace
        await asyncio.wait(
            (job.done,), timeout=min(longest, SHUTDOWN_SECONDS) if action == SHUTDOWN else longest
        )
        if job.done.done():
            return
        job.cancel()
        await asyncio.wait((job.done,), timeout=min(longest, LAST_SECONDS))
        if not job.done.done():
            self._tools.loops.abandon(job)

    # --- its end

    async def _conclude(self, ended: Ended) -> str:
        action = self.asked
        if self.lost:
            return LOST
        if isinstance(ended.error, Interrupted):
            # The values that the thread has stay with what it asks.
            await self.context.load()
        if action in ("interrupt", "rollback"):
            keeps = action == "interrupt" and isinstance(self._emitter.failure, Fenced | None)
            graph = self._emitter.take_steps() if keeps else None
            await self._finish(Ending(held=self.held, result="stopped", graph=graph))
            return "stopped"
        if action == TIMEOUT:
            failure = took_too_long(self.timeout)
            return await self._end(Ending(held=self.held, result="timeout", error=failure))
        if action == SHUTDOWN and ended.error is not None and not isinstance(ended.error, Interrupted):
            await self._emitter.drain()
            return HANDED_BACK
        return await self._end(self._judge(ended))

    def _judge(self, ended: Ended) -> Ending:
        # What could not be written must not be missing from a run that succeeded.
        error = _unwritten(self._emitter.failure) or ended.error
        if isinstance(error, Interrupted):
            return Ending(held=self.held, result="success", checkpoint=self._interrupted(error))
        if error is None:
            return self._succeeded(ended.value)
        if self._tools.judge.is_retriable(error):
            logger.warning("%s: attempt %d failed", self.name, self.assignment.attempt, exc_info=error)
            return Ending(
                held=self.held,
                result="retriable",
                error=failure_of(error),
                retry_after=self._retry_after(error),
            )
        logger.error("%s failed", self.name, exc_info=error)
        return Ending(held=self.held, result="error", error=failure_of(error))

    def _retry_after(self, error: BaseException) -> float:
        if isinstance(error, Retriable) and error.after is not None:
            return error.after
        return RETRY_BACKOFF.delay(self.assignment.attempt)

    def _succeeded(self, given: AgentResult | None) -> Ending:
        known = self.context.checkpoint
        if given is None or (given.body == self.context.saved and known is not None and not known.next):
            return Ending(held=self.held, result="success")
        checkpoint = NewCheckpoint(values=given.values, parent_id=self.context.checkpoint_id)
        told = [NewEvent(VALUES, given.body)] if VALUES in self.context.stream_mode else []
        return Ending(held=self.held, result="success", checkpoint=checkpoint, events=told)

    def _interrupted(self, asking: Interrupted) -> NewCheckpoint:
        """The state that waits for an answer. What the agent kept last of itself goes along."""
        known = self.context.checkpoint
        ours = known if known is not None and known.run_id == self.held.run_id else None
        return NewCheckpoint(
            values=known.values if known is not None else None,
            next=(ours.next if ours is not None else None) or [self.assignment.run.agent],
            interrupts=self.context.questions(asking.interrupts),
            metadata={**(ours.metadata if ours is not None else {}), **self.context.told()},
            state=ours.state if ours is not None else None,
            parent_id=self.context.checkpoint_id,
        )

    async def _end(self, ending: Ending) -> str:
        """Tell the end, with the events that are still on their way."""
        async with self._emitter.sending:
            graph = self._left(ending)
            events = [*self._emitter.take(), *ending.events]
            try:
                await self._finish(msgspec.structs.replace(ending, events=events, graph=graph))
            except PerdureError as error:
                if isinstance(error, Fenced) or error.http_status >= 500:
                    raise
                logger.error("%s: its end was refused: %s: %s", self.name, error.code, error.message)
                failure = Failure(error=type(error).__name__, message=error.message)
                ending = Ending(held=self.held, result="error", error=failure)
                await self._finish(ending)
        return ending.result

    def _left(self, ending: Ending) -> GraphSteps | None:
        """What the run's graph did that is still to be kept; of a thread that ends now, how it was left."""
        if self._emitter.failure is not None:
            return None
        steps = self._emitter.take_steps()
        over = self.assignment.run.temporary and ending.result == "success"
        return last_of(steps) if steps is not None and over else steps

    async def _finish(self, ending: Ending) -> None:
        await retry_until(
            lambda: self._tools.queue.finish(ending),
            what=f"the end of run {self.held.run_id}",
            still_owned=self._is_worthwhile,
            idempotent=True,
        )


def _unwritten(failure: PerdureError | None) -> BaseException | None:
    """Why the stream could not be written, as an error of the attempt; disorder in it is tried again."""
    if isinstance(failure, Conflict):
        return AgentError(failure.message, error=type(failure).__name__, retriable=True)
    return failure
