"""The result of an import: counts and refusals."""

from __future__ import annotations

from typing import Final

import msgspec

MAX_REFUSALS: Final = 100
"""Maximum refusals in a report."""


class ImportCount(msgspec.Struct, kw_only=True):
    """Counts of one kind of data in a source."""

    kind: str
    found: int = 0
    added: int = 0
    present: int = 0
    refused: int = 0


class ImportRefusal(msgspec.Struct, frozen=True):
    """A record that was not imported, and the reason."""

    kind: str
    id: str
    reason: str


class ImportReport(msgspec.Struct, kw_only=True):
    """An import; in a dry run, `added` counts what would be added."""

    source: str
    dry_run: bool = False
    counts: list[ImportCount] = []
    refusals: list[ImportRefusal] = []

    def count(self, kind: str) -> ImportCount:
        """Return the counts of a kind."""
        count = next((entry for entry in self.counts if entry.kind == kind), None)
        if count is None:
            count = ImportCount(kind=kind)
            self.counts.append(count)
        return count

    def refuse(self, kind: str, id: str, reason: str) -> None:
        """Count a record that cannot be imported, and keep the first ones with their reasons."""
        self.count(kind).refused += 1
        if len(self.refusals) < MAX_REFUSALS:
            self.refusals.append(ImportRefusal(kind, id, reason))
