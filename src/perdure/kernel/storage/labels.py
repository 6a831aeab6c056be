"""Labels: an index of the metadata of objects, one row for each key.

A filter matches objects that have all the given keys with equal values. Values are compared as JSON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.kernel.checks import check_text
from perdure.kernel.codec import encode_json
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

MAX_KEY = 255
LONGEST = 200
"""Longer values are compared by their hash."""

_ADD = BulkInsert(LABELS)
_DROP = statement("DELETE FROM labels WHERE ns = :ns AND kind = :kind AND id {among:ids}")
_TEST = "id IN (SELECT l.id FROM labels AS l WHERE l.ns = :ns AND l.kind = "


def _value(value: Any) -> str:
    encoded = encode_json(value, what="metadata")
    if len(encoded) <= LONGEST:
        return encoded
    return "sha256:" + hashlib.sha256(encoded.encode()).hexdigest()


def check_keys(metadata: Mapping[str, Any]) -> None:
    """Refuse keys that are too long for the index."""
    for key in metadata:
        check_text(key, "a key of the metadata", max_length=MAX_KEY)


async def set_labels(tx: Tx, kind: str, labels: Mapping[str, Mapping[str, Any]]) -> None:
    """Replace the labels of objects, given by their ids, by their metadata."""
    await drop_labels(tx, kind, list(labels))
    rows = [
        (tx.ns, kind, id, key, _value(value)) for id, found in labels.items() for key, value in found.items()
    ]
    await tx.write((_ADD, rows))


async def drop_labels(tx: Tx, kind: str, ids: Sequence[str]) -> None:
    await tx.execute(_DROP, kind=kind, ids=list(ids))


def labelled(kind: str, metadata: Mapping[str, Any]) -> Clause:
    """The condition that the object with the column `id` has these labels."""
    parts: list[str] = []
    values: dict[str, Any] = {"label_kind": kind}
    for number, (key, value) in enumerate(metadata.items()):
        at = str(number)
        parts.append(
            _TEST + ":label_kind AND l.key = :label_key" + at + " AND l.value = :label_value" + at + ")"
        )
        values["label_key" + at], values["label_value" + at] = key, _value(value)
    return Clause(" AND ".join(parts), values) if parts else Clause("TRUE", {})


name_statements(globals())
