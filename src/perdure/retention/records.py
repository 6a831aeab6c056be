"""What callers see of retention."""

from __future__ import annotations

from perdure.kernel.record import Record


class Sweep(Record, kw_only=True):
    """One kind of data: how long it is kept, and how much of it was, or would be, deleted."""

    kind: str
    days: float | None
    """None keeps it."""
    deleted: int


class GcReport(Record, kw_only=True):
    """What a sweep deleted; with `dry_run`, what it would delete."""

    dry_run: bool
    items: list[Sweep]


class TableStats(Record, kw_only=True):
    """How many rows a kind of data has, in all namespaces."""

    kind: str
    rows: int


class DatabaseStats(Record, kw_only=True):
    """How much a database holds."""

    database: str
    engine: str
    bytes: int
    items: list[TableStats]
