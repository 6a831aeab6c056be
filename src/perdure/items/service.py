"""Service of the items of one namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from msgspec import UNSET, Meta, UnsetType

from perdure.items import model, operations
from perdure.items.model import (
    MAX_KEY,
    MAX_LABELS,
    MAX_PATH,
    ItemRow,
    ItemVectorRow,
    NewItem,
    ValuedVectorRow,
    check_key,
    check_labels,
    check_namespace,
    encode_namespace,
)
from perdure.items.operations import ItemCursor, ItemFilter, Name
from perdure.items.records import (
    DeleteItem,
    GetItem,
    Item,
    ItemOp,
    ItemPolicy,
    ItemResult,
    ListNamespaces,
    NamespaceMatch,
    PutItem,
    SearchItems,
)
from perdure.items.vectors import ItemIndex, Ranking
from perdure.kernel.checks import (
    MAX_FILTER_KEYS,
    MAX_PAGE,
    Limit,
    Offset,
    check_number,
    check_page,
    optional_text,
)
from perdure.kernel.clock import to_micros
from perdure.kernel.codec import decode_json
from perdure.kernel.errors import InvalidInput, NotFound
from perdure.kernel.json_values import matches
from perdure.kernel.pages import Keyset, Part
from perdure.kernel.storage.port import Storage
from perdure.service.base import Service
from perdure.service.callers import Caller
from perdure.service.endpoints import DELETE, GET, POST, PUT, WireForm, call

SCAN_ROWS = 200
"""Number of items in the first read of a search that the database cannot filter itself."""
MOST_ROWS = 2000
SCAN_BYTES = 8 << 20
"""Target size of the next read, estimated from the last one."""
SCAN_VECTORS = 256
WALK_PATHS = 200
PAGE_ROWS = 1000
SWEEP_SECONDS = 60.0
MAX_QUERY = 64 << 10
MAX_BODY = 32 << 20
"""Limit of a batch over HTTP; values of items may be large."""

R = TypeVar("R", ItemRow, ValuedVectorRow)
_ITEMS = Keyset[Item, ItemCursor](
    "items",
    ItemCursor(),
    lambda item: (to_micros(item.updated_at), encode_namespace(item.namespace), item.key),
)
Key = Annotated[str, Meta(max_length=MAX_KEY)]
Labels = Annotated[Sequence[str], Meta(max_length=MAX_LABELS)]


def _to_dotted(labels: Sequence[str]) -> str:
    return ".".join(check_labels(labels))


def _from_dotted(dotted: str) -> list[str]:
    return dotted.split(".") if dotted else []


_DOTTED = WireForm(Annotated[str, Meta(max_length=MAX_PATH)], _to_dotted, _from_dotted)
DottedLabels = Annotated[Sequence[str], _DOTTED]
"""A namespace; in a query its labels are joined by periods."""
OptionalLabels = Annotated[Sequence[str] | None, _DOTTED]


def check_ops(ops: Sequence[ItemOp]) -> None:
    """Check the length of a batch and the limits in it."""
    if len(ops) > MAX_PAGE:
        raise InvalidInput(f"a batch has at most {MAX_PAGE} operations, not {len(ops)}")
    for op in ops:
        if isinstance(op, SearchItems | ListNamespaces) and op.limit > MAX_PAGE:
            raise InvalidInput(f"limit is {op.limit}; it must be at most {MAX_PAGE}")


class Items(Service):
    """Items of one namespace: values of agents that are kept beyond a thread.

    Every public method is a batch of operations, which `run` executes.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        namespace: str = "default",
        caller: Caller | None = None,
        policy: ItemPolicy | None = None,
        index: ItemIndex | None = None,
    ) -> None:
        super().__init__(storage, namespace=namespace, caller=caller)
        self.policy = policy or ItemPolicy()
        self.index = index

    # --- one by one ---------------------------------------------------------------------------------------

    async def get(
        self, namespace: Sequence[str], key: str, *, refresh_ttl: bool | None = None
    ) -> Item | None:
        """Get an item, or None if there is none."""
        try:
            return await self.fetch(namespace, key, refresh_ttl=refresh_ttl)
        except NotFound:
            return None

    @call(GET("/items"), scope="read", errors=(NotFound,))
    async def fetch(self, namespace: DottedLabels, key: Key, *, refresh_ttl: bool | None = None) -> Item:
        """Get an item by its namespace and key. NotFound if there is none."""
        wanted = GetItem(namespace=list(check_labels(namespace)), key=key, refresh_ttl=refresh_ttl)
        (item,) = await self.run([wanted])
        if item.item is None:
            raise NotFound(f"Item {key} not found in the namespace {'.'.join(namespace)}")
        return item.item

    @call(PUT("/items"), scope="write")
    async def put(
        self,
        namespace: Labels,
        key: Key,
        value: Mapping[str, Any],
        *,
        ttl_minutes: float | UnsetType | None = UNSET,
        index: bool | list[str] | None = None,
    ) -> None:
        """Store a JSON object, replacing an existing one.

        Without `ttl_minutes` the TTL is that of the policy; with None the item never expires.
        """
        wanted = PutItem(
            namespace=list(check_namespace(namespace)),
            key=key,
            value=model.check_object(value),
            ttl_minutes=ttl_minutes,
            index=model.check_index(index),
        )
        await self.run([wanted])

    @call(DELETE("/items"), scope="write", repeatable=True)
    async def delete(self, namespace: DottedLabels, key: Key) -> None:
        """Delete an item. A missing item is no error."""
        await self.run([DeleteItem(namespace=list(check_labels(namespace)), key=key)])

    async def _put(self, ops: Sequence[PutItem | DeleteItem], items: list[NewItem]) -> None:
        """Store and delete items, all or none."""
        if self.index is not None:
            puts = [(at, op) for at, op in enumerate(ops) if isinstance(op, PutItem)]
            vectors = await self.index.of_items([(op.value, op.index) for _, op in puts])
            for (at, _), item_vectors in zip(puts, vectors, strict=True):
                items[at] = items[at]._replace(vectors=item_vectors)
        await self._write(items)

    def _check_item(self, op: PutItem | DeleteItem) -> NewItem:
        if isinstance(op, DeleteItem):
            return NewItem(encode_namespace(check_labels(op.namespace)), check_key(op.key), None)
        model.check_index(op.index)
        path, value = encode_namespace(check_namespace(op.namespace)), model.encode_value(op.value)
        return NewItem(path, check_key(op.key), value, model.compute_ttl(op.ttl_minutes, self.policy))

    async def _write(self, items: Sequence[NewItem]) -> None:
        size = sum(len(item.value or "") for item in items)
        await self._merger.call("put", self._write_items, items, rows=len(items), size=size)

    async def _write_items(self, batches: Sequence[Sequence[NewItem]]) -> Sequence[None]:
        return await self.write(operations.write, batches)

    # --- reading ------------------------------------------------------------------------------------------

    @call(POST("/items/search"), scope="read", repeatable=True)
    async def search(
        self,
        namespace_prefix: Labels = (),
        *,
        filter: Mapping[str, Any] | None = None,
        query: str | None = None,
        limit: Limit = 100,
        offset: Offset = 0,
        refresh_ttl: bool | None = None,
        cursor: str | None = None,
    ) -> Part[Item]:
        """List the items at or below a namespace that match a filter, last changed first.

        With a `query` and an index, the nearest items come first; such a list is paged by offset.
        """
        check_page(limit, offset, cursor)
        wanted = SearchItems(
            namespace_prefix=list(check_labels(namespace_prefix, "namespace_prefix")),
            filter=None if filter is None else model.check_filter(filter),
            query=query,
            limit=limit,
            offset=offset,
            refresh_ttl=refresh_ttl,
            cursor=cursor,
        )
        (result,) = await self.run([wanted])
        items = result.items or []
        # Not one item more than asked for, because its time to live would be refreshed too.
        return Part(items=items, next=None if query else _ITEMS.next_if_full(items, limit))

    async def _search(self, op: SearchItems) -> list[Item]:
        check_number(op.limit, "limit")
        check_number(op.offset, "offset")
        optional_text(op.query, "query", max_length=MAX_QUERY)
        low, high = model.build_namespace_range(
            encode_namespace(check_labels(op.namespace_prefix, "namespace_prefix"))
        )
        conditions = model.check_filter(op.filter)
        if op.query and op.cursor is not None:
            raise InvalidInput("a search with a query has no cursor; use offset")
        wanted = ItemFilter(
            low, high, tuple(model.needles(conditions)), _ITEMS.read(op.cursor), op.limit, op.offset
        )
        if op.query and self.index is not None:
            rows = await self._list_nearest(await self.index.of_query(op.query), wanted, conditions)
        else:
            rows = [(row, None) for row in await self._list_rows(wanted, conditions)]
        await self._refresh([row for row, _ in rows], op.refresh_ttl)
        return [model.row_to_item(row, score) for row, score in rows]

    async def _list_rows(self, wanted: ItemFilter, conditions: Mapping[str, Any]) -> list[ItemRow]:
        return await (self._filter_rows(wanted, conditions) if conditions else self._read_page(wanted))

    async def _list_nearest(
        self, vector: Sequence[float], wanted: ItemFilter, conditions: Mapping[str, Any]
    ) -> list[tuple[ItemRow, float | None]]:
        """Return the items nearest to a vector, followed by the items without vectors."""
        if not wanted.limit:
            return []
        ranking = await self._rank(vector, wanted, conditions)
        chosen = ranking.nearest()[wanted.offset :]
        rows = await self.read(operations.get, [name for _, name in chosen])
        ranked: list[tuple[ItemRow, float | None]] = [
            (rows[name], near) for near, name in chosen if name in rows
        ]
        left = wanted.limit - len(ranked)
        if left <= 0:
            return ranked
        offset = max(0, wanted.offset - ranking.count)
        others = await self._list_rows(wanted._replace(bare=True, limit=left, offset=offset), conditions)
        return ranked + [(row, None) for row in others]

    async def _rank(
        self, vector: Sequence[float], wanted: ItemFilter, conditions: Mapping[str, Any]
    ) -> Ranking:
        """Compare every item of the range, in bounded parts."""
        ranking = Ranking(vector, wanted.offset + wanted.limit)
        after = ("", "", "")
        while True:
            rows: Sequence[ItemVectorRow | ValuedVectorRow]
            fitting: Sequence[ItemVectorRow | ValuedVectorRow]
            place = (wanted.low, wanted.high, after, SCAN_VECTORS)
            if conditions:
                valued = await self.read(operations.vectors_and_values, *place)
                rows, fitting = valued, await _filter_matching(valued, conditions)
            else:
                plain = await self.read(operations.vectors, *place)
                rows, fitting = plain, plain
            # Ranking is slow, so it runs outside of the event loop.
            await asyncio.to_thread(ranking.add, fitting)
            if len(rows) < SCAN_VECTORS:
                return ranking
            after = (rows[-1].path, rows[-1].key, rows[-1].field)

    async def _read_page(self, wanted: ItemFilter) -> list[ItemRow]:
        """Return a page that the database can filter itself, in bounded parts."""
        rows: list[ItemRow] = []
        while len(rows) < wanted.limit:
            most = min(wanted.limit - len(rows), PAGE_ROWS)
            part = await self.read(operations.search, wanted._replace(limit=most))
            rows += part
            if len(part) < most:
                break
            wanted = wanted._replace(after=_get_cursor(part[-1]), offset=0)
        return rows

    async def _filter_rows(self, wanted: ItemFilter, conditions: Mapping[str, Any]) -> list[ItemRow]:
        """Read items in bounded parts until enough of them match."""
        rows: list[ItemRow] = []
        left, scan = wanted.offset, wanted._replace(limit=SCAN_ROWS, offset=0)
        while len(rows) < wanted.limit:
            part = await self.read(operations.search, scan)
            fitting = await _filter_matching(part, conditions)
            rows += fitting[left : left + wanted.limit - len(rows)]
            left = max(0, left - len(fitting))
            if len(part) < scan.limit:
                break
            scan = scan._replace(after=_get_cursor(part[-1]), limit=_estimate_next_rows(part))
        return rows

    @call(GET("/items/namespaces"), scope="read")
    async def list_namespaces(
        self,
        *,
        prefix: OptionalLabels = None,
        suffix: OptionalLabels = None,
        max_depth: Annotated[int, Meta(ge=1, le=MAX_LABELS)] | None = None,
        limit: Limit = 100,
        offset: Offset = 0,
        cursor: str | None = None,
    ) -> Part[tuple[str, ...]]:
        """List the namespaces that hold items, in their order.

        `*` in a prefix or suffix matches any label.
        """
        request = model.NAMESPACES.open_part(limit, cursor, offset)
        wanted = ListNamespaces(
            matches=build_matches(prefix, suffix),
            max_depth=max_depth,
            limit=request.rows,
            offset=offset,
            cursor=cursor,
        )
        (result,) = await self.run([wanted])
        return request.build_part([tuple(labels) for labels in result.namespaces or []], tuple)

    async def _list_namespaces(
        self,
        matches: Sequence[NamespaceMatch],
        max_depth: int | None,
        limit: int,
        offset: int,
        cursor: str | None,
    ) -> list[tuple[str, ...]]:
        check_number(limit, "limit")
        check_number(offset, "offset")
        if max_depth is not None:
            check_number(max_depth, "max_depth", 1)
        if len(matches) > MAX_FILTER_KEYS:
            raise InvalidInput(f"{len(matches)} conditions; a list accepts at most {MAX_FILTER_KEYS}")
        for match in matches:
            check_labels(match.path, match.kind)
        namespaces: list[tuple[str, ...]] = []
        low, high = model.build_search_range(matches)
        if cursor is not None:
            (last,) = model.NAMESPACES.read(cursor)
            low = max(low, _get_next_path(last, max_depth))
        while len(namespaces) < offset + limit:
            paths = await self.read(operations.namespaces, low, high, WALK_PATHS)
            low = _take(namespaces, paths, matches, max_depth)
            if len(paths) < WALK_PATHS:
                break
        return namespaces[offset : offset + limit]

    # --- keeping what is read -----------------------------------------------------------------------------

    async def _refresh(self, rows: Sequence[ItemRow], refresh_ttl: bool | None) -> None:
        names = [(row.path, row.key) for row in rows if row.expires is not None]
        wanted = self.policy.refresh_on_read if refresh_ttl is None else refresh_ttl
        if names and wanted:
            await self.storage.run(operations.refresh, names, ns=await self.ns())

    def start_timers(self) -> None:
        """Start the timer that deletes expired items."""
        minutes = self.policy.sweep_interval_minutes
        self.storage.timers.every(SWEEP_SECONDS if minutes is None else minutes * 60, self.expire)

    async def expire(self) -> int:
        """Delete all expired items of all namespaces; return their number."""
        total = 0
        while count := await self.storage.background(operations.expire):
            total += count
        return total

    # --- many at once -------------------------------------------------------------------------------------

    @call(POST("/items/batch"), scope="write", repeatable=True, max_body=MAX_BODY)
    async def batch(self, ops: Annotated[list[ItemOp], Meta(max_length=MAX_PAGE)]) -> list[ItemResult]:
        """Read and change many items at once.

        Reads see the state before the writes; the writes are all or nothing.
        """
        check_ops(ops)
        return await self.run(ops)

    async def run(self, ops: Sequence[ItemOp]) -> list[ItemResult]:
        """Execute a batch of any size, with any limits."""
        results = [ItemResult() for _ in ops]
        gets = [(at, op) for at, op in enumerate(ops) if isinstance(op, GetItem)]
        changes = [op for op in ops if isinstance(op, PutItem | DeleteItem)]
        # All changes are checked before the first read.
        new = [self._check_item(change) for change in changes]
        if gets:
            rows = await self._get([op for _, op in gets])
            for (at, _), result in zip(gets, rows, strict=True):
                results[at] = result
        for at, op in enumerate(ops):
            if isinstance(op, SearchItems | ListNamespaces):
                results[at] = await self._execute_read(op)
        if changes:
            await self._put(changes, new)
        return results

    async def _get(self, gets: Sequence[GetItem]) -> list[ItemResult]:
        names: list[Name] = [(encode_namespace(check_labels(op.namespace)), check_key(op.key)) for op in gets]
        rows = await self._get_rows(names)
        for refresh_ttl in (None, True):
            read = [name for name, op in zip(names, gets, strict=True) if op.refresh_ttl is refresh_ttl]
            await self._refresh([rows[name] for name in dict.fromkeys(read) if name in rows], refresh_ttl)
        return [ItemResult(item=model.row_to_item(rows[name]) if name in rows else None) for name in names]

    async def _get_rows(self, names: Sequence[Name]) -> dict[Name, ItemRow]:
        """Return the existing items; concurrent reads are merged."""
        rows: dict[Name, ItemRow] = await self._merger.call("get", self._get_many, names, rows=len(names))
        return rows

    async def _get_many(self, calls: Sequence[Sequence[Name]]) -> Sequence[dict[Name, ItemRow]]:
        wanted = [name for call in calls for name in call]
        return [await self.read(operations.get, wanted)] * len(calls)

    async def _execute_read(self, op: SearchItems | ListNamespaces) -> ItemResult:
        if isinstance(op, ListNamespaces):
            namespaces = await self._list_namespaces(op.matches, op.max_depth, op.limit, op.offset, op.cursor)
            return ItemResult(namespaces=[list(labels) for labels in namespaces])
        return ItemResult(items=await self._search(op))


def _get_cursor(row: ItemRow) -> ItemCursor:
    return ItemCursor(row.updated, row.path, row.key)


async def _filter_matching(rows: Sequence[R], conditions: Mapping[str, Any]) -> list[R]:
    """Return the rows whose value matches; many rows are decoded outside of the event loop."""

    def look() -> list[R]:
        return [row for row in rows if matches(decode_json(row.value), conditions)]

    return look() if len(rows) < SCAN_ROWS else await asyncio.to_thread(look)


def _estimate_next_rows(rows: Sequence[ItemRow]) -> int:
    """Return the size of the next read: many small items, fewer large ones."""
    average = 1 + sum(len(row.value) for row in rows) // len(rows)
    return max(SCAN_ROWS, min(MOST_ROWS, SCAN_BYTES // average))


def _get_next_path(path: str, max_depth: int | None) -> str:
    """Return the next path after a namespace: below it, unless namespaces are cut to its length."""
    _, end = model.build_namespace_range(path)
    return end if len(model.decode_namespace(path)) == max_depth else path + "\x01"


def _take(
    namespaces: list[tuple[str, ...]],
    paths: Sequence[str],
    matches: Sequence[NamespaceMatch],
    max_depth: int | None,
) -> str:
    """Add the matching namespaces, each once; return the path of the next read."""
    low = ""
    for path in paths:
        if path < low:
            continue
        labels = model.decode_namespace(path)
        low = path + "\x01"
        if not model.fits(labels, matches):
            continue
        cut = labels[:max_depth]
        namespaces.append(cut)
        low = _get_next_path(encode_namespace(cut), max_depth)
    return low


def build_matches(prefix: Sequence[str] | None, suffix: Sequence[str] | None) -> list[NamespaceMatch]:
    """Return the matches for a prefix and a suffix; an empty one is left out."""
    matches = [NamespaceMatch(kind="prefix", path=list(check_labels(prefix, "prefix")))] if prefix else []
    return matches + (
        [NamespaceMatch(kind="suffix", path=list(check_labels(suffix, "suffix")))] if suffix else []
    )
