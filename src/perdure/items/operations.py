"""Operations on items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from perdure.items import sql
from perdure.items.model import ItemRow, ItemVectorRow, NewItem, NewItemRow, ValuedVectorRow, format_name
from perdure.items.tables import ITEMS
from perdure.kernel import changes
from perdure.kernel.checks import MAX_ROWS
from perdure.kernel.storage.filters import Clause, FilterCondition, where
from perdure.kernel.storage.port import Tx
from perdure.service.audit import audit

KIND = "item"
EXPIRE_ROWS = 500

Name = tuple[str, str]
"""Path and key of an item."""


class ItemCursor(NamedTuple):
    """A position in a search: after the item with this time of change and this name."""

    updated: int = MAX_ROWS
    path: str = ""
    key: str = ""


class ItemFilter(NamedTuple):
    """The range of namespaces, position and page size of a search."""

    low: str
    high: str
    needles: tuple[str, ...]
    after: ItemCursor
    limit: int
    offset: int
    bare: bool = False
    """True to return only items without vectors."""


# --- writing ----------------------------------------------------------------------------------------------


async def write(tx: Tx, batches: Sequence[Sequence[NewItem]]) -> list[None]:
    """Store and delete items; of several changes of one item, the last one counts."""
    wanted = {(item.path, item.key): item for batch in batches for item in batch}
    items = [wanted[name] for name in sorted(wanted)]
    put = [item for item in items if item.value is not None]
    dropped = [(item.path, item.key) for item in items if item.value is None]
    await tx.lock(ITEMS, [(tx.ns, item.path, item.key) for item in items])
    await _drop(tx, dropped)
    await tx.write(sql.PUT.of([_row(tx, item, item.value) for item in items if item.value is not None]))
    await _set_vectors(tx, put)
    await _publish(tx, "put_items", [(item.path, item.key) for item in put], "updated")
    await _publish(tx, "delete_items", dropped, "deleted")
    return [None] * len(batches)


def _row(tx: Tx, item: NewItem, value: str) -> NewItemRow:
    expires = None if item.ttl is None else tx.now + item.ttl
    return NewItemRow(item.path, item.key, tx.now, tx.now, expires, item.ttl, value)


async def _drop(tx: Tx, names: Sequence[Name]) -> None:
    for path, keys in _group_by_path(names).items():
        await tx.execute(sql.DROP, path=path, keys=keys)
        await tx.execute(sql.DROP_VECTORS, path=path, keys=keys)


async def _set_vectors(tx: Tx, items: Sequence[NewItem]) -> None:
    for path, keys in _group_by_path([(item.path, item.key) for item in items]).items():
        await tx.execute(sql.DROP_VECTORS, path=path, keys=keys)
    rows = [
        ItemVectorRow(item.path, item.key, field, vector) for item in items for field, vector in item.vectors
    ]
    await tx.write(sql.ADD_VECTORS.of(rows))


def _group_by_path(names: Iterable[Name]) -> dict[str, list[str]]:
    keys_by_path: dict[str, list[str]] = {}
    for path, key in names:
        keys_by_path.setdefault(path, []).append(key)
    return keys_by_path


async def _publish(tx: Tx, action: str, names: Sequence[Name], status: str) -> None:
    """Publish the change, and write the audit entry last."""
    changed = [format_name(*name) for name in names]
    changes.tell(tx, KIND, [(name, status) for name in changed])
    await audit(tx, action, changed)


async def refresh(tx: Tx, names: Sequence[Name]) -> None:
    """Restart the TTL of items."""
    await tx.execute_many(sql.REFRESH, [{"path": path, "key": key} for path, key in sorted(set(names))])


async def expire(tx: Tx) -> int:
    """Delete a batch of expired items of all namespaces; return its size."""
    rows = await tx.all(sql.EXPIRED, limit=EXPIRE_ROWS)
    for ns in sorted({row.ns for row in rows}):
        for path, keys in _group_by_path((row.path, row.key) for row in rows if row.ns == ns).items():
            await tx.execute(sql.DROP, ns=ns, path=path, keys=keys)
            await tx.execute(sql.DROP_VECTORS, ns=ns, path=path, keys=keys)
    return len(rows)


# --- reading ----------------------------------------------------------------------------------------------


async def get(tx: Tx, names: Sequence[Name]) -> dict[Name, ItemRow]:
    """Return the existing items."""
    rows: dict[Name, ItemRow] = {}
    for path, keys in _group_by_path(dict.fromkeys(names)).items():
        for row in await tx.all(sql.GET, path=path, keys=keys):
            rows[row.path, row.key] = row
    return rows


async def search(tx: Tx, query: ItemFilter) -> list[ItemRow]:
    """Return a page of the items in a range of namespaces, last changed first."""
    ends = await tx.one(sql.ENDS, low=query.low, high=query.high)
    if ends is None or ends.lowest is None:
        return []
    clause = where(sql.FIELDS, [FilterCondition("value", "contains", text) for text in query.needles], "and")
    if query.bare:
        clause = Clause(clause.sql + " AND " + sql.WITHOUT_VECTORS, clause.values)
    one = ends.lowest == ends.highest
    listing = sql.IN_ONE if one else sql.IN_RANGE
    place: dict[str, Any] = {"path": ends.lowest} if one else {"low": query.low, "high": query.high}
    page, values = listing.page(clause, sql.ORDER, query.limit, query.offset)
    after = query.after
    return await tx.all(
        page, **place, **values, updated=after.updated, last_path=after.path, last_key=after.key
    )


async def vectors(
    tx: Tx, low: str, high: str, after: tuple[str, str, str], limit: int
) -> list[ItemVectorRow]:
    """Return the next vectors of the items in a range of namespaces."""
    return await tx.all(sql.VECTORS, low=low, high=high, **_build_after(after), limit=limit)


async def vectors_and_values(
    tx: Tx, low: str, high: str, after: tuple[str, str, str], limit: int
) -> list[ValuedVectorRow]:
    """Return the next vectors with the values of their items."""
    return await tx.all(sql.VECTORS_AND_VALUES, low=low, high=high, **_build_after(after), limit=limit)


def _build_after(place: tuple[str, str, str]) -> dict[str, str]:
    return dict(zip(("last_path", "last_key", "last_field"), place, strict=True))


async def namespaces(tx: Tx, low: str, high: str, limit: int) -> list[str]:
    """Return the next namespaces of a range that hold items, in their order."""
    return await tx.all(sql.NAMESPACES, low=low, high=high, limit=limit)
