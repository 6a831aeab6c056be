"""Queue of the runs of one namespace, for workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

from msgspec import Meta
from msgspec.structs import replace

from perdure.agents.records import AgentDescription, AgentSpec
from perdure.assistants.model import description_rows, registrations
from perdure.assistants.operations import describe, is_described, outdated, register
from perdure.checkpoints.records import CheckpointQuery, GraphDelta, GraphDeltaQuery, GraphSteps, GraphTuple
from perdure.eventlog.port import EventLog
from perdure.eventlog.table_log import TableEventLog
from perdure.executions.model import WORKFLOWS_QUEUE, PhaseInputs, check_not_built_in
from perdure.items.records import ItemOp, ItemResult
from perdure.items.service import Items
from perdure.kernel.checks import Id, check_id, check_ids, check_text, optional_text
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import Fenced, NotFound, PerdureError
from perdure.kernel.ids import process_id
from perdure.kernel.signals.port import until
from perdure.kernel.storage.port import Storage
from perdure.rollouts.model import Kinds
from perdure.rollouts.operations import report, workers
from perdure.rollouts.operations.claim import Claim
from perdure.rollouts.operations.workers import WorkerRegistration
from perdure.rollouts.watchdog import Watchdog, WatchedService
from perdure.runs.assignments import build_assignment, with_inputs
from perdure.runs.claimer import Claimer
from perdure.runs.encoding import encode_finish
from perdure.runs.operations import finish
from perdure.runs.operations.finish import RunFinish
from perdure.runs.operations.sessions import enter_sessions, record_usage
from perdure.runs.session_lines import check_session_lines, check_usage, write_lines
from perdure.service.callers import MAX_NAME, Caller
from perdure.service.endpoints import MAX_BATCH, POST, Acknowledged, call, under
from perdure.streams.model import NewEvent
from perdure.streams.operations import PAGE_BYTES
from perdure.streams.operations import read as read_stream
from perdure.streams.service import Streams
from perdure.threads.encoding import (
    MAX_TEXT,
    check_lease,
    check_queues,
    check_sent,
    check_states,
    checked,
    encode_steps,
)
from perdure.threads.local_completions import LocalCompletions
from perdure.threads.model import AGENTS_QUEUE, GATHER_SECONDS, QueueName
from perdure.threads.operations import assign, execute, queries
from perdure.threads.operations import graphs as graph_operations
from perdure.threads.operations.assign import NewAttempt, Share
from perdure.threads.operations.cancel import CONTROL_CHANNEL, control_key
from perdure.threads.operations.execute import AppendEvents, SaveCheckpoint, SaveStep, State
from perdure.threads.operations.graphs import RecordSteps
from perdure.threads.operations.settle import get_last, load_runs, thread_stream
from perdure.threads.operations.shown import resolve
from perdure.threads.records import Checkpoint, NewCheckpoint, Run
from perdure.threads.redis_markers import RedisMarkers
from perdure.threads.rows import Created, row_to_checkpoint, row_to_run
from perdure.threads.unpacking import find_deltas, find_graphs
from perdure.threads.waiting_claims import WaitingClaims
from perdure.threads.work import (
    APPENDED,
    ENDED,
    Assignment,
    Ending,
    Finished,
    Lease,
    RunAppend,
    SessionLines,
    UsageReport,
    Verdict,
    or_raise,
)

if TYPE_CHECKING:
    from perdure.threads.service import Threads

T = TypeVar("T")

WORK = "/work"
"""Path prefix of the methods for workers."""
MAX_BODY = 32 << 20
"""Largest request body of a worker. Agents may write large values."""
MAX_WAIT_SECONDS = 30.0
MAX_EVENTS = 10 * MAX_BATCH
FILL_SECONDS = 5.0
_FENCED: Any = {"max_body": MAX_BODY, "errors": (NotFound, Fenced), "repeatable": True}

WorkerId = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
Wait = Annotated[float, Meta(ge=0, le=MAX_WAIT_SECONDS)]
Queues = Annotated[Sequence[QueueName], Meta(min_length=1, max_length=2)]
Leases = Annotated[Sequence[Lease], Meta(max_length=MAX_BATCH)]
Events = Annotated[Sequence[NewEvent], Meta(max_length=MAX_EVENTS)]
After = Annotated[int, Meta(ge=0, le=2**53)]
"""Number of the last event that the worker knows. Its next event has the next number, and is stored once."""


class RunQueue(WatchedService):
    """Operations of a worker on its runs. A write is `Fenced` once its attempt no longer holds the run.

    `over` builds one for a worker without a database.
    """

    _process: str | None = None
    """ID of the process of its workers, if that process has the database open."""

    def __init__(
        self,
        storage: Storage,
        kinds: Kinds,
        streams: Streams,
        *,
        namespace: str = "default",
        caller: Caller | None = None,
        items: Items | None = None,
        completions: LocalCompletions | None = None,
        watchdog: Watchdog | None = None,
        log: EventLog | None = None,
        inputs: PhaseInputs | None = None,
        waiting: WaitingClaims | None = None,
    ) -> None:
        super().__init__(storage, kinds, namespace=namespace, caller=caller, watchdog=watchdog)
        self.waiting_claims = waiting or WaitingClaims()
        self.streams = streams
        self.items = items or Items(storage, namespace=namespace)
        self.log = log or TableEventLog(storage)
        self._inputs = inputs
        self.local_completions = completions or LocalCompletions()
        self._redis_markers = RedisMarkers(storage.signals)

    @classmethod
    def beside(
        cls,
        threads: Threads,
        items: Items | None = None,
        log: EventLog | None = None,
        inputs: PhaseInputs | None = None,
    ) -> Self:
        """Create a queue that shares its namespace, streams and completions with `threads`."""
        return cls(
            threads.storage,
            threads.kinds,
            threads.streams,
            namespace=threads.namespace,
            caller=threads.caller,
            items=items,
            completions=threads.local_completions,
            watchdog=threads.watchdog,
            log=log,
            inputs=inputs,
            waiting=threads.waiting_claims,
        )

    def acting_as(self, caller: Caller) -> Self:
        """Return a queue in the caller's namespace that writes in the caller's name."""
        sibling = super().acting_as(caller)
        sibling.items = self.items.acting_as(caller)
        return sibling

    def in_namespace(self, namespace: str) -> Self:
        """Return a queue in another namespace of the database."""
        sibling = super().in_namespace(namespace)
        sibling.items = self.items.in_namespace(namespace)
        return sibling

    @call(POST(WORK + "/register"), scope="worker", repeatable=True)
    async def register(
        self,
        worker_id: WorkerId,
        agents: Annotated[Sequence[AgentSpec], Meta(max_length=MAX_BATCH)],
        concurrency: Annotated[int, Meta(ge=1, le=100_000)] | None = None,
        queues: Queues = (AGENTS_QUEUE,),
        built_in: Annotated[Sequence[Id], Meta(max_length=MAX_BATCH)] = (),
    ) -> Acknowledged:
        """Register a worker with its agents, its number of concurrent runs, and its queues.

        Each agent gets a system assistant, except built-in agents, which execute only phases.
        """
        check_id(worker_id, "worker_id")
        for spec in agents:
            check_not_built_in(spec.name)
        if await self.read(outdated, agents):
            await self.write(register, registrations(agents))
        await self.fill_agents()
        names = [*(spec.name for spec in agents), *check_ids(built_in, "the name of an agent")]
        stats = {"queue": AGENTS_QUEUE, "queues": check_queues(queues), "max": concurrency, "agents": names}
        await self.write(workers.start, WorkerRegistration(worker_id, encode_json(stats), self._process))

    @call(POST(WORK + "/deregister"), scope="worker", repeatable=True)
    async def deregister(self, worker_id: WorkerId) -> Acknowledged:
        """Deregister a worker: it claims no more runs and does not count as alive."""
        check_id(worker_id, "worker_id")
        await self.write(workers.stop, worker_id)

    def start_timers(self) -> None:
        """Start to look for runs of processes of an earlier release, which may still run."""
        self.storage.timers.every(FILL_SECONDS, self.fill_agents)

    async def fill_agents(self) -> None:
        """Set the agents of runs that an earlier release created, so that they can be claimed."""
        while await self.storage.background(assign.fill_agents):
            pass

    def in_this_process(self) -> Self:
        """Return a queue for workers in this process. When this process ends, the next process that opens the
        SQLite file ends their leases."""
        sibling = self.in_namespace(self.namespace)
        sibling._process = process_id()
        return sibling

    async def take_over(self) -> None:
        """End the leases of workers in the process that had this SQLite file open before, in all namespaces,
        instead of waiting for their expiry."""
        if self.storage.engine == "sqlite":
            while await self.storage.run(report.end_workers_elsewhere, process_id(), self.kinds):
                pass

    @call(POST(WORK + "/describe"), scope="worker", max_body=MAX_BODY, errors=(NotFound,), repeatable=True)
    async def describe(
        self, agents: Annotated[Sequence[AgentDescription], Meta(max_length=MAX_BATCH)]
    ) -> Acknowledged:
        """Store the schemas and drawings of agents, for servers without their code. The last call wins."""
        rows = description_rows(agents)
        if rows and not await self.read(is_described, rows):
            await self.write(describe, rows)

    # --- claims -------------------------------------------------------------------------------------------

    @call(POST(WORK + "/claim"), scope="worker", by_hand=True)
    async def claim(
        self,
        worker_id: WorkerId,
        agents: Annotated[Sequence[Id], Meta(max_length=MAX_BATCH)],
        limit: Annotated[int, Meta(ge=1, le=MAX_BATCH)] = 1,
        wait: Wait = 0.0,
        queues: Queues = (AGENTS_QUEUE,),
        *,
        idempotency_key: str | None = None,
    ) -> Annotated[list[Assignment], under("assignments", list[Assignment], "Assignments")]:
        """Claim up to `limit` runs of these agents, waiting up to `wait` seconds for the first.

        Runs of callers are in the queue `agents`, phases of workflows in `workflows`. A phase comes with its
        rendered input. A repeated idempotency key returns the same runs.
        """
        with Claimer(self, worker_id, agents, queues, idempotency_key) as claimer:
            return await claimer.claim(limit) or await claimer.next(lambda: limit, wait) or []

    def claimer(self, worker_id: str, agents: Sequence[str], queues: Sequence[str]) -> Claimer | None:
        """Create a claimer for a worker of this process; None if the queue is remote."""
        return Claimer(self, worker_id, agents, queues, begins=True)

    async def claim_now(
        self, claim: Claim, agents: Sequence[str], queues: Sequence[str], key: str | None
    ) -> list[Assignment]:
        """Claim what is ready, merged with concurrent claims. Raise `Drained` if the worker is drained."""
        claimed: Share = await self.write_once(
            key,
            assign.claim_runs,
            claim,
            agents,
            queues,
            self.kinds,
            rows=claim.limit,
            # A caller with a key may ask again, so nothing is released.
            undelivered=self.unclaimed if key is None else None,
        )
        return await self.assigned(claimed, queues)

    async def assigned(self, claimed: Share, queues: Sequence[str]) -> list[Assignment]:
        """Return the assignments of runs that were claimed for a worker."""
        if all(isinstance(run, Created) for run in claimed):
            records = [run.record for run in claimed if isinstance(run, Created)]
            assignments = [build_assignment(record) for record in records if record is not None]
            if WORKFLOWS_QUEUE in queues:
                assignments = await self._with_inputs(assignments)
        else:
            assignments = await self._load_assignments([NewAttempt(*ids) for ids in claimed])
        self._redis_markers.claimed(assignments)
        return assignments

    async def _load_assignments(self, claimed: Sequence[NewAttempt]) -> list[Assignment]:
        """Load the assignments of a claim whose first answer was lost."""
        try:
            assignments = [build_assignment(run) for run in await self.read(assign.assignments, claimed)]
        except BaseException:
            # No other process knows of this claim.
            self.unclaimed(claimed)
            raise
        return await self._with_inputs(assignments)

    async def _with_inputs(self, claimed: list[Assignment]) -> list[Assignment]:
        """Render the inputs of phases. A phase whose input cannot be rendered fails at once."""
        if self._inputs is None:
            return claimed
        try:
            ready, failed = await with_inputs(self._inputs, await self.ns(), claimed)
        except BaseException:
            self.unclaimed([NewAttempt(new.run.run_id, new.attempt_id, new.attempt) for new in claimed])
            raise
        if failed:
            await self._finish(failed)
        return ready

    def unclaimed(self, claimed: Sequence[Iterable[Any]]) -> None:
        """Release runs whose claimer was cancelled, in the background."""
        if claimed:
            self.release_later(partial(self.release, claimed))

    async def release(self, claimed: Sequence[Iterable[Any]]) -> None:
        """Release runs whose claimer is gone."""
        attempts = [NewAttempt(*ids) for ids in claimed]
        runs = await self.read(load_runs, [attempt.run_id for attempt in attempts])
        left = [new for new in attempts if new.run_id in runs]
        await self.hand_back([Lease(new.run_id, runs[new.run_id].thread_id, new.attempt_id) for new in left])

    @call(POST(WORK + "/release"), scope="worker", repeatable=True)
    async def hand_back(self, held: Leases) -> Acknowledged:
        """Release runs, uncharged and at their old position, so that another worker continues at once."""
        if held:
            await self.write(finish.hand_back, tuple(map(check_lease, held)), self.kinds)
            self._redis_markers.released([lease.run_id for lease in held])

    # --- while a run is executed --------------------------------------------------------------------------

    @call(POST(WORK + "/renew"), scope="worker", repeatable=True)
    async def renew(
        self, worker_id: WorkerId, held: Leases
    ) -> Annotated[list[Verdict], under("verdicts", list[Verdict], "Verdicts")]:
        """Renew leases. Return for each run, in order, whether it continues."""
        check_id(worker_id, "worker_id")
        verdicts = await self.write(execute.renew, worker_id, tuple(map(check_lease, held)))
        self._redis_markers.renewed(held, verdicts)
        return verdicts

    @call(POST(WORK + "/controls"), scope="worker", by_hand=True)
    async def controls(
        self, held: Leases, wait: Wait = 0.0
    ) -> Annotated[dict[str, Verdict], under("controls", dict[str, Verdict], "Controls")]:
        """Wait up to `wait` seconds for runs that must stop; return them with their verdicts."""
        ns = await self.ns()
        keys = [control_key(ns, lease.run_id) for lease in held]

        async def stopped(_: frozenset[str]) -> dict[str, Verdict]:
            verdicts = await self.read(execute.verdicts, tuple(map(check_lease, held)))
            pairs = zip(held, verdicts, strict=True)
            return {lease.run_id: verdict for lease, verdict in pairs if verdict != "go"}

        return await until(self.storage.signals, CONTROL_CHANNEL, keys, stopped, timeout=wait)

    async def append(self, held: Lease, events: Sequence[NewEvent], after: int | None = None) -> int:
        """Append events to the stream of a run; return the number of the last event once it is durable.

        `after` is the number of the event before these. With it, a repeated call is not carried out again.
        """
        (answer,) = await self.append_all([RunAppend(held, events, after)])
        return or_raise(answer)

    @call(POST(WORK + "/events"), scope="worker", max_body=MAX_BODY, repeatable=True)
    async def append_all(
        self, appends: Annotated[Sequence[RunAppend], Meta(max_length=MAX_BATCH)]
    ) -> Annotated[list[int | PerdureError], APPENDED]:
        """Append events to the streams of runs. Each item has its own answer."""
        calls = [AppendEvents(check_lease(new.held), check_sent(new.events), new.after) for new in appends]
        rows = sum(max(len(call.events), 1) for call in calls)
        size = sum(len(event.body) for call in calls for event in call.events)
        answers = await self._each(self._append_batch, calls, rows=rows, size=size)
        return [get_last(answer) for answer in answers]

    async def _append_batch(self, calls: Sequence[AppendEvents]) -> Sequence[Any]:
        return self._offered(await self.write(execute.append_events, calls))

    @call(
        POST(WORK + "/checkpoints"),
        scope="worker",
        max_body=MAX_BODY,
        errors=(NotFound, Fenced),
        repeatable=True,
    )
    async def save(
        self,
        held: Lease,
        checkpoint: NewCheckpoint,
        events: Events = (),
        after: After | None = None,
    ) -> Checkpoint:
        """Store a state of a run's thread, with the events about it."""
        new = SaveCheckpoint(check_lease(held), checked(checkpoint), check_sent(events), after)
        size = len(new.checkpoint.values) + sum(len(event.body) for event in events)
        (state,) = await self._each(self._save_batch, [new], size=size)
        saved: State = or_raise(state)
        return row_to_checkpoint(saved.row)

    async def _save_batch(self, calls: Sequence[SaveCheckpoint]) -> Sequence[Any]:
        return self._offered(await self.write(execute.save_checkpoints, calls))

    @call(
        POST(WORK + "/graphs"), scope="worker", max_body=MAX_BODY, errors=(NotFound, Fenced), repeatable=True
    )
    async def record(
        self, held: Lease, steps: GraphSteps, events: Events = (), after: After | None = None
    ) -> Annotated[int, under("seq", int, "LastEvent")]:
        """Store the work of a run's graph, with events; return the number of the last event.

        `after` works as in `append`.
        """
        new = encode_steps(check_states(steps), held.thread_id, events)
        call = RecordSteps(check_lease(held), new, check_sent(events), after)
        rows = 1 + len(events) + len(steps.changes.puts) + len(steps.changes.writes)
        (answer,) = await self._each(self._record_batch, [call], rows=rows)
        return or_raise(get_last(answer))

    async def _record_batch(self, calls: Sequence[RecordSteps]) -> Sequence[Any]:
        return self._offered(await self.write(graph_operations.record_steps, calls))

    @call(POST(WORK + "/graphs/find"), scope="worker", repeatable=True)
    async def find_graphs(
        self, held: Lease, query: CheckpointQuery
    ) -> Annotated[list[GraphTuple], under("found", list[GraphTuple], "FoundGraphs")]:
        """Find checkpoints of the graphs of a run's thread, the newest first."""
        return await find_graphs(self, replace(query, thread_id=check_lease(held).thread_id))

    @call(POST(WORK + "/graphs/deltas"), scope="worker", repeatable=True)
    async def find_deltas(
        self, held: Lease, query: GraphDeltaQuery
    ) -> Annotated[list[GraphDelta], under("found", list[GraphDelta], "FoundDeltas")]:
        """Get the stored changes of a checkpoint's channels, from the checkpoint's ancestors."""
        return await find_deltas(self, replace(query, thread_id=check_lease(held).thread_id))

    @call(POST(WORK + "/items"), scope="worker", max_body=MAX_BODY, repeatable=True)
    async def do_items(
        self, ops: Annotated[Sequence[ItemOp], Meta(max_length=MAX_BATCH)]
    ) -> list[ItemResult]:
        """Read and change many items at once, for the agents of a worker."""
        return await self.items.run(ops)

    @call(
        POST(WORK + "/steps"), scope="worker", max_body=MAX_BODY, errors=(NotFound, Fenced), repeatable=True
    )
    async def keep(
        self,
        held: Lease,
        origin: str,
        name: Annotated[str, Meta(min_length=1, max_length=1024)],
        body: str,
        events: Events = (),
        after: After | None = None,
        within: Annotated[str, Meta(max_length=1024)] | None = None,
    ) -> Acknowledged:
        """Store the result of a step, for later attempts of this run and for runs that resume it.

        `events` were emitted before the step and are not stored yet. `after` is the number of the event
        before them. With it, a later attempt learns the position of the step in the stream. `within` is the
        step that called this one: once that step is saved, no attempt asks for this one.
        """
        check_id(origin, "origin")
        check_text(name, "the name of a step")
        check_text(body, "the result of a step", max_length=MAX_TEXT)
        optional_text(within, "within")
        call = SaveStep(check_lease(held), origin, name, body, check_sent(events), after, within)
        size = len(body) + sum(len(event.body) for event in events)
        (answer,) = await self._each(self._keep_batch, [call], rows=1 + len(events), size=size)
        or_raise(answer)

    async def _keep_batch(self, calls: Sequence[SaveStep]) -> Sequence[Any]:
        return self._offered(await self.write(execute.keep_steps, calls))

    @call(POST(WORK + "/events/find"), scope="worker", repeatable=True)
    async def emitted(
        self, held: Lease, after: After, limit: Annotated[int, Meta(ge=0, le=MAX_BATCH)] = 100
    ) -> Annotated[list[NewEvent], under("events", list[NewEvent], "EmittedEvents")]:
        """Get the events of a run's stream after a number: up to `limit` events or about 1 MiB."""
        page = await self.read(
            read_stream, check_lease(held).run_id, after, limit, False, PAGE_BYTES, resolve
        )
        return [NewEvent(event.event, event.body) for event in page.events]

    @call(POST(WORK + "/sessions"), scope="worker", max_body=MAX_BODY, repeatable=True)
    async def log_all(
        self, logs: Annotated[Sequence[SessionLines], Meta(max_length=MAX_BATCH)]
    ) -> Annotated[list[int | PerdureError], APPENDED]:
        """Append lines to the sessions of runs. Each item has its own answer: the position after its lines.

        Lines that this attempt has already written are skipped.
        """
        size = sum(len(line) for log in check_session_lines(logs) for line in log.lines)
        return [*await self._each(self._log_batch, logs, rows=len(logs), size=size)]

    @call(POST(WORK + "/usage"), scope="worker", repeatable=True)
    async def report_usage(
        self, reports: Annotated[Sequence[UsageReport], Meta(max_length=MAX_BATCH)]
    ) -> Annotated[list[int | PerdureError], APPENDED]:
        """Store the usage of phases' attempts so far. Each item has its own answer, 0 for success."""
        answers = await self._each(self._usage_batch, check_usage(reports), rows=len(reports))
        return [answer if isinstance(answer, PerdureError) else 0 for answer in answers]

    async def _usage_batch(self, reports: Sequence[UsageReport]) -> Sequence[PerdureError | None]:
        return await self.write(record_usage, reports)

    async def _log_batch(self, calls: Sequence[SessionLines]) -> Sequence[int | PerdureError]:
        fenced = await self.write(enter_sessions, calls)
        write = partial(write_lines, self.log, self.storage.signals, await self.ns())
        return await asyncio.gather(*map(write, calls, fenced))

    # --- the end ------------------------------------------------------------------------------------------

    async def finish(self, ending: Ending) -> Run:
        """End an attempt. A repeated call changes nothing."""
        (answer,) = await self.finish_all([ending])
        return or_raise(answer)

    @call(POST(WORK + "/finish"), scope="worker", max_body=MAX_BODY, repeatable=True)
    async def finish_all(
        self, endings: Annotated[Sequence[Ending], Meta(max_length=MAX_BATCH)]
    ) -> Annotated[list[Run | PerdureError], ENDED]:
        """End attempts. Each item has its own answer, and a repeated call changes nothing."""
        for ending in endings:
            check_sent(ending.events)
            if ending.graph is not None:
                check_states(ending.graph)
        answers = await self._finish([encode_finish(ending) for ending in endings])
        self._redis_markers.released([answer.run_id for answer in answers if isinstance(answer, Finished)])
        return [await self._get_run(answer) for answer in answers]

    async def _finish(self, endings: Sequence[RunFinish]) -> Sequence[Finished | PerdureError]:
        """End attempts, and pass their ends to waiters in this process."""
        ns = await self.ns("write")
        size = sum(len(event.body) for ending in endings for event in ending.events)
        done: Sequence[Finished | PerdureError | None] = [None] * len(endings)
        for ending in endings:
            self.local_completions.begin((ns, ending.held.run_id))
        try:
            answers = done = await self._each(self._finish_batch, endings, len(endings), size, GATHER_SECONDS)
        finally:
            for ending, end in zip(endings, done, strict=True):
                key = (ns, ending.held.run_id)
                self.local_completions.done(key, end if isinstance(end, Finished) else None)
        return answers

    async def _finish_batch(self, endings: Sequence[RunFinish]) -> Sequence[Any]:
        return self._offered(await self.write(finish.finish_runs, endings, self.kinds))

    async def _get_run(self, done: Finished | PerdureError) -> Run | PerdureError:
        if isinstance(done, PerdureError):
            return done
        if done.run is not None:
            return row_to_run(done.run)
        try:
            run, _ = await self.read_one(queries.get_ends, done.run_id)
        except NotFound:
            return Fenced(f"run {done.run_id} was removed while it was executed")
        return row_to_run(run)

    async def close(self) -> None:
        """Finish releasing claims that no worker took. The storage belongs to its opener."""
        await self.finish_releases()

    # --- merging ------------------------------------------------------------------------------------------

    async def _each(
        self,
        batch: Callable[[Sequence[Any]], Any],
        calls: Sequence[T],
        rows: int = 1,
        size: int = 0,
        gather: float = 0.0,
    ) -> Sequence[Any]:
        """Carry out calls, merged with concurrent ones. A call's own error is its answer."""

        async def together(lists: Sequence[Sequence[T]]) -> Sequence[Any]:
            answers = iter(await batch([call for part in lists for call in part]))
            return [[next(answers) for _ in part] for part in lists]

        if not calls:
            return []
        answers: Sequence[Any] = await self._merger.call(
            batch.__name__, together, calls, rows=rows, size=size, gather=gather
        )
        return answers

    def is_followed(self, held: Lease) -> bool | None:
        """Return whether the events of a run have readers; None if unknown readers may exist."""
        return self.streams.is_followed(self._number, held.run_id, thread_stream(held.thread_id))

    def _offered(self, answers: Sequence[Any]) -> Sequence[Any]:
        """Pass durable events to their readers in this process."""
        for answer in answers:
            placed = answer.placed if isinstance(answer, State | Finished) else answer
            if isinstance(placed, tuple) and self._number is not None:
                self.streams.offer(self._number, *placed)
        return answers
