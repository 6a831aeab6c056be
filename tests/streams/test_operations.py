"""Append, read and delete streams, on every engine."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.kernel.support import NS, record_hints, soon
from tests.streams.support import (
    COUNT_EVENTS,
    COUNT_HEADS,
    COUNT_LINKS,
    Source,
    add,
    ask,
    change,
    new_events,
    page,
    seqs,
)

from perdure.kernel.errors import Conflict
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Storage
from perdure.streams import sql
from perdure.streams.model import Head, NewEvent, Shown
from perdure.streams.operations import (
    EXPIRE_EVENTS,
    EXPIRE_STREAMS,
    StreamAppend,
    append,
    expire,
    heads,
    read,
)

FAR = 9_000_000_000_000
IN_THE_FUTURE = statement("UPDATE streams SET last_ms = 9000000000000")
AN_HOUR_AGO = statement("UPDATE streams SET end_time = end_time - 3600000000")
MINUTE = 60_000_000
JOINED = "thread/t"


# --- one stream -------------------------------------------------------------------------------------------


async def test_numbers_are_dense_over_calls_and_batches(storage: Storage) -> None:
    first = await add(storage, StreamAppend("a", new_events(1, 3), 1))
    batch = [
        StreamAppend("a", new_events(4, 2), 1),
        StreamAppend("b", new_events(1, 1), 7),
        StreamAppend("a", new_events(6, 1), 2),
        StreamAppend("a", ()),
    ]
    rest = await add(storage, *batch)
    assert [done.last_seq for done in first + rest] == [3, 5, 1, 6, 6]
    events, head, reached = await page(storage, "a")
    assert seqs(events) == [1, 2, 3, 4, 5, 6]
    assert [event.body for event in events] == ["1", "2", "3", "4", "5", "6"]
    assert [event.attempt for event in events] == [1, 1, 1, 1, 1, 2]
    assert {event.source for event in events} == {"a"}
    assert head == Head("a", 6, events[-1].ms, None)
    assert reached == 6
    assert [event.attempt for event in (await page(storage, "b")).events] == [7]


async def test_time_never_runs_backwards(storage: Storage) -> None:
    await add(storage, StreamAppend("a", new_events(1, 1)))
    await change(storage, IN_THE_FUTURE)
    (done,) = await add(storage, StreamAppend("a", new_events(2, 1)))
    assert done.ms == FAR
    before, after = (await page(storage, "a")).events
    assert before.ms < after.ms == FAR


async def test_every_place_can_be_gone_on_from(storage: Storage) -> None:
    await add(
        storage,
        StreamAppend("a", new_events(1, 20), 1, JOINED),
        StreamAppend("b", new_events(1, 10), 1, JOINED),
    )
    await add(storage, StreamAppend("a", new_events(21, 5), 1, JOINED))
    for stream, joined, last in (("a", False, 25), (JOINED, True, 35)):
        for after in range(last + 2):
            part = await page(storage, stream, after, 100, joined)
            assert seqs(part.events) == list(range(after + 1, last + 1))
            assert part.reached == max(after, last)


async def test_a_page_has_an_end(storage: Storage) -> None:
    big = [NewEvent("custom", '"' + "ü" * 1100 + '"') for _ in range(6)]
    await add(storage, StreamAppend("a", big, 1, JOINED))
    for stream, joined in (("a", False), (JOINED, True)):
        by_count = await page(storage, stream, 1, 2, joined)
        assert (seqs(by_count.events), by_count.reached) == ([2, 3], 3)
        by_size = await page(storage, stream, 0, 100, joined, 4500)
        assert (seqs(by_size.events), by_size.reached) == ([1, 2, 3], 3)
        at_least_one = await page(storage, stream, 3, 100, joined, 1)
        assert (seqs(at_least_one.events), at_least_one.reached) == ([4], 4)


async def test_what_is_not_there(storage: Storage) -> None:
    assert await page(storage, "a", 5) == ([], None, 5)
    assert await storage.read(heads, ["a", "b"], ns=NS) == {}
    await add(storage, StreamAppend("a", new_events(1, 1)))
    assert await storage.read(read, "a", 0, ns=NS + 1) == ([], None, 0)
    assert list(await storage.read(heads, ["a", "b"], ns=NS)) == ["a"]


async def test_bodies_come_back_as_they_were(storage: Storage) -> None:
    texts = ['"\\u0000"', '{"a": [1, 2]}', '"' + "x" * 100_000 + '"', '"😀"', ""]
    await add(storage, StreamAppend("a", [NewEvent("messages|sub:1", text) for text in texts]))
    events = (await page(storage, "a")).events
    assert [event.body for event in events] == texts
    assert {event.event for event in events} == {"messages|sub:1"}


# --- the end ----------------------------------------------------------------------------------------------


async def test_nothing_comes_after_the_end(storage: Storage) -> None:
    await add(storage, StreamAppend("a", new_events(1, 2), 1, JOINED, ends=True))
    head = (await page(storage, "a")).head
    assert head is not None
    assert head.end_seq == 2
    for late in ((), new_events(3, 1)):
        with pytest.raises(Conflict, match="stream a has ended at 2"):
            await add(storage, StreamAppend("other", new_events(1, 1)), StreamAppend("a", late, 1, JOINED))
    with pytest.raises(Conflict):
        await add(storage, StreamAppend("b", (), ends=True), StreamAppend("b", new_events(1, 1)))
    assert list(await storage.read(heads, ["a", "b", "other", JOINED], ns=NS)) == ["a", JOINED]
    joined = await page(storage, JOINED, 0, 100, True)
    assert joined.head is not None
    assert (seqs(joined.events), joined.head.end_seq) == ([1, 2], None)


async def test_a_stream_may_end_without_an_event(storage: Storage) -> None:
    (done,) = await add(storage, StreamAppend("a", (), 1, JOINED, ends=True))
    assert done.last_seq == 0
    assert done.joined is not None
    assert done.joined.last_seq == 0
    ends = await storage.read(heads, ["a", JOINED], ns=NS)
    assert (ends["a"].end_seq, ends[JOINED].end_seq) == (0, None)


# --- joined streams ---------------------------------------------------------------------------------------


async def test_a_joined_stream_has_numbers_of_its_own_and_no_bodies(storage: Storage) -> None:
    done = await add(
        storage,
        StreamAppend("a", new_events(1, 2), 1, JOINED),
        StreamAppend("b", new_events(1, 1), 1, JOINED),
        StreamAppend("a", new_events(3, 1), 2, JOINED),
        StreamAppend("c", new_events(1, 5)),
    )
    assert [end.joined and end.joined.last_seq for end in done] == [2, 3, 4, None]
    events = (await page(storage, JOINED, 0, 100, True)).events
    assert [(event.seq, event.source, event.body) for event in events] == [
        (1, "a", "1"),
        (2, "a", "2"),
        (3, "b", "1"),
        (4, "a", "3"),
    ]
    assert events[0].ms == done[0].joined.ms if done[0].joined else False
    assert [event.attempt for event in events] == [1, 1, 1, 2]
    assert await ask(storage, COUNT_EVENTS) == [(9,)]
    assert await ask(storage, COUNT_LINKS) == [(3,)]


async def test_what_was_dropped_leaves_an_empty_place(source: Source, storage: Storage) -> None:
    for stream in ("a", "b", "a", "c", "c"):
        await source.put(stream, 2, into=JOINED)
    await source.drop("a")
    part = await page(storage, JOINED, 0, 100, True)
    assert (seqs(part.events), part.reached) == ([3, 4, 7, 8, 9, 10], 10)
    await source.drop("c")
    part = await page(storage, JOINED, 0, 100, True)
    assert (seqs(part.events), part.reached) == ([3, 4], 10)
    assert await page(storage, JOINED, 4, 100, True) == ([], part.head, 10)
    (done,) = await add(storage, StreamAppend("d", new_events(1, 1), 1, JOINED))
    assert done.joined is not None
    assert done.joined.last_seq == 11
    assert await ask(storage, COUNT_LINKS) == [(2,)]


# --- dropping ---------------------------------------------------------------------------------------------


async def test_dropping_leaves_nothing_of_a_stream_and_the_others_whole(
    source: Source, storage: Storage
) -> None:
    for stream in ("a", "b", "c"):
        await source.put(stream, 3, into=JOINED, ends=stream == "b")
    await source.drop("a", "b", JOINED, "unknown")
    await source.drop()
    assert await ask(storage, COUNT_HEADS) == [(1,)]
    assert await ask(storage, COUNT_EVENTS) == [(3,)]
    assert await ask(storage, COUNT_LINKS) == [(0,)]
    (again,) = await add(storage, StreamAppend("b", new_events(1, 1)))
    assert again.last_seq == 1


async def test_streams_expire_some_time_after_their_end(source: Source, storage: Storage) -> None:
    await source.put("old", 2, into=JOINED, ends=True)
    await source.put("live", 1, into=JOINED)
    await storage.run(append, [StreamAppend("elsewhere", new_events(1, 1), ends=True)], ns=NS + 1)
    await change(storage, AN_HOUR_AGO)
    await source.put("new", 1, into=JOINED, ends=True)
    assert await source.streams.expire(7200.0) == 0
    assert await source.streams.expire(60.0) == 2
    assert await source.streams.expire(60.0) == 0
    assert set(await storage.read(heads, ["old", "live", "new", JOINED], ns=NS)) == {"live", "new", JOINED}
    assert seqs((await page(storage, JOINED, 0, 100, True)).events) == [3, 4]


async def test_expiring_goes_in_steps(storage: Storage) -> None:
    many = EXPIRE_STREAMS + 5
    await add(storage, *(StreamAppend(f"s{number:03}", (), ends=True) for number in range(many)))
    large = StreamAppend("large", new_events(1, EXPIRE_EVENTS + 1), ends=True)
    await change(storage, AN_HOUR_AGO)
    assert await storage.background(expire, MINUTE) == EXPIRE_STREAMS
    assert await storage.background(expire, MINUTE) == 5
    await add(storage, large, StreamAppend("small", new_events(1, 1), ends=True))
    await change(storage, AN_HOUR_AGO)
    assert await storage.background(expire, MINUTE) == 1
    assert await storage.background(expire, MINUTE) == 1
    assert await storage.background(expire, MINUTE) == 0
    assert await ask(storage, COUNT_EVENTS) == [(0,)]


# --- hints and meetings -----------------------------------------------------------------------------------


async def test_both_streams_are_hinted_at(source: Source, storage: Storage) -> None:
    published = record_hints(storage)
    await source.put("a", into=JOINED)
    assert set(published[-1]) == {("streams", f"{NS}/a"), ("streams", f"{NS}/{JOINED}")}
    await source.drop("a")
    assert ("streams", f"{NS}/a") in published[-1]


async def test_those_who_append_at_once_lose_and_double_nothing(storage: Storage) -> None:
    """All writers start with new streams, and append to them in different orders."""
    chance = random.Random(4)
    runs, threads = ["a", "b", "c", "d"], ["thread/x", "thread/y"]

    async def work(number: int) -> None:
        for turn in range(10):
            batch = [
                StreamAppend(
                    run, [NewEvent("custom", f"{number}-{turn}")] * 2, number, chance.choice(threads)
                )
                for run in chance.sample(runs, 3)
            ]
            await add(storage, *batch)

    await soon(asyncio.gather(*map(work, range(6))))
    ends = await storage.read(heads, runs + threads, ns=NS)
    assert sum(ends[run].last_seq for run in runs) == 6 * 10 * 3 * 2
    assert sum(ends[thread].last_seq for thread in threads) == 6 * 10 * 3 * 2
    for stream in runs + threads:
        events, after = [], 0
        while after < ends[stream].last_seq:
            got, _, after = await page(storage, stream, after, 100, stream in threads)
            events += got
        assert seqs(events) == list(range(1, ends[stream].last_seq + 1))
        assert [event.ms for event in events] == sorted(event.ms for event in events)


# --- namespaces -------------------------------------------------------------------------------------------


async def test_a_stream_of_the_same_name_in_another_namespace_is_another(storage: Storage) -> None:
    """Every read binds the namespace: of events, joined streams, references and heads."""
    other = NS + 1
    secret = NewEvent("values", "[8]", Shown(checkpoint_id="c", checkpoint_ns="", keys="[]"))
    for ns, events in (
        (NS, new_events(1, 3)),
        (other, new_events(7, 1)),
        (other, [secret, *new_events(9, 3)]),
    ):
        await storage.run(append, [StreamAppend("run", events, 1, JOINED, thread_id="t")], ns=ns)
    for stream, joined in (("run", False), (JOINED, True)):
        for after in range(4):
            part = await page(storage, stream, after, 100, joined)
            assert [event.body for event in part.events] == ["1", "2", "3"][after:]
    for references, stream in ((sql.READ_REFERENCES, "run"), (sql.READ_JOINED_REFERENCES, JOINED)):
        assert await ask(storage, references, stream=stream, after=0, last=9) == []
    assert await ask(storage, sql.REFERENCES_TO, thread_id="t") == []
    assert (await storage.read(heads, ["run"], ns=NS))["run"].last_seq == 3
    assert (await storage.read(heads, ["run"], ns=other))["run"].last_seq == 5
    assert await storage.read(heads, ["run"], ns=other + 1) == {}
