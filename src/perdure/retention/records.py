"""Records of retention."""

from __future__ import annotations

from perdure.kernel.record import Record


class Sweep(Record, kw_only=True):
    """A kind of data: how long it is kept, and how much of it was, or would be, deleted."""

    kind: str
    days: float | None
    """None keeps the data."""
    deleted: int


class GcReport(Record, kw_only=True):
    """Result of a sweep; with `dry_run`, what it would delete."""

    dry_run: bool
    items: list[Sweep]
    complete: bool = True
    """False if there may be more: a call stops after some seconds, and the next one continues."""


class TableStats(Record, kw_only=True):
    """Number of rows of a kind of data, in all namespaces."""

    kind: str
    rows: int


class DatabaseStats(Record, kw_only=True):
    """Size of a database."""

    database: str
    engine: str
    bytes: int
    items: list[TableStats]


class Finding(Record, kw_only=True):
    """Result of a check: the number of rows that break its rule, and a sentence if there are any."""

    check: str
    ok: bool
    found: int
    sentence: str | None


class Verification(Record, kw_only=True):
    """Results of all checks of a database; `ok` if all of them passed."""

    ok: bool
    items: list[Finding]
