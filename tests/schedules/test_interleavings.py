"""A firing and something else at once, on PostgreSQL, one statement at a time, in many orders."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec import UNSET
from tests.reliability.interleaving import Operation, Pair
from tests.reliability.test_interleavings import SWITCHES, explore_all
from tests.schedules.support import TARGETS
from tests.threads.test_interleavings import answering, ask, drop_thread, end, runs, stop

from perdure.kernel.storage.port import Tx
from perdure.schedules.model import (
    FILE,
    SUCCESS,
    FiringOutcome,
    NewSchedule,
    OverrideChange,
    ScheduleChange,
    encoded,
)
from perdure.schedules.operations import edit, overrides, queries
from perdure.schedules.operations import fire as firing
from perdure.schedules.operations import settle as settling
from perdure.schedules.rows import Prepared, row_to_firing_request

LATER = 7200
"""Seconds after which the schedule is due, whatever the time was at first."""


def scheduled(setup: Operation, strategy: str = "enqueue") -> Operation:
    """A schedule on the thread `t`, beside what was there."""

    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        made = await setup(tx, given, lined)
        request = NewSchedule(
            target="run",
            expression="@hourly",
            timezone=None,
            enabled=True,
            end_at=None,
            assistant="echo",
            thread_id="t",
            user_id=None,
            labels={},
            texts=encoded({}, {"multitask_strategy": strategy}),
        )
        (schedule_id,) = await edit.create(tx, [request], TARGETS)
        return [*made, schedule_id]

    return run


async def fire(tx: Tx, given: Any, lined: bool) -> Any:
    due = await firing.due(tx, TARGETS.names())
    prepared = [
        Prepared(row, TARGETS[row.target].prepare(row_to_firing_request(row, row.next_at or 0)))
        for row in due
    ]
    return await firing.fire(tx, prepared, TARGETS, {})


async def pass_over(tx: Tx, given: Any, lined: bool) -> Any:
    """What a firing does that finds the schedule locked."""
    return firing.Fired(0, False, [])


def change(payload: dict[str, Any] | None = None, **fields: Any) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        row = await queries.get(tx, given[-1])
        merged = {**row_to_firing_request(row, 0).payload, **(payload or {})}
        wanted = ScheduleChange(labels={}, texts=encoded({}, merged), known=row.texts, **fields)
        return await edit.update(tx, given[-1], wanted)

    return run


async def _drop(tx: Tx, given: Any, lined: bool) -> Any:
    return await edit.delete(tx, given[-1])


def fired(setup: Operation, overlap: str = "skip") -> Operation:
    """A schedule of a file that has fired, and whose run has ended, beside what was there."""

    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        made = await setup(tx, given, lined)
        request = NewSchedule(
            target="rollout",
            expression="@hourly",
            timezone=None,
            enabled=True,
            end_at=None,
            assistant=None,
            thread_id=None,
            user_id=None,
            labels={},
            texts=encoded({}, {"input": 1}),
            name="nightly",
            origin=FILE,
            overlap=overlap,
        )
        (schedule_id,) = await edit.create(tx, [request], TARGETS)
        row = await queries.get(tx, str(schedule_id))
        prepared = TARGETS["rollout"].prepare(row_to_firing_request(row, 0))
        await firing.trigger(tx, [firing.Trigger(row, prepared, {})], TARGETS)
        return [*made, schedule_id]

    return run


async def settle_firing(tx: Tx, given: Any, lined: bool) -> Any:
    """Write down that the open firing has ended."""
    found = await settling.read_open(tx, [given[-1]], TARGETS)
    return await settling.settle(tx, {each.firing.key: FiringOutcome(SUCCESS, 1) for each in found})


async def trigger(tx: Tx, given: Any, lined: bool) -> Any:
    row = await queries.get(tx, given[-1])
    prepared = TARGETS["rollout"].prepare(row_to_firing_request(row, 0))
    (answer,) = await firing.trigger(tx, [firing.Trigger(row, prepared, {})], TARGETS)
    return isinstance(answer, firing.Triggered) and answer.due_at is not None


def override(**fields: Any) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        change = OverrideChange(fields.get("enabled", UNSET), fields.get("schedule", UNSET))
        return (await overrides.set_override(tx, given[-1], change)).enabled

    return run


PENDING, RUNNING = runs(claimed=False), runs(claimed=True)
PAIRS: dict[str, Pair] = {
    "fire, fire": Pair(scheduled(PENDING), fire, fire, later=LATER),
    "fire, pause": Pair(scheduled(PENDING), fire, change(enabled=False), later=LATER),
    "fire, change": Pair(
        scheduled(PENDING),
        fire,
        change(payload={"input": 2}),
        later=LATER,
        also=[(pass_over, change(payload={"input": 2}))],
    ),
    "fire, remove": Pair(scheduled(PENDING), fire, answering(_drop), later=LATER),
    "fire, enqueue": Pair(scheduled(RUNNING), fire, ask(), later=LATER),
    "fire, interrupt": Pair(scheduled(RUNNING), fire, ask("interrupt"), later=LATER),
    "fire and interrupt, end": Pair(scheduled(RUNNING, "interrupt"), fire, end(), later=LATER),
    "fire and reject, cancel": Pair(scheduled(RUNNING, "reject"), fire, stop(), later=LATER),
    "fire, delete the thread": Pair(scheduled(RUNNING), fire, drop_thread, later=LATER),
    "settle, settle": Pair(fired(PENDING), settle_firing, settle_firing, later=LATER),
    "settle, trigger": Pair(
        fired(PENDING, "concurrent"),
        settle_firing,
        trigger,
        later=LATER,
    ),
    "override, override": Pair(
        fired(PENDING), override(enabled=False), override(schedule="@daily"), later=LATER
    ),
}


SAMPLE = 4
"""Each run takes so many of the pairs, others every time; `./dev chaos` takes all."""


@pytest.mark.timeout(300)
async def test_some_orders(postgres_url: str) -> None:
    names = random.sample(list(PAIRS), SAMPLE)
    print(await explore_all(postgres_url, {name: PAIRS[name] for name in names}, SWITCHES))
