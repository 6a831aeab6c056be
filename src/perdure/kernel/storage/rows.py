"""Rows with names: how the rows of a query become records, and records the rows of a bulk write.

A row class is a `NamedTuple`, a `msgspec.Struct` for rows that are worked on, or a plain type (`int`, `str`,
`bytes`) for a query of one column. Its fields are the columns of the query; those of a Struct that have a
default are no columns.
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
"""The row classes of queries with one column."""


def get_columns(row: type[Any]) -> tuple[str, ...]:
    """The columns that a row class names; none for a single value."""
    if row in VALUES:
        return ()
    if issubclass(row, msgspec.Struct):
        fields = row.__struct_fields__
        return fields[: len(fields) - len(row.__struct_defaults__)]
    return tuple(row._fields)


def projection(view: type[R]) -> Callable[[Any], R]:
    """A function that takes the fields of a `NamedTuple` class out of a row that has more."""
    read, make = attrgetter(*get_columns(view)), partial(tuple.__new__, view)  # type: ignore[type-var]
    return lambda row: make(read(row))


class Maker(Generic[R]):
    """Makes records of one class out of the rows that a query returns."""

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


class RecordReader:
    """Reads the values of a bulk write from records. `ns` is the transaction's where they have none."""

    __slots__ = ("_read", "ns_at")

    def __init__(self, row: type[Any], what: str, attributes: Sequence[str]) -> None:
        missing = [name for name in attributes if name != "ns" and not hasattr(row, name)]
        if missing:
            raise AssertionError(f"{what}: {row.__name__} has no {', '.join(missing)}")
        own = tuple(name for name in attributes if hasattr(row, name))
        self.ns_at = attributes.index("ns") if len(own) < len(attributes) else None
        """The place of the transaction's `ns` among the values, if it is to be added."""
        self._read = _build_reader(row, own)

    def tuples(self, rows: Sequence[Any], ns: int | None) -> list[Any]:
        """The values of each record; a namespace that is added comes first."""
        read = self._read
        return list(map(read, rows)) if self.ns_at is None else [(ns, *read(row)) for row in rows]

    def columns(self, rows: Sequence[Any], ns: int | None) -> list[tuple[Any, ...]]:
        """The values of each column, in the order of the attributes."""
        columns = list(zip(*map(self._read, rows), strict=True))
        if self.ns_at is not None:
            columns.insert(self.ns_at, (ns,) * len(rows))
        return columns


def _build_reader(row: type[Any], names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """What reads these fields: of a whole record, the quickest way there is."""
    if getattr(row, "_fields", None) == names:
        return tuple
    if getattr(row, "__struct_fields__", None) == names:
        return msgspec.structs.astuple
    # With one name it would return the value alone.
    return attrgetter(*names) if len(names) > 1 else lambda record: (getattr(record, names[0]),)


def stored(decode: Callable[P, R]) -> Callable[P, R]:
    """What is stored was valid when it was written: where it is not, the database is damaged."""

    @wraps(decode)
    def decoded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return decode(*args, **kwargs)
        except (ValueError, TypeError, KeyError) as error:
            raise NotADatabase(f"a stored record is damaged: {error}") from error

    return decoded
