"""Writers, readers and lost hints in any order: no reader misses an event or gets it twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable

import pytest
from tests.kernel.support import NS, PATIENCE, Database
from tests.streams.support import new_events, seqs

from perdure.kernel.signals.port import Hint
from perdure.kernel.storage.port import Storage
from perdure.streams import tail
from perdure.streams.model import StreamEvent
from perdure.streams.operations import StreamAppend, append, drop, heads
from perdure.streams.service import Streams
from perdure.streams.tables import TABLES

RUNS = ("a", "b", "c")
JOINED = "thread/t"
SEEDS = range(6)


@pytest.fixture
async def houses(database: Database) -> AsyncIterator[list[Streams]]:
    """Two processes on PostgreSQL, one on other engines."""
    opened = [database.open(TABLES) for _ in range(2 if database.kind == "postgres" else 1)]
    yield [Streams(storage) for storage in opened]
    for storage in opened:
        await storage.close()


class Play:
    """One random run of everything at once, with a seed."""

    def __init__(self, houses: list[Streams], seed: int) -> None:
        self.chance = random.Random(seed)
        self.houses = houses
        self.over = False
        for house in houses:
            self._lose_some(house.storage)

    def _lose_some(self, storage: Storage) -> None:
        publish = storage.signals.publish

        def unsteady(hints: Iterable[Hint]) -> None:
            kept = [hint for hint in hints if self.chance.random() < 0.5]
            publish(kept)

        storage.signals.publish = unsteady  # type: ignore[method-assign]

    async def rest(self) -> None:
        """Let other tasks run for a random number of turns."""
        for _ in range(self.chance.choice((0, 1, 2, 20))):
            await asyncio.sleep(0)

    async def write(self, stream: str, total: int) -> None:
        """Append with or without an offer, which may come late and after its successor."""
        written = 0
        while written < total:
            count = min(self.chance.randint(1, 12), total - written)
            item = StreamAppend(stream, new_events(written + 1, count), 1, JOINED, written + count == total)
            written += count
            house = self.chance.choice(self.houses)
            (done,) = await house.storage.run(append, [item], ns=NS)
            loop = asyncio.get_running_loop()
            for _ in range(self.chance.choice((0, 1, 1, 2))):
                offering = self.chance.choice(self.houses)
                loop.call_later(self.chance.choice((0, 0, 0.003)), offering.offer, NS, item, done)
            await self.rest()

    async def read(self, stream: str, *, joined: bool = False, last: int | None = None) -> list[StreamEvent]:
        """Read from a random position to the end, closing and following again now and then."""
        after = self.chance.choice((0, 0, 3, 17))
        events: list[StreamEvent] = []
        while True:
            follower = self.chance.choice(self.houses).follow(NS, stream, after, joined=joined)
            try:
                for _ in range(self.chance.randint(1, 30)):
                    burst = await follower.next(self.chance.choice((0, 0.01, 0.3)))
                    if burst is None:
                        return events
                    assert seqs(burst) == list(range(after + 1, after + 1 + len(burst)))
                    events += burst
                    after += len(burst)
                    if last is not None and after >= last:
                        return events
                    await self.rest()
            finally:
                follower.close()

    async def poll(self) -> None:
        while not self.over:
            for house in self.houses:
                await house.poll()
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("seed", SEEDS)
async def test_whatever_happens_everybody_reads_the_same(
    houses: list[Streams], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "KEPT_BURSTS", 3)
    monkeypatch.setattr(tail, "PAGE_EVENTS", 9)
    play = Play(houses, seed)
    total = 60
    async with asyncio.timeout(PATIENCE * 3):
        polling = asyncio.ensure_future(play.poll())
        writing = [play.write(stream, total) for stream in RUNS]
        reading = [play.read(stream) for stream in RUNS * 3]
        joining = [play.read(JOINED, joined=True, last=total * len(RUNS)) for _ in range(4)]
        got = await asyncio.gather(*reading, *joining, *writing)
        play.over = True
        await polling
    for stream, events in zip(RUNS * 3, got[: len(reading)], strict=False):
        assert events is not None
        assert [event.body for event in events] == [str(event.seq) for event in events]
        assert {event.source for event in events} == {stream}
        assert events[-1].seq == total
    threads = [events or [] for events in got[len(reading) : len(reading) + len(joining)]]
    longest = max(threads, key=len)
    for events in threads:
        assert events == longest[len(longest) - len(events) :]
    for house in houses:
        assert house._tails == {}
        assert house.storage.signals.watched("streams") == frozenset()


@pytest.mark.parametrize("seed", SEEDS)
async def test_whatever_is_dropped_a_joined_stream_stays_in_order(
    houses: list[Streams], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers skip deleted events, and end with a deleted stream."""
    monkeypatch.setattr(tail, "KEPT_BURSTS", 2)
    monkeypatch.setattr(tail, "PAGE_EVENTS", 5)
    play = Play(houses, seed)

    async def write_and_drop() -> None:
        for stream in (f"run{number}" for number in range(8)):
            await play.write(stream, 15)
            if play.chance.random() < 0.6:
                await play.chance.choice(houses).storage.run(drop, [stream], ns=NS)
        last = StreamAppend("last", new_events(1, 1), 1, JOINED)
        await houses[0].storage.run(append, [last], ns=NS)

    async def read_joined() -> None:
        follower = play.chance.choice(houses).follow(NS, JOINED, 0, joined=True)
        place, source = 0, ""
        while source != "last":
            for event in await follower.next() or ():
                assert event.seq > place
                place, source = event.seq, event.source
            await play.rest()
        follower.close()

    async def read_until_gone(stream: str) -> None:
        follower = play.chance.choice(houses).follow(NS, stream, 0)
        place = 0
        while (burst := await follower.next(5)) is not None:
            assert seqs(burst) == list(range(place + 1, place + 1 + len(burst)))
            place += len(burst)
            if not burst and not await play.houses[0].storage.read(heads, [stream], ns=NS):
                break  # It was created and deleted unseen: a waiting reader continues to wait.
        follower.close()

    async with asyncio.timeout(PATIENCE * 3):
        polling = asyncio.ensure_future(play.poll())
        readers = [read_joined() for _ in range(3)]
        await asyncio.gather(write_and_drop(), *readers, *(read_until_gone(f"run{n}") for n in range(4)))
        play.over = True
        await polling


async def test_two_processes_without_hints(database: Database) -> None:
    """A file has one process; on PostgreSQL, appends of other processes are found by polling."""
    here = database.open(TABLES)
    there = database.open(TABLES) if database.kind == "postgres" else here
    for storage in (here, there):
        storage.signals.publish = lambda hints: None  # type: ignore[method-assign]
    streams = Streams(here)
    follower = streams.follow(NS, "a", 0)
    await follower.started()
    for turn in range(3):
        await there.run(append, [StreamAppend("a", new_events(turn + 1, 1), ends=turn == 2)], ns=NS)
        await streams.poll()
        async with asyncio.timeout(PATIENCE):
            burst = await follower.next()
        assert burst is not None
        assert seqs(burst) == [turn + 1]
    assert await follower.next() is None
    await there.close()
    await here.close()
