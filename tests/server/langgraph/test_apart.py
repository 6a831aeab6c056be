"""A server without graphs, and separate workers that have them, through the real `langgraph_sdk`."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import (
    APIStatusError,
    BadRequestError,
    ConflictError,
    NotFoundError,
)
from tests.kernel.support import until, until_true
from tests.server.langgraph.conftest import SOURCE, serving
from tests.server.langgraph.project import GRAPHS, project
from tests.server.otlp_support import ENGINES
from tests.support.python_process import PythonProcess

from perdure.testing import servers
from perdure.testing.serving import ServerProcess

STARTED = b"started"


class Worker:
    """A started `perdure worker` process."""

    def __init__(self, folder: Path, *options: str, **environment: str) -> None:
        command = [sys.executable, "-m", "perdure.cli", "worker", *options]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        self._process = PythonProcess(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(SOURCE), **environment},
            stdout=self._log,
            stderr=self._log,
        )
        deadline = time.monotonic() + 60
        while STARTED not in self.log():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(self.log().decode())
            time.sleep(0.01)

    def log(self) -> bytes:
        return os.pread(self._log.fileno(), 1 << 20, 0)

    def kill(self) -> None:
        """SIGKILL the worker, and wait until it is gone."""
        self._process.kill()
        self._process.wait(30)
        self._log.close()

    def close(self) -> None:
        """Let the worker end by itself."""
        self._process.terminate()
        assert self._process.wait(30) == 0
        self._log.close()


class Apart:
    """A server without graphs, and a separate worker that has them."""

    def __init__(self, server: ServerProcess, graphs: Path, *options: str, **environment: str) -> None:
        self.url = server.url
        self._graphs, self._options, self._environment = graphs, options, environment
        self.worker: Worker

    def start_worker(self) -> None:
        self.worker = Worker(self._graphs, *self._options, **self._environment)


@pytest.fixture(scope="module", params=ENGINES)
def apart(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    shared_postgres_url: str,
    shared_redis_url: str,
) -> Iterator[Apart]:
    """On SQLite the worker uses the server's API, on PostgreSQL with Redis its database."""
    bare = tmp_path_factory.mktemp(f"bare-{request.param}")
    graphs = project(tmp_path_factory.mktemp(f"graphs-{request.param}"), (*GRAPHS, "asking"))
    if request.param == "sqlite":
        with serving(bare, f"sqlite:///{bare / 'perdure.db'}") as server:
            yield from _with_worker(Apart(server, graphs, "--url", server.url))
        return
    name = f"test_{uuid.uuid4().hex}"
    servers.create_database(shared_postgres_url, name)
    database = servers.with_database(shared_postgres_url, name)
    redis = {"PERDURE_REDIS_URL": shared_redis_url, "PERDURE_REDIS_KEY_PREFIX": f"test:{name}:"}
    try:
        with serving(bare, database, **redis) as server:
            yield from _with_worker(Apart(server, graphs, "--database", database, **redis))
    finally:
        servers.drop_database(shared_postgres_url, name)


def _with_worker(apart: Apart) -> Iterator[Apart]:
    apart.start_worker()
    yield apart
    apart.worker.close()


@pytest_asyncio.fixture
async def client(apart: Apart) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=apart.url) as opened:
        yield opened


async def assistant_of(client: LangGraphClient, graph: str) -> str:
    (found,) = await client.assistants.search(graph_id=graph)
    return found["assistant_id"]


async def described(client: LangGraphClient, graph: str) -> str:
    """Return the assistant of a graph, after a worker has registered its schemas and drawings."""
    assistant = await assistant_of(client, graph)

    async def is_described() -> bool:
        try:
            await client.assistants.get_schemas(assistant)
        except APIStatusError as error:
            if error.status_code != 503 or "registered the schemas" not in str(error):
                raise
            return False
        return True

    await until_true(is_described)
    return assistant


async def test_schemas_drawings_and_subgraphs(client: LangGraphClient) -> None:
    steps = await described(client, "steps")
    schemas: Any = await client.assistants.get_schemas(steps)
    assert schemas["graph_id"] == "steps"
    assert set(schemas["state_schema"]["properties"]) == {"n", "log"}
    assert set(schemas["context_schema"]["properties"]) == {"name"}
    drawn: Any = await client.assistants.get_graph(steps)
    assert [node["id"] for node in drawn["nodes"]] == ["__start__", "one", "two", "three", "__end__"]
    nested = await assistant_of(client, "nested")
    names = [
        {node["id"] for node in (await client.assistants.get_graph(nested, xray=xray))["nodes"]}
        for xray in (False, 1, True, 7)
    ]
    assert "sub" in names[0]
    assert {"sub:inner_one", "sub:inner_two"} < names[1]
    assert names[1] == names[2] == names[3]
    for options in ({}, {"recurse": True}, {"namespace": "sub"}):
        found = await client.assistants.get_subgraphs(nested, **options)
        assert set(found) == {"sub"}, options
    assert await client.assistants.get_subgraphs(nested, namespace="none") == {}
    plain = await assistant_of(client, "plain")
    drawn = await client.assistants.get_graph(plain)
    assert [node["id"] for node in drawn["nodes"]] == ["__start__", "plain", "__end__"]
    with pytest.raises(NotFoundError):
        await client.assistants.get_schemas(str(uuid.uuid4()))


async def test_a_node_talks_to_the_server_of_its_worker(client: LangGraphClient) -> None:
    """Call `get_client()` without a URL: over HTTP, or inside the worker's process."""
    found: Any = await client.runs.wait(None, "asking", input={})
    assert found["seen"]["final"] == {"n": 3, "log": ["one", "two", "three"]}
    assert found["seen"]["events"] == ["metadata", "updates", "updates", "updates"]
    assert (await client.threads.get(found["seen"]["thread"]))["status"] == "idle"


async def test_a_state_is_updated_by_the_graph_of_a_worker(client: LangGraphClient) -> None:
    thread_id = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread_id, "steps", input={"n": 1})
    changed = await client.threads.update_state(thread_id, {"log": ["mine"]}, as_node="one")
    state: Any = await client.threads.get_state(thread_id)
    # The reducer of the graph has extended the list, and its edges select the next node.
    assert state["values"]["log"] == ["one", "two", "three", "mine"]
    assert state["next"] == ["two"]
    assert state["checkpoint_id"] == changed["checkpoint_id"]  # type: ignore[typeddict-item]
    await client.runs.wait(thread_id, "steps", input=None)
    after: Any = await client.threads.get_state(thread_id)
    assert after["values"]["log"] == ["one", "two", "three", "mine", "two", "three"]
    history = await client.threads.get_history(thread_id, limit=20)
    first = [each for each in history if each["next"] == ["two"]][-1]
    await client.threads.update_state(thread_id, {"log": ["fork"]}, checkpoint=first["checkpoint"])
    forked: Any = await client.threads.get_state(thread_id)
    assert forked["values"]["log"] == ["one", "fork"]


async def test_a_state_of_a_subgraph(client: LangGraphClient) -> None:
    thread_id = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread_id, "nested_approval", input={"n": 0})
    state: Any = await client.threads.get_state(thread_id, subgraphs=True)
    (task,) = state["tasks"]
    inner = task["state"]
    assert (task["name"], inner["next"]) == ("sub", ["ask"])
    assert inner["checkpoint"]["checkpoint_ns"] == f"sub:{task['id']}"
    alone: Any = await client.threads.get_state(thread_id, checkpoint=inner["checkpoint"])
    assert alone["values"] == inner["values"]
    place: Any = {"thread_id": thread_id, "checkpoint_ns": inner["checkpoint"]["checkpoint_ns"]}
    history = await client.threads.get_history(thread_id, checkpoint=place)
    assert [each["next"] for each in history] == [["ask"], ["inner_before"], ["__start__"]]
    await client.threads.update_state(thread_id, {"log": ["inside"]}, checkpoint=place)
    changed: Any = await client.threads.get_state(thread_id, subgraphs=True)
    assert "inside" in changed["tasks"][0]["state"]["values"]["log"]


async def test_supersteps_create_a_thread(client: LangGraphClient) -> None:
    thread: Any = await client.threads.create(
        graph_id="steps",
        supersteps=[
            {"updates": [{"values": {"n": 1, "log": ["in"]}, "as_node": "__input__"}]},
            {"updates": [{"values": {"n": 1, "log": ["in"]}, "as_node": "__start__"}]},
            {"updates": [{"values": {"n": 2, "log": ["a"]}, "as_node": "one"}]},
        ],
    )
    assert thread["values"] == {"n": 2, "log": ["in", "a"]}
    state = await client.threads.get_state(thread["thread_id"])
    assert state["next"] == ["two"]


async def test_what_is_refused(client: LangGraphClient, apart: Apart) -> None:
    thread_id = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread_id, "steps", input={"n": 1})
    with pytest.raises(BadRequestError, match="nowhere"):
        await client.threads.update_state(thread_id, {"n": 1}, as_node="nowhere")
    with pytest.raises(NotFoundError, match="Agent nobody not found"):
        await client.threads.create(graph_id="nobody", supersteps=[{"updates": []}])
    assert not await client.threads.search(metadata={"graph_id": "nobody"})
    run = await client.runs.create(thread_id, "slow", input={"until": "/nonexistent"})
    with pytest.raises(ConflictError, match="busy"):
        await client.threads.update_state(thread_id, {"n": 1}, as_node="one")
    await client.runs.cancel(thread_id, run["run_id"], wait=True)
    async with httpx.AsyncClient(base_url=apart.url) as session:
        # None of these requests is a run.
        assert [each["run_id"] for each in (await session.get(f"/threads/{thread_id}/runs")).json()] != []
        rollouts = (await session.get("/api/v1/rollouts")).json()
    assert rollouts["items"] == []


async def test_a_worker_dies_while_it_updates_a_state(
    client: LangGraphClient, apart: Apart, tmp_path: Path
) -> None:
    """Another worker continues after the end of the lease, and the update is applied once."""
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    thread_id = (await client.threads.create(graph_id="gated"))["thread_id"]
    values = {"log": ["mine"], "gate": [str(begun), str(gate)]}
    updating = asyncio.ensure_future(client.threads.update_state(thread_id, values, as_node="one"))
    await until(begun.exists)
    apart.worker.kill()
    gate.touch()
    apart.start_worker()
    await updating
    state: Any = await client.threads.get_state(thread_id)
    assert state["values"]["log"] == ["mine"]
    assert len(await client.threads.get_history(thread_id)) == 1
