"""Runs that are retried, and runs that take too long."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from tests.server.langgraph.project import project
from tests.server.langgraph.run_support import (
    Gate,
    collected,
    data_of,
    events_of,
    new_thread,
    serving_on,
)
from tests.server.otlp_support import ENGINES

from perdure.testing.serving import ServerProcess


def stumbling(folder: Path, failures: int) -> dict[str, Any]:
    return {"trace": str(folder / "trace"), "failures": failures, "n": 0}


async def test_what_may_pass_is_tried_again(client: LangGraphClient, tmp_path: Path) -> None:
    """The next attempt continues after the last finished step, and no caller sees an error."""
    thread_id = await new_thread(client)
    stream = client.runs.stream(
        thread_id, "stumbling", input=stumbling(tmp_path, 2), stream_mode=["updates"], durability="sync"
    )
    parts = await collected(stream)
    assert [data["attempt"] for data in data_of(parts, "metadata")] == [1, 2, 3]
    assert [list(data) for data in data_of(parts, "updates")] == [["before"], ["stumble"]]
    assert "error" not in events_of(parts)
    (run,) = await client.runs.list(thread_id)
    assert run["status"] == "success"
    state = await client.threads.get_state(thread_id)
    assert state["metadata"] is not None
    assert state["metadata"]["run_attempt"] == 3


async def test_what_never_passes_is_given_up(client: LangGraphClient, tmp_path: Path) -> None:
    thread_id = await new_thread(client)
    shown: Any = await client.runs.wait(
        thread_id, "stumbling", input=stumbling(tmp_path, 10), raise_error=False
    )
    assert "exceeded max attempts" in shown["__error__"]["message"]
    (run,) = await client.runs.list(thread_id)
    assert run["status"] == "error"
    assert (tmp_path / "trace").read_text().count("tried") == 3


@pytest.fixture(params=ENGINES)
def impatient(
    request: pytest.FixtureRequest, tmp_path: Path, shared_postgres_url: str, shared_redis_url: str
) -> Iterator[ServerProcess]:
    """Start a server that limits runs to a second."""
    folder = project(tmp_path / "project", ("slow",))
    limit = {"BG_JOB_TIMEOUT_SECS": "1"}
    with serving_on(request.param, folder, shared_postgres_url, shared_redis_url, **limit) as server:
        yield server


async def test_a_run_may_not_take_too_long(impatient: ServerProcess, tmp_path: Path) -> None:
    async with get_client(url=impatient.url) as client:
        thread_id = await new_thread(client)
        parts = await collected(client.runs.stream(thread_id, "slow", input=Gate(tmp_path).input))
        assert events_of(parts)[-1] == "error"
        (run,) = await client.runs.list(thread_id)
        assert run["status"] == "timeout"
        thread: Any = await client.threads.get(thread_id)
        assert thread["status"] == "error"
        assert thread["error"] == parts[-1].data
        joined = await client.runs.join(thread_id, run["run_id"])
        assert joined == {"__error__": parts[-1].data}
