"""Reads create nothing: not in a database, and least of all the namespace that they name."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator

import aiohttp
import pytest_asyncio
from tests.security.test_generated import ENDLESS
from tests.server.support import Visitor, serving

from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.runtime.stores import TABLES, open_store
from perdure.server.table import ROUTES
from perdure.statistics.tables import QUEUE_MINUTES

NOBODY = {"X-Perdure-Namespace": "nobody"}
ID = "01a1e72e-2d5d-75c2-9be7-070d3101344d"
READS = [route for route in ROUTES if route.scope in ("read", None) and route.path not in ENDLESS]
SECONDS = 10


@pytest_asyncio.fixture
async def visitor(engine_url: str) -> AsyncIterator[Visitor]:
    async with open_store(engine_url) as store, serving(store) as found:
        yield found


async def rows(tx: Tx) -> dict[str, int]:
    """How many rows each table has, but for what the server writes down itself once a minute."""
    return {
        table.name: await tx.one(statement("SELECT count(*) FROM " + table.name, int)) or 0
        for table in TABLES
        if table is not QUEUE_MINUTES
    }


async def test_no_read_creates_a_row(visitor: Visitor) -> None:
    storage = visitor.app.services.storage
    before = await storage.read(rows)
    found = set()
    for route in READS:
        path = re.sub(r"\{\w+(:\w+)?\}", ID, route.path)
        body: dict[str, str] | None = None if route.body is None else {}
        answer = await visitor.ask(route.method, path, headers=NOBODY, json=body)
        assert answer.status < 500 or answer.status == 501, (route.method, path, answer)
        found.add(answer.status)
    assert {200, 404} <= found
    assert await storage.read(rows) == before
    assert len(READS) > 60


async def test_a_list_of_an_unknown_namespace_is_empty_and_an_object_is_404(visitor: Visitor) -> None:
    for path in ("threads", "runs", "rollouts", "assistants", "schedules", "workers", "resources", "outbox"):
        answer = await visitor.get(f"/api/v1/{path}", headers=NOBODY)
        assert (answer.status, answer.body["items"]) == (200, []), path
    assert (await visitor.get(f"/api/v1/threads/{ID}", headers=NOBODY)).status == 404
    assert (await visitor.post("/threads/search", json={}, headers=NOBODY)).body == []


async def test_a_write_creates_the_namespace_and_reads_find_it(visitor: Visitor) -> None:
    assert (await visitor.get("/api/v1/threads", headers=NOBODY)).body["total"] == 0
    assert (await visitor.post("/api/v1/threads", json={}, headers=NOBODY)).status == 201
    assert (await visitor.get("/api/v1/threads", headers=NOBODY)).body["total"] == 1
    assert (await visitor.get("/api/v1/namespaces")).body["items"] == ["nobody"]


async def test_a_feed_of_an_unknown_namespace_waits_for_it(visitor: Visitor) -> None:
    storage = visitor.app.services.storage
    async with visitor.session.get(visitor.url + "/api/v1/changes", headers=NOBODY) as feed:
        assert feed.status == 200
        assert not (await storage.read(rows))["namespaces"]
        await visitor.post("/api/v1/threads", json={"thread_id": "other"})
        await visitor.post("/api/v1/threads", json={"thread_id": "first"}, headers=NOBODY)
        await visitor.post("/api/v1/threads", json={"thread_id": "second"}, headers=NOBODY)
        assert [await changed(feed) for _ in range(2)] == ["first", "second"]


async def changed(feed: aiohttp.ClientResponse) -> str:
    """The id in the next change."""
    async with asyncio.timeout(SECONDS):
        async for line in feed.content:
            if line.startswith(b"data: "):
                return str(json.loads(line.removeprefix(b"data: "))["id"])
    raise EOFError
