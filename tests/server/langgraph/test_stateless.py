"""Runs on temporary threads, which end with them."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import BadRequestError, NotFoundError, UnprocessableEntityError
from tests.kernel.support import until_true
from tests.server.langgraph.run_support import STEPS, collected, events_of

from perdure import PerdureClient
from perdure.testing.serving import ServerProcess


async def until_gone(client: LangGraphClient, thread_id: str) -> None:
    async def is_gone() -> bool:
        try:
            await client.threads.get(thread_id)
        except NotFoundError:
            return True
        return False

    await until_true(is_gone)


async def test_values_come_without_a_thread(client: LangGraphClient) -> None:
    made: list[Any] = []
    values = await client.runs.wait(None, "steps", input={"n": 0}, on_run_created=made.append)
    assert values == {"n": 3, "log": STEPS}
    await until_gone(client, made[0]["thread_id"])
    with pytest.raises(NotFoundError):
        await client.runs.get(made[0]["thread_id"], made[0]["run_id"])


async def test_events_come_without_a_thread(client: LangGraphClient) -> None:
    parts = await collected(client.runs.stream(None, "steps", input={"n": 0}, stream_mode="updates"))
    assert events_of(parts) == ["metadata", "updates", "updates", "updates"]


async def test_a_run_without_a_thread_is_made_and_joined(client: LangGraphClient) -> None:
    run = await client.runs.create(None, "steps", input={"n": 0})
    values = await client.runs.join(run["thread_id"], run["run_id"])
    assert values == {"n": 3, "log": STEPS}
    # A late caller still gets the result for a while.
    assert await client.runs.join(run["thread_id"], run["run_id"]) == values


async def test_the_thread_is_kept_if_that_is_wished(client: LangGraphClient) -> None:
    made: list[Any] = []
    await client.runs.wait(None, "steps", input={"n": 0}, on_completion="keep", on_run_created=made.append)
    thread = await client.threads.get(made[0]["thread_id"])
    assert thread["status"] == "idle"
    assert thread["values"] == {"n": 3, "log": STEPS}


async def test_a_failure_ends_the_thread_and_native_routes_find_the_run(
    client: LangGraphClient, server: ServerProcess
) -> None:
    made: list[Any] = []
    shown: Any = await client.runs.wait(
        None, "failing", input={"n": 0}, on_run_created=made.append, raise_error=False
    )
    assert shown["__error__"]["error"] == "ValueError"
    thread_id, run_id = made[0]["thread_id"], made[0]["run_id"]
    await until_gone(client, thread_id)
    with pytest.raises(NotFoundError):
        await client.runs.get(thread_id, run_id)
    with pytest.raises(NotFoundError):
        await client.runs.list(thread_id)
    with pytest.raises(NotFoundError):
        await client.runs.create(thread_id, "failing", input={"n": 0})
    async with PerdureClient(server.url) as native:
        found = await native.get_run(run_id)
        assert (found.status, found.thread_id) == ("error", thread_id)
        listed = await native.list_runs(status="error", limit=1000)
        assert run_id in {run.run_id for run in listed.items}


async def test_threads_that_end_are_not_found_by_a_search(client: LangGraphClient) -> None:
    run = await client.runs.create(None, "noop", input={}, after_seconds=3600)
    found = await client.threads.search(ids=[run["thread_id"]])
    assert found == []
    await client.runs.cancel(run["thread_id"], run["run_id"])


async def test_a_batch_makes_runs_with_threads_of_their_own(client: LangGraphClient) -> None:
    payloads: list[Any] = [{"assistant_id": "steps", "input": {"n": n}} for n in range(5)]
    runs = await client.runs.create_batch(payloads)
    assert len({run["thread_id"] for run in runs}) == 5
    found = [await client.runs.join(run["thread_id"], run["run_id"]) for run in runs]
    assert [each["n"] for each in found] == [3, 4, 5, 6, 7]


async def test_a_batch_is_made_whole_or_not_at_all(client: LangGraphClient) -> None:
    payloads: list[Any] = [{"assistant_id": "noop"}, {"assistant_id": "nobody"}]
    with pytest.raises(UnprocessableEntityError):
        await client.runs.create_batch(payloads)
    with pytest.raises(UnprocessableEntityError):
        await client.runs.create_batch([])


async def test_an_answer_needs_a_thread(client: LangGraphClient) -> None:
    with pytest.raises(BadRequestError):
        await client.runs.create(None, "approval", command={"resume": 1})


async def test_a_question_without_a_thread_is_told(client: LangGraphClient, server: ServerProcess) -> None:
    values: Any = await client.runs.wait(None, "approval", input={"n": 0})
    assert values["__interrupt__"][0]["value"] == {"question": "go on?"}
