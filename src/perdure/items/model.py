"""Rules of items: namespaces as paths, checked values, filters. This module is pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, Final, NamedTuple

from msgspec import UNSET, UnsetType

from perdure.items.records import Item, ItemPolicy, NamespaceMatch
from perdure.kernel import checks
from perdure.kernel.checks import check_text
from perdure.kernel.clock import MICROS, to_seconds, to_seconds_or_none
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import InvalidInput
from perdure.kernel.json_values import COMPARISONS, has_operators
from perdure.kernel.pages import Keyset

MAX_PATH = 1024
MAX_KEY = 1024
MAX_LABELS = 64
MAX_ROWS = 2**53
MAX_TTL_MINUTES = 100 * 366 * 24 * 60
MAX_NEEDLES = 8
RESERVED_ROOT = "langgraph"
ANY_LABEL = "*"

_MINUTE = 60 * MICROS
# Lower than every first character of a label, so that paths sort like lists of labels.
_BEFORE_LABEL = "\x01"
_AFTER_PATH = "\x02"


# --- namespaces -------------------------------------------------------------------------------------------


def check_labels(namespace: object, what: str = "namespace") -> tuple[str, ...]:
    """Check the labels of a namespace, which may be empty."""
    if isinstance(namespace, str) or not isinstance(namespace, Sequence):
        raise InvalidInput(f"{what} must be a list of labels, not {type(namespace).__name__}")
    if len(namespace) > MAX_LABELS:
        raise InvalidInput(f"{what} must have at most {MAX_LABELS} labels")
    for label in namespace:
        _check_label(label, what)
    labels = tuple(namespace)
    check_text(encode_namespace(labels), what, max_length=MAX_PATH)
    return labels


def _check_label(label: object, what: str) -> None:
    if not isinstance(label, str):
        raise InvalidInput(f"a label of {what} must be a string, not {type(label).__name__}")
    if not label:
        raise InvalidInput(f"a label of {what} must not be empty")
    if "." in label or "\0" in label:
        raise InvalidInput(f"the label {label[:64]!r} of {what} must not contain a period or NUL")


def check_namespace(namespace: object) -> tuple[str, ...]:
    """Check the labels of a namespace that holds items."""
    labels = check_labels(namespace)
    if not labels:
        raise InvalidInput("the namespace must not be empty")
    root, *_ = labels
    if root == RESERVED_ROOT:
        raise InvalidInput(f"the first label of the namespace must not be {RESERVED_ROOT!r}")
    return labels


def encode_namespace(labels: Sequence[str]) -> str:
    """Encode a namespace as text: its children begin with it, and texts sort like namespaces."""
    return "".join(_BEFORE_LABEL + _escape(label) for label in labels)


def _escape(label: str) -> str:
    return label.replace("\x02", "\x02\x02").replace("\x01", "\x02\x01")


def decode_namespace(path: str) -> tuple[str, ...]:
    return tuple(_unescape(part) for part in _split_parts(path)) if path else ()


def _split_parts(path: str) -> list[str]:
    if "\x02" not in path:
        return path[1:].split(_BEFORE_LABEL)
    parts, at = [""], 1
    while at < len(path):
        width = 2 if path[at] == "\x02" else 1
        if path[at] == _BEFORE_LABEL:
            parts.append("")
        else:
            parts[-1] += path[at : at + width]
        at += width
    return parts


def _unescape(part: str) -> str:
    if "\x02" not in part:
        return part
    return "\x02".join(piece.replace("\x02\x01", "\x01") for piece in part.split("\x02\x02"))


def build_namespace_range(path: str) -> tuple[str, str]:
    """Return the first path at or below a namespace, and the first path after all of them."""
    return path, path + _AFTER_PATH


def build_search_range(matches: Sequence[NamespaceMatch]) -> tuple[str, str]:
    """Return the range that contains every match: prefixes up to their first wildcard."""
    longest: tuple[str, ...] = ()
    for match in matches:
        if match.kind == "prefix":
            literal = match.path[: match.path.index(ANY_LABEL)] if ANY_LABEL in match.path else match.path
            longest = max(longest, tuple(literal), key=len)
    return build_namespace_range(encode_namespace(longest))


def fits(labels: Sequence[str], matches: Sequence[NamespaceMatch]) -> bool:
    """Return whether a namespace meets every match."""
    return all(_match_labels(labels, match) for match in matches)


def _match_labels(labels: Sequence[str], match: NamespaceMatch) -> bool:
    count = len(match.path)
    if len(labels) < count:
        return False
    part = labels[:count] if match.kind == "prefix" else labels[len(labels) - count :]
    return all(wanted in (ANY_LABEL, label) for label, wanted in zip(part, match.path, strict=True))


# --- what callers give ------------------------------------------------------------------------------------


class NewItem(NamedTuple):
    """A checked item to be stored; without a value it is deleted."""

    path: str
    key: str
    value: str | None
    ttl: int | None = None
    """Microseconds until the item expires, counted from its last use."""
    vectors: tuple[tuple[str, bytes], ...] = ()
    """Vectors of the item by field."""


def check_key(key: object) -> str:
    return check_text(key, "key", max_length=MAX_KEY)


def check_object(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidInput("the value of an item must be an object")
    return dict(value)


def encode_value(value: object) -> str:
    return encode_json(check_object(value), what="the value")


def compute_ttl(minutes: float | UnsetType | None, policy: ItemPolicy) -> int | None:
    """Return the TTL of an item in microseconds."""
    if minutes is UNSET:
        minutes = policy.default_ttl
    if minutes is None:
        return None
    if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not isfinite(minutes):
        raise InvalidInput(f"the TTL is {minutes!r}; it must be a number of minutes")
    if not 0 < minutes <= MAX_TTL_MINUTES:
        raise InvalidInput(f"the TTL is {minutes!r} minutes; it must be above 0 and at most a hundred years")
    return max(1, round(minutes * _MINUTE))


def check_index(index: object) -> list[str] | bool | None:
    """Return the indexed fields of an item: the default ones (None), none (False), or a list."""
    if index is None or index is False:
        return index
    if isinstance(index, str) or not isinstance(index, Sequence):
        raise InvalidInput("index must be false, or a list of the paths of fields")
    return [check_text(path, "a path of index") for path in index]


# --- filters ----------------------------------------------------------------------------------------------


def check_filter(filter: object) -> dict[str, Any]:
    """Check a filter and return it as plain JSON data; InvalidInput for an unknown operator."""
    checked = checks.check_filter(filter, "filter")
    conditions: dict[str, Any] = decode_json(encode_json(checked, what="filter"))
    for condition in conditions.values():
        _check_condition(condition)
    return conditions


def _check_condition(condition: Any) -> None:
    if isinstance(condition, dict):
        if has_operators(condition):
            for name in condition:
                if name not in COMPARISONS:
                    operators = ", ".join(COMPARISONS)
                    raise InvalidInput(f"filter has no operator {name[:64]!r}; use one of {operators}")
            return
        condition = list(condition.values())
    if isinstance(condition, list):
        for value in condition:
            _check_condition(value)


def needles(conditions: Mapping[str, Any]) -> list[str]:
    """Return texts contained in the JSON of every matching value, so that the database skips other rows."""
    texts = dict.fromkeys(encode_json(text) for text in _list_texts(list(conditions.values())))
    return list(texts)[:MAX_NEEDLES]


def _list_texts(condition: Any) -> Iterator[str]:
    if isinstance(condition, str):
        yield condition
    elif isinstance(condition, list):
        for entry in condition:
            yield from _list_texts(entry)
    elif isinstance(condition, dict):
        if not has_operators(condition):
            yield from _list_texts(list(condition.values()))
        elif "$eq" in condition and isinstance(condition["$eq"], str):
            yield condition["$eq"]


# --- rows -------------------------------------------------------------------------------------------------


class ItemRow(NamedTuple):
    """An item as it is read; its value is JSON."""

    path: str
    key: str
    created: int
    updated: int
    expires: int | None
    value: str


class NewItemRow(NamedTuple):
    """An item as it is written."""

    path: str
    key: str
    created: int
    updated: int
    expires: int | None
    ttl: int | None
    value: str


class ExpiredItemRow(NamedTuple):
    """The key of an expired item."""

    ns: int
    path: str
    key: str


class EndsRow(NamedTuple):
    """The first and last namespace of a range, if there are any."""

    lowest: str | None
    highest: str | None


class ItemVectorRow(NamedTuple):
    """The vector of a field of an item."""

    path: str
    key: str
    field: str
    vector: bytes


class ValuedVectorRow(NamedTuple):
    """A vector with the value of its item."""

    path: str
    key: str
    field: str
    vector: bytes
    value: str


def row_to_item(row: ItemRow, score: float | None = None) -> Item:
    """Convert a row to an item."""
    return Item(
        namespace=list(decode_namespace(row.path)),
        key=row.key,
        value=decode_json(row.value),
        created_at=to_seconds(row.created),
        updated_at=to_seconds(row.updated),
        expires_at=to_seconds_or_none(row.expires),
        score=score,
    )


NAMESPACES: Final = Keyset[tuple[str, ...], tuple[str]](
    "namespaces of items", ("",), lambda labels: (encode_namespace(labels),)
)


def format_name(path: str, key: str) -> str:
    """Return the name of an item for people: its labels and its key."""
    return ".".join(decode_namespace(path)) + "/" + key
