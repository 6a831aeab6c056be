"""The server object: the store in its own process, a client elsewhere."""

from __future__ import annotations

import asyncio
import pickle
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    InMemoryLightningStore,
    LightningStore,
    LightningStoreClient,
    LightningStoreServer,
    LightningStoreThreaded,
    errors,
)
from perdure.rollouts.records import LightningStoreCapabilities
from perdure.testing.contract.support import finish, new_rollout, soon

ROOT = Path(__file__).resolve().parents[2]
KEY = "a-key-of-this-test"


@pytest.fixture
async def store() -> AsyncIterator[LightningStore]:
    async with InMemoryLightningStore() as store:
        yield store


@pytest.fixture
async def server(store: LightningStore) -> AsyncIterator[LightningStoreServer]:
    server = LightningStoreServer(store, port=0)
    await server.start()
    yield server
    await server.stop()


class UnsafeStore(LightningStore):
    """A store that is safe in only one thread."""

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(async_safe=True, thread_safe=False)


@pytest.mark.parametrize("story", ["server", "client", "port"])
def test_other_processes(story: str, tmp_path: Path) -> None:
    # A separate process, because this one has threads that a fork would not have.
    command = [sys.executable, "-m", "tests.client.forking", story, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=ROOT, check=False)
    assert (ended.stdout, ended.returncode) == ("done\n", 0), ended.stderr


async def test_calls_of_the_owner_go_straight_to_the_store(
    store: LightningStore, server: LightningStoreServer
) -> None:
    started = await new_rollout(server)
    assert await store.get_rollout_by_id(started.rollout_id) == started
    assert (await server.statistics())["name"] == "InMemoryLightningStore"
    assert server._client is None


async def test_others_see_what_the_owner_does(server: LightningStoreServer) -> None:
    async with LightningStoreClient(server.endpoint) as client:
        started = await new_rollout(client)
        waiting = asyncio.create_task(client.wait_for_rollouts(rollout_ids=[started.rollout_id]))
        await finish(server, started)
        assert [rollout.status for rollout in await soon(waiting)] == ["succeeded"]


async def test_namespaces(store: LightningStore, server: LightningStoreServer) -> None:
    team = server.in_namespace("team")
    queued = await team.enqueue_rollout("task")
    assert await server.get_rollout_by_id(queued.rollout_id) is None
    assert await store.in_namespace("team").get_rollout_by_id(queued.rollout_id) == queued
    async with pickle.loads(pickle.dumps(team)) as elsewhere:
        assert await elsewhere.get_rollout_by_id(queued.rollout_id) == queued


async def test_pickles_to_its_minimal_fields(store: LightningStore) -> None:
    server = LightningStoreServer(store, port=0, api_key=KEY)
    await server.start()
    queued = await store.enqueue_rollout("task")
    copied: LightningStoreServer = pickle.loads(pickle.dumps(server))
    assert set(server.__getstate__()) == {"_host", "_port", "_token", "_namespace", "_owner_pid"}
    assert (copied.endpoint, copied.store, copied.server_thread) == (server.endpoint, None, None)
    # Even in the owner's process, a copy without a store is a client.
    assert await copied.get_rollout_by_id(queued.rollout_id) == queued
    await copied.close()
    await server.stop()


async def test_what_it_says_of_itself(server: LightningStoreServer) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d+", server.endpoint)
    assert server.otlp_traces_endpoint() == f"{server.endpoint}/v1/traces"
    assert set(server.capabilities.values()) == {True}
    thread = server.server_thread
    assert thread is not None
    assert thread.is_alive()


@pytest.mark.parametrize(
    ("host", "shown"),
    [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("localhost", "localhost")],
)
async def test_the_address_for_clients(store: LightningStore, host: str, shown: str) -> None:
    server = LightningStoreServer(store, host, 4747, insecure_no_auth=True)
    assert server.endpoint == f"http://{shown}:4747"


async def test_default_address(store: LightningStore) -> None:
    assert LightningStoreServer(store).endpoint == "http://127.0.0.1:4747"


async def test_stop_and_start_again(store: LightningStore) -> None:
    server = LightningStoreServer(store, port=0)
    await server.start()
    endpoint = server.endpoint
    async with LightningStoreClient(endpoint, retry_delays=()) as client:
        first = await client.enqueue_rollout("first")
        await server.stop()
        assert server.server_thread is None
        with pytest.raises(errors.Unreachable):
            await client.get_rollout_by_id(first.rollout_id)
        await server.enqueue_rollout("while it is stopped")
        await server.start()
        assert server.endpoint == endpoint
        assert (await client.query_rollouts()).total == 2
        await server.stop()
        await server.stop()


async def test_a_client_waits_for_the_server_to_come_back(store: LightningStore) -> None:
    server = LightningStoreServer(store, port=0)
    await server.start()
    delays: Any = {"retry_delays": (0.05,) * 100, "health_retry_delays": (0.05,)}
    async with LightningStoreClient(server.endpoint, **delays) as client:
        await client.statistics()
        await server.stop()
        calls = [asyncio.create_task(client.enqueue_rollout(i)) for i in range(10)]
        await asyncio.wait(calls, timeout=0.1)
        await server.start()
        await soon(asyncio.gather(*calls))
    assert (await store.query_rollouts()).total == 10
    await server.stop()


async def test_a_port_that_is_taken(store: LightningStore, server: LightningStoreServer) -> None:
    second = LightningStoreServer(store, port=server.port)
    with pytest.raises(RuntimeError, match=rf"{server.port}.*in use"):
        await second.start()
    assert second.server_thread is None
    await server.stop()
    await second.start()
    await second.stop()


async def test_runs_until_it_is_cancelled(store: LightningStore) -> None:
    server = LightningStoreServer(store, port=0)
    running = asyncio.create_task(server.run_forever())
    while server.server_thread is None or not server.port:
        await asyncio.wait([running], timeout=0.01)
    delays: Any = {"retry_delays": (0.01,) * 50}
    async with LightningStoreClient(server.endpoint, **delays) as client:
        await client.enqueue_rollout("task")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(running)
    assert server.server_thread is None


async def test_runs_until_it_is_stopped(store: LightningStore) -> None:
    server = LightningStoreServer(store, port=0)
    running = asyncio.create_task(server.run_forever())
    while server.server_thread is None or not server.port:
        await asyncio.wait([running], timeout=0.01)
    await server.stop()
    await soon(running)


async def test_close_closes_the_store() -> None:
    server = LightningStoreServer(InMemoryLightningStore(), port=0)
    await server.start()
    await server.close()
    with pytest.raises(errors.StorageClosed):
        await server.enqueue_rollout("task")


async def test_beyond_this_machine_it_needs_a_key(store: LightningStore) -> None:
    server = LightningStoreServer(store, "0.0.0.0", 0)
    with pytest.raises(errors.StartRefused, match="insecure_no_auth"):
        await server.start()
    locked = LightningStoreServer(store, "0.0.0.0", 0, api_key=KEY)
    await locked.start()
    async with LightningStoreClient(locked.endpoint) as stranger:
        with pytest.raises(errors.Unauthorized):
            await stranger.statistics()
    await locked.stop()


async def test_cross_origin_pages(store: LightningStore) -> None:
    for origins in ("*", ["https://a.example", " "], ("https://a.example",)):
        server = LightningStoreServer(store, port=0, cors_allow_origins=origins)
        await server.start()
        await server.stop()


@pytest.mark.parametrize(
    "options", [{"launch_mode": "mp"}, {"api_key": "short"}, {"port": 70_000}, {"port": "many"}], ids=str
)
async def test_bad_arguments(store: LightningStore, options: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidInput):
        LightningStoreServer(store, **options)


async def test_a_store_that_is_not_safe_is_wrapped_first() -> None:
    with pytest.raises(errors.InvalidInput, match="LightningStoreThreaded"):
        LightningStoreServer(UnsafeStore())
    wrapped = LightningStoreThreaded(UnsafeStore())
    assert LightningStoreServer(wrapped).store is wrapped
    await wrapped.close()


async def test_a_store_of_another_make_is_served() -> None:
    async with InMemoryLightningStore() as inner:
        wrapped = LightningStoreThreaded(inner)
        server = LightningStoreServer(wrapped, port=0)
        await server.start()
        async with LightningStoreClient(server.endpoint) as client:
            queued = await client.enqueue_rollout("task")
            claimed = await client.dequeue_rollout("w")
            assert claimed is not None
            assert claimed.rollout_id == queued.rollout_id
        await server.close()
