"""The memory of a namespace on each engine, and what the tests of it share."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from perdure.kernel.config import Settings
from perdure.kernel.ids import derived_ulid
from perdure.memory.builder import BuildOutcome
from perdure.memory.calendar import DAY as DAY_LEVEL
from perdure.memory.calendar import MONTH, SEGMENT, WEEK, YEAR
from perdure.memory.records import NewMemoryEvent, TocNode
from perdure.memory.service import Memory
from perdure.memory.summarisers.port import Summariser
from perdure.memory.wiring import MemoryWork
from perdure.runtime.services import Services
from perdure.runtime.stores import open_store

DAY = "2024-01-15"


def ms(text: str) -> int:
    """A time such as `2024-01-15 10:00` in milliseconds."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


class World:
    """A namespace of its own, whose background work a test does step by step."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.memory: Memory = services.memory
        self.storage = services.storage
        self.work = MemoryWork(self.storage, Settings(memory_rest=0.0))
        self._numbers = itertools.count(1)

    def event(self, text: str = "hello", at: str | int = f"{DAY} 10:00", **fields: Any) -> NewMemoryEvent:
        """An event at a time."""
        time = at if isinstance(at, int) else ms(at)
        known = {"event_id": derived_ulid(time, f"{next(self._numbers)}"), "session_id": "s", "text": text}
        return NewMemoryEvent(**{**known, "timestamp_ms": time, **fields})

    async def ingest(self, *events: NewMemoryEvent) -> list[str]:
        """Ingest events, and index them."""
        answers = await self.memory.ingest_many(list(events))
        await self.index()
        return [answer.event_id for answer in answers]

    async def index(self) -> int:
        return await self.work.indexer.index(await self.memory.ns("write"))

    # --- the table of contents

    async def arrive(self, *events: NewMemoryEvent) -> list[str]:
        """Ingest events, and cut their days into segments."""
        answers = await self.memory.ingest_many(list(events))
        times = [event.timestamp_ms or 0 for event in events]
        await self.work.updater.update(await self.memory.ns(), [(time, time) for time in times])
        return [answer.event_id for answer in answers]

    async def build(self, *levels: int, builder: str = "job", by: Summariser | None = None) -> BuildOutcome:
        """Build what is stale, whether its time is over or not."""
        if by is not None:
            self.work.builder.summariser = by
        total = BuildOutcome()
        for level in levels or (SEGMENT, DAY_LEVEL, WEEK, MONTH, YEAR):
            ns = await self.memory.ns()
            outcome = await self.work.builder.build_due(level, "test", builder, ns=ns)
            total = BuildOutcome(*map(sum, zip(total, outcome, strict=True)))
        return total

    async def segments(self, day: str = f"toc:day:{DAY}") -> list[TocNode]:
        return (await self.memory.browse(day, limit=1000)).items

    async def node(self, node_id: str) -> TocNode:
        return await self.memory.get_node(node_id)

    async def found(self, query: str, **terms: Any) -> list[str]:
        """The texts that a search shows."""
        return [hit.text for hit in (await self.memory.search(query, **terms)).items]


@pytest.fixture
async def world(shared_engine_url: str) -> AsyncIterator[World]:
    store = open_store(shared_engine_url, namespace=f"test {uuid.uuid4().hex}", watchdog_interval=None)
    services = Services(store, Settings())
    yield World(services)
    await services.close()
