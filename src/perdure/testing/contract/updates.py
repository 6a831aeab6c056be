"""Explicit updates of a rollout: they set the given fields, and adapt queue, end time and waiters."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import UNSET, LightningStore, RolloutConfig
from perdure.testing.grids import every

from .support import (
    QUEUED,
    ROLLOUT_STATUSES,
    TERMINAL,
    Contract,
    RolloutStatus,
    claim,
    drain,
    finish,
    get_rollout,
    list_attempts,
    new_rollout,
    retrying,
)

__all__ = ["TestRequeue", "TestTransitions", "TestUpdateRollout"]

FIELDS: list[tuple[str, Any]] = [
    ("input", {"new": True}),
    ("input", None),
    ("input", 0),
    ("mode", "test"),
    ("mode", None),
    ("resources_id", "rs-other"),
    ("resources_id", None),
    ("metadata", {"only": "this"}),
    ("metadata", {}),
    ("metadata", None),
    ("config", RolloutConfig(max_attempts=9, timeout_seconds=2.5, retry_condition=["timeout"])),
]
ALL = ("input", "mode", "resources_id", "status", "config", "metadata")


class TestUpdateRollout(Contract):
    """Updates field by field."""

    @every(("field", "value"), FIELDS)
    async def test_sets_one_field_and_keeps_the_others(
        self, store: LightningStore, field: str, value: Any
    ) -> None:
        config = retrying("failed", max_attempts=5)
        before = await store.enqueue_rollout({"old": 1}, "train", "rs-1", config, {"k": "v"})
        updated = await store.update_rollout(before.rollout_id, **{field: value})
        stored = await get_rollout(store, before.rollout_id)
        for rollout in (updated, stored):
            assert getattr(rollout, field) == value
            for other in set(ALL) - {field}:
                assert getattr(rollout, other) == getattr(before, other)

    async def test_unset_means_leave_alone(self, store: LightningStore) -> None:
        before = await store.enqueue_rollout("task", "val", "rs-1", retrying("failed"), {"k": "v"})
        await store.update_rollout(
            before.rollout_id,
            input=UNSET,
            mode=UNSET,
            resources_id=UNSET,
            status=UNSET,
            config=UNSET,
            metadata=UNSET,
        )
        assert await store.get_rollout_by_id(before.rollout_id) == before

    async def test_several_fields_at_once(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        await store.update_rollout(
            started.rollout_id, input=1, mode="val", status="failed", metadata={"m": 1}
        )
        stored = await get_rollout(store, started.rollout_id)
        assert (stored.input, stored.mode, stored.status, stored.metadata) == (1, "val", "failed", {"m": 1})

    async def test_metadata_is_replaced_not_merged(self, store: LightningStore) -> None:
        started = await store.start_rollout("task", metadata={"a": 1, "b": 2})
        await store.update_rollout(started.rollout_id, metadata={"b": 3})
        assert (await get_rollout(store, started.rollout_id)).metadata == {"b": 3}

    async def test_attempt_is_not_touched(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        await store.update_rollout(started.rollout_id, status="cancelled", metadata={"k": 1})
        assert await list_attempts(store, started.rollout_id) == [started.attempt]

    async def test_new_config_decides_the_next_report(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        await store.update_rollout(started.rollout_id, config=retrying("failed"))
        await finish(store, started, "failed")
        assert (await get_rollout(store, started.rollout_id)).status == "requeuing"

    async def test_fields_of_a_waiting_rollout_keep_its_place(self, store: LightningStore) -> None:
        first, second = await store.enqueue_rollout("a"), await store.enqueue_rollout("b")
        await store.update_rollout(first.rollout_id, metadata={"k": 1})
        assert await drain(store) == [first.rollout_id, second.rollout_id]

    async def test_claim_sees_the_update(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout("old")
        await store.update_rollout(queued.rollout_id, input="new")
        assert (await claim(store)).input == "new"

    async def test_unknown_rollout(self, store: LightningStore) -> None:
        with pytest.raises(ValueError, match=r"Item.*does not exist"):
            await store.update_rollout("ro-missing", status="failed")


class TestTransitions(Contract):
    """No status forbids another."""

    @every("target", ROLLOUT_STATUSES)
    @every("source", ROLLOUT_STATUSES)
    async def test_from_every_status_to_every_status(
        self, store: LightningStore, source: RolloutStatus, target: RolloutStatus
    ) -> None:
        started = await new_rollout(store)
        await store.update_rollout(started.rollout_id, status=source)
        updated = await store.update_rollout(started.rollout_id, status=target)
        stored = await get_rollout(store, started.rollout_id)
        for rollout in (updated, stored):
            assert rollout.status == target
            assert (rollout.end_time is not None) == (target in TERMINAL)
        assert await drain(store) == ([started.rollout_id] if target in QUEUED else [])

    @every("target", ROLLOUT_STATUSES)
    async def test_a_waiting_rollout_goes_to_every_status(
        self, store: LightningStore, target: RolloutStatus
    ) -> None:
        queued = await store.enqueue_rollout("task")
        updated = await store.update_rollout(queued.rollout_id, status=target)
        assert updated.status == target
        assert (updated.end_time is not None) == (target in TERMINAL)
        assert await drain(store) == ([queued.rollout_id] if target in QUEUED else [])

    @pytest.mark.parametrize("status", TERMINAL)
    async def test_end_time_is_not_before_the_start(
        self, store: LightningStore, status: RolloutStatus
    ) -> None:
        started = await new_rollout(store)
        ended = await store.update_rollout(started.rollout_id, status=status)
        assert ended.end_time is not None
        assert ended.end_time >= ended.start_time


class TestRequeue(Contract):
    """An explicit return to the queue adds one entry, in every state."""

    @pytest.mark.parametrize("status", QUEUED)
    async def test_next_claim_is_the_next_attempt(self, store: LightningStore, status: RolloutStatus) -> None:
        started = await new_rollout(store)
        await store.update_rollout(started.rollout_id, status=status)
        claimed = await claim(store)
        assert claimed.rollout_id == started.rollout_id
        assert claimed.attempt.sequence_id == 2
        assert await store.dequeue_rollout() is None

    @pytest.mark.parametrize("status", QUEUED)
    async def test_repeating_it_adds_no_entry(self, store: LightningStore, status: RolloutStatus) -> None:
        queued = await store.enqueue_rollout("task")
        for _ in range(3):
            await store.update_rollout(queued.rollout_id, status=status)
        assert await drain(store) == [queued.rollout_id]

    async def test_in_and_out_and_in_again_is_one_entry(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout("task")
        steps: tuple[RolloutStatus, ...] = (
            "cancelled",
            "queuing",
            "failed",
            "requeuing",
            "running",
            "queuing",
        )
        for status in steps:
            await store.update_rollout(queued.rollout_id, status=status)
        assert await drain(store) == [queued.rollout_id]

    async def test_a_finished_rollout_can_be_run_again(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        await finish(store, started)
        await store.update_rollout(started.rollout_id, status="requeuing")
        again = await claim(store)
        await finish(store, again)
        stored = await get_rollout(store, started.rollout_id)
        assert (stored.status, again.attempt.sequence_id) == ("succeeded", 2)

    async def test_start_attempt_takes_it_off_the_queue_again(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        await store.update_rollout(started.rollout_id, status="requeuing")
        await store.start_attempt(started.rollout_id)
        assert await drain(store) == []
