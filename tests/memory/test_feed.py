"""Runs are fed into memory, once each, where the setting says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kernel.support import until_true

from perdure import Agents, Perdure
from perdure.memory.feed import FEED_CONSUMER
from perdure.runtime.memory_feed import text_of


async def greet(ctx: Any, input: Any) -> Any:
    return {"messages": [{"role": "user", "content": input["question"]}, {"content": "It is the zebra."}]}


async def fail(ctx: Any, input: Any) -> Any:
    raise ValueError("no giraffe")


def agents() -> Agents:
    made = Agents()
    made.register("greet", greet)
    made.register("fail", fail)
    return made


async def test_what_runs_were_asked_and_answered_is_remembered(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    async with Perdure(url, agents=agents(), memory_feed=True) as perdure:
        thread = await perdure.threads.create_thread("talk")
        await perdure.run("greet", {"question": "Which animal is it?"}, thread_id=thread.thread_id)
        await perdure.run("fail", {"question": "And this one?"}, thread_id=thread.thread_id)

        async def fed() -> bool:
            return len((await perdure.memory.get_events()).items) == 4

        await until_true(fed)
        events = (await perdure.memory.get_events()).items
        assert [event.text for event in events] == [
            "Which animal is it?",
            "It is the zebra.",
            "And this one?",
            "The run failed: ValueError: no giraffe",
        ]
        assert {event.session_id for event in events} == {"talk"}
        assert [event.agent for event in events] == ["greet", "greet", "fail", "fail"]
        assert events[0].metadata["status"] == "success"


async def test_without_the_setting_the_end_of_a_run_leaves_nothing_in_the_outbox(tmp_path: Path) -> None:
    async with Perdure(f"sqlite:///{tmp_path}/a.db", agents=agents()) as perdure:
        await perdure.run("greet", {"question": "Which animal is it?"})
        assert (await perdure.services.outbox.list(consumer=FEED_CONSUMER)).total == 0
        assert (await perdure.memory.get_events()).items == []


def test_the_text_of_a_value() -> None:
    assert text_of("plain") == "plain"
    assert text_of({"messages": [{"content": [{"type": "text", "text": "deep"}]}]}) == "deep"
    assert text_of({"n": 5}) == '{"n":5}'
    assert text_of(None) == text_of({}) == text_of([]) == ""
    assert text_of({"text": "\ud83d"}) == "\ufffd"
