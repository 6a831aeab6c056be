"""The path of statuses that a rollout took, and two of its attempts side by side, on each engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
from tests.diagnostics import situations
from tests.diagnostics.situations import House
from tests.kernel.support import until, until_true

from perdure.agents.records import AgentSpec
from perdure.assistants.service import Assistants
from perdure.diagnostics.comparison import MOST_SPANS, align
from perdure.diagnostics.path import MOST_ATTEMPTS, RolloutPath
from perdure.kernel.errors import NotFound
from perdure.rollouts.model import ROLLOUT
from perdure.rollouts.records import RolloutConfig
from perdure.rollouts.service import Rollouts
from perdure.runtime.stores import open_store
from perdure.service.callers import Caller
from perdure.spans.records import Span, TraceStatus
from perdure.traces.outline import SpanOutlineRow

Situation = Callable[[House], Awaitable[str]]


@pytest.fixture
async def house(engine_url: str) -> AsyncIterator[House]:
    async with open_store(engine_url, watchdog_interval=None) as store:
        await Assistants(store.storage).register([AgentSpec(name="echo")])
        yield House(store)


def statuses(path: RolloutPath) -> list[str]:
    return [state.status for state in path.items]


def check(path: RolloutPath) -> None:
    """What holds for every path: its steps are in the machine's chart, its known times in order."""
    states = path.items
    assert states[0].event in ROLLOUT.start
    assert ROLLOUT.start[states[0].event] == states[0].status
    for before, after in pairwise(states):
        assert ROLLOUT.step(before.status, after.event) == after.status, (before, after)
        assert before.until == after.since
    exact = [state.since for state in states if state.exact and state.since is not None]
    assert exact == sorted(exact)
    assert path.status == states[-1].status
    assert all(state.exact is False for state in states if state.since is None)
    assert states[-1].until is None


CASES: list[tuple[Situation, list[str], list[str]]] = [
    (situations.no_worker, ["queuing"], ["queued in 'agents'"]),
    (situations.running, ["queuing", "preparing"], ["", "claimed by worker w1 as attempt 1"]),
    (
        situations.backing_off,
        ["queuing", "preparing", "requeuing"],
        ["", "", "attempt 1 failed: ConnectionError: refused"],
    ),
    (
        situations.worker_lost,
        ["queuing", "preparing", "requeuing"],
        [
            "",
            "claimed by worker w7",
            "worker w7 was silent and lost its lease on attempt 1",
        ],
    ),
    (
        situations.handed_back,
        ["queuing", "preparing", "requeuing"],
        ["", "", "worker w1 gave attempt 1 back; it does not count"],
    ),
    (situations.succeeded, ["queuing", "preparing", "succeeded"], ["", "", "attempt 1 succeeded"]),
    (
        situations.failed,
        ["queuing", "preparing", "failed"],
        ["", "", "attempt 1 failed: ValueError: no such city"],
    ),
    (situations.timed_out, ["queuing", "preparing", "failed"], ["", "", "attempt 1 took longer"]),
    (situations.exceeded, ["queuing", "preparing", "failed"], ["", "", "attempt 1 failed: ConnectionError"]),
    (situations.lost_for_good, ["queuing", "preparing", "failed"], ["", "", "worker w1 was silent"]),
    (situations.interrupted_by_ann, ["queuing", "cancelled"], ["", "cancelled by ann"]),
    (situations.still_to_stop, ["queuing", "preparing", "cancelled"], ["", "", "cancelled"]),
    (
        situations.rolled_back_by_another,
        ["queuing", "cancelled"],
        ["", "cancelled by ann, to make way for run "],
    ),
    (situations.phase_without_worker, ["queuing"], ["queued in 'workflows'"]),
    (situations.task_claimed, ["queuing", "preparing"], ["", "claimed by worker runner"]),
    (
        situations.task_without_limits,
        ["preparing", "running"],
        ["started at once, past the queue, on worker runner", "attempt 1 was reported as running"],
    ),
    (situations.task_failed, ["preparing", "failed"], ["started at once", "attempt 1 failed"]),
]


@pytest.mark.parametrize(
    ("situation", "wanted", "causes"), [pytest.param(*each, id=each[0].__name__) for each in CASES]
)
async def test_the_path_of_every_situation(
    house: House, situation: Situation, wanted: list[str], causes: list[str]
) -> None:
    path = await house.diagnostics.path(await situation(house))
    check(path)
    assert statuses(path) == wanted
    for state, cause in zip(path.items, causes, strict=True):
        assert state.cause.startswith(cause), state.cause
    if path.kind in ("run", "phase"):
        assert all(state.run_status is not None for state in path.items)


async def test_a_run_that_is_claimed_as_it_is_created_was_in_the_queue(house: House) -> None:
    claimer = house.queue.claimer("w1", ["echo"], ["agents"])
    assert claimer is not None
    with claimer:
        waiting = asyncio.create_task(claimer.next(lambda: 1, 20.0))
        await until(lambda: bool(house.threads.waiting_claims._waiting.get("default")))
        run = await house.run()
        await waiting
    path = await house.diagnostics.path(run.run_id)
    assert statuses(path) == ["queuing", "preparing"]
    assert path.items[1].cause == "claimed by worker w1 as attempt 1"


async def test_a_rollout_that_was_retried_by_rule_and_by_hand(house: House) -> None:
    store = house.store
    ann = Rollouts(store.storage, house.threads.kinds).acting_as(Caller.trusted("ann", "default"))
    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    rollout_id = (await store.enqueue_rollout("x", config=config)).rollout_id
    for number in (1, 2):
        claimed = await store.dequeue_rollout(f"w{number}")
        assert claimed is not None
        await store.add_span(span(rollout_id, claimed.attempt.attempt_id, number, "step"))
        await store.update_attempt(rollout_id, "latest", status="failed")
    await ann.retry(rollout_id)
    assert (await house.diagnostics.path(rollout_id)).items[-1].actor == "ann"
    await store.dequeue_rollout("w3")
    await ann.cancel(rollout_id)
    path = await house.diagnostics.path(rollout_id)
    check(path)
    once = ["preparing", "running"]
    assert statuses(path) == [
        "queuing", *once, "requeuing", *once, "failed", "requeuing", "preparing", "cancelled"
    ]  # fmt: skip
    again = path.items[7]
    assert (again.event, again.actor, again.exact) == ("set to requeuing", "ann", True)
    assert [state.worker_id for state in path.items if state.event == "claimed"] == ["w1", "w2", "w3"]
    assert path.items[-1].actor == "ann"
    assert path.unknown == ["When a first span arrived is not stored; shown is when it began."]


async def test_an_attempt_that_ann_started_after_the_end(house: House) -> None:
    rollout_id = await situations.task_failed(house)
    ann = Rollouts(house.store.storage, house.threads.kinds).acting_as(Caller.trusted("ann", "default"))
    await ann.start_attempt(rollout_id, worker_id="w2")
    path = await house.diagnostics.path(rollout_id)
    check(path)
    assert statuses(path) == ["preparing", "failed", "preparing"]
    assert (path.items[-1].event, path.items[-1].actor) == ("attempt started", "ann")


async def test_a_lapse_is_shown_at_its_deadline(house: House) -> None:
    config = RolloutConfig(unresponsive_seconds=0.01, max_attempts=2, retry_condition=["unresponsive"])
    rollout_id = (await house.store.enqueue_rollout("x", config=config)).rollout_id
    await house.store.dequeue_rollout("w1")

    async def lapsed() -> bool:
        await house.threads.watchdog.sweep()
        return (await house.diagnostics.path(rollout_id)).status == "requeuing"

    await until_true(lapsed)
    path = await house.diagnostics.path(rollout_id)
    check(path)
    lost = path.items[-1]
    assert (lost.event, lost.exact) == ("lapsed, retry", False)
    assert lost.cause == "worker w1 was silent and lost its lease on attempt 1"
    assert lost.since is not None
    assert path.items[1].since is not None
    assert lost.since - path.items[1].since == pytest.approx(0.01, abs=0.001)
    assert any("deadline" in each for each in path.unknown)


async def test_only_the_latest_attempts_are_shown(house: House) -> None:
    config = RolloutConfig(max_attempts=1000, retry_condition=["failed"])
    rollout_id = (await house.store.enqueue_rollout("x", config=config)).rollout_id
    for _ in range(MOST_ATTEMPTS + 2):
        await house.store.dequeue_rollout("w")
        await house.store.update_attempt(rollout_id, "latest", status="failed")
    path = await house.diagnostics.path(rollout_id)
    assert path.left_out == 2
    assert len(path.items) == 1 + 2 * MOST_ATTEMPTS
    assert path.status == "requeuing"


async def test_what_is_not_there_has_no_path(house: House) -> None:
    for ask in (house.diagnostics.path, house.diagnostics.compare):
        with pytest.raises(NotFound):
            await ask("ro-none")


# --- two attempts -----------------------------------------------------------------------------------------


def span(rollout_id: str, attempt_id: str, place: int, name: str, **more: Any) -> Span:
    return Span.from_attributes(
        attributes=more.pop("attributes", {}),
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=place,
        trace_id="1" * 32,
        span_id=f"{place:016x}",
        name=name,
        start_time=1_000_000.0 + place,
        end_time=1_000_001.0 + place,
        status=more.pop("status", TraceStatus(status_code="OK")),
    )


async def two_attempts(house: House, *sides: list[tuple[str, dict[str, Any]]]) -> str:
    store = house.store
    config = RolloutConfig(max_attempts=len(sides), retry_condition=["failed"])
    rollout_id = (await store.enqueue_rollout("x", config=config)).rollout_id
    number = 0
    for side in sides:
        claimed = await store.dequeue_rollout("w")
        assert claimed is not None
        spans = []
        for name, more in side:
            number += 1
            spans.append(span(rollout_id, claimed.attempt.attempt_id, number, name, **more))
        await store.add_many_spans(spans)
        await store.update_attempt(rollout_id, "latest", status="failed")
    return rollout_id


async def test_two_attempts_part_where_they_differ(house: House) -> None:
    failed = TraceStatus(status_code="ERROR", description="no such city")
    first: list[tuple[str, dict[str, Any]]] = [
        ("plan", {"attributes": {"model": "a", "call.id": "1"}}),
        ("search", {"attributes": {"q": "x" * 500}}),
        ("weather", {"status": failed}),
    ]
    second: list[tuple[str, dict[str, Any]]] = [
        ("plan", {"attributes": {"model": "a", "call.id": "2"}}),
        ("search", {"attributes": {"q": "y" * 500}}),
        ("check", {}),
        ("weather", {}),
        ("answer", {}),
    ]
    rollout_id = await two_attempts(house, first, second)
    found = await house.diagnostics.compare(rollout_id)
    assert [pair.kind for pair in found.items] == ["same", "changed", "right", "changed", "right"]
    assert found.first_divergence == 1
    assert found.sentence == "They are alike for 1 span, and part at “search”, which differs in q."
    assert (found.same, found.changed, found.only_left, found.only_right, found.total) == (1, 2, 0, 2, 5)
    (query,) = found.items[1].differences
    assert query.left == "x" * 199 + "…"
    assert [(each.field, each.left, each.right) for each in found.items[3].differences] == [
        ("status", "ERROR", "OK"),
        ("error", "no such city", None),
    ]
    assert (found.left.sequence_id, found.right.sequence_id, found.unread) == (1, 2, 0)
    paged = await house.diagnostics.compare(rollout_id, left="2", right="1", limit=1, offset=2)
    assert [pair.kind for pair in paged.items] == ["left"]
    by_id = await house.diagnostics.compare(rollout_id, left=found.right.attempt_id)
    assert by_id.sentence == "Both attempts did the same."
    with pytest.raises(NotFound, match="has no attempt 9"):
        await house.diagnostics.compare(rollout_id, left="9")


async def test_attempts_without_spans_and_with_too_many(house: House) -> None:
    rollout_id = await two_attempts(house, [], [])
    assert (await house.diagnostics.compare(rollout_id)).sentence == "Neither attempt has spans."
    many: list[tuple[str, dict[str, Any]]] = [(f"step {n}", {}) for n in range(MOST_SPANS + 1)]
    rollout_id = await two_attempts(house, many, many[:2])
    found = await house.diagnostics.compare(rollout_id)
    assert (found.left.spans, found.left.more, found.right.more) == (MOST_SPANS, True, False)
    assert (found.same, found.only_left) == (2, MOST_SPANS - 2)


def row(name: str) -> SpanOutlineRow:
    return SpanOutlineRow("r", "a", name, None, name, 0, 0, "OK", 1, 1, 10)


def test_lists_are_aligned_by_their_longest_common_part() -> None:
    left, right = [row(name) for name in "abcxd"], [row(name) for name in "abyczd"]
    pairs = [(one and one.name, other and other.name) for one, other in align(left, right)]
    assert pairs == [
        ("a", "a"), ("b", "b"), (None, "y"), ("c", "c"), ("x", None), (None, "z"), ("d", "d")
    ]  # fmt: skip
