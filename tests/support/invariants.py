"""Rules that the stored rows keep in every state, in every order of calls, and after every interruption."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tests.support.run_invariants import broken_run_rules

from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import BUSY, ENDED, LIVE, QUEUED, compute_deadline, decode_limits
from perdure.threads.model import RUN_KINDS

FINAL = frozenset(RUN_KINDS)
"""Kinds with a final end: the executor of an ended one keeps its line until it has stopped."""

ROLLOUTS = statement(
    "SELECT id, kind, status, outcome, ready, due_at, behind, line, attempts, start_time, end_time, config"
    " FROM rollouts WHERE ns = :ns ORDER BY id"
)
ATTEMPTS = statement(
    "SELECT rollout_id, sequence_id, id, status, start_time, end_time, last_heartbeat_time, check_at"
    " FROM attempts WHERE ns = :ns ORDER BY rollout_id, sequence_id"
)
COUNTS = statement("SELECT kind, status, sum(total) FROM rollout_counts WHERE ns = :ns GROUP BY kind, status")
TOTALS = statement("SELECT name, sum(total) FROM rollout_totals WHERE ns = :ns GROUP BY name")
WORKERS = statement(
    "SELECT id, status, current_rollout_id, current_attempt_id, held FROM workers WHERE ns = :ns ORDER BY id"
)
COUNTERS = statement(
    "SELECT rollout_id, sequence, spans, bytes, evicted FROM span_counters WHERE ns = :ns ORDER BY rollout_id"
)
SPANS = statement(
    "SELECT rollout_id, count(*), sum(size), max(sequence_id) FROM spans WHERE ns = :ns GROUP BY rollout_id"
)
LINES = statement("SELECT line, holder, holder_attempt, release_by FROM lines WHERE ns = :ns ORDER BY line")


class StoredRollout(NamedTuple):
    id: str
    kind: str
    status: str
    outcome: str | None
    ready: int | None
    due_at: int | None
    behind: int | None
    line: str | None
    attempts: int
    start_time: int
    end_time: int | None
    config: str


class StoredAttempt(NamedTuple):
    rollout_id: str
    sequence_id: int
    id: str
    status: str
    start_time: int
    end_time: int | None
    last_heartbeat_time: int | None
    check_at: int | None


async def broken_rules(tx: Tx) -> list[str]:
    """Return the violated rules in the transaction's namespace."""
    rollouts = [StoredRollout(*row) for row in await tx.all(ROLLOUTS)]
    attempts: dict[str, list[StoredAttempt]] = {rollout.id: [] for rollout in rollouts}
    wrong: list[str] = []
    for row in await tx.all(ATTEMPTS):
        attempt = StoredAttempt(*row)
        if attempt.rollout_id in attempts:
            attempts[attempt.rollout_id].append(attempt)
        else:
            wrong.append(f"attempt {attempt.id} has no rollout")
    for rollout in rollouts:
        wrong += [f"{rollout.id} ({rollout.status}) {what}" for what in _of_rollout(rollout)]
        wrong += [f"{rollout.id}: {what}" for what in _of_attempts(rollout, attempts[rollout.id])]
    wrong += _of_counts(rollouts, await tx.all(COUNTS))
    wrong += _of_workers(await tx.all(WORKERS))
    spans = await tx.all(SPANS)
    wrong += _of_spans(await tx.all(COUNTERS), spans)
    wrong += _of_totals(sum(map(len, attempts.values())), spans, await tx.all(TOTALS))
    wrong += _of_lines(rollouts, attempts, await tx.all(LINES))
    wrong += await broken_run_rules(tx, {rollout.id: rollout for rollout in rollouts})
    return wrong


def _of_rollout(rollout: StoredRollout) -> Iterator[str]:
    flags = sum(flag is not None for flag in (rollout.ready, rollout.due_at, rollout.behind))
    if flags != (rollout.status in QUEUED):
        yield f"has {flags} places in the queue"
    ended = rollout.status in ENDED
    if (rollout.end_time is not None) != ended or (rollout.outcome is not None) != ended:
        yield f"has end_time {rollout.end_time} and outcome {rollout.outcome}"
    if rollout.behind is not None and rollout.line is None:
        yield "waits behind nothing"


def _of_attempts(rollout: StoredRollout, attempts: Sequence[StoredAttempt]) -> Iterator[str]:
    numbers = [attempt.sequence_id for attempt in attempts]
    if numbers != list(range(1, rollout.attempts + 1)):
        yield f"has attempts {numbers}, but counts {rollout.attempts}"
    if attempts:
        yield from _of_latest(rollout, attempts[-1])


def _of_latest(rollout: StoredRollout, latest: StoredAttempt) -> Iterator[str]:
    """A live attempt is checked by its deadline, an ended one not at all."""
    if _is_stopping(rollout, [latest]):
        if latest.check_at is None:
            yield f"attempt {latest.id} has all the time it wants to stop"
        return
    deadline = compute_deadline(decode_limits(rollout.config), latest.start_time, latest.last_heartbeat_time)
    watched = deadline is not None and latest.status in LIVE
    if watched != (latest.check_at is not None):
        yield f"attempt {latest.id} is {latest.status}, overdue at {deadline} and looked at {latest.check_at}"
    elif latest.check_at is not None and deadline is not None and latest.check_at > deadline:
        yield f"attempt {latest.id} is overdue at {deadline}, but looked at {latest.check_at}"


def _of_counts(rollouts: Sequence[StoredRollout], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    counted = {(kind, status): int(total) for kind, status, total in rows if int(total)}
    real = dict(Counter((rollout.kind, rollout.status) for rollout in rollouts))
    if counted != real:
        yield f"counts say {counted}, there are {real}"


def _of_totals(attempts: int, spans: Sequence[Sequence[Any]], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    counted = {name: int(total) for name, total in rows if int(total)}
    stored = {
        "attempts": attempts,
        "spans": sum(int(row[1]) for row in spans),
        "span_bytes": sum(int(row[2]) for row in spans),
    }
    real = {name: total for name, total in stored.items() if total}
    if counted != real:
        yield f"totals say {counted}, there are {real}"


def _of_workers(rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    for worker_id, status, rollout_id, attempt_id, runs in rows:
        held = (rollout_id is not None, attempt_id is not None)
        # The rollout that it claimed last may have ended before others that it still holds.
        has_others = status == BUSY and runs and not any(held)
        if held != ((status == BUSY),) * 2 and not has_others:
            yield f"worker {worker_id} is {status} and holds {rollout_id}, {attempt_id}"


def _of_spans(counters: Sequence[Sequence[Any]], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    stored = {row[0]: (int(row[1]), int(row[2]), int(row[3])) for row in rows}
    for rollout_id, sequence, spans, size, _ in counters:
        number, real, highest = stored.pop(rollout_id, (0, 0, 0))
        if (spans, size) != (number, real) or sequence < highest:
            told = f"{spans} spans of {size} bytes up to {sequence}"
            yield f"{rollout_id} counts {told}; there are {number} of {real} up to {highest}"
    for rollout_id in stored:
        yield f"{rollout_id} has spans and no counter"


def _is_stopping(rollout: StoredRollout, attempts: Sequence[StoredAttempt]) -> bool:
    """Return whether a worker still executes a finally ended rollout."""
    final = rollout.kind in FINAL and rollout.status in ENDED
    return final and bool(attempts) and attempts[-1].status in LIVE


def _holds(rollout: StoredRollout, attempts: Sequence[StoredAttempt]) -> bool:
    """Return whether a rollout must hold its line: it is ready, executing, to be retried or stopping."""
    waits = rollout.due_at is not None and rollout.attempts > 0
    return rollout.ready is not None or rollout.status in LIVE or waits or _is_stopping(rollout, attempts)


def _of_lines(
    rollouts: Sequence[StoredRollout],
    attempts: Mapping[str, Sequence[StoredAttempt]],
    rows: Sequence[Sequence[Any]],
) -> Iterator[str]:
    """Exactly the rollout that must hold a line holds it; no rollout waits in a free line."""
    holders: dict[str, str | None] = {row[0]: row[1] for row in rows}
    taken: dict[str, list[str]] = {line: [] for line in holders}
    for rollout in rollouts:
        if rollout.line is not None and _holds(rollout, attempts[rollout.id]):
            taken.setdefault(rollout.line, []).append(rollout.id)
        if rollout.behind is not None and holders.get(rollout.line or "") is None:
            yield f"{rollout.id} waits behind nobody in line {rollout.line}"
    for line, ids in taken.items():
        holder = holders.get(line)
        if ids != ([] if holder is None else [holder]):
            yield f"line {line} is held by {holder}; ready, executing, in back-off or stopping are {ids}"
    by_id = {rollout.id: rollout for rollout in rollouts}
    for line, holder, attempt_id, release_by in rows:
        if holder is not None and holder in by_id:
            known = _of_holder(by_id[holder], attempts[holder], attempt_id, release_by)
            yield from (f"line {line}, held by {holder}, {what}" for what in known)


def _of_holder(
    rollout: StoredRollout, attempts: Sequence[StoredAttempt], attempt_id: str | None, release_by: int | None
) -> Iterator[str]:
    """The attempt that holds a line executes; only one that must stop has a time."""
    if rollout.status in LIVE and rollout.kind in FINAL and attempts[-1].id != attempt_id:
        yield f"knows attempt {attempt_id}, and {attempts[-1].id} executes"
    stopping = _is_stopping(rollout, attempts)
    if (release_by is not None) != stopping or (stopping and release_by != attempts[-1].check_at):
        yield f"is released by {release_by}, and is stopping: {stopping}"
