"""Putting rollouts into the queue, or starting them at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from perdure.access.operations import audit, keyed_as
from perdure.kernel import changes, ids
from perdure.kernel.errors import InvalidInput
from perdure.kernel.storage.dialect import Write
from perdure.kernel.storage.port import Row, Tx
from perdure.rollouts import sql
from perdure.rollouts.model import (
    DEFAULT_QUEUE,
    PREPARING,
    QUEUED,
    ROLLOUT,
    TASK,
    Kinds,
    deadline_of,
    limits_of,
)
from perdure.rollouts.operations.conditions import watched
from perdure.rollouts.operations.lines import holding, lock_lines
from perdure.rollouts.operations.work import READY_CHANNEL, counted
from perdure.rollouts.operations.workers import Workers


class NewRollout(msgspec.Struct, frozen=True):
    """What a caller asks for, with its bodies already encoded."""

    input: str
    config: str
    metadata: str
    mode: str | None = None
    resources_id: str | None = None
    kind: str = TASK
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    not_before: int | None = None
    line: str | None = None
    idempotency_key: str | None = None
    worker_id: str | None = None
    rollout_id: str | None = None
    attempt_id: str | None = None


@watched
async def enqueue_rollouts(tx: Tx, requests: Sequence[NewRollout], kinds: Kinds) -> list[Row]:
    """Queue each request for a caller."""
    rows = await enqueue(tx, requests, kinds)
    await audit(tx, "enqueue_rollout", [row[0] for row in rows])
    return rows


async def enqueue(
    tx: Tx,
    requests: Sequence[NewRollout],
    kinds: Kinds,
    first: int = 0,
    locked: dict[str, str | None] | None = None,
) -> list[Row]:
    """Queue each request, and answer it with its rollout as `ROLLOUT_VIEW` shows it.

    `first` is how many this transaction has queued before, `locked` the holders of lines that it has locked.
    A request whose idempotency key is known is answered with the rollout that came with it first.
    """
    known = await _known(tx, requests)
    latest = await _latest_resources(tx, requests)
    holders = {} if locked is None else locked
    holders.update(await _lines_of(tx, requests, holders))
    rows: list[tuple[Any, ...]] = []
    answers: list[Row] = []
    held: list[tuple[str, str | None, str | None]] = []
    for request in requests:
        answer = known.get(request.idempotency_key) if request.idempotency_key else None
        if answer is None:
            row = _row(tx, request, first + len(rows), latest, holders, kinds)
            rows.append(row)
            if request.line is not None and holders[request.line] is None and row[8] is not None:
                holders[request.line] = row[1]
                held.append((request.line, row[1], None))
            answer = _view(row)
            if request.idempotency_key:
                known[request.idempotency_key] = answer
        answers.append(answer)
    await tx.defer(holding(tx, held), (sql.ADD_ROLLOUTS, rows), _counted(tx, rows))
    return answers


async def _known(tx: Tx, requests: Sequence[NewRollout]) -> dict[str, Row]:
    keys = [request.idempotency_key for request in requests if request.idempotency_key]
    if not keys:
        return {}
    return {row[0]: tuple(row)[1:] for row in await tx.all(sql.BY_IDEMPOTENCY_KEY, keys=keys)}


async def _latest_resources(tx: Tx, requests: Sequence[NewRollout]) -> str | None:
    if all(request.resources_id is not None for request in requests):
        return None
    row = await tx.one(sql.LATEST_RESOURCES_ID)
    return row[0] if row else None


async def _lines_of(
    tx: Tx, requests: Sequence[NewRollout], known: Mapping[str, str | None]
) -> dict[str, str | None]:
    names = [line for request in requests if (line := request.line) is not None and line not in known]
    return await lock_lines(tx, names) if names else {}


def _row(
    tx: Tx,
    request: NewRollout,
    ordinal: int,
    latest: str | None,
    holders: dict[str, str | None],
    kinds: Kinds,
) -> tuple[Any, ...]:
    """A row of rollouts. Exactly one of ready, due_at and behind is set."""
    if request.kind not in kinds:
        raise InvalidInput(f"no such kind of rollout: {request.kind}")
    start = tx.now + ordinal
    position = start
    ready: int | None = start
    due_at: int | None = None
    behind: int | None = None
    if request.not_before is not None and request.not_before > start:
        position, ready, due_at = request.not_before + ordinal, None, request.not_before
    elif request.line is not None and holders[request.line] is not None:
        ready, behind = None, position
    resources_id = request.resources_id if request.resources_id is not None else latest
    return (
        tx.ns,
        request.rollout_id or ids.rollout_id(tx.ids),
        request.kind,
        request.queue,
        ROLLOUT.start["enqueued"],
        None,
        request.priority,
        position,
        ready,
        due_at,
        behind,
        request.line,
        None,
        0,
        request.mode,
        resources_id,
        start,
        None,
        request.idempotency_key,
        request.config,
        request.metadata,
        request.input,
    )


def _view(row: tuple[Any, ...]) -> Row:
    """The row in the shape of `ROLLOUT_VIEW`."""
    return (row[1], row[16], row[17], row[14], row[15], row[4], row[19], row[20], row[21], row[13])


def _counted(tx: Tx, rows: Sequence[tuple[Any, ...]]) -> Write:
    counts: dict[tuple[str, str], int] = {}
    for row in rows:
        counts[row[2], row[4]] = counts.get((row[2], row[4]), 0) + 1
        if row[4] in QUEUED:
            tx.hint(READY_CHANNEL, row[3])
    changes.tell(tx, "rollout", ((row[1], row[4]) for row in rows))
    return counted(tx, counts)


@watched
@keyed_as("start_rollout")
async def start_rollouts(tx: Tx, requests: Sequence[NewRollout], kinds: Kinds) -> list[tuple[Row, Row]]:
    """Make rollouts that bypass the queue, each with its first attempt; answers are (rollout, attempt)."""
    latest = await _latest_resources(tx, requests)
    rows: list[tuple[Any, ...]] = []
    attempts: list[tuple[Any, ...]] = []
    for request in requests:
        row = list(_row(tx, request, len(rows), latest, {}, kinds))
        row[4], row[8], row[9], row[13] = ROLLOUT.start["started"], None, None, 1
        rows.append(tuple(row))
        identity = (row[1], row[2], row[16], request.config)
        attempts.append(new_attempt(tx, identity, 1, request.worker_id, request.attempt_id))
    workers = Workers(tx)
    await workers.load([request.worker_id for request in requests])
    for request, attempt in zip(requests, attempts, strict=True):
        workers.claimed(request.worker_id, attempt[1], attempt[3], dequeued=False)
    made = ((sql.ADD_ROLLOUTS, rows), (sql.ADD_ATTEMPTS, attempts))
    await tx.write(*made, *workers.changed(), _counted(tx, rows))
    await audit(tx, "start_rollout", [attempt[1] + "/" + attempt[3] for attempt in attempts])
    return [(_view(row), attempt_view(attempt)) for row, attempt in zip(rows, attempts, strict=True)]


@watched
async def start_missing(tx: Tx, requests: Sequence[NewRollout], kinds: Kinds) -> list[tuple[Row, Row]]:
    """`start_rollouts` for requests that bring their ids along; what is there already stays as it is."""
    named = {request.rollout_id: request for request in requests}
    for row in await tx.all(sql.PRESENT, ids=sorted(str(name) for name in named)):
        del named[row[0]]
    return await start_rollouts(tx, list(named.values()), kinds) if named else []


def new_attempt(
    tx: Tx,
    rollout: tuple[str, str, int, str],
    sequence_id: int,
    worker_id: str | None,
    attempt_id: str | None = None,
) -> tuple[Any, ...]:
    """A row of attempts of (id, kind, birth, config), watched from now on if the config sets limits."""
    rollout_id, kind, born, config = rollout
    return (
        tx.ns,
        rollout_id,
        sequence_id,
        attempt_id or ids.attempt_id(tx.ids),
        PREPARING,
        tx.now,
        None,
        worker_id,
        None,
        deadline_of(limits_of(config), tx.now, None),
        None,
        1,
        kind,
        born,
        None,
    )


def attempt_view(attempt: tuple[Any, ...]) -> Row:
    """The row in the shape of `ATTEMPT_VIEW`."""
    return (*attempt[1:9], attempt[14])
