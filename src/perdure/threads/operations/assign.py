"""Claiming runs, each with everything that its agent needs to begin or to go on."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.access.operations import audit, keyed_as
from perdure.assistants.operations import resolve
from perdure.assistants.records import Assistant
from perdure.kernel.codec import decode_json
from perdure.kernel.storage.port import Row, Tx
from perdure.rollouts.model import Kinds
from perdure.rollouts.operations.claim import Claim, claim
from perdure.rollouts.operations.conditions import watched
from perdure.streams.model import Head
from perdure.streams.operations import heads
from perdure.threads import sql
from perdure.threads.model import AGENTS_QUEUE, RUN, merged
from perdure.threads.operations.rows import Made, RunRow, ThreadRow, checkpoint_of, run_limits, run_of
from perdure.threads.operations.settle import load_runs, load_threads
from perdure.threads.records import Checkpoint
from perdure.threads.work import Assignment

ORIGIN = "origin"
"""Where the metadata of an interrupted state names the run whose steps count when it is resumed."""

Claimed = tuple[str, str, int]
"""A run's id, and the id and the number of its new attempt."""


@watched
@keyed_as("claim_run")
async def claim_runs(tx: Tx, claims: Sequence[Claim], kinds: Kinds) -> list[list[Made]]:
    """Give each claim the next runs of the queue: (run_id, attempt_id, its number), each with its assignment.

    What a run needs is read here, so that it begins one transaction sooner.
    """
    answers = await claim(tx, claims, AGENTS_QUEUE, RUN, kinds)
    shares = [[(rollout[0], attempt[2], attempt[1]) for rollout, attempt in share] for share in answers]
    claimed = [each for share in shares for each in share]
    found = {each.run.run_id: each for each in await assignments(tx, claimed)} if claimed else {}
    await audit(tx, "claim_run", [run_id + "/" + attempt_id for run_id, attempt_id, _ in claimed])
    return [[Made(each, found.get(each[0])) for each in share] for share in shares]


async def assignments(tx: Tx, claimed: Sequence[Claimed]) -> list[Assignment]:
    """Everything about claimed runs; one whose view is gone meanwhile is left out."""
    reading = _Reading(tx)
    await reading.load([run_id for run_id, _, _ in claimed])
    return [reading.assignment(*each) for each in claimed if each[0] in reading.runs]


class _Reading:
    """What belongs to some runs, read with a few questions for all of them."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self.runs: dict[str, RunRow] = {}
        self._threads: dict[str, ThreadRow] = {}
        self._states: dict[tuple[str, str], Row] = {}
        self._assistants: dict[str, Assistant] = {}
        self._steps: dict[str, dict[str, str]] = {}
        self._heads: dict[str, Head] = {}
        self._uncharged: dict[str, int] = {}

    async def load(self, run_ids: Sequence[str]) -> None:
        tx = self._tx
        self.runs = await load_runs(tx, run_ids)
        self._threads = await load_threads(tx, [run.thread_id for run in self.runs.values()])
        self._assistants = await resolve(tx, sorted({run.assistant_id for run in self.runs.values()}))
        await self._load_states()
        retried = [run.id for run in self.runs.values() if run.attempts > 1]
        if retried:
            self._heads = await heads(tx, retried)
            rows = await tx.all(sql.UNCHARGED, ids=retried)
            self._uncharged = {row[0]: int(row[1]) for row in rows}
        origins = [self._origin(run) for run in self.runs.values() if self._has_steps(run)]
        if origins:
            for run_id, name, body in await tx.all(sql.GET_STEPS, ids=origins):
                self._steps.setdefault(run_id, {})[name] = body

    async def _load_states(self) -> None:
        wanted = [
            (run.thread_id, state) for run in self.runs.values() for state in self._candidates(run) if state
        ]
        if wanted:
            threads, states = map(list, zip(*wanted, strict=True))
            for row in await self._tx.all(sql.GET_CHECKPOINTS, thread_ids=threads, ids=states):
                self._states[row[0], row[1]] = row

    def _candidates(self, run: RunRow) -> tuple[str | None, str | None]:
        """The thread's state, and the one that was asked for."""
        thread = self._threads.get(run.thread_id)
        return None if thread is None else thread.checkpoint_id, decode_json(run.input).get("checkpoint_id")

    def _state(self, run: RunRow) -> Row | None:
        """The state to go on from: the run's own latest, or the one that was asked for, or the thread's."""
        latest_id, asked = self._candidates(run)
        latest = self._states.get((run.thread_id, latest_id or ""))
        if asked is None or (latest is not None and latest[5] == run.id):
            return latest
        return self._states.get((run.thread_id, asked))

    def _has_steps(self, run: RunRow) -> bool:
        return run.attempts > 1 or self._origin(run) != run.id

    def _origin(self, run: RunRow) -> str:
        """The run whose steps count: with an answer to an interrupt, the one that asked."""
        state = self._state(run)
        command = decode_json(run.input).get("command") or {}
        if state is None or "resume" not in command:
            return run.id
        origin = decode_json(state[10]).get(ORIGIN)
        return origin if isinstance(origin, str) else run.id

    def assignment(self, run_id: str, attempt_id: str, attempt: int) -> Assignment:
        row = self.runs[run_id]
        run, thread = run_of(row), self._threads.get(row.thread_id)
        assistant = self._assistants.get(row.assistant_id)
        state = self._state(row)
        limits = run_limits(row)
        origin = self._origin(row)
        head = self._heads.get(run_id)
        config = merged(
            assistant.config if assistant else {},
            decode_json(thread.config) if thread else {},
            run.kwargs.config,
        )
        return Assignment(
            run=run,
            attempt_id=attempt_id,
            attempt=attempt,
            last_attempt=attempt - self._uncharged.get(run_id, 0) >= limits.max_attempts,
            config=config,
            context={**(assistant.context if assistant else {}), **(run.kwargs.context or {})},
            timeout_seconds=limits.run_timeout,
            lease_seconds=limits.unresponsive_seconds,
            origin=origin,
            checkpoint=_checkpoint(state),
            steps=self._steps.get(origin, {}),
            resources_id=row.resources_id,
            last_seq=0 if head is None else head.last_seq,
        )


def _checkpoint(state: Row | None) -> Checkpoint | None:
    return None if state is None else checkpoint_of(state)
