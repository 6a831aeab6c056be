"""Threads with a lifetime, pruned threads, and threads found by their values."""

from __future__ import annotations

import msgspec
import pytest
from tests.kernel.support import until_true
from tests.threads.support import World

from perdure.kernel.errors import InvalidInput, NotFound
from perdure.kernel.json_values import contains
from perdure.threads import service
from perdure.threads.operations import search
from perdure.threads.operations.search import ThreadFilter
from perdure.threads.records import Lifetime

MINUTES = 5.0
SECONDS = MINUTES * 60


async def _state(world: World, thread_id: str, *values: object) -> None:
    for each in values:
        await world.threads.update_state(thread_id, each)


async def _gone(world: World, thread_id: str) -> bool:
    try:
        await world.threads.get_thread(thread_id)
    except NotFound:
        return True
    return False


async def test_a_thread_ends_with_its_life(world: World) -> None:
    thread = await world.thread(lifetime=Lifetime(minutes=MINUTES))
    other = await world.thread()
    told = await world.threads.get_lifetime(thread)
    assert told is not None
    assert (told.minutes, told.strategy) == (MINUTES, "delete")
    assert await world.threads.get_lifetime(other) is None
    await world.advance(SECONDS / 2)
    await world.threads.expire()
    assert not await _gone(world, thread)
    await world.advance(SECONDS)
    await world.threads.expire()
    assert await _gone(world, thread)
    assert not await _gone(world, other)


async def test_a_life_begins_anew_when_it_is_given(world: World) -> None:
    thread = await world.thread(lifetime=Lifetime(minutes=MINUTES))
    await world.advance(SECONDS - 60)
    await world.threads.update_thread(thread, lifetime=Lifetime(minutes=MINUTES))
    await world.advance(SECONDS - 60)
    await world.threads.expire()
    assert not await _gone(world, thread)
    await world.advance(120)
    await world.threads.expire()
    assert await _gone(world, thread)


async def test_a_life_may_leave_the_latest_state(world: World) -> None:
    thread = await world.thread(lifetime=Lifetime(minutes=MINUTES, strategy="keep_latest"))
    await _state(world, thread, {"n": 1}, {"n": 2})
    await world.advance(SECONDS + 1)
    await world.threads.expire()
    assert await world.kept(thread) == [{"n": 2}]
    await _state(world, thread, {"n": 3})
    await world.threads.expire()
    assert await world.kept(thread) == [{"n": 2}, {"n": 3}]
    await world.advance(SECONDS + 1)
    await world.threads.expire()
    assert await world.kept(thread) == [{"n": 3}]


async def test_a_busy_thread_lives_on_until_it_rests(world: World) -> None:
    thread = await world.thread(lifetime=Lifetime(minutes=0.5))
    held = (await world.take(await world.run(thread))).held
    await world.advance(31)
    await world.threads.expire()
    assert await world.rest(thread) == "busy"
    await world.finish(held, values={"n": 1})
    await world.advance(61)
    await world.threads.expire()
    assert await _gone(world, thread)


@pytest.mark.parametrize("minutes", [0, -1, float("nan"), float("inf")])
async def test_a_life_without_length_is_refused(world: World, minutes: float) -> None:
    with pytest.raises(InvalidInput):
        await world.thread(lifetime=Lifetime(minutes=minutes))


async def test_a_life_that_every_new_thread_has(world: World) -> None:
    usual = Lifetime(minutes=MINUTES, strategy="keep_latest")
    world.threads.policy = msgspec.structs.replace(world.threads.policy, lifetime=usual)
    made = await world.thread()
    other = await world.thread(lifetime=Lifetime(minutes=1))
    run = await world.run("by-a-run", if_not_exists="create")
    again = await world.run(made)
    lives = {each: await world.threads.get_lifetime(each) for each in (made, other, run.thread_id)}
    assert {each: life and life.minutes for each, life in lives.items()} == {
        made: MINUTES,
        other: 1,
        run.thread_id: MINUTES,
    }
    own = await world.run(on_completion="delete")
    assert await world.threads.get_lifetime(own.thread_id) is None
    for each in (run, again, own):
        await world.threads.cancel_run(each.run_id)


async def test_lives_end_by_themselves(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "EXPIRE_SECONDS", 0.01)
    thread = await world.thread(lifetime=Lifetime(minutes=1))
    await world.advance(61)
    world.threads.start_timers()
    await until_true(lambda: _gone(world, thread))


# --- pruning ----------------------------------------------------------------------------------------------


async def test_pruning_removes_threads(world: World) -> None:
    one, two, three = [await world.thread() for _ in range(3)]
    assert await world.threads.prune_threads([one, two, two, "nowhere"]) == 2
    assert [await _gone(world, each) for each in (one, two, three)] == [True, True, False]
    assert await world.threads.prune_threads([]) == 0


async def test_pruning_keeps_the_latest_state(world: World) -> None:
    one, two = await world.thread(), await world.thread()
    await _state(world, one, {"n": 1}, {"n": 2}, {"n": 3})
    assert await world.threads.prune_threads([one, two], "keep_latest") == 2
    assert await world.kept(one) == [{"n": 3}]
    assert await world.values(one) == {"n": 3}
    await _state(world, one, {"n": 4})
    assert await world.kept(one) == [{"n": 3}, {"n": 4}]


async def test_the_states_of_a_busy_thread_are_left_to_it(world: World) -> None:
    thread = await world.thread()
    await _state(world, thread, {"n": 1}, {"n": 2})
    run = await world.run(thread)
    assert await world.threads.prune_threads([thread], "keep_latest") == 0
    assert await world.kept(thread) == [{"n": 1}, {"n": 2}]
    await world.threads.cancel_run(run.run_id)


async def test_another_strategy_is_refused(world: World) -> None:
    with pytest.raises(InvalidInput):
        await world.threads.prune_threads(["t"], "forget")  # type: ignore[arg-type]


# --- values -----------------------------------------------------------------------------------------------


async def test_threads_are_found_by_their_values(world: World) -> None:
    one = await world.thread(values={"n": 1, "deep": {"a": [1, {"b": 2}], "c": None}}, metadata={"m": 1})
    two = await world.thread(values={"n": 2, "deep": {"a": []}})
    await world.thread()

    async def found(**terms: object) -> list[str]:
        page = await world.threads.find_threads(ThreadFilter(**terms))  # type: ignore[arg-type]
        assert page.total == len(page.items)
        return [thread.thread_id for thread in page.items]

    assert await found(having={"n": 1}) == [one]
    assert await found(having={"n": 2.0}) == [two]
    assert await found(having={"n": True}) == []
    assert await found(having={"deep": {"a": [{"b": 2}]}}) == [one]
    assert await found(having={"deep": {}}) == [two, one]
    assert await found(having={"deep": {}}, sort_order="asc") == [one, two]
    assert await found(having={"deep": {}}, metadata={"m": 1}) == [one]
    assert await world.threads.count_threads(having={"deep": {}}) == 2
    assert await world.threads.count_threads(metadata={"m": 1}) == 1
    assert await world.threads.count_threads(status="busy") == 0
    page = await world.threads.find_threads(ThreadFilter(having={"deep": {}}, limit=1, offset=1))
    assert (page.total, [thread.thread_id for thread in page.items]) == (2, [one])


async def test_a_search_through_too_many_values_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MAX_SCANNED", 1)
    for number in range(2):
        await world.thread(values={"n": number}, metadata={"n": number})
    with pytest.raises(InvalidInput, match="metadata"):
        await world.threads.find_threads(ThreadFilter(having={"n": 1}))
    found = await world.threads.find_threads(ThreadFilter(having={"n": 1}, metadata={"n": 1}))
    assert found.total == 1


@pytest.mark.parametrize(
    ("whole", "part", "said"),
    [
        (None, {}, False),
        ({}, {}, True),
        ([1, 2], [2], True),
        ([1, 2], [3], False),
        ({"a": 1}, {"a": 1, "b": 1}, False),
        ("text", "text", True),
        ("text", "tex", False),
        (1, True, False),
        (None, None, True),
    ],
)
def test_what_a_value_contains(whole: object, part: object, said: bool) -> None:
    assert contains(whole, part) is said
