"""Rows with names: how the rows of a query become records, and records the rows of a bulk write.

A row class is a `NamedTuple`, a `msgspec.Struct` for rows that are worked on, or a plain type (`int`, `str`,
`bytes`) for a query of one column. Its fields are the columns of the query; those of a Struct that have a
default are no columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat, starmap
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeVar

import msgspec

Row = Sequence[Any]
"""A row of a statement without a row class."""

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

VALUES = (int, str, bytes)
"""The row classes of queries with one column."""


def columns_of(row: type[Any]) -> tuple[str, ...]:
    """The columns that a row class names; none for a single value."""
    if row in VALUES:
        return ()
    if issubclass(row, msgspec.Struct):
        fields = row.__struct_fields__
        return fields[: len(fields) - len(row.__struct_defaults__)]
    return tuple(row._fields)


class Maker(Generic[R]):
    """Makes records of one class out of the rows that a query returns."""

    __slots__ = ("_make", "_make_all", "_row", "_width")

    def __init__(self, row: type[R]) -> None:
        self._row = row
        self._width = len(columns_of(row)) or 1
        self._make: Callable[[Row], R]
        self._make_all: Callable[[Iterable[Row]], Iterable[R]]
        if row in VALUES:
            self._make = itemgetter(0)
        elif issubclass(row, msgspec.Struct):
            self._make = lambda values: row(*values)
        else:
            # What `_make` does, without its check of each row.
            self._make = partial(tuple.__new__, row)  # type: ignore[type-var]
        is_struct = issubclass(row, msgspec.Struct)
        self._make_all = partial(starmap, row) if is_struct else partial(map, self._make)

    def one(self, values: Row, name: str) -> R:
        """The record of a row that the statement `name` returned."""
        if len(values) != self._width:
            raise self._mismatch(values, name)
        return self._make(values)

    def all(self, rows: Sequence[Row], name: str) -> list[R]:
        """The records of all rows that the statement `name` returned."""
        if rows and len(rows[0]) != self._width:
            raise self._mismatch(rows[0], name)
        return list(self._make_all(rows))

    def _mismatch(self, values: Row, name: str) -> AssertionError:
        what = name or "a statement"
        return AssertionError(
            f"{what} returns {len(values)} columns, but {self._row.__name__} has {self._width}"
        )


class Reader:
    """Reads the columns of a bulk write from records. `ns` is the transaction's where they have none."""

    __slots__ = ("_columns", "_is_plain")

    def __init__(self, row: type[Any], what: str, attributes: Sequence[str]) -> None:
        missing = [name for name in attributes if name != "ns" and not hasattr(row, name)]
        if missing:
            raise AssertionError(f"{what}: {row.__name__} has no {', '.join(missing)}")
        self._is_plain = tuple(getattr(row, "_fields", ())) == tuple(attributes)
        self._columns = [
            None if name == "ns" and not hasattr(row, name) else attrgetter(name) for name in attributes
        ]

    def columns(self, rows: Sequence[Any], ns: int | None) -> Iterable[Iterable[Any]]:
        """The values of each column."""
        if self._is_plain:
            return zip(*rows, strict=True)
        count = len(rows)
        return [repeat(ns, count) if read is None else map(read, rows) for read in self._columns]

    def tuples(self, rows: Sequence[Any], ns: int | None) -> Iterable[Sequence[Any]]:
        """The values of each row, in the order of the columns."""
        return rows if self._is_plain else zip(*self.columns(rows, ns), strict=True)
