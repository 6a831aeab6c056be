"""Events: stored once, in the order of their source time, whatever is sent."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.memory.conftest import DAY, World, ms

from perdure import Perdure
from perdure.errors import InvalidInput
from perdure.kernel.ids import RandomIds, derived_ulid, parse_ulid, ulid, ulid_ms
from perdure.kernel.storage.dialect import statement
from perdure.memory import service
from perdure.memory.model import INDEX_CONSUMER, LATEST_MS, TOC_CONSUMER, storable
from perdure.memory.records import NewMemoryEvent

COUNT = statement("SELECT count(*) FROM memory_events WHERE ns = :ns", row=int)


async def test_what_was_ingested_is_read_in_the_order_of_its_time(world: World) -> None:
    late = world.event("late", "2024-01-15 12:00", agent="Claude", role="assistant")
    early = world.event("early", "2024-01-15 09:00", metadata={"tool": "bash", "cwd": "/src"})
    answers = await world.memory.ingest_many([late, early])
    assert [(each.event_id, each.created) for each in answers] == [
        (late.event_id, True),
        (early.event_id, True),
    ]
    backdated = world.event(
        "backdated", event_id=ulid(ms("2026-05-05 10:00"), RandomIds()), at="2024-01-15 10:00"
    )
    assert (await world.memory.ingest(backdated)).created
    page = await world.memory.get_events()
    assert [each.text for each in page.items] == ["early", "backdated", "late"]
    assert not page.has_more
    first, _, last = page.items
    assert (first.metadata, first.role, first.agent) == ({"tool": "bash", "cwd": "/src"}, "user", None)
    assert (last.agent, last.role, last.event_type) == ("claude", "assistant", "user_message")


async def test_both_ends_of_a_range_belong_to_it(world: World) -> None:
    times = [f"2024-01-15 10:0{minute}" for minute in range(5)]
    await world.memory.ingest_many([world.event(at, at) for at in times])
    page = await world.memory.get_events(from_ms=ms(times[1]), to_ms=ms(times[3]))
    assert [each.text for each in page.items] == times[1:4]
    page = await world.memory.get_events(from_ms=ms(times[1]) + 1, to_ms=ms(times[3]) - 1)
    assert [each.text for each in page.items] == times[2:3]
    assert (await world.memory.get_events(from_ms=5, to_ms=4)).items == []


async def test_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [
        world.event(f"{number}", "2024-01-15 10:00", session_id=f"s{number % 2}") for number in range(10)
    ]
    await world.memory.ingest_many(events)
    page = await world.memory.get_events(limit=5)
    assert page.has_more
    rest = await world.memory.get_events(limit=5, after=page.after)
    assert not rest.has_more
    assert {each.text for each in page.items + rest.items} == {each.text for each in events}
    last = await world.memory.get_events(after=rest.after)
    assert (last.items, last.has_more, last.after) == ([], False, rest.after)
    mine = await world.memory.get_events(session_id="s1", limit=2)
    assert mine.has_more
    assert {each.session_id for each in mine.items} == {"s1"}
    none = await world.memory.get_events(limit=0)
    assert (none.items, none.has_more) == ([], True)
    monkeypatch.setattr(service, "PAGE_BYTES", 3)
    short = await world.memory.get_events()
    assert (len(short.items), short.has_more) == (3, True)
    for wrong in ("x", "5", "-1:01HMZ0KQ6V9B4T5Z7N2C8XJ3PD", "1:x", "1" * 300):
        with pytest.raises(InvalidInput, match="after"):
            await world.memory.get_events(after=wrong)


async def test_a_text_of_four_megabytes_is_stored_and_pages_stay_small(world: World) -> None:
    texts = ["é" * (2 << 20), "x" * (3 << 20), "y" * (3 << 20), "needle " + "z" * 100_000]
    ids = await world.ingest(*(world.event(text, 1000 + at) for at, text in enumerate(texts)))
    pages: list[list[str]] = []
    after, more = None, True
    while more:
        page = await world.memory.get_events(after=after)
        pages.append([event.text[0] for event in page.items])
        after, more = page.after, page.has_more
    assert pages == [["é"], ["x"], ["y", "n"]]
    (hit,) = (await world.memory.search("needle")).items
    assert (hit.id, len(hit.text) <= 200) == (ids[3], True)


async def test_the_events_around_a_grip_stay_small(world: World) -> None:
    sizes = [3 << 20, 2 << 20, 3 << 20, 10, 3 << 20, 2 << 20, 3 << 20]
    events = [
        world.event("the gears were greased" if size == 10 else "x" * size, f"{DAY} 10:0{minute}")
        for minute, size in enumerate(sizes)
    ]
    await world.arrive(*events)
    await world.build()
    texts = {bullet.text: bullet for node in await world.segments() for bullet in node.bullets}
    grip = texts["Asked: The gears were greased"]
    shown = await world.memory.expand_grip(grip.grip_ids[0], events_before=5, events_after=5)
    assert [event.text for event in shown.excerpt_events] == ["the gears were greased"]
    assert [len(event.text) for event in shown.events_before] == [3 << 20]
    assert [len(event.text) for event in shown.events_after] == [3 << 20]


async def test_the_setting_bounds_the_text_of_an_event(tmp_path: Path) -> None:
    event = NewMemoryEvent(event_id="01HMZ0KQ6V9B4T5Z7N2C8XJ3PD", session_id="s", text="x" * 2000)
    async with Perdure(str(tmp_path / "a.db"), memory_event_bytes=1999) as perdure:
        with pytest.raises(InvalidInput, match=r"memory_event_bytes\) must be at most 1999 bytes"):
            await perdure.memory.ingest(event)
    async with Perdure(str(tmp_path / "a.db"), memory_event_bytes=2000) as perdure:
        assert (await perdure.memory.ingest(event)).created
    with pytest.raises(ValueError, match="memory_event_bytes"):
        Perdure(str(tmp_path / "a.db"), memory_event_bytes=1 << 30)


async def test_one_id_is_one_event_whoever_sends_it_and_when(world: World) -> None:
    event = world.event("first")
    again = msgspec.structs.replace(event, text="second", event_id=event.event_id.lower())
    racing = await asyncio.gather(*(world.memory.ingest(event) for _ in range(8)))
    other = world.services.memory.in_namespace(world.memory.namespace)
    more = await asyncio.gather(world.memory.ingest_many([again, event]), other.ingest(again))
    created = [each.created for each in [*racing, *more[0], more[1]]]
    assert sum(created) == 1
    assert [each.text for each in (await world.memory.get_events()).items] == ["first"]
    assert await world.storage.read(_count, ns=await world.memory.ns()) == 1
    # Only what was stored is to be indexed.
    entries = await world.services.outbox.list()
    assert sorted(each.consumer for each in entries.items) == [INDEX_CONSUMER, TOC_CONSUMER]


async def test_two_processes_race(world: World) -> None:
    """Two transactions at once: each event is reported as created by one of them."""
    one, two = (world.memory.in_namespace(world.memory.namespace) for _ in range(2))
    events = [world.event(f"{number}") for number in range(50)]
    await one.ns("write")
    answers = await asyncio.gather(one.ingest_many(events), two.ingest_many(events[::-1]))
    assert sum(each.created for answer in answers for each in answer) == 50


async def _count(tx: Any) -> int:
    return await tx.one(COUNT) or 0


async def test_concurrent_calls_share_an_entry_of_the_outbox(world: World) -> None:
    await asyncio.gather(*(world.memory.ingest(world.event(f"{number}")) for number in range(100)))
    entries = await world.services.outbox.list(consumer=TOC_CONSUMER)
    assert 1 <= len(entries.items) < 20
    bodies = [
        msgspec.json.decode((await world.services.outbox.get(each.id)).body or "") for each in entries.items
    ]
    assert sum(body["events"] for body in bodies) == 100
    assert {body["action"] for body in bodies} == {"update_toc"}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"event_id": ""}, "event_id is required"),
    ({"event_id": "  "}, "event_id is required"),
    ({"event_id": "not-a-ulid"}, "must be a ULID"),
    ({"event_id": "81HMZ0KQ6V9B4T5Z7N2C8XJ3PD"}, "must be a ULID"),
    ({"event_id": "01HMZ0KQ6V9B4T5Z7N2C8XJ3PI"}, "must be a ULID"),
    ({"session_id": ""}, "session_id is required"),
    ({"session_id": "x" * 300}, "session_id"),
    ({"timestamp_ms": -1}, "timestamp_ms"),
    ({"timestamp_ms": 2**63 - 1}, "timestamp_ms"),
    ({"timestamp_ms": LATEST_MS + 1}, "timestamp_ms"),
    ({"timestamp_ms": 1.5}, "timestamp_ms"),
    ({"text": 5}, "text must be a string"),
    ({"text": "x" * (4 * 1024 * 1024 + 1)}, r"text \(memory_event_bytes\) must be at most 4194304 bytes"),
    ({"event_type": "shout"}, "event_type must be one of"),
    ({"role": "cat"}, "role must be one of"),
    ({"agent": "x" * 300}, "agent"),
    ({"metadata": {"a": 5}}, "metadata"),
    ({"metadata": {str(n): "" for n in range(65)}}, "65 keys"),
]


async def test_bad_events_are_refused_and_nothing_is_stored(world: World) -> None:
    for fields, message in WRONG:
        with pytest.raises(InvalidInput, match=message):
            await world.memory.ingest_many([world.event(), world.event(**{"at": 5, **fields})])
    with pytest.raises(InvalidInput, match="at most 1000"):
        await world.memory.ingest_many([world.event()] * 1001)
    assert await world.memory.ingest_many([]) == []
    assert (await world.memory.get_events()).items == []


async def test_text_that_no_database_takes_is_mended(world: World) -> None:
    family = "👨‍👩‍👧"
    cut = [family[:end] for end in range(len(family) + 1)]
    halves = [
        "\ud83d",
        "a\udc68b",
        "x\0y",
        family.encode("utf-16", "surrogatepass")[2:4].decode("utf-16", "replace"),
    ]
    texts = [*cut, *halves]
    await world.memory.ingest_many([world.event(text, 1000 + n) for n, text in enumerate(texts)])
    stored = [each.text for each in (await world.memory.get_events()).items]
    assert stored == [storable(text) for text in texts]
    assert stored[: len(cut)] == cut
    assert stored[len(cut) :][:3] == ["\ufffd", "a\ufffdb", "x\ufffdy"]


async def test_the_time_of_an_event_without_one_is_that_of_its_id(world: World) -> None:
    id = ulid(1_705_312_800_123, RandomIds())
    await world.memory.ingest(NewMemoryEvent(event_id=id, session_id="s"))
    assert [each.timestamp_ms for each in (await world.memory.get_events()).items] == [1_705_312_800_123]


def test_ulids() -> None:
    now = time.time_ns() // 1_000_000
    made = [ulid(now + later, RandomIds()) for later in (0, 1, 1000)]
    assert made == sorted(made)
    assert [ulid_ms(each) for each in made] == [now, now + 1, now + 1000]
    assert all(parse_ulid(each.lower()) == each for each in made)
    assert ulid_ms(ulid(2**48 - 1, RandomIds())) == 2**48 - 1
    assert derived_ulid(now, "a", "b") == derived_ulid(now, "a", "b") != derived_ulid(now, "ab")
    assert parse_ulid("0" * 25) is parse_ulid("O" * 26) is parse_ulid("é" * 26) is None
