"""The table of contents: cut by what happened, built by jobs, versioned, and the same in whatever order."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.memory.conftest import DAY, World, ms

from perdure.errors import InvalidInput, NotFound
from perdure.jobs.model import JobContext
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.memory import nodes
from perdure.memory.builder import BuildOutcome
from perdure.memory.calendar import DAY as DAY_LEVEL
from perdure.memory.calendar import SEGMENT
from perdure.memory.operations import builds, toc
from perdure.memory.records import NewMemoryEvent, TocNode
from perdure.memory.summarisers.extractive import ExtractiveSummariser
from perdure.memory.summarisers.port import (
    Child,
    ParseError,
    RateLimitExceeded,
    Said,
    Summary,
)

ABOVE = ["toc:day:2024-01-15", "toc:week:2024:W03", "toc:month:2024:01", "toc:year:2024"]
TALK = [
    ("user", "Fix the login bug: users with an umlaut in their name cannot sign in."),
    ("assistant", "The bug is in normalize_name, which strips everything that is not ASCII."),
    ("assistant", "Fixed: normalize_name keeps letters with diacritics, and the tests pass."),
]


def talk(world: World, start: str = f"{DAY} 10:00", session: str = "s") -> list[NewMemoryEvent]:
    begin = ms(start)
    return [
        world.event(text, begin + 60_000 * number, role=role, session_id=session, agent="claude")
        for number, (role, text) in enumerate(TALK)
    ]


async def test_events_become_segments_and_these_the_days_weeks_months_and_years(world: World) -> None:
    await world.arrive(*talk(world), *talk(world, f"{DAY} 12:00", "t"))
    morning, noon = await world.segments()
    assert (morning.status, morning.version, morning.level) == ("draft", 1, "segment")
    assert [bullet.text for bullet in morning.bullets] == [nodes.PENDING_TEXT]
    assert (morning.start_time_ms, morning.end_time_ms) == (ms(f"{DAY} 10:00"), ms(f"{DAY} 10:02"))
    assert [(await world.node(id)).status for id in ABOVE] == ["draft"] * 4
    assert await world.build() == BuildOutcome(built=6)
    segment = await world.node(morning.node_id)
    assert (segment.status, segment.version, segment.error) == ("complete", 1, None)
    assert segment.title == "Fix the login bug: users with an umlaut in their name cannot sign in"
    assert {"login", "umlaut"} <= set(segment.keywords)
    assert segment.agents == ["claude"]
    titles = [(await world.node(id)).title for id in ABOVE]
    assert titles == ["Monday, January 15, 2024", "Week 3 of 2024", "January 2024", "2024"]
    day = await world.node(ABOVE[0])
    assert (day.version, day.child_node_ids) == (1, [morning.node_id, noon.node_id])
    assert day.summary == " ".join(bullet.text for bullet in day.bullets)
    assert [node.node_id for node in await world.memory.toc_root()] == ["toc:year:2024"]
    week = await world.memory.browse("toc:month:2024:01")
    assert [node.node_id for node in week.items] == [ABOVE[1]]


async def test_a_late_child_rolls_its_ancestors_up_again_and_nothing_else(world: World) -> None:
    await world.arrive(*talk(world), *talk(world, "2024-01-16 10:00"), *talk(world, "2024-03-05 10:00"))
    await world.build()
    assert await world.build() == BuildOutcome()
    late = world.event("A late question about the deployment of the billing service", f"{DAY} 06:00")
    await world.arrive(late)
    assert await world.build() == BuildOutcome(built=5)
    first, second = await world.segments()
    assert (first.version, second.version) == (1, 1)
    assert [(await world.node(id)).version for id in ABOVE] == [2, 2, 2, 2]
    for other in ("toc:day:2024-01-16", "toc:day:2024-03-05", "toc:week:2024:W10", "toc:month:2024:03"):
        assert (await world.node(other)).version == 1
    # Without a change nothing gains a version, also if it is looked at again.
    ns = await world.memory.ns()
    await world.storage.run(_mark, ABOVE, ns=ns)
    assert await world.build() == BuildOutcome(unchanged=4)
    assert [(await world.node(id)).version for id in ABOVE] == [2, 2, 2, 2]


MARK = statement("UPDATE memory_nodes SET stale = 1 WHERE ns = :ns AND id {among:ids}")


async def _mark(tx: Tx, ids: Sequence[str]) -> None:
    await tx.execute(MARK, ids=list(ids))


async def test_an_event_that_is_added_to_a_segment_makes_a_version_of_it(world: World) -> None:
    events = talk(world)
    await world.arrive(*events[:2])
    await world.build(SEGMENT)
    await world.arrive(events[2])
    (segment,) = await world.segments()
    assert (segment.status, segment.version) == ("complete", 1)
    await world.build(SEGMENT)
    (segment,) = await world.segments()
    assert (segment.status, segment.version) == ("complete", 2)
    assert any("diacritics" in bullet.text for bullet in segment.bullets)


async def test_what_a_late_event_joins_or_moves_is_one_again(world: World) -> None:
    first, second, late = (
        world.event(f"{n} words about it", f"{DAY} {at}") for n, at in enumerate(("10:00", "10:50", "10:25"))
    )
    await world.arrive(first, second)
    await world.build()
    before = await world.segments()
    assert len(before) == 2
    await world.arrive(late)
    (joined,) = await world.segments()
    assert joined.node_id == before[0].node_id
    await world.build()
    day = await world.node(ABOVE[0])
    assert (day.version, day.child_node_ids) == (2, [joined.node_id])
    with pytest.raises(NotFound):
        await world.node(before[1].node_id)
    # An event before the first one gives the segment another name.
    await world.arrive(world.event("earlier words about it", f"{DAY} 09:55"))
    (renamed,) = await world.segments()
    assert renamed.node_id != joined.node_id
    await world.build()
    await world.index()
    assert {hit.id for hit in (await world.memory.search("words", kind="node", limit=100)).items} == {
        renamed.node_id,
        *ABOVE,
    }


def grips_of(node: TocNode) -> list[str]:
    return [grip_id for bullet in node.bullets for grip_id in bullet.grip_ids]


async def test_the_grips_of_a_segment_go_with_it(world: World) -> None:
    early, late = talk(world), talk(world, f"{DAY} 10:50")
    await world.arrive(*early, *late)
    await world.build(SEGMENT)
    kept, gone = [
        [id for bullet in node.bullets for id in bullet.grip_ids] for node in await world.segments()
    ]
    await world.arrive(world.event("What lies between joins both.", f"{DAY} 10:25"))
    (joined,) = await world.segments()
    assert grips_of(joined) == kept
    ns = await world.memory.ns()
    assert set(await world.storage.read(toc.get_grips, [*kept, *gone], ns=ns)) == set(kept)
    with pytest.raises(NotFound):
        await world.memory.expand_grip(gone[0])


async def test_a_day_forgets_a_segment_though_what_replaces_it_cannot_be_built(world: World) -> None:
    await world.arrive(*talk(world), world.event("Lunch is at noon in the canteen.", f"{DAY} 12:00"))
    await world.build(SEGMENT, DAY_LEVEL)
    assert "normalize_name" in (await world.node(ABOVE[0])).summary
    await world.arrive(world.event("Nobody had said anything before this.", f"{DAY} 09:55"))
    assert await world.build(SEGMENT, by=Broken(ParseError("nonsense"))) == BuildOutcome(failed=1)
    assert await world.build(DAY_LEVEL) == BuildOutcome(built=1)
    summary = (await world.node(ABOVE[0])).summary
    assert "normalize_name" not in summary
    assert "canteen" in summary


async def test_a_day_is_cut_up_to_the_latest_of_all_that_was_noted_of_it(world: World) -> None:
    """A process may die after it noted that something happened; another one notes more, and cuts."""
    hours = ("08:00", "12:00", "16:00")
    await world.arrive(*(world.event(f"words of {at}", f"{DAY} {at}") for at in hours))
    early, late = (world.event(f"words of {at}", f"{DAY} {at}") for at in ("08:10", "16:10"))
    await world.memory.ingest_many([late, early])
    ns = await world.memory.ns()
    for event in (late, early):
        at = event.timestamp_ms or 0
        await world.storage.run(toc.mark_days, [(at, at)], ns=ns)
    await world.work.updater.update(ns, [(early.timestamp_ms or 0, early.timestamp_ms or 0)])
    ends = [node.end_time_ms for node in await world.segments()]
    assert ends == [ms(f"{DAY} {at}") for at in ("08:10", "12:00", "16:10")]


async def test_the_order_of_arrival_does_not_matter(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toc, "CUT_EVENTS", 25)
    chance = random.Random(4)
    start = ms(f"{DAY} 00:00")
    events = [
        world.event("word " * chance.randrange(1, 2500), start + chance.randrange(0, 12 * 3_600_000, 60_000))
        for _ in range(60)
    ]
    sorted_world = world.memory.in_namespace(world.memory.namespace + " sorted")
    results = []
    for memory, arriving in (
        (world.memory, events),
        (sorted_world, sorted(events, key=lambda e: e.timestamp_ms or 0)),
    ):
        ns = await memory.ns("write")
        for batch in (arriving[at : at + 7] for at in range(0, len(arriving), 7)):
            await memory.ingest_many(batch)
            await world.work.updater.update(ns, [(e.timestamp_ms or 0, e.timestamp_ms or 0) for e in batch])
        found = (await memory.browse(ABOVE[0], limit=1000)).items
        results.append([(node.node_id, node.start_time_ms, node.end_time_ms) for node in found])
    assert results[0] == results[1]
    assert len(results[0]) > 10


async def test_a_thousand_events_of_one_moment_are_cut(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toc, "CUT_EVENTS", 50)
    await world.arrive(*(world.event("x" * 1600, f"{DAY} 10:00") for _ in range(200)))
    found = await world.segments()
    assert [node.start_time_ms for node in found] == [ms(f"{DAY} 10:00")] * 20


# --- building ---------------------------------------------------------------------------------------------


class Broken:
    """Fails for a while."""

    name = "broken"

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.own = ExtractiveSummariser()

    async def summarise(self, events: Sequence[Said]) -> Summary:
        if self.errors:
            raise self.errors.pop(0)
        return await self.own.summarise(events)

    async def roll_up(self, title: str, children: Sequence[Child]) -> Summary:
        if self.errors:
            raise self.errors.pop(0)
        return await self.own.roll_up(title, children)


async def test_a_summariser_that_fails_leaves_what_was_there_and_is_asked_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "RETRY_SECONDS", (0.0, 0.0))
    events = talk(world)
    await world.arrive(*events[:2])
    await world.build(SEGMENT)
    await world.arrive(events[2])
    with pytest.raises(RateLimitExceeded):
        await world.build(SEGMENT, by=Broken(RateLimitExceeded("slow down")))
    (segment,) = await world.segments()
    assert (segment.status, segment.version, segment.error) == ("failed", 1, "RateLimitExceeded: slow down")
    assert segment.title.startswith("Fix the login bug")
    assert (await world.memory.stats()).failed_nodes == 1
    await world.build(SEGMENT)
    (segment,) = await world.segments()
    assert (segment.status, segment.version, segment.error) == ("complete", 2, None)


async def test_a_node_that_fails_alone_holds_up_no_other(world: World) -> None:
    await world.arrive(*talk(world), *talk(world, f"{DAY} 12:00"), *talk(world, f"{DAY} 14:00"))
    outcome = await world.build(SEGMENT, by=Broken(ParseError("nonsense")))
    assert outcome == BuildOutcome(built=2, failed=1)
    assert [node.status for node in await world.segments()] == ["failed", "complete", "complete"]
    # It waits before it is tried again; the day is made of the others meanwhile.
    assert await world.build(SEGMENT, DAY_LEVEL) == BuildOutcome(built=1)


async def test_a_build_belongs_to_one_job_and_goes_on_in_its_next_attempt(world: World) -> None:
    await world.arrive(*talk(world))
    (segment,) = await world.segments()
    ns = await world.memory.ns()
    assert await world.storage.run(builds.start, segment.node_id, "first", 10**9, ns=ns) is not None
    assert (await world.node(segment.node_id)).status == "building"
    assert await world.build(SEGMENT, builder="second") == BuildOutcome()
    assert await world.build(SEGMENT, builder="first") == BuildOutcome(built=1)
    # One that was thought lost changes nothing any more.
    await world.arrive(world.event("and another thing to remember", f"{DAY} 10:03"))
    row = await world.storage.run(builds.start, segment.node_id, "slow", 0, ns=ns)
    assert row is not None
    late = await world.work.builder._build_segment(row, ns)
    assert await world.build(SEGMENT, builder="quick") == BuildOutcome(built=1)
    assert await world.storage.run(builds.finish, late._replace(builder="slow", job="x"), ns=ns) is None
    assert (await world.node(segment.node_id)).version == 2


async def test_a_builder_that_was_replaced_neither_ends_nor_fails_the_build_of_another(world: World) -> None:
    await world.arrive(*talk(world))
    (segment,) = await world.segments()
    ns = await world.memory.ns()
    row = await world.storage.run(builds.start, segment.node_id, "slow", 0, ns=ns)
    assert row is not None
    made = (await world.work.builder._build_segment(row, ns))._replace(job="x")
    assert await world.storage.run(builds.start, segment.node_id, "quick", 10**9, ns=ns) is not None
    await world.storage.run(builds.fail, segment.node_id, "slow", "it broke", 0, ns=ns)
    assert await world.storage.run(builds.finish, made._replace(builder="slow"), ns=ns) is None
    (segment,) = await world.segments()
    assert (segment.status, segment.error) == ("building", None)
    assert [bullet.text for bullet in segment.bullets] == [nodes.PENDING_TEXT]
    assert await world.storage.run(builds.finish, made._replace(builder="quick"), ns=ns) == 1


async def test_a_segment_that_failed_is_built_at_once_when_it_changes(world: World) -> None:
    """Its retry waits for a summariser that may answer later; new events are no reason to wait."""
    await world.arrive(*talk(world))
    (segment,) = await world.segments()
    ns = await world.memory.ns()
    assert await world.storage.run(builds.start, segment.node_id, "job", 10**9, ns=ns) is not None
    await world.storage.run(builds.fail, segment.node_id, "job", "it broke", 10**12, ns=ns)
    assert await world.build(SEGMENT) == BuildOutcome()
    await world.arrive(world.event("and another thing to remember", f"{DAY} 10:03"))
    assert await world.build(SEGMENT) == BuildOutcome(built=1)


async def test_what_changes_while_it_is_built_is_built_again(world: World) -> None:
    await world.arrive(*talk(world)[:2])
    (segment,) = await world.segments()
    ns = await world.memory.ns()
    row = await world.storage.run(builds.start, segment.node_id, "job", 10**9, ns=ns)
    assert row is not None
    made = await world.work.builder._build_segment(row, ns)
    await world.arrive(world.event("meanwhile something else was said", f"{DAY} 10:05"))
    assert await world.storage.run(builds.finish, made._replace(builder="job", job="x"), ns=ns) == 1
    assert await world.build(SEGMENT) == BuildOutcome(built=1)


def context(world: World, name: str, ns: int) -> JobContext:
    return JobContext(
        storage=world.storage, ns=ns, namespace="n", job_id=f"job {name}", name=name, key=None, attempt=1
    )


async def test_roll_ups_wait_until_their_time_is_over_and_write_how_far_they_came(world: World) -> None:
    today = int(time.time() * 1000) - 1000
    await world.arrive(*talk(world), world.event("what happens now is not over yet", today))
    ns = await world.memory.ns()
    jobs = world.work.jobs
    await jobs.build_segments(context(world, "memory-segments", ns), {})
    results: list[Mapping[str, Any]] = []
    for name in ("rollup-day", "rollup-week", "rollup-month", "rollup-year"):
        results.append(await jobs.roll_up(context(world, name, ns), {}))
    assert all(result["built"] >= 1 for result in results)
    assert [(await world.node(id)).status for id in ABOVE] == ["complete"] * 4
    now = await world.memory.search_children("happens", level="segment")
    (open_segment,) = now.items
    open_day = (await world.node(open_segment.node_id)).parent_id
    assert open_day is not None
    assert (await world.node(open_day)).status == "draft"
    written = {row.job: row for row in await world.storage.read(builds.checkpoints, ns=ns)}
    assert set(written) == {"memory-segments", "rollup-day", "rollup-week", "rollup-month", "rollup-year"}
    assert (written["rollup-day"].node_id, written["rollup-day"].processed) == (ABOVE[0], 1)
    assert written["rollup-day"].last_processed_ms == ms("2024-01-16 00:00") - 1


async def test_rebuilding_changes_nothing_that_says_the_same(world: World) -> None:
    await world.ingest(*talk(world), *talk(world, f"{DAY} 12:00"))
    ns = await world.memory.ns()
    started = await world.memory.rebuild()
    assert (started.name, started.status) == ("memory-rebuild", "queuing")
    done = await world.work.jobs.rebuild(context(world, "memory-rebuild", ns), started.payload)
    assert done == {"days": 1, "built": 6, "unchanged": 0, "failed": 0, "indexed": 18}
    again = await world.work.jobs.rebuild(context(world, "memory-rebuild", ns), {})
    assert (again["built"], again["unchanged"], again["indexed"]) == (0, 6, 18)
    assert [(await world.node(id)).version for id in ABOVE] == [1, 1, 1, 1]
    assert (await world.memory.search("umlaut")).documents == 18
    assert await world.storage.background(compact_all) is False


async def compact_all(tx: Tx) -> bool:
    from perdure.memory.operations.maintenance import compact

    for _ in range(100):
        if not await compact(tx):
            return False
    return True


# --- grips ------------------------------------------------------------------------------------------------


async def test_every_line_is_tied_to_its_events(world: World) -> None:
    ids = await world.arrive(
        *talk(world), world.event("An unrelated remark in between", f"{DAY} 10:01", session_id="t")
    )
    await world.build()
    for id in [(await world.segments())[0].node_id, *ABOVE]:
        node = await world.node(id)
        assert node.bullets
        for bullet in node.bullets:
            assert bullet.grip_ids, (id, bullet)
            for grip in bullet.grip_ids:
                expanded = await world.memory.expand_grip(grip)
                text = " ".join(event.text for event in expanded.excerpt_events)
                assert bullet.text.removeprefix("Asked: ").split()[-2] in text
                assert set(expanded.grip.event_ids) <= set(ids)
                assert len(expanded.grip.excerpt) <= 200


async def test_a_grip_is_expanded_by_what_its_session_said_around_it(world: World) -> None:
    sentences = (
        "Alpha engines started humming quietly",
        "Bravo pilots checked every instrument",
        "Charlie tower granted runway clearance",
        "Delta wings carried heavy cargo",
        "Echo radars noticed distant thunder",
        "Foxtrot passengers ordered coffee",
        "Golf bags filled another container",
        "Hotel shuttles waited outside",
    )
    events = [
        world.event(text, f"{DAY} 10:{minute:02}", session_id="s") for minute, text in enumerate(sentences)
    ]
    other = world.event("delta of another session", f"{DAY} 10:03", session_id="other")
    away = world.event("alpha an hour and more later", f"{DAY} 11:10", session_id="s")
    await world.arrive(*events, other, away)
    await world.build(SEGMENT)
    first, *_ = await world.segments()
    grips = {
        expanded.excerpt_events[0].text: expanded
        for bullet in first.bullets
        for expanded in [await world.memory.expand_grip(bullet.grip_ids[0], events_before=2, events_after=2)]
        if expanded.grip.session_id == "s"
    }
    assert len(grips) >= 3
    texts = [event.text for event in events]
    for text, expanded in grips.items():
        at = texts.index(text)
        # A grip of one event takes in no other.
        assert [event.text for event in expanded.excerpt_events] == [text]
        assert expanded.grip.event_id_start == expanded.grip.event_id_end == events[at].event_id
        assert [event.text for event in expanded.events_before] == texts[max(0, at - 2) : at]
        assert [event.text for event in expanded.events_after] == texts[at + 1 : at + 3]
    for wrong in ({"events_before": -1}, {"events_after": 101}):
        with pytest.raises(InvalidInput):
            await world.memory.expand_grip(first.bullets[0].grip_ids[0], **wrong)
    with pytest.raises(NotFound):
        await world.memory.expand_grip("grip:1:x")


async def test_search_finds_nodes_and_grips_and_cites_their_events(world: World) -> None:
    ids = await world.ingest(*talk(world))
    await world.arrive(*talk(world)[:0], world.event("something else", f"{DAY} 10:20"))
    await world.build()
    await world.index()
    for kind in ("event", "node", "grip"):
        found = await world.memory.search("umlaut", kind=kind)
        assert found.items, kind
        for hit in found.items:
            assert hit.kind == kind
            assert hit.events
            assert ids[0] in {event.event_id for event in hit.events}
    assert {hit.kind for hit in (await world.memory.search("umlaut", agent="claude")).items} == {
        "event",
        "node",
        "grip",
    }
    assert (await world.memory.search("umlaut", agent="pi")).items == []


# --- reading ----------------------------------------------------------------------------------------------


async def test_pages_of_children(world: World) -> None:
    await world.arrive(*(world.event("x", f"{DAY} {hour:02}:00") for hour in range(0, 24, 2)))
    page = await world.memory.browse(ABOVE[0], limit=5)
    assert (len(page.items), page.has_more) == (5, True)
    rest = await world.memory.browse(ABOVE[0], limit=7, after=page.after)
    assert (len(rest.items), rest.has_more) == (7, False)
    times = [node.start_time_ms for node in page.items + rest.items]
    assert times == sorted(set(times))
    assert (await world.memory.browse("toc:day:1999-01-01")).items == []
    for wrong in ("x", "5:x", ":"):
        with pytest.raises(InvalidInput, match="after"):
            await world.memory.browse(ABOVE[0], after=wrong)
    with pytest.raises(NotFound):
        await world.node("toc:day:1999-01-01")


async def test_search_inside_nodes(world: World) -> None:
    await world.arrive(
        *talk(world), world.event("Booked a train to Prague for the conference", f"{DAY} 12:00")
    )
    await world.build()
    login, train = await world.segments()
    found = await world.memory.search_node(login.node_id, "login bug")
    assert found.relevance == sum(match.score for match in found.matches) / len(found.matches)
    assert {match.part for match in found.matches} >= {"title", "bullets", "keywords"}
    assert all(match.grip_ids for match in found.matches if match.part == "bullets")
    exact = await world.memory.search_node(login.node_id, "login", fields=["keywords"])
    assert [(match.text, match.score) for match in exact.matches] == [("login", 1.0)]
    assert (await world.memory.search_node(login.node_id, "of to an")).matches == []
    assert len((await world.memory.search_node(login.node_id, "login", limit=1)).matches) == 1
    assert (await world.memory.search_node(login.node_id, "login", token_budget=1)).matches == []
    below = await world.memory.search_children("prague", parent_id=ABOVE[0])
    assert [each.node_id for each in below.items] == [train.node_id]
    assert [each.node_id for each in (await world.memory.search_children("prague")).items] == [ABOVE[3]]
    some = await world.memory.search_children("the for login prague", level="segment", limit=1)
    assert (len(some.items), some.has_more) == (1, True)
    for empty in ("", "  "):
        with pytest.raises(InvalidInput, match="query is required"):
            await world.memory.search_node(login.node_id, empty)
        with pytest.raises(InvalidInput, match="query is required"):
            await world.memory.search_children(empty)
    with pytest.raises(NotFound):
        await world.memory.search_node("toc:year:1999", "login")
    with pytest.raises(InvalidInput, match="fields"):
        await world.memory.search_node(login.node_id, "x", fields=["magic"])  # type: ignore[list-item]


async def test_stats_count_what_is_there(world: World) -> None:
    empty = await world.memory.stats()
    assert (empty.events, empty.toc_nodes, empty.grips, empty.outbox) == (0, 0, 0, 0)
    await world.arrive(*talk(world))
    await world.build()
    await world.index()
    stats = await world.memory.stats()
    assert (stats.events, stats.toc_nodes) == (3, 5)
    assert stats.grips >= 2
    assert stats.outbox > 0
    assert stats.indexed == stats.events + stats.toc_nodes + stats.grips
    assert stats.disk_bytes > 0
    assert stats.path
