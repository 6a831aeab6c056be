"""Changes of totals by an operation; their rows are locked after all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.kernel.storage.dialect import BulkInsert, Write


class TotalChanges:
    """Changes of totals by an operation: by namespace and insert, then by row key."""

    __slots__ = ("_added",)

    def __init__(self) -> None:
        self._added: dict[tuple[int | None, BulkInsert[Any]], dict[tuple[Any, ...], int]] = {}

    def __bool__(self) -> bool:
        return bool(self._added)

    def add(self, ns: int | None, insert: BulkInsert[Any], rows: Sequence[Any]) -> None:
        if rows:
            added = self._added.setdefault((ns, insert), {})
            for *values, more in rows:
                key = tuple(values)
                added[key] = added.get(key, 0) + more

    def take(self) -> dict[int | None, list[Write]]:
        """Return the writes of each namespace with the changed rows, sorted by table and key."""
        added, self._added = self._added, {}
        writes: dict[int | None, list[Write]] = {}
        for (ns, insert), totals in sorted(added.items(), key=lambda e: (e[0][0] or 0, e[0][1].table.name)):
            rows = [insert.row(*key, more) for key, more in sorted(totals.items()) if more]
            writes.setdefault(ns, []).append((insert, rows))
        return writes
