"""Labels: an index of the metadata of objects, one row per key.

A filter matches objects that have all its keys with equal values. Values are compared as JSON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perdure.kernel.checks import MAX_KEY, check_object, check_text
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import InvalidInput, TooLarge
from perdure.kernel.storage.dialect import BulkInsert, name_statements, statement
from perdure.kernel.storage.filters import Clause
from perdure.kernel.storage.port import Tx
from perdure.kernel.storage.schema import Index, Table, integer, text

LABELS = Table(
    "labels",
    (integer("ns"), text("kind"), text("id"), text("key"), text("value")),
    key=("ns", "kind", "id", "key"),
    indexes=(Index("labels_value", ("ns", "kind", "key", "value", "id")),),
)
TABLES = (LABELS,)

MAX_KEYS = 1000
MAX_BYTES = 64 << 10
"""Maximum size of metadata as JSON."""
LONGEST = 200
"""Longer values are compared by their hash."""
FEW = 1000
"""Fewer objects with a label are looked up by their ids."""
SLICE = 1000
"""Number of rows per statement."""

_ADD = BulkInsert(LABELS)
_PUT = BulkInsert(LABELS, on_conflict="UPDATE SET value = excluded.value")
_DROP = statement("DELETE FROM labels WHERE ns = :ns AND kind = :kind AND id {among:ids}")
# Labels of an object, for its copy.
_COPY = statement(
    "INSERT INTO labels (ns, kind, id, key, value) SELECT ns, kind, :copy, key, value FROM labels"
    " WHERE ns = :ns AND kind = :kind AND id = :id"
)
# Number of objects with a label, up to a limit.
_COUNT = statement(
    "SELECT count(*) FROM (SELECT 1 FROM labels WHERE ns = :ns AND kind = :kind AND key = :key"
    " AND value = :value LIMIT :n) AS found",
    row=int,
)
_OF_ROW = " = (SELECT l.value FROM labels AS l WHERE l.ns = :ns AND l.kind = :label_kind AND l.id = "
_TEST = "id IN (SELECT l.id FROM labels AS l WHERE l.ns = :ns AND l.kind = "


def encode_labels(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Encode the values of metadata for `set_labels`, outside the transaction."""
    return {key: _encode_value(value) for key, value in metadata.items()}


def _encode_value(value: Any) -> str:
    encoded = encode_json(value, what="metadata")
    if len(encoded) <= LONGEST:
        return encoded
    return "sha256:" + hashlib.sha256(encoded.encode()).hexdigest()


def encode_metadata(value: object, *, known: str = "{}") -> str:
    """Encode metadata as JSON within the limits.

    `known` is the replaced metadata: metadata of an earlier release may exceed a limit, but must not grow.
    """
    metadata = check_object(value, "metadata")
    _check_count(len(metadata), known)
    for key in metadata:
        check_text(key, "a key of the metadata", max_length=MAX_KEY)
    text = encode_json(metadata, what="metadata")
    _check_size(text, "metadata", known)
    return text


def check_size(metadata: Mapping[str, Any], text: str, what: str) -> None:
    """Refuse metadata, given with its JSON, beyond the limits; for metadata without labels."""
    _check_count(len(metadata), "{}", what)
    _check_size(text, what, "{}")


def _check_count(count: int, known: str, what: str = "metadata") -> None:
    if count > MAX_KEYS and count > len(decode_json(known)):
        raise InvalidInput(f"{what} would have {count} keys; it takes at most {MAX_KEYS}")


def _check_size(text: str, what: str, known: str) -> None:
    size = len(text.encode())
    if size > MAX_BYTES and size > len(known.encode()):
        raise TooLarge(f"{what} would have {size} bytes as JSON; it takes at most {MAX_BYTES}")


async def set_labels(tx: Tx, kind: str, labels: Mapping[str, Mapping[str, str]]) -> None:
    """Replace the labels of objects, given as results of `encode_labels` by id."""
    await drop_labels(tx, kind, list(labels))
    for rows in _build_slices(tx, kind, labels):
        await tx.write((_ADD, rows))


async def copy_labels(tx: Tx, kind: str, id: str, copy: str) -> None:
    """Give a new object the labels of another one."""
    await tx.execute(_COPY, kind=kind, id=id, copy=copy)


async def put_labels(tx: Tx, kind: str, labels: Mapping[str, Mapping[str, str]]) -> None:
    """Add or change labels of objects with the next write of the transaction; other labels stay."""
    for rows in _build_slices(tx, kind, labels):
        await tx.defer((_PUT, rows))


def _build_slices(
    tx: Tx, kind: str, labels: Mapping[str, Mapping[str, str]]
) -> Iterator[Sequence[tuple[Any, ...]]]:
    rows = [(tx.ns, kind, id, key, value) for id, values in labels.items() for key, value in values.items()]
    for start in range(0, len(rows), SLICE):
        yield rows[start : start + SLICE]


async def drop_labels(tx: Tx, kind: str, ids: Sequence[str]) -> None:
    await tx.execute(_DROP, kind=kind, ids=list(ids))


async def few_labelled(tx: Tx, kind: str, table: str, metadata: Mapping[str, Any]) -> Clause:
    """Return the condition of `labelled` for a list that may be very long; `table` names its rows.

    If one label has few objects, its ids start the search. Otherwise rows are tested in the order of the list
    until the page is full, assuming that many objects have all the labels.
    """
    rare: str | None = None
    for key, value in metadata.items():
        if int(await tx.one(_COUNT, kind=kind, key=key, value=_encode_value(value), n=FEW) or 0) < FEW:
            rare = key
            break
    clause = Clause("TRUE", {}) if rare is None else labelled(kind, {rare: metadata[rare]})
    parts, values = [clause.sql], {"label_kind": kind, **clause.values}
    for number, (key, value) in enumerate(metadata.items()):
        if key != rare:
            at = str(number)
            parts.append(":tested" + at + _OF_ROW + table + ".id AND l.key = :tested_key" + at + ")")
            values["tested" + at], values["tested_key" + at] = _encode_value(value), key
    return Clause(" AND ".join(parts), values)


def labelled(kind: str, metadata: Mapping[str, Any]) -> Clause:
    """Return the condition that the object with the column `id` has these labels."""
    parts: list[str] = []
    values: dict[str, Any] = {"label_kind": kind}
    for number, (key, value) in enumerate(metadata.items()):
        at = str(number)
        parts.append(
            _TEST + ":label_kind AND l.key = :label_key" + at + " AND l.value = :label_value" + at + ")"
        )
        values["label_key" + at], values["label_value" + at] = key, _encode_value(value)
    return Clause(" AND ".join(parts), values) if parts else Clause("TRUE", {})


name_statements(globals())
