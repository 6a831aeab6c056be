"""Completions in bulk: each has its own answer, and the result is the same as one by one."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest
from tests.rollouts.house import House

from perdure import PostgresLightningStore
from perdure.kernel.errors import InvalidInput, NotFound
from perdure.kernel.storage import postgres
from perdure.kernel.storage.postgres_connection import by_key
from perdure.rollouts.completion_sql import COMPLETE_ATTEMPTS, COMPLETE_ROLLOUTS
from perdure.rollouts.model import TASK, RolloutKind
from perdure.rollouts.operations.work import ENDED_IN_QUEUE, EXECUTED, ROLLOUT_ENDED
from perdure.rollouts.records import Attempt, AttemptedRollout, AttemptUpdate, EnqueueRolloutRequest
from perdure.rollouts.service import Rollouts
from perdure.rollouts.workers import Workers
from perdure.testing.contract.support import make_span


async def _claimed(tasks: Rollouts, count: int, worker_id: str | None = None) -> list[AttemptedRollout]:
    await tasks.enqueue_many([EnqueueRolloutRequest(input=number) for number in range(count)])
    return await tasks.claim(worker_id, limit=count)


def _success(claimed: AttemptedRollout, **fields: Any) -> AttemptUpdate:
    attempt = claimed.attempt.attempt_id
    return AttemptUpdate(rollout_id=claimed.rollout_id, attempt_id=attempt, status="succeeded", **fields)


async def test_each_report_is_answered_by_itself(house: House) -> None:
    tasks = house.rollouts(RolloutKind(TASK))
    one, two, three = await _claimed(tasks, 3)
    answers = await tasks.update_attempts(
        [
            _success(one),
            AttemptUpdate(rollout_id="ro-unknown", attempt_id="latest", status="succeeded"),
            AttemptUpdate(rollout_id=two.rollout_id, attempt_id="at-unknown", status="succeeded"),
            AttemptUpdate(rollout_id=three.rollout_id, attempt_id="latest", status="failed"),
        ]
    )
    kinds = [type(each) for each in answers]
    assert kinds == [Attempt, NotFound, NotFound, Attempt]
    statuses = [(await tasks.get(each.rollout_id)).status for each in (one, two, three)]
    assert statuses == ["succeeded", "preparing", "failed"]


@pytest.mark.parametrize("worker_id", [None, "w"])
@pytest.mark.parametrize("running", [False, True])
async def test_many_at_once_are_the_same_as_one_by_one(
    house: House, worker_id: str | None, running: bool
) -> None:
    tasks = house.rollouts(RolloutKind(TASK))
    together, apart = await _claimed(tasks, 3, worker_id), await _claimed(tasks, 3, worker_id)
    if running:
        spans = [make_span(each) for each in (*together, *apart)]
        await tasks.store_spans(spans)
    answers = await tasks.update_attempts([_success(each) for each in together])
    for each in apart:
        # A report with more than success is processed row by row.
        await tasks.update_attempt(each.rollout_id, "latest", status="succeeded", metadata={})
    ends = [await tasks.get(each.rollout_id) for each in (*together, *apart)]
    assert [each.attempt for each in ends[:3]] == answers  # type: ignore[attr-defined]
    shown = [_without_times(each) for each in ends]
    assert shown == [shown[0]] * 6
    assert (await tasks.queues()) == []
    if worker_id is not None:
        worker = await Workers.of_same(tasks).get(worker_id)
        assert (worker.status, worker.current_attempt_id) == ("idle", None)
    tally = tasks.storage.tally
    assert tally.counts(ROLLOUT_ENDED) == {"task/succeeded": 6}
    assert {status: tally.counts(name) for status, name in ENDED_IN_QUEUE.items() if tally.counts(name)} == {
        "succeeded": {"default": 6}
    }
    assert sum(tally.durations(EXECUTED)["task"].buckets) == 6


def _without_times(rollout: Any) -> dict[str, Any]:
    shown: dict[str, Any] = rollout.model_dump()
    attempt = shown.pop("attempt")
    assert shown["end_time"] == attempt["end_time"] > attempt["start_time"]
    ids = ("rollout_id", "attempt_id", "input", "start_time", "end_time", "metadata", "last_heartbeat_time")
    return {key: value for key, value in {**shown, **attempt}.items() if key not in ids}


async def test_one_that_has_ended_is_no_news(house: House) -> None:
    tasks = house.rollouts(RolloutKind(TASK))
    one, two = await _claimed(tasks, 2)
    (first,) = await tasks.update_attempts([_success(one)])
    again, other = await tasks.update_attempts([_success(one), _success(two)])
    assert again == first
    assert isinstance(other, Attempt)
    assert tasks.storage.tally.counts(ROLLOUT_ENDED) == {"task/succeeded": 2}


async def test_two_reports_on_one_attempt_are_applied_in_their_order(house: House) -> None:
    tasks = house.rollouts(RolloutKind(TASK))
    (one,) = await _claimed(tasks, 1)
    failed = AttemptUpdate(rollout_id=one.rollout_id, attempt_id="latest", status="failed")
    await tasks.update_attempts([failed, _success(one)])
    assert (await tasks.get(one.rollout_id)).status == "succeeded"


async def test_an_earlier_attempt_does_not_end_its_rollout(house: House) -> None:
    tasks = house.rollouts(RolloutKind(TASK))
    one, two = await _claimed(tasks, 2)
    await tasks.start_attempt(one.rollout_id)
    await tasks.update_attempts([_success(one), _success(two)])
    assert (await tasks.get(one.rollout_id)).status == "preparing"
    assert (await tasks.get(two.rollout_id)).status == "succeeded"


async def test_at_most_a_thousand_reports(house: House) -> None:
    tasks = house.rollouts(RolloutKind(TASK))
    assert await tasks.update_attempts([]) == []
    report = AttemptUpdate(rollout_id="r", attempt_id="a", status="succeeded")
    with pytest.raises(InvalidInput, match="number of reports"):
        await tasks.update_attempts([report] * 1001)
    with pytest.raises(InvalidInput, match="status"):
        await tasks.update_attempts([AttemptUpdate(rollout_id="r", attempt_id="a", status="done")])  # type: ignore[arg-type]


async def test_completions_of_first_and_later_attempts_at_once(house: House) -> None:
    tasks = house.rollouts(RolloutKind(TASK))
    one, two = await _claimed(tasks, 2)
    again = await tasks.start_attempt(two.rollout_id)
    answers = await tasks.update_attempts([_success(again), _success(one)])
    assert [each.sequence_id for each in answers if isinstance(each, Attempt)] == [2, 1]
    for each in (one, two):
        assert (await tasks.get(each.rollout_id)).status == "succeeded"


async def test_a_table_that_was_never_analyzed_is_read_by_its_key(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_ANALYZE_SECONDS", 3600.0)
    async with PostgresLightningStore(postgres_url) as store:
        claimed = [each for _ in range(4) for each in await _claimed(store.rollouts, 1000)]
        ns = await store.rollouts.ns()
    values = {
        "ns": ns,
        "now": 1,
        "number": 1,
        "kind": TASK,
        "status": "succeeded",
        "outcome": "success",
        "ids": sorted(each.rollout_id for each in claimed[:100]),
        "live": ["preparing", "running"],
    }
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute(by_key("BEGIN"))
        for statement, key in ((COMPLETE_ROLLOUTS, "rollouts_pkey"), (COMPLETE_ATTEMPTS, "attempts_pkey")):
            text = "EXPLAIN " + statement.postgres
            plan = await connection.fetch(text, *statement.bind_postgres(values))
            assert [line for (line,) in plan if " using " in line and key not in line] == []
            assert any("Index Cond: ((ns = CASE" in line for (line,) in plan)
    finally:
        await connection.close()
