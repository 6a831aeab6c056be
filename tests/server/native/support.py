"""Shared by the tests of the native API: a server, a client, requests, and a controlled worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple

import aiohttp
from tests.kernel.support import soon
from tests.server.support import Visitor, serving

from perdure.agents.records import AgentSpec
from perdure.client.native import PerdureClient
from perdure.kernel.codec import encode_json
from perdure.kernel.config import SecretKey
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runs.queue import RunQueue
from perdure.streams.model import NewEvent, StreamEvent
from perdure.threads.records import NewCheckpoint, Run, RunRequest
from perdure.threads.work import Assignment, Ending, Lease

API = "/api/v1"
KEY = SecretKey("a-key-of-some-length")
AGENT = "echo"
QUICK: dict[str, Any] = {"retry_delays": (0.01, 0.02, 0.05)}


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def own_span(claimed: Any, number: int, **fields: Any) -> dict[str, Any]:
    return {
        "rollout_id": claimed["rollout_id"],
        "attempt_id": claimed["attempt"]["attempt_id"],
        "sequence_id": number,
        "trace_id": f"{1:032x}",
        "span_id": f"{number:016x}",
        "parent_id": None,
        "name": f"step {number}",
        "status": {"status_code": "OK", "description": None},
        "attributes": {},
        "events": [],
        "links": [],
        "start_time": 1.0,
        "end_time": 2.0,
        "context": None,
        "parent": None,
        "resource": {"attributes": {}, "schema_url": ""},
    } | fields


def told(name: str, data: Any) -> NewEvent:
    return NewEvent(name, encode_json(data))


QUEUES: tuple[Literal["agents", "workflows"], ...] = ("agents", "workflows")


class Worker:
    """Claims runs one by one, and ends them on request."""

    def __init__(self, queue: RunQueue, name: str = "worker-1") -> None:
        self.queue = queue
        self.name = name

    async def register(self) -> None:
        await self.queue.register(self.name, [AgentSpec(name=AGENT)])

    async def claim(self, wait: float = 20.0) -> Assignment:
        """Claim the next run, which must come."""
        (assignment,) = await soon(self.queue.claim(self.name, [AGENT], 1, wait, QUEUES))
        first = {"run_id": assignment.run.run_id, "attempt": assignment.attempt}
        await self.queue.append(assignment.held, [told("metadata", first)])
        return assignment

    async def emit(self, held: Lease, *data: Any, event: str = "custom") -> None:
        await self.queue.append(held, [told(event, each) for each in data])

    async def end(self, assignment: Assignment, values: Any = None) -> Run:
        """End a run successfully with these values."""
        checkpoint = NewCheckpoint(values=values)
        return await self.queue.finish(Ending(held=assignment.held, result="success", checkpoint=checkpoint))

    async def do(self, values: Any = None, events: Sequence[Any] = ()) -> Run:
        """Execute the next run, from its claim to its end."""
        assignment = await self.claim()
        if events:
            await self.emit(assignment.held, *events)
        return await self.end(assignment, values)


class House(NamedTuple):
    """A server with its surroundings."""

    visitor: Visitor
    client: PerdureClient
    worker: Worker

    async def run(self, **fields: Any) -> Run:
        return await self.client.create_run(request(**fields))


def request(**fields: Any) -> RunRequest:
    return RunRequest(**{"assistant_id": AGENT, **fields})


@asynccontextmanager
async def housed(store: DatabaseLightningStore, **settings: Any) -> AsyncIterator[House]:
    async with serving(store, **settings) as visitor:
        # The worker lives in this event loop, and the server in another.
        worker = Worker(visitor.app.services.run_queue.in_namespace("default"))
        await worker.register()
        async with PerdureClient(visitor.url, **QUICK) as client:
            yield House(visitor, client, worker)


class Reader:
    """Reads server-sent events block by block."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def block(self) -> dict[str, str]:
        """Return the fields of the next block; a comment has an empty name."""
        fields: dict[str, str] = {}
        while line := (await soon(self.response.content.readline())).decode():
            if line == "\n":
                return fields
            name, _, value = line.rstrip("\n").partition(": ")
            fields[name.rstrip(":")] = value
        raise EOFError

    async def event(self) -> dict[str, str]:
        while "event" not in (fields := await self.block()):
            pass
        return fields

    async def rest(self) -> list[dict[str, str]]:
        """Read all blocks until the server ends the response."""
        blocks = []
        while True:
            try:
                blocks.append(await self.block())
            except EOFError:
                return blocks


@asynccontextmanager
async def streaming(
    visitor: Visitor, path: str, method: str = "GET", **options: Any
) -> AsyncIterator[Reader]:
    headers = visitor.headers | options.pop("headers", {})
    async with visitor.session.request(method, visitor.url + path, headers=headers, **options) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        yield Reader(response)


async def gathered(
    bursts: AsyncIterator[Sequence[StreamEvent]], enough: Callable[[StreamEvent], bool] | None = None
) -> list[StreamEvent]:
    """Collect the events of a stream, to its end or up to one that suffices."""
    events: list[StreamEvent] = []
    async with asyncio.timeout(60):
        async for burst in bursts:
            events += burst
            if enough is not None and any(map(enough, burst)):
                break
    return events
