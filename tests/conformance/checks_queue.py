"""The queue, rollouts, attempts, retries and the watchdog."""

import asyncio
import time
from typing import Any

from agentlightning.types import (
    Attempt,
    AttemptedRollout,
    EnqueueRolloutRequest,
    PromptTemplate,
    Rollout,
    RolloutConfig,
)
from tests.conformance.framework import Run, check, make_span, refused, retrying, started, until

INPUT = {"question": "ü", "numbers": [1, 2.5, None, True], "deep": {"a": [{}]}}


@check("start_rollout takes every argument")
async def start_rollout(store: Any, run: Run) -> None:
    config = RolloutConfig(
        timeout_seconds=60, unresponsive_seconds=30.5, max_attempts=3, retry_condition=["failed", "timeout"]
    )
    before = time.time() - 5
    rollout = await store.start_rollout(INPUT, "train", "res-add", config, {"k": [1]}, worker_id="w")
    assert type(rollout) is AttemptedRollout
    assert rollout.rollout_id.startswith("ro-")
    assert (rollout.input, rollout.mode, rollout.resources_id) == (INPUT, "train", "res-add")
    assert (rollout.config, rollout.metadata, rollout.status) == (config, {"k": [1]}, "preparing")
    assert before < rollout.start_time < time.time() + 5
    attempt = rollout.attempt
    assert (attempt.sequence_id, attempt.status, attempt.worker_id) == (1, "preparing", "w")
    assert await store.get_rollout_by_id(rollout.rollout_id) == rollout
    assert (await store.get_worker_by_id("w")).status == "busy"


@check("start_rollout and enqueue_rollout take the latest resources")
async def latest_resources(store: Any, run: Run) -> None:
    assert (await store.start_rollout(1)).resources_id is None
    added = await store.add_resources({"p": PromptTemplate(template="t", engine="f-string")})
    assert (await store.start_rollout(1)).resources_id == added.resources_id
    assert (await store.enqueue_rollout(1)).resources_id == added.resources_id


@check("enqueue_rollout takes every argument")
async def enqueue_rollout(store: Any, run: Run) -> None:
    rollout = await store.enqueue_rollout(INPUT, "val", "r", retrying("failed"), {"m": None})
    assert type(rollout) is Rollout
    assert (rollout.status, rollout.mode, rollout.resources_id) == ("queuing", "val", "r")
    assert (rollout.input, rollout.config, rollout.metadata) == (INPUT, retrying("failed"), {"m": None})
    assert type(await store.get_rollout_by_id(rollout.rollout_id)) is Rollout
    assert await store.get_latest_attempt(rollout.rollout_id) is None


@check("enqueue_many_rollouts keeps the order")
async def enqueue_many(store: Any, run: Run) -> None:
    assert await store.enqueue_many_rollouts([]) == []
    requests = [EnqueueRolloutRequest(input=number, metadata={"n": number}) for number in range(20)]
    queued = await store.enqueue_many_rollouts(requests)
    assert [each.input for each in queued] == list(range(20))
    assert [(await store.dequeue_rollout()).input for _ in range(20)] == list(range(20))
    assert await store.dequeue_rollout() is None


@check("dequeue_rollout begins an attempt for its worker")
async def dequeue(store: Any, run: Run) -> None:
    assert await store.dequeue_rollout("w") is None
    idle = await store.get_worker_by_id("w")
    assert (idle.status, idle.last_dequeue_time is not None) == ("idle", True)
    queued = await store.enqueue_rollout(1)
    claimed = await store.dequeue_rollout(worker_id="w")
    assert type(claimed) is AttemptedRollout
    assert (claimed.rollout_id, claimed.status) == (queued.rollout_id, "preparing")
    assert (claimed.attempt.sequence_id, claimed.attempt.worker_id) == (1, "w")
    worker = await store.get_worker_by_id("w")
    assert (worker.status, worker.current_rollout_id) == ("busy", claimed.rollout_id)
    assert worker.current_attempt_id == claimed.attempt.attempt_id


@check("dequeue_many_rollouts takes up to its limit")
async def dequeue_many(store: Any, run: Run) -> None:
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(5)])
    assert await store.dequeue_many_rollouts(limit=0) == []
    assert await store.dequeue_many_rollouts(limit=-1) == []
    first = await store.dequeue_many_rollouts(limit=3, worker_id="w")
    assert [each.input for each in first] == [0, 1, 2]
    assert (await store.get_worker_by_id("w")).current_rollout_id == first[-1].rollout_id
    assert [each.input for each in await store.dequeue_many_rollouts(limit=10)] == [3, 4]
    assert await store.dequeue_many_rollouts(limit=10) == []


@check("thirty claims at once of twenty rollouts share none")
async def concurrent_dequeue(store: Any, run: Run) -> None:
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(20)])
    claimed = await asyncio.gather(*(store.dequeue_rollout() for _ in range(30)))
    assert sorted(each.input for each in claimed if each) == list(range(20))


@check("what was ended while it was queued is not claimed")
async def stale_entries(store: Any, run: Run) -> None:
    queued = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(4)])
    for rollout, status in zip(queued, ("cancelled", "succeeded", "failed"), strict=False):
        await store.update_rollout(rollout.rollout_id, status=status)
    assert (await store.dequeue_rollout()).input == 3
    assert await store.dequeue_rollout() is None


@check("start_attempt ignores limits and endings")
async def start_attempt(store: Any, run: Run) -> None:
    rollout = await started(store)
    await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    second = await store.start_attempt(rollout.rollout_id)
    assert (second.status, second.attempt.sequence_id, second.attempt.worker_id) == ("preparing", 2, None)
    third = await store.start_attempt(rollout.rollout_id, worker_id="w")
    assert (third.attempt.sequence_id, third.attempt.worker_id) == (3, "w")
    assert (await store.get_latest_attempt(rollout.rollout_id)).sequence_id == 3


@check("update_rollout sets what is given, and None is a value")
async def update_rollout(store: Any, run: Run) -> None:
    rollout = await started(store, mode="train", metadata={"a": 1})
    changed = await store.update_rollout(
        rollout.rollout_id, {"new": 1}, "test", "res", config=retrying("timeout"), metadata={"b": 2}
    )
    assert (changed.input, changed.mode, changed.resources_id) == ({"new": 1}, "test", "res")
    assert (changed.config, changed.metadata) == (retrying("timeout"), {"b": 2})
    same = await store.update_rollout(rollout.rollout_id)
    assert (same.input, same.mode, same.metadata) == ({"new": 1}, "test", {"b": 2})
    empty = await store.update_rollout(rollout.rollout_id, None, None, None, metadata=None)
    assert (empty.input, empty.mode, empty.resources_id) == (None, None, None)
    assert empty.config == retrying("timeout")


@check("update_rollout sets any status, and requeues once")
async def update_status(store: Any, run: Run) -> None:
    rollout = await started(store)
    ended = await store.update_rollout(rollout.rollout_id, status="succeeded")
    assert (ended.status, ended.end_time is not None) == ("succeeded", True)
    for _ in range(2):
        await store.update_rollout(rollout.rollout_id, status="requeuing")
    again = await store.dequeue_rollout()
    assert (again.rollout_id, again.attempt.sequence_id) == (rollout.rollout_id, 2)
    assert await store.dequeue_rollout() is None


@check("update_attempt sets what is given, and the rollout follows")
async def update_attempt(store: Any, run: Run) -> None:
    rollout = await started(store)
    ids = (rollout.rollout_id, rollout.attempt.attempt_id)
    running = await store.update_attempt(
        *ids, status="running", worker_id="w", last_heartbeat_time=1234.5, metadata={"m": 1}
    )
    assert type(running) is Attempt
    assert (running.status, running.worker_id, running.metadata) == ("running", "w", {"m": 1})
    assert running.last_heartbeat_time == 1234.5
    assert (await store.get_rollout_by_id(rollout.rollout_id)).status == "running"
    done = await store.update_attempt(rollout.rollout_id, "latest", "succeeded")
    assert (done.status, done.worker_id, done.end_time is not None) == ("succeeded", "w", True)
    ended = await store.get_rollout_by_id(rollout.rollout_id)
    assert (ended.status, ended.end_time is not None) == ("succeeded", True)
    assert (await store.get_worker_by_id("w")).status == "idle"


@check("a failed attempt is tried again, up to max_attempts")
async def retry(store: Any, run: Run) -> None:
    rollout = await store.enqueue_rollout(1, config=retrying("failed"))
    for number, status in ((1, "requeuing"), (2, "failed")):
        claimed = await store.dequeue_rollout()
        assert claimed.attempt.sequence_id == number
        await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="failed")
        assert (await store.get_rollout_by_id(rollout.rollout_id)).status == status
    assert await store.dequeue_rollout() is None


@check("only the latest attempt moves its rollout")
async def older_attempt(store: Any, run: Run) -> None:
    rollout = await started(store)
    await store.start_attempt(rollout.rollout_id)
    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
    assert (await store.get_rollout_by_id(rollout.rollout_id)).status == "preparing"


@check("an attempt that takes too long times out")
async def timeout(store: Any, run: Run) -> None:
    rollout = await started(store, config=RolloutConfig(timeout_seconds=0.2), worker_id="w")

    async def ended() -> bool:
        return bool((await store.get_rollout_by_id(rollout.rollout_id)).status == "failed")

    await until(ended, "the timeout")
    assert (await store.get_latest_attempt(rollout.rollout_id)).status == "timeout"
    assert (await store.get_worker_by_id("w")).status == "unknown"


@check("a silent attempt is tried again, and a late span revives it")
async def unresponsive(store: Any, run: Run) -> None:
    config = retrying("unresponsive", unresponsive_seconds=0.2)
    rollout = await started(store, config=config)

    async def requeued() -> bool:
        return bool((await store.get_rollout_by_id(rollout.rollout_id)).status == "requeuing")

    await until(requeued, "the end of the silent attempt")
    await store.update_rollout(rollout.rollout_id, config=RolloutConfig())
    assert await store.add_span(make_span(rollout, 1)) is not None
    assert (await store.get_rollout_by_id(rollout.rollout_id)).status == "running"
    assert await store.dequeue_rollout() is None


@check("an unknown rollout or attempt fails at once")
async def unknown_ids(store: Any, run: Run) -> None:
    rollout = await started(store)
    async with refused(400):
        await store.update_rollout("ro-unknown", status="failed")
    async with refused(400):
        await store.start_attempt("ro-unknown")
    async with refused(400):
        await store.update_attempt("ro-unknown", "latest", status="failed")
    async with refused(400):
        await store.update_attempt(rollout.rollout_id, "at-unknown", status="failed")
    queued = await store.enqueue_rollout(1)
    async with refused(400):
        await store.update_attempt(queued.rollout_id, "latest", status="failed")


@check("what is unknown is None, at once")
async def nothing(store: Any, run: Run) -> None:
    before = time.monotonic()
    assert await store.get_rollout_by_id("ro-unknown") is None
    assert await store.get_latest_attempt("ro-unknown") is None
    assert await store.get_resources_by_id("rs-unknown") is None
    assert await store.get_latest_resources() is None
    assert await store.get_worker_by_id("w-unknown") is None
    assert time.monotonic() - before < 3


@check("bad values are refused, and change nothing")
async def bad_values(store: Any, run: Run) -> None:
    rollout = await started(store)
    async with refused(422):
        await store.update_rollout(rollout.rollout_id, status="timeout")
    async with refused(400):
        await store.update_rollout(rollout.rollout_id, status=None)
    async with refused(422):
        await store.update_attempt(rollout.rollout_id, "latest", status="cancelled")
    async with refused(400):
        await store.update_attempt(rollout.rollout_id, "latest", metadata=None)
    async with refused(400):
        await store.update_worker("w", heartbeat_stats=None)
    assert await store.get_worker_by_id("w") is None
    assert await store.get_rollout_by_id(rollout.rollout_id) == rollout
