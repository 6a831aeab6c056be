"""The index that each statement of the outbox uses, with 50,000 effects on both engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.outbox.support import OutboxWithDeliveries, add, open_storage
from tests.support.plans import Plan, Subject, plans_of

from perdure.kernel.clock import MICROS
from perdure.kernel.storage.port import Storage, Tx
from perdure.outbox import operations, sql, tables
from perdure.outbox.model import EFFECT_STATES, EFFECT_STATUSES, DeliveryOutcome, Retries

EFFECTS = 50_000
CHUNK = 5_000
EXPECTED = {
    "CLAIM": {"outbox_due", "outbox_pkey"},
    "CLAIM_NEW": {"outbox_due", "outbox_pkey"},
    "CLAIM_AGAIN": {"outbox_again", "outbox_pkey"},
    "NEXT_DUE": {"outbox_due"},
    "NEXT_NEW": {"outbox_due"},
    "NEXT_AGAIN": {"outbox_again"},
    "ENDED_BEFORE": {"outbox_ended"},
    "LOCK_EFFECTS": {"outbox_pkey"},
    "MOVE": {"outbox_pkey"},
    "GET_EFFECTS": {"outbox_pkey"},
    "GET_BODIES": {"outbox_bodies_pkey"},
    "DROP_EFFECTS": {"outbox_pkey"},
    "DROP_BODIES": {"outbox_bodies_pkey"},
}


SUBJECT = Subject((sql,), frozenset({"outbox", "outbox_bodies"}), EXPECTED)


def _rows(now: int) -> Iterator[tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]]:
    """Nearly all are delivered; a few wait, fewer are due, some are dead."""
    for start in range(0, EFFECTS, CHUNK):
        effects, bodies = [], []
        for number in range(start, start + CHUNK):
            status = EFFECT_STATUSES[0 if number % 50 == 0 else 2 if number % 50 == 1 else 1]
            due = now + (number % 1000 - 100) * MICROS if status == "pending" else None
            ended = None if due else now - number * MICROS
            id, subject = f"{number:032x}", f"run-{number // 2}"
            state = (status, 1, 0, 0, now, now, due, ended, None)
            effects.append((1, id, "webhook", subject, None, *state))
            bodies.append((1, id, "{}"))
        yield effects, bodies


async def _fill(tx: Tx, effects: list[tuple[Any, ...]], bodies: list[tuple[Any, ...]]) -> None:
    await tx.insert_many(tables.OUTBOX, effects)
    await tx.insert_many(tables.BODIES, bodies)


async def _now(tx: Tx) -> int:
    return tx.now


async def fill(storage: Storage) -> None:
    await add(storage, "{}")
    for effects, bodies in _rows(await storage.read(_now)):
        await storage.run(_fill, effects, bodies)


async def use(storage: Storage) -> None:
    retries = Retries()
    due = await storage.run(operations.claim_due, "webhook", 20, 60.0, retries)
    assert len(due.claimed) == 20
    outcomes = [DeliveryOutcome(item.effect.id, item.effect.attempts, "delivered") for item in due.claimed]
    await storage.run(operations.settle, outcomes, retries, ns=1)
    for lane in (operations.NEW, operations.AGAIN):
        await storage.run(operations.claim_due, "webhook", 20, 60.0, retries, lane)
    outbox = OutboxWithDeliveries(storage)
    for state in EFFECT_STATES:
        await outbox.list(state=state, limit=10)
    assert await outbox.list(status="dead", limit=10)
    assert await outbox.list(subject="run-7", limit=10)
    assert await outbox.list(limit=10)
    dead = await outbox.list(status="dead", limit=1)
    await outbox.retry(dead[0].id, actor="me")
    await outbox.get(dead[0].id)
    assert await outbox.retry_dead("webhook") == EFFECTS // 50 - 1
    assert await storage.background(operations.trim, 40_000 * MICROS) == operations.TRIM_ROWS


def listings(plans: dict[str, Plan]) -> list[frozenset[str]]:
    """Return the indexes of the listed pages."""
    return [plan.indexes for key, plan in plans.items() if " order by id desc" in key.lower()]


async def test_plans(new_engine_url: str) -> None:
    storage = open_storage(new_engine_url)
    plans = await plans_of(storage, new_engine_url, SUBJECT, fill, use)
    await storage.close()
    assert all(listings(plans))
