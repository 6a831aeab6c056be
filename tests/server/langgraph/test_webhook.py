"""The webhook of a run, which a caller named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk import get_client
from tests.outbox.webhooks.support import receiving
from tests.server.langgraph.project import project
from tests.server.langgraph.run_support import STEPS, Gate, new_thread, serving_on, started
from tests.server.otlp_support import ENGINES

from perdure.testing.serving import ServerProcess


@pytest.fixture(params=ENGINES)
def telling(
    request: pytest.FixtureRequest, tmp_path: Path, shared_postgres_url: str, shared_redis_url: str
) -> Iterator[ServerProcess]:
    """Start a server that may call this machine."""
    folder = project(tmp_path / "project", ("steps", "failing", "slow"))
    private = {"PERDURE_WEBHOOK_ALLOW_PRIVATE": "true"}
    with serving_on(request.param, folder, shared_postgres_url, shared_redis_url, **private) as server:
        yield server


async def test_every_end_is_told_once(telling: ServerProcess, tmp_path: Path) -> None:
    async with receiving() as receiver, get_client(url=telling.url) as client:
        hook = receiver.url + "/hook?a=1"
        thread_id = await new_thread(client)
        good = await client.runs.create(thread_id, "steps", input={"n": 0}, webhook=hook, metadata={"m": 1})
        await receiver.has(1)
        bad = await client.runs.create(None, "failing", input={"n": 0}, webhook=hook)
        await receiver.has(2)
        cancelled = await started(client, thread_id, Gate(tmp_path), webhook=hook)
        await client.runs.cancel(thread_id, cancelled)
        await receiver.has(3)
        told: list[Any] = [json.loads(each.body) for each in receiver.got]
    assert {each.path for each in receiver.got} == {"/hook?a=1"}
    assert [each["run_id"] for each in told] == [good["run_id"], bad["run_id"], cancelled]
    assert [each["status"] for each in told] == ["success", "error", "interrupted"]
    first, second, _ = told
    assert first["values"] == {"n": 3, "log": STEPS}
    assert first["metadata"]["m"] == 1
    assert first["kwargs"]["input"] == {"n": 0}
    assert first["kwargs"]["stream_mode"] == ["values"]
    assert first["kwargs"]["checkpoint_id"] is None
    assert "error" not in first
    assert second["error"] == {"error": "ValueError", "message": "this graph always fails"}
    for each in told:
        assert {"thread_id", "assistant_id", "run_started_at", "run_ended_at", "webhook_sent_at"} <= set(each)


async def test_a_hook_that_nobody_answers_changes_nothing(telling: ServerProcess) -> None:
    async with receiving() as receiver:
        deaf = receiver.url
    async with get_client(url=telling.url) as client:
        values = await client.runs.wait(None, "steps", input={"n": 0}, webhook=deaf)
    assert values == {"n": 3, "log": STEPS}
