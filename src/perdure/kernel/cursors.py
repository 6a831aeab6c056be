"""Cursors of lists: a text with the list, its order, and the last row of a page.

Callers pass the `next` value of the previous page. A cursor of another list or order is refused.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import crc32
from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.kernel.checks import check_text
from perdure.kernel.errors import InvalidInput

MAX_CURSOR = 4096
"""Maximum length of a cursor."""
Value = str | int | None
Place = tuple[Value, ...]
"""Sort values of the last row of a page."""
Kinds = Sequence[Any]
"""Types of the values in a place: `int`, `str`, or either `| None`."""

LAST = 2**63 - 1
"""Larger than every other number."""


def write_cursor(what: str, *values: Value) -> str:
    """Encode the cursor of a place in a list; `what` names the list and its order."""
    return urlsafe_b64encode(msgspec.json.encode((crc32(what.encode()), *values))).decode().rstrip("=")


def read_cursor(cursor: object, what: str, *kinds: Any) -> tuple[Any, ...] | None:
    """Decode a cursor of this list and order; None without a cursor, InvalidInput for any other cursor."""
    if cursor is None:
        return None
    text = check_text(cursor, "cursor", max_length=MAX_CURSOR)
    try:
        decoded = msgspec.json.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=list[Value])
    except (ValueError, msgspec.MsgspecError):
        raise _build_error(text) from None
    if len(decoded) != len(kinds) + 1 or decoded[0] != crc32(what.encode()):
        raise _build_error(text)
    values = tuple(decoded[1:])
    if not all(_is_valid(value, kind) for value, kind in zip(values, kinds, strict=True)):
        raise _build_error(text)
    return values


def _is_valid(value: Value, kind: Any) -> bool:
    if not isinstance(value, kind):
        return False
    if isinstance(value, str):
        check_text(value, "cursor", max_length=MAX_CURSOR)
    return not isinstance(value, int) or -LAST <= value <= LAST


def _build_error(cursor: str) -> InvalidInput:
    return InvalidInput(
        f"invalid cursor {cursor[:64]!r}; pass the `next` value of the previous page of this list"
    )
