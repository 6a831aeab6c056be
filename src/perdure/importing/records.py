"""What an import found, and what became of it."""

from __future__ import annotations

from typing import Final

import msgspec

MAX_REFUSALS: Final = 100
"""Number of refusals that a report names."""


class ImportCount(msgspec.Struct, kw_only=True):
    """Numbers of one kind of data in a source."""

    kind: str
    found: int = 0
    added: int = 0
    present: int = 0
    refused: int = 0


class ImportRefusal(msgspec.Struct, frozen=True):
    """Something that was not imported, and why."""

    kind: str
    id: str
    reason: str


class ImportReport(msgspec.Struct, kw_only=True):
    """An import; in a dry run, `added` is what would be added."""

    source: str
    dry_run: bool = False
    counts: list[ImportCount] = []
    refusals: list[ImportRefusal] = []

    def count(self, kind: str) -> ImportCount:
        """Return the numbers of a kind."""
        known = next((each for each in self.counts if each.kind == kind), None)
        if known is None:
            known = ImportCount(kind=kind)
            self.counts.append(known)
        return known

    def refuse(self, kind: str, id: str, reason: str) -> None:
        """Count something that cannot be imported; the first ones are named."""
        self.count(kind).refused += 1
        if len(self.refusals) < MAX_REFUSALS:
            self.refusals.append(ImportRefusal(kind, id, reason))
