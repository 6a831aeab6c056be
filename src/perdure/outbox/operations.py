"""Operations on effects. `put` runs in the transaction that requires an effect, as its last lock.

Claims and trims work on all namespaces; all others on one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from perdure.kernel import changes
from perdure.kernel.clock import to_micros, to_seconds
from perdure.kernel.cursors import Place
from perdure.kernel.errors import Conflict, NotFound
from perdure.kernel.ids import uuid
from perdure.kernel.storage.dialect import Statement
from perdure.kernel.storage.filters import FilterCondition, Listing, where
from perdure.kernel.storage.port import Tx
from perdure.outbox import model, sql
from perdure.outbox.model import (
    COMPLETED,
    DEAD,
    DELIVERED,
    EFFECT,
    FAILED,
    PENDING,
    PROCESSING,
    WAITING,
    DeliveryOutcome,
    Effect,
    EffectBodyRow,
    EffectKey,
    EffectRow,
    EffectState,
    Retries,
)
from perdure.service.audit import audit

KIND: Final = "effect"
OUTBOX_CHANNEL = "outbox"
"""Channel of hints; a key is the name of a consumer with due effects."""
TRIM_ROWS = 500
RETRY_ROWS = 500
"""Number of dead effects retried in one transaction."""


class NewEffect(msgspec.Struct, frozen=True):
    """An effect to put into the outbox."""

    consumer: str
    subject: str
    body: str
    """JSON for the consumer."""
    target: str | None = None
    """Destination URL for lists, which is stored without its credentials."""


class ClaimedEffect(NamedTuple):
    """An effect to deliver now, and its namespace."""

    ns: int
    effect: Effect


class DueEffects(NamedTuple):
    """Result of a claim: `looked` is the number of due effects, `wait` the seconds until the next one."""

    claimed: list[ClaimedEffect]
    dead: int
    looked: int
    wait: float | None


class EffectClaims(NamedTuple):
    """Statements that claim a part of a consumer's effects."""

    claim: Statement[EffectRow]
    next_due: Statement[int]


ALL = EffectClaims(sql.CLAIM, sql.NEXT_DUE)
NEW = EffectClaims(sql.CLAIM_NEW, sql.NEXT_NEW)
"""Effects without a try."""
AGAIN = EffectClaims(sql.CLAIM_AGAIN, sql.NEXT_AGAIN)
"""Effects with an earlier try."""

_LISTS: Final[Mapping[EffectState | None, tuple[Listing[EffectRow], Mapping[str, Any]]]] = {
    None: (sql.LIST_EFFECTS, {}),
    WAITING: (sql.LIST_WAITING, {"open": PENDING}),
    PROCESSING: (sql.LIST_PROCESSING, {"open": PENDING}),
    COMPLETED: (sql.LIST_COMPLETED, {"delivered": DELIVERED}),
    FAILED: (sql.LIST_FAILED, {"unsettled": [PENDING, DEAD]}),
}
"""The list of each state, with its bound values."""


async def put(tx: Tx, effects: Sequence[NewEffect]) -> list[str]:
    """Write effects that are due at once; return their ids, which are the same at every try."""
    if not effects:
        return []
    ids = [uuid(tx.now, tx.ids) for _ in effects]
    new = list(zip(ids, effects, strict=True))
    await tx.write(
        sql.ADD_EFFECTS.of([_build_row(tx, id, effect) for id, effect in new]),
        sql.ADD_BODIES.of([EffectBodyRow(id, effect.body) for id, effect in new]),
    )
    _hint(tx, [effect.consumer for effect in effects])
    changes.tell(tx, KIND, [(id, EFFECT.start["put"]) for id in ids])
    return ids


def _build_row(tx: Tx, id: str, effect: NewEffect) -> EffectRow:
    assert tx.ns is not None
    return EffectRow(
        ns=tx.ns,
        id=id,
        consumer=effect.consumer,
        subject=effect.subject,
        target=None if effect.target is None else model.mask_target(effect.target),
        status=EFFECT.start["put"],
        attempts=0,
        answered=0,
        forgiven=0,
        created_at=tx.now,
        since=tx.now,
        due_at=tx.now,
        ended_at=None,
        last_error=None,
    )


def _hint(tx: Tx, consumers: Sequence[str]) -> None:
    for consumer in dict.fromkeys(consumers):
        tx.hint(OUTBOX_CHANNEL, consumer)


# --- delivery ---------------------------------------------------------------------------------------------


async def claim_due(
    tx: Tx, consumer: str, n: int, lease: float, retries: Retries, lane: EffectClaims = ALL
) -> DueEffects:
    """Claim up to `n` due effects of a lane, of every namespace, for `lease` seconds.

    Effects that are not settled by then are due again.
    """
    rows = await tx.all(lane.claim, consumer=consumer, n=n, until=tx.now + to_micros(lease))
    dead: list[EffectRow] = []
    live: list[EffectRow] = []
    for row in rows:
        given_up = model.unanswered(row, retries, tx.now)
        if given_up is None:
            live.append(row)
        else:
            dead.append(given_up)
    if dead:
        await tx.update_many(sql.MOVE, sorted(dead))
        for row in dead:
            changes.tell(tx, KIND, [(row.id, row.status)], ns=row.ns)
    next_due = await tx.one(lane.next_due, consumer=consumer)
    wait = None if next_due is None else max(to_seconds(next_due - tx.now), 0.0)
    return DueEffects(await _read_bodies(tx, live), len(dead), len(rows), wait)


async def _read_bodies(tx: Tx, rows: Sequence[EffectRow]) -> list[ClaimedEffect]:
    bodies: dict[tuple[int, str], str] = {}
    for ns, ids in _group_by_namespace(rows).items():
        bodies |= {(ns, row.id): row.body for row in await tx.all(sql.GET_BODIES, ns=ns, ids=ids)}
    claimed = [
        ClaimedEffect(row.ns, model.row_to_effect(row, tx.now, bodies.get((row.ns, row.id)))) for row in rows
    ]
    return sorted(claimed, key=lambda item: item.effect.id)


def _group_by_namespace(rows: Iterable[EffectRow | EffectKey]) -> dict[int, list[str]]:
    ids: dict[int, list[str]] = {}
    for row in rows:
        ids.setdefault(row.ns, []).append(row.id)
    return ids


async def settle(
    tx: Tx, outcomes: Sequence[DeliveryOutcome], retries: Retries, keep: bool = True
) -> list[str | None]:
    """Record the outcomes of tries; return the new status of each effect.

    None means no change: the effect was settled before, or a later try has started. Delivered effects are
    deleted unless `keep` is set.
    """
    before = await _lock(tx, [outcome.id for outcome in outcomes])
    rows = dict(before)
    answers: list[str | None] = []
    for outcome in outcomes:
        row = rows.get(outcome.id)
        after = None if row is None else model.settled(row, outcome, retries, tx.now)
        answers.append(None if after is None or after == row else after.status)
        if after is not None:
            rows[outcome.id] = after
    changes.tell(tx, KIND, [(id, row.status) for id, row in rows.items() if row != before[id]])
    if not keep:
        await remove(tx, [id for id, row in rows.items() if row.status == DELIVERED])
        rows = {id: row for id, row in rows.items() if row.status != DELIVERED}
    await _save(tx, before, rows)
    return answers


async def _lock(tx: Tx, ids: Sequence[str]) -> dict[str, EffectRow]:
    return {row.id: row for row in await tx.all(sql.LOCK_EFFECTS, ids=sorted(set(ids)))}


async def _save(tx: Tx, before: Mapping[str, EffectRow], after: Mapping[str, EffectRow]) -> None:
    moved = [row for id, row in after.items() if row != before[id]]
    if moved:
        await tx.update_many(sql.MOVE, moved)


async def retry(tx: Tx, ids: Sequence[str]) -> list[Effect | NotFound | Conflict]:
    """Retry waiting or dead effects now, with all their tries again."""
    before = await _lock(tx, ids)
    moved = {
        id: model.retried(row, tx.now) for id, row in before.items() if EFFECT.moves(row.status, "retried")
    }
    await _save(tx, before, moved)
    changes.tell(tx, KIND, [(id, row.status) for id, row in moved.items()])
    _hint(tx, [row.consumer for row in moved.values()])
    await audit(tx, "retry_effect", list(moved))
    return [_get_retry_result(id, before.get(id), moved.get(id), tx.now) for id in ids]


async def retry_dead(tx: Tx, conditions: Sequence[FilterCondition], after: str) -> tuple[int, str | None]:
    """Retry some dead effects with ids after `after`, in the order of their ids.

    Return their number and, if there may be more, the id to continue after.
    """
    clause = where(sql.EFFECT_FIELDS, [*conditions, FilterCondition("status", "exact", DEAD)], "and")
    page, values = sql.LIST_AFTER.page(clause, sql.OLDEST_FIRST, RETRY_ROWS, 0)
    ids = [row.id for row in await tx.all(page, after=after, **values)]
    retried = [effect for effect in await retry(tx, ids) if isinstance(effect, Effect)]
    return len(retried), ids[-1] if len(ids) == RETRY_ROWS else None


def _get_retry_result(
    id: str, before: EffectRow | None, moved: EffectRow | None, now: int
) -> Effect | NotFound | Conflict:
    if before is None:
        return NotFound(f"Effect {id} not found")
    if moved is None:
        return Conflict(f"effect {id} is {before.status}; there is nothing to retry")
    return model.row_to_effect(moved, now)


async def remove(tx: Tx, ids: Sequence[str]) -> int:
    """Delete effects that a consumer delivered in this transaction; return how many existed."""
    if not ids:
        return 0
    await tx.execute(sql.DROP_BODIES, ids=list(ids))
    return await tx.execute(sql.DROP_EFFECTS, ids=list(ids))


# --- reading ----------------------------------------------------------------------------------------------


async def get_effect(tx: Tx, id: str) -> Effect | None:
    """Return an effect with its stored body, or None."""
    row = await tx.one(sql.GET_EFFECTS, ids=[id])
    if row is None:
        return None
    stored = await tx.one(sql.GET_BODIES, ids=[id])
    return model.row_to_effect(row, tx.now, None if stored is None else stored.body)


async def list_effects(
    tx: Tx,
    conditions: Sequence[FilterCondition],
    limit: int,
    offset: int,
    state: EffectState | None = None,
    place: Place | None = None,
    total: bool = True,
) -> tuple[list[Effect], int | None]:
    """Return a page of effects without bodies, newest first, and their number if `total` is set."""
    clause = where(sql.EFFECT_FIELDS, conditions, "and")
    listing, bound = _LISTS[state]
    page, values = listing.page(clause, sql.NEWEST_FIRST, limit, offset, place)
    rows = await tx.all(page, **values, **bound)
    page_total = await listing.total(
        tx, clause, len(rows), limit=limit, offset=offset, place=place, asked=total, **bound
    )
    return [model.row_to_effect(row, tx.now) for row in rows], page_total


# --- retention --------------------------------------------------------------------------------------------


async def trim(tx: Tx, age: int, status: str = DELIVERED) -> int:
    """Delete some effects that ended more than `age` microseconds ago; return how many."""
    old = await tx.all(sql.ENDED_BEFORE, status=status, before=tx.now - age, n=TRIM_ROWS)
    for ns, ids in _group_by_namespace(old).items():
        await tx.execute(sql.DROP_EFFECTS, ns=ns, ids=ids)
        await tx.execute(sql.DROP_BODIES, ns=ns, ids=ids)
    return len(old)
