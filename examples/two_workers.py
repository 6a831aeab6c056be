"""A producer and two workers on one SQLite file; what fails is tried again, up to three times."""

import asyncio
import random
import tempfile
from pathlib import Path

from perdure import AttemptedRollout, LightningStore, RolloutConfig, Span, open_store

CONFIG = RolloutConfig(max_attempts=3, timeout_seconds=60, retry_condition=["failed", "timeout"])


async def answer(store: LightningStore, claimed: AttemptedRollout) -> None:
    """What an agent would do: think, and leave a span. It fails now and then."""
    attempt = claimed.attempt
    if random.random() < 0.3:
        raise RuntimeError("the model did not answer")
    number = await store.get_next_span_sequence_id(attempt.rollout_id, attempt.attempt_id)
    result = claimed.input["number"] ** 2
    await store.add_span(
        Span.from_attributes(
            rollout_id=attempt.rollout_id,
            attempt_id=attempt.attempt_id,
            sequence_id=number,
            name="answer",
            attributes={"result": result},
        )
    )


async def work(store: LightningStore, worker_id: str, done: asyncio.Event) -> None:
    """Claim, do, report; until there is nothing left to come."""
    while not done.is_set():
        claimed = await store.dequeue_rollout(worker_id)
        if claimed is None:
            await asyncio.sleep(0.02)
            continue
        try:
            await answer(store, claimed)
        except RuntimeError as error:
            print(f"{worker_id}: attempt {claimed.attempt.sequence_id} of {claimed.rollout_id}: {error}")
            await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="failed")
        else:
            await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")


async def main() -> None:
    path = Path(tempfile.mkdtemp()) / "squares.db"
    done = asyncio.Event()
    async with open_store(str(path)) as store, asyncio.TaskGroup() as group:
        for worker_id in ("worker-1", "worker-2"):
            group.create_task(work(store, worker_id, done))
        queued = [await store.enqueue_rollout({"number": number}, config=CONFIG) for number in range(10)]
        ended = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id for rollout in queued])
        done.set()
        succeeded = sum(rollout.status == "succeeded" for rollout in ended)
        print(f"{succeeded} of {len(ended)} succeeded; everything is in {path}")


asyncio.run(main())
