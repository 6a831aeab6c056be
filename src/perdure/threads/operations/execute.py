"""Operations of workers on runs. Every write is fenced by the attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from perdure.kernel import ids
from perdure.kernel.errors import Conflict, Fenced
from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import LIVE
from perdure.rollouts.operations import workers
from perdure.service.audit import audit
from perdure.streams.model import NewEvent, SentEvent
from perdure.streams.operations import AppendedEvents, StreamAppend, append, heads, sent_after
from perdure.threads import sql
from perdure.threads.model import INTERRUPT, ROLLBACK
from perdure.threads.operations.settle import load_threads, thread_stream
from perdure.threads.operations.shown import showing_graph, showing_state, stored_before
from perdure.threads.rows import (
    NOTHING_NEXT,
    LatestAttempt,
    LeasedAttempt,
    RunLineHolder,
    RunStepRow,
    StateRow,
    ThreadRow,
)
from perdure.threads.work import Lease, Verdict

_VERDICTS: Mapping[str | None, Verdict] = {INTERRUPT: "interrupt", ROLLBACK: "rollback"}


class Checked(msgspec.Struct, frozen=True):
    """Encoded checkpoint."""

    values: str
    next: str
    interrupts: str
    metadata: str
    state: bytes | None
    checkpoint_id: str | None
    parent_id: str | None
    shown: str | None = None
    """Values of a state without stored values, if known."""
    output: str | None = None
    """Names of the values that a run returns, if not all."""

    @property
    def is_unfinished(self) -> bool:
        """True if the state has next steps."""
        return self.next != NOTHING_NEXT


class HasLease(Protocol):
    """Call of a worker for a run that it holds."""

    @property
    def held(self) -> Lease: ...


class StreamAppends(HasLease, Protocol):
    """Call that appends events to the stream of a run."""

    @property
    def events(self) -> Sequence[NewEvent]: ...
    @property
    def after(self) -> int | None: ...


class AppendEvents(msgspec.Struct, frozen=True):
    """Events of a run. `after` is the number of the previous event, if the caller knows the number."""

    held: Lease
    events: Sequence[NewEvent]
    after: int | None = None


class SaveCheckpoint(msgspec.Struct, frozen=True):
    """State to store, with the events about it."""

    held: Lease
    checkpoint: Checked
    events: Sequence[NewEvent] = ()
    after: int | None = None
    """Set by callers that repeat a call after a lost answer: a state that exists is not stored again."""


class SaveStep(msgspec.Struct, frozen=True):
    """Result of a step, with the events emitted before it."""

    held: Lease
    origin: str
    name: str
    body: str
    events: Sequence[NewEvent] = ()
    after: int | None = None
    within: str | None = None

    @property
    def seq(self) -> int | None:
        """Number of the last event before the step, if the caller knows it."""
        return None if self.after is None else self.after + len(self.events)


async def fence(tx: Tx, holders: Sequence[Lease]) -> dict[Lease, int | Fenced]:
    """Lock the lines of these leases. Return the number of each attempt that still holds its run."""
    wanted = sorted({held.thread_id for held in holders})
    lines = {row.line: row for row in await tx.all(sql.LOCK_HOLDERS, names=wanted)}
    rows = await tx.all(sql.RUN_STATUSES, ids=sorted({held.run_id for held in holders}))
    runs = {row.id: row for row in rows}
    answers: dict[Lease, int | Fenced] = {}
    for held in holders:
        run = runs.get(held.run_id)
        holder = RunLineHolder(held.thread_id, held.run_id, held.attempt_id)
        if run is not None and run.status in LIVE and lines.get(held.thread_id) == holder:
            answers[held] = run.attempts
        else:
            answers[held] = lost_lease(held)
    return answers


def lost_lease(held: Lease) -> Fenced:
    """Build the error for an attempt that no longer holds its run."""
    return Fenced(f"attempt {held.attempt_id} no longer holds run {held.run_id}; stop")


async def append_events(
    tx: Tx, calls: Sequence[AppendEvents]
) -> list[AppendedEvents | int | Fenced | Conflict]:
    """Append events of runs. A repeated call gets the number of its last event."""
    return await _append_fenced(tx, calls, await fence(tx, [call.held for call in calls]))


async def _append_fenced(
    tx: Tx, calls: Sequence[StreamAppends], fenced: Mapping[Lease, int | Fenced]
) -> list[AppendedEvents | int | Fenced | Conflict]:
    streams = await load_streams(tx, calls)
    stored = await stored_before(tx, [(call.held, call.events) for call in calls])
    answers: list[AppendedEvents | int | Fenced | Conflict] = []
    appends: list[tuple[int, StreamAppend]] = []
    for number, call in enumerate(calls):
        attempt = fenced[call.held]
        answer = attempt if isinstance(attempt, Fenced) else streams.answer(call, attempt)
        if answer is None and isinstance(attempt, int):
            events = showing_graph(call.events, stored.get(call.held.run_id, set()))
            appends.append((number, build_append(call.held, attempt, events)))
            streams.add(call, attempt)
        answers.append(0 if answer is None else answer)
    await append_all(tx, appends, answers)
    return answers


async def append_all(tx: Tx, appends: Sequence[tuple[int, StreamAppend]], answers: list[Any]) -> None:
    """Append events, and write each append with its position into `answers`."""
    if appends:
        places = await append(tx, [new for _, new in appends])
        for (number, new), place in zip(appends, places, strict=True):
            answers[number] = (new, place)


class RunStreams:
    """Streams of runs, for workers that number their events. Repeated calls are recognized."""

    def __init__(self, places: Mapping[str, int], stored: Mapping[tuple[str, int], SentEvent]) -> None:
        self._places = dict(places)
        self._events = dict(stored)

    def place(self, run_id: str) -> int:
        """Return the number of the last event."""
        return self._places.get(run_id, 0)

    def answer(self, call: StreamAppends, attempt: int) -> int | Conflict | None:
        """Answer a call that was carried out before, or whose `after` does not match; None for a new call."""
        last = self.place(call.held.run_id)
        if call.after is None or call.after == last:
            return None
        if last == call.after + len(call.events) and self._holds(call, call.after, attempt):
            return last
        return Conflict(f"the stream of run {call.held.run_id} is at {last}, not at {call.after}")

    def _holds(self, call: StreamAppends, after: int, attempt: int) -> bool:
        """Return whether the stream has exactly the events of the call, written by this attempt."""
        return all(
            _is_sent(attempt, event, self._events.get((call.held.run_id, seq)))
            for seq, event in enumerate(call.events, after + 1)
        )

    def add(self, call: StreamAppends, attempt: int) -> None:
        """Count the events of a call that is carried out."""
        run_id = call.held.run_id
        first = self.place(run_id) + 1
        for seq, event in enumerate(call.events, first):
            self._events[run_id, seq] = SentEvent(seq, attempt, event.event, event.body)
        self._places[run_id] = first + len(call.events) - 1


def _is_sent(attempt: int, event: NewEvent, stored: SentEvent | None) -> bool:
    """Return whether an event equals the stored one; the data of a reference is not compared."""
    if stored is None or (stored.attempt, stored.event) != (attempt, event.event):
        return False
    return event.shown is not None or stored.body == event.body


async def load_streams(tx: Tx, calls: Sequence[StreamAppends]) -> RunStreams:
    """Load the last numbers of streams, and the events that repeated calls may have stored."""
    numbered = [(call, call.after) for call in calls if call.after is not None]
    if not numbered:
        return RunStreams({}, {})
    last = await heads(tx, [call.held.run_id for call, _ in numbered])
    places = {name: head.last_seq for name, head in last.items()}
    stored: dict[tuple[str, int], SentEvent] = {}
    for call, after in numbered:
        run_id = call.held.run_id
        if call.events and places.get(run_id) == after + len(call.events):
            stored |= {(run_id, sent.seq): sent for sent in await sent_after(tx, run_id, after)}
    return RunStreams(places, stored)


def build_append(held: Lease, attempt: int, events: Sequence[NewEvent]) -> StreamAppend:
    return StreamAppend(
        held.run_id,
        events,
        attempt=attempt,
        into=thread_stream(held.thread_id),
        thread_id=held.thread_id,
    )


class State(msgspec.Struct, frozen=True):
    """Stored state: its row, and its appended events."""

    row: StateRow
    placed: AppendedEvents | None


async def save_checkpoints(tx: Tx, calls: Sequence[SaveCheckpoint]) -> list[State | Fenced | Conflict]:
    """Store states of threads, with the events about them."""
    fenced = await fence(tx, [call.held for call in calls])
    threads = await load_threads(tx, [call.held.thread_id for call in calls], lock=True)
    states = await known_states(tx, [(call.held, call.checkpoint) for call in calls])
    answers: list[State | Fenced | Conflict] = []
    rows: list[StateRow] = []
    appends: list[tuple[int, StreamAppend]] = []
    places: list[AppendedEvents | None] = [None] * len(calls)
    for number, call in enumerate(calls):
        attempt = fenced[call.held]
        if isinstance(attempt, Fenced):
            answers.append(attempt)
            continue
        state = states.get((call.held.thread_id, call.checkpoint.checkpoint_id))
        if state is not None:
            again = call.after is not None and (state.run_id, state.attempt) == (call.held.run_id, attempt)
            answers.append(State(state, None) if again else taken(call.held, call.checkpoint))
            continue
        row = new_state(tx, threads[call.held.thread_id], call.checkpoint, call.held.run_id, attempt)
        rows.append(row)
        states[row.thread_id, row.id] = row
        if call.events:
            events = showing_state(call.events, call.checkpoint.values, row.id)
            appends.append((number, build_append(call.held, attempt, events)))
        answers.append(State(row, None))
    await append_all(tx, appends, places)
    await tx.write(sql.ADD_CHECKPOINTS.of(rows), sql.MOVE_THREADS.of(list(threads.values())))
    await audit(tx, "save_checkpoint", not_refused(calls, answers))
    return [
        State(answer.row, place) if isinstance(answer, State) else answer
        for answer, place in zip(answers, places, strict=True)
    ]


def not_refused(calls: Sequence[HasLease], answers: Sequence[Any]) -> list[str]:
    """Return the names of the leases whose calls were carried out, for the audit log."""
    done = zip(calls, answers, strict=True)
    return [call.held.name for call, answer in done if not isinstance(answer, Exception)]


Known = dict[tuple[str, str | None], StateRow]
"""States by thread and ID."""


async def known_states(tx: Tx, new: Sequence[tuple[Lease, Checked | None]]) -> Known:
    """Return the states that already exist under the IDs of new states."""
    named = [(held, state) for held, state in new if state is not None and state.checkpoint_id is not None]
    if not named:
        return {}
    threads, ids = [held.thread_id for held, _ in named], [state.checkpoint_id for _, state in named]
    rows = await tx.all(sql.GET_CHECKPOINTS, thread_ids=threads, ids=ids)
    return {(row.thread_id, row.id): row for row in rows}


def taken(held: Lease, state: Checked) -> Conflict:
    return Conflict(f"Checkpoint {state.checkpoint_id} exists already in thread {held.thread_id}")


def new_state(
    tx: Tx, thread: ThreadRow, checkpoint: Checked, run_id: str | None, attempt: int | None
) -> StateRow:
    """Build the row of a checkpoint, and make it the thread's latest state."""
    row = StateRow(
        thread_id=thread.id,
        id=checkpoint.checkpoint_id or ids.uuid(tx.now, tx.ids),
        position=max(tx.now, thread.state_at + 1),
        step=thread.steps,
        parent_id=checkpoint.parent_id or thread.checkpoint_id,
        run_id=run_id,
        attempt=attempt,
        created_at=tx.now,
        next=checkpoint.next,
        interrupts=checkpoint.interrupts,
        metadata=checkpoint.metadata,
        body=checkpoint.values,
        state=checkpoint.state,
        output=checkpoint.output,
    )
    thread.checkpoint_id, thread.state_at, thread.updated_at = row.id, row.position, tx.now
    thread.steps += 1
    return row


async def keep_steps(tx: Tx, calls: Sequence[SaveStep]) -> list[AppendedEvents | int | Fenced | Conflict]:
    """Store the results of steps, with events. Existing results stay unchanged."""
    fenced = await fence(tx, [call.held for call in calls])
    with_events = [call for call in calls if call.events]
    appended = iter(await _append_fenced(tx, with_events, fenced) if with_events else ())
    answers = [next(appended) if call.events else fenced[call.held] for call in calls]
    rows = [
        RunStepRow(call.origin, call.name, attempt, call.body, call.held.run_id, call.seq, call.within)
        for call, answer in zip(calls, answers, strict=True)
        if isinstance(attempt := fenced[call.held], int) and not isinstance(answer, Conflict)
    ]
    first = {(row.run_id, row.name): row for row in reversed(rows)}
    await tx.write(sql.KEEP_STEPS.of(list(first.values())))
    await audit(tx, "keep_step", not_refused(calls, answers))
    return answers


async def renew(tx: Tx, worker_id: str, holders: Sequence[Lease]) -> list[Verdict]:
    """Renew leases that still hold, and return whether each run continues."""
    run_ids = sorted({held.run_id for held in holders})
    latest = {row.rollout_id: row for row in await tx.all(sql.LOCK_ATTEMPTS, ids=run_ids)}
    runs = {row.id: row for row in await tx.all(sql.RUN_STATUSES, ids=run_ids)}
    verdicts: list[Verdict] = []
    renewed: list[LeasedAttempt] = []
    for held in holders:
        attempt, run = latest.get(held.run_id), runs.get(held.run_id)
        if attempt is None or run is None:
            verdicts.append("lost")
            continue
        verdict = _verdict(held, attempt, run.status, run.outcome)
        verdicts.append(verdict)
        if verdict == "go":
            attempt.last_heartbeat_time = tx.now
            renewed.append(attempt)
    await tx.write(sql.RENEW_ATTEMPTS.of(renewed))
    await workers.beat(tx, [workers.Beat(worker_id, None)])
    return verdicts


def _verdict(
    held: Lease, attempt: LeasedAttempt | LatestAttempt, run_status: str, outcome: str | None
) -> Verdict:
    if attempt.id != held.attempt_id or attempt.status not in LIVE:
        return "lost"
    return "go" if run_status in LIVE else _VERDICTS.get(outcome, "lost")


async def verdicts(tx: Tx, holders: Sequence[Lease]) -> list[Verdict]:
    """Return whether each run continues, without a renewal."""
    rows = await tx.all(sql.LATEST_ATTEMPTS, ids=sorted({held.run_id for held in holders}))
    latest = {row.rollout_id: row for row in rows}
    answers: list[Verdict] = []
    for held in holders:
        row = latest.get(held.run_id)
        answers.append("lost" if row is None else _verdict(held, row, row.rollout_status, row.outcome))
    return answers
