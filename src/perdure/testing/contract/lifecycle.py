"""Starting, enqueueing and claiming rollouts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from perdure import (
    AttemptedRollout,
    EnqueueRolloutRequest,
    LightningStore,
    PromptTemplate,
    Rollout,
    RolloutConfig,
)
from perdure.testing.grids import every

from .support import (
    TERMINAL,
    Contract,
    RolloutStatus,
    claim,
    drain,
    finish,
    get_rollout,
    get_worker,
    list_attempts,
    new_rollout,
    retrying,
)

__all__ = ["TestDequeue", "TestDequeueMany", "TestEnqueue", "TestEveryCreator", "TestStartRollout"]

INPUTS: list[Any] = [
    None,
    "",
    "text",
    0,
    -1,
    2**53 + 1,
    0.1,
    True,
    [],
    {},
    [1, "two", None, [3.5]],
    {"nested": {"list": [{"deep": True}]}, "": "empty key"},
    {"order": 1, "kept": 2, "a": 3},
    "Grüße, 世界, 👋",
    "tab\tquote\"back\\slash'",
    {"nul": "a\x00b"},
]
MODES = [None, "train", "val", "test"]
CREATORS = ["start_rollout", "enqueue_rollout", "enqueue_many_rollouts"]


async def create(store: LightningStore, creator: str, input: Any = "task", **fields: Any) -> Rollout:
    """Create a rollout by one of the three calls that create rollouts."""
    if creator == "start_rollout":
        return await store.start_rollout(input, **fields)
    if creator == "enqueue_rollout":
        return await store.enqueue_rollout(input, **fields)
    return (await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=input, **fields)]))[0]


@pytest.mark.parametrize("creator", CREATORS)
class TestEveryCreator(Contract):
    """Properties of a new rollout, for every call that creates one."""

    @every("input", INPUTS)
    async def test_input_comes_back_as_it_was_given(
        self, store: LightningStore, creator: str, input: Any
    ) -> None:
        created = await create(store, creator, input)
        stored = await get_rollout(store, created.rollout_id)
        assert created.input == input
        assert stored.input == input
        assert type(stored.input) is type(input)

    @every("mode", MODES)
    async def test_mode_is_kept(self, store: LightningStore, creator: str, mode: Any) -> None:
        created = await create(store, creator, mode=mode)
        assert (await get_rollout(store, created.rollout_id)).mode == mode

    async def test_id_has_the_contracts_shape(self, store: LightningStore, creator: str) -> None:
        created = await create(store, creator)
        assert re.fullmatch(r"ro-[0-9a-f]{12}", created.rollout_id)

    async def test_defaults(self, store: LightningStore, creator: str) -> None:
        created = await create(store, creator)
        stored = await get_rollout(store, created.rollout_id)
        for rollout in (created, stored):
            assert rollout.config == RolloutConfig()
            assert rollout.metadata == {}
            assert rollout.mode is None
            assert rollout.resources_id is None
            assert rollout.end_time is None
            assert rollout.start_time > 0

    async def test_config_is_kept(self, store: LightningStore, creator: str) -> None:
        config = RolloutConfig(
            timeout_seconds=1.5,
            unresponsive_seconds=60.0,
            max_attempts=4,
            retry_condition=["failed", "timeout"],
        )
        created = await create(store, creator, config=config)
        stored = await get_rollout(store, created.rollout_id)
        assert created.config == config
        assert stored.config == config

    async def test_config_is_copied(self, store: LightningStore, creator: str) -> None:
        config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
        created = await create(store, creator, config=config)
        config.retry_condition.append("timeout")
        assert (await get_rollout(store, created.rollout_id)).config.retry_condition == ["failed"]

    async def test_metadata_is_copied(self, store: LightningStore, creator: str) -> None:
        metadata = {"run": 1}
        created = await create(store, creator, metadata=metadata)
        metadata["run"] = 2
        assert (await get_rollout(store, created.rollout_id)).metadata == {"run": 1}

    async def test_latest_resources_are_the_default(self, store: LightningStore, creator: str) -> None:
        update = await store.add_resources({"prompt": PromptTemplate(template="{x}", engine="f-string")})
        created = await create(store, creator)
        assert created.resources_id == update.resources_id
        assert (await get_rollout(store, created.rollout_id)).resources_id == update.resources_id

    async def test_named_resources_win_over_the_latest(self, store: LightningStore, creator: str) -> None:
        first = await store.add_resources({"prompt": PromptTemplate(template="{x}", engine="f-string")})
        await store.add_resources({"prompt": PromptTemplate(template="{y}", engine="f-string")})
        created = await create(store, creator, resources_id=first.resources_id)
        assert (await get_rollout(store, created.rollout_id)).resources_id == first.resources_id

    async def test_unknown_resources_id_is_accepted(self, store: LightningStore, creator: str) -> None:
        created = await create(store, creator, resources_id="res-add")
        assert (await get_rollout(store, created.rollout_id)).resources_id == "res-add"


class TestStartRollout(Contract):
    """A rollout started by its own runner never enters the queue."""

    async def test_rollout_and_first_attempt_are_preparing(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        assert type(started) is AttemptedRollout
        assert started.status == "preparing"
        assert started.attempt.status == "preparing"
        assert started.attempt.sequence_id == 1
        assert started.attempt.rollout_id == started.rollout_id

    async def test_attempt_starts_blank(self, store: LightningStore) -> None:
        attempt = (await store.start_rollout("task")).attempt
        assert re.fullmatch(r"at-[0-9a-f]{8}", attempt.attempt_id)
        assert attempt.start_time > 0
        assert attempt.end_time is None
        assert attempt.worker_id is None
        assert attempt.last_heartbeat_time is None

    async def test_bypasses_the_queue(self, store: LightningStore) -> None:
        await store.start_rollout("task")
        assert await store.dequeue_rollout() is None

    async def test_answer_equals_what_is_stored(self, store: LightningStore) -> None:
        started = await store.start_rollout("task", mode="val", metadata={"k": [1]}, worker_id="w")
        assert await store.get_rollout_by_id(started.rollout_id) == started

    async def test_worker_is_recorded_and_busy(self, store: LightningStore) -> None:
        started = await new_rollout(store, worker_id="w")
        assert started.attempt.worker_id == "w"
        worker = await get_worker(store, "w")
        assert (worker.status, worker.current_rollout_id, worker.current_attempt_id) == (
            "busy",
            started.rollout_id,
            started.attempt.attempt_id,
        )


class TestEnqueue(Contract):
    """The tail of the queue."""

    async def test_waits_without_an_attempt(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout("task")
        assert type(queued) is Rollout
        assert queued.status == "queuing"
        assert await store.get_latest_attempt(queued.rollout_id) is None
        assert await list_attempts(store, queued.rollout_id) == []

    async def test_answer_equals_what_is_stored(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout({"a": 1}, mode="train", metadata={"k": "v"})
        assert await store.get_rollout_by_id(queued.rollout_id) == queued

    async def test_many_keep_their_order(self, store: LightningStore) -> None:
        queued = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(20)])
        assert [rollout.input for rollout in queued] == list(range(20))
        assert await drain(store) == [rollout.rollout_id for rollout in queued]

    async def test_many_of_nothing_is_nothing(self, store: LightningStore) -> None:
        assert list(await store.enqueue_many_rollouts([])) == []

    async def test_many_keep_what_each_asked_for(self, store: LightningStore) -> None:
        requests = [
            EnqueueRolloutRequest(input="a", mode="train", resources_id="r1", metadata={"n": 1}),
            EnqueueRolloutRequest(input="b", config=retrying("failed", max_attempts=7)),
        ]
        first, second = await store.enqueue_many_rollouts(requests)
        assert (first.mode, first.resources_id, first.metadata) == ("train", "r1", {"n": 1})
        assert (second.mode, second.resources_id, second.config.max_attempts) == (None, None, 7)

    async def test_ids_are_unique(self, store: LightningStore) -> None:
        queued = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(300)])
        assert len({rollout.rollout_id for rollout in queued}) == 300

    async def test_one_and_many_share_the_queue(self, store: LightningStore) -> None:
        first = await store.enqueue_rollout("first")
        middle = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(2)])
        last = await store.enqueue_rollout("last")
        expected = [first, *middle, last]
        assert await drain(store) == [rollout.rollout_id for rollout in expected]


class TestDequeue(Contract):
    """Claims: first in, first out, and never a rollout that no longer waits."""

    async def test_empty_queue_gives_none(self, store: LightningStore) -> None:
        assert await store.dequeue_rollout() is None

    async def test_claim_makes_an_attempt(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout("task")
        claimed = await claim(store)
        assert type(claimed) is AttemptedRollout
        assert claimed.rollout_id == queued.rollout_id
        assert claimed.status == "preparing"
        assert (claimed.attempt.sequence_id, claimed.attempt.status) == (1, "preparing")
        assert await store.get_rollout_by_id(queued.rollout_id) == claimed

    async def test_claim_keeps_what_was_enqueued(self, store: LightningStore) -> None:
        config = retrying("failed")
        queued = await store.enqueue_rollout({"q": 1}, "test", "res", config, {"m": 2})
        claimed = await claim(store)
        assert (claimed.input, claimed.mode, claimed.resources_id) == ({"q": 1}, "test", "res")
        assert (claimed.config, claimed.metadata) == (config, {"m": 2})
        assert claimed.start_time == queued.start_time

    async def test_first_in_first_out(self, store: LightningStore) -> None:
        queued = [await store.enqueue_rollout(i) for i in range(5)]
        assert await drain(store) == [rollout.rollout_id for rollout in queued]

    async def test_claimed_only_once(self, store: LightningStore) -> None:
        await store.enqueue_rollout("task")
        await claim(store)
        assert await store.dequeue_rollout() is None

    @every("status", [*TERMINAL, "preparing", "running"])
    async def test_skips_what_no_longer_waits(self, store: LightningStore, status: RolloutStatus) -> None:
        stale = await store.enqueue_rollout("stale")
        fresh = await store.enqueue_rollout("fresh")
        await store.update_rollout(stale.rollout_id, status=status)
        assert await drain(store) == [fresh.rollout_id]
        assert (await get_rollout(store, stale.rollout_id)).status == status

    async def test_skips_many_stale_entries_in_a_row(self, store: LightningStore) -> None:
        for i in range(10):
            stale = await store.enqueue_rollout(i)
            await store.update_rollout(stale.rollout_id, status="cancelled")
        fresh = await store.enqueue_rollout("fresh")
        assert (await claim(store)).rollout_id == fresh.rollout_id

    async def test_retry_goes_to_the_tail(self, store: LightningStore) -> None:
        first = await store.enqueue_rollout("first", config=retrying("failed"))
        second = await store.enqueue_rollout("second")
        await finish(store, await claim(store), "failed")
        assert await drain(store) == [second.rollout_id, first.rollout_id]

    async def test_retry_is_the_next_attempt(self, store: LightningStore) -> None:
        await store.enqueue_rollout("task", config=retrying("failed"))
        first = await claim(store)
        await finish(store, first, "failed")
        second = await claim(store)
        assert second.rollout_id == first.rollout_id
        assert second.attempt.sequence_id == 2
        assert second.attempt.attempt_id != first.attempt.attempt_id

    async def test_worker_is_recorded_on_the_attempt(self, store: LightningStore) -> None:
        await store.enqueue_rollout("task")
        assert (await claim(store, "w")).attempt.worker_id == "w"


class TestDequeueMany(Contract):
    """Claiming several at once."""

    @every(("limit", "expected"), [(-5, 0), (-1, 0), (0, 0), (1, 1), (3, 3), (5, 5), (9, 5)])
    async def test_takes_up_to_the_limit(self, store: LightningStore, limit: int, expected: int) -> None:
        queued = [await store.enqueue_rollout(i) for i in range(5)]
        claimed = await store.dequeue_many_rollouts(limit=limit)
        assert [one.rollout_id for one in claimed] == [one.rollout_id for one in queued[:expected]]
        assert await drain(store) == [one.rollout_id for one in queued[expected:]]

    async def test_default_limit_is_one(self, store: LightningStore) -> None:
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(2)])
        assert len(await store.dequeue_many_rollouts()) == 1

    async def test_empty_queue_gives_an_empty_list(self, store: LightningStore) -> None:
        assert await store.dequeue_many_rollouts(limit=3) == []

    async def test_each_has_its_own_attempt(self, store: LightningStore) -> None:
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(4)])
        claimed = await store.dequeue_many_rollouts(limit=4, worker_id="w")
        assert len({one.attempt.attempt_id for one in claimed}) == 4
        assert {one.attempt.sequence_id for one in claimed} == {1}
        assert {one.attempt.worker_id for one in claimed} == {"w"}
        assert {one.status for one in claimed} == {"preparing"}

    async def test_skips_stale_entries_and_still_fills_the_limit(self, store: LightningStore) -> None:
        queued = [await store.enqueue_rollout(i) for i in range(6)]
        for stale in (queued[0], queued[2]):
            await store.update_rollout(stale.rollout_id, status="cancelled")
        claimed = await store.dequeue_many_rollouts(limit=3)
        assert [one.input for one in claimed] == [1, 3, 4]

    async def test_worker_holds_the_last_one(self, store: LightningStore) -> None:
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(3)])
        claimed = await store.dequeue_many_rollouts(limit=3, worker_id="w")
        worker = await get_worker(store, "w")
        assert worker.status == "busy"
        assert worker.current_rollout_id == claimed[-1].rollout_id
        assert worker.current_attempt_id == claimed[-1].attempt.attempt_id
