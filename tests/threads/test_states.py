"""Threads and their states: creation, changes, copies, searches, and history."""

from __future__ import annotations

import asyncio

import pytest
from tests.threads.support import World

from perdure.kernel.errors import Conflict, InvalidInput, NotFound
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.threads.records import Interrupt, Thread


async def found(world: World, **search: object) -> list[str]:
    page = await world.threads.search_threads(**search)  # type: ignore[arg-type]
    assert page.total == len(page.items)
    return [thread.thread_id for thread in page.items]


async def test_a_new_thread(world: World) -> None:
    made = await world.threads.create_thread("mine", metadata={"a": [1]}, config={"configurable": {"x": 1}})
    assert (made.thread_id, made.status, made.metadata) == ("mine", "idle", {"a": [1]})
    assert (made.config, made.values, made.checkpoint_id) == ({"configurable": {"x": 1}}, None, None)
    assert made.created_at == made.updated_at == made.state_updated_at
    assert await world.threads.get_thread("mine") == made
    assert await world.threads.get_state("mine") is None


async def test_an_id_that_is_taken(world: World) -> None:
    first = await world.threads.create_thread("mine", metadata={"a": 1})
    with pytest.raises(Conflict, match="mine exists already"):
        await world.threads.create_thread("mine")
    again = await world.threads.create_thread("mine", metadata={"a": 2}, if_exists="do_nothing")
    assert again == first


async def test_of_many_with_one_id_one_is_made(world: World) -> None:
    services = world.others(6)
    answers = await asyncio.gather(
        *(service.create_thread("mine") for service in services), return_exceptions=True
    )
    assert sum(isinstance(answer, Thread) for answer in answers) == 1
    assert sum(isinstance(answer, Conflict) for answer in answers) == 5


async def test_metadata_is_merged_and_config_replaced(world: World) -> None:
    thread = await world.thread(metadata={"a": 1, "b": 1}, config={"x": 1})
    changed = await world.threads.update_thread(thread, metadata={"b": 2, "c": 3}, config={"y": 1})
    assert changed.metadata == {"a": 1, "b": 2, "c": 3}
    assert changed.config == {"y": 1}
    assert (await world.threads.update_thread(thread)).metadata == {"a": 1, "b": 2, "c": 3}
    assert await found(world, metadata={"b": 2}) == [thread]
    assert await found(world, metadata={"b": 1}) == []
    with pytest.raises(NotFound):
        await world.threads.update_thread("nowhere", metadata={})


async def test_concurrent_changes_of_metadata_are_all_kept(world: World) -> None:
    thread = await world.thread(metadata={"a": 1})
    others = world.others(6)
    await asyncio.gather(
        *(threads.update_thread(thread, metadata={f"n{n}": n}) for n, threads in enumerate(others))
    )
    expected = {"a": 1, **{f"n{n}": n for n in range(6)}}
    assert (await world.threads.get_thread(thread)).metadata == expected
    assert await found(world, metadata=expected) == [thread]


LINES = statement("SELECT count(*) FROM lines WHERE ns = :ns", row=int)


async def test_a_thread_that_is_not_there_leaves_nothing(world: World) -> None:
    async def lines() -> int | None:
        async def count(tx: Tx) -> int | None:
            return await tx.one(LINES)

        return await world.threads.read(count)

    before = await lines()
    for call in (world.threads.update_state("nowhere", 1), world.threads.copy_thread("nowhere")):
        with pytest.raises(NotFound):
            await call
    assert await lines() == before


async def test_searching(world: World) -> None:
    first = await world.thread(metadata={"team": "a", "n": 1}, values={"v": 1})
    second = await world.thread(metadata={"team": "a", "deep": {"x": [1]}})
    third = await world.thread(metadata={"team": "b"})
    await world.run(third)
    assert await found(world) == [third, second, first]
    assert await found(world, sort_order="asc") == [first, second, third]
    assert await found(world, metadata={"team": "a"}) == [second, first]
    assert await found(world, metadata={"team": "a", "n": 1}) == [first]
    assert await found(world, metadata={"n": "1"}) == []
    assert await found(world, metadata={"deep": {"x": [1]}}) == [second]
    assert await found(world, status="busy") == [third]
    assert await found(world, status="idle", metadata={"team": "b"}) == []
    assert await found(world, ids=[first, third, "nowhere"]) == [third, first]
    assert await found(world, ids=[]) == []
    page = await world.threads.search_threads(limit=1, offset=1, total=True)
    assert ([each.thread_id for each in page.items], page.total) == ([second], 3)
    assert (await world.threads.search_threads(limit=1, offset=1)).total is None
    # The last page shows the total.
    assert (await world.threads.search_threads(limit=2, offset=2)).total == 3
    (shown,) = (await world.threads.search_threads(ids=[first])).items
    (bare,) = (await world.threads.search_threads(ids=[first], values=False)).items
    assert (shown.values, bare.values) == ({"v": 1}, None)


@pytest.mark.parametrize(
    "search",
    [
        {"status": "asleep"},
        {"sort_by": "metadata"},
        {"sort_order": "up"},
        {"limit": -1},
        {"limit": 1001},
        {"offset": -1},
        {"metadata": ["a"]},
    ],
)
async def test_bad_searches(world: World, search: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        await world.threads.search_threads(**search)  # type: ignore[arg-type]


# --- states -----------------------------------------------------------------------------------------------


async def test_history(world: World) -> None:
    thread = await world.thread(values=0)
    run = await world.run(thread)
    held = (await world.take(run)).held
    asked = [Interrupt(id="i", value="sure?")]
    ids = [await world.save(held, n, metadata={"odd": n % 2 == 1}) for n in range(1, 5)]
    await world.save(held, 5, next=["ask"], interrupts=asked, state=b"\0\xff", parent_id=ids[0])
    await world.finish(held)
    states = await world.threads.history(thread)
    assert [state.values for state in states] == [5, 4, 3, 2, 1, 0]
    assert [state.step for state in states] == [5, 4, 3, 2, 1, 0]
    assert [state.parent_id for state in states][1:5] == [*reversed(ids[:3]), states[-1].checkpoint_id]
    newest, oldest = states[0], states[-1]
    assert (newest.next, newest.interrupts, newest.state) == (["ask"], asked, b"\0\xff")
    assert (newest.parent_id, newest.run_id, newest.attempt) == (ids[0], run.run_id, 1)
    assert (oldest.run_id, oldest.attempt, oldest.metadata) == (None, None, {"source": "input"})
    before = await world.threads.history(thread, before=ids[2], limit=2)
    assert [state.values for state in before] == [2, 1]
    odd = await world.threads.history(thread, metadata={"odd": True}, limit=1, before=ids[2])
    assert [state.values for state in odd] == [1]
    assert await world.threads.history(thread, limit=0) == []
    light = await world.threads.history(thread, values=False)
    assert [(each.step, each.values, each.state) for each in light] == [
        (step, None, None) for step in range(5, -1, -1)
    ]
    assert await world.threads.get_state(thread) == newest
    third = await world.threads.get_state(thread, ids[2])
    assert third is not None
    assert third.values == 3
    shown = await world.threads.get_thread(thread)
    assert (shown.values, shown.interrupts, shown.status) == (5, asked, "interrupted")


async def test_states_that_do_not_exist(world: World) -> None:
    thread = await world.thread(values=0)
    other = await world.threads.get_state(await world.thread(values=1))
    assert other is not None
    for wrong in ("nothing", other.checkpoint_id):
        with pytest.raises(NotFound):
            await world.threads.get_state(thread, wrong)
        with pytest.raises(NotFound):
            await world.threads.history(thread, before=wrong)
        with pytest.raises(NotFound):
            await world.threads.update_state(thread, 1, checkpoint_id=wrong)
        with pytest.raises(NotFound):
            await world.run(thread, checkpoint_id=wrong)
    with pytest.raises(NotFound):
        await world.threads.get_state("nowhere")
    with pytest.raises(NotFound):
        await world.threads.history("nowhere")


async def test_a_state_set_by_hand(world: World) -> None:
    thread = await world.thread(values="first")
    first = await world.threads.get_state(thread)
    assert first is not None
    state = await world.threads.update_state(thread, "second", metadata={"by": "me"}, next=["go"])
    assert (state.values, state.step, state.parent_id) == ("second", 1, first.checkpoint_id)
    assert state.metadata == {"source": "update", "by": "me"}
    assert await world.rest(thread) == "interrupted"
    branch = await world.threads.update_state(thread, "third", checkpoint_id=first.checkpoint_id)
    assert branch.parent_id == first.checkpoint_id
    assert await world.rest(thread) == "idle"
    assert await world.values(thread) == "third"


async def test_a_repeated_key_sets_a_state_once(world: World) -> None:
    thread = await world.thread(values="first")
    twice = [await world.threads.update_state(thread, "second", idempotency_key="k") for _ in "ab"]
    assert twice[0] == twice[1]
    assert [each.values for each in await world.threads.history(thread)] == ["second", "first"]


async def test_a_state_set_by_hand_mends_an_error(world: World) -> None:
    thread = await world.thread()
    await world.finish((await world.take(await world.run(thread))).held, "error")
    await world.threads.update_state(thread, "mended")
    shown = await world.threads.get_thread(thread)
    assert (shown.status, shown.error) == ("idle", None)


async def test_no_state_is_set_while_a_run_is_live(world: World) -> None:
    thread = await world.thread()
    run = await world.run(thread, after_seconds=50)
    with pytest.raises(Conflict, match=f"busy with run {run.run_id}"):
        await world.threads.update_state(thread, 1)
    await world.advance(60)
    held = (await world.take(run)).held
    with pytest.raises(Conflict):
        await world.threads.update_state(thread, 1)
    await world.finish(held)
    await world.threads.update_state(thread, 1)
    with pytest.raises(NotFound):
        await world.threads.update_state("nowhere", 1)


async def test_a_run_goes_on_from_the_state_it_is_asked_to(world: World) -> None:
    thread = await world.thread(values="first")
    first = await world.threads.get_state(thread)
    assert first is not None
    await world.threads.update_state(thread, "second")
    assignment = await world.take(await world.run(thread, checkpoint_id=first.checkpoint_id))
    assert assignment.checkpoint == first


# --- copies -----------------------------------------------------------------------------------------------


async def test_a_copy_has_everything_but_the_runs(world: World) -> None:
    thread = await world.thread(metadata={"a": 1}, config={"c": 1}, values="first")
    await world.done(await world.run(thread), values="second")
    copy = await world.threads.copy_thread(thread)
    assert copy.thread_id != thread
    assert (copy.status, copy.values, copy.metadata, copy.config) == ("idle", "second", {"a": 1}, {"c": 1})
    assert await world.kept(copy.thread_id) == ["first", "second"]
    assert (await world.threads.list_runs(thread_id=copy.thread_id)).items == []
    assert set(await found(world, metadata={"a": 1})) == {thread, copy.thread_id}
    await world.done(await world.run(copy.thread_id), values="third")
    assert await world.kept(thread) == ["first", "second"]
    await world.threads.delete_thread(thread)
    assert await world.kept(copy.thread_id) == ["first", "second", "third"]
    with pytest.raises(NotFound):
        await world.threads.copy_thread(thread)


async def test_a_copy_of_a_busy_thread_rests(world: World) -> None:
    thread = await world.thread()
    run = await world.run(thread)
    held = (await world.take(run)).held
    await world.save(held, "half")
    copy = await world.threads.copy_thread(thread)
    assert (copy.status, copy.values) == ("idle", "half")
    await world.threads.cancel_run(run.run_id, action="rollback")
    await world.finish(held, "stopped")
    assert await world.kept(copy.thread_id) == ["half"]
