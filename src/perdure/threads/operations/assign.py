"""Claiming runs, each with everything that its agent needs to begin or to go on."""

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
from perdure.rollouts.operations.conditions import watched
from perdure.rollouts.operations.enqueue import ClaimAtOnce
from perdure.rollouts.operations.work import READY_CHANNEL, ready_key
from perdure.rollouts.rows import ClaimedRollout, ClaimedRow
from perdure.rollouts.tables import DUE, HELD, OVERDUE
from perdure.service.audit import audit
from perdure.service.idempotency import is_used, keyed_as
from perdure.streams.model import Head
from perdure.streams.operations import AppendedEvents, StreamAppend, append, heads
from perdure.threads import sql
from perdure.threads.model import AGENTS_QUEUE, RUN_KINDS, RUN_QUEUES
from perdure.threads.operations.settle import load_runs, load_threads, thread_stream
from perdure.threads.rows import (
    Created,
    CreatedRun,
    QueueAttemptRow,
    QueueRolloutRow,
    RunReferences,
    RunRow,
    RunStepRow,
    StateRow,
    ThreadRow,
    get_origin,
    get_references,
)

F = TypeVar("F", bound=Callable[..., Any])

FILL_ROWS = 500
_KINDS: Final[dict[str, str]] = dict(zip(RUN_QUEUES, RUN_KINDS, strict=True))
"""What is claimed from each queue."""
NOTHING_KNOWN: Final[Mapping[str, CreatedRun]] = MappingProxyType({})


class NewAttempt(NamedTuple):
    """An attempt that a claim has begun."""

    run_id: str
    attempt_id: str
    number: int


class ClaimedRun(NamedTuple):
    """A claimed run with what its agent needs, as it is stored."""

    attempt: NewAttempt
    run: RunRow
    thread: ThreadRow | None
    assistant: AssistantRow | None
    state: StateRow | None
    """The state to go on from."""
    origin: str
    """The run whose steps count."""
    steps: dict[str, str]
    saved_at: dict[str, int]
    """Which of them earlier attempts of this run saved, and how many events its stream had then."""
    uncharged: int
    """How many earlier attempts do not count."""
    last_seq: int
    """The number of the last event in the run's stream."""
    begun: bool = False
    """Whether that is the one which tells that this attempt has begun."""


Share = Sequence[Created[ClaimedRun | None] | Sequence[Any]]
"""What a claim has got; under a key that was used before, ids alone."""


class Drained(Exception):
    """The worker of a claim is drained, and gets nothing."""


class WaitingClaimRequest(NamedTuple):
    """A claim of a worker of this process that waits for runs of these agents."""

    claim: Claim
    agents: tuple[str, ...]
    actor: str | None
    """In whose name the worker claims."""
    begins: bool = False
    """Whether it knows that a run may have `begun`, and does not tell so again."""


@watched
@keyed_as("claim_run")
async def claim_runs(
    tx: Tx,
    claims: Sequence[Claim],
    agents: Sequence[str],
    queues: Sequence[str],
    kinds: Kinds,
    known: Mapping[str, CreatedRun] = NOTHING_KNOWN,
) -> list[Any]:
    """Give each claim its `Share`, the next runs of these agents in these queues, or `Drained`.

    What a run needs is read here, so that it begins one transaction sooner; not what is known of one that
    this transaction has created.
    """
    answers = await claim(tx, claims, queues, [_KINDS[queue] for queue in queues], kinds, agents)
    return await _give(tx, claims, answers, known)


async def _give(
    tx: Tx,
    claims: Sequence[Claim],
    answers: Sequence[Sequence[ClaimedRollout]],
    known: Mapping[str, CreatedRun],
) -> list[Any]:
    views = [
        [(QueueRolloutRow(*rollout), QueueAttemptRow(*attempt)) for rollout, attempt in each]
        for each in answers
    ]
    shares = [[_new_attempt(*pair) for pair in each] for each in views]
    claimed = [each for share in shares for each in share]
    runs = {
        rollout.id: known[rollout.id].as_claimed(rollout)
        for each in views
        for rollout, _ in each
        if rollout.id in known
    }
    found = {each.attempt: each for each in await assignments(tx, claimed, runs)} if claimed else {}
    await audit(tx, "claim_run", [each.run_id + "/" + each.attempt_id for each in claimed])
    drained = {} if all(shares) else holds.held(await holds.holds(tx), holds.WORKER)
    return [
        Drained()
        if not share and each.worker_id in drained
        else [Created(new, found.get(new)) for new in share]
        for each, share in zip(claims, shares, strict=True)
    ]


def claims_at_once(operation: F) -> F:
    """Mark an operation that creates runs, after which `claim_at_once` claims in the same transaction."""
    operation.claims_at_once = True  # type: ignore[attr-defined]
    return operation


async def claim_at_once(
    tx: Tx,
    wishes: Sequence[WaitingClaimRequest],
    kinds: Kinds,
    operation: Operation[..., Sequence[Any]],
    *args: Any,
) -> tuple[Sequence[Any], Sequence[Share], Sequence[AppendedEvents]]:
    """Run an operation that creates runs, and then claim for those who wait in this process.

    Each gets what is first in the queue, as by any claim: that may be older runs than those that were
    created. It is asked only if the operation made runs of its agents ready. Those whose streams are read
    already begin here, so that their readers need not wait for a transaction of the worker.
    """
    taking = await _taking(tx, wishes)
    answers = await operation(tx, *args, taking)
    known = {each.record.id: each for each in answers if isinstance(each, CreatedRun)}
    taken = [()] * len(wishes) if taking is None else taking.taken
    shares = [
        await _claim_for(tx, wish, kinds, known, rows) for wish, rows in zip(wishes, taken, strict=True)
    ]
    return answers, *await _begin(tx, wishes, shares, known)


async def _taking(tx: Tx, wishes: Sequence[WaitingClaimRequest]) -> ClaimAtOnce | None:
    """What takes the runs as they are created; None if others are ready, which come first, or are held."""
    if await tx.probe(DUE) or await tx.probe(HELD):
        return None
    agents = sorted({agent for wish in wishes for agent in wish.agents})
    terms = {"queues": [AGENTS_QUEUE], "agents": agents, "kinds": [_KINDS[AGENTS_QUEUE]]}
    if await tx.one(claim_sql.ANY_READY, **terms) is not None:
        return None
    return ClaimAtOnce(AGENTS_QUEUE, [(wish.agents, wish.claim.limit) for wish in wishes])


async def _begin(
    tx: Tx, wishes: Sequence[WaitingClaimRequest], shares: Sequence[Share], known: Mapping[str, CreatedRun]
) -> tuple[Sequence[Share], Sequence[AppendedEvents]]:
    """Store the first events of runs whose workers need not do so; gives the shares with those begun."""
    first: dict[str, StreamAppend] = {}
    for wish, share in zip(wishes, shares, strict=True):
        for run_id, _, number in share if wish.begins else ():
            made = known.get(run_id)
            if made is not None and made.first is not None:
                into = thread_stream(made.thread.id)
                first[run_id] = StreamAppend(run_id, [made.first], number, into, thread_id=made.thread.id)
    if not first:
        return shares, ()
    placed = await append(tx, list(first.values()))
    return [[_begun(each, first) for each in share] for share in shares], [
        *zip(first.values(), placed, strict=True)
    ]


def _begun(each: Any, first: Mapping[str, StreamAppend]) -> Any:
    claimed = each.record
    if claimed is None or claimed.attempt.run_id not in first:
        return each
    return Created(each.ids, claimed._replace(begun=True, last_seq=1))


async def _claim_for(
    tx: Tx,
    wish: WaitingClaimRequest,
    kinds: Kinds,
    known: Mapping[str, CreatedRun],
    taken: Sequence[ClaimedRow],
) -> Share:
    """What a wish gets: those that it has taken, or else what is first in the queue."""
    keys = [ready_key(AGENTS_QUEUE, agent) for agent in wish.agents]
    hinted = tx.take_hints(READY_CHANNEL, keys)
    if not hinted:
        return ()
    creator, tx.actor = tx.actor, wish.actor
    try:
        if taken:
            names = [_KINDS[AGENTS_QUEUE]]
            begun = await begin_attempts(tx, [wish.claim], taken, names, kinds, quietly=True)
            (share,) = await _give(tx, [wish.claim], begun, known)
        else:
            (share,) = await claim_runs(tx, [wish.claim], wish.agents, [AGENTS_QUEUE], kinds, known)
    finally:
        tx.actor = creator
    left = tx.take_hints(READY_CHANNEL, keys)
    if isinstance(share, Drained) or not share or left or (taken and len(taken) < sum(hinted.values())):
        # There is work for others.
        for key, times in {**left, **hinted}.items():
            tx.hint(READY_CHANNEL, key, times)
    return () if isinstance(share, Drained) else share


async def may_claim(tx: Tx, agents: Sequence[str], queues: Sequence[str], key: str) -> bool:
    """Whether a claim under a key might find something: runs, or what it found before."""
    if await tx.probe(DUE) or await tx.probe(OVERDUE):
        return True
    terms = {"queues": list(queues), "agents": list(agents), "kinds": [_KINDS[queue] for queue in queues]}
    return await tx.one(claim_sql.ANY_READY, **terms) is not None or await is_used(tx, key)


async def fill_agents(tx: Tx) -> int:
    """Write the agent of waiting runs that an earlier release created without it, some at a time, in every
    namespace. Gives how many there were."""
    rows = await tx.all(sql.FILL_AGENTS, n=FILL_ROWS)
    for row in rows:
        tx.hint(READY_CHANNEL, ready_key(row.queue, row.agent))
    return len(rows)


def _new_attempt(rollout: QueueRolloutRow, attempt: QueueAttemptRow) -> NewAttempt:
    return NewAttempt(rollout.id, attempt.id, attempt.sequence_id)


async def assignments(
    tx: Tx, claimed: Sequence[NewAttempt], known: Mapping[str, CreatedRun] = NOTHING_KNOWN
) -> list[ClaimedRun]:
    """Everything about claimed runs; one whose row was removed meanwhile is left out."""
    reading = _Reading(tx)
    await reading.load([each.run_id for each in claimed], known)
    return [reading.claimed(each) for each in claimed if each.run_id in reading.runs]


class _Reading:
    """What belongs to some runs, read with a few queries for all of them."""

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

    async def load(self, run_ids: Sequence[str], known: Mapping[str, CreatedRun]) -> None:
        """Read everything of these runs, but for what is known of some of them."""
        tx = self._tx
        for made in known.values():
            self.runs[made.record.id] = made.record
            self._threads[made.thread.id] = made.thread
            self._assistants[made.record.assistant_id] = made.assistant
        unread = [run_id for run_id in run_ids if run_id not in known]
        if unread:
            read = await load_runs(tx, unread)
            self.runs |= read
            self._threads |= await load_threads(tx, [run.thread_id for run in read.values()])
            self._assistants |= await resolve(tx, sorted({run.assistant_id for run in read.values()}))
        self._references = {run.id: get_references(run) for run in self.runs.values()}
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
        """The thread's state, and the one that was asked for."""
        thread = self._threads.get(run.thread_id)
        return None if thread is None else thread.checkpoint_id, self._references[run.id].checkpoint_id

    def _state(self, run: RunRow) -> StateRow | None:
        """The state to go on from: the run's own latest, or the one that was asked for, or the thread's."""
        latest_id, asked = self._candidates(run)
        latest = self._states.get((run.thread_id, latest_id or ""))
        if asked is None or (latest is not None and latest.run_id == run.id):
            return latest
        return self._states.get((run.thread_id, asked))

    def _has_steps(self, run: RunRow) -> bool:
        return run.attempts > 1 or self._origins[run.id] != run.id

    def _origin(self, run: RunRow) -> str:
        """The run whose steps count: with an answer to an interrupt, the one that asked."""
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
    """The steps that this run saved and asks for again: not those within a step that is saved."""
    saved = {step.name for step in steps}
    return {
        step.name: step.seq
        for step in steps
        if step.saved_by == run_id and step.seq is not None and step.within not in saved
    }
