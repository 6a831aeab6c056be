"""Followers: their events, start, end and cost."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.kernel.support import NS, in_thread, soon, until
from tests.streams.support import Source, add, idle, lose_hints, new_events, rest, seqs, some, take

from perdure.kernel.errors import StorageClosed, StorageUnavailable
from perdure.kernel.storage.port import Storage
from perdure.server.http.long_responses import encode_events
from perdure.streams import tail
from perdure.streams.operations import StreamAppend
from perdure.streams.service import Streams
from perdure.streams.tail import StreamKey

JOINED = "thread/t"


# --- events of a follower ---------------------------------------------------------------------------------


async def test_a_stream_is_waited_for_and_read_to_its_end(source: Source, streams: Streams) -> None:
    follower = streams.follow(NS, "a", 0)
    await idle(follower)
    for turn in range(3):
        await source.put("a", 2, ends=turn == 2)
    events = await rest(follower)
    assert seqs(events) == [1, 2, 3, 4, 5, 6]
    assert [event.body for event in events] == ["1", "2", "3", "4", "5", "6"]
    assert {(event.source, event.attempt, event.event) for event in events} == {("a", 1, "custom")}
    assert await follower.next() is None


async def test_whether_somebody_reads_a_stream(streams: Streams) -> None:
    unread = False if streams.storage.engine == "sqlite" else None
    assert streams.is_followed(NS, "a", JOINED) is unread
    assert streams.is_followed(None, "a", JOINED) is None
    for name, joined in (("a", False), (JOINED, True)):
        follower = streams.follow(NS, name, 0, joined=joined)
        assert streams.is_followed(NS, "a", JOINED) is True
        assert streams.is_followed(NS, "b", "thread/u") is unread
        follower.close()
        assert streams.is_followed(NS, "a", JOINED) is unread


async def test_live_and_replayed_events_are_the_same(source: Source, streams: Streams) -> None:
    live = streams.follow(NS, "a", 0)
    joined = streams.follow(NS, JOINED, 0, joined=True)
    await soon(live.started())
    await soon(joined.started())
    for turn in range(4):
        await source.put("a", 3, into=JOINED, ends=turn == 3)
    there = await rest(live)
    assert there == await rest(streams.follow(NS, "a", 0))
    events = await take(joined, 12)
    again = streams.follow(NS, JOINED, 0, joined=True)
    assert events == await take(again, 12)
    assert [event.source for event in events] == ["a"] * 12
    joined.close()
    again.close()


async def test_every_place_can_be_gone_on_from(source: Source, streams: Streams) -> None:
    await source.put("a", 10, into=JOINED)
    followers = [streams.follow(NS, "a", after) for after in range(22)]
    joined = [streams.follow(NS, JOINED, after, joined=True) for after in range(20)]
    await source.put("a", 9, into=JOINED)
    await source.put("a", 1, into=JOINED, ends=True)
    for after, follower in enumerate(followers):
        assert seqs(await rest(follower)) == list(range(after + 1, 21))
    for after, follower in enumerate(joined):
        assert seqs(await take(follower, 20 - after)) == list(range(after + 1, 21))
        follower.close()


async def test_from_now_on(source: Source, streams: Streams) -> None:
    await source.put("a", 5)
    first = streams.follow(NS, "a", None)
    await soon(first.started())
    await source.put("a", 1)
    second = streams.follow(NS, "a", None)
    await source.put("a", 1, ends=True)
    assert seqs(await rest(first)) == [6, 7]
    assert seqs(await rest(second)) == [7]
    assert await soon(streams.follow(NS, "a", None).next()) is None


async def test_an_offer_that_comes_first_is_from_now_on(source: Source, streams: Streams) -> None:
    await source.put("a", 5)
    (done,) = await add(streams.storage, last := StreamAppend("a", new_events(6, 2), 1, ends=True))
    follower = streams.follow(NS, "a", None)
    streams.offer(NS, last, done)
    assert seqs(await rest(follower)) == [6, 7]


async def test_an_end_without_an_event(source: Source, streams: Streams) -> None:
    empty, short = streams.follow(NS, "empty", 0), streams.follow(NS, "a", 0)
    await source.put("empty", 0, ends=True)
    await source.put("a", 1)
    assert seqs(await some(short)) == [1]
    await source.put("a", 0, ends=True)
    assert await soon(short.next()) is None
    assert await soon(empty.next()) is None


async def test_a_page_is_not_the_whole(
    source: Source, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "PAGE_EVENTS", 7)
    for _ in range(5):
        await source.put("a", 10, into=JOINED)
    await source.put("a", 0, ends=True)
    assert seqs(await rest(streams.follow(NS, "a", 0))) == list(range(1, 51))
    joined = streams.follow(NS, JOINED, 3, joined=True)
    assert seqs(await take(joined, 47)) == list(range(4, 51))
    joined.close()


async def test_nobody_waits_longer_than_they_want(source: Source, streams: Streams) -> None:
    await source.put("a", 1)
    follower = streams.follow(NS, "a", None)
    await soon(follower.started())
    await idle(follower)
    waiting = asyncio.ensure_future(follower.next())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    await source.put("a", 1)
    assert seqs(await some(follower)) == [2]
    follower.close()


# --- deleted events and streams ---------------------------------------------------------------------------


async def test_a_stream_that_is_dropped_ends(source: Source, streams: Streams) -> None:
    await source.put("a", 2, into=JOINED)
    run, joined = streams.follow(NS, "a", 0), streams.follow(NS, JOINED, None, joined=True)
    never = streams.follow(NS, "b", 0)
    assert seqs(await some(run)) == [1, 2]
    await soon(joined.started())
    await source.drop("a", JOINED, "b")
    assert await soon(run.next()) is None
    assert await soon(joined.next()) is None
    await source.put("b", 1)
    assert seqs(await some(never)) == [1]
    never.close()


async def test_a_stream_of_the_same_name_is_another(source: Source, streams: Streams) -> None:
    await source.put("a", 5)
    follower = streams.follow(NS, "a", 0)
    assert seqs(await some(follower)) == [1, 2, 3, 4, 5]
    lose_hints(streams.storage)
    await source.drop("a")
    silent = Source(streams, offers=False)
    await silent.put("a", 2)
    await streams.poll()
    assert await soon(follower.next()) is None
    again = streams.follow(NS, "a", 0)
    assert seqs(await some(again)) == [1, 2]
    again.close()


async def test_a_joined_stream_goes_on_without_the_dropped(source: Source, streams: Streams) -> None:
    for stream in ("a", "b", "c"):
        await source.put(stream, 3, into=JOINED)
    await source.drop("a", "c")
    follower = streams.follow(NS, JOINED, 1, joined=True)
    assert seqs(await some(follower)) == [4, 5, 6]
    await idle(follower)
    await source.put("b", 1, into=JOINED)
    assert seqs(await some(follower)) == [10]
    follower.close()


# --- delivery ---------------------------------------------------------------------------------------------


async def test_what_is_not_offered_comes_by_hints(streams: Streams) -> None:
    source = Source(streams, offers=False)
    follower = streams.follow(NS, "a", 0)
    await soon(follower.started())
    for turn in range(4):
        await source.put("a", 2, ends=turn == 3)
    assert seqs(await rest(follower)) == list(range(1, 9))


async def test_what_is_neither_offered_nor_hinted_at_comes_by_polling(streams: Streams) -> None:
    lose_hints(streams.storage)
    source = Source(streams, offers=False)
    follower = streams.follow(NS, "a", 0)
    joined = streams.follow(NS, JOINED, 0, joined=True)
    await idle(follower)
    for turn in range(3):
        await source.put("a", 2, into=JOINED, ends=turn == 2)
        await streams.poll()
        assert seqs(await take(follower, 2)) == [turn * 2 + 1, turn * 2 + 2]
        assert len(await take(joined, 2)) == 2
    assert await soon(follower.next()) is None
    joined.close()


async def test_offers_may_come_twice_or_in_any_order(streams: Streams) -> None:
    lose_hints(streams.storage)
    follower = streams.follow(NS, "a", 0)
    await soon(follower.started())
    batches = [StreamAppend("a", new_events(n * 3 + 1, 3), 1, ends=n == 3) for n in range(4)]
    places = [(await add(streams.storage, batch))[0] for batch in batches]
    for number in (1, 0, 0, 3, 1, 2, 3):
        streams.offer(NS, batches[number], places[number])
    assert seqs(await rest(follower)) == list(range(1, 13))


async def test_a_burst_is_shared_by_all(source: Source, streams: Streams) -> None:
    followers = [streams.follow(NS, "a", 0) for _ in range(5)]
    for follower in followers:
        await soon(follower.started())
    await source.put("a", 3)
    bursts = [await some(follower) for follower in followers]
    assert all(burst is bursts[0] for burst in bursts)
    encoded = bursts[0].encoded(encode_events)
    assert all(burst.encoded(encode_events) is encoded for burst in bursts)
    late = [streams.follow(NS, "a", 1) for _ in range(2)]
    slices = [await some(follower) for follower in late]
    assert slices[0] is slices[1]
    assert seqs(slices[0]) == [2, 3]
    for follower in followers + late:
        follower.close()


async def test_who_replays_together_reads_once(
    source: Source, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    await source.put("a", 3, ends=True)
    reads = 0
    there = streams.storage.read

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal reads
        reads += 1
        return there(*args, **options)

    monkeypatch.setattr(streams.storage, "read", counted)
    followers = [streams.follow(NS, "a", 0) for _ in range(50)]
    got = await soon(asyncio.gather(*map(rest, followers)))
    assert {tuple(seqs(events)) for events in got} == {(1, 2, 3)}
    assert reads == 2


@pytest.mark.parametrize("bound", [{"KEPT_BURSTS": 4}, {"KEPT_SIZE": 20}])
async def test_a_slow_follower_costs_no_memory_and_misses_nothing(
    source: Source, streams: Streams, monkeypatch: pytest.MonkeyPatch, bound: dict[str, int]
) -> None:
    for name, value in bound.items():
        monkeypatch.setattr(tail, name, value)
    slow, quick = streams.follow(NS, "a", 0), streams.follow(NS, "a", 0)
    await soon(quick.started())
    (kept,) = streams._tails[StreamKey(NS, "a", False)]
    for _ in range(60):
        await source.put("a", 5)
        assert len(await take(quick, 5)) == 5
        assert 1 <= len(kept._kept) <= 4
        assert sum(burst.size for burst in kept._kept) == kept._kept_size
    await source.put("a", 5, ends=True)
    assert seqs(await rest(slow)) == list(range(1, 306))
    assert len(await rest(quick)) == 5


# --- loops, threads and the end of everything -------------------------------------------------------------


async def test_followers_and_writers_live_in_any_loop(source: Source, streams: Streams) -> None:
    ready = threading.Barrier(4, timeout=20)

    async def follow() -> list[int]:
        follower = streams.follow(NS, "a", None)
        await follower.started()
        await asyncio.to_thread(ready.wait)
        return seqs(await rest(follower))

    reading = [asyncio.ensure_future(in_thread(follow)) for _ in range(3)]
    await asyncio.to_thread(ready.wait)
    for turn in range(20):
        await in_thread(source.put, "a", 3, ends=turn == 19)
    assert await soon(asyncio.gather(*reading)) == [list(range(1, 61))] * 3
    assert streams._tails == {}


async def test_a_loop_that_closed_is_forgotten(source: Source, streams: Streams) -> None:
    async def leave_open(stream: str) -> None:
        await streams.follow(NS, stream, 0).started()

    for stream in ("a", "b"):
        await in_thread(leave_open, stream)
    assert len(streams._tails) == 2
    await source.put("a", 1)
    assert list(streams._tails) == [(NS, "b", False)]
    await streams.poll()
    assert streams._tails == {}


async def test_the_last_follower_takes_the_tail_along(source: Source, streams: Streams) -> None:
    first, second = streams.follow(NS, "a", 0), streams.follow(NS, "a", 0)
    await soon(second.started())
    waiting = asyncio.ensure_future(second.next())
    await asyncio.sleep(0)
    first.close()
    first.close()
    assert await first.next() is None
    assert len(streams._tails) == 1
    second.close()
    assert await soon(waiting) is None
    assert streams._tails == {}
    assert streams.storage.signals.watched("streams") == frozenset()
    await source.put("a", 1)
    third = streams.follow(NS, "a", 0)
    assert seqs(await some(third)) == [1]
    third.close()


async def test_closing_the_storage_ends_followers(source: Source, streams: Streams) -> None:
    await source.put("a", 2)
    follower, joined = streams.follow(NS, "a", None), streams.follow(NS, JOINED, 0, joined=True)
    await soon(follower.started())
    waiting = [asyncio.ensure_future(follower.next()), asyncio.ensure_future(joined.next())]
    await asyncio.sleep(0)
    await asyncio.to_thread(lambda: asyncio.run(streams.storage.close()))
    for task in waiting:
        with pytest.raises(StorageClosed):
            await soon(task)
    with pytest.raises(StorageClosed):
        await follower.next()
    late = streams.follow(NS, "a", 0)
    with pytest.raises(StorageClosed):
        await soon(late.started())
    with pytest.raises(StorageClosed):
        await soon(late.next())
    for reader in (follower, joined, late):
        reader.close()


async def test_a_reading_that_fails_is_made_again(
    source: Source, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    await source.put("a", 2)
    failures = 0

    async def fail(*args: Any, **options: Any) -> Any:
        nonlocal failures
        failures += 1
        raise StorageUnavailable("gone for a while")

    with monkeypatch.context() as cut:
        cut.setattr(streams.storage, "read", fail)
        unsure = streams.follow(NS, "a", 0)
        await until(lambda: failures >= 1)
        await idle(unsure)
    await streams.poll()
    await soon(unsure.started())
    with monkeypatch.context() as cut:
        cut.setattr(streams.storage, "read", fail)
        with pytest.raises(StorageUnavailable):
            await soon(unsure.next())
    assert seqs(await some(unsure)) == [1, 2]
    unsure.close()


async def test_an_error_that_nobody_expects_is_the_followers(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: Any, **options: Any) -> Any:
        raise LookupError("a mistake")

    monkeypatch.setattr(storage, "read", fail)
    follower = Streams(storage).follow(NS, "a", 0)
    with pytest.raises(LookupError):
        await soon(follower.next())
    follower.close()
