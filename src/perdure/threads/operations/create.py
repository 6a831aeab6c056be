"""Creation of runs, and of their threads if needed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from perdure.assistants.model import AssistantRow
from perdure.assistants.operations import resolve
from perdure.kernel import changes, ids
from perdure.kernel.errors import Conflict, NotFound, PerdureError
from perdure.kernel.storage.labels import put_labels
from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import Kinds
from perdure.rollouts.operations.conditions import NOT_OVERDUE
from perdure.rollouts.operations.enqueue import ClaimAtOnce, NewRollout, enqueue
from perdure.rollouts.operations.lines import lock_lines
from perdure.rollouts.operations.report import save_all
from perdure.rollouts.operations.work import LockedRollouts
from perdure.rollouts.operations.workers import WorkerChanges
from perdure.service.audit import audit
from perdure.service.conditions import requires
from perdure.service.idempotency import keyed_as
from perdure.streams.model import NewEvent
from perdure.threads import sql
from perdure.threads.inheritance import Inheritance, inherit
from perdure.threads.kwargs import NO_REFERENCES, RunReferences
from perdure.threads.model import AGENTS_QUEUE, OF_PHASES, RUN, SINGLE, TEMPORARY
from perdure.threads.operations.cancel import end_now
from perdure.threads.operations.lifetimes import set_lifetimes
from perdure.threads.operations.remove import THREAD, purge_threads
from perdure.threads.operations.settle import load_threads
from perdure.threads.records import CancelAction, Lifetime, MultitaskStrategy, OnCompletion
from perdure.threads.rows import (
    Created,
    CreatedRun,
    QueueRolloutRow,
    RunRow,
    ThreadRow,
    new_thread_row,
)

_STOPPING: dict[MultitaskStrategy, CancelAction] = {"interrupt": "interrupt", "rollback": "rollback"}


def missing_assistant(name: str) -> str:
    """Return the message about an assistant that does not exist."""
    return f"Assistant {name} not found"


class NewRun(msgspec.Struct, frozen=True):
    """Run to create, with its bodies encoded."""

    thread_id: str | None
    assistant: str
    kwargs: str
    metadata: str
    config: str
    strategy: MultitaskStrategy
    make_thread: bool
    delay: int
    on_disconnect: str
    on_completion: OnCompletion | None
    webhook: str | None
    priority: int
    grace: int
    checkpoint_id: str | None = None
    inherits: bool = False
    """True to merge the run's metadata over its assistant's and its thread's."""
    lifetime: Lifetime | None = None
    """Lifetime of a thread that is created for the run and kept."""
    run_id: str | None = None
    """ID of the run, if its stream already has readers."""
    first: NewEvent | None = None
    """First event of that stream, stored if the run is claimed in the same transaction."""
    trace_id: str | None = None
    """Trace of the caller."""
    references: RunReferences = NO_REFERENCES


@requires(NOT_OVERDUE)
@keyed_as("create_run")
async def create_runs(
    tx: Tx, requests: Sequence[NewRun], kinds: Kinds, taking: ClaimAtOnce | None = None
) -> list[Created[RunRow] | PerdureError]:
    """Create each run or return its error. An answer has the run's ID, and the whole run if it is new.

    Requests for the same thread are processed in order, and each sees the effects of the earlier ones.
    """
    answers = await _create(tx, requests, kinds, taking)
    await audit(tx, "create_run", [answer.record.id for answer in answers if isinstance(answer, Created)])
    return answers


async def _create(
    tx: Tx, requests: Sequence[NewRun], kinds: Kinds, taking: ClaimAtOnce | None = None
) -> list[Created[RunRow] | PerdureError]:
    creation = _Creation(tx, kinds, taking)
    await creation.prepare(requests)
    rest = list(range(len(requests)))
    while rest:
        taken, rest = _split_by_thread(requests, rest)
        if rest:
            # A later request may stop the run of an earlier request, which therefore must not be claimed yet.
            creation.taking = None
        await creation.round([(number, requests[number]) for number in taken])
    await creation.tidy()
    return [creation.answers[number] for number in range(len(requests))]


@requires(NOT_OVERDUE)
async def create_all(tx: Tx, requests: Sequence[NewRun], kinds: Kinds) -> list[Created[RunRow]]:
    """Create all of the runs, or none."""
    answers = await _create(tx, requests, kinds)
    for answer in answers:
        if isinstance(answer, PerdureError):
            raise answer
    created = [answer for answer in answers if isinstance(answer, Created)]
    await audit(tx, "create_run", [run.record.id for run in created])
    return created


def _split_by_thread(requests: Sequence[NewRun], numbers: Sequence[int]) -> tuple[list[int], list[int]]:
    taken: list[int] = []
    later: list[int] = []
    seen: set[str] = set()
    for number in numbers:
        thread_id = requests[number].thread_id
        (later if thread_id in seen else taken).append(number)
        if thread_id is not None:
            seen.add(thread_id)
    return taken, later


class _Creation:
    """Creation of runs in one transaction, which has locked the lines of their threads."""

    def __init__(self, tx: Tx, kinds: Kinds, taking: ClaimAtOnce | None) -> None:
        self._tx = tx
        self._kinds = kinds
        self.taking = taking
        self.answers: dict[int, Created[RunRow] | PerdureError] = {}
        self._assistants: dict[str, AssistantRow] = {}
        self._threads: dict[str, ThreadRow] = {}
        self._states: set[tuple[str, str]] = set()
        self._unknown: set[str] = set()
        self._gone: set[str] = set()
        self._holders: dict[str, str | None] = {}
        """Holders of the locked lines."""
        self._made = 0

    async def prepare(self, requests: Sequence[NewRun]) -> None:
        tx = self._tx
        self._assistants = await resolve(tx, sorted({request.assistant for request in requests}))
        named = sorted({r.thread_id for r in requests if r.thread_id is not None})
        if named:
            self._holders = await lock_lines(tx, named)
            self._threads = await load_threads(tx, named, lock=True)
        self._gone = {thread.id for thread in self._threads.values() if thread.is_gone}
        for thread_id in self._gone:
            del self._threads[thread_id]
        asked = [
            (r.thread_id, r.checkpoint_id)
            for r in requests
            if r.checkpoint_id is not None and r.thread_id in self._threads
        ]
        if asked:
            threads, ids = map(list, zip(*asked, strict=True))
            rows = await tx.all(sql.NEXT_OF, thread_ids=threads, ids=ids)
            self._states = {(row.thread_id, row.id) for row in rows}

    async def tidy(self) -> None:
        """Remove the lines that locking created for threads that do not exist."""
        if self._unknown:
            names = [thread_id for thread_id in self._unknown if thread_id not in self._threads]
            await self._tx.execute(sql.DROP_LINES, names=sorted(names))

    async def round(self, requests: Sequence[tuple[int, NewRun]]) -> None:
        """Create at most one run per thread."""
        tx = self._tx
        named = [r.thread_id for _, r in requests if r.thread_id is not None]
        live: dict[str, list[str]] = {}
        if named:
            for run in await tx.all(sql.LIVE_RUNS, thread_ids=named):
                live.setdefault(run.thread_id, []).append(run.id)
        accepted = [request for request in requests if not self._refused(*request, live)]
        await self._make_room(accepted)
        await self._stop_others(accepted, live)
        await self._add([(number, request, self._thread_for(request)) for number, request in accepted])

    async def _make_room(self, accepted: Sequence[tuple[int, NewRun]]) -> None:
        """Purge deleted threads whose IDs are used for new threads."""
        reused = [r.thread_id for _, r in accepted if r.thread_id is not None and r.thread_id in self._gone]
        if reused:
            await purge_threads(self._tx, reused)
            self._gone.difference_update(reused)
            self._holders = {}

    def _refused(self, number: int, request: NewRun, live: dict[str, list[str]]) -> bool:
        error = self._refusal(request, live.get(request.thread_id or "", []))
        if error is not None:
            self.answers[number] = error
        return error is not None

    def _refusal(self, request: NewRun, live: Sequence[str]) -> PerdureError | None:
        if request.assistant not in self._assistants:
            return NotFound(missing_assistant(request.assistant))
        thread_id = request.thread_id
        if thread_id is not None and thread_id not in self._threads:
            self._unknown.add(thread_id)
            if not request.make_thread:
                return NotFound(f"Thread {thread_id} not found")
        if thread_id in self._threads and self._threads[thread_id].temporary == OF_PHASES:
            return Conflict(f"Thread {thread_id} belongs to a workflow or a chat, and only they run on it")
        asked = request.checkpoint_id
        if asked is not None and (thread_id, asked) not in self._states:
            return NotFound(f"Checkpoint {asked} not found in thread {thread_id}")
        if live and request.strategy == "reject":
            return Conflict(
                f"Thread {thread_id} is busy with run {next(iter(live))}. Wait for it, or choose another "
                "multitask_strategy: enqueue, interrupt or rollback"
            )
        return None

    async def _stop_others(self, accepted: Sequence[tuple[int, NewRun]], live: dict[str, list[str]]) -> None:
        """End the live runs of a thread if the multitask strategy of a new run interrupts or rolls back."""
        stopping = {
            run_id: (_STOPPING[request.strategy], request.grace)
            for _, request in accepted
            if request.strategy in _STOPPING
            for run_id in live.get(request.thread_id or "", ())
        }
        if not stopping:
            return
        # Runs that wait behind the stopped ones may become ready.
        self.taking = None
        work = LockedRollouts(self._tx, self._kinds)
        await work.load(list(stopping), [RUN], lined=True)
        for run_id, (action, grace) in stopping.items():
            await end_now(work, work.rollout(run_id), action, grace)
        await save_all(work, WorkerChanges(self._tx), True)
        self._holders = {}
        self._threads.update(await load_threads(self._tx, list(self._threads)))

    def _thread_for(self, request: NewRun) -> ThreadRow:
        """Return the thread of a run: the existing one, or a new one."""
        tx = self._tx
        if request.thread_id is not None and request.thread_id in self._threads:
            return self._threads[request.thread_id]
        own = request.thread_id is None
        temporary = TEMPORARY if own and request.on_completion == "delete" else None
        single = SINGLE if own and request.on_completion != "keep" else None
        thread_id = request.thread_id or ids.uuid(tx.now, tx.ids)
        metadata = request.metadata if request.inherits else "{}"
        return new_thread_row(
            thread_id, tx.now, status="", temporary=temporary, single=single, config="{}", metadata=metadata
        )

    async def _add(self, accepted: Sequence[tuple[int, NewRun, ThreadRow]]) -> None:
        """Write the threads, rollouts and runs."""
        if not accepted:
            return
        tx = self._tx
        inherited = {
            thread.id: inherit(
                request.metadata,
                self._assistants[request.assistant],
                thread.metadata if thread.status else None,
            )
            for _, request, thread in accepted
            if request.inherits
        }
        rollouts = [self._rollout(request, thread, inherited) for _, request, thread in accepted]
        marked = await self._mark([thread for _, _, thread in accepted], inherited)
        queued = await enqueue(tx, rollouts, self._kinds, self._made, self._holders, self.taking)
        runs: list[RunRow] = []
        new: list[ThreadRow] = []
        busy: list[ThreadRow] = []
        await set_lifetimes(tx, _lifetimes(accepted))
        for (number, request, thread), rollout in zip(accepted, queued, strict=True):
            run = self._run_row(QueueRolloutRow(*rollout), request, thread)
            runs.append(run)
            assistant = self._assistants[request.assistant]
            self.answers[number] = CreatedRun(run, thread, assistant, request.references, request.first)
            self._made += 1
            (new if not thread.status else busy).append(thread)
            # The stopped run may just have deleted its own thread.
            thread.status, thread.updated_at, thread.gone_at = "busy", tx.now, None
            self._threads[thread.id] = thread
        await tx.defer(
            sql.ADD_RUNS.of(runs),
            sql.ADD_THREADS.of(new),
            sql.MOVE_THREADS.of([thread for thread in busy if thread.id not in marked]),
            sql.MARK_THREADS.of([thread for thread in busy if thread.id in marked]),
        )
        changes.tell(tx, "run", ((run.id, "pending") for run in runs))
        changes.tell(tx, "thread", ((thread.id, "busy") for _, _, thread in accepted))

    async def _mark(
        self, threads: Sequence[ThreadRow], inherited: Mapping[str, Inheritance]
    ) -> Collection[str]:
        """Label threads with the assistants that work on them; return the IDs of the changed threads."""
        labels: dict[str, Mapping[str, str]] = {}
        for thread in threads:
            merged = inherited.get(thread.id)
            if merged is not None and merged.marked is not None and thread.temporary is None:
                thread.metadata = merged.marked
                labels[thread.id] = merged.labels
        if labels:
            await put_labels(self._tx, THREAD, labels)
        return labels.keys()

    def _rollout(
        self, request: NewRun, thread: ThreadRow, inherited: Mapping[str, Inheritance]
    ) -> NewRollout:
        tx, assistant = self._tx, self._assistants[request.assistant]
        merged = inherited.get(thread.id)
        return NewRollout(
            input=request.kwargs,
            config=request.config,
            metadata=request.metadata if merged is None else merged.run,
            kind=RUN,
            queue=AGENTS_QUEUE,
            agent=assistant.agent,
            priority=request.priority,
            not_before=tx.wall + request.delay if request.delay else None,
            line=thread.id,
            rollout_id=request.run_id or ids.uuid(tx.now, tx.ids),
            trace_id=request.trace_id,
        )

    def _run_row(self, rollout: QueueRolloutRow, request: NewRun, thread: ThreadRow) -> RunRow:
        tx, assistant = self._tx, self._assistants[request.assistant]
        return RunRow(
            id=rollout.id,
            thread_id=thread.id,
            assistant_id=assistant.id,
            agent=assistant.agent,
            kind=RUN,
            parent=None,
            rollout_status=rollout.status,
            outcome=None,
            metadata=rollout.metadata,
            input=rollout.input,
            strategy=request.strategy,
            created_at=tx.now + request.delay + self._made,
            updated_at=tx.now,
            end_time=rollout.end_time,
            attempts=rollout.attempts,
            error=None,
            temporary=thread.temporary,
            on_disconnect=request.on_disconnect,
            on_completion=request.on_completion or "keep",
            webhook=request.webhook,
            gone_at=None,
            config=rollout.config,
            resources_id=rollout.resources_id,
            session_id=None,
        )


def _lifetimes(accepted: Sequence[tuple[int, NewRun, ThreadRow]]) -> dict[str, Lifetime]:
    """Return the lifetimes of new threads that are kept after their runs."""
    return {
        thread.id: request.lifetime
        for _, request, thread in accepted
        if request.lifetime is not None and not thread.status and thread.temporary is None
    }
