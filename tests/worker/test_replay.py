"""A new attempt replays its agent: events in the stream are not appended again, and none is lost."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.worker.worker_support import House

from perdure.agents.context import Retriable
from perdure.streams.model import NewEvent
from perdure.worker import emitter
from perdure.worker.emitter import Replay


@pytest.fixture
def house() -> House:
    return House()


# --- programs and kills -------------------------------------------------------------------------------------

EMIT, SAVE, STEP, TOGETHER = "emit", "save", "step", "together"

simple = st.sampled_from([(EMIT, ()), (EMIT, ()), (SAVE, ()), (STEP, ())])
programs = st.recursive(
    st.lists(simple, max_size=4),
    lambda inner: st.lists(simple | st.tuples(st.just(STEP), inner), max_size=4),
    max_leaves=12,
)
parallel = st.tuples(programs, st.lists(programs, min_size=2, max_size=3), programs)
kills = st.lists(st.integers(0, 12), max_size=3)
SAME = st.booleans()


class Player:
    """Agent that executes a program. Each attempt may be killed before one of its operations."""

    def __init__(self, house: House, kills: list[int], *, same: bool = False) -> None:
        self.house = house
        self.kills = kills
        self.same = same
        """True if all events have the same data, so that only their number distinguishes them."""
        self.done = 0

    async def __call__(self, ctx: Any, program: Any) -> None:
        self.done = 0
        await self.play(ctx, program, "")

    async def play(self, ctx: Any, program: Any, path: str) -> None:
        for number, (what, inner) in enumerate(program):
            await self.killed(ctx)
            await self.do(ctx, what, inner, f"{path}/{number}")

    async def do(self, ctx: Any, what: str, inner: Any, name: str) -> None:
        if what == EMIT:
            await ctx.emit("same" if self.same else name)
        elif what == SAVE:
            await ctx.save("same" if self.same else name)
        elif what == STEP:
            await ctx.step(name, lambda: self.play(ctx, inner, name))
        else:
            branches = [self.play(ctx, branch, f"{name}:{n}") for n, branch in enumerate(inner)]
            await asyncio.gather(*branches)

    async def killed(self, ctx: Any) -> None:
        self.done += 1
        if ctx.attempt <= len(self.kills) and self.done > self.kills[ctx.attempt - 1]:
            # As after a kill: unwritten events are lost, and another attempt starts.
            self.house.queue.steal(ctx.run_id)
            await asyncio.Event().wait()


def emitted_by(program: Any, kills: list[int], *, same: bool = False) -> list[Any]:
    """Return the stream of a run whose attempts were killed at these operations."""

    async def run() -> list[Any]:
        house = House()
        house.agents.register("player", Player(house, kills, same=same).__call__)
        async with house.working(cancel_grace=0.01):
            row = await house.queue.ended(house.queue.add("player", program, max_attempts=20))
        assert row.run.status == "success"
        return row.told("custom", "values")

    return asyncio.run(run())


@settings(max_examples=60, deadline=None)
@given(programs, kills, SAME)
def test_a_killed_run_has_the_stream_of_one_that_was_not(program: Any, kills: list[int], same: bool) -> None:
    whole = [(STEP, ()), *program]
    assert emitted_by(whole, kills, same=same) == emitted_by(whole, [], same=same)


@settings(max_examples=40, deadline=None)
@given(parallel, kills)
def test_with_parallel_steps_nothing_is_lost(program: Any, kills: list[int]) -> None:
    before, branches, after = program
    whole = [*before, (TOGETHER, branches), *after]
    assert not Counter(emitted_by(whole, [])) - Counter(emitted_by(whole, kills))


# --- cases --------------------------------------------------------------------------------------------------


async def attempts(house: House, agent: Any, input: Any = None) -> list[Any]:
    """Return the custom events of a run. The agent raises `Retriable` to end an attempt."""
    house.agents.register("agent", agent)
    async with house.working():
        row = await house.queue.ended(house.queue.add("agent", input))
    assert row.run.status == "success", row.run.error
    return row.told("custom")


async def test_a_step_is_stored_together_with_the_events_before_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emitter, "LINGER_SECONDS", 600.0)

    async def agent(ctx: Any, input: Any) -> None:
        await ctx.emit("before")
        await ctx.step("s", lambda: None)

    assert await attempts(house, agent) == ["before"]
    assert house.queue.saved_at.popitem()[1] == {"s": 2}
    assert "append" not in [name for name, _ in house.queue.calls]


async def test_steps_that_end_together_are_stored_together(house: House) -> None:
    """Only the first waits for the events that are being written."""
    storing: list[int] = []
    keep = house.queue.keep

    async def counted(*args: Any) -> None:
        storing.append(1)
        if len(storing) == 5:
            house.gate.set()
        if not args[4]:
            await asyncio.to_thread(house.gate.wait, 20)
        await keep(*args)

    house.queue.keep = counted  # type: ignore[method-assign, assignment]

    async def agent(ctx: Any, input: Any) -> None:
        await ctx.emit("before")
        await asyncio.gather(*(ctx.step(f"s{n}", lambda: None) for n in range(5)))

    assert await attempts(house, agent) == ["before"]
    assert len(storing) == 5


async def test_what_led_to_saved_parallel_steps_is_dropped(house: House) -> None:
    async def agent(ctx: Any, input: Any) -> None:
        async def branch(name: str) -> None:
            await ctx.emit(f"{name} begins")

            async def work() -> None:
                if name == "b" and ctx.attempt == 1:
                    await house.queue.until(lambda: len(house.queue.steps[ctx.run_id]) == 2)
                    raise Retriable("again", after=0)
                await ctx.emit(f"{name} works")

            await ctx.step(name, work)

        await ctx.emit("plan")
        await asyncio.gather(*map(branch, "abc"))
        await ctx.emit("end")

    # Branch b has no saved step, so it emits its event again.
    works = [f"{name} {what}" for name in "abc" for what in ("begins", "works")]
    assert Counter(await attempts(house, agent)) == Counter(["plan", *works, "b begins", "end"])


async def test_a_branch_goes_on_while_another_has_not_come_to_its_step(house: House) -> None:
    """The first branch is past its step when it is killed. Later it emits what it could not emit before."""

    async def agent(ctx: Any, input: Any) -> None:
        async def first() -> None:
            await ctx.step("first", lambda: None)
            if ctx.attempt == 1:
                await house.queue.until(lambda: "second" in house.queue.steps[ctx.run_id])
                raise Retriable("again", after=0)
            await ctx.emit("after the first")

        async def second() -> None:
            await ctx.emit("before the second")
            await ctx.step("second", lambda: None)

        await asyncio.gather(first(), second())

    assert await attempts(house, agent) == ["before the second", "after the first"]


async def test_a_sync_agent_is_replayed_too(house: House) -> None:
    def agent(ctx: Any, input: Any) -> None:
        for number in range(4):
            ctx.call(lambda: ctx.emit({"number": number, "attempt": ctx.attempt}))  # noqa: B023
            ctx.call(lambda: ctx.step(f"s{number}", lambda: None))  # noqa: B023
            if ctx.attempt == 1 and number == 2:
                raise Retriable("again", after=0)

    assert await attempts(house, agent) == [{"number": n, "attempt": 1 + (n > 2)} for n in range(4)]


async def test_an_agent_that_takes_another_way_loses_nothing(house: House) -> None:
    async def agent(ctx: Any, input: Any) -> None:
        await ctx.emit(f"plan {ctx.attempt}")
        if ctx.attempt == 1:
            await ctx.step("old", lambda: 1)
            raise Retriable("again", after=0)
        await ctx.step("new", lambda: ctx.emit("in the new step"))
        await ctx.emit("after it")

    assert await attempts(house, agent) == ["plan 1", "plan 2", "in the new step", "after it"]


async def test_an_agent_that_ends_early_loses_nothing(house: House) -> None:
    async def agent(ctx: Any, input: Any) -> None:
        await ctx.emit(f"plan {ctx.attempt}")
        if ctx.attempt == 1:
            await ctx.step("old", lambda: 1)
            raise Retriable("again", after=0)

    assert await attempts(house, agent) == ["plan 1", "plan 2"]


async def test_an_agent_that_continues_from_its_state_is_not_replayed(house: House) -> None:
    async def agent(ctx: Any, input: Any) -> None:
        for number in range(await ctx.load() or 0, 4):
            await ctx.step(f"work {number}", lambda: None)
            await ctx.emit("tick")
            await ctx.save(number + 1)
            if ctx.attempt == 1 and number == 1:
                raise Retriable("again", after=0)

    assert await attempts(house, agent) == ["tick"] * 4


async def test_after_the_last_saved_step_only_what_is_equal_is_dropped(house: House) -> None:
    async def agent(ctx: Any, input: Any) -> None:
        await ctx.step("s", lambda: None)
        await ctx.emit("equal")
        await ctx.emit(f"attempt {ctx.attempt}")
        await ctx.emit("equal, but after another one")
        if ctx.attempt == 1:
            raise Retriable("again", after=0)

    after = "equal, but after another one"
    assert await attempts(house, agent) == ["equal", "attempt 1", after, "attempt 2", after]


async def test_a_resumed_run_has_a_stream_of_its_own(house: House) -> None:
    @house.agents.agent("asking")
    async def asking(ctx: Any, input: Any) -> Any:
        await ctx.emit("before")
        await ctx.step("s", lambda: None)
        answer = await ctx.interrupt("well?")
        await ctx.emit(answer)
        await ctx.step("t", lambda: None)
        if ctx.attempt == 1:
            raise Retriable("again", after=0)

    async with house.working():
        first = await house.queue.ended(house.queue.add("asking", thread_id="one"))
        second = await house.queue.ended(house.queue.add("asking", thread_id="one", resume="yes"))
    assert first.told("custom") == ["before"]
    assert second.told("custom") == ["before", "yes"]
    assert second.results == ["retriable", "success"]


async def test_a_question_is_asked_once(house: House) -> None:
    @house.agents.agent("asking")
    async def asking(ctx: Any, input: Any) -> Any:
        await ctx.step("s", lambda: None)
        if ctx.attempt == 1:
            await ctx.emit({"__interrupt__": [{"id": f"{ctx.run_id}:0", "value": "well?"}]}, "values")
            raise Retriable("again", after=0)
        await ctx.interrupt("well?")

    async with house.working():
        row = await house.queue.ended(house.queue.add("asking"))
    assert [list(each) for each in row.told("values")] == [["__interrupt__"]]


# --- held events --------------------------------------------------------------------------------------------


def event(number: int, size: int = 1) -> NewEvent:
    return NewEvent("custom", f"{number}".rjust(size))


def test_what_is_held_is_bounded() -> None:
    for count, size in ((3 * emitter.MAX_HELD, 1), (30, emitter.MAX_HELD_BYTES // 4)):
        replaying = Replay({"s": 1}, 5)
        for number in range(count):
            assert not replaying.is_new(event(number, size))
        held = replaying.end()
        assert 0 < len(held) <= emitter.MAX_HELD
        assert sum(len(each.body) for each in held) <= 2 * emitter.MAX_HELD_BYTES
        assert held[-1] == event(count - 1, size)
