"""Clocks that jump, stand still or disagree: nothing expires early, runs backwards or loses its order."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.reliability.engines import check_rules
from tests.support.simulation import Faults, SimulatedClock, SimulatedDatabase, Trace, run_virtual

from perdure import (
    InMemoryLightningStore,
    LightningStore,
    PostgresLightningStore,
    RolloutConfig,
    SqliteLightningStore,
)
from perdure.access.authentication import Authentication
from perdure.access.service import Access
from perdure.kernel import clock
from perdure.kernel.clock import boottime_ns
from perdure.kernel.storage.sqlite import SqliteStorage
from perdure.outbox.model import Retries
from perdure.outbox.operations import NewEffect, claim_due, put
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runtime.stores import TABLES, wire
from perdure.service.namespaces import ensure_namespace
from perdure.testing.clock import ManualClock, SeededIds
from perdure.testing.contract.support import claim, drain, finish, get_rollout, latest, make_span, retrying

HOUR = 3600.0
JUMPS = [-HOUR, -1.0, 1.0, HOUR]
LONGER = clock.SLOWING / (clock.SLOWING - 1)
"""How much longer everything lasts after a step back, while the clock is slower."""


class Wall:
    """The machine's clock, which somebody sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offset = 0.0
        self.frozen: int | None = None
        self._real = time.time_ns
        self._passed = 0
        monkeypatch.setattr(clock, "boottime_ns", lambda: boottime_ns() + self._passed)
        monkeypatch.setattr(time, "time_ns", self.nanoseconds)
        monkeypatch.setattr(time, "time", lambda: self.nanoseconds() / 1e9)

    def passes(self, seconds: float) -> None:
        """Let time pass, on every clock."""
        self._passed += round(seconds * 1e9)
        self.offset += seconds

    def nanoseconds(self) -> int:
        return self.frozen if self.frozen is not None else self._real() + round(self.offset * 1e9)


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    return Wall(monkeypatch)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LightningStore]:
    """A store on the machine's own clock."""
    if request.param == "memory":
        opened: DatabaseLightningStore = InMemoryLightningStore(watchdog_interval=None)
    else:
        opened = SqliteLightningStore(tmp_path / "db", watchdog_interval=None)
    yield opened
    asyncio.run(opened.close())


# --- a store on the machine's clock -----------------------------------------------------------------------


@pytest.mark.parametrize("jump", JUMPS)
async def test_no_time_runs_backwards(store: LightningStore, wall: Wall, jump: float) -> None:
    queued = await store.enqueue_rollout("task", config=retrying("failed"))
    first = await claim(store)
    wall.offset += jump
    await store.add_span(make_span(first))
    await finish(store, first, "failed")
    wall.offset += jump
    second = await claim(store)
    await finish(store, second)
    one, two = await store.query_attempts(queued.rollout_id)
    ended = await get_rollout(store, queued.rollout_id)
    times = [queued.start_time, one.start_time, one.last_heartbeat_time, one.end_time]
    times += [two.start_time, two.end_time]
    assert all(moment is not None for moment in times)
    assert times == sorted(times, key=lambda moment: moment or 0.0)
    assert ended.end_time == two.end_time


@pytest.mark.parametrize("jump", JUMPS)
async def test_the_queue_keeps_its_order(store: LightningStore, wall: Wall, jump: float) -> None:
    queued = []
    for number in range(6):
        queued.append((await store.enqueue_rollout(number)).rollout_id)
        wall.offset += jump
    assert await drain(store) == queued


async def test_a_clock_that_stands_still_gives_no_time_twice(store: LightningStore, wall: Wall) -> None:
    wall.frozen = time.time_ns()
    queued = [await store.enqueue_rollout(number) for number in range(50)]
    assert len({rollout.start_time for rollout in queued}) == 50
    assert await drain(store) == [rollout.rollout_id for rollout in queued]


async def test_a_second_that_comes_twice_is_lived_through_once(store: LightningStore, wall: Wall) -> None:
    """As a leap second is, where the clock is stepped back by one."""
    config = RolloutConfig(timeout_seconds=0.9, unresponsive_seconds=0.9)
    before = await store.start_rollout("task", config=config)
    wall.offset -= 1.0
    after = await store.start_rollout("task", config=config)
    assert after.start_time > before.start_time
    assert (await latest(store, before.rollout_id)).status == "preparing"


@pytest.mark.parametrize("limit", ["timeout_seconds", "unresponsive_seconds"])
async def test_a_step_back_never_expires_anything(store: LightningStore, wall: Wall, limit: str) -> None:
    started = await store.start_rollout("task", config=RolloutConfig.model_validate({limit: 600.0}))
    await store.add_span(make_span(started))
    for _ in range(3):
        wall.offset -= HOUR
        assert (await latest(store, started.rollout_id)).status == "running"


@pytest.mark.parametrize("limit", ["timeout_seconds", "unresponsive_seconds"])
@pytest.mark.parametrize("step", [-HOUR, HOUR])
async def test_a_step_of_the_wall_clock_neither_ends_an_attempt_nor_stops_its_limit(
    store: LightningStore, wall: Wall, limit: str, step: float
) -> None:
    started = await store.start_rollout("task", config=RolloutConfig.model_validate({limit: 600.0}))
    wall.passes(300)
    wall.offset += step
    queued = await store.enqueue_rollout("after")
    wall.passes(299)
    assert (await latest(store, started.rollout_id)).status == "preparing"
    wall.passes(2 if step > 0 else LONGER * 601 - 599)
    assert (await latest(store, started.rollout_id)).status == limit.replace("_seconds", "")
    if step > 0:
        assert queued.start_time == pytest.approx(wall.nanoseconds() / 1e9 - 301, abs=60)


@pytest.mark.parametrize("step", [-HOUR, HOUR])
async def test_a_restart_shortens_what_counts_from_a_time_to_come(
    tmp_path: Path, step: float, caplog: pytest.LogCaptureFixture
) -> None:
    """The wall clock was stepped while no process had the database."""
    before = ManualClock()
    config = retrying("failed", timeout_seconds=600.0)
    async with SqliteLightningStore(tmp_path / "db", watchdog_interval=None, clock=before) as store:
        started = await store.start_rollout("task", config=config)
        begun = before.now() / 1e6
        delayed = await store.enqueue_rollout("later", not_before=begun + 600)
    after = ManualClock(begun + step)
    async with SqliteLightningStore(tmp_path / "db", watchdog_interval=None, clock=after) as store:
        await store.rollouts.watchdog.sweep()
        late = step < 0
        assert ("2 deadlines were shortened" in caplog.text) == late
        assert ((await latest(store, started.rollout_id)).status == "preparing") == late
        assert (await drain(store) == []) == late
        after.advance(601)
        assert (await latest(store, started.rollout_id)).status == "timeout"
        if late:
            assert await drain(store) == [delayed.rollout_id]


@pytest.mark.parametrize("step", [-HOUR, HOUR])
async def test_the_leases_of_deliveries_do_not_follow_the_wall_clock(step: float) -> None:
    manual = ManualClock()
    storage = SqliteStorage(":memory:", TABLES, clock=manual)
    ns = await storage.run(ensure_namespace, "default")
    await storage.run(put, [NewEffect("consumer", "run", "{}")], ns=ns)

    async def claimed() -> int:
        return len((await storage.run(claim_due, "consumer", 10, 60.0, Retries())).claimed)

    assert await claimed() == 1
    manual.step(step)
    manual.advance(59)
    assert await claimed() == 0
    manual.advance(2)
    assert await claimed() == 1
    await storage.close()


async def test_a_token_ends_by_the_wall_clock() -> None:
    manual = ManualClock()
    async with InMemoryLightningStore(clock=manual) as store:
        access = Authentication(store.storage, cache_seconds=0.0)
        service = Access(store.storage, access)
        token = await service.create_token("ci", scopes=["admin"], expires_in=HOUR)
        manual.step(-HOUR)
        manual.advance(1.5 * HOUR)
        assert await access.authenticate(token.secret) is not None
        manual.step(HOUR)
        assert await access.authenticate(token.secret) is None


async def test_what_was_delayed_is_never_claimed_early(store: LightningStore, wall: Wall) -> None:
    now = (await store.start_rollout("now")).start_time
    later = await store.enqueue_rollout("later", not_before=now + 600)
    for step in (-HOUR, 2 * HOUR, -HOUR):
        wall.offset += step
        assert await drain(store) == []
    wall.passes(LONGER * 601)
    assert await drain(store) == [later.rollout_id]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "UTC"])
async def test_summer_time_is_nothing_to_it(
    store: LightningStore, wall: Wall, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    started = await store.start_rollout("task", config=RolloutConfig(timeout_seconds=600.0))
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert (await latest(store, started.rollout_id)).status == "preparing"
        assert started.start_time == pytest.approx(wall.nanoseconds() / 1e9, abs=60)
    finally:
        os.environ.pop("TZ", None)
        time.tzset()


# --- in virtual time --------------------------------------------------------------------------------------


async def _lapse_time(jump: float, limit: str) -> float:
    """How long an attempt with a limit of ten minutes lives if the clock jumps after one minute."""
    loop = asyncio.get_running_loop()
    simulated = SimulatedClock()
    database = SimulatedDatabase(TABLES, simulated, SeededIds(1), random.Random(1), Trace())
    store = DatabaseLightningStore(wire(database.connect("watchdog", Faults())))
    started = await store.start_rollout("task", config=RolloutConfig.model_validate({limit: 600.0}))
    begun = loop.time()
    await asyncio.sleep(60)
    simulated.jump(jump)
    while (await latest(store, started.rollout_id)).status == "preparing":
        await store.rollouts.watchdog.sweep()
        await asyncio.sleep(1)
    await check_rules(store)
    database.close()
    return loop.time() - begun


@pytest.mark.parametrize("limit", ["timeout_seconds", "unresponsive_seconds"])
@pytest.mark.parametrize(
    ("jump", "seconds"), [(0.0, 600.0), (-HOUR, 600.0 + HOUR), (-300.0, 900.0), (300.0, 300.0), (HOUR, 60.0)]
)
def test_an_attempt_ends_when_the_databases_clock_says_so(jump: float, seconds: float, limit: str) -> None:
    """Late after a step back, and never early but by a step forward of that very clock."""
    assert run_virtual(lambda: _lapse_time(jump, limit)) == pytest.approx(seconds, abs=3)


# --- hosts whose clocks disagree with the database's ------------------------------------------------------


@pytest.mark.parametrize("skew", [-HOUR, -300.0, 300.0, HOUR])
async def test_the_clocks_of_hosts_do_not_matter_on_postgresql(
    postgres_url: str, wall: Wall, skew: float
) -> None:
    config = retrying("timeout", "unresponsive", timeout_seconds=120.0, unresponsive_seconds=60.0)
    now = wall.nanoseconds() / 1e9
    async with (
        PostgresLightningStore(postgres_url, watchdog_interval=None) as here,
        PostgresLightningStore(postgres_url, watchdog_interval=None) as there,
    ):
        queued = await here.enqueue_rollout("task", config=config)
        later = await here.enqueue_rollout("later", not_before=now + 60)
        wall.offset = skew
        claimed = await claim(there, "there")
        assert claimed.rollout_id == queued.rollout_id
        assert claimed.attempt.start_time == pytest.approx(now, abs=30)
        wall.offset = -skew
        await here.rollouts.watchdog.sweep()
        assert (await latest(here, queued.rollout_id)).status == "preparing"
        await there.add_span(make_span(claimed))
        await there.rollouts.watchdog.sweep()
        assert (await get_rollout(here, queued.rollout_id)).status == "running"
        assert await there.dequeue_rollout() is None
        ended = await finish(there, claimed)
        assert ended.end_time == pytest.approx(now, abs=30)
        assert (await get_rollout(here, later.rollout_id)).status == "queuing"


async def test_a_worker_whose_clock_is_ahead_is_not_believed_for_longer_than_its_next_sign(
    store: LightningStore, wall: Wall
) -> None:
    """It reports a heartbeat of tomorrow; its next span counts from when it came."""
    started = await store.start_rollout("task", config=RolloutConfig(unresponsive_seconds=60.0))
    tomorrow = started.start_time + 24 * HOUR
    await store.update_attempt(started.rollout_id, "latest", last_heartbeat_time=tomorrow)
    wall.passes(HOUR)
    assert (await latest(store, started.rollout_id)).status == "preparing"
    await store.add_span(make_span(started))
    wall.passes(61)
    assert (await latest(store, started.rollout_id)).status == "unresponsive"
