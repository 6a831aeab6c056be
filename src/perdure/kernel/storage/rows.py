"""Rows with names: rows of a query as records, and records as rows of a bulk write.

A row class is a `NamedTuple`, a `msgspec.Struct` for mutable rows, or a plain type (`int`, `str`, `bytes`)
for a query of one column. Its fields are the columns of the query, except Struct fields with a default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from itertools import starmap
from operator import attrgetter, itemgetter
from typing import Any, Generic, ParamSpec, TypeVar

import msgspec

from perdure.kernel.errors import NotADatabase

Row = Sequence[Any]
"""A row of a statement without a row class."""

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

VALUES = (int, str, bytes)
"""Row classes of queries with one column."""


def get_columns(row: type[Any]) -> tuple[str, ...]:
    """Return the columns that a row class names; none for a single value."""
    if row in VALUES:
        return ()
    if issubclass(row, msgspec.Struct):
        fields = row.__struct_fields__
        return fields[: len(fields) - len(row.__struct_defaults__)]
    return tuple(row._fields)


def projection(view: type[R]) -> Callable[[Any], R]:
    """Build a function that reads the fields of a `NamedTuple` class from a row with more fields."""
    read, make = attrgetter(*get_columns(view)), partial(tuple.__new__, view)  # type: ignore[type-var]
    return lambda row: make(read(row))


class Maker(Generic[R]):
    """Builds records of one class from the rows of a query."""

    __slots__ = ("_make", "_make_all", "_row", "_width")

    def __init__(self, row: type[R]) -> None:
        self._row = row
        self._width = len(get_columns(row)) or 1
        self._make: Callable[[Row], R]
        self._make_all: Callable[[Iterable[Row]], Iterable[R]]
        if row in VALUES:
            self._make = itemgetter(0)
        elif issubclass(row, msgspec.Struct):
            self._make = lambda values: row(*values)
        else:
            # Same as the class's `_make`, without its check of each row.
            self._make = partial(tuple.__new__, row)  # type: ignore[type-var]
        is_struct = issubclass(row, msgspec.Struct)
        self._make_all = partial(starmap, row) if is_struct else partial(map, self._make)

    def one(self, values: Row, name: str) -> R:
        """Convert a row of the statement `name` to a record."""
        if len(values) != self._width:
            raise self._mismatch(values, name)
        return self._make(values)

    def all(self, rows: Sequence[Row], name: str) -> list[R]:
        """Convert all rows of the statement `name` to records."""
        if rows and len(rows[0]) != self._width:
            raise self._mismatch(rows[0], name)
        return list(self._make_all(rows))

    def _mismatch(self, values: Row, name: str) -> AssertionError:
        what = name or "a statement"
        return AssertionError(
            f"{what} returns {len(values)} columns, but {self._row.__name__} has {self._width}"
        )


class RecordReader:
    """Reads the values of a bulk write from records. Records without `ns` get the transaction's."""

    __slots__ = ("_read", "ns_at")

    def __init__(self, row: type[Any], what: str, attributes: Sequence[str]) -> None:
        missing = [name for name in attributes if name != "ns" and not hasattr(row, name)]
        if missing:
            raise AssertionError(f"{what}: {row.__name__} has no {', '.join(missing)}")
        own = tuple(name for name in attributes if hasattr(row, name))
        self.ns_at = attributes.index("ns") if len(own) < len(attributes) else None
        """Position of the transaction's `ns` among the values; None if it is not added."""
        self._read = _build_reader(row, own)

    def tuples(self, rows: Sequence[Any], ns: int | None) -> list[Any]:
        """Return the values of each record; an added namespace comes first."""
        read = self._read
        return list(map(read, rows)) if self.ns_at is None else [(ns, *read(row)) for row in rows]

    def columns(self, rows: Sequence[Any], ns: int | None) -> list[tuple[Any, ...]]:
        """Return the values of each column, in the order of the attributes."""
        columns = list(zip(*map(self._read, rows), strict=True))
        if self.ns_at is not None:
            columns.insert(self.ns_at, (ns,) * len(rows))
        return columns


def _build_reader(row: type[Any], names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return the fastest function that reads these fields of a record."""
    if getattr(row, "_fields", None) == names:
        return tuple
    if getattr(row, "__struct_fields__", None) == names:
        return msgspec.structs.astuple
    # With one name `attrgetter` would return a bare value.
    return attrgetter(*names) if len(names) > 1 else lambda record: (getattr(record, names[0]),)


def stored(decode: Callable[P, R]) -> Callable[P, R]:
    """Wrap a decoder of stored values: an invalid value means that the database is damaged."""

    @wraps(decode)
    def decoded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return decode(*args, **kwargs)
        except (ValueError, TypeError, KeyError) as error:
            raise NotADatabase(f"a stored record is damaged: {error}") from error

    return decoded
