"""Querying rollouts and their attempts."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from perdure import Attempt, AttemptedRollout, LightningStore, PaginatedResult, Rollout

from .paging import PAGES, check_page, check_pages_join, check_sorted
from .support import (
    ROLLOUT_STATUSES,
    Contract,
    Harness,
    RolloutStatus,
    finish,
    get_rollout,
    list_attempts,
    make_span,
    new_rollout,
)

__all__ = ["TestGetRollout", "TestQueryAttempts", "TestQueryRollouts", "TestRolloutFilters"]

ROLLOUT_FIELDS = ["rollout_id", "status", "start_time", "end_time", "mode", "resources_id"]
ATTEMPT_FIELDS = [
    "sequence_id",
    "attempt_id",
    "status",
    "start_time",
    "end_time",
    "worker_id",
    "last_heartbeat_time",
]
MIXED: list[tuple[RolloutStatus, str | None, str | None]] = [
    ("queuing", "train", "rs-b"),
    ("failed", None, None),
    ("succeeded", "val", "rs-a"),
    ("queuing", "test", None),
    ("cancelled", None, "rs-C"),
]


async def mixed_rollouts(store: LightningStore) -> list[Rollout]:
    """Create five rollouts, in order."""
    ids: list[str] = []
    for status, mode, resources_id in MIXED:
        queued = await store.enqueue_rollout("task", mode=mode, resources_id=resources_id)  # type: ignore[arg-type]
        await store.update_rollout(queued.rollout_id, status=status)
        ids.append(queued.rollout_id)
    return [await get_rollout(store, rollout_id) for rollout_id in ids]


async def mixed_attempts(store: LightningStore, harness: Harness) -> tuple[str, list[Attempt]]:
    """Create a rollout with five attempts that differ in every field."""
    started = await new_rollout(store, worker_id="b")
    await finish(store, started, "failed")
    for worker_id in ("a", None, "C", "b"):
        await harness.advance(1)
        again = await store.start_attempt(started.rollout_id, worker_id)
        if worker_id == "a":
            await store.add_span(make_span(again))
            await finish(store, again, "succeeded")
        elif worker_id is None:
            await store.add_span(make_span(again))
    return started.rollout_id, await list_attempts(store, started.rollout_id)


class TestQueryRollouts(Contract):
    """Results of a query, their order and pages."""

    async def test_empty_store(self, store: LightningStore) -> None:
        result = await store.query_rollouts()
        assert isinstance(result, PaginatedResult)
        assert (list(result), result.total, result.limit, result.offset) == ([], 0, -1, 0)

    async def test_order_of_creation_by_default(self, store: LightningStore) -> None:
        rollouts = await mixed_rollouts(store)
        assert list(await store.query_rollouts()) == rollouts

    async def test_attempt_comes_along_where_there_is_one(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout("task")
        started = await new_rollout(store)
        again = await store.start_attempt(started.rollout_id)
        plain, attempted = await store.query_rollouts()
        assert type(plain) is Rollout
        assert type(attempted) is AttemptedRollout
        assert (plain, attempted) == (queued, again)

    async def test_answers_what_get_answers(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        await store.add_span(make_span(started))
        (queried,) = await store.query_rollouts(rollout_id_in=[started.rollout_id])
        assert queried == await store.get_rollout_by_id(started.rollout_id)

    async def test_sorted(self, store: LightningStore) -> None:
        rollouts = await mixed_rollouts(store)
        await check_sorted(store.query_rollouts, rollouts, ROLLOUT_FIELDS)

    async def test_page(self, store: LightningStore) -> None:
        rollouts = await mixed_rollouts(store)
        for limit, offset in PAGES:
            await check_page(store.query_rollouts, rollouts, limit, offset)

    async def test_pages_join(self, store: LightningStore) -> None:
        await mixed_rollouts(store)
        await check_pages_join(store.query_rollouts, [None, *ROLLOUT_FIELDS])

    async def test_filter_comes_before_the_page(self, store: LightningStore) -> None:
        rollouts = await mixed_rollouts(store)
        query = partial(store.query_rollouts, status_in=["queuing"])
        await check_page(query, [rollouts[0], rollouts[3]], 1, 1)


class TestRolloutFilters(Contract):
    """Filters of rollouts."""

    async def test_by_each_status(self, store: LightningStore) -> None:
        for target in ROLLOUT_STATUSES:
            queued = await store.enqueue_rollout("task")
            await store.update_rollout(queued.rollout_id, status=target)
        for status in ROLLOUT_STATUSES:
            assert [one.status for one in await store.query_rollouts(status_in=[status])] == [status]

    @pytest.mark.parametrize(
        ("statuses", "expected"),
        [
            (["queuing"], [0, 3]),
            (["failed", "succeeded"], [1, 2]),
            (["running"], []),
            ([], []),
            (list(ROLLOUT_STATUSES), [0, 1, 2, 3, 4]),
            (["failed", "failed"], [1]),
        ],
    )
    async def test_by_several_statuses(
        self, store: LightningStore, statuses: list[RolloutStatus], expected: list[int]
    ) -> None:
        rollouts = await mixed_rollouts(store)
        assert list(await store.query_rollouts(status_in=statuses)) == [rollouts[i] for i in expected]

    async def test_by_ids(self, store: LightningStore) -> None:
        rollouts = await mixed_rollouts(store)
        wanted = [rollouts[3].rollout_id, "ro-missing", rollouts[1].rollout_id]
        assert list(await store.query_rollouts(rollout_id_in=wanted)) == [rollouts[1], rollouts[3]]

    async def test_by_no_ids(self, store: LightningStore) -> None:
        await mixed_rollouts(store)
        assert list(await store.query_rollouts(rollout_id_in=[])) == []

    async def test_by_part_of_the_id(self, store: LightningStore) -> None:
        rollouts = await mixed_rollouts(store)
        part = rollouts[2].rollout_id[4:14]
        assert list(await store.query_rollouts(rollout_id_contains=part)) == [rollouts[2]]
        assert list(await store.query_rollouts(rollout_id_contains="ro-")) == rollouts

    async def test_part_is_taken_literally(self, store: LightningStore) -> None:
        await mixed_rollouts(store)
        for part in ("%", "_", "RO-", "*", "ro_", "ro%", "\\", "'"):
            assert list(await store.query_rollouts(rollout_id_contains=part)) == [], part

    @pytest.mark.parametrize(("logic", "expected"), [("and", [0]), ("or", [0, 1, 3])])
    async def test_filter_logic(self, store: LightningStore, logic: Any, expected: list[int]) -> None:
        rollouts = await mixed_rollouts(store)
        wanted = [rollouts[0].rollout_id, rollouts[1].rollout_id]
        result = await store.query_rollouts(status_in=["queuing"], rollout_id_in=wanted, filter_logic=logic)
        assert list(result) == [rollouts[i] for i in expected]
        assert result.total == len(expected)

    async def test_two_conditions_on_the_id_are_ored_too(self, store: LightningStore) -> None:
        rollouts = await mixed_rollouts(store)
        part = rollouts[4].rollout_id[3:]
        result = await store.query_rollouts(
            rollout_id_in=[rollouts[0].rollout_id], rollout_id_contains=part, filter_logic="or"
        )
        assert list(result) == [rollouts[0], rollouts[4]]

    @pytest.mark.parametrize("logic", ["and", "or"])
    async def test_no_filter_matches_everything(self, store: LightningStore, logic: Any) -> None:
        rollouts = await mixed_rollouts(store)
        assert list(await store.query_rollouts(filter_logic=logic)) == rollouts

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    async def test_deprecated_names_still_work(self, store: LightningStore) -> None:
        rollouts = await mixed_rollouts(store)
        assert list(await store.query_rollouts(status=["failed"])) == [rollouts[1]]
        assert list(await store.query_rollouts(rollout_ids=[rollouts[2].rollout_id])) == [rollouts[2]]
        assert list(await store.query_rollouts(status=[])) == []

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    async def test_deprecated_names_lose(self, store: LightningStore) -> None:
        rollouts = await mixed_rollouts(store)
        assert list(await store.query_rollouts(status=["failed"], status_in=["succeeded"])) == [rollouts[2]]
        ids = [one.rollout_id for one in rollouts]
        assert list(await store.query_rollouts(rollout_ids=ids[:1], rollout_id_in=ids[4:])) == [rollouts[4]]


class TestGetRollout(Contract):
    """One rollout by its id."""

    async def test_unknown_is_none(self, store: LightningStore) -> None:
        assert await store.get_rollout_by_id("ro-missing") is None

    async def test_without_attempts_is_a_plain_rollout(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout("task")
        assert type(await store.get_rollout_by_id(queued.rollout_id)) is Rollout

    async def test_with_attempts_carries_the_latest(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        again = await store.start_attempt(started.rollout_id)
        stored = await store.get_rollout_by_id(started.rollout_id)
        assert type(stored) is AttemptedRollout
        assert stored.attempt == again.attempt


class TestQueryAttempts(Contract):
    """The attempts of one rollout."""

    async def test_unknown_rollout_has_none(self, store: LightningStore) -> None:
        result = await store.query_attempts("ro-missing")
        assert (list(result), result.total) == ([], 0)

    async def test_latest_of_an_unknown_rollout_is_none(self, store: LightningStore) -> None:
        assert await store.get_latest_attempt("ro-missing") is None

    async def test_latest_has_the_highest_sequence_id(self, store: LightningStore, harness: Harness) -> None:
        rollout_id, attempts = await mixed_attempts(store, harness)
        assert await store.get_latest_attempt(rollout_id) == attempts[-1]

    async def test_by_sequence_id_by_default(self, store: LightningStore, harness: Harness) -> None:
        rollout_id, _ = await mixed_attempts(store, harness)
        await new_rollout(store)
        result = await store.query_attempts(rollout_id)
        assert [attempt.sequence_id for attempt in result] == [1, 2, 3, 4, 5]
        assert {attempt.rollout_id for attempt in result} == {rollout_id}

    async def test_sorted(self, store: LightningStore, harness: Harness) -> None:
        rollout_id, attempts = await mixed_attempts(store, harness)
        await check_sorted(partial(store.query_attempts, rollout_id), attempts, ATTEMPT_FIELDS)

    async def test_page(self, store: LightningStore, harness: Harness) -> None:
        rollout_id, attempts = await mixed_attempts(store, harness)
        for limit, offset in PAGES:
            await check_page(partial(store.query_attempts, rollout_id), attempts, limit, offset)

    async def test_newest_first_page(self, store: LightningStore, harness: Harness) -> None:
        rollout_id, attempts = await mixed_attempts(store, harness)
        query = partial(store.query_attempts, rollout_id, sort_order="desc")
        await check_page(query, attempts[::-1], 2, 1)

    async def test_pages_join(self, store: LightningStore, harness: Harness) -> None:
        rollout_id, _ = await mixed_attempts(store, harness)
        await check_pages_join(partial(store.query_attempts, rollout_id), ATTEMPT_FIELDS)

    async def test_without_a_sort_field(self, store: LightningStore, harness: Harness) -> None:
        rollout_id, attempts = await mixed_attempts(store, harness)
        assert list(await store.query_attempts(rollout_id, sort_by=None)) == attempts
