"""Lists in pages: with the total if it is cheap, or only with the cursor of the next page.

A service opens a request with the `Keyset` of its list, reads the rows after `place` with its own statement,
and lets the request build the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast, overload

import msgspec

from perdure.kernel.checks import check_page
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.cursors import Value, read_cursor, write_cursor
from perdure.kernel.record import OpenRecord, Record

T = TypeVar("T")
R = TypeVar("R")
P = TypeVar("P", bound=tuple[Any, ...] | None)


class Page(msgspec.Struct, Generic[T], kw_only=True):
    """A page of a list. `next` is the cursor of the next page, `total` the number of all items.

    Very long lists have a total only if it is stored, if this page is the last, or with `total=true`.
    """

    items: list[T]
    limit: int
    offset: int
    total: int | None
    next: str | None = None


class Part(Record, Generic[T], kw_only=True):
    """A part of a list: a sequence of its items. `next` is the cursor of the next part, if there is more."""

    items: list[T]
    next: str | None = None

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self.items[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __eq__(self, other: object) -> bool:
        """Compare with another part, or its items with a list, which methods returned before 0.6.0."""
        if isinstance(other, list):
            return self.items == other
        return isinstance(other, Part) and (self.items, self.next) == (other.items, other.next)

    __hash__ = None  # type: ignore[assignment]


class PaginatedResult(Sequence[T], Generic[T]):
    """A page of a query: a sequence of its items with limit, offset and total.

    `next` is the cursor of the next page, if there may be more. Agent-lightning's queries have no cursor and
    always a total. Very long lists have a total only on request.
    """

    __slots__ = ("items", "limit", "next", "offset", "total")

    def __init__(
        self, *, items: Sequence[T], limit: int, offset: int, total: int | None, next: str | None = None
    ) -> None:
        self.items = items
        self.limit = limit
        self.offset = offset
        self.total = total
        self.next = next

    @property
    def counted(self) -> int:
        """Total of a list that always has one, or for which it was requested."""
        assert self.total is not None
        return self.total

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self.items[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PaginatedResult):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in PaginatedResult.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"PaginatedResult(items={list(self.items)!r}, limit={self.limit}, offset={self.offset},"
            f" total={self.total})"
        )

    def model_dump(self, *, mode: Literal["python", "json"] = "python") -> dict[str, Any]:
        """Return the page as a dictionary, with its items dumped."""
        items = [item.model_dump() if isinstance(item, Record | OpenRecord) else item for item in self.items]
        page = {"items": items, "limit": self.limit, "offset": self.offset, "total": self.total}
        return page if mode == "python" else decode_json(encode_json(page, what="page", nan="keep"))


# --- requests of lists ------------------------------------------------------------------------------------


class Keyset(Generic[R, P]):
    """The unique key in whose order a list is read, and the cursors that name a place in it.

    `what` names the list and its order in cursors, and `first` is the place where a request without a cursor
    begins. `key` returns the key of a row, and `kinds` are the types of its values.
    """

    __slots__ = ("first", "key", "kinds", "what")

    def __init__(
        self, what: str, first: P, key: Callable[[R], tuple[Value, ...]], kinds: Sequence[Any] | None = None
    ) -> None:
        self.what, self.first, self.key = what, first, key
        start: tuple[Value, ...] | None = first
        self.kinds = tuple(map(type, start or ())) if kinds is None else tuple(kinds)

    def read(self, cursor: str | None) -> P:
        """Return the place that a cursor names, in the type of `first`."""
        values = read_cursor(cursor, self.what, *self.kinds)
        if values is None:
            return self.first
        return cast(P, values if self.first is None else tuple.__new__(type(self.first), values))

    def write(self, row: R) -> str:
        """Return the cursor of the place after a row."""
        return write_cursor(self.what, *self.key(row))

    def next_if_full(self, rows: Sequence[R], limit: int) -> str | None:
        """Return the cursor after the rows of a page if they fill it, so that there may be more."""
        return self.write(rows[-1]) if rows and len(rows) == limit else None

    def open_part(self, limit: int, cursor: str | None, offset: int = 0) -> PartRequest[R, P]:
        """Check the request of a part of the list."""
        check_page(limit, offset, cursor)
        return PartRequest(self, limit, self.read(cursor))

    def open_page(self, limit: int, offset: int, cursor: str | None) -> PageRequest[R, P]:
        """Check the request of a page of the list."""
        check_page(limit, offset, cursor)
        return PageRequest(self, limit, offset, self.read(cursor))


@dataclass(frozen=True, slots=True)
class PartRequest(Generic[R, P]):
    """Request of a part of a list, after a place. Read `rows` rows: the last one shows that there is more."""

    keyset: Keyset[R, P]
    limit: int
    place: P

    @property
    def rows(self) -> int:
        """Number of rows to read: one more than the part has."""
        return self.limit + 1

    def cut(self, rows: Sequence[R]) -> tuple[Sequence[R], str | None]:
        """Return the rows of the part, and the cursor of the next part if there is one."""
        is_cut = 0 < self.limit < len(rows)
        return rows[: self.limit], self.keyset.write(rows[self.limit - 1]) if is_cut else None

    def build_part(self, rows: Sequence[R], build: Callable[[R], T]) -> Part[T]:
        """Build the part from the rows that were read."""
        shown, after = self.cut(rows)
        return Part(items=[build(row) for row in shown], next=after)


@dataclass(frozen=True, slots=True)
class PageRequest(Generic[R, P]):
    """Request of a page of a list with a total, after a place or at an offset."""

    keyset: Keyset[R, P]
    limit: int
    offset: int
    place: P

    def build_page(self, rows: Sequence[R], items: Iterable[T], total: int | None) -> PaginatedResult[T]:
        """Build the page of the items that rows were converted to."""
        return PaginatedResult(
            items=list(items),
            limit=self.limit,
            offset=self.offset,
            total=total,
            next=self.keyset.next_if_full(rows, self.limit),
        )
