"""A page of a list, as every door gives it."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], kw_only=True):
    """A page of a list, and how long the whole is."""

    items: list[T]
    limit: int
    offset: int
    total: int
