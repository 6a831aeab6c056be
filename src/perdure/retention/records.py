"""What callers see of retention."""

from __future__ import annotations

from typing import Any

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
    complete: bool = True
    """False if there may be more: a call stops after a while, and the next one goes on."""


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


class Finding(Record, kw_only=True):
    """What a check found: how many rows break its rule, and a sentence if there are any."""

    check: str
    ok: bool
    found: int
    sentence: str | None


class Verification(Record, kw_only=True):
    """What was checked of a database, and whether all of it is well."""

    ok: bool
    items: list[Finding]


class ExportPage(Record, kw_only=True):
    """A page of an export; `next` is None after the last one."""

    items: list[dict[str, Any]]
    next: str | None
