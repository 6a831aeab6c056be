"""Logs of sessions that are too old: what keeps one, and what goes with it."""

from __future__ import annotations

import pytest
from tests.retention.support import AT_ONCE, World
from tests.retention.test_ages import only

from perdure.executions.operations import ExecutionProgress, record_progress
from perdure.memory.session_feed import SessionFeed
from perdure.retention import session_sweep


async def kept(world: World, *session_ids: str) -> list[str]:
    """Those of the sessions that a sweep leaves."""
    await world.gc(only(sessions=AT_ONCE))
    log = world.services.sessions.log
    return [session_id for session_id in session_ids if await log.find(1, session_id)]


async def test_the_session_of_a_chat_is_kept_while_a_turn_of_it_is_open(world: World) -> None:
    """Also one that has not begun: the agent goes on in the session that it named in an earlier turn."""
    chat = await world.chat("ann")
    (turn,) = await world.work()
    own = turn.run.thread_id
    await world.log(own)
    assert await kept(world, own) == [own]
    named = ExecutionProgress(
        rollout_id=turn.run.run_id, attempt_id=turn.held.attempt_id, session_id="claude-1"
    )
    await world.services.run_queue.write(record_progress, [named])
    await world.finish(turn)
    await world.log("claude-1")
    await world.services.messaging.send(chat, "and now?")
    assert await kept(world, own, "claude-1") == [own, "claude-1"]
    await world.finish_all()
    assert await kept(world, own, "claude-1") == []


async def test_the_sessions_of_a_workflow_run_are_kept_while_it_is_open(world: World) -> None:
    """Also those of phases that have ended: the next ones may go on in them, and people read them."""
    await world.workflow("parent")
    (phase,) = await world.work()
    named = ExecutionProgress(
        rollout_id=phase.run.run_id, attempt_id=phase.held.attempt_id, session_id="claude-2"
    )
    await world.services.run_queue.write(record_progress, [named])
    await world.finish(phase)
    await world.log("claude-2")
    assert await kept(world, "claude-2") == ["claude-2"]
    await world.finish_all()
    assert await kept(world, "claude-2") == []


async def test_what_memory_has_read_of_a_session_is_forgotten_with_it(world: World) -> None:
    services = world.services
    feed = SessionFeed(services.sessions, services.threads, services.memory)
    await world.log("old")
    await world.log("old", sub_agent="subagents/agent-1")
    await feed.catch_up()
    assert await world.rows("memory_feeds") == {"memory_feeds": 2}
    assert await kept(world, "old") == []
    assert await world.rows("memory_feeds") == {}


async def test_content_that_was_just_stored_stays_though_no_line_names_it_yet(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content is stored before its line: a sweep in between must not take it, however short ages are."""
    monkeypatch.setattr(session_sweep, "UNNAMED_SECONDS", 3600.0)
    log = world.services.sessions.log
    await world.log("old", long=True)
    digest = await log.put_blob(1, b"its line is still to come")
    assert await kept(world, "old") == []
    assert await log.get_blob(1, digest) is not None


async def test_content_that_no_line_names_goes_also_where_no_session_is_old(world: World) -> None:
    """A sweep that was cut short deleted the session, and left its content to the next process."""
    log = world.services.sessions.log
    digest = await log.put_blob(1, b"its session is gone")
    assert await kept(world) == []
    assert await log.get_blob(1, digest) is None
