"""Operations of an agent on its run: events, steps, states, questions, and the rest of its context."""

import asyncio
import logging
from typing import Any

import pytest
from tests.worker.worker_support import House

from perdure.agents.context import Retriable
from perdure.kernel.errors import InvalidInput
from perdure.worker import emitter


@pytest.fixture
def house() -> House:
    return House()


async def test_events_keep_their_order_and_travel_in_batches(house: House) -> None:
    @house.agents.agent("teller")
    async def teller(ctx: Any, input: Any) -> None:
        for number in range(5000):
            await ctx.emit(number)

    async with house.working():
        row = await house.queue.ended(house.queue.add("teller"))
    assert row.told("custom") == list(range(5000))
    appends = [count for name, count in house.queue.calls if name == "append"]
    assert len(appends) < 500
    assert max(appends) <= emitter.MAX_EVENTS + 1


async def test_a_flood_is_slowed_to_what_the_queue_takes(house: House) -> None:
    sent = {"count": 0}
    taken = house.queue.append

    async def slow(*args: Any) -> int:
        await asyncio.to_thread(house.gate.wait)
        return await taken(*args)

    house.queue.append = slow  # type: ignore[method-assign, assignment]

    @house.agents.agent("flood")
    async def flood(ctx: Any, input: Any) -> None:
        while sent["count"] < 10 * emitter.MAX_EVENTS:
            await ctx.emit("x" * 100)
            sent["count"] += 1
            # One before the batch is full, because the call that fills the batch may wait itself.
            if sent["count"] == emitter.MAX_EVENTS - 1:
                house.begun.set()

    async with house.working():
        run_id = house.queue.add("flood")
        await house.began()
        # Sent and pending events: at most two batches, for any duration.
        house.queue.calls.clear()
        await house.queue.until(lambda: len([1 for name, _ in house.queue.calls if name == "claim"]) > 2)
        assert sent["count"] <= 2 * emitter.MAX_EVENTS + 1
        house.gate.set()
        row = await house.queue.ended(run_id)
    assert len(row.told("custom")) == 10 * emitter.MAX_EVENTS


async def test_large_events_are_counted_by_their_bytes(house: House) -> None:
    @house.agents.agent("large")
    async def large(ctx: Any, input: Any) -> None:
        for _ in range(20):
            await ctx.emit("x" * (emitter.MAX_BYTES // 2))

    async with house.working():
        row = await house.queue.ended(house.queue.add("large"))
    assert len(row.told("custom")) == 20
    assert max(count for name, count in house.queue.calls if name == "append") <= 3


@pytest.mark.parametrize("event", ["end", "metadata", "error", "control", "", "two\nlines", 5, "x" * 300])
async def test_an_event_has_a_proper_name(house: House, event: Any) -> None:
    seen: list[str] = []

    @house.agents.agent("teller")
    async def teller(ctx: Any, input: Any) -> None:
        try:
            await ctx.emit(1, event)
        except InvalidInput as error:
            seen.append(error.message)

    async with house.working():
        row = await house.queue.ended(house.queue.add("teller"))
    assert len(seen) == 1
    assert row.run.status == "success"
    assert [name for name, _ in row.told()] == ["metadata", "end"]


async def test_a_step_is_done_once_in_all_attempts(house: House) -> None:
    done: list[Any] = []

    def do(what: Any) -> Any:
        done.append(what)
        return {"did": what, "pair": (1, 2)}

    @house.agents.agent("stepper")
    async def stepper(ctx: Any, input: Any) -> Any:
        first = await ctx.step("send", lambda: do("first"))
        second = await ctx.step("send", lambda: do("second"))

        async def later() -> Any:
            return do("third")

        third = await ctx.step("other", later)
        assert set(ctx.steps) == {"send", "send#2", "other"}
        if ctx.attempt < 3:
            raise Retriable(after=0.0)
        return [first, second, third]

    async with house.working():
        row = await house.queue.ended(house.queue.add("stepper"))
    assert done == ["first", "second", "third"]
    assert row.told("values") == [[{"did": what, "pair": [1, 2]} for what in done]]


async def test_what_a_step_gives_must_be_json(house: House) -> None:
    @house.agents.agent("stepper")
    async def stepper(ctx: Any, input: Any) -> Any:
        return await ctx.step("odd", object)

    async with house.working():
        row = await house.queue.ended(house.queue.add("stepper"))
    assert row.run.error is not None
    assert "step 'odd'" in row.run.error.message


async def test_a_retry_goes_on_from_the_last_state(house: House) -> None:
    seen: list[Any] = []

    @house.agents.agent("saver")
    async def saver(ctx: Any, input: Any) -> Any:
        seen.append(await ctx.load())
        saved = await ctx.save(
            {"at": ctx.attempt}, next=("more",), metadata={"why": "test"}, state=b"\x00own"
        )
        assert (ctx.checkpoint.checkpoint_id, ctx.checkpoint.state) == (saved, b"\x00own")
        if ctx.attempt == 1:
            raise ConnectionError
        await ctx.save({"at": "quietly"}, quiet=True)
        return {"at": "quietly"}

    async with house.working():
        row = await house.queue.ended(house.queue.add("saver"))
    assert seen == [None, {"at": 1}]
    assert row.told("values") == [{"at": 1}, {"at": 2}]
    states = house.queue.checkpoints[row.run.thread_id]
    assert [(each.values, each.next) for each in states] == [
        ({"at": 1}, ["more"]),
        ({"at": 2}, ["more"]),
        ({"at": "quietly"}, []),
    ]
    assert states[0].metadata == {"why": "test"}
    assert [each.parent_id for each in states[1:]] == [each.checkpoint_id for each in states[:-1]]


async def test_events_stand_before_the_state_that_follows_them(house: House) -> None:
    @house.agents.agent("saver")
    async def saver(ctx: Any, input: Any) -> None:
        for number in range(3):
            await ctx.emit(number)
            await ctx.save({"number": number})

    async with house.working():
        row = await house.queue.ended(house.queue.add("saver"))
    told = [name for name, _ in row.told()]
    assert told == ["metadata", "custom", "values", "custom", "values", "custom", "values", "end"]


def asking(house: House) -> list[Any]:
    """Agent that asks two questions, with a record of what it did."""
    done: list[Any] = []

    @house.agents.agent("asker")
    async def asker(ctx: Any, input: Any) -> Any:
        await ctx.step("begin", lambda: done.append(("began with", input)))
        first = await ctx.interrupt({"question": "first?"})
        await ctx.save({"first": first})
        if input == "flaky" and ctx.attempt == 1:
            raise ConnectionError
        second = await ctx.interrupt({"question": "second?"})
        return {"answers": [first, second], "key": ctx.idempotency_key("mail")}

    return done


@pytest.mark.parametrize("input", ["calm", "flaky"])
async def test_a_run_asks_and_later_runs_answer(house: House, input: str) -> None:
    done = asking(house)
    async with house.working():
        first = await house.queue.ended(house.queue.add("asker", input, thread_id="one"))
        second = await house.queue.ended(house.queue.add("asker", None, thread_id="one", resume="yes"))
        state = house.queue.checkpoints["one"][-1]
        asked = state.interrupts[0].id
        third = await house.queue.ended(house.queue.add("asker", None, thread_id="one", resume={asked: 2}))
    origin = first.run.run_id
    assert [row.run.status for row in (first, second, third)] == ["success"] * 3
    assert first.told("values") == [
        {"__interrupt__": [{"id": f"{origin}:0", "value": {"question": "first?"}}]}
    ]
    assert (asked, state.next, state.values) == (f"{origin}:1", ["asker"], {"first": "yes"})
    assert state.metadata == {"origin": origin, "input": input, "resumes": ["yes"]}
    assert third.told("values")[-1] == {"answers": ["yes", 2], "key": f"{origin}:mail"}
    assert done == [("began with", input)]


async def test_a_question_is_told_as_an_update_to_whoever_wants_updates(house: House) -> None:
    asking(house)
    async with house.working():
        row = await house.queue.ended(house.queue.add("asker", stream_mode=["updates", "values"]))
        silent = await house.queue.ended(house.queue.add("asker", stream_mode=["custom"]))
    assert list(row.told("updates")[0]) == ["__interrupt__"]
    assert [name for name, _ in silent.told()] == ["metadata", "end"]


async def test_a_new_input_on_a_thread_that_waits_begins_anew(house: House) -> None:
    done = asking(house)
    async with house.working():
        await house.queue.ended(house.queue.add("asker", 1, thread_id="one"))
        await house.queue.ended(house.queue.add("asker", 2, thread_id="one"))
    assert done == [("began with", 1), ("began with", 2)]
    assert len(house.queue.checkpoints["one"][-1].metadata["resumes"]) == 0


async def test_an_agent_that_catches_everything_does_not_catch_a_question(house: House) -> None:
    @house.agents.agent("greedy")
    async def greedy(ctx: Any, input: Any) -> Any:
        try:
            return await ctx.interrupt("really?")
        except Exception:  # noqa: BLE001 - as some agents do
            return "caught"

    async with house.working():
        row = await house.queue.ended(house.queue.add("greedy"))
    assert house.queue.checkpoints[row.run.thread_id][-1].interrupts[0].value == "really?"


async def test_a_sync_agent_can_ask(house: House) -> None:
    @house.agents.agent("asker")
    def asker(ctx: Any, input: Any) -> Any:
        return {"answer": ctx.call(lambda: ctx.interrupt("well?"))}

    async with house.working():
        await house.queue.ended(house.queue.add("asker", thread_id="one"))
        row = await house.queue.ended(house.queue.add("asker", thread_id="one", resume=7))
    assert row.told("values") == [{"answer": 7}]


async def test_the_context_tells_of_the_run(house: House, caplog: pytest.LogCaptureFixture) -> None:
    @house.agents.agent("curious")
    async def curious(ctx: Any, input: Any) -> Any:
        ctx.logger.warning("looks at %s", "itself")
        await ctx.heartbeat()
        with pytest.raises(InvalidInput, match="await the method"):
            ctx.call(ctx.load)
        with ctx.tracer.start_as_current_span("nothing keeps it") as span:
            span.set_attribute("a", 1)
        return {
            "thread": ctx.thread_id,
            "config": ctx.config["configurable"],
            "resources": await ctx.resources(),
            "command": ctx.command,
            "modes": ctx.stream_mode,
            "cancelled": ctx.cancelled,
            "options": ctx.options,
        }

    with caplog.at_level(logging.WARNING):
        async with house.working():
            row = await house.queue.ended(house.queue.add("curious", thread_id="one", options={"a": 1}))
    assert row.told("values") == [
        {
            "thread": "one",
            "config": {"thread_id": "one"},
            "resources": None,
            "command": None,
            "modes": ["values"],
            "cancelled": False,
            "options": {"a": 1},
        }
    ]
    assert f"run {row.run.run_id}: looks at itself" in caplog.text
