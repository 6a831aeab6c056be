"""Runs and sessions are fed into memory, once each, where the setting says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.kernel.support import until_true

from perdure import Agents, Perdure
from perdure.memory.feed import FEED_CONSUMER
from perdure.memory.records import MemoryEvent
from perdure.memory.run_feed import build_events, extract_text
from perdure.memory.session_feed import SessionFeed
from perdure.workflows.definition import Phase, Workflow
from perdure.workflows.loading import load_text
from perdure.workflows.operations.ends import ENDS_CONSUMER


async def greet(ctx: Any, input: Any) -> Any:
    return {"messages": [{"role": "user", "content": input["question"]}, {"content": "It is the zebra."}]}


async def fail(ctx: Any, input: Any) -> Any:
    raise ValueError("no giraffe")


async def guide(ctx: Any, input: Any) -> Any:
    await ctx.message("user", input)
    call = {"type": "tool_use", "id": "call-1", "name": "atlas", "input": {"city": "Rome"}}
    await ctx.message("assistant", [call])
    await ctx.tool_result("call-1", "Rome is in Italy.")
    await ctx.message("assistant", "In Italy.")
    return {"answer": "In Italy."}


def agents() -> Agents:
    made = Agents()
    made.register("guide", guide)
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


async def test_a_run_is_remembered_in_the_session_of_its_agent(tmp_path: Path) -> None:
    async with Perdure(f"sqlite:///{tmp_path}/a.db", agents=agents()) as perdure:
        end = await perdure.run(
            "greet", {"question": "Which animal is it?"}, thread_id="talk", if_not_exists="create"
        )
    for session_id, wanted in ((None, "talk"), ("review-1", "review-1")):
        run = structs.replace(end.run, session_id=session_id)
        assert {event.session_id for event in build_events(structs.replace(end, run=run))} == {wanted}


WORKFLOW = """
name: visit
final_message: "The zoo has a {{animal}}."
phases:
  - {name: look, type: command, command: "printf zebra", output_var: animal}
  - {name: feed, type: command, command: "exit {{code}}"}
"""


async def test_the_end_of_a_workflow_run_is_remembered_also_after_a_retry(tmp_path: Path) -> None:
    async with Perdure(f"sqlite:///{tmp_path}/a.db", agents=agents(), memory_feed=True) as perdure:
        definition = load_text(WORKFLOW).definition
        assert isinstance(definition, Workflow)
        perdure.services.definitions.add(definition)
        workflows = perdure.services.workflows

        async def ends(count: int) -> list[MemoryEvent]:
            async def fed() -> bool:
                return len(await found()) >= count

            async def found() -> list[MemoryEvent]:
                events = (await perdure.memory.get_events()).items
                return [each for each in events if each.event_type == "session_end"]

            await until_true(fed)
            return await found()

        good = (await workflows.run("visit", trigger_id="good", context={"code": 0})).workflow_run_id
        (event,) = await ends(1)
        assert (
            event.text
            == "Workflow visit succeeded: The zoo has a zebra.\nPhases: look succeeded, feed succeeded"
        )
        assert (event.session_id, event.role) == (good, "system")
        told = [each.text for each in (await perdure.memory.get_events()).items]
        assert not [text for text in told if "workflow_run_id" in text]
        assert event.metadata == {
            "workflow_run_id": good,
            "workflow": "visit",
            "trigger_id": "good",
            "status": "succeeded",
        }
        bad = (await workflows.run("visit", trigger_id="bad", context={"code": 3})).workflow_run_id
        assert bad is not None
        assert "Workflow visit failed: phase feed failed" in (await ends(2))[-1].text
        await workflows.retry(bad)
        assert [event.metadata["status"] for event in await ends(3)] == ["succeeded", "failed", "failed"]


async def told(perdure: Perdure, count: int) -> list[tuple[str, str]]:
    """The roles and texts of so many events, once they are there."""

    async def fed() -> bool:
        return len((await perdure.memory.get_events()).items) >= count

    await until_true(fed)
    events = (await perdure.memory.get_events()).items
    assert len(events) == count
    return [(event.role, event.text) for event in events]


@pytest.mark.parametrize("engine", ["file", "memory"])
async def test_sessions_are_remembered_and_nothing_that_a_run_also_told_is_told_twice(
    tmp_path: Path, engine: str
) -> None:
    url = "memory:" if engine == "memory" else f"sqlite:///{tmp_path}/a.db"
    async with Perdure(url, agents=agents(), memory_feed=True) as perdure:
        end = await perdure.run("guide", "Where is Rome?", thread_id="trip", if_not_exists="create")
        assert end.run.status == "success"
        said = [
            ("user", "Where is Rome?"),
            ("assistant", 'atlas({"city":"Rome"})'),
            ("tool", "Rome is in Italy."),
            ("assistant", "In Italy."),
        ]
        assert sorted(await told(perdure, 4)) == sorted(said)
        events = (await perdure.memory.get_events()).items
        assert {(event.session_id, event.agent) for event in events} == {("trip", "guide")}
        lines: list[dict[str, Any]] = [
            {"type": "user", "message": {"role": "user", "content": "Review the change."}},
            {"type": "summary", "summary": "not a message"},
            {"type": "assistant", "message": {"role": "assistant", "content": "It has one bug."}},
        ]
        await perdure.sessions.append("review-1", lines, cwd="/srv/shop")
        new = [("user", "Review the change."), ("assistant", "It has one bug.")]
        assert sorted(await told(perdure, 6)) == sorted([*said, *new])
        (event,) = [each for each in (await perdure.memory.get_events()).items if "bug" in each.text]
        assert (event.session_id, event.metadata["project"]) == ("review-1", "-srv-shop")


async def test_what_sessions_said_while_nobody_listened_is_read_at_the_start(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    line = {"type": "user", "message": {"role": "user", "content": "Review the change."}}
    async with Perdure(url) as perdure:
        await perdure.sessions.append("review-1", [line])
        await perdure.sessions.append("review-1", [line], sub_agent="subagents/agent-1")
    for _ in range(2):
        async with Perdure(url, memory_feed=True) as perdure:
            await told(perdure, 2)
            feed = SessionFeed(perdure.sessions, perdure.threads, perdure.memory)
            await feed.catch_up()
            await told(perdure, 2)


async def test_without_the_setting_the_end_of_a_run_leaves_nothing_in_the_outbox(tmp_path: Path) -> None:
    async with Perdure(f"sqlite:///{tmp_path}/a.db", agents=agents()) as perdure:
        await perdure.run("greet", {"question": "Which animal is it?"})
        perdure.services.definitions.add(Workflow(name="w", phases=[Phase(name="a", type="context")]))
        assert (await perdure.services.workflows.run("w")).status == "succeeded"
        for consumer in (FEED_CONSUMER, ENDS_CONSUMER):
            assert (await perdure.services.outbox.list(consumer=consumer)).total == 0
        assert (await perdure.memory.get_events()).items == []


def test_the_text_of_a_value() -> None:
    assert extract_text("plain") == "plain"
    assert extract_text({"messages": [{"content": [{"type": "text", "text": "deep"}]}]}) == "deep"
    assert extract_text({"n": 5}) == '{"n":5}'
    assert extract_text(None) == extract_text({}) == extract_text([]) == ""
    assert extract_text({"text": "\ud83d"}) == "\ufffd"
