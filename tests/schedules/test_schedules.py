"""Schedules as callers make, change and find them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.schedules.support import YEARLY, ScheduleWorld
from tests.threads.support import AUDIT

from perdure.kernel.errors import InvalidInput, NotFound
from perdure.kernel.storage.dialect import statement
from perdure.service.callers import Caller

LABELS = statement("SELECT id, key, value FROM labels WHERE ns = :ns AND kind = 'schedule'")
DAY = 86_400.0


async def test_a_schedule_is_kept_as_it_was_given(world: ScheduleWorld) -> None:
    thread_id = await world.thread()
    end = await world.now() + 900 * DAY
    payload = {"input": {"question": "how\u0000?"}, "interrupt_before": ["a"], "unknown": [1, None]}
    made = await world.cron(
        "0 9 * * MON-FRI",
        timezone="Europe/Berlin",
        thread_id=thread_id,
        end_time=end,
        user_id="ada",
        metadata={"team": "blue"},
        payload=payload,
    )
    found = await world.schedules.get(made.schedule_id)
    assert found == made
    assert (found.expression, found.timezone, found.enabled) == ("0 9 * * MON-FRI", "Europe/Berlin", True)
    assert (found.thread_id, found.user_id, found.target) == (thread_id, "ada", "run")
    assert found.assistant_id == (await _assistant(world)).assistant_id
    assert found.end_time == pytest.approx(end)
    assert (found.metadata, found.payload) == ({"team": "blue"}, payload)
    assert (found.fired, found.refused, found.fired_at, found.started_id, found.error) == (
        0,
        0,
        None,
        None,
        None,
    )
    assert found.next_at is not None
    assert await world.now() < found.next_at < await world.now() + 4 * DAY


async def _assistant(world: ScheduleWorld) -> Any:
    from perdure.assistants.service import Assistants

    return (await Assistants(world.storage, namespace=world.namespace).resolve(["echo"]))["echo"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"expression": "bad"}, InvalidInput),
        ({"timezone": "Mars/Olympus"}, InvalidInput),
        ({"assistant_id": "nobody"}, NotFound),
        ({"thread_id": "nowhere"}, NotFound),
        ({"target": "rocket"}, InvalidInput),
        ({"end_time": "tomorrow"}, InvalidInput),
        ({"end_time": float("nan")}, InvalidInput),
        ({"end_time": -5.0}, InvalidInput),
        ({"end_time": 1e300}, InvalidInput),
        ({"enabled": 1}, InvalidInput),
        ({"metadata": [1]}, InvalidInput),
        ({"metadata": {"k" * 300: 1}}, InvalidInput),
        ({"payload": {"input": float("inf")}}, InvalidInput),
        ({"payload": {"multitask_strategy": "shove"}}, InvalidInput),
        ({"payload": {"on_run_completed": "burn"}}, InvalidInput),
        ({"payload": {"config": [1]}}, InvalidInput),
        ({"payload": {"config": {"configurable": 5}}}, InvalidInput),
        ({"payload": {"after_seconds": -1}}, InvalidInput),
        ({"assistant_id": None}, InvalidInput),
    ],
)
async def test_bad_input_makes_nothing(
    world: ScheduleWorld, options: dict[str, Any], error: type[Exception]
) -> None:
    asked = {"expression": YEARLY, "assistant_id": "echo"} | options
    with pytest.raises(error):
        await world.schedules.create_for(**{"target": "run", **asked})
    assert (await world.schedules.search()).total == 0


async def test_what_is_not_there_is_not_found(world: ScheduleWorld) -> None:
    for ask in (
        world.schedules.get("nothing"),
        world.schedules.update("nothing", enabled=False),
        world.schedules.delete("nothing"),
        world.schedules.firings("nothing"),
    ):
        with pytest.raises(NotFound):
            await ask


async def test_another_namespace_sees_nothing_of_it(world: ScheduleWorld) -> None:
    made = await world.cron()
    other = world.schedules.in_namespace(world.namespace + " 2")
    for ask in (
        other.get(made.schedule_id),
        other.update(made.schedule_id, enabled=False),
        other.delete(made.schedule_id),
    ):
        with pytest.raises(NotFound):
            await ask
    assert (await other.search()).total == 0
    assert await world.schedules.get(made.schedule_id) == made


async def test_an_update_changes_what_it_names_and_merges_the_rest(world: ScheduleWorld) -> None:
    made = await world.cron(metadata={"a": 1, "b": 1}, payload={"input": 1, "webhook": "https://x.example"})
    changed = await world.schedules.update(
        made.schedule_id, metadata={"b": 2, "c": 3}, payload={"input": 2, "durability": "sync"}
    )
    assert changed.metadata == {"a": 1, "b": 2, "c": 3}
    assert changed.payload == {"input": 2, "webhook": "https://x.example", "durability": "sync"}
    assert (changed.expression, changed.next_at, changed.enabled) == (YEARLY, made.next_at, True)
    assert changed.updated_at > made.updated_at
    found = await world.schedules.search(metadata={"b": 2})
    assert [each.schedule_id for each in found.items] == [made.schedule_id]
    assert (await world.schedules.search(metadata={"b": 1})).total == 0


async def test_it_says_in_words_when_it_fires_and_tells_its_next_times(world: ScheduleWorld) -> None:
    now = await world.now()
    made = await world.schedules.create(
        "0 9 * * MON-FRI", assistant_id="echo", timezone="Europe/Berlin", end_time=now + 30 * DAY
    )
    found = await world.schedules.upcoming(made.schedule_id)
    assert found.sentence == "At 09:00 on Monday through Friday"
    assert (len(found.items), found.items[0]) == (5, made.next_at)
    assert found.items == sorted(found.items)
    most = (await world.schedules.upcoming(made.schedule_id, limit=100)).items
    assert most[:5] == found.items
    assert len(most) < 25
    assert most[-1] <= now + 30 * DAY
    await world.schedules.update(made.schedule_id, enabled=False)
    assert await world.schedules.upcoming(made.schedule_id) == found
    with pytest.raises(InvalidInput):
        await world.schedules.upcoming(made.schedule_id, limit=101)


async def test_another_expression_and_another_zone_find_the_next_time_anew(world: ScheduleWorld) -> None:
    made = await world.cron("0 12 1 1 *")
    assert made.next_at is not None
    zoned = await world.schedules.update(made.schedule_id, timezone="Asia/Tokyo")
    assert zoned.next_at == made.next_at - 9 * 3600
    plain = await world.schedules.update(made.schedule_id, timezone=None)
    assert plain.next_at == made.next_at
    sooner = await world.schedules.update(made.schedule_id, expression="@hourly")
    assert sooner.next_at is not None
    assert sooner.next_at - await world.now() <= 3600


async def test_a_bad_update_changes_nothing(world: ScheduleWorld) -> None:
    made = await world.cron(payload={"input": 1})
    for bad in (
        {"expression": "bad"},
        {"timezone": "Mars/Olympus"},
        {"enabled": "yes"},
        {"end_time": "soon"},
        {"payload": {"multitask_strategy": "shove"}},
        {"metadata": 5},
    ):
        with pytest.raises(InvalidInput):
            await world.schedules.update(made.schedule_id, **bad)
    assert await world.schedules.get(made.schedule_id) == made


async def test_pausing_takes_its_next_time_away_and_resuming_finds_it(world: ScheduleWorld) -> None:
    made = await world.cron()
    paused = await world.schedules.pause(made.schedule_id)
    assert (paused.enabled, paused.next_at) == (False, None)
    resumed = await world.schedules.resume(made.schedule_id)
    assert (resumed.enabled, resumed.next_at) == (True, made.next_at)


async def test_one_may_be_made_paused(world: ScheduleWorld) -> None:
    made = await world.cron(enabled=False)
    assert (made.enabled, made.next_at) == (False, None)


async def test_an_end_takes_the_times_after_it_away_and_none_gives_them_back(world: ScheduleWorld) -> None:
    made = await world.cron()
    assert made.next_at is not None
    ended = await world.schedules.update(made.schedule_id, end_time=made.next_at - 1)
    assert (ended.next_at, ended.enabled) == (None, True)
    assert ended.end_time == made.next_at - 1
    untouched = await world.schedules.update(made.schedule_id, metadata={"x": 1})
    assert untouched.end_time == made.next_at - 1
    freed = await world.schedules.update(made.schedule_id, end_time=None)
    assert (freed.next_at, freed.end_time) == (made.next_at, None)


async def test_deleting_leaves_nothing_behind(world: ScheduleWorld) -> None:
    made = await world.cron(metadata={"a": 1})
    await world.fire(made)
    await world.schedules.delete(made.schedule_id)
    with pytest.raises(NotFound):
        await world.schedules.get(made.schedule_id)
    assert await world.rows(LABELS) == []
    assert await world.rows(statement("SELECT 1 FROM firings WHERE ns = :ns")) == []
    assert len(await world.runs()) == 1


async def test_a_search_finds_by_assistant_thread_flag_and_metadata(world: ScheduleWorld) -> None:
    thread_id = await world.thread()
    first = await world.cron(metadata={"team": "blue", "size": 1})
    second = await world.cron("0 0 2 1 *", "other", thread_id=thread_id, metadata={"team": "blue"})
    third = await world.cron("0 0 3 1 *", enabled=False, metadata={"team": "red"})

    async def found(**wanted: Any) -> list[str]:
        page = await world.schedules.search(**wanted)
        assert page.total == len(page.items)
        return [each.schedule_id for each in page.items]

    every = [third.schedule_id, second.schedule_id, first.schedule_id]
    assert await found() == every
    assert await found(sort_order="asc") == every[::-1]
    assert await found(assistant_id=first.assistant_id) == [third.schedule_id, first.schedule_id]
    assert await found(thread_id=thread_id) == [second.schedule_id]
    assert await found(enabled=False) == [third.schedule_id]
    assert await found(enabled=True, metadata={"team": "blue"}) == [second.schedule_id, first.schedule_id]
    assert await found(metadata={"team": "blue", "size": 1}) == [first.schedule_id]
    assert await found(metadata={"size": "1"}) == []
    by_time = await found(sort_by="next_at", sort_order="asc")
    assert by_time == [first.schedule_id, second.schedule_id, third.schedule_id]


async def test_a_search_gives_pages(world: ScheduleWorld) -> None:
    made = [(await world.cron()).schedule_id for _ in range(5)]
    page = await world.schedules.search(limit=2, offset=1)
    assert ([each.schedule_id for each in page.items], page.total) == ([made[3], made[2]], 5)
    counted = await world.schedules.search(limit=0)
    assert (list(counted.items), counted.total) == ([], 5)
    for bad in ({"limit": -1}, {"limit": 1001}, {"offset": -1}, {"sort_by": "payload"}, {"sort_order": "up"}):
        with pytest.raises(InvalidInput):
            await world.schedules.search(**bad)


async def test_who_changes_a_schedule_is_on_record(world: ScheduleWorld) -> None:
    mine = world.schedules.acting_as(Caller.trusted("ada", world.namespace))
    made = await mine.create(YEARLY, assistant_id="echo")
    await mine.pause(made.schedule_id)
    await mine.delete(made.schedule_id)
    assert [tuple(row) for row in await world.rows(AUDIT)] == [
        ("ada", "create_schedule", made.schedule_id),
        ("ada", "update_schedule", made.schedule_id),
        ("ada", "delete_schedule", made.schedule_id),
    ]


async def test_concurrent_updates_merge_all_their_metadata(world: ScheduleWorld) -> None:
    made = await world.cron()
    changes = [
        world.schedules.update(made.schedule_id, metadata={f"m{n}": n}, payload={f"p{n}": n})
        for n in range(8)
    ]
    await asyncio.gather(*changes)
    found = await world.schedules.get(made.schedule_id)
    assert found.metadata == {f"m{n}": n for n in range(8)}
    assert found.payload == {f"p{n}": n for n in range(8)}
