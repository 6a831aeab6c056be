"""Columns of a bulk write as PostgreSQL arrays.

Integers, and texts that are `short` and never long bodies, are sent as the text of an array: encoding the
elements one by one takes the client far longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def array_cast(scalar: str, *, short: bool) -> str:
    """Return the cast for an array parameter with this element type."""
    as_text = scalar == "bigint" or (short and scalar == "text")
    return "::text::" + scalar + "[]" if as_text else "::" + scalar + "[]"


def array(column: Sequence[Any], kind: str, *, short: bool) -> Any:
    """Encode a column of this kind for sending."""
    if kind == "int":
        return "{" + ",".join(["NULL" if number is None else str(number) for number in column]) + "}"
    return _texts(column) if short and kind == "text" else column


def _texts(column: Sequence[str | None]) -> str:
    try:
        joined = '","'.join(column)  # type: ignore[arg-type]
    except TypeError:
        return "{" + ",".join(map(_quote, column)) + "}"
    if "\\" in joined or joined.count('"') > 2 * (len(column) - 1):
        return "{" + ",".join(map(_quote, column)) + "}"
    return '{"' + joined + '"}'


def _quote(text: str | None) -> str:
    return "NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
