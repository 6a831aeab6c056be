"""Operations on effects. `put` belongs into the transaction that makes an effect necessary, as its last lock.

Claiming and trimming reach over all namespaces; everything else is done in one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from perdure.access.operations import audit
from perdure.kernel.clock import to_micros, to_seconds
from perdure.kernel.errors import Conflict, NotFound
from perdure.kernel.ids import uuid
from perdure.kernel.storage.filters import Condition, where
from perdure.kernel.storage.port import Row, Tx
from perdure.outbox import model, sql
from perdure.outbox.model import DELIVERED, EFFECT, Effect, Outcome, Retries, State

OUTBOX_CHANNEL = "outbox"
"""Its keys are the names of consumers who have something to deliver."""
TRIM_ROWS = 500


class NewEffect(msgspec.Struct, frozen=True):
    """An effect that is to be put into the outbox."""

    consumer: str
    subject: str
    body: str
    """JSON for the consumer."""
    target: str | None = None
    """The URL where it goes, for whoever lists effects; its credentials are not kept here."""


class Claimed(NamedTuple):
    """An effect that is to be delivered now, and the namespace it is from."""

    ns: int
    effect: Effect


class Due(NamedTuple):
    """What a claim found. `looked` is how many were due; `wait` the seconds until the next one is."""

    claimed: list[Claimed]
    dead: int
    looked: int
    wait: float | None


async def put(tx: Tx, effects: Sequence[NewEffect]) -> list[str]:
    """Write effects that are due at once; returns their ids, which every try of them bears."""
    if not effects:
        return []
    ids = [uuid(tx.now, tx.ids) for _ in effects]
    status, now = EFFECT.start["put"], tx.now
    rows = [
        (tx.ns, id, new.consumer, new.subject, _target(new), status, 0, 0, 0, now, now, now, None, None)
        for id, new in zip(ids, effects, strict=True)
    ]
    bodies = [(tx.ns, id, new.body) for id, new in zip(ids, effects, strict=True)]
    await tx.write((sql.ADD_EFFECTS, rows), (sql.ADD_BODIES, bodies))
    _hint(tx, [new.consumer for new in effects])
    return ids


def _target(new: NewEffect) -> str | None:
    return None if new.target is None else model.mask_target(new.target)


def _hint(tx: Tx, consumers: Sequence[str]) -> None:
    for consumer in dict.fromkeys(consumers):
        tx.hint(OUTBOX_CHANNEL, consumer)


# --- delivery ---------------------------------------------------------------------------------------------


async def claim_due(tx: Tx, consumer: str, n: int, lease: float, retries: Retries) -> Due:
    """Take up to `n` effects that are due, of every namespace, for `lease` seconds.

    Whoever does not settle them by then counts as lost, and they come again.
    """
    rows = await tx.all(sql.CLAIM, consumer=consumer, n=n, until=tx.now + to_micros(lease))
    over: list[tuple[Any, ...]] = []
    live: list[Row] = []
    for row in rows:
        state = State(row[5], row[6], *row[11:14], *row[8:11])
        given_up = model.unanswered(state, retries, tx.now)
        if given_up is None:
            live.append(row)
        else:
            over.append((*given_up, row[0], row[1]))
    if over:
        await tx.update_many(sql.MOVE, sorted(over, key=lambda row: row[-2:]))
    return Due(await _with_bodies(tx, live), len(over), len(rows), await _wait(tx, consumer))


async def _with_bodies(tx: Tx, rows: Sequence[Row]) -> list[Claimed]:
    bodies: dict[tuple[int, str], str] = {}
    for ns, ids in _by_namespace(rows).items():
        bodies |= {(ns, row[0]): row[1] for row in await tx.all(sql.GET_BODIES, ns=ns, ids=ids)}
    claimed = [
        Claimed(int(row[0]), model.effect_from(tuple(row)[1:11], bodies.get((row[0], row[1]))))
        for row in rows
    ]
    return sorted(claimed, key=lambda each: each.effect.id)


async def _wait(tx: Tx, consumer: str) -> float | None:
    row = await tx.one(sql.NEXT_DUE, consumer=consumer)
    return None if row is None or row[0] is None else max(to_seconds(row[0] - tx.now), 0.0)


def _by_namespace(rows: Sequence[Row]) -> dict[int, list[str]]:
    ids: dict[int, list[str]] = {}
    for row in rows:
        ids.setdefault(int(row[0]), []).append(row[1])
    return ids


async def settle(tx: Tx, outcomes: Sequence[Outcome], retries: Retries) -> list[str | None]:
    """Write down what became of tries; each is answered with the status that it led to.

    None says that it changed nothing: it was settled before, or a later try has begun.
    """
    states = await _locked(tx, [outcome.id for outcome in outcomes])
    before = dict(states)
    answers: list[str | None] = []
    for outcome in outcomes:
        state = states.get(outcome.id)
        after = None if state is None else model.settled(state, outcome, retries, tx.now)
        answers.append(None if after is None or after == state else after.status)
        if after is not None:
            states[outcome.id] = after
    await _save(tx, before, states)
    return answers


async def _locked(tx: Tx, ids: Sequence[str]) -> dict[str, State]:
    rows = await tx.all(sql.LOCK_STATES, ids=sorted(set(ids)))
    return {row[0]: State(*tuple(row)[1:]) for row in rows}


async def _save(tx: Tx, before: Mapping[str, State], after: Mapping[str, State]) -> None:
    moved = [(*state, tx.ns, id) for id, state in after.items() if state != before[id]]
    if moved:
        await tx.update_many(sql.MOVE, moved)


async def retry(tx: Tx, ids: Sequence[str]) -> list[Effect | NotFound | Conflict]:
    """Make effects due now that wait or are dead, with all their tries before them again."""
    before = await _locked(tx, ids)
    movable = {id: state for id, state in before.items() if EFFECT.moves(state.status, "retried")}
    await _save(tx, before, {id: model.retried(state, tx.now) for id, state in movable.items()})
    rows = {row[0]: row for row in await tx.all(sql.GET_EFFECTS, ids=sorted(before))}
    _hint(tx, [rows[id][1] for id in movable])
    await audit(tx, "retry_effect", list(movable))
    return [_retried(id, rows.get(id), id in movable) for id in ids]


def _retried(id: str, row: Row | None, moved: bool) -> Effect | NotFound | Conflict:
    if row is None:
        return NotFound(f"Effect {id} not found")
    return (
        model.effect_from(row) if moved else Conflict(f"effect {id} is {row[4]}; there is nothing to retry")
    )


# --- reading ----------------------------------------------------------------------------------------------


async def get_effect(tx: Tx, id: str) -> Effect | None:
    """An effect with its body, or None."""
    rows = await tx.all(sql.GET_EFFECTS, ids=[id])
    if not rows:
        return None
    bodies = await tx.all(sql.GET_BODIES, ids=[id])
    return model.effect_from(rows[0], model.shown_body(bodies[0][1]) if bodies else None)


async def list_effects(
    tx: Tx, conditions: Sequence[Condition], limit: int, offset: int
) -> tuple[list[Effect], int]:
    """A page of effects without their bodies, the newest first, and how many there are in all."""
    clause = where(sql.EFFECT_FIELDS, conditions, "and")
    page, values = sql.LIST_EFFECTS.page(clause, sql.NEWEST_FIRST, limit, offset)
    rows = await tx.all(page, **values)
    total = await tx.one(sql.LIST_EFFECTS.count(clause), **clause.values)
    return [model.effect_from(row) for row in rows], total or 0


# --- retention --------------------------------------------------------------------------------------------


async def trim(tx: Tx, age: int, status: str = DELIVERED) -> int:
    """Drop some of the effects that ended so many microseconds ago; returns how many."""
    old = await tx.all(sql.OLD, status=status, before=tx.now - age, n=TRIM_ROWS)
    for ns, ids in _by_namespace(old).items():
        await tx.execute(sql.DROP_EFFECTS, ns=ns, ids=ids)
        await tx.execute(sql.DROP_BODIES, ns=ns, ids=ids)
    return len(old)
