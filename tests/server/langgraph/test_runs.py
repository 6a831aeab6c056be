"""Runs on a thread: created, awaited, read, listed and deleted, with the real client."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk.client import LangGraphClient, SyncLangGraphClient
from langgraph_sdk.errors import ConflictError, NotFoundError
from tests.server.langgraph.run_support import (
    STEPS,
    Gate,
    asked,
    ids_of,
    new_id,
    new_thread,
    started,
    until_status,
    until_thread,
)

from perdure.assistants.model import system_id
from perdure.testing.serving import ServerProcess

FIELDS = {
    "run_id",
    "thread_id",
    "assistant_id",
    "status",
    "metadata",
    "kwargs",
    "multitask_strategy",
    "created_at",
    "updated_at",
}


async def test_a_run_is_made(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    made: list[Any] = []
    run: Any = await client.runs.create(
        thread_id, "steps", input={"n": 1}, metadata={"who": "me"}, on_run_created=made.append
    )
    assert set(run) >= FIELDS
    assert run["status"] == "pending"
    assert run["thread_id"] == thread_id
    assert run["assistant_id"] == system_id("steps")
    assert run["multitask_strategy"] == "enqueue"
    assert run["metadata"]["who"] == "me"
    assert run["kwargs"]["input"] == {"n": 1}
    assert datetime.fromisoformat(str(run["created_at"])).tzinfo is not None
    assert made == [{"run_id": run["run_id"], "thread_id": thread_id}]
    assert await client.runs.join(thread_id, run["run_id"]) == {"n": 4, "log": STEPS}
    assert (await client.runs.get(thread_id, run["run_id"]))["status"] == "success"


async def test_an_assistant_is_named_by_its_graph_or_its_id(client: LangGraphClient) -> None:
    made = await client.assistants.create("given", context={"name": "kim"})
    for assistant_id in ("given", system_id("given")):
        values = await client.runs.wait(None, assistant_id, input={})
        assert values == {"log": ["name=None"]}
    assert await client.runs.wait(None, made["assistant_id"], input={}) == {"log": ["name=kim"]}


async def test_values_are_awaited(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    made: list[Any] = []
    values = await client.runs.wait(thread_id, "steps", input={"n": 1}, on_run_created=made.append)
    assert values == {"n": 4, "log": STEPS}
    assert made[0]["thread_id"] == thread_id
    again = await client.runs.wait(thread_id, "steps", input={"n": 1})
    assert again == {"n": 4, "log": [*STEPS, *STEPS]}


async def test_a_failure_is_awaited(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    with pytest.raises(Exception, match="ValueError: this graph always fails"):
        await client.runs.wait(thread_id, "failing", input={"n": 1})
    shown = await client.runs.wait(thread_id, "failing", input={"n": 1}, raise_error=False)
    error = {"error": "ValueError", "message": "this graph always fails"}
    assert shown == {"__error__": error}
    runs = await client.runs.list(thread_id)
    assert [run["status"] for run in runs] == ["error", "error"]
    assert await client.runs.join(thread_id, runs[0]["run_id"]) == {"__error__": error}
    assert (await client.threads.get(thread_id))["status"] == "error"
    await client.runs.wait(thread_id, "noop", input={"n": 1})
    assert (await client.threads.get(thread_id))["status"] == "idle"


async def test_a_question_is_awaited_and_answered(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    values: Any = await client.runs.wait(thread_id, "approval", input={"n": 0})
    (asking,) = values["__interrupt__"]
    assert asking["value"] == {"question": "go on?"}
    assert asking["id"]
    assert values["log"] == ["before"]
    (run,) = await client.runs.list(thread_id)
    assert run["status"] == "success"
    assert (await client.threads.get(thread_id))["status"] == "interrupted"
    answered: Any = await client.runs.wait(thread_id, "approval", command={"resume": "yes"})
    assert answered == {"n": 2, "log": ["before", "approved: yes", "after"]}
    assert (await client.threads.get(thread_id))["status"] == "idle"


async def test_a_command_updates_and_goes_elsewhere(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    await client.runs.wait(thread_id, "steps", input={"n": 0})
    values: Any = await client.runs.wait(
        thread_id, "steps", command={"update": {"log": ["told"]}, "goto": "three"}
    )
    assert values["log"][:4] == [*STEPS, "told"]
    assert values["log"][-1] == "three"


@pytest.mark.parametrize("where", [{"interrupt_before": ["two"]}, {"interrupt_after": ["one"]}])
async def test_a_graph_stops_where_it_is_told(client: LangGraphClient, where: dict[str, Any]) -> None:
    thread_id = await new_thread(client)
    values: Any = await client.runs.wait(thread_id, "steps", input={"n": 0}, **where)
    assert values["log"] == ["one"]
    assert (await client.threads.get(thread_id))["status"] == "interrupted"
    rest: Any = await client.runs.wait(thread_id, "steps", input=None)
    assert rest["log"] == STEPS


async def test_every_node_can_be_stopped_at(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    seen = []
    for number in range(4):
        values: Any = await client.runs.wait(
            thread_id, "steps", input={"n": 0} if not number else None, interrupt_before="*"
        )
        seen.append(len(values.get("log", ())))
    assert seen == [0, 1, 2, 3]


async def test_a_run_goes_on_from_an_earlier_checkpoint(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    await client.runs.wait(thread_id, "steps", input={"n": 0})
    history = await client.threads.get_history(thread_id)
    earlier = next(state for state in history if state["next"] == ["three"])
    checkpoint = earlier["checkpoint"]
    for place in (
        {"checkpoint": checkpoint},
        {"checkpoint_id": checkpoint["checkpoint_id"]},
    ):
        values: Any = await client.runs.wait(thread_id, "steps", input=None, **place)
        assert values == {"n": 3, "log": STEPS}


async def test_recursion_is_limited(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    shown: Any = await client.runs.wait(
        thread_id, "steps", input={"n": 0}, config={"recursion_limit": 2}, raise_error=False
    )
    assert shown["__error__"]["error"] == "GraphRecursionError"


async def test_context_and_configurable_reach_the_graph(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    values: Any = await client.runs.wait(thread_id, "given", input={}, context={"name": "ada"})
    assert values == {"log": ["name=ada"]}
    values = await client.runs.wait(
        thread_id, "given", input={}, config={"configurable": {"name": "bea", "thread_id": "of another"}}
    )
    assert values["log"][-1] == "name=bea"


async def test_metadata_of_config_and_request_are_the_runs(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    config: Any = {"metadata": {"a": 1, "b": 1}, "tags": ["t"]}
    run: Any = await client.runs.create(thread_id, "noop", metadata={"b": 2}, config=config)
    assert (run["metadata"]["a"], run["metadata"]["b"]) == (1, 2)
    assert run["kwargs"]["config"]["tags"] == ["t"]


async def test_metadata_is_on_top_of_the_assistants_and_the_threads(
    client: LangGraphClient, mark: dict[str, str]
) -> None:
    assistant = await client.assistants.create("noop", metadata={"a": "assistant", "b": "assistant"})
    thread_id = await new_thread(client, metadata={"b": "thread", "c": "thread", **mark})
    run: Any = await client.runs.create(thread_id, assistant["assistant_id"], metadata={"c": "run"})
    marks = {"graph_id": "noop", "assistant_id": assistant["assistant_id"]}
    wanted = {"a": "assistant", "b": "thread", "c": "run", **mark, **marks}
    assert {key: run["metadata"].get(key) for key in wanted} == wanted
    # A search finds threads by the assistants of their runs.
    (found,) = await client.threads.search(metadata={**mark, **marks})
    assert found["thread_id"] == thread_id
    assert found["metadata"] == {"b": "thread", "c": "thread", **mark, **marks}


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_every_durability_ends_alike(client: LangGraphClient, durability: Any) -> None:
    thread_id = await new_thread(client)
    values = await client.runs.wait(thread_id, "steps", input={"n": 1}, durability=durability)
    assert values == {"n": 4, "log": STEPS}
    history = await client.threads.get_history(thread_id, limit=100)
    assert len(history) == (1 if durability == "exit" else 5)


async def test_what_is_ignored_is_ignored(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    parts = [
        part
        async for part in client.runs.stream(
            thread_id,
            "noop",
            input={"n": 1},
            feedback_keys=["liked"],
            langsmith_tracing={"project_name": "p"},
            strict_resume=True,
        )
    ]
    assert [part.event for part in parts][:2] == ["metadata", "values"]


async def test_a_thread_is_made_where_there_is_none(client: LangGraphClient) -> None:
    thread_id = new_id()
    with pytest.raises(NotFoundError):
        await client.runs.create(thread_id, "noop", input={"n": 1})
    values = await client.runs.wait(thread_id, "noop", input={"n": 1}, if_not_exists="create")
    assert values == {"n": 1, "log": []}
    assert (await client.threads.get(thread_id))["thread_id"] == thread_id


# --- reading ----------------------------------------------------------------------------------------------


async def test_runs_are_listed_newest_first(client: LangGraphClient, tmp_path: Path) -> None:
    thread_id, gate = await new_thread(client), Gate(tmp_path)
    first = await started(client, thread_id, gate)
    rest = [(await client.runs.create(thread_id, "noop", input={}))["run_id"] for _ in range(3)]
    newest_first = [*reversed(rest), first]
    assert ids_of(await client.runs.list(thread_id)) == newest_first
    assert ids_of(await client.runs.list(thread_id, limit=2, offset=1)) == newest_first[1:3]
    assert ids_of(await client.runs.list(thread_id, status="running")) == [first]
    assert ids_of(await client.runs.list(thread_id, status="pending")) == newest_first[:3]
    chosen: Any = await client.runs.list(thread_id, select=["run_id", "status"], limit=1)
    assert chosen == [{"run_id": rest[-1], "status": "pending"}]
    gate.open()
    await client.runs.join(thread_id, rest[-1])
    assert ids_of(await client.runs.list(thread_id, status="success")) == newest_first


async def test_a_run_is_found_in_its_own_thread_alone(client: LangGraphClient) -> None:
    thread_id, other = await new_thread(client), await new_thread(client)
    run = await client.runs.create(thread_id, "noop", input={})
    await client.runs.join(thread_id, run["run_id"])
    for call in (client.runs.get, client.runs.delete, client.runs.cancel):
        with pytest.raises(NotFoundError):
            await call(other, run["run_id"])


async def test_join_gives_the_threads_values(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    first = await client.runs.create(thread_id, "steps", input={"n": 0})
    second = await client.runs.create(thread_id, "steps", input={"n": 10})
    last = await client.runs.join(thread_id, second["run_id"])
    assert await client.runs.join(thread_id, first["run_id"]) == last
    assert last["n"] == 13


# --- delays -----------------------------------------------------------------------------------------------


async def test_a_delayed_run_waits_and_is_overtaken(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    delayed = await client.runs.create(thread_id, "noop", input={}, after_seconds=3600)
    assert (await client.threads.get(thread_id))["status"] == "busy"
    with pytest.raises(ConflictError):
        await client.runs.create(thread_id, "noop", input={}, multitask_strategy="reject")
    values = await client.runs.wait(thread_id, "steps", input={"n": 0})
    assert values == {"n": 3, "log": STEPS}
    assert (await client.runs.get(thread_id, delayed["run_id"]))["status"] == "pending"
    assert ids_of(await client.runs.list(thread_id))[0] == delayed["run_id"]
    created = datetime.fromisoformat(str(delayed["created_at"]))
    assert (created - datetime.fromisoformat(str(delayed["updated_at"]))).total_seconds() > 3000
    await client.runs.cancel(thread_id, delayed["run_id"])
    await until_thread(client, thread_id, "idle")


# --- removing ---------------------------------------------------------------------------------------------


async def test_a_run_is_removed_with_its_states(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    await client.runs.wait(thread_id, "steps", input={"n": 0})
    before = await client.threads.get_state(thread_id)
    run = await client.runs.create(thread_id, "steps", input={"n": 10})
    await client.runs.join(thread_id, run["run_id"])
    await client.runs.delete(thread_id, run["run_id"])
    with pytest.raises(NotFoundError):
        await client.runs.get(thread_id, run["run_id"])
    assert run["run_id"] not in ids_of(await client.runs.list(thread_id))
    after = await client.threads.get_state(thread_id)
    assert after["values"] == before["values"]
    assert after["checkpoint"] == before["checkpoint"]


async def test_a_pending_run_is_removed_and_its_thread_rests(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    run = await client.runs.create(thread_id, "noop", input={}, after_seconds=3600)
    assert (await client.threads.get(thread_id))["status"] == "busy"
    await client.runs.delete(thread_id, run["run_id"])
    assert (await client.threads.get(thread_id))["status"] == "idle"
    with pytest.raises(NotFoundError):
        await client.runs.delete(thread_id, run["run_id"])


# --- headers, and the synchronous client ------------------------------------------------------------------


async def test_headers_say_where_a_run_is(server: ServerProcess, client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    path, body = f"/threads/{thread_id}/runs", {"assistant_id": "noop", "input": {}}
    for rest, lasting in (("", None), ("/wait", "/join"), ("/stream", "/stream")):
        response = await asked(server.url, path + rest, "POST", body)
        assert response.status_code == 200
        place = response.headers["content-location"]
        assert place.startswith(path + "/")
        assert response.headers.get("location") == (place + lasting if lasting else None)
        assert response.headers["cache-control"] == "no-store"
        if lasting:
            assert response.headers["x-accel-buffering"] == "no"
        await client.runs.join(thread_id, place.rpartition("/")[2])


async def test_a_repeated_key_makes_one_run(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    key = {"Idempotency-Key": new_id()}
    first = await client.runs.create(thread_id, "noop", input={}, headers=key)
    second = await client.runs.create(thread_id, "noop", input={}, headers=key)
    assert first["run_id"] == second["run_id"]
    await until_status(client, thread_id, first["run_id"], "success")


def test_the_synchronous_client_does_the_same(sync_client: SyncLangGraphClient) -> None:
    client = sync_client
    thread_id = client.threads.create()["thread_id"]
    run = client.runs.create(thread_id, "steps", input={"n": 1})
    assert client.runs.join(thread_id, run["run_id"]) == {"n": 4, "log": STEPS}
    assert client.runs.get(thread_id, run["run_id"])["status"] == "success"
    assert client.runs.wait(thread_id, "noop", input={"n": 7}) == {"n": 7, "log": STEPS}
    assert len(client.runs.list(thread_id)) == 2
    parts = list(client.runs.stream(thread_id, "steps", input={"n": 0}, stream_mode="updates"))
    assert [part.event for part in parts] == ["metadata", "updates", "updates", "updates"]
    client.runs.delete(thread_id, run["run_id"])
    with pytest.raises(NotFoundError):
        client.runs.get(thread_id, run["run_id"])
    assert client.runs.wait(None, "noop", input={"n": 7}) == {"n": 7, "log": []}
    payload: Any = {"assistant_id": "noop", "input": {"n": 1}}
    assert len(client.runs.create_batch([payload])) == 1
