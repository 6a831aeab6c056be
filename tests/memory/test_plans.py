"""The index that each statement of memory goes by, on twenty thousand events and both engines."""

from __future__ import annotations

import uuid
from typing import Any

from tests.support.plans import SMALL, Subject, plans_of

from perdure.kernel.config import Settings
from perdure.kernel.ids import derived_ulid
from perdure.kernel.storage.port import Storage, Tx
from perdure.kernel.vectors import Embedder
from perdure.memory import sql, tables
from perdure.memory.model import build_document_range, build_tags
from perdure.memory.nodes import new_node
from perdure.memory.operations import builds, maintenance
from perdure.memory.operations import events as event_operations
from perdure.memory.records import NewMemoryEvent
from perdure.memory.service import Memory
from perdure.memory.vector_search import MemoryVectors
from perdure.memory.wiring import MemoryWork
from perdure.runtime.stores import TABLES, open_store

EVENTS = 20_000
CHUNK = 2_000
START = 1_705_312_800_000
EXPECTED = {
    "EVENTS_BETWEEN": {"memory_events_time"},
    "SESSION_BETWEEN": {"memory_events_session"},
    "GET_EVENTS": {"memory_events_pkey", "memory_texts_pkey"},
    "CITED": {"memory_events_pkey"},
    "SEARCH": {"memory_texts_place"},
    "SEARCH_BETWEEN": {"memory_texts_place"},
    "PENDING": {"memory_texts_pending"},
    "DOCUMENTS_AT": {"memory_texts_place"},
    "DOCUMENTS_AFTER": {"memory_texts_place"},
    "SIZES": {"memory_events_time"},
    "SHOW_CHILDREN": {"memory_nodes_children"},
    "SEGMENTS_FROM": {"memory_nodes_children"},
    "DUE": {"memory_nodes_stale"},
    "NEXT_EVENT": {"memory_events_time"},
    "PLACED_UNTIL": {"memory_texts_place"},
}
LARGE = frozenset({"memory_events", "memory_texts", "memory_nodes"})
SUBJECT = Subject(
    (sql,),
    LARGE,
    EXPECTED,
    SMALL | {"memory_words", "f", "r", "newest", "ids", "resources"},
    # A page of a session is found by its session or by its time, whichever is shorter.
    any_index=frozenset({"SESSION_BETWEEN"}),
)


def _rows(ns: int, start: int) -> tuple[list[tuple[Any, ...]], ...]:
    low, _ = build_document_range(ns)
    events, texts, nodes = [], [], []
    for number in range(start, start + CHUNK):
        ms = START + number * 60_000
        id = derived_ulid(ms, f"{ns} {number}")
        events.append((ns, id, f"s{number % 100}", ms, 2, 1, None, 10, 0, "{}"))
        body = f"common word{number % 5000} text{number}"
        texts.append((ns, id, "event", ms, None, low + number + 1, build_tags("event", []), body))
        node = new_node(f"toc:segment:2024-01-{1 + number % 28:02}:{id}", 0)
        nodes.append((ns, *node._replace(start_ms=ms, end_ms=ms, stale=int(number % 500 == 0))))
    return events, texts, nodes


async def _fill(tx: Tx, events: Any, texts: Any, nodes: Any) -> None:
    await tx.insert_many(tables.EVENTS, events)
    await tx.insert_many(tables.TEXTS, texts)
    await tx.insert_many(tables.NODES, nodes)


async def _count(tx: Tx, placed: int) -> None:
    await tx.insert_many(tables.COUNTERS, [(tx.ns, placed, EVENTS, placed - 1, None)])


async def fill(storage: Storage) -> None:
    for name in ("default", "other"):
        ns = await Memory(storage, namespace=name).ns("write")
        for start in range(0, EVENTS, CHUNK):
            await storage.run(_fill, *_rows(ns, start), ns=ns)
        low, _ = build_document_range(ns)
        await storage.run(_count, low + EVENTS, ns=ns)


async def use(storage: Storage) -> None:
    vectors = MemoryVectors(storage, Embedder(lambda texts: [[1.0, 0.0] for _ in texts]))
    memory = Memory(storage, vectors=vectors)
    work = MemoryWork(storage, Settings(memory_rest=0.0), vectors)
    ns = await memory.ns()
    event = NewMemoryEvent(
        event_id=derived_ulid(START, uuid.uuid4().hex), session_id="s1", timestamp_ms=START
    )
    await memory.ingest(event)
    await work.indexer.index(ns)
    await work.updater.update(ns, [(START, START)])
    assert len((await memory.get_events(limit=5)).items) == 5
    assert await storage.read(event_operations.get_events, [event.event_id], ns=ns)
    assert len((await memory.get_events(session_id="s1", limit=5)).items) == 5
    assert (await memory.search("word77", mode="text")).items
    assert (await memory.search("word77", mode="text", since_ms=START)).items
    assert (await memory.search("word77", mode="vector")).items
    assert (await memory.browse("toc:day:2024-01-15", limit=5)).items
    assert await storage.read(builds.due, 5, None, 0, builds.DueNodeCursor())
    assert await storage.read(maintenance.next_event, START, ns=ns) == START
    assert await storage.background(maintenance.index_again, build_document_range(ns)[0] + 100, ns=ns)


async def test_plans(new_engine_url: str) -> None:
    store = open_store(new_engine_url, watchdog_interval=None)
    await plans_of(store.storage, new_engine_url, SUBJECT, fill, use)
    await store.close()


def test_all_tables_are_in_the_schema() -> None:
    assert {table.name for table in tables.TABLES} <= {table.name for table in TABLES}
