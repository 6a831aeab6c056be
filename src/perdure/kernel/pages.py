"""Pages of lists: with the total if it is cheap, or only with the cursor of the next page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, Literal, TypeVar, overload

import msgspec

from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.record import OpenRecord, Record

T = TypeVar("T")


class QueryPage(msgspec.Struct, Generic[T], kw_only=True):
    """A page of a query, with the total number of items."""

    items: list[T]
    limit: int
    offset: int
    total: int


class Page(msgspec.Struct, Generic[T], kw_only=True):
    """A page of a list. `next` is the cursor of the next page, `total` the number of all items.

    Very long lists have a total only if it is stored, if this page is the last, or with `total=true`.
    """

    items: list[T]
    limit: int
    offset: int
    total: int | None
    next: str | None = None


class Part(msgspec.Struct, Generic[T], kw_only=True):
    """A part of a list. `next` is the cursor of the next part."""

    items: list[T]
    next: str | None = None


class ListPart(list[T]):
    """A part of a list; `next` is the cursor of the next part, if there may be more."""

    __slots__ = ("next",)

    def __init__(self, items: Iterable[T] = (), next: str | None = None) -> None:
        super().__init__(items)
        self.next = next


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
