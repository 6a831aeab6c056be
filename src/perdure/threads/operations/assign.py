"""Claims of runs, each with everything that its agent needs to start or continue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from perdure.assistants.model import AssistantRow
from perdure.assistants.operations import resolve
from perdure.kernel.storage.port import Operation, Tx
from perdure.rollouts import claim_sql
from perdure.rollouts.model import Kinds
from perdure.rollouts.operations import holds
from perdure.rollouts.operations.claim import Claim, begin_attempts, claim
from perdure.rollouts.operations.conditions import NOT_OVERDUE
from perdure.rollouts.operations.enqueue import ClaimAtOnce
from perdure.rollouts.operations.work import READY_CHANNEL, ready_key
from perdure.rollouts.rows import ClaimedRollout, ClaimedRow
from perdure.rollouts.tables import DUE, HELD, OVERDUE
from perdure.service.audit import audit
from perdure.service.conditions import requires
from perdure.service.idempotency import is_used, keyed_as
from perdure.streams.model import Head
from perdure.streams.operations import AppendedEvents, StreamAppend, append, heads
from perdure.threads import sql
from perdure.threads.kwargs import RunReferences, decode_references
from perdure.threads.model import AGENTS_QUEUE, RUN_KINDS, RUN_QUEUES
from perdure.threads.operations.settle import load_runs, load_threads, thread_stream
from perdure.threads.rows import (
    Created,
    CreatedRun,
    QueueAttemptRow,
    QueueRolloutRow,
    RunRow,
    RunStepRow,
    StateRow,
    ThreadRow,
    get_origin,
)

F = TypeVar("F", bound=Callable[..., Any])

FILL_ROWS = 500
_KINDS: Final[dict[str, str]] = dict(zip(RUN_QUEUES, RUN_KINDS, strict=True))
"""Kind of run in each queue."""
NO_RUNS: Final[Mapping[str, CreatedRun]] = MappingProxyType({})


class NewAttempt(NamedTuple):
    """Attempt that a claim started."""

    run_id: str
    attempt_id: str
    number: int


class ClaimedRun(NamedTuple):
    """Claimed run with the stored rows that its agent needs."""

    attempt: NewAttempt
    run: RunRow
    thread: ThreadRow | None
    assistant: AssistantRow | None
    state: StateRow | None
    """State to continue from."""
    origin: str
    """Run whose stored steps are reused."""
    steps: dict[str, str]
    saved_at: dict[str, int]
    """Steps that earlier attempts of this run saved, with the number of events in the stream at that time."""
    uncharged: int
    """Number of earlier attempts that do not count."""
    last_seq: int
    """Number of the last event in the run's stream."""
    begun: bool = False
    """True if that event announces the start of this attempt."""


Share = Sequence[Created[ClaimedRun | None] | Sequence[Any]]
"""Result of a claim; only ids under a reused idempotency key."""


class Drained(Exception):
    """Raised for a claim of a drained worker, which gets no runs."""


class WaitingClaimRequest(NamedTuple):
    """Waiting claim of a worker in this process, for runs of these agents."""

    claim: Claim
    agents: tuple[str, ...]
    actor: str | None
    """Caller in whose name the worker claims."""
    begins: bool = False
    """True if the worker understands `begun`, and then does not announce the start again."""


@requires(NOT_OVERDUE)
@keyed_as("claim_run")
async def claim_runs(
    tx: Tx,
    claims: Sequence[Claim],
    agents: Sequence[str],
    queues: Sequence[str],
    kinds: Kinds,
    created: Mapping[str, CreatedRun] = NO_RUNS,
) -> list[Any]:
    """Claim the next runs of these agents in these queues: a `Share` for each claim, or `Drained`.

    What the agents need is read in the same transaction, so that runs start one transaction sooner. Runs in
    `created` come from this transaction and are not read again.
    """
    answers = await claim(tx, claims, queues, [_KINDS[queue] for queue in queues], kinds, agents)
    return await _give(tx, claims, answers, created)


async def _give(
    tx: Tx,
    claims: Sequence[Claim],
    answers: Sequence[Sequence[ClaimedRollout]],
    created: Mapping[str, CreatedRun],
) -> list[Any]:
    views = [
        [(QueueRolloutRow(*rollout), QueueAttemptRow(*attempt)) for rollout, attempt in rows]
        for rows in answers
    ]
    shares = [[_new_attempt(*view) for view in rows] for rows in views]
    claimed = [attempt for share in shares for attempt in share]
    runs = {
        rollout.id: created[rollout.id].as_claimed(rollout)
        for rows in views
        for rollout, _ in rows
        if rollout.id in created
    }
    assigned = {run.attempt: run for run in await assignments(tx, claimed, runs)} if claimed else {}
    await audit(tx, "claim_run", [attempt.run_id + "/" + attempt.attempt_id for attempt in claimed])
    drained = {} if all(shares) else holds.held(await holds.holds(tx), holds.WORKER)
    return [
        Drained()
        if not share and request.worker_id in drained
        else [Created(attempt, assigned.get(attempt)) for attempt in share]
        for request, share in zip(claims, shares, strict=True)
    ]


@requires(NOT_OVERDUE)
async def claim_at_once(
    tx: Tx,
    requests: Sequence[WaitingClaimRequest],
    kinds: Kinds,
    operation: Operation[..., Sequence[Any]],
    *args: Any,
) -> tuple[Sequence[Any], Sequence[Share], Sequence[AppendedEvents]]:
    """Run an operation that creates runs, then claim for workers that wait in this process.

    A claim gets the first runs of the queue, which may be older than the created runs. A claim needs that the
    operation made runs of its agents ready. If the stream of a run already has readers, its first event is
    stored here, so that readers need not wait for a transaction of the worker.
    """
    taking = await _taking(tx, requests)
    answers = await operation(tx, *args, taking)
    created = {run.record.id: run for run in answers if isinstance(run, CreatedRun)}
    taken = [()] * len(requests) if taking is None else taking.taken
    shares = [
        await _claim_for(tx, request, kinds, created, rows)
        for request, rows in zip(requests, taken, strict=True)
    ]
    return answers, *await _begin(tx, requests, shares, created)


async def _taking(tx: Tx, requests: Sequence[WaitingClaimRequest]) -> ClaimAtOnce | None:
    """Build the claim of runs as they are created; None if older runs are ready or queues are held."""
    if await tx.probe(DUE) or await tx.probe(HELD):
        return None
    agents = sorted({agent for request in requests for agent in request.agents})
    terms = {"queues": [AGENTS_QUEUE], "agents": agents, "kinds": [_KINDS[AGENTS_QUEUE]]}
    if await tx.one(claim_sql.ANY_READY, **terms) is not None:
        return None
    return ClaimAtOnce(AGENTS_QUEUE, [(request.agents, request.claim.limit) for request in requests])


async def _begin(
    tx: Tx, requests: Sequence[WaitingClaimRequest], shares: Sequence[Share], new: Mapping[str, CreatedRun]
) -> tuple[Sequence[Share], Sequence[AppendedEvents]]:
    """Store the first events of runs, so that their workers need not; return the updated shares."""
    first: dict[str, StreamAppend] = {}
    for request, share in zip(requests, shares, strict=True):
        for run_id, _, number in share if request.begins else ():
            run = new.get(run_id)
            if run is not None and run.first is not None:
                into = thread_stream(run.thread.id)
                first[run_id] = StreamAppend(run_id, [run.first], number, into, thread_id=run.thread.id)
    if not first:
        return shares, ()
    placed = await append(tx, list(first.values()))
    return [[_begun(attempt, first) for attempt in share] for share in shares], [
        *zip(first.values(), placed, strict=True)
    ]


def _begun(attempt: Any, first: Mapping[str, StreamAppend]) -> Any:
    claimed = attempt.record
    if claimed is None or claimed.attempt.run_id not in first:
        return attempt
    return Created(attempt.ids, claimed._replace(begun=True, last_seq=1))


async def _claim_for(
    tx: Tx,
    request: WaitingClaimRequest,
    kinds: Kinds,
    created: Mapping[str, CreatedRun],
    taken: Sequence[ClaimedRow],
) -> Share:
    """Return the runs for a request: the runs already taken for it, otherwise the first runs of the queue."""
    keys = [ready_key(AGENTS_QUEUE, agent) for agent in request.agents]
    hinted = tx.take_hints(READY_CHANNEL, keys)
    if not hinted:
        return ()
    creator, tx.actor = tx.actor, request.actor
    try:
        if taken:
            names = [_KINDS[AGENTS_QUEUE]]
            begun = await begin_attempts(tx, [request.claim], taken, names, kinds, quietly=True)
            (share,) = await _give(tx, [request.claim], begun, created)
        else:
            (share,) = await claim_runs(tx, [request.claim], request.agents, [AGENTS_QUEUE], kinds, created)
    finally:
        tx.actor = creator
    left = tx.take_hints(READY_CHANNEL, keys)
    if isinstance(share, Drained) or not share or left or (taken and len(taken) < sum(hinted.values())):
        # There are more runs for other workers.
        for key, times in {**left, **hinted}.items():
            tx.hint(READY_CHANNEL, key, times)
    return () if isinstance(share, Drained) else share


async def may_claim(tx: Tx, agents: Sequence[str], queues: Sequence[str], key: str) -> bool:
    """Return whether a claim under a key can return runs: new runs, or the runs of an earlier call."""
    if await tx.probe(DUE) or await tx.probe(OVERDUE):
        return True
    terms = {"queues": list(queues), "agents": list(agents), "kinds": [_KINDS[queue] for queue in queues]}
    return await tx.one(claim_sql.ANY_READY, **terms) is not None or await is_used(tx, key)


async def fill_agents(tx: Tx) -> int:
    """Set the agent of waiting runs that an earlier release created without it, in each namespace.
    Return how many runs this batch changed."""
    rows = await tx.all(sql.FILL_AGENTS, n=FILL_ROWS)
    for row in rows:
        tx.hint(READY_CHANNEL, ready_key(row.queue, row.agent))
    return len(rows)


def _new_attempt(rollout: QueueRolloutRow, attempt: QueueAttemptRow) -> NewAttempt:
    return NewAttempt(rollout.id, attempt.id, attempt.sequence_id)


async def assignments(
    tx: Tx, claimed: Sequence[NewAttempt], created: Mapping[str, CreatedRun] = NO_RUNS
) -> list[ClaimedRun]:
    """Return everything about claimed runs. Runs whose rows were removed meanwhile are left out."""
    reading = _Reading(tx)
    await reading.load([attempt.run_id for attempt in claimed], created)
    return [reading.claimed(attempt) for attempt in claimed if attempt.run_id in reading.runs]


class _Reading:
    """Loader of everything that belongs to some runs, with few queries."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self.runs: dict[str, RunRow] = {}
        self._references: dict[str, RunReferences] = {}
        self._threads: dict[str, ThreadRow] = {}
        self._states: dict[tuple[str, str], StateRow] = {}
        self._assistants: dict[str, AssistantRow] = {}
        self._origins: dict[str, str] = {}
        self._steps: dict[str, list[RunStepRow]] = {}
        self._heads: dict[str, Head] = {}
        self._uncharged: dict[str, int] = {}

    async def load(self, run_ids: Sequence[str], created: Mapping[str, CreatedRun]) -> None:
        """Load everything about these runs, except what `created` already has."""
        tx = self._tx
        for new in created.values():
            self.runs[new.record.id] = new.record
            self._threads[new.thread.id] = new.thread
            self._assistants[new.record.assistant_id] = new.assistant
            self._references[new.record.id] = new.references
        unread = [run_id for run_id in run_ids if run_id not in created]
        if unread:
            loaded = await load_runs(tx, unread)
            self._references |= {run.id: decode_references(run.input) for run in loaded.values()}
            self.runs |= loaded
            self._threads |= await load_threads(tx, [run.thread_id for run in loaded.values()])
            self._assistants |= await resolve(tx, sorted({run.assistant_id for run in loaded.values()}))
        await self._load_states()
        self._origins = {run.id: self._origin(run) for run in self.runs.values()}
        retried = [run.id for run in self.runs.values() if run.attempts > 1]
        if retried:
            self._heads = await heads(tx, retried)
            rows = await tx.all(sql.UNCHARGED, ids=retried)
            self._uncharged = {row.name: row.total for row in rows}
        origins = [self._origins[run.id] for run in self.runs.values() if self._has_steps(run)]
        if origins:
            for step in await tx.all(sql.GET_STEPS, ids=origins):
                self._steps.setdefault(step.run_id, []).append(step)

    async def _load_states(self) -> None:
        wanted = [
            (run.thread_id, state) for run in self.runs.values() for state in self._candidates(run) if state
        ]
        if wanted:
            threads, states = map(list, zip(*wanted, strict=True))
            for row in await self._tx.all(sql.GET_CHECKPOINTS, thread_ids=threads, ids=states):
                self._states[row.thread_id, row.id] = row

    def _candidates(self, run: RunRow) -> tuple[str | None, str | None]:
        """Return the ids of the thread's latest state and of the requested state."""
        thread = self._threads.get(run.thread_id)
        return None if thread is None else thread.checkpoint_id, self._references[run.id].checkpoint_id

    def _state(self, run: RunRow) -> StateRow | None:
        """Return the state to continue from: the run's latest, the requested or the thread's latest state."""
        latest_id, asked = self._candidates(run)
        latest = self._states.get((run.thread_id, latest_id or ""))
        if asked is None or (latest is not None and latest.run_id == run.id):
            return latest
        return self._states.get((run.thread_id, asked))

    def _has_steps(self, run: RunRow) -> bool:
        return run.attempts > 1 or self._origins[run.id] != run.id

    def _origin(self, run: RunRow) -> str:
        """Return the run whose steps are reused: for an answer to an interrupt, the interrupted run."""
        state = self._state(run)
        if state is None or not self._references[run.id].resumes:
            return run.id
        return get_origin(state) or run.id

    def claimed(self, attempt: NewAttempt) -> ClaimedRun:
        run = self.runs[attempt.run_id]
        origin, head = self._origins[run.id], self._heads.get(run.id)
        steps = self._steps.get(origin, [])
        return ClaimedRun(
            attempt=attempt,
            run=run,
            thread=self._threads.get(run.thread_id),
            assistant=self._assistants.get(run.assistant_id),
            state=self._state(run),
            origin=origin,
            steps={step.name: step.body for step in steps},
            saved_at=_saved_at(steps, run.id),
            uncharged=self._uncharged.get(run.id, 0),
            last_seq=0 if head is None else head.last_seq,
        )


def _saved_at(steps: Sequence[RunStepRow], run_id: str) -> dict[str, int]:
    """Return the saved steps that the run asks for again: all except steps within a saved step."""
    saved = {step.name for step in steps}
    return {
        step.name: step.seq
        for step in steps
        if step.saved_by == run_id and step.seq is not None and step.within not in saved
    }
