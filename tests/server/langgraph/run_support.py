"""Shared by the tests of runs and streams."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.schema import StreamPart
from tests.kernel.support import until_true
from tests.server.langgraph.conftest import serving

from perdure.testing import servers
from perdure.testing.serving import ServerProcess

STEPS = ["one", "two", "three"]


async def new_thread(client: LangGraphClient, **rest: Any) -> str:
    thread = await client.threads.create(**rest)
    return str(thread["thread_id"])


def new_id() -> str:
    return str(uuid.uuid4())


def events_of(parts: Iterable[StreamPart]) -> list[str]:
    return [part.event for part in parts]


def data_of(parts: Iterable[StreamPart], event: str) -> list[Any]:
    return [part.data for part in parts if part.event == event]


async def collected(parts: AsyncIterator[StreamPart]) -> list[StreamPart]:
    return [part async for part in parts]


async def until_status(client: LangGraphClient, thread_id: str, run_id: str, *wanted: str) -> None:
    """Wait until a run has one of these statuses."""

    async def has_it() -> bool:
        return (await client.runs.get(thread_id, run_id))["status"] in wanted

    await until_true(has_it)


async def until_thread(client: LangGraphClient, thread_id: str, *wanted: str) -> None:
    """Wait until a thread has one of these statuses."""

    async def has_it() -> bool:
        return (await client.threads.get(thread_id))["status"] in wanted

    await until_true(has_it)


class Gate:
    """The file that the graph `slow` waits for."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "gate"

    @property
    def input(self) -> dict[str, Any]:
        return {"until": str(self.path), "n": 0}

    def open(self) -> None:
        self.path.touch()


async def started(client: LangGraphClient, thread_id: str, gate: Gate, **rest: Any) -> str:
    """Start a run of `slow` and wait until it has done its first step and waits at the gate."""
    run = await client.runs.create(
        thread_id, "slow", input=gate.input, stream_mode=["updates"], durability="sync", **rest
    )
    run_id = str(run["run_id"])
    async for part in client.runs.join_stream(thread_id, run_id, last_event_id="-1"):
        if part.event == "updates":
            break
    return run_id


async def asked(
    url: str, path: str, method: str = "GET", body: Any = None, headers: dict[str, str] | None = None
) -> httpx.Response:
    """Return the unprocessed response of a request."""
    async with httpx.AsyncClient(base_url=url, timeout=30.0) as client:
        return await client.request(method, path, json=body, headers=headers)


def ids_of(runs: Sequence[Any]) -> list[str]:
    return [run["run_id"] for run in runs]


@contextmanager
def serving_on(
    engine: str, folder: Path, postgres_url: str, redis_url: str, **environment: str
) -> Iterator[ServerProcess]:
    """Start a server for one test, on SQLite or on a PostgreSQL database with Redis."""
    if engine == "sqlite":
        with serving(folder, f"sqlite:///{folder / 'perdure.db'}", **environment) as started:
            yield started
        return
    name = f"test_{uuid.uuid4().hex}"
    servers.create_database(postgres_url, name)
    redis = {"PERDURE_REDIS_URL": redis_url, "PERDURE_REDIS_KEY_PREFIX": f"test:{name}:"}
    try:
        with serving(folder, servers.with_database(postgres_url, name), **redis, **environment) as started:
            yield started
    finally:
        servers.drop_database(postgres_url, name)
