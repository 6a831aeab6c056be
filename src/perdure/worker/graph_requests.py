"""Descriptions of a worker's graphs, and answers to requests, for servers without the graphs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.agents.context import AgentError
from perdure.checkpoints.records import CheckpointQuery, GraphDelta, GraphDeltaQuery, GraphSteps, GraphTuple
from perdure.graph_requests.model import MAX_ANSWER
from perdure.graph_requests.records import GraphAssignment, GraphError, RequestLease
from perdure.graph_requests.service import GraphRequests
from perdure.kernel.clock import boottime
from perdure.kernel.errors import Fenced, NotSupported, PerdureError
from perdure.kernel.retry import Backoff, retry_until
from perdure.langgraph.descriptions import GRAPH, describe
from perdure.runs.queue import RunQueue
from perdure.threads.work import Lease
from perdure.worker.context import CallInControlLoop, RunItems
from perdure.worker.health import Pulse
from perdure.worker.isolation import AgentEnd, AgentJob

if TYPE_CHECKING:
    from perdure.agents.records import AgentDescription
    from perdure.worker.execution import WorkerDeps

T = TypeVar("T")

logger = logging.getLogger(__name__)

CONCURRENCY = 8
"""Number of requests that a worker answers concurrently, in addition to its runs."""
POLL_SECONDS = 3.0
"""Polling interval for requests, if no signal arrives."""
DESCRIBE_SECONDS = 10.0
"""Time limit for describing an agent."""
STOP_SECONDS = 1.0
"""Time that requests have to end when the worker stops; the others are released."""
CANCEL_SECONDS = 0.5


class GraphRequestLoop:
    """Answers the requests for the graphs of a worker, in the worker's loop, from `start` to `stop`."""

    def __init__(self, requests: GraphRequests, deps: WorkerDeps, pulse: Pulse) -> None:
        self._requests = requests
        self._deps = deps
        self._pulse = pulse
        self._graphs = [name for name in deps.agents if deps.agents[name].spec.kind == GRAPH]
        self._answering: dict[asyncio.Task[None], RequestLease] = {}
        self._loops: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._freed = asyncio.Event()
        self._loops = [asyncio.create_task(self._describe())]
        if self._graphs:
            self._loops.append(asyncio.create_task(self._claim()))

    async def stop_claiming(self) -> None:
        """Stop claiming requests; claimed requests are still answered."""
        await _cancelled(self._loops)

    async def stop(self) -> None:
        """Stop claiming, let requests end within STOP_SECONDS, and release the others."""
        await self.stop_claiming()
        if not self._answering:
            return
        await asyncio.wait(self._answering, timeout=STOP_SECONDS)
        left = dict(self._answering)
        await _cancelled(list(left))
        if left:
            with suppress(PerdureError):
                # If a request is not released, another worker claims it when the lease expires.
                await self._requests.release(list(left.values()))

    # --- descriptions

    async def _describe(self) -> None:
        """Register the schemas and drawings of all agents."""
        results = [await self._description(name) for name in self._deps.agents]
        described = [description for description in results if description is not None]
        try:
            await retry_until(
                lambda: self._deps.queue.describe(described), what="describing the agents", idempotent=True
            )
        except PerdureError as error:
            logger.warning("the agents are not described: %s: %s", error.code, error.message)

    async def _description(self, name: str) -> AgentDescription | None:
        agent = self._deps.agents[name]
        store = _store(self._deps.queue) if agent.spec.kind == GRAPH else None
        job = self._deps.loops.start(lambda: describe(agent, store), f"the description of agent {name}")
        await asyncio.wait((job.done,), timeout=DESCRIBE_SECONDS)
        ended = job.done.result() if job.done.done() else None
        if ended is None:
            await self._stop_job(job)
        if ended is None or ended.error is not None:
            error = None if ended is None else ended.error
            logger.warning("agent %r cannot be described", name, exc_info=error)
            return None
        described: AgentDescription = ended.value
        return described

    async def _stop_job(self, job: AgentJob) -> None:
        job.cancel()
        await asyncio.wait((job.done,), timeout=CANCEL_SECONDS)
        if not job.done.done():
            self._deps.loops.abandon(job)

    # --- requests

    async def _claim(self) -> None:
        backoff = Backoff()
        wait = min(POLL_SECONDS, self._deps.options.interval)
        while True:
            free = CONCURRENCY - len(self._answering)
            if free <= 0:
                self._freed.clear()
                await self._freed.wait()
                continue
            sent = boottime()
            try:
                claimed = await self._requests.claim(self._deps.options.worker_id, self._graphs, free, wait)
                backoff.reset()
            except PerdureError as error:
                pause = backoff.next()
                logger.warning(
                    "cannot claim requests: %s: %s; retrying in %.1f s", error.code, error.message, pause
                )
                await asyncio.sleep(pause)
                continue
            answered = self._pulse.answered(sent)
            for assignment in claimed:
                self._begin(assignment, answered)

    def _begin(self, assignment: GraphAssignment, claimed: float) -> None:
        task = asyncio.create_task(self._answer(assignment, claimed))
        self._answering[task] = assignment.held
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._answering.pop(task, None)
        self._freed.set()
        if not task.cancelled() and task.exception() is not None:
            logger.error("a request could not be answered", exc_info=task.exception())

    async def _answer(self, assignment: GraphAssignment, claimed: float) -> None:
        """Execute one request and send the answer, unless the caller stops waiting.

        `claimed` is the time, by `boottime`, from which the lease certainly runs.
        """
        until = claimed + assignment.seconds_left
        if boottime() >= claimed + min(assignment.seconds_left, assignment.lease_seconds):
            logger.warning("request %s: its lease is over", assignment.held.request_id)
            return
        name = f"request {assignment.held.request_id} of agent {assignment.agent}"
        checkpoints = RequestGraphs(self._deps.queue, assignment)
        store = _store(self._deps.queue)
        job = self._deps.loops.start(lambda: _perform(self._deps, assignment, checkpoints, store), name)
        try:
            ended = await self._watched(job, assignment, until)
        except asyncio.CancelledError:
            job.cancel()
            raise
        if ended is None:
            logger.warning("%s: its caller no longer waits", name)
            return
        try:
            await self._send(assignment, ended, name, until)
        except Fenced:
            logger.warning("%s: its answer came too late", name)
        except PerdureError as error:
            logger.error("%s: cannot be answered: %s: %s", name, error.code, error.message)

    async def _watched(self, job: AgentJob, assignment: GraphAssignment, until: float) -> AgentEnd | None:
        """Renew the lease until the job ends; None if the lease or the deadline ends first."""
        while True:
            left = min(assignment.lease_seconds / 3, until - boottime())
            await asyncio.wait((job.done,), timeout=max(left, 0.0))
            if job.done.done():
                return job.done.result()
            if boottime() >= until or not await self._is_held(assignment.held):
                await self._stop_job(job)
                return None

    async def _is_held(self, held: RequestLease) -> bool:
        try:
            (kept,) = await self._requests.renew([held])
        except PerdureError as error:
            logger.warning("cannot renew a request: %s: %s", error.code, error.message)
            return True
        return kept

    async def _send(self, assignment: GraphAssignment, ended: AgentEnd, name: str, until: float) -> None:
        answer, steps = ended.value if ended.error is None else (None, None)
        error = None if ended.error is None else _build_error(ended.error, name)
        after = None if assignment.checkpoint is None else assignment.checkpoint.checkpoint_id

        async def send(answer: str | None, error: GraphError | None, steps: GraphSteps | None) -> None:
            await retry_until(
                lambda: self._requests.answer(
                    assignment.held, assignment.thread_id, answer, error, steps, after
                ),
                what=name,
                still_owned=lambda: boottime() < until,
                idempotent=True,
            )

        try:
            await send(answer, error, steps)
        except Fenced:
            raise
        except PerdureError as refused:
            if refused.http_status >= 500:
                raise
            # The server refuses the graph's changes, so the caller gets the reason.
            await send(None, _build_error(refused, name), None)


async def _perform(
    deps: WorkerDeps, assignment: GraphAssignment, checkpoints: RequestGraphs, store: Any
) -> tuple[str, GraphSteps | None]:
    """Execute a request in the agents' loop; return the answer as JSON, and the changes."""
    from perdure.langgraph.reading import GraphThread, perform
    from perdure.langgraph.wire import encode_value

    agent: Any = deps.agents[assignment.agent]
    thread = GraphThread(assignment.thread_id, store, assignment.checkpoint)
    performed = await perform(agent, checkpoints, thread, assignment.call)
    body = encode_value(performed.answer)
    if len(body) > MAX_ANSWER:
        raise NotSupported(
            f"the answer has {len(body):,} characters, and a worker's answer may have {MAX_ANSWER:,}:"
            " ask a server that has the graph, or ask for less"
        )
    return body, performed.steps


def _build_error(error: BaseException, name: str) -> GraphError:
    """Build the error for the caller. Details for the graph's author are only in the worker's log."""
    if isinstance(error, PerdureError):
        return GraphError(code=error.code, message=error.message)
    logger.error("%s failed", name, exc_info=error)
    return GraphError(
        code=AgentError.code,
        message=f"the graph failed with {type(error).__name__}; the worker's log has the details of {name}",
    )


class RequestGraphs:
    """`GraphCheckpoints` of one request, which stores its changes at its end."""

    def __init__(self, queue: RunQueue, assignment: GraphAssignment) -> None:
        self._queue = queue
        held = assignment.held
        self._lease = Lease(held.request_id, assignment.thread_id, held.attempt_id)
        self._call = _calling()

    def put(self, steps: GraphSteps) -> None:
        raise NotSupported("a request stores its changes at its end")

    async def ready(self) -> None: ...

    async def settle(self) -> None: ...

    async def find(self, query: CheckpointQuery) -> list[GraphTuple]:
        return await self._call(lambda: self._queue.find_graphs(self._lease, query))

    async def deltas(self, query: GraphDeltaQuery) -> list[GraphDelta]:
        return await self._call(lambda: self._queue.find_deltas(self._lease, query))

    def wait(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        raise NotSupported("a sync call would block the worker here: use the async one")


def _calling() -> CallInControlLoop:
    """Return a function that the agents' loop calls to run coroutines in the current loop, the worker's."""
    control = asyncio.get_running_loop()

    async def call(action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(action(), control))

    return call


def _store(queue: RunQueue) -> Any:
    """Return the store for factories of graphs."""
    from perdure.langgraph.store import ItemStore

    items = RunItems(queue, _calling(), lambda: None)
    return ItemStore(items.batch, items.wait)


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
