"""The session store of the Claude Agent SDK and the session of the OpenAI Agents SDK, without the SDKs.

`./dev conformance --client agent-sdks` runs the SDKs themselves on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure
from perdure.errors import InvalidInput
from perdure.integrations.claude_agent import PerdureSessionStore
from perdure.integrations.openai_agents import PerdureSession
from perdure.sessions.service import Sessions

KEY = {"project_key": "-srv-shop", "session_id": "s-1"}


@pytest.fixture(params=["sqlite", "postgres"])
async def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sessions]:
    url = f"sqlite:///{tmp_path}/own.db"
    if request.param == "postgres":
        url = str(request.getfixturevalue("database_url"))
    async with Perdure(url) as perdure:
        yield perdure.sessions


def entry(uuid: str | None, **more: Any) -> dict[str, Any]:
    return {"type": "user", **({} if uuid is None else {"uuid": uuid}), **more}


async def test_transcripts_are_sessions(sessions: Sessions) -> None:
    store = PerdureSessionStore(sessions)
    assert await store.load(KEY) is None
    assert await store.list_sessions("-srv-shop") == []
    assert await store.list_subkeys(KEY) == []
    await store.append(KEY, [])
    assert await store.load(KEY) is None
    first, second, untold = entry("u-1", n=[1.5, None]), entry("u-2"), entry(None, mode="x")
    await store.append(KEY, [first, untold])
    await store.append(KEY, [first, second, untold])
    sub = {**KEY, "subpath": "subagents/agent-1"}
    await store.append(sub, [entry("u-1", deep=True)])
    # What has no uuid is kept each time; what has one, once, also if another process sends it again.
    await PerdureSessionStore(sessions).append(KEY, [second])
    assert await PerdureSessionStore(sessions).load(KEY) == [first, untold, second, untold]
    assert await store.load(sub) == [entry("u-1", deep=True)]
    (listed,) = await store.list_sessions("-srv-shop")
    assert listed["session_id"] == "s-1"
    assert listed["mtime"] > 1e12
    assert await store.list_subkeys(KEY) == ["subagents/agent-1"]
    assert not hasattr(store, "delete")


async def test_keys_that_are_no_names_are_kept_apart_or_refused(sessions: Sessions) -> None:
    store = PerdureSessionStore(sessions)
    projects = ["a/b", "a-b", "../up", "x" * 250, "x" * 251]
    for number, project in enumerate(projects):
        await store.append({"project_key": project, "session_id": "s"}, [entry(None, n=number)])
    for number, project in enumerate(projects):
        assert await store.load({"project_key": project, "session_id": "s"}) == [entry(None, n=number)]
        assert len(await store.list_sessions(project)) == 1
    for wrong in ({"session_id": "../s"}, {"subpath": "../../up"}, {"subpath": "/root"}):
        with pytest.raises(InvalidInput):
            await store.append({**KEY, **wrong}, [entry(None)])


async def test_many_and_large_entries_are_split_and_keep_their_order(sessions: Sessions) -> None:
    store = PerdureSessionStore(sessions)
    entries = [entry(f"u-{n}", text="x" * (400_000 if n % 400 == 0 else 10)) for n in range(1700)]
    await store.append(KEY, entries)
    assert await store.load(KEY) == entries


async def test_items_of_a_session_are_added_popped_and_cleared(sessions: Sessions) -> None:
    one, other = PerdureSession("talk", sessions), PerdureSession("talk", sessions)
    assert (await one.get_items(), await one.pop_item()) == ([], None)
    await one.clear_session()
    items = [{"role": "user", "content": str(n)} for n in range(5)]
    await one.add_items(items[:2])
    await asyncio.gather(other.add_items(items[2:3]), other.add_items(items[3:]))
    assert await one.get_items() == items
    assert [await one.get_items(limit) for limit in (2, 0, 9)] == [items[3:], [], items]
    (got, *_) = await one.get_items()
    got["content"] = "changed"
    assert await one.get_items() == items
    assert await other.pop_item() == items[4]
    assert await one.pop_item() == items[3]
    assert await other.get_items() == items[:3]
    await one.clear_session()
    assert await other.get_items() == []
    await other.add_items([items[0]])
    assert await one.get_items() == [items[0]]
    # The log keeps everything.
    assert len((await sessions.lines("talk")).items) == 5 + 2 + 1 + 1
    shown = await sessions.messages("talk")
    assert [each.text for each in shown.items] == ["0", "1", "2", "3", "4", "0"]
    with pytest.raises(InvalidInput):
        await one.add_items([{"type": "perdure.items_cleared"}])


async def test_settings_limit_what_is_read(sessions: Sessions) -> None:
    class Settings:
        limit = 1

    session = PerdureSession("talk", sessions, session_settings=Settings())
    await session.add_items([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    assert await session.get_items() == [{"role": "user", "content": "b"}]
    assert len(await session.get_items(5)) == 2
