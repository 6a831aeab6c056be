"""`get_client()` without a URL inside a node, and a `RemoteGraph` as a node, if callers need a key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from tests.server.langgraph.conftest import serving
from tests.server.langgraph.project import project

from perdure.testing.serving import ServerProcess

KEY = "only-the-operator-knows"
GRAPHS = ("steps", "asking", "asking_in_a_thread", "remote")
DONE = {"n": 3, "log": ["one", "two", "three"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project(tmp_path_factory.mktemp("calling"), GRAPHS)


@pytest.fixture(scope="module")
def closed(folder: Path) -> Iterator[ServerProcess]:
    with serving(folder, "memory:", PERDURE_API_KEY=KEY, N_JOBS_PER_WORKER="4") as started:
        yield started


@pytest_asyncio.fixture
async def caller(closed: ServerProcess) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=closed.url, api_key=KEY) as opened:
        yield opened


async def test_a_node_talks_to_its_own_server(caller: LangGraphClient) -> None:
    found: Any = await caller.runs.wait(None, "asking", input={})
    seen = found["seen"]
    assert seen["final"] == DONE
    assert seen["events"] == ["metadata", "updates", "updates", "updates"]
    assert seen["kept"] == {"text": "kept"}
    thread = await caller.threads.get(seen["thread"])
    assert (thread["metadata"] or {})["made"] == "by a node"


async def test_a_node_that_is_not_async_does_so_in_a_loop_of_its_own(caller: LangGraphClient) -> None:
    found: Any = await caller.runs.wait(None, "asking_in_a_thread", input={})
    assert found == {"seen": ["steps"]}


async def test_a_remote_graph_is_a_node(caller: LangGraphClient) -> None:
    assert await caller.runs.wait(None, "remote", input={"n": 0}) == DONE
    thread = await caller.threads.create()
    first = await caller.runs.wait(thread["thread_id"], "remote", input={"n": 0})
    again: Any = await caller.runs.wait(thread["thread_id"], "remote", input={"n": 0})
    assert first == DONE
    # The called graph has its own thread, which lasts as long as its caller's: it had 3 entries, got the
    # caller's 3 and added 3, and its caller added them all to its own.
    assert len(again["log"]) == 12
    drawn = await caller.assistants.get_graph("remote")
    assert [node["id"] for node in drawn["nodes"]] == ["__start__", "away", "__end__"]


def test_from_outside_nobody_is_the_loopback(closed: ServerProcess) -> None:
    for headers in ({}, {"perdure.loopback": "true"}, {"Host": "api"}):
        assert httpx.post(f"{closed.url}/threads", json={}, headers=headers).status_code in (401, 403)
    assert httpx.post(f"{closed.url}/noauth/threads", json={}).status_code == 401
