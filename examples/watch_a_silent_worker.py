"""What the watchdog does about a worker that dies, and about one that was only slow. The clock is ours."""

import asyncio

from perdure import InMemoryLightningStore, LightningStore, RolloutConfig, Span
from perdure.testing.clock import ManualClock

CONFIG = RolloutConfig(max_attempts=2, unresponsive_seconds=30, retry_condition=["unresponsive"])


async def report(store: LightningStore, rollout_id: str, moment: str) -> None:
    rollout = await store.get_rollout_by_id(rollout_id)
    assert rollout is not None
    attempts = [f"{each.sequence_id} {each.status}" for each in await store.query_attempts(rollout_id)]
    print(f"{moment:<42} rollout {rollout.status:<10} attempts: {', '.join(attempts)}")


async def a_worker_that_dies(store: LightningStore, clock: ManualClock) -> None:
    """The rollout is queued again, and another worker gets it."""
    started = await store.start_rollout("a task", config=CONFIG, worker_id="worker-1")
    clock.advance(31)
    await report(store, started.rollout_id, "31 s without a sign of worker-1")
    again = await store.dequeue_rollout("worker-2")
    assert again is not None
    await store.update_attempt(again.rollout_id, again.attempt.attempt_id, status="succeeded")
    await report(store, started.rollout_id, "worker-2 did it")


async def a_worker_that_was_slow(store: LightningStore, clock: ManualClock) -> None:
    """It speaks again before anybody else took over, and is believed."""
    started = await store.start_rollout("another task", config=CONFIG, worker_id="worker-3")
    clock.advance(31)
    await report(store, started.rollout_id, "31 s without a sign of worker-3")
    await store.add_span(
        Span.from_attributes(
            rollout_id=started.rollout_id,
            attempt_id=started.attempt.attempt_id,
            name="still here",
            attributes={},
        )
    )
    await report(store, started.rollout_id, "worker-3 sends a span")
    await store.update_attempt(started.rollout_id, started.attempt.attempt_id, status="succeeded")
    await report(store, started.rollout_id, "worker-3 did it after all")


async def main() -> None:
    clock = ManualClock()
    async with InMemoryLightningStore(clock=clock) as store:
        await a_worker_that_dies(store, clock)
        await a_worker_that_was_slow(store, clock)


asyncio.run(main())
