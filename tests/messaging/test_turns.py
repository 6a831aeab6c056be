"""Turns answer messages. The turns of a session run one after another; bursts are combined."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.kernel.support import soon
from tests.messaging.support import MessagingWorld
from tests.threads.support import told

from perdure.eventlog.port import default_session_id
from perdure.executions.operations import ExecutionProgress, record_progress
from perdure.kernel.errors import Conflict, InvalidInput, NotFound
from perdure.messaging.model import MAX_CONTENT
from perdure.messaging.operations.turns import LOST_WORKERS
from perdure.threads.records import Interrupt, NewCheckpoint
from perdure.threads.work import Assignment, Ending


def prompt(turn: Assignment) -> str:
    text: str = turn.run.kwargs.input["prompt"]
    return text


async def test_a_turn_gets_the_message_and_what_was_said_before(world: MessagingWorld) -> None:
    id = await world.chat()
    for number in range(2):
        sent = await world.messaging.send(id, f"hello {number}")
        turn = await world.take()
        assert turn.run.run_id == sent.turn_id
        await world.finish(turn.held, output_text=f"hi {number}")
    given = turn.run.kwargs.input
    assert given["messages"] == [{"role": "user", "content": "hello 1"}]
    assert given["history"] == [
        {"role": "user", "content": "hello 0"},
        {"role": "assistant", "content": "hi 0"},
    ]
    assert await world.said(id) == [
        ("user", "hello 0"),
        ("assistant", "hi 0"),
        ("user", "hello 1"),
        ("assistant", "hi 1"),
    ]
    assert (await world.messaging.get(id)).message_count == 4
    assert (await world.threads.list_runs()).total == 0


async def test_messages_that_come_before_a_turn_begins_are_combined_in_the_order_of_sending(
    world: MessagingWorld,
) -> None:
    id = await world.chat()
    first = await world.messaging.send(id, "one", sent_at=10)
    sent = [await world.messaging.send(id, text, sent_at=at) for text, at in (("three", 12), ("two", 11))]
    assert {each.turn_id for each in sent} == {first.turn_id}
    assert prompt(await world.take()) == "one\ntwo\nthree"


async def test_turns_of_a_session_never_overlap_and_those_of_others_do(world: MessagingWorld) -> None:
    ann, bob = await world.chat(), await world.chat("bob")
    await world.messaging.send(ann, "a1")
    running = await world.take()
    # Until the agent names another session, it logs to that of the line.
    chat = await world.messaging.get(ann)
    assert chat.agent_session_id == default_session_id(running.run.thread_id)
    later = [await world.messaging.send(ann, text) for text in ("a2", "a3")]
    assert later[0].turn_id == later[1].turn_id != running.run.run_id
    await world.idle()
    await world.messaging.send(bob, "b1")
    assert prompt(await world.take()) == "b1"
    held = running.held
    named = ExecutionProgress(rollout_id=held.run_id, attempt_id=held.attempt_id, session_id="claude-1")
    await world.queue.write(record_progress, [named])
    await world.finish(held, output_text="done")
    assert (await world.messaging.get(ann)).agent_session_id == "claude-1"
    turn = await world.take()
    assert prompt(turn) == "a2\na3"
    assert turn.run.kwargs.input["history"][-1] == {"role": "assistant", "content": "done"}


async def test_all_who_send_at_once_are_answered_once_each(world: MessagingWorld) -> None:
    id = await world.chat()
    seen: list[str] = []

    async def work() -> None:
        while len(seen) < 30:
            for turn in await world.queue.claim("w1", ["echo"], 10, 0.2, queues=["workflows"]):
                seen.extend(prompt(turn).split("\n"))
                await world.finish(turn.held, output_text="ok")

    others = [world.messaging.in_namespace(world.namespace) for _ in range(3)]
    sends = [others[number % 3].send(id, f"m{number}") for number in range(30)]
    await soon(asyncio.gather(work(), *sends))
    assert sorted(seen) == sorted(f"m{number}" for number in range(30))
    asked = [content for role, content in await world.said(id) if role == "user"]
    assert sorted(asked) == sorted(seen)


async def test_a_turn_that_failed_leaves_no_answer_and_is_retried_with_its_messages(
    world: MessagingWorld,
) -> None:
    id = await world.chat()
    sent = await world.messaging.send(id, "try this")
    turn = await world.take()
    await world.messaging.send(id, "and that")
    await world.queue.hand_back([turn.held])
    again = await world.take()
    assert (again.run.run_id, prompt(again)) == (sent.turn_id, "try this")
    await world.finish(again.held, "error")
    last = await world.take()
    assert prompt(last) == "and that"
    await world.finish(last.held, "error")
    await world.messaging.send(id, "still there?")
    assert prompt(await world.take()) == "still there?"
    assert [role for role, _ in await world.said(id)] == ["user"] * 3


async def test_a_question_is_answered_by_the_next_message_where_it_was_asked(world: MessagingWorld) -> None:
    id = await world.chat()
    await world.messaging.send(id, "book it")
    turn = await world.take()
    state = NewCheckpoint(values={"n": 1}, next=["ask"], interrupts=[Interrupt(id="1", value="Which day?")])
    await world.queue.finish(Ending(held=turn.held, result="success", checkpoint=state))
    assert (await world.messaging.get(id)).question == "Which day?"
    await world.messaging.send(id, "Monday")
    resumed = await world.take()
    assert resumed.run.kwargs.command is not None
    assert resumed.run.kwargs.command.resume == "Monday"
    assert resumed.run.thread_id == turn.run.thread_id
    assert (await world.messaging.get(id)).question is None
    await world.finish(resumed.held, values={"n": 2}, output_text="Booked.")
    assert (await world.said(id))[-1] == ("assistant", "Booked.")


async def test_waiting_gives_the_answer_and_streaming_the_events(world: MessagingWorld) -> None:
    id = await world.chat()

    async def answer(text: str) -> None:
        turn, *_ = await world.queue.claim("w1", ["echo"], 1, 10, queues=["workflows"])
        await world.queue.append(turn.held, told("custom"))
        await world.finish(turn.held, output_text=text)

    asked, _ = await soon(asyncio.gather(world.messaging.ask(id, "hello"), answer("hi")))
    assert asked.message is not None
    assert (asked.status, asked.message.content, asked.message.turn_id) == ("success", "hi", asked.turn_id)

    async def read() -> list[str]:
        stream = world.messaging.stream(id, "again")
        return [event.event async for burst in stream for event in burst]

    names, _ = await soon(asyncio.gather(read(), answer("hi again")))
    assert names == ["custom", "end"]


async def test_a_turn_can_be_cancelled_before_it_begins_and_while_it_runs(world: MessagingWorld) -> None:
    id = await world.chat()
    waiting = await world.messaging.send(id, "one")
    await world.messaging.cancel_turn(id, waiting.turn_id)
    await world.idle()
    running = await world.messaging.send(id, "two")
    assert running.turn_id != waiting.turn_id
    turn = await world.take()
    await world.messaging.cancel_turn(id, turn.run.run_id)
    with pytest.raises(Conflict, match="has ended"):
        await world.messaging.cancel_turn(id, turn.run.run_id)
    with pytest.raises(NotFound):
        await world.messaging.cancel_turn(id, "nothing")
    assert (await world.threads.join_run(turn.run.run_id)).run.status == "interrupted"
    await world.finish(turn.held)
    await world.messaging.send(id, "three")
    assert prompt(await world.take()) == "three"


async def test_a_long_burst_fills_more_than_one_turn(world: MessagingWorld) -> None:
    id = await world.chat()
    sent = [await world.messaging.send(id, "x" * MAX_CONTENT) for _ in range(4)]
    assert len({each.turn_id for each in sent}) == 4
    assert len(prompt(await world.take())) == MAX_CONTENT


async def test_a_message_waits_for_more_if_it_shall(world: MessagingWorld) -> None:
    id = await world.chat()
    await world.messaging.send(id, "one", settle_seconds=30)
    await world.idle()
    await world.messaging.send(id, "two")
    await world.advance(31)
    assert prompt(await world.take()) == "one\ntwo"


async def test_the_same_request_sent_twice_is_one_message(world: MessagingWorld) -> None:
    id = await world.chat()
    first = await world.messaging.send(id, "hello", idempotency_key="k")
    assert await world.messaging.send(id, "hello", idempotency_key="k") == first
    assert len(await world.said(id)) == 1


async def test_a_session_that_nobody_answers_or_that_has_ended_takes_no_message(
    world: MessagingWorld,
) -> None:
    silent = (await world.session("bob")).session_id
    with pytest.raises(Conflict, match="no assistant"):
        await world.messaging.send(silent, "hello")
    unknown = (await world.session("eve", assistant_id="nobody")).session_id
    with pytest.raises(NotFound, match="Assistant nobody"):
        await world.messaging.send(unknown, "hello")
    ended = await world.chat()
    await world.messaging.deactivate(ended)
    with pytest.raises(Conflict, match="has ended"):
        await world.messaging.send(ended, "hello")
    id = await world.chat()
    wrong: list[dict[str, Any]] = [
        {"content": ""},
        {"content": "x", "sent_at": -1},
        {"content": "x", "settle_seconds": 61},
    ]
    for fields in wrong:
        with pytest.raises(InvalidInput):
            await world.messaging.send(id, **fields)
    for session_id in (silent, unknown, ended, id):
        assert await world.said(session_id) == []


async def test_a_turn_whose_worker_is_lost_is_answered_by_another(world: MessagingWorld) -> None:
    id = await world.chat()
    await world.messaging.send(id, "hello")
    for number in range(LOST_WORKERS):
        lost = await world.take(worker_id=f"lost-{number}")
        await world.messaging.send(id, f"later {number}")
        await world.advance(100)
    with pytest.raises(Conflict):
        await world.finish(lost.held, output_text="too late")
    for wanted in ("hello", "later 0\nlater 1\nlater 2"):
        turn = await world.take()
        assert prompt(turn) == wanted
        await world.finish(turn.held, output_text="hi")
    assert [role for role, _ in await world.said(id)].count("assistant") == 2


async def test_a_turn_that_loses_too_many_workers_fails_and_the_next_one_goes_on(
    world: MessagingWorld,
) -> None:
    id = await world.chat()
    sent = await world.messaging.send(id, "hello")
    for number in range(LOST_WORKERS + 1):
        await world.take(worker_id=f"lost-{number}")
        await world.advance(100)
    assert (await soon(world.messaging.join_turn(sent))).status == "error"
    await world.messaging.send(id, "again")
    assert prompt(await world.take()) == "again"
