"""The queues by the minute: written once by any number of processes, summed up in steps, deleted by age."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.queue_statistics.support import age

from perdure.kernel.clock import MICROS
from perdure.kernel.config import Settings
from perdure.kernel.errors import InvalidInput
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.kernel.tally import SECONDS_BUCKETS
from perdure.runtime.services import Services
from perdure.runtime.stores import open_store
from perdure.service.tables import SYSTEM
from perdure.statistics.model import MINUTE, STEPS, build_window, quantile
from perdure.statistics.operations import Counted, Waits, record_minute
from perdure.statistics.recorder import StatisticsRecorder

LOOKS = statement("SELECT count(*) FROM queue_minutes WHERE ns = :system", row=int)


@pytest.fixture
async def services(engine_url: str) -> AsyncIterator[Services]:
    found = Services(open_store(engine_url, watchdog_interval=None), Settings())
    yield found
    await found.close()


async def _looks(tx: Tx) -> int:
    return await tx.one(LOOKS, system=SYSTEM) or 0


async def test_a_minute_has_depth_waits_and_throughput(services: Services) -> None:
    store, recorder = services.store, services.recorder
    for number in range(5):
        await store.enqueue_rollout({"number": number})
    first, second = [await store.dequeue_rollout(worker_id="w1") for _ in range(2)]
    assert first is not None
    assert second is not None
    await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status="succeeded")
    await store.update_rollout(second.rollout_id, status="cancelled")
    assert await recorder.record()
    history = await services.diagnostics.queue_history()
    (point,) = history.items
    assert (point.queue, point.ready, point.delayed, point.waiting) == ("default", 3, 0, 0)
    assert (point.claimed, point.succeeded, point.failed, point.cancelled) == (2, 1, 0, 1)
    assert point.wait_seconds_mean is not None
    assert point.wait_seconds_p95 is not None
    assert 0 <= point.wait_seconds_mean < 60
    assert point.oldest_age_seconds < 60
    assert history.step_seconds == 60
    assert history.times == [point.time]
    again = await recorder.record()
    after = await services.diagnostics.queue_history()
    # A new minute may have started meanwhile.
    assert again == (len(after.times) == 2), "the depths of a minute are read once"
    assert sum(each.claimed for each in after.items) == 2, "what was written is not added again"


async def test_processes_write_the_depths_of_a_minute_once_and_add_what_they_counted(
    services: Services,
) -> None:
    for _ in range(3):
        await services.store.enqueue_rollout({})
    ns = await services.diagnostics.ns("write")
    recorders = [StatisticsRecorder(services.storage) for _ in range(4)]
    looked = await asyncio.gather(*(recorder.record() for recorder in recorders))
    assert 1 <= sum(looked) == await services.storage.read(_looks) <= 2
    waits = Waits([0, 2, *[0] * (len(SECONDS_BUCKETS) - 1)], 30_000)
    counted = Counted({(ns, "default"): waits}, {(ns, "default", "failed"): 1})
    for _ in range(2):
        await services.storage.run(record_minute, counted, True)
    points = (await services.diagnostics.queue_history()).items
    assert {point.ready for point in points} == {3}
    assert sum(point.claimed for point in points) == 4
    assert sum(point.failed for point in points) == 2
    assert points[-1].wait_seconds_mean == pytest.approx(0.015)
    assert points[-1].wait_seconds_p50 == pytest.approx(0.015)


async def test_minutes_are_put_together_in_steps_and_deleted_when_they_are_old(services: Services) -> None:
    ns = await services.diagnostics.ns("write")
    counted = Counted({(ns, "agents"): Waits([1, *[0] * len(SECONDS_BUCKETS)], 1000)}, {})
    for _ in range(3):
        await services.storage.run(record_minute, counted, True)
        await services.storage.run(age, 10)
    now = 2e9
    assert (await services.diagnostics.queue_history(since=now, until=now + 60)).items == []
    whole = await services.diagnostics.queue_history()
    assert [point.claimed for point in whole.items] == [1, 1, 1]
    day = await services.diagnostics.queue_history(since=whole.since - 29 * 86_400)
    assert day.step_seconds == 6 * 3600
    assert sum(point.claimed for point in day.items) == 3
    await services.storage.run(age, 31 * 1440)
    report = {each.kind: each.deleted for each in (await services.upkeep.gc()).items}
    assert report["statistics"] == 9, "three minutes, three looks, three lengths of waits"
    for bad in ({"since": 5.0, "until": 1.0}, {"since": -1.0}, {"since": 0.0}, {"until": float("nan")}):
        with pytest.raises(InvalidInput):
            await services.diagnostics.queue_history(**bad)


def test_windows_have_steps_and_quantiles_lie_within_their_buckets() -> None:
    now = 1_000_000 * MINUTE + 30 * MICROS
    for minutes in (1, 60, 1440, 10_080, 44_640, 576_000):
        window = build_window((now - minutes * MINUTE) / MICROS, None, now)
        assert window.step in STEPS
        assert window.since % window.step == 0
        assert window.until >= now
        assert (window.until - window.since) // window.step <= 402
    assert quantile({}, 0.5) is None
    assert quantile({0: 10}, 0.5) == pytest.approx(SECONDS_BUCKETS[0] / 2)
    assert quantile({0: 50, 4: 50}, 0.95) == pytest.approx(0.5 + 0.5 * 0.9)
    assert quantile({len(SECONDS_BUCKETS): 3}, 0.5) == SECONDS_BUCKETS[-1]
