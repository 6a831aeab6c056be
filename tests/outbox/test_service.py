"""Delivery: at least once, with pauses and deadlines, next to consumers that fail, hang or are flooded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.kernel.support import until, until_true
from tests.outbox.support import (
    OutboxWithDeliveries,
    Recorder,
    add,
    age,
    audit_of,
    failing,
    open_storage,
    rows_of,
)

from perdure.kernel.clock import to_micros
from perdure.kernel.errors import Conflict, InvalidInput, NotFound, StorageUnavailable
from perdure.kernel.storage.port import Storage
from perdure.outbox import delivery, operations
from perdure.outbox.model import BatchConsumer, Consumer, Effect, Retries, TryLater, Undeliverable
from perdure.outbox.operations import OUTBOX_CHANNEL

LONG = Retries(first=1000.0, longest=1000.0)
SHORT = Retries(first=0.001, longest=0.002, tries=4)


@asynccontextmanager
async def delivering(
    storage: Storage, *consumers: Consumer | BatchConsumer, **options: Any
) -> AsyncIterator[OutboxWithDeliveries]:
    outbox = OutboxWithDeliveries(storage, consumers, **{"retries": LONG, **options})
    await outbox.start()
    try:
        yield outbox
    finally:
        await outbox.stop(grace=options.get("deadline", 5.0))


def wake(storage: Storage, consumer: str = "recorder") -> None:
    storage.signals.publish([(OUTBOX_CHANNEL, consumer)])


async def status_is(outbox: OutboxWithDeliveries, id: str, status: str) -> Effect:
    async def reached() -> bool:
        return (await outbox.get(id)).status == status

    await until_true(reached)
    return await outbox.get(id)


async def test_a_thawed_process_does_not_deliver_what_it_had_claimed(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was frozen between its claim and its delivery: another deliverer may have the effect."""
    recorder = Recorder()
    times = iter([0.0, 1000.0])
    monkeypatch.setattr(delivery, "boottime", lambda: next(times, 2000.0))
    async with delivering(storage, recorder, deadline=0.1, lease=0.3) as outbox:
        (id,) = await add(storage, '{"n":1}')
        assert (await status_is(outbox, id, "delivered")).attempts == 2
    assert len(recorder.got) == 1
    assert "its lease ended" in caplog.text


async def test_an_effect_is_delivered_once_and_soon(storage: Storage) -> None:
    recorder = Recorder()
    async with delivering(storage, recorder) as outbox:
        (before,) = await add(storage, '{"n":1}')
        done = await status_is(outbox, before, "delivered")
        assert (done.attempts, done.last_error) == (1, None)
    assert recorder.bodies == ['{"n":1}']
    assert outbox.counts == {"delivered": 1}


async def test_what_was_put_before_the_start_is_delivered(storage: Storage) -> None:
    ids = await add(storage, *map(str, range(100)))
    recorder = Recorder()
    async with delivering(storage, recorder, concurrency=7) as outbox:
        await recorder.has(100)
        await until(lambda: outbox.counts["delivered"] == 100)
    assert sorted(effect.id for effect in recorder.got) == sorted(ids)


async def test_a_lost_hint_costs_no_more_than_the_poll_interval(storage: Storage) -> None:
    storage.signals.publish = lambda hints: None  # type: ignore[method-assign]
    recorder = Recorder()
    async with delivering(storage, recorder, poll=0.05):
        await add(storage, '"quiet"')
        await recorder.has(1)


async def test_a_failure_is_tried_again_with_the_same_id(storage: Storage) -> None:
    recorder = Recorder(failing(ValueError("first"), TimeoutError("second"), None))
    async with delivering(storage, recorder, retries=SHORT) as outbox:
        (id,) = await add(storage, "{}")
        done = await status_is(outbox, id, "delivered")
    assert [effect.id for effect in recorder.got] == [id] * 3
    assert [effect.attempts for effect in recorder.got] == [1, 2, 3]
    assert done.last_error == "TimeoutError: second"
    assert outbox.counts == {"failed": 2, "delivered": 1}


async def test_a_failed_effect_waits_its_time(storage: Storage) -> None:
    recorder = Recorder(failing(ValueError("no")))
    async with delivering(storage, recorder) as outbox:
        (id,) = await add(storage, "{}")
        await until(lambda: outbox.counts["failed"] == 1)
        effect = await outbox.get(id)
        assert effect.due_at is not None
        assert 700 < effect.due_at - effect.created_at < 1300
        await age(storage, 1300)
        wake(storage)
        await status_is(outbox, id, "delivered")
    assert len(recorder.got) == 2


async def test_what_always_fails_is_a_dead_letter_and_a_retry_brings_it_back(storage: Storage) -> None:
    recorder = Recorder(failing(*[ValueError("no")] * 4))
    async with delivering(storage, recorder, retries=SHORT) as outbox:
        (id,) = await add(storage, "{}")
        dead = await status_is(outbox, id, "dead")
        assert (dead.attempts, dead.last_error) == (4, "ValueError: no")
        assert outbox.counts == {"failed": 4, "dead": 1}
        again = await outbox.retry(id, actor="tok-1")
        assert (again.status, again.died_at) == ("pending", None)
        await status_is(outbox, id, "delivered")
        with pytest.raises(Conflict, match="delivered"):
            await outbox.retry(id, actor="tok-1")
    assert [tuple(row) for row in await audit_of(storage)] == [("tok-1", "retry_effect", id)]
    assert {effect.id for effect in recorder.got} == {id}


async def test_a_refusal_is_final_at_once(storage: Storage) -> None:
    recorder = Recorder(failing(Undeliverable("410 Gone")))
    async with delivering(storage, recorder) as outbox:
        (id,) = await add(storage, "{}")
        dead = await status_is(outbox, id, "dead")
    assert (dead.attempts, dead.last_error) == (1, "410 Gone")


async def test_what_a_consumer_has_no_room_for_is_not_charged(storage: Storage) -> None:
    busy = [TryLater("full", seconds=0.001, charged=False)] * 10
    recorder = Recorder(failing(*busy))
    async with delivering(storage, recorder, retries=Retries(tries=1)) as outbox:
        (id,) = await add(storage, "{}")
        done = await status_is(outbox, id, "delivered")
    assert done.attempts == 11
    assert outbox.counts == {"delivered": 1}


async def test_a_delivery_that_hangs_is_ended_at_its_deadline(storage: Storage) -> None:
    async def hang(effect: Effect) -> None:
        await asyncio.Event().wait()

    async with delivering(storage, Recorder(hang), deadline=0.05) as outbox:
        (id,) = await add(storage, "{}")
        await until(lambda: outbox.counts["failed"] == 1)
        assert (await outbox.get(id)).last_error == "not done within 0.05 s"


async def test_a_consumer_that_cancels_itself_is_tried_again(storage: Storage) -> None:
    recorder = Recorder(failing(asyncio.CancelledError()))
    async with delivering(storage, recorder, retries=SHORT) as outbox:
        (id,) = await add(storage, "{}")
        await status_is(outbox, id, "delivered")
    assert outbox.counts == {"failed": 1, "delivered": 1}


async def test_no_consumer_holds_up_another(storage: Storage) -> None:
    stuck = asyncio.Event()

    async def hang(effect: Effect) -> None:
        await stuck.wait()

    slow, quick = Recorder(hang, "slow"), Recorder(name="quick")
    await add(storage, *map(str, range(50)), consumer="slow")
    async with delivering(storage, slow, quick, concurrency=4) as outbox:
        await slow.has(4)
        await add(storage, *map(str, range(50)), consumer="quick")
        await quick.has(50)
        assert len(slow.got) == 4
        stuck.set()
        await until(lambda: outbox.counts["delivered"] == 100)


async def test_no_more_are_under_way_at_once_than_allowed(storage: Storage) -> None:
    now = most = 0

    async def count(effect: Effect) -> None:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        await asyncio.sleep(0)
        now -= 1

    await add(storage, *map(str, range(60)))
    async with delivering(storage, Recorder(count), concurrency=5) as outbox:
        await until(lambda: outbox.counts["delivered"] == 60)
    assert 1 < most <= 5


async def test_a_stop_waits_for_what_is_under_way(storage: Storage) -> None:
    may_end = asyncio.Event()

    async def wait(effect: Effect) -> None:
        await may_end.wait()

    recorder = Recorder(wait)
    outbox = OutboxWithDeliveries(storage, [recorder])
    await outbox.start()
    await outbox.start()
    (id,) = await add(storage, "{}")
    await recorder.has(1)
    stopping = asyncio.create_task(outbox.stop(grace=20))
    await asyncio.sleep(0)
    assert not stopping.done()
    may_end.set()
    await stopping
    assert (await outbox.get(id)).status == "delivered"
    await add(storage, "{}")
    assert len(recorder.got) == 1


async def test_what_a_stop_cuts_off_is_handed_back_uncharged(storage: Storage) -> None:
    async def hang(effect: Effect) -> None:
        await asyncio.Event().wait()

    recorder = Recorder(hang)
    first = OutboxWithDeliveries(storage, [recorder], retries=Retries(tries=1))
    await first.start()
    (id,) = await add(storage, "{}")
    await recorder.has(1)
    await first.stop(grace=0)
    other = Recorder()
    async with delivering(storage, other, retries=Retries(tries=1)) as second:
        await status_is(second, id, "delivered")
    assert [effect.id for effect in other.got] == [id]


async def test_it_can_start_again_after_a_stop(storage: Storage) -> None:
    recorder = Recorder()
    outbox = OutboxWithDeliveries(storage, [recorder])
    for number in range(1, 3):
        await outbox.start()
        await add(storage, str(number))
        await until(lambda number=number: outbox.counts["delivered"] == number)  # type: ignore[misc]
        await outbox.stop()
    await outbox.stop()


async def test_trouble_with_the_database_is_waited_out(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubles = {operations.claim_due: 3, operations.settle: 3}
    run = storage.run

    def troubled(operation: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if troubles.get(operation, 0):
            troubles[operation] -= 1
            raise StorageUnavailable("gone for a moment")
        return run(operation, *args, **options)

    monkeypatch.setattr(storage, "run", troubled)
    recorder = Recorder()
    async with delivering(storage, recorder, poll=0.01) as outbox:
        await add(storage, "{}")
        await until(lambda: outbox.counts["delivered"] == 1)
    assert len(recorder.got) == 1
    assert set(troubles.values()) == {0}


async def test_several_processes_share_the_work(url: str, storage: Storage) -> None:
    """On PostgreSQL two storages are two processes; on other engines two outboxes share one storage."""
    other = open_storage(url) if url.startswith("postgres") else storage
    first, second = Recorder(), Recorder()
    ids = await add(storage, *map(str, range(120)))
    async with (
        delivering(storage, first, concurrency=3) as one,
        delivering(other, second, concurrency=3) as two,
    ):
        await until(lambda: one.counts["delivered"] + two.counts["delivered"] == 120)
    if other is not storage:
        await other.close()
    got = [effect.id for effect in (*first.got, *second.got)]
    assert sorted(got) == sorted(ids)


# --- what callers see -------------------------------------------------------------------------------------


async def ids_of(outbox: OutboxWithDeliveries, **asked: Any) -> Sequence[str]:
    return [effect.id for effect in await outbox.list(**asked)]


async def test_effects_are_listed_by_namespace_status_consumer_and_subject(storage: Storage) -> None:
    outbox = OutboxWithDeliveries(storage, retries=LONG)
    (a,) = await add(storage, '"large"', subject="run-a", target="https://u:hidden@example.com/x")
    await age(storage, 1)
    (b,) = await add(storage, '"b"', subject="run-b", consumer="other")
    (c,) = await add(storage, '"c"', subject="run-b", namespace="elsewhere")
    page = await outbox.list()
    assert ({effect.id for effect in page}, page.total) == ({a, b}, 2)
    assert {effect.body for effect in page} == {None}
    assert {effect.target for effect in page} == {"https://***@example.com/x", None}
    assert await ids_of(outbox, consumer="other") == [b]
    assert await ids_of(outbox, subject="run-a", status=["pending", "dead"]) == [a]
    assert await ids_of(outbox, status="delivered") == []
    assert await ids_of(outbox, namespace="elsewhere") == [c]
    first = await outbox.list(limit=1)
    second = await outbox.list(limit=1, offset=1)
    assert [first.items[0].id, second.items[0].id] == [effect.id for effect in page]
    assert (first.total, second.total) == (None, None)
    assert (await outbox.list(limit=1, total=True)).total == 2
    counted = await outbox.list(limit=0)
    assert (len(counted), counted.total) == (0, 2)


async def test_an_effect_is_shown_with_its_body_but_without_credentials(storage: Storage) -> None:
    outbox = OutboxWithDeliveries(storage)
    (id,) = await add(storage, '{"url":"http://me:hidden@example.com","payload":{}}')
    assert (await outbox.get(id)).body == '{"url":"http://***@example.com","payload":{}}'
    with pytest.raises(NotFound, match=id):
        await outbox.get(id, namespace="elsewhere")
    with pytest.raises(NotFound, match=id):
        await outbox.retry(id, namespace="elsewhere", actor="me")
    assert list(await audit_of(storage)) == []


async def test_bad_questions_are_refused(storage: Storage) -> None:
    outbox = OutboxWithDeliveries(storage)
    for asked in (
        {"status": "late"},
        {"state": "dead"},
        {"consumer": "\0"},
        {"subject": 5},
        {"status": ["pending", 5]},
    ):
        with pytest.raises(InvalidInput):
            await outbox.list(**asked)
    for asked in ({"limit": -2}, {"offset": -1}, {"limit": "5"}):
        with pytest.raises(InvalidInput):
            await outbox.list(**asked)
    with pytest.raises(InvalidInput):
        await outbox.get("\0")
    with pytest.raises(NotFound):
        await outbox.retry("none")


async def test_what_ended_is_kept_for_a_while(storage: Storage) -> None:
    recorder = Recorder(failing(None, Undeliverable("no")))
    async with delivering(storage, recorder, concurrency=1) as outbox:
        await add(storage, "1", "2")
        await until(lambda: outbox.counts["delivered"] + outbox.counts["dead"] == 2)
    day = to_micros(86_400)
    for status, days in (("delivered", 7), ("dead", 30)):
        assert await storage.background(operations.trim, days * day, status) == 0
    await age(storage, 8 * 86_400)
    assert await storage.background(operations.trim, 7 * day, "delivered") == 1
    assert await storage.background(operations.trim, 30 * day, "dead") == 0
    await age(storage, 23 * 86_400)
    assert await storage.background(operations.trim, 30 * day, "dead") == 1
    assert list(await rows_of(storage)) == []
