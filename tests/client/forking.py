"""Processes that serve a store and create others: `python -m tests.client.forking STORY FOLDER`."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.reliability.forking import exit_code, fork

from perdure import LightningStore, LightningStoreClient, LightningStoreServer, SqliteLightningStore, errors

SECONDS = 30


async def _work(store: LightningStore, name: str) -> None:
    """Use the store, as any process may do."""
    queued = await store.enqueue_rollout(name)
    assert (await store.get_rollout_by_id(queued.rollout_id)) == queued
    assert (await store.in_namespace("other").query_rollouts()).total == 0
    await store.close()


def _child(store: LightningStore, name: str) -> None:
    asyncio.run(asyncio.wait_for(_work(store, name), SECONDS))


def _fork(child: Callable[[], None]) -> int:
    """Run `child` in a fork, and return its exit code."""
    return exit_code(fork(child))


def _spawn(store: LightningStore, name: str) -> int | None:
    process = multiprocessing.get_context("spawn").Process(target=_child, args=(store, name))
    process.start()
    process.join(SECONDS)
    return process.exitcode


async def server_in_other_processes(folder: Path) -> None:
    """A forked and a spawned process use the server object; the owner's own calls make no request."""
    async with SqliteLightningStore(folder / "db") as store:
        server = LightningStoreServer(store, port=0, api_key="a-key-of-this-test")
        await server.start()
        await server.enqueue_rollout("owner")
        assert server._client is None
        assert await asyncio.to_thread(_fork, lambda: _child(server, "fork")) == 0
        assert await asyncio.to_thread(_spawn, server, "spawn") == 0
        assert await asyncio.to_thread(_fork, lambda: _cannot_stop(server)) == 0
        inputs = [rollout.input for rollout in await store.query_rollouts()]
        assert inputs == ["owner", "fork", "spawn"], inputs
        await server.stop()


def _cannot_stop(server: LightningStoreServer) -> None:
    for action in (server.start, server.stop):
        with pytest.raises(errors.StartRefused, match=str(os.getppid())):
            asyncio.run(action())


async def client_in_other_processes(folder: Path) -> None:
    """A client continues in a fork, in a spawned process, and in the parent afterwards."""
    async with SqliteLightningStore(folder / "db") as store:
        server = LightningStoreServer(store, port=0)
        await server.start()
        async with LightningStoreClient(server.endpoint) as client:
            await client.enqueue_rollout("before")
            assert await asyncio.to_thread(_fork, lambda: _child(client, "fork")) == 0
            assert await asyncio.to_thread(_spawn, client, "spawn") == 0
            await client.enqueue_rollout("after")
        inputs = [rollout.input for rollout in await store.query_rollouts()]
        assert inputs == ["before", "fork", "spawn", "after"], inputs
        await server.stop()


async def port_is_free_again(folder: Path) -> None:
    """A living fork does not keep the port of an ended server."""
    async with SqliteLightningStore(folder / "db") as store:
        server = LightningStoreServer(store, port=0)
        await server.start()
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        try:
            await server.stop()
            with socket.socket() as again:
                again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                again.bind(("127.0.0.1", server.port))
                again.listen()
        finally:
            os.close(writing)
            await asyncio.to_thread(os.waitpid, pid, 0)


STORIES = {
    "server": server_in_other_processes,
    "client": client_in_other_processes,
    "port": port_is_free_again,
}

if __name__ == "__main__":
    asyncio.run(STORIES[sys.argv[1]](Path(sys.argv[2])))
    print("done", flush=True)
