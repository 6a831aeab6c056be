"""Effects in the database: put, claimed, settled, retried, listed and trimmed, on every engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.kernel.support import record_hints
from tests.outbox.support import add, age, bodies_of, open_storage, rows_of

from perdure.kernel.clock import to_micros
from perdure.kernel.errors import Conflict, NotFound
from perdure.kernel.storage.port import Storage, Tx
from perdure.outbox import operations
from perdure.outbox.model import DEAD, DELIVERED, PENDING, DeliveryOutcome, Effect, Retries
from perdure.outbox.operations import ClaimedEffect, DueEffects, NewEffect

TRIES = 3
RETRIES = Retries(tries=TRIES)
LEASE = 60.0


async def claim(storage: Storage, n: int = 10, consumer: str = "recorder") -> DueEffects:
    return await storage.run(operations.claim_due, consumer, n, LEASE, RETRIES)


async def settle(
    storage: Storage, claimed: ClaimedEffect, event: str, error: str | None = None
) -> str | None:
    effect = claimed.effect
    outcome = DeliveryOutcome(effect.id, effect.attempts, event, error)  # type: ignore[arg-type]
    answers: Sequence[str | None] = await storage.run(operations.settle, [outcome], RETRIES, ns=claimed.ns)
    return answers[0]


async def get(storage: Storage, claimed: ClaimedEffect) -> Effect:
    effect = await storage.read(operations.get_effect, claimed.effect.id, ns=claimed.ns)
    assert effect is not None
    return effect


async def test_what_is_put_is_due_at_once_and_told_after_the_commit(storage: Storage) -> None:
    hints = record_hints(storage)
    ids = await add(storage, '{"n":1}', '{"n":2}')
    assert [("outbox", "recorder")] in hints
    due = await claim(storage)
    assert sorted((item.effect.id, item.effect.body) for item in due.claimed) == sorted(
        zip(ids, ('{"n":1}', '{"n":2}'), strict=True)
    )
    assert {item.effect.attempts for item in due.claimed} == {1}
    assert (await storage.run(operations.put, [], ns=1)) == []


async def test_what_is_not_committed_is_not_there(storage: Storage) -> None:
    async def put_and_fail(tx: Tx) -> None:
        await operations.put(tx, [NewEffect("recorder", "run", "{}")])
        raise Conflict("no")

    with pytest.raises(Conflict):
        await storage.run(put_and_fail, ns=1)
    assert list(await rows_of(storage)) == []
    assert list(await bodies_of(storage)) == []


async def test_a_claim_reaches_every_namespace_and_one_consumer_alone(storage: Storage) -> None:
    for namespace in ("red", "blue"):
        await add(storage, f'"{namespace}"', namespace=namespace)
    await add(storage, '"other"', consumer="other")
    due = await claim(storage)
    assert sorted(str(item.effect.body) for item in due.claimed) == ['"blue"', '"red"']
    assert len({item.ns for item in due.claimed}) == 2
    assert [item.effect.body for item in (await claim(storage, consumer="other")).claimed] == ['"other"']


async def test_a_claim_takes_no_more_than_asked_the_longest_due_first(storage: Storage) -> None:
    for number in range(3):
        await add(storage, str(number))
        await age(storage, 10)
    first = await claim(storage, 2)
    assert sorted(str(item.effect.body) for item in first.claimed) == ["0", "1"]
    assert (first.looked, first.wait) == (2, 0.0)
    second = await claim(storage, 2)
    assert ([item.effect.body for item in second.claimed], second.looked) == (["2"], 1)
    assert second.wait is not None
    assert 30 < second.wait <= LEASE


async def test_what_a_lost_deliverer_held_comes_again_when_its_lease_ends(storage: Storage) -> None:
    await add(storage, '"a"')
    (first,) = (await claim(storage)).claimed
    assert (await claim(storage)).claimed == []
    await age(storage, LEASE + 1)
    (second,) = (await claim(storage)).claimed
    assert (second.effect.id, second.effect.attempts) == (first.effect.id, 2)


async def test_an_effect_whose_deliverers_all_die_is_a_dead_letter_in_the_end(storage: Storage) -> None:
    await add(storage, '"poison"')
    for _ in range(TRIES):
        (last,) = (await claim(storage)).claimed
        await age(storage, LEASE + 1)
    due = await claim(storage)
    assert (due.claimed, due.dead, due.looked) == ([], 1, 1)
    assert (await get(storage, last)).status == DEAD
    assert (await claim(storage)).looked == 0


async def test_outcomes_move_effects(storage: Storage) -> None:
    await add(storage, "1", "2", "3", "4")
    by_body = {item.effect.body: item for item in (await claim(storage)).claimed}
    assert await settle(storage, by_body["1"], "delivered") == DELIVERED
    assert await settle(storage, by_body["2"], "failed", "no") == PENDING
    assert await settle(storage, by_body["3"], "refused", "never") == DEAD
    assert await settle(storage, by_body["4"], "released") == PENDING
    delivered, failed = await get(storage, by_body["1"]), await get(storage, by_body["2"])
    assert delivered.delivered_at is not None
    assert delivered.due_at is None
    assert failed.due_at is not None
    assert failed.last_error == "no"
    assert (await get(storage, by_body["3"])).died_at is not None
    assert [item.effect.body for item in (await claim(storage)).claimed] == ["4"]


async def test_a_failure_that_comes_too_late_changes_nothing_but_a_success_counts(storage: Storage) -> None:
    await add(storage, '"a"')
    (lost,) = (await claim(storage)).claimed
    await age(storage, LEASE + 1)
    (current,) = (await claim(storage)).claimed
    assert await settle(storage, lost, "refused", "too late") is None
    assert (await get(storage, current)).status == PENDING
    assert await settle(storage, lost, "delivered") == DELIVERED
    assert await settle(storage, current, "failed", "after that") is None
    assert (await get(storage, current)).status == DELIVERED


async def test_outcomes_in_one_list_apply_in_its_order(storage: Storage) -> None:
    await add(storage, '"a"')
    (claimed,) = (await claim(storage)).claimed
    id = claimed.effect.id
    outcomes = [
        DeliveryOutcome(id, 1, "delivered"),
        DeliveryOutcome(id, 1, "failed", "x"),
        DeliveryOutcome("none", 1, "delivered"),
    ]
    assert await storage.run(operations.settle, outcomes, RETRIES, ns=claimed.ns) == [DELIVERED, None, None]
    assert await storage.run(operations.settle, outcomes, RETRIES, ns=claimed.ns + 1) == [None, None, None]


async def test_retry_makes_due_what_waits_or_is_dead(storage: Storage) -> None:
    await add(storage, "1", "2", "3")
    waits, dead, done = (await claim(storage)).claimed
    await settle(storage, waits, "failed", "no")
    await settle(storage, dead, "refused", "never")
    await settle(storage, done, "delivered")
    ids = [waits.effect.id, dead.effect.id, done.effect.id, "none"]
    answers = await storage.run(operations.retry, ids, ns=waits.ns)
    assert [type(answer) for answer in answers] == [Effect, Effect, Conflict, NotFound]
    again = (await claim(storage)).claimed
    assert {item.effect.id for item in again} == {waits.effect.id, dead.effect.id}
    assert {item.effect.attempts for item in again} == {2}


async def test_many_deliverers_never_get_the_same_effect(url: str, storage: Storage) -> None:
    await add(storage, *map(str, range(200)))
    others = [open_storage(url) for _ in range(2)] if url.startswith("postgres") else []
    claims = [claim(shared, 7) for shared in (storage, *others) for _ in range(40 // (1 + len(others)))]
    got = [item.effect.id for due in await asyncio.gather(*claims) for item in due.claimed]
    for other in others:
        await other.close()
    left = (await claim(storage, 1000)).claimed
    assert len(got) == len(set(got))
    assert len(got) + len(left) == 200


async def test_trimming_drops_what_ended_long_ago_with_its_body(storage: Storage) -> None:
    await add(storage, "1", "2", "3")
    first, second, third = (await claim(storage)).claimed
    await settle(storage, first, "delivered")
    await settle(storage, second, "refused")
    await age(storage, 100)
    await settle(storage, third, "delivered")
    await add(storage, "4", namespace="other")
    assert await storage.background(operations.trim, to_micros(50), DELIVERED) == 1
    assert await storage.background(operations.trim, to_micros(50), DEAD) == 1
    left = [row[1] for row in await rows_of(storage)]
    assert third.effect.id in left
    assert len(left) == 2
    assert [row[1] for row in await bodies_of(storage)] == left
