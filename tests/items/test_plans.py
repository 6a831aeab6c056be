"""The index that each statement of items goes by, on fifty thousand of them and both engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.items.conftest import ALL_TABLES
from tests.reliability import plans
from tests.reliability.plans import Plan, Plans

from perdure.items import operations, sql, tables
from perdure.items.model import path_of
from perdure.items.service import Items
from perdure.items.vectors import ItemIndex
from perdure.kernel.clock import MICROS
from perdure.kernel.storage.dialect import BulkUpdate, Statement
from perdure.kernel.storage.port import Storage, Tx
from perdure.kernel.storage.postgres import PostgresStorage
from perdure.kernel.storage.sqlite import SqliteStorage

ITEMS = 50_000
CHUNK = 5_000
EXPECTED = {
    "GET": {"items_pkey"},
    "DROP": {"items_pkey"},
    "REFRESH": {"items_pkey"},
    "EXPIRED": {"items_expires"},
    "DROP_VECTORS": {"item_vectors_pkey"},
    "VECTORS": {"item_vectors_pkey", "items_pkey"},
}
INDEXED = {"items_pkey", "items_recent"}


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    named = {value: name for name, value in vars(sql).items() if isinstance(value, Statement | BulkUpdate)}
    monkeypatch.setattr(plans, "NAMES", named)
    monkeypatch.setattr(plans, "LARGE", frozenset({"items", "item_vectors"}))
    monkeypatch.setattr(plans, "_SMALL", plans._SMALL | {"walk"})


def _rows(now: int) -> Iterator[tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]]:
    """A thousand users with some items each, one with many; a few that expire, fewer that have."""
    for start in range(0, ITEMS, CHUNK):
        items, vectors = [], []
        for number in range(start, start + CHUNK):
            user = "crowd" if number % 5 == 0 else f"user-{number % 1000:03}"
            ttl = MICROS * 60 if number % 100 == 1 else None
            expires = None if ttl is None else now + (number % 1000 - 50) * 600 * MICROS
            path, key = path_of(("users", user)), f"k{number}"
            items.append((1, path, key, now, now + number, expires, ttl, "{}"))
            vectors.append((1, path, key, "text", b"\0\0\0\0"))
        yield items, vectors


async def _fill(tx: Tx, items: list[tuple[Any, ...]], vectors: list[tuple[Any, ...]]) -> None:
    await tx.insert_many(tables.ITEMS, items)
    await tx.insert_many(tables.ITEM_VECTORS, vectors)


async def _now(tx: Tx) -> int:
    return tx.now


async def fill(storage: Storage) -> None:
    await Items(storage).put(["first"], "k", {})
    for items, vectors in _rows(await storage.read(_now)):
        await storage.run(_fill, items, vectors)


async def use(storage: Storage) -> None:
    items = Items(storage, index=ItemIndex(lambda texts: [[1.0] for _ in texts], fields=["text"]))
    await items.put(["users", "user-001"], "k", {"text": "x"}, ttl_minutes=5)
    assert await items.get(["users", "user-001"], "k") is not None
    assert len(await items.search(["users", "crowd"])) == 10
    assert len(await items.search(["users", "crowd"], limit=5, offset=50)) == 5
    assert len(await items.search(["users"])) == 10
    assert await items.search(["users", "user-002"], filter={"n": "x"}) == []
    assert len(await items.search(["users", "user-003"], query="x")) == 10
    assert len(await items.list_namespaces(limit=300)) == 300
    assert await items.list_namespaces(max_depth=1) == [("first",), ("users",)]
    await items.delete(["users", "user-001"], "k")
    assert await storage.background(operations.expire) > 0


def wrong(found: dict[str, Plan]) -> dict[str, str]:
    mistaken = {}
    for key, plan in found.items():
        name = key.partition(":")[0]
        missing = EXPECTED.get(name, set()) - plan.indexes
        listed = name in ("listing", "ENDS", "NAMESPACES") and " items " in key
        if missing or plan.scanned or (listed and not INDEXED & plan.indexes):
            mistaken[key] = f"reads {set(plan.scanned)} whole, misses {missing}:\n{plan.text}"
    return mistaken


def in_one(found: dict[str, Plan]) -> list[Plan]:
    """The plans of the pages of one namespace, which an index has in their order."""
    return [plan for key, plan in found.items() if "path = " in key and "ORDER BY updated DESC" in key]


async def test_plans_of_sqlite(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "db", ALL_TABLES)
    await fill(storage)
    seen = Plans(storage)
    await use(storage)
    await storage.close()
    assert set(EXPECTED) <= {key.partition(":")[0] for key in seen.found}
    assert wrong(seen.found) == {}
    assert in_one(seen.found)
    for plan in in_one(seen.found):
        assert plan.indexes == {"items_recent"}
        assert "TEMP B-TREE FOR ORDER BY" not in plan.text


async def test_plans_of_postgres(postgres_url: str) -> None:
    storage = PostgresStorage(postgres_url, ALL_TABLES)
    await fill(storage)
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("VACUUM ANALYZE")
    await connection.close()
    seen = Plans(storage)
    await use(storage)
    generic = await seen.ask_for_generic(postgres_url)
    await storage.close()
    assert wrong(seen.found) == {}
    assert wrong({key: plan for key, plan in generic.items() if "prelude" not in key}) == {}
    for plan in in_one(seen.found):
        assert plan.indexes == {"items_recent"}
