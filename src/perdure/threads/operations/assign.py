"""Claiming runs, each with everything that its agent needs to begin or to go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from perdure.access.operations import audit, keyed_as
from perdure.assistants.operations import resolve_decoded
from perdure.assistants.records import Assistant
from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import Kinds
from perdure.rollouts.operations.claim import Claim, claim
from perdure.rollouts.operations.conditions import watched
from perdure.rollouts.operations.work import READY_CHANNEL, ready_key
from perdure.streams.model import Head
from perdure.streams.operations import heads
from perdure.threads import sql
from perdure.threads.model import RUN_KINDS, RUN_QUEUES
from perdure.threads.operations.settle import load_runs, load_threads
from perdure.threads.rows import (
    AttemptView,
    Created,
    RolloutView,
    RunReferences,
    RunRow,
    StateRow,
    StepRow,
    ThreadRow,
    origin_of,
    references_of,
)

FILL_ROWS = 500
_KINDS: Final[dict[str, str]] = dict(zip(RUN_QUEUES, RUN_KINDS, strict=True))
"""What is claimed from each queue."""


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
    assistant: Assistant | None
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


@watched
@keyed_as("claim_run")
async def claim_runs(
    tx: Tx, claims: Sequence[Claim], agents: Sequence[str], queues: Sequence[str], kinds: Kinds
) -> list[list[Created[ClaimedRun | None]]]:
    """Give each claim the next runs of these agents in these queues.

    What a run needs is read here, so that it begins one transaction sooner.
    """
    shares = [
        [_new_attempt(RolloutView(*rollout), AttemptView(*attempt)) for rollout, attempt in share]
        for share in await claim(tx, claims, queues, [_KINDS[queue] for queue in queues], kinds, agents)
    ]
    claimed = [each for share in shares for each in share]
    found = {each.attempt: each for each in await assignments(tx, claimed)} if claimed else {}
    await audit(tx, "claim_run", [each.run_id + "/" + each.attempt_id for each in claimed])
    return [[Created(each, found.get(each)) for each in share] for share in shares]


async def fill_agents(tx: Tx) -> int:
    """Write the agent of waiting runs that an earlier release created without it, some at a time, in every
    namespace. Gives how many there were."""
    rows = await tx.all(sql.FILL_AGENTS, n=FILL_ROWS)
    for row in rows:
        tx.hint(READY_CHANNEL, ready_key(row.queue, row.agent))
    return len(rows)


def _new_attempt(rollout: RolloutView, attempt: AttemptView) -> NewAttempt:
    return NewAttempt(rollout.id, attempt.id, attempt.sequence_id)


async def assignments(tx: Tx, claimed: Sequence[NewAttempt]) -> list[ClaimedRun]:
    """Everything about claimed runs; one whose row was removed meanwhile is left out."""
    reading = _Reading(tx)
    await reading.load([each.run_id for each in claimed])
    return [reading.claimed(each) for each in claimed if each.run_id in reading.runs]


class _Reading:
    """What belongs to some runs, read with a few queries for all of them."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self.runs: dict[str, RunRow] = {}
        self._references: dict[str, RunReferences] = {}
        self._threads: dict[str, ThreadRow] = {}
        self._states: dict[tuple[str, str], StateRow] = {}
        self._assistants: dict[str, Assistant] = {}
        self._origins: dict[str, str] = {}
        self._steps: dict[str, list[StepRow]] = {}
        self._heads: dict[str, Head] = {}
        self._uncharged: dict[str, int] = {}

    async def load(self, run_ids: Sequence[str]) -> None:
        tx = self._tx
        self.runs = await load_runs(tx, run_ids)
        self._references = {run.id: references_of(run) for run in self.runs.values()}
        self._threads = await load_threads(tx, [run.thread_id for run in self.runs.values()])
        self._assistants = await resolve_decoded(tx, sorted({run.assistant_id for run in self.runs.values()}))
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
        return origin_of(state) or run.id

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


def _saved_at(steps: Sequence[StepRow], run_id: str) -> dict[str, int]:
    """The steps that this run saved and asks for again: not those within a step that is saved."""
    saved = {step.name for step in steps}
    return {
        step.name: step.seq
        for step in steps
        if step.saved_by == run_id and step.seq is not None and step.within not in saved
    }
