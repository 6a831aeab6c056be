"""Attempts: new ones, reports about them, and their effect on the rollout."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import LightningStore, RolloutConfig
from perdure.testing.grids import every

from .support import (
    ATTEMPT_STATUSES,
    ENDED,
    RETRIABLE,
    ROLLOUT_STATUSES,
    TERMINAL,
    AttemptStatus,
    Contract,
    RolloutStatus,
    claim,
    drain,
    finish,
    get_rollout,
    get_worker,
    latest,
    list_attempts,
    new_rollout,
    retrying,
)

__all__ = ["TestOlderAttempts", "TestPropagation", "TestStartAttempt", "TestUpdateAttempt"]


class TestStartAttempt(Contract):
    """The manual retry."""

    @every("status", ROLLOUT_STATUSES)
    async def test_reopens_a_rollout_in_any_status(
        self, store: LightningStore, status: RolloutStatus
    ) -> None:
        started = await new_rollout(store)
        await store.update_rollout(started.rollout_id, status=status)
        again = await store.start_attempt(started.rollout_id)
        assert again.status == "preparing"
        assert (again.attempt.sequence_id, again.attempt.status) == (2, "preparing")
        assert (await get_rollout(store, started.rollout_id)).status == "preparing"

    async def test_first_attempt_of_a_waiting_rollout_takes_it_off_the_queue(
        self, store: LightningStore
    ) -> None:
        queued = await store.enqueue_rollout("task")
        started = await store.start_attempt(queued.rollout_id)
        assert started.attempt.sequence_id == 1
        assert await drain(store) == []

    async def test_ignores_max_attempts(self, store: LightningStore) -> None:
        started = await new_rollout(store, RolloutConfig(max_attempts=1))
        for expected in (2, 3, 4):
            again = await store.start_attempt(started.rollout_id)
            assert again.attempt.sequence_id == expected

    async def test_answer_equals_what_is_stored(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        again = await store.start_attempt(started.rollout_id, worker_id="w")
        assert await store.get_rollout_by_id(started.rollout_id) == again

    async def test_earlier_attempts_stay_as_they_were(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        ended = await finish(store, started)
        await store.start_attempt(started.rollout_id)
        assert (await list_attempts(store, started.rollout_id))[0] == ended

    async def test_worker_is_recorded_and_busy(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        again = await store.start_attempt(started.rollout_id, "w")
        assert again.attempt.worker_id == "w"
        worker = await get_worker(store, "w")
        assert (worker.status, worker.current_attempt_id) == ("busy", again.attempt.attempt_id)

    async def test_unknown_rollout(self, store: LightningStore) -> None:
        with pytest.raises(ValueError, match="Rollout ro-missing not found"):
            await store.start_attempt("ro-missing")


class TestUpdateAttempt(Contract):
    """Reports about an attempt."""

    @every("status", ATTEMPT_STATUSES)
    async def test_sets_the_status_it_is_told(self, store: LightningStore, status: AttemptStatus) -> None:
        started = await new_rollout(store)
        updated = await finish(store, started, status)
        assert updated.status == status
        assert await latest(store, started.rollout_id) == updated

    @every("status", ATTEMPT_STATUSES)
    async def test_only_a_final_report_sets_the_end_time(
        self, store: LightningStore, status: AttemptStatus
    ) -> None:
        started = await new_rollout(store)
        updated = await finish(store, started, status)
        assert (updated.end_time is not None) == (status in ENDED)

    @pytest.mark.parametrize("status", ENDED)
    async def test_end_time_is_not_before_the_start(
        self, store: LightningStore, status: AttemptStatus
    ) -> None:
        updated = await finish(store, await new_rollout(store), status)
        assert updated.end_time is not None
        assert updated.end_time >= updated.start_time

    async def test_latest_names_the_newest_attempt(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        again = await store.start_attempt(started.rollout_id)
        updated = await store.update_attempt(started.rollout_id, "latest", metadata={"k": 1})
        assert updated.attempt_id == again.attempt.attempt_id
        first, second = await list_attempts(store, started.rollout_id)
        assert (first.metadata, second.metadata) == (started.attempt.metadata, {"k": 1})

    async def test_an_older_attempt_can_be_named(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        await store.start_attempt(started.rollout_id)
        updated = await store.update_attempt(
            started.rollout_id, started.attempt.attempt_id, metadata={"k": 1}
        )
        assert updated.sequence_id == 1
        assert (await list_attempts(store, started.rollout_id))[0].metadata == {"k": 1}

    async def test_metadata_is_replaced_not_merged(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        await store.update_attempt(started.rollout_id, "latest", metadata={"a": 1, "b": 2})
        await store.update_attempt(started.rollout_id, "latest", metadata={"b": 3})
        assert (await latest(store, started.rollout_id)).metadata == {"b": 3}

    async def test_heartbeat_time_is_kept_as_given(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        beat = started.attempt.start_time + 1.5
        updated = await store.update_attempt(started.rollout_id, "latest", last_heartbeat_time=beat)
        assert updated.last_heartbeat_time == pytest.approx(beat, abs=1e-5)
        assert updated.status == "preparing"

    async def test_what_is_not_named_is_kept(self, store: LightningStore) -> None:
        started = await new_rollout(store, worker_id="w")
        await store.update_attempt(started.rollout_id, "latest", metadata={"a": 1})
        beat = started.attempt.start_time + 1.5
        await store.update_attempt(started.rollout_id, "latest", last_heartbeat_time=beat)
        updated = await store.update_attempt(started.rollout_id, "latest", status="running")
        assert (updated.worker_id, updated.metadata) == ("w", {"a": 1})
        assert updated.last_heartbeat_time == pytest.approx(beat, abs=1e-5)

    async def test_several_fields_at_once(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        updated = await store.update_attempt(
            started.rollout_id,
            started.attempt.attempt_id,
            status="running",
            worker_id="w",
            last_heartbeat_time=started.attempt.start_time + 2,
            metadata={"k": "v"},
        )
        assert (updated.status, updated.worker_id, updated.metadata) == ("running", "w", {"k": "v"})
        assert await latest(store, started.rollout_id) == updated

    async def test_worker_can_be_set_and_cleared(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        assert (await store.update_attempt(started.rollout_id, "latest", worker_id="w")).worker_id == "w"
        assert (await store.update_attempt(started.rollout_id, "latest", worker_id="")).worker_id == ""
        assert (await latest(store, started.rollout_id)).worker_id == ""

    async def test_unknown_rollout(self, store: LightningStore) -> None:
        with pytest.raises(ValueError, match="Rollout ro-missing not found"):
            await store.update_attempt("ro-missing", "latest", status="running")

    @pytest.mark.parametrize("attempt_id", ["latest", "at-missing"])
    async def test_rollout_without_attempts(self, store: LightningStore, attempt_id: str) -> None:
        queued = await store.enqueue_rollout("task")
        with pytest.raises(ValueError, match=f"No attempts found for rollout {queued.rollout_id}"):
            await store.update_attempt(queued.rollout_id, attempt_id, status="running")

    async def test_unknown_attempt(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        message = f"Attempt at-missing not found for rollout {started.rollout_id}"
        with pytest.raises(ValueError, match=message):
            await store.update_attempt(started.rollout_id, "at-missing", status="running")

    async def test_attempt_of_another_rollout_is_unknown(self, store: LightningStore) -> None:
        mine, other = await new_rollout(store), await new_rollout(store)
        with pytest.raises(ValueError, match="not found for rollout"):
            await store.update_attempt(mine.rollout_id, other.attempt.attempt_id, status="failed")
        assert (await latest(store, other.rollout_id)).status == "preparing"


def expected_rollout(status: AttemptStatus, retried: bool, attempts_left: bool) -> RolloutStatus:
    """Return the rollout status that the contract requires for the status of the latest attempt."""
    if status in RETRIABLE:
        return "requeuing" if retried and attempts_left else "failed"
    outcome: dict[Any, RolloutStatus] = {
        "preparing": "preparing",
        "running": "running",
        "succeeded": "succeeded",
    }
    return outcome[status]


class TestPropagation(Contract):
    """The latest attempt's status decides the rollout's."""

    @every("attempts_left", [True, False])
    @every("retried", [True, False])
    @every("status", ATTEMPT_STATUSES)
    async def test_every_status(
        self, store: LightningStore, status: AttemptStatus, retried: bool, attempts_left: bool
    ) -> None:
        condition = [status] if retried else [other for other in ATTEMPT_STATUSES if other != status]
        config = RolloutConfig(max_attempts=2 if attempts_left else 1, retry_condition=condition)
        started = await new_rollout(store, config)
        await finish(store, started, status)
        expected = expected_rollout(status, retried, attempts_left)
        rollout = await get_rollout(store, started.rollout_id)
        assert rollout.status == expected
        assert (rollout.end_time is not None) == (expected in TERMINAL)
        assert await drain(store) == ([started.rollout_id] if expected == "requeuing" else [])

    @every("before", [status for status in ROLLOUT_STATUSES if status != "cancelled"])
    async def test_success_is_believed_whatever_the_rollout_was(
        self, store: LightningStore, before: RolloutStatus
    ) -> None:
        started = await new_rollout(store)
        await store.update_rollout(started.rollout_id, status=before)
        await finish(store, started)
        assert (await get_rollout(store, started.rollout_id)).status == "succeeded"
        assert await drain(store) == []

    @pytest.mark.parametrize("status", RETRIABLE)
    async def test_retries_until_the_attempts_are_used_up(
        self, store: LightningStore, status: AttemptStatus
    ) -> None:
        queued = await store.enqueue_rollout("task", config=retrying(status, max_attempts=3))
        for expected in ("requeuing", "requeuing", "failed"):
            await finish(store, await claim(store), status)
            assert (await get_rollout(store, queued.rollout_id)).status == expected
        assert len(await list_attempts(store, queued.rollout_id)) == 3
        assert await store.dequeue_rollout() is None

    async def test_success_on_a_retry(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout("task", config=retrying("failed"))
        await finish(store, await claim(store), "failed")
        await finish(store, await claim(store), "succeeded")
        rollout = await get_rollout(store, queued.rollout_id)
        assert rollout.status == "succeeded"
        assert [one.status for one in await list_attempts(store, queued.rollout_id)] == [
            "failed",
            "succeeded",
        ]

    async def test_attempt_beyond_the_maximum_is_not_retried(self, store: LightningStore) -> None:
        started = await new_rollout(store, retrying("failed", max_attempts=2))
        await store.start_attempt(started.rollout_id)
        third = await store.start_attempt(started.rollout_id)
        await finish(store, third, "failed")
        assert (await get_rollout(store, started.rollout_id)).status == "failed"

    async def test_a_report_may_be_corrected(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        await finish(store, started, "succeeded")
        await finish(store, started, "failed")
        assert (await get_rollout(store, started.rollout_id)).status == "failed"
        assert (await latest(store, started.rollout_id)).status == "failed"


class TestOlderAttempts(Contract):
    """Only the latest attempt changes the rollout."""

    @every("status", ATTEMPT_STATUSES)
    async def test_its_reports_leave_the_rollout_alone(
        self, store: LightningStore, status: AttemptStatus
    ) -> None:
        started = await new_rollout(store, retrying(*RETRIABLE))
        again = await store.start_attempt(started.rollout_id)
        updated = await finish(store, started, status)
        assert updated.status == status
        rollout = await get_rollout(store, started.rollout_id)
        assert rollout == again
        assert await drain(store) == []

    async def test_it_may_end_after_the_newer_one(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        again = await store.start_attempt(started.rollout_id)
        await finish(store, again, "succeeded")
        await finish(store, started, "failed")
        assert (await get_rollout(store, started.rollout_id)).status == "succeeded"
