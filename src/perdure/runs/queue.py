"""The runs of one namespace, as those who execute them see them."""

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
"""Where the methods of workers are reached."""
MAX_BODY = 32 << 20
"""How large a request of a worker may be: what agents write may be large."""
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
"""The number of the last event that the worker knows of: what it sends comes right after that, and once."""


class RunQueue(WatchedService):
    """What a worker needs. A write is `Fenced` once its attempt no longer holds the run.

    `over` gives it to a worker that has no database.
    """

    _process: str | None = None
    """The process of its workers, if that has the database open."""

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
        """The queue of the same namespace, whose streams and completions those of `threads` read."""
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
        """The same queue in the caller's namespace, writing in the caller's name."""
        sibling = super().acting_as(caller)
        sibling.items = self.items.acting_as(caller)
        return sibling

    def in_namespace(self, namespace: str) -> Self:
        """The same queue in another namespace of the database."""
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
        """Register a worker with its agents, how many runs it takes at once, and the queues it serves.

        Each agent gets its system assistant, but for those that are built in: they execute phases alone.
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
        """Sign a worker off: it claims no more, and does not count as alive."""
        check_id(worker_id, "worker_id")
        await self.write(workers.stop, worker_id)

    def start_timers(self) -> None:
        """Start to look for runs of earlier releases, which may still run beside this one."""
        self.storage.timers.every(FILL_SECONDS, self.fill_agents)

    async def fill_agents(self) -> None:
        """Write the agents of runs that an earlier release created, so that they can be claimed."""
        while await self.storage.background(assign.fill_agents):
            pass

    def in_this_process(self) -> Self:
        """The same queue for workers in this process: the next one to open its SQLite file knows them to be
        dead."""
        sibling = self.in_namespace(self.namespace)
        sibling._process = process_id()
        return sibling

    async def take_over(self) -> None:
        """End the leases of workers in the process that had this SQLite file open before, in every
        namespace: they are not waited for."""
        if self.storage.engine == "sqlite":
            while await self.storage.run(report.end_workers_elsewhere, process_id(), self.kinds):
                pass

    @call(POST(WORK + "/describe"), scope="worker", max_body=MAX_BODY, errors=(NotFound,), repeatable=True)
    async def describe(
        self, agents: Annotated[Sequence[AgentDescription], Meta(max_length=MAX_BATCH)]
    ) -> Acknowledged:
        """Store the schemas and drawings of agents, for servers without their code; the last call counts."""
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
        """Claim up to `limit` runs of these agents as soon as there is one; none after `wait` seconds.

        The runs of callers are in the queue `agents`, the phases of workflows in `workflows`; a phase comes
        with its input rendered. A repeated idempotency key gives the same runs.
        """
        with Claimer(self, worker_id, agents, queues, idempotency_key) as claimer:
            return await claimer.claim(limit) or await claimer.next(lambda: limit, wait) or []

    def claimer(self, worker_id: str, agents: Sequence[str], queues: Sequence[str]) -> Claimer | None:
        """What claims for a worker of this process; None if the queue is elsewhere."""
        return Claimer(self, worker_id, agents, queues, begins=True)

    async def claim_now(
        self, claim: Claim, agents: Sequence[str], queues: Sequence[str], key: str | None
    ) -> list[Assignment]:
        """Claim what is ready, merged with the claims of others; `Drained` if the worker gets nothing."""
        claimed: Share = await self.write_once(
            key,
            assign.claim_runs,
            claim,
            agents,
            queues,
            self.kinds,
            rows=claim.limit,
            # A caller with a key may ask again, so that nothing is released.
            undelivered=self.unclaimed if key is None else None,
        )
        return await self.assigned(claimed, queues)

    async def assigned(self, claimed: Share, queues: Sequence[str]) -> list[Assignment]:
        """What a worker gets of the runs that were claimed for it."""
        if all(isinstance(each, Created) for each in claimed):
            found = [each.record for each in claimed if isinstance(each, Created)]
            made = [build_assignment(each) for each in found if each is not None]
            made = await self._with_inputs(made) if WORKFLOWS_QUEUE in queues else made
        else:
            made = await self._assignments([NewAttempt(*each) for each in claimed])
        self._redis_markers.claimed(made)
        return made

    async def _assignments(self, claimed: Sequence[NewAttempt]) -> list[Assignment]:
        """The assignments of a claim whose first answer was lost."""
        try:
            found = [build_assignment(each) for each in await self.read(assign.assignments, claimed)]
        except BaseException:
            # Nobody else knows of this claim.
            self.unclaimed(claimed)
            raise
        return await self._with_inputs(found)

    async def _with_inputs(self, claimed: list[Assignment]) -> list[Assignment]:
        """The same with the inputs of phases rendered. One whose input cannot be made fails at once."""
        if self._inputs is None:
            return claimed
        try:
            ready, failed = await with_inputs(self._inputs, await self.ns(), claimed)
        except BaseException:
            self.unclaimed([NewAttempt(each.run.run_id, each.attempt_id, each.attempt) for each in claimed])
            raise
        if failed:
            await self._finish(failed)
        return ready

    def unclaimed(self, claimed: Sequence[Iterable[Any]]) -> None:
        """Release runs whose claimer was cancelled meanwhile."""
        if claimed:
            self.release_later(partial(self.release, claimed))

    async def release(self, claimed: Sequence[Iterable[Any]]) -> None:
        """Release runs that were claimed for one who is gone."""
        attempts = [NewAttempt(*each) for each in claimed]
        runs = await self.read(load_runs, [each.run_id for each in attempts])
        await self.hand_back(
            [
                Lease(each.run_id, runs[each.run_id].thread_id, each.attempt_id)
                for each in attempts
                if each.run_id in runs
            ]
        )

    @call(POST(WORK + "/release"), scope="worker", repeatable=True)
    async def hand_back(self, held: Leases) -> Acknowledged:
        """Release runs, uncharged and at their old place, so that another worker goes on at once."""
        if held:
            await self.write(finish.hand_back, tuple(map(check_lease, held)), self.kinds)
            self._redis_markers.released([each.run_id for each in held])

    # --- while a run is executed --------------------------------------------------------------------------

    @call(POST(WORK + "/renew"), scope="worker", repeatable=True)
    async def renew(
        self, worker_id: WorkerId, held: Leases
    ) -> Annotated[list[Verdict], under("verdicts", list[Verdict], "Verdicts")]:
        """Renew leases, and tell of each run, in their order, whether it goes on."""
        check_id(worker_id, "worker_id")
        verdicts = await self.write(execute.renew, worker_id, tuple(map(check_lease, held)))
        self._redis_markers.renewed(held, verdicts)
        return verdicts

    @call(POST(WORK + "/controls"), scope="worker", by_hand=True)
    async def controls(
        self, held: Leases, wait: Wait = 0.0
    ) -> Annotated[dict[str, Verdict], under("controls", dict[str, Verdict], "Controls")]:
        """Wait up to `wait` seconds for runs that are to stop; returns them with their verdicts."""
        ns = await self.ns()
        keys = [control_key(ns, each.run_id) for each in held]

        async def stopped(_: frozenset[str]) -> dict[str, Verdict]:
            verdicts = await self.read(execute.verdicts, tuple(map(check_lease, held)))
            return {each.run_id: v for each, v in zip(held, verdicts, strict=True) if v != "go"}

        return await until(self.storage.signals, CONTROL_CHANNEL, keys, stopped, timeout=wait)

    async def append(self, held: Lease, events: Sequence[NewEvent], after: int | None = None) -> int:
        """Append events to the stream of a run; returns the number of the last once they are durable.

        With `after`, the number of the event that they follow, a repeated call is not carried out again.
        """
        (answer,) = await self.append_all([RunAppend(held, events, after)])
        return or_raise(answer)

    @call(POST(WORK + "/events"), scope="worker", max_body=MAX_BODY, repeatable=True)
    async def append_all(
        self, appends: Annotated[Sequence[RunAppend], Meta(max_length=MAX_BATCH)]
    ) -> Annotated[list[int | PerdureError], APPENDED]:
        """Append events to the streams of runs; each item is answered by itself."""
        calls = [
            AppendEvents(check_lease(each.held), check_sent(each.events), each.after) for each in appends
        ]
        rows = sum(max(len(each.events), 1) for each in calls)
        size = sum(len(event.body) for each in calls for event in each.events)
        return [get_last(each) for each in await self._each(self._append_batch, calls, rows=rows, size=size)]

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
        """Store a state of a run's thread, with the events that tell of it."""
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
        """Store what the graph of a run has done, with events; returns the number of the last event.

        `after` is that of `append`.
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
        """Find what the ancestors of a checkpoint hold of channels that are stored as changes."""
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
        """Store the result of a step, for later attempts of this run and of those that resume it.

        `events` are those that were emitted before it and are not stored yet. `after` is the number of the
        event that they follow: with it, a later attempt is told where in the stream the step was saved.
        `within` is the step that called it: once that one is saved too, nobody asks for this one.
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
        """The events of a run's stream after a number, up to `limit` of them or about 1 MiB."""
        page = await self.read(
            read_stream, check_lease(held).run_id, after, limit, False, PAGE_BYTES, resolve
        )
        return [NewEvent(each.event, each.body) for each in page.events]

    @call(POST(WORK + "/sessions"), scope="worker", max_body=MAX_BODY, repeatable=True)
    async def log_all(
        self, logs: Annotated[Sequence[SessionLines], Meta(max_length=MAX_BATCH)]
    ) -> Annotated[list[int | PerdureError], APPENDED]:
        """Append lines to the sessions of runs; each item is answered by itself, with the place after it.

        A line whose number the session has of the attempt already is not written again.
        """
        size = sum(len(line) for each in check_session_lines(logs) for line in each.lines)
        return [*await self._each(self._log_batch, logs, rows=len(logs), size=size)]

    @call(POST(WORK + "/usage"), scope="worker", repeatable=True)
    async def report_usage(
        self, reports: Annotated[Sequence[UsageReport], Meta(max_length=MAX_BATCH)]
    ) -> Annotated[list[int | PerdureError], APPENDED]:
        """Store what attempts of phases have taken so far; each item is answered by itself, with 0."""
        answers = await self._each(self._usage_batch, check_usage(reports), rows=len(reports))
        return [each if isinstance(each, PerdureError) else 0 for each in answers]

    async def _usage_batch(self, reports: Sequence[UsageReport]) -> Sequence[PerdureError | None]:
        return await self.write(record_usage, reports)

    async def _log_batch(self, calls: Sequence[SessionLines]) -> Sequence[int | PerdureError]:
        fenced = await self.write(enter_sessions, calls)
        write = partial(write_lines, self.log, self.storage.signals, await self.ns())
        return await asyncio.gather(*map(write, calls, fenced))

    # --- the end ------------------------------------------------------------------------------------------

    async def finish(self, ending: Ending) -> Run:
        """End an attempt. Doing it twice does it once."""
        (answer,) = await self.finish_all([ending])
        return or_raise(answer)

    @call(POST(WORK + "/finish"), scope="worker", max_body=MAX_BODY, repeatable=True)
    async def finish_all(
        self, endings: Annotated[Sequence[Ending], Meta(max_length=MAX_BATCH)]
    ) -> Annotated[list[Run | PerdureError], ENDED]:
        """End attempts; each is answered by itself, and doing it twice does it once."""
        for ending in endings:
            check_sent(ending.events)
            if ending.graph is not None:
                check_states(ending.graph)
        found = await self._finish([encode_finish(ending) for ending in endings])
        self._redis_markers.released([each.run_id for each in found if isinstance(each, Finished)])
        return [await self._run_of(each) for each in found]

    async def _finish(self, endings: Sequence[RunFinish]) -> Sequence[Finished | PerdureError]:
        """End attempts, and hand their ends to those who wait in this process."""
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

    async def _run_of(self, done: Finished | PerdureError) -> Run | PerdureError:
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
        """Finish releasing claims that nobody took. The storage belongs to its opener."""
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
        """Carry out calls, merged with those of others; an error that is one call's own is its answer."""

        async def together(lists: Sequence[Sequence[T]]) -> Sequence[Any]:
            answers = iter(await batch([call for each in lists for call in each]))
            return [[next(answers) for _ in each] for each in lists]

        if not calls:
            return []
        answers: Sequence[Any] = await self._merger.call(
            batch.__name__, together, calls, rows=rows, size=size, gather=gather
        )
        return answers

    def is_followed(self, held: Lease) -> bool | None:
        """Whether somebody reads the events of a run; None if others may do so that are not known here."""
        return self.streams.is_followed(self._number, held.run_id, thread_stream(held.thread_id))

    def _offered(self, answers: Sequence[Any]) -> Sequence[Any]:
        """Hand what is durable to its readers in this process."""
        for answer in answers:
            placed = answer.placed if isinstance(answer, State | Finished) else answer
            if isinstance(placed, tuple) and self._number is not None:
                self.streams.offer(self._number, *placed)
        return answers
