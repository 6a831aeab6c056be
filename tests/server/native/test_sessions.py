"""Sessions over HTTP, with their logs in files and in a table."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.server.native.support import House

from perdure.client.native import PerdureClient
from perdure.errors import Conflict, InvalidInput, NotFound

TRANSCRIPTS = Path(__file__).parents[2] / "sessions" / "transcripts"


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "user", "message": {"role": "user", "content": text}, **more}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    message = {"role": "assistant", "content": content, "model": "m-1", "usage": {"input_tokens": 2}}
    return {"type": "assistant", "message": message, **more}


async def test_a_session_is_appended_listed_shown_and_searched(house: House) -> None:
    sessions = house.client.sessions
    assert list(await sessions.list()) == []
    await sessions.append("s-1", [user("Where is Rome?"), assistant("In Italy.")], cwd="/srv/maps")
    await sessions.append("s-2", [user("Hello"), assistant("Hello, you.")])
    await sessions.append("s-1", [assistant("Also in Georgia.")], project="-srv-maps")
    found = await sessions.list()
    assert {(each.session_id, each.project, each.kind) for each in found} == {
        ("s-1", "-srv-maps", "agent"),
        ("s-2", "-app", "chat"),
    }
    told = {each.session_id: (each.first_message, each.last_message) for each in found}
    assert told["s-1"] == ("Where is Rome?", "Also in Georgia.")
    assert [each.session_id for each in await sessions.list(project="-app")] == ["s-2"]
    shown = await sessions.get("s-1")
    assert (shown.messages, shown.turns, shown.model) == (3, 2, "m-1")
    assert shown.usage is not None
    assert shown.usage.input_tokens == 4
    page = await sessions.messages("s-1", limit=2)
    assert [each.text for each in page.items] == ["Where is Rome?", "In Italy."]
    assert not page.end
    rest = await sessions.messages("s-1", after=page.after)
    assert ([each.text for each in rest.items], rest.end) == (["Also in Georgia."], True)
    lines = await sessions.lines("s-2")
    assert lines.items[0] == '{"type":"user","message":{"role":"user","content":"Hello"}}'
    matches = await sessions.search("ITALY")
    assert [(each.session_id, each.text) for each in matches.items] == [("s-1", "In Italy.")]
    assert matches.complete
    assert (await sessions.search("nothing like it")).items == []
    assert (await sessions.search("Italy", scope="errors")).items == []


async def test_lines_of_a_writer_that_are_sent_twice_are_written_once(house: House) -> None:
    sessions = house.client.sessions
    lines = [user("one"), user("two")]
    await sessions.append("s", lines, writer="w")
    await sessions.append("s", lines, writer="w")
    await sessions.append("s", [user("two"), user("three")], writer="w", first=2)
    page = await sessions.messages("s")
    assert [each.text for each in page.items] == ["one", "two", "three"]


async def test_a_reader_waits_for_what_comes_next(house: House) -> None:
    sessions = house.client.sessions
    await sessions.append("s", [user("one")])
    page = await sessions.messages("s", wait=10)
    waiting = asyncio.ensure_future(sessions.messages("s", after=page.after, wait=10))
    await sessions.append("s", [user("two")])
    assert [each.text for each in (await waiting).items] == ["two"]
    nothing = await sessions.messages("s", after=page.after + 10**6, wait=0)
    assert nothing.items != [] or nothing.end


async def test_a_sub_agent_has_a_log_of_its_own(house: House) -> None:
    sessions = house.client.sessions
    await sessions.append("s", [user("main")])
    await sessions.append("s", [user("sub")], sub_agent="subagents/agent-1")
    assert [each.name for each in (await sessions.get("s")).sub_agents] == ["subagents/agent-1"]
    page = await sessions.messages("s", sub_agent="subagents/agent-1")
    assert [each.text for each in page.items] == ["sub"]
    assert (await sessions.list()).total == 1


async def test_what_does_not_exist_and_what_is_wrong(house: House) -> None:
    sessions = house.client.sessions
    for call in (sessions.get("none"), sessions.messages("none"), sessions.lines("none")):
        with pytest.raises(NotFound):
            await call
    for wrong in ("a/b", "..", "a.b", "a b"):
        with pytest.raises(InvalidInput):
            await sessions.append(wrong, [user("x")])
    for bad in (
        sessions.append("s", [{}]),
        sessions.append("s", [user("x")] * 1001),
        sessions.append("s", [user("x")], cwd="/a", project="-a"),
        sessions.append("s", [user("x")], sub_agent="../x"),
        sessions.append("s", [user("x")], writer='"'),
        sessions.messages("s", limit=0, project="-app"),
        sessions.search(""),
    ):
        with pytest.raises(InvalidInput):
            await bad
    await sessions.append("s", [user("x")], project="-a")
    await sessions.append("s", [user("x")], project="-b")
    with pytest.raises(Conflict, match="-a, -b"):
        await sessions.get("s")
    assert (await sessions.get("s", project="-b")).project == "-b"
    assert (await sessions.list()).total == 2


async def test_the_first_line_of_a_namespace_creates_it(house: House) -> None:
    async with PerdureClient(house.client.url, namespace="fresh") as client:
        assert list(await client.sessions.list()) == []
        await client.sessions.append("s", [user("one")])
        assert [each.session_id for each in await client.sessions.list()] == ["s"]
    assert list(await house.client.sessions.list()) == []
