"""Batch consumers with their own policies: a failed effect is retried by itself, and none is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from tests.kernel.support import until, until_true
from tests.outbox.support import BatchRecorder, OutboxWithDeliveries, Recorder, add, age, failing, rows_of
from tests.outbox.test_service import delivering, status_is, wake

from perdure.kernel.storage.port import Storage
from perdure.outbox import operations
from perdure.outbox.model import ENDLESS, DeliveryPolicy, Effect, Retries, TryLater, Undeliverable

QUICK = Retries(first=0.001, longest=0.002, tries=None, age=None)


async def test_a_batch_has_the_effects_of_one_namespace_in_order(storage: Storage) -> None:
    ids = await add(storage, *map(str, range(25)))
    others = await add(storage, "a", "b", namespace="elsewhere")
    consumer = BatchRecorder(policy=DeliveryPolicy(batch=10, concurrency=1))
    async with delivering(storage, consumer) as outbox:
        await until(lambda: outbox.counts["delivered"] == 27)
    assert max(consumer.sizes) <= 10
    by_namespace: dict[int, list[str]] = {}
    for ns, effects in consumer.got:
        by_namespace.setdefault(ns, []).extend(effect.id for effect in effects)
        assert [effect.id for effect in effects] == sorted(effect.id for effect in effects)
    assert sorted(map(sorted, by_namespace.values())) == sorted([sorted(ids), sorted(others)])


async def test_one_bad_effect_goes_again_alone_and_holds_up_no_other(storage: Storage) -> None:
    bad, *_ = await add(storage, '"bad"', *map(str, range(20)))

    async def does(effects: Sequence[Effect]) -> Mapping[str, Exception]:
        if any(effect.body == '"bad"' for effect in effects):
            raise ValueError("poison")
        return {}

    consumer = BatchRecorder(does, DeliveryPolicy(batch=50, retries=QUICK))
    async with delivering(storage, consumer) as outbox:
        await until(lambda: outbox.counts["delivered"] == 20)
        (later,) = await add(storage, '"later"')
        await status_is(outbox, later, "delivered")
        failed = await outbox.list(state="failed")
        assert {effect.id for effect in failed} <= {bad}
        assert (await outbox.get(bad)).last_error == "ValueError: poison"
    assert all(len(effects) == 1 for _, effects in consumer.got if effects[0].attempts > 1)


async def test_a_batch_answers_for_each_effect(storage: Storage) -> None:
    async def does(effects: Sequence[Effect]) -> Mapping[str, Exception]:
        answers = {'"refused"': Undeliverable("no"), '"later"': TryLater("not now", seconds=900.0)}
        return {effect.id: answers[str(effect.body)] for effect in effects if effect.body in answers}

    refused, later, good = await add(storage, '"refused"', '"later"', '"good"')
    consumer = BatchRecorder(does, DeliveryPolicy(retries=ENDLESS))
    async with delivering(storage, consumer) as outbox:
        await status_is(outbox, good, "delivered")
        assert (await status_is(outbox, refused, "dead")).state == "failed"
        waiting = await outbox.get(later)
        assert (waiting.status, waiting.state, waiting.last_error) == ("pending", "failed", "not now")
    assert consumer.sizes == [3]


async def test_a_batch_that_hangs_blocks_nothing_that_comes_later(storage: Storage) -> None:
    stuck = asyncio.Event()

    async def does(effects: Sequence[Effect]) -> Mapping[str, Exception]:
        if any(effect.body == '"hang"' for effect in effects):
            if effects[0].attempts == 1:
                raise ValueError("first")
            await stuck.wait()
        return {}

    await add(storage, *['"hang"'] * 4)
    consumer = BatchRecorder(does, DeliveryPolicy(concurrency=1, retries=QUICK))
    async with delivering(storage, consumer) as outbox:
        await until(lambda: any(effects[0].attempts > 1 for _, effects in consumer.got))
        (id,) = await add(storage, '"new"')
        await status_is(outbox, id, "delivered")
        stuck.set()
        await until(lambda: outbox.counts["delivered"] == 5)


async def test_what_fails_for_days_is_delivered_in_the_end(storage: Storage) -> None:
    """Next to a consumer with the default policy, which gives up."""
    broken = asyncio.Event()

    async def does(effects: Sequence[Effect]) -> Mapping[str, Exception]:
        if not broken.is_set():
            raise ValueError("down")
        return {}

    (kept,) = await add(storage, "1")
    (lost,) = await add(storage, "1", consumer="other")
    consumer = BatchRecorder(does, DeliveryPolicy(retries=ENDLESS))
    other = Recorder(failing(*[ValueError("down")] * 9), "other")
    async with delivering(storage, consumer, other) as outbox:
        await until(lambda: outbox.counts["failed"] == 2)
        await age(storage, 40 * 86_400)
        wake(storage)
        wake(storage, "other")
        await status_is(outbox, lost, "dead")
        await until_true(lambda: _attempts(outbox, kept, 2))
        broken.set()
        await age(storage, 86_400)
        wake(storage)
        await status_is(outbox, kept, "delivered")


async def _attempts(outbox: OutboxWithDeliveries, id: str, least: int) -> bool:
    return (await outbox.get(id)).attempts >= least


async def test_a_consumer_may_have_its_effects_deleted_once_delivered(storage: Storage) -> None:
    await add(storage, *map(str, range(5)))
    consumer = BatchRecorder(policy=DeliveryPolicy(keep=False))
    async with delivering(storage, consumer) as outbox:
        await until(lambda: outbox.counts["delivered"] == 5)
    assert list(await rows_of(storage)) == []


async def test_what_a_consumer_deletes_in_its_own_transaction_does_not_come_again(storage: Storage) -> None:
    async def does(effects: Sequence[Effect]) -> Mapping[str, Exception]:
        await storage.run(operations.remove, [effect.id for effect in effects], ns=1)
        raise ValueError("after the commit")

    await add(storage, "1", "2")
    consumer = BatchRecorder(does, DeliveryPolicy(retries=QUICK))
    async with delivering(storage, consumer):
        await until_true(lambda: _empty(storage))
    assert consumer.sizes == [2]


async def _empty(storage: Storage) -> bool:
    return not list(await rows_of(storage))


async def test_lists_by_state_and_a_retry_of_all_that_is_dead(storage: Storage) -> None:
    under_way = asyncio.Event()

    async def does(effect: Effect) -> None:
        if effect.body == '"refused"':
            raise Undeliverable("no")
        if effect.body == '"failed"':
            raise ValueError("again")
        if effect.body == '"slow"':
            await under_way.wait()

    bodies = ('"refused"', '"failed"', '"slow"', '"good"')
    refused, failed, slow, good = await add(storage, *bodies)
    (waiting,) = await add(storage, "1", consumer="nobody")
    async with delivering(storage, Recorder(does)) as outbox:
        await until(lambda: outbox.counts == {"delivered": 1, "failed": 2, "dead": 1})
        seen = {}
        for state in ("pending", "processing", "completed", "failed"):
            page = await outbox.list(state=state)
            assert {effect.state for effect in page} == {state}
            assert page.total == len(page.items)
            seen[state] = {effect.id for effect in page}
        assert seen == {
            "pending": {waiting},
            "processing": {slow},
            "completed": {good},
            "failed": {refused, failed},
        }
        assert await outbox.retry_dead(consumer="nobody") == 0
        assert await outbox.retry_dead(consumer="recorder") == 1
        await until(lambda: outbox.counts["dead"] == 2)
        under_way.set()
        await status_is(outbox, slow, "delivered")


async def test_all_that_is_dead_is_retried_however_much_it_is(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "RETRY_ROWS", 3)
    await add(storage, *map(str, range(7)))
    refuse = Recorder(failing(*[Undeliverable("no")] * 7))
    async with delivering(storage, refuse) as outbox:
        await until(lambda: outbox.counts["dead"] == 7)
    assert await outbox.retry_dead() == 7
    assert (await outbox.list(status="pending")).total == 7
