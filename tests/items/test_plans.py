"""The index that each statement of items goes by, on fifty thousand of them and both engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.items.conftest import ALL_TABLES
from tests.kernel.support import open_database
from tests.support.plans import SMALL, Plan, Subject, plans_of

from perdure.items import operations, sql, tables
from perdure.items.model import encode_namespace
from perdure.items.service import Items
from perdure.items.vectors import ItemIndex
from perdure.kernel.clock import MICROS
from perdure.kernel.storage.port import Storage, Tx

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


SUBJECT = Subject((sql,), frozenset({"items", "item_vectors"}), EXPECTED, SMALL | {"walk"})


def _rows(now: int) -> Iterator[tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]]:
    """A thousand users with some items each, one with many; a few that expire, fewer that have."""
    for start in range(0, ITEMS, CHUNK):
        items, vectors = [], []
        for number in range(start, start + CHUNK):
            user = "crowd" if number % 5 == 0 else f"user-{number % 1000:03}"
            ttl = MICROS * 60 if number % 100 == 1 else None
            expires = None if ttl is None else now + (number % 1000 - 50) * 600 * MICROS
            path, key = encode_namespace(("users", user)), f"k{number}"
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
    assert len(await items.search(["users", "crowd"], limit=10)) == 10
    assert len(await items.search(["users", "crowd"], limit=5, offset=50)) == 5
    assert len(await items.search(["users"], limit=10)) == 10
    assert (await items.search(["users", "user-002"], filter={"n": "x"})).items == []
    assert len(await items.search(["users", "user-003"], query="x", limit=10)) == 10
    assert len(await items.list_namespaces(limit=300)) == 300
    assert (await items.list_namespaces(max_depth=1)).items == [("first",), ("users",)]
    await items.delete(["users", "user-001"], "k")
    assert await storage.background(operations.expire) > 0


def listings(found: dict[str, Plan]) -> list[Plan]:
    """The plans of the pages that were listed."""
    kinds = ("listing", "ENDS", "NAMESPACES")
    return [plan for key, plan in found.items() if key.partition(":")[0] in kinds and " items " in key]


def in_one(found: dict[str, Plan]) -> list[Plan]:
    """The plans of the pages of one namespace, which an index has in their order."""
    return [plan for key, plan in found.items() if "path = " in key and "ORDER BY updated DESC" in key]


async def test_plans(new_engine_url: str) -> None:
    storage = open_database(new_engine_url, ALL_TABLES)
    found = await plans_of(storage, new_engine_url, SUBJECT, fill, use)
    await storage.close()
    assert all(INDEXED & plan.indexes for plan in listings(found))
    assert in_one(found)
    for plan in in_one(found):
        assert plan.indexes == {"items_recent"}
        assert storage.engine == "postgres" or "TEMP B-TREE FOR ORDER BY" not in plan.text
