"""Deterministic simulation: many seeds, each a storm of its own; and that a seed replays exactly.

A failure prints its seed: `simulate(seed)` runs it again. There are `PERDURE_SEEDS` of them; `run` is the
long run.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from typing import Any

import pytest
from tests.reliability import swarm
from tests.reliability.engines import check_rules
from tests.reliability.swarm import Broken, simulate
from tests.support.simulation import Faults, InlineStorage, SimulatedDatabase, Trace, run_virtual

from perdure.rollouts.operations import report, work
from perdure.rollouts.service import Rollouts
from perdure.rollouts.store import DatabaseLightningStore
from perdure.rollouts.watchdog import Watchdog
from perdure.runtime.stores import TABLES, wire
from perdure.testing.clock import ManualClock, SeededIds

SEEDS = int(os.environ.get("PERDURE_SEEDS", "60"))
SHARES = 3


@pytest.mark.timeout(300)
@pytest.mark.parametrize("share", range(SHARES))
def test_storms(share: int) -> None:
    results = [simulate(seed) for seed in range(share, SEEDS, SHARES)]
    assert sum(result.commits for result in results) > 10 * len(results)
    assert sum(result.crashes for result in results) > 0


@pytest.mark.parametrize("seed", [1, 4, 7])
def test_the_same_seed_gives_the_same_run(seed: int) -> None:
    assert simulate(seed) == simulate(seed)
    assert simulate(seed).digest != simulate(seed + 1).digest


def test_another_process_gives_the_same_run() -> None:
    program = (
        "from tests.reliability.swarm import simulate; print(*(simulate(seed).digest for seed in range(5)))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == [simulate(seed).digest for seed in range(5)]


# --- the simulation finds what it is there to find --------------------------------------------------------


def storms_until_broken(most: int = 60, saying: str = "") -> Broken:
    """What the first storm finds whose message has that text: a planted bug may break several rules."""
    for seed in range(most):
        try:
            simulate(seed)
        except Broken as broken:
            found = broken
            if saying in str(found):
                break
    else:
        raise AssertionError("nothing was found")
    assert f"seed {seed}" in found.__notes__[0]
    return found


def test_finds_counts_that_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(tx: Any, counts: dict[tuple[str, str], int]) -> Any:
        counts.pop(("task", "failed"), None)
        return real(tx, counts)

    real = work.add_counts
    monkeypatch.setattr(work, "add_counts", forgetful)
    assert "counts say" in str(storms_until_broken())


def test_finds_a_watchdog_that_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    async def asleep(tx: Any, *_: Any) -> report.WatchdogSweep:
        return report.WatchdogSweep(0)

    monkeypatch.setattr(report, "sweep", asleep)
    assert "not ended after three leases" in str(storms_until_broken())


def test_finds_a_completion_that_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work.LockedRollouts, "is_latest", lambda self, attempt: True)
    assert storms_until_broken(300, "was succeeded and is")


def test_finds_waiters_that_nobody_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def deaf(self: Watchdog) -> None:
        return None

    monkeypatch.setattr(Watchdog, "poll_ends", deaf)
    assert "not ended after three leases" in str(storms_until_broken())


# --- a caller that goes away ------------------------------------------------------------------------------


async def settle(rollouts: Rollouts) -> None:
    while tasks := [*rollouts._merger._tasks, *rollouts._releases]:
        await asyncio.wait(tasks)


async def check_nothing_is_lost(store: DatabaseLightningStore, call: asyncio.Task[Any], wanted: int) -> bool:
    """The claim is its caller's, or the rollouts are as if nobody had asked; says which."""
    await asyncio.wait([call])
    await settle(store.rollouts)
    await check_rules(store)
    if not call.cancelled():
        assert len(call.result()) == wanted
        return True
    assert {rollout.status for rollout in await store.query_rollouts()} == {"queuing"}
    again = await store.dequeue_many_rollouts(limit=wanted)
    assert [one.attempt.sequence_id for one in again] == [1] * wanted
    assert [one.input for one in again] == list(range(wanted))
    return False


async def test_a_claim_is_given_back_at_whatever_turn_its_caller_goes() -> None:
    delivered = []
    for turns in range(20):
        storage = InlineStorage.open(TABLES, clock=ManualClock(), ids=SeededIds(turns))
        store = DatabaseLightningStore(wire(storage))
        for i in range(2):
            await store.enqueue_rollout(i)
        call = asyncio.create_task(store.dequeue_many_rollouts(limit=2, worker_id="w"))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        delivered.append(await check_nothing_is_lost(store, call, 2))
        await store.close()
    assert delivered == sorted(delivered)
    assert delivered[-1]


@pytest.mark.parametrize("seed", range(3))
def test_a_claim_is_given_back_at_whatever_time_its_caller_goes(seed: int) -> None:
    async def main(patience: float) -> bool:
        chance = random.Random(seed)
        faults = Faults(latency=0.01)
        database = SimulatedDatabase(TABLES, ManualClock(), SeededIds(seed), chance, Trace())
        store = DatabaseLightningStore(wire(database.connect("caller", faults)))
        for i in range(3):
            await store.enqueue_rollout(i)
        call = asyncio.create_task(store.dequeue_many_rollouts(limit=3))
        await asyncio.sleep(patience)
        call.cancel()
        if store.rollouts._merger._tasks:
            await asyncio.wait(store.rollouts._merger._tasks)
        # Now only the giving back is under way, which must not give up.
        faults.error_before = faults.error_after = 0.4
        await settle(store.rollouts)
        faults.stop()
        delivered = await check_nothing_is_lost(store, call, 3)
        database.close()
        return delivered

    answers = [run_virtual(lambda p=patience: main(p / 2000)) for patience in range(60)]  # type: ignore[misc]
    assert not answers[0]
    assert answers[-1]


# --- the virtual loop -------------------------------------------------------------------------------------


def test_an_hour_passes_at_once() -> None:
    async def main() -> float:
        await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(1800))
        return asyncio.get_running_loop().time()

    started = time.monotonic()
    assert run_virtual(main) == pytest.approx(3600)
    assert time.monotonic() - started < 60


def test_a_run_in_which_everything_waits_fails() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="every task waits"):
        run_virtual(main)


def run(seeds: int = 20_000, first: int = 0) -> int:
    """The long run; returns how many commits were checked."""
    return sum(result.commits for result in swarm.run(seeds, first))
