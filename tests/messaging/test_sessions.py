"""One active session for each person in each place, also for concurrent calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.messaging.support import MessagingWorld

from perdure.kernel.errors import InvalidInput, NotFound
from perdure.messaging.model import MAX_CONTENT

NOBODY = "00000000-0000-7000-8000-000000000000"


@pytest.mark.parametrize("thread", [None, "17.5"])
async def test_all_who_ask_at_once_get_the_same_session(world: MessagingWorld, thread: str | None) -> None:
    for round in range(3):
        found = await asyncio.gather(*(world.session(thread_id=thread) for _ in range(8)))
        assert len({each.session_id for each in found}) == 1, round
        assert await world.active() == 1
        await world.advance(1801)
    assert len((await world.messaging.list()).items) == 3


async def test_a_place_is_platform_channel_thread_and_person(world: MessagingWorld) -> None:
    first = await world.session()
    assert await world.session() == first
    assert await world.session(thread_id="") == first
    others = [
        await world.session(thread_id="t"),
        await world.session("bob"),
        await world.messaging.get_or_create("slack", "random", "ann"),
        await world.messaging.get_or_create("cli", "general", "ann"),
    ]
    assert len({each.session_id for each in (first, *others)}) == 5
    assert await world.active() == 5


async def test_a_session_that_was_idle_for_too_long_is_ended(world: MessagingWorld) -> None:
    first = await world.session()
    await world.advance(1790)
    await world.messaging.add_message(first.session_id, "user", "still here")
    await world.advance(1790)
    assert (await world.session()).session_id == first.session_id
    await world.advance(20)
    assert (await world.session()).session_id != first.session_id
    assert not (await world.messaging.get(first.session_id)).active


async def test_ending_one_begins_another_and_another_assistant_does_so_too(world: MessagingWorld) -> None:
    first = await world.session(assistant_id="echo")
    assert (await world.messaging.deactivate(first.session_id)).active is False
    assert (await world.messaging.deactivate(first.session_id)).active is False
    second = await world.session(assistant_id="echo")
    assert second.session_id != first.session_id
    assert (await world.session()).session_id == second.session_id
    assert (await world.session(assistant_id="other")).session_id != second.session_id
    assert await world.active() == 1


async def test_messages_are_counted_with_them_and_listed_oldest_first(world: MessagingWorld) -> None:
    session = await world.session()
    id = session.session_id
    for number in range(7):
        await world.messaging.add_message(id, "assistant" if number % 2 else "user", f"m{number}")
    assert (await world.messaging.get(id)).message_count == 7
    page = await world.messaging.history(id, limit=3)
    assert [each.content for each in page.items] == ["m4", "m5", "m6"]
    seen = [*page.items]
    while page.next is not None:
        page = await world.messaging.history(id, limit=3, cursor=page.next)
        seen = [*page.items, *seen]
    assert [each.content for each in seen] == [f"m{number}" for number in range(7)]
    assert [each.message_id for each in seen] == sorted(each.message_id for each in seen)
    assert (await world.messaging.history(id, limit=0)).items == []


async def test_messages_that_come_at_once_are_all_there_and_counted(world: MessagingWorld) -> None:
    sessions = [await world.session(), await world.session("bob")]
    await asyncio.gather(
        *(
            world.messaging.add_message(session.session_id, "user", f"{number}")
            for number in range(20)
            for session in sessions
        )
    )
    for session in sessions:
        assert (await world.messaging.get(session.session_id)).message_count == 20
        messages = (await world.messaging.history(session.session_id)).items
        assert sorted(int(each.content) for each in messages) == list(range(20))


async def test_a_message_with_a_key_is_added_once(world: MessagingWorld) -> None:
    id = (await world.session()).session_id
    first = await world.messaging.add_message(id, "user", "hello", idempotency_key="k")
    assert await world.messaging.add_message(id, "user", "hello", idempotency_key="k") == first
    assert (await world.messaging.get(id)).message_count == 1


async def test_a_thread_is_found_whoever_it_is_with(world: MessagingWorld) -> None:
    place = ("slack", "general", "t")
    assert not await world.messaging.has_active_thread(*place)
    with pytest.raises(NotFound):
        await world.messaging.find_thread(*place)
    await world.session(thread_id="t")
    bob = await world.session("bob", thread_id="t")
    await world.messaging.add_message(bob.session_id, "user", "me")
    assert (await world.messaging.find_thread(*place)).session_id == bob.session_id
    assert await world.messaging.has_active_thread(*place)
    await world.advance(1801)
    assert not await world.messaging.has_active_thread(*place)
    assert (await world.messaging.find_thread(*place, include_stale=True)).session_id == bob.session_id


async def test_the_session_of_the_agent_is_noted(world: MessagingWorld) -> None:
    id = (await world.session()).session_id
    noted = await world.messaging.set_agent_session_id(id, "abc")
    assert noted.agent_session_id == (await world.messaging.get(id)).agent_session_id == "abc"


async def test_sessions_are_listed_by_their_last_use_in_pages(world: MessagingWorld) -> None:
    ids = [(await world.session(f"u{number}")).session_id for number in range(5)]
    await world.messaging.add_message(ids[1], "user", "hi")
    await world.messaging.deactivate(ids[3])
    order = [ids[n] for n in (1, 4, 3, 2, 0)]
    seen: list[str] = []
    cursor = None
    while len(seen) < 5:
        page = await world.messaging.list(limit=2, cursor=cursor)
        seen += [each.session_id for each in page.items]
        cursor = page.next
    assert seen == order
    active = await world.messaging.list(active=True)
    assert [each.session_id for each in active.items] == [each for each in order if each != ids[3]]
    assert [each.session_id for each in (await world.messaging.list(active=False)).items] == [ids[3]]
    assert (await world.messaging.get(ids[2][:-1])).session_id == ids[2]


async def test_what_is_wrong_is_refused_and_changes_nothing(world: MessagingWorld) -> None:
    id = (await world.session()).session_id
    calls: list[Any] = [
        world.messaging.get_or_create("", "c", "u"),
        world.messaging.get_or_create("p", "c\0", "u"),
        world.messaging.add_message(id, "system", "x"),  # type: ignore[arg-type]
        world.messaging.add_message(id, "user", " "),
        world.messaging.add_message(id, "user", "x" * (MAX_CONTENT + 1)),
        world.messaging.history(id, limit=1001),
        world.messaging.history(id, cursor="a-b"),
        world.messaging.list(cursor="x"),
    ]
    for each in calls:
        with pytest.raises(InvalidInput):
            await each
    for each in (
        world.messaging.get(NOBODY),
        world.messaging.history(NOBODY),
        world.messaging.deactivate(NOBODY),
        world.messaging.add_message(NOBODY, "user", "x"),
    ):
        with pytest.raises(NotFound):
            await each
    assert (await world.messaging.get(id)).message_count == 0
