"""How the columns of a bulk write reach PostgreSQL: as arrays.

Whole numbers, and texts that are `short` and never long bodies, travel as the text of an array: one by one
they take the client far longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def array_cast(scalar: str, *, short: bool) -> str:
    """What follows the parameter of an array with this type of element."""
    as_text = scalar == "bigint" or (short and scalar == "text")
    return "::text::" + scalar + "[]" if as_text else "::" + scalar + "[]"


def array(column: Sequence[Any], kind: str, *, short: bool) -> Any:
    """A column of this kind as it is sent."""
    if kind == "int":
        return "{" + ",".join(["NULL" if number is None else str(number) for number in column]) + "}"
    return _texts(column) if short and kind == "text" else column


def _texts(column: Sequence[str | None]) -> str:
    try:
        joined = '","'.join(column)  # type: ignore[arg-type]
    except TypeError:
        return "{" + ",".join(map(_quoted, column)) + "}"
    if "\\" in joined or joined.count('"') > 2 * (len(column) - 1):
        return "{" + ",".join(map(_quoted, column)) + "}"
    return '{"' + joined + '"}'


def _quoted(text: str | None) -> str:
    return "NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
