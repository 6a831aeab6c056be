"""Events that refer to the checkpoint they show: stored rows, reads, and removals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest
from tests.kernel.support import soon
from tests.threads.support import World, told

from perdure.checkpoints.records import GraphChanges, GraphPut, GraphState, GraphSteps, Piece, SpliceRange
from perdure.checkpoints.service import StoredCheckpoints
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import InvalidInput
from perdure.kernel.storage.dialect import statement
from perdure.streams.model import REFERENCE_SIZE, NewEvent, Shown, StreamEvent
from perdure.streams.operations import PAGE_BYTES
from perdure.threads.records import Lifetime, NewCheckpoint
from perdure.threads.work import Ending, Lease

LONG = "x" * REFERENCE_SIZE
EVENTS = statement(
    "SELECT seq, body, checkpoint_id FROM stream_events WHERE ns = :ns AND stream = :stream ORDER BY seq"
)


def packed(value: object) -> tuple[str, bytes]:
    return "msgpack", msgspec.msgpack.encode(value)


def shows(values: object, shown: Shown | None = None, event: str = "values") -> NewEvent:
    return NewEvent(event, encode_json(values), shown)


def graph(
    held: Lease, checkpoint_id: str, namespace: str = "", **channels: object
) -> tuple[GraphSteps, NewEvent]:
    """Build a checkpoint of a graph, with the event that shows it."""
    put = GraphPut(
        thread_id=held.thread_id,
        checkpoint_ns=namespace,
        checkpoint_id=checkpoint_id,
        run_id=held.run_id,
        checkpoint=packed({"id": checkpoint_id}),
        versions=dict.fromkeys(channels, checkpoint_id),
        pieces=[
            Piece(channel=name, version=checkpoint_id, value=packed(value))
            for name, value in channels.items()
        ],
    )
    states = [] if namespace else [GraphState(checkpoint_id=checkpoint_id)]
    keys = encode_json(list(channels))
    event = "values|" + namespace if namespace else "values"
    steps = GraphSteps(changes=GraphChanges(puts=[put]), states=states)
    return steps, shows(channels, Shown(checkpoint_id, namespace, keys), event)


async def begun(world: World, thread_id: str | None = None) -> Lease:
    run = await world.run(thread_id or await world.thread())
    return (await world.take(run)).held


async def stored(world: World, run_id: str) -> list[tuple[str, str | None]]:
    """Return the stored bodies and checkpoints of a run's events."""
    return [(row[1], row[2]) for row in await world.rows(EVENTS, stream=run_id)]


async def values(world: World, run_id: str) -> list[Any]:
    found = await soon(world.events(run_id))
    return [msgspec.json.decode(each.body) for each in found if each.event.startswith("values")]


# --- agents that are functions ----------------------------------------------------------------------------


async def test_a_state_that_is_saved_with_its_event_is_stored_once(world: World) -> None:
    held = await begun(world)
    state = {"long": LONG, "odd": [1.0, None, "ü\u2028"]}
    saved = await world.queue.save(held, NewCheckpoint(values=state), [*told("a"), shows(state)])
    last = {"long": LONG + "y"}
    await world.finish(held, values=last, events=[shows(last)])
    rows = await stored(world, held.run_id)
    latest = await world.threads.get_state(held.thread_id)
    assert latest is not None
    assert rows[:3] == [("{}", None), ("", saved.checkpoint_id), ("", latest.checkpoint_id)]
    found = await soon(world.events(held.run_id))
    assert [each.body for each in found[:3]] == ["{}", encode_json(state), encode_json(last)]


async def test_a_short_state_and_other_data_are_stored_with_the_event(world: World) -> None:
    held = await begun(world)
    await world.queue.save(held, NewCheckpoint(values={"a": 1}), [shows({"a": 1})])
    await world.queue.save(held, NewCheckpoint(values={"a": LONG}), [shows({"b": LONG})])
    await world.queue.save(held, NewCheckpoint(values={"a": LONG}), [shows({"a": LONG}, event="custom")])
    await world.queue.append(held, [shows({"a": LONG})])
    assert all(checkpoint is None for _, checkpoint in await stored(world, held.run_id))
    await world.finish(held)
    assert await values(world, held.run_id) == [{"a": 1}, {"b": LONG}, {"a": LONG}]


# --- graphs -----------------------------------------------------------------------------------------------


async def test_a_graph_shows_some_of_its_channels(world: World) -> None:
    held = await begun(world)
    steps, _ = graph(held, "c1", text=LONG, hidden="h", more={"ü": [1, 2.5]})
    shown = {"more": {"ü": [1, 2.5]}, "text": LONG}
    event = shows(shown, Shown("c1", "", encode_json(["more", "text"])))
    single = NewEvent("values", encode_json(LONG), Shown("c1", "", encode_json("text")))
    await world.queue.record(held, steps, [event, single])
    assert await stored(world, held.run_id) == [("", "c1"), ("", "c1")]
    await world.finish(held)
    found = await soon(world.events(held.run_id))
    assert [each.body for each in found[:2]] == [event.body, single.body]


async def test_a_subgraph_shows_its_own_checkpoint(world: World) -> None:
    held = await begun(world)
    inner, event = graph(held, "c1", "inner:1", text=LONG)
    await world.queue.record(held, inner, [event])
    assert await stored(world, held.run_id) == [("", "c1")]
    await world.finish(held)
    assert await values(world, held.run_id) == [{"text": LONG}]


async def test_an_event_may_come_after_its_checkpoint(world: World) -> None:
    held = await begun(world)
    first, one = graph(held, "c1", text=LONG)
    second, two = graph(held, "c2", text=LONG + "2")
    third, three = graph(held, "c3", text=LONG + "3")
    await world.queue.record(held, first)
    await world.queue.append(held, [one])
    await world.queue.record(held, second)
    await world.queue.record(held, third, [two])
    await world.queue.finish(Ending(held=held, result="success", events=[three]))
    rows = await stored(world, held.run_id)
    assert rows[:3] == [("", "c1"), ("", "c2"), ("", "c3")]
    assert [each["text"] for each in await values(world, held.run_id)] == [LONG, LONG + "2", LONG + "3"]


async def test_only_checkpoints_of_the_run_are_referred_to(world: World) -> None:
    other = await begun(world)
    steps, theirs = graph(other, "c1", text=LONG)
    await world.queue.record(other, steps, [theirs])
    await world.finish(other)
    for held in (await begun(world), await begun(world, other.thread_id)):
        secret = shows({"text": "mine" + LONG}, theirs.shown)
        own, _ = graph(held, "c2", text=LONG)
        await world.queue.append(held, [secret])
        await world.queue.record(held, own, [secret, shows({"a": LONG}, Shown("c9", "", '["text"]'))])
        without_keys = shows({"a": LONG}, Shown("c2"))
        await world.queue.finish(Ending(held=held, result="success", events=[secret, without_keys]))
        assert all(checkpoint is None for _, checkpoint in await stored(world, held.run_id))
        assert len(await values(world, held.run_id)) == 5


async def test_what_cannot_be_followed_is_refused_or_stored_whole(world: World) -> None:
    held = await begun(world)
    steps, event = graph(held, "c1", text=LONG)
    with pytest.raises(InvalidInput):
        await world.queue.record(held, steps, [shows({"text": LONG}, Shown("c1", "", "{"))])
    with pytest.raises(InvalidInput):
        await world.queue.record(held, steps, [shows({"text": LONG}, Shown("c" * 300, "", '["text"]'))])
    wrong = msgspec.structs.replace(event, event="updates")
    short = shows({"text": 1}, event.shown)
    await world.queue.record(held, steps, [wrong, short])
    assert all(checkpoint is None for _, checkpoint in await stored(world, held.run_id))
    await world.finish(held)


async def test_a_thread_that_is_being_removed_keeps_its_last_event(world: World) -> None:
    held = await begun(world)
    await world.threads.delete_thread(held.thread_id)
    steps, event = graph(held, "c1", text=LONG)
    await world.queue.finish(Ending(held=held, result="stopped", graph=steps, events=[event]))
    await world.check()


# --- reading ----------------------------------------------------------------------------------------------


async def test_pages_count_the_data_and_not_the_references(world: World) -> None:
    held = await begun(world)
    long = "y" * (PAGE_BYTES // 3)
    for number in range(7):
        steps, event = graph(held, f"c{number}", text=f"{number}{long}")
        await world.queue.record(held, steps, [event])
    await world.finish(held)
    pages: list[list[StreamEvent]] = []
    follower = await world.threads.follow_run(held.run_id)
    while (burst := await soon(follower.next())) is not None:
        pages.append(list(burst))
    assert [len(page) for page in pages] == [3, 3, 2]
    found = [each for page in pages for each in page if each.event == "values"]
    assert [msgspec.json.decode(each.body)["text"][0] for each in found] == list("0123456")


async def test_a_thread_shows_the_events_of_all_its_runs(world: World) -> None:
    thread_id = await world.thread()
    expected: list[str] = []
    for number in range(3):
        held = await begun(world, thread_id)
        steps, event = graph(held, f"g{number}", text=LONG + str(number))
        await world.queue.record(held, steps, [event])
        state = {"n": number, "long": LONG}
        await world.finish(held, values=state, events=[shows(state)])
        expected += [event.body, encode_json(state)]
    follower = await world.threads.follow_thread(thread_id, "0")
    found: list[StreamEvent] = []
    while len(found) < 9:
        burst = await soon(follower.next())
        assert burst is not None
        found += burst
    follower.close()
    assert [each.body for each in found if each.event == "values"] == expected
    assert [each.seq for each in found] == list(range(1, 10))


async def test_readers_here_get_the_data_at_once_and_later_ones_the_same(world: World) -> None:
    held = await begun(world)
    follower = await world.threads.follow_run(held.run_id)
    steps, event = graph(held, "c1", text=LONG)
    await soon(follower.started())
    await world.queue.record(held, steps, [event])
    live = await soon(follower.next())
    assert live is not None
    await world.finish(held)
    assert list(live) == (await soon(world.events(held.run_id)))[:1]
    assert (await soon(world.events(held.run_id, live[0].id)))[0].event == "end"
    follower.close()


async def test_a_growing_list_is_stored_once(world: World) -> None:
    """100 steps, each with one more item: the stream stores references, and readers get 100 whole lists."""
    held = await begun(world)
    items: list[dict[str, Any]] = []
    for number in range(100):
        items.append({"number": number, "text": "z" * 100})
        spans = (
            [SpliceRange(False, 0, number), SpliceRange(True, 0, 1)] if number else [SpliceRange(True, 0, 1)]
        )
        piece = Piece(
            channel="items",
            version=str(number),
            value=packed(items[-1:]),
            spans=spans,
            count=1,
            base=str(number - 1) if number else None,
        )
        steps, event = graph(held, f"c{number:03}", items=items)
        put = msgspec.structs.replace(steps.changes.puts[0], versions={"items": str(number)}, pieces=[piece])
        new = msgspec.structs.replace(steps, changes=GraphChanges(puts=[put]))
        await world.queue.record(held, new, [event])
    await world.finish(held)
    sizes = [len(body) for body, _ in await stored(world, held.run_id)]
    assert sum(sizes) < 100 * REFERENCE_SIZE
    assert sum(sizes[50:]) < 100
    assert [each["items"] for each in await values(world, held.run_id)] == [
        items[: number + 1] for number in range(100)
    ]


# --- removal ----------------------------------------------------------------------------------------------


class Told:
    """Thread with two runs that emitted states: of a function, of a graph and of a subgraph."""

    def __init__(self, world: World, thread_id: str) -> None:
        self.world = world
        self.thread_id = thread_id
        self.runs: list[Lease] = []
        self.events: dict[str, list[StreamEvent]] = {}

    async def tell(self) -> Lease:
        """Execute a run up to the point before its end."""
        held = await begun(self.world, self.thread_id)
        number = len(self.runs)
        self.runs.append(held)
        for namespace in ("", "inner:1"):
            steps, event = graph(held, f"g{number}", namespace, text=f"{number}{namespace}{LONG}")
            await self.world.queue.record(held, steps, [event])
        state = {"number": number, "long": LONG}
        await self.world.queue.save(held, NewCheckpoint(values=state), [shows(state)])
        return held

    async def read(self, held: Lease) -> list[StreamEvent]:
        return [each for each in await soon(self.world.events(held.run_id)) if each.event != "end"]

    async def references(self, held: Lease) -> int:
        return sum(checkpoint is not None for _, checkpoint in await stored(self.world, held.run_id))

    async def unchanged(self, left: Sequence[int]) -> None:
        """Assert that every event reads as before, and that each run has this number of references left."""
        for held, events in zip(self.runs, self.events.values(), strict=True):
            assert await self.read(held) == events
        assert [await self.references(held) for held in self.runs] == list(left)
        await self.world.check()


@pytest.fixture
async def two_runs(world: World) -> Told:
    made = Told(world, await world.thread())
    for _ in range(2):
        held = await made.tell()
        await world.finish(held)
        made.events[held.run_id] = await made.read(held)
    await made.unchanged([3, 3])
    return made


async def _keep_latest(told: Told) -> None:
    await told.world.threads.prune_threads([told.thread_id], "keep_latest")


async def _end_of_life(told: Told) -> None:
    life = Lifetime(minutes=1.0, strategy="keep_latest")
    await told.world.threads.update_thread(told.thread_id, lifetime=life)
    await told.world.advance(120.0)
    await told.world.threads.expire()


def _graphs(told: Told) -> StoredCheckpoints:
    return StoredCheckpoints(told.world.storage, namespace=told.world.namespace)


async def _delete_graph_runs(told: Told) -> None:
    await _graphs(told).delete_runs([told.runs[0].run_id])


async def _prune_graphs(told: Told) -> None:
    await _graphs(told).prune([told.thread_id])


async def _delete_graphs(told: Told) -> None:
    await _graphs(told).delete_threads([told.thread_id])


async def _copy(told: Told) -> None:
    copy = await told.world.threads.copy_thread(told.thread_id)
    await told.world.threads.prune_threads([copy.thread_id], "keep_latest")
    await told.world.threads.delete_thread(copy.thread_id)


@pytest.mark.parametrize(
    ("remove", "left"),
    [
        (_keep_latest, [0, 3]),
        (_end_of_life, [0, 3]),
        (_delete_graph_runs, [1, 3]),
        (_prune_graphs, [1, 3]),
        (_delete_graphs, [1, 1]),
        (_copy, [3, 3]),
    ],
)
async def test_events_outlive_the_checkpoints_they_show(
    two_runs: Told, remove: Callable[[Told], Awaitable[None]], left: list[int]
) -> None:
    await remove(two_runs)
    await two_runs.unchanged(left)


@pytest.mark.parametrize("executed", [True, False])
async def test_a_rollback_leaves_the_events_of_its_run(world: World, executed: bool) -> None:
    made = Told(world, await world.thread())
    held = await made.tell()
    await world.threads.cancel_run(held.run_id, action="rollback")
    made.events[held.run_id] = await made.read(held)
    if executed:
        await world.queue.finish(Ending(held=held, result="stopped"))
    else:
        await world.advance(10_000.0)
    await made.unchanged([0])


async def test_a_deleted_run_is_read_to_its_end_by_who_has_begun(world: World) -> None:
    made = Told(world, await world.thread())
    held = await made.tell()
    await world.finish(held)
    expected = await made.read(held)
    follower = await world.threads.follow_run(held.run_id)
    await world.threads.delete_run(held.run_id)
    assert await made.references(held) == 0
    assert [each for each in await soon(follower.next()) or () if each.event != "end"] == expected
    follower.close()


async def test_a_removed_thread_leaves_nothing(world: World) -> None:
    made = Told(world, await world.thread())
    await world.finish(await made.tell())
    await world.threads.prune_threads([made.thread_id], "delete")
    await world.advance(100_000.0)
    await world.threads.purge()
    assert await stored(world, made.runs[0].run_id) == []
