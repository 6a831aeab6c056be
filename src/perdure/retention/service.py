"""Service for the upkeep of a database: deletion by age, sizes, checks and exports."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from perdure.access.service import SYSTEM_ACTOR
from perdure.eventlog.file_log import FileEventLog
from perdure.eventlog.port import EventLog
from perdure.eventlog.table_log import TableEventLog
from perdure.jobs.model import JobContext
from perdure.kernel.checks import Limit, check_choice, check_page, check_text, optional_text
from perdure.kernel.clock import to_micros
from perdure.kernel.errors import InvalidInput
from perdure.kernel.pages import Part
from perdure.kernel.retention import DAY, Retention
from perdure.kernel.storage.port import Storage, Tx
from perdure.retention import sql
from perdure.retention.checks import CHECKS, BrokenRow, RetentionRule
from perdure.retention.exports import KINDS, ExportKind, has_status, read_page, row_to_record
from perdure.retention.records import (
    DatabaseStats,
    Finding,
    GcReport,
    Sweep,
    TableStats,
    Verification,
)
from perdure.retention.sweeps import build_kinds
from perdure.retention.walking import Budget, SweepResult
from perdure.service.audit import add_entry
from perdure.service.base import Service
from perdure.service.callers import Caller
from perdure.service.endpoints import GET, POST, call
from perdure.service.namespaces import list_namespaces
from perdure.service.tables import SYSTEM

RETENTION_JOB = "retention"
CALL_SECONDS = 10.0
"""A call stops deleting or counting after this many seconds."""
MAX_DAYS = 36_500
SCHEDULE = "0 30 * * * *"
"""Every hour, with seconds first."""


KeptDays = Annotated[float, Meta(gt=0, le=MAX_DAYS)]
OlderThan = Annotated[dict[str, KeptDays], Meta(max_length=100)]


class Upkeep(Service):
    """Upkeep of a database, in all of its namespaces."""

    def __init__(
        self,
        storage: Storage,
        *,
        namespace: str = "default",
        caller: Caller | None = None,
        retention: Retention | None = None,
        log: EventLog | None = None,
    ) -> None:
        super().__init__(storage, namespace=namespace, caller=caller)
        self.retention = retention or Retention()
        self._log = log or TableEventLog(storage)
        self._cleaned: set[int] = set()
        self.sweep_time: float | None = None
        """When this process last swept, in epoch seconds."""

    @call(POST("/db/gc"), scope="admin", repeatable=True)
    async def gc(self, *, dry_run: bool = False, older_than: OlderThan | None = None) -> GcReport:
        """Delete data that is older than its settings allow; with `dry_run`, only count it. `older_than` has
        days for some kinds, which replace the settings. A call stops after some seconds; then `complete` is
        false."""
        retention = self._with(older_than or {})
        return await self._sweep(retention, dry_run, Budget(CALL_SECONDS))

    def _with(self, older_than: Mapping[str, float]) -> Retention:
        names = [name for name in Retention.__struct_fields__ if name != "removed"]
        for kind, days in older_than.items():
            check_choice(kind, names, "a kind of older_than")
            if isinstance(days, bool) or not isinstance(days, int | float) or not 0 < days <= MAX_DAYS:
                raise InvalidInput(
                    f"{kind} is {days!r} days; it must be more than 0, and at most {MAX_DAYS:,}"
                )
        seconds: Any = {kind: days * DAY for kind, days in older_than.items()}
        return msgspec.structs.replace(self.retention, **seconds)

    async def _sweep(self, retention: Retention, dry_run: bool, budget: Budget) -> GcReport:
        sweeps, complete = [], True
        for kind in build_kinds(retention, self._log, self._cleaned):
            swept = SweepResult(0)
            if kind.seconds is not None and complete:
                swept = await (kind.count if dry_run else kind.sweep)(self.storage, budget)
                complete = swept.complete
            days = None if kind.seconds is None else kind.seconds / DAY
            sweeps.append(Sweep(kind=kind.name, days=days, deleted=swept.deleted))
        deleted = [f"{sweep.deleted} {sweep.kind}" for sweep in sweeps if sweep.deleted]
        if deleted and not dry_run:
            await self.storage.run(add_entry, self.actor or SYSTEM_ACTOR, "gc", deleted, ns=SYSTEM)
        return GcReport(dry_run=dry_run, items=sweeps, complete=complete)

    @call(GET("/db/stats"), scope="admin")
    async def stats(self) -> DatabaseStats:
        """Count the rows of each kind of data, and the bytes of the database."""
        row = await self.storage.read(_read_stats)
        if isinstance(self._log, FileEventLog):
            spaces = await self.storage.read(list_namespaces)
            row = row._replace(sessions=sum([len(await self._log.logs(ns)) for ns in spaces]))
        counts = {name: value for name, value in row._asdict().items() if name not in ("path", "bytes")}
        return DatabaseStats(
            database=row.path or ":memory:",
            engine=self.storage.engine,
            bytes=row.bytes,
            items=[TableStats(kind=name, rows=rows) for name, rows in counts.items()],
        )

    @call(GET("/db/verify"), scope="admin")
    async def verify(self) -> Verification:
        """Check the files of the database and the rules of its rows; nothing is changed."""
        problems = await self.storage.integrity()
        engine = Finding(
            check="integrity",
            ok=not problems,
            found=len(problems),
            sentence="; ".join(problems) or None,
        )
        findings = [engine]
        for check in CHECKS:
            row = await self.storage.read(_find_broken, check)
            sentence = f"{row.found} × {check.sentence}, such as {row.example}" if row.found else None
            findings.append(Finding(check=check.name, ok=not row.found, found=row.found, sentence=sentence))
        return Verification(ok=all(finding.ok for finding in findings), items=findings)

    @call(GET("/db/export/{kind}"), scope="admin")
    async def export(
        self,
        kind: ExportKind,
        *,
        after: str = "",
        since: Annotated[float, Meta(ge=0, le=1e12)] = 0.0,
        status: str | None = None,
        limit: Limit = 1000,
    ) -> Part[dict[str, Any]]:
        """Read the stored rows of a kind, in the order of their ids; `next` is the `after` of the next page.
        `since` is in epoch seconds."""
        check_choice(kind, KINDS, "kind")
        check_page(limit)
        check_text(after, "after")
        if status is not None and not has_status(kind):
            raise InvalidInput(f"{kind} have no status to export by")
        chosen = optional_text(status, "status")
        rows = await self.read(read_page, kind, after, to_micros(since), chosen, limit)
        items = [row_to_record(kind, row) for row in rows]
        return Part(items=items, next=items[-1]["id"] if limit and len(items) == limit else None)

    async def sweep(self, context: JobContext, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Delete data that is too old, as a job; return the deleted numbers by kind."""
        report = await self._sweep(self.retention, False, Budget())
        self.sweep_time = time.time()
        return {sweep.kind: sweep.deleted for sweep in report.items if sweep.deleted}


async def _find_broken(tx: Tx, check: RetentionRule) -> BrokenRow:
    broken = await tx.one(check.query, **check.values)
    assert broken is not None
    return broken


async def _read_stats(tx: Tx) -> sql.StatsRow:
    row = await tx.one(sql.STATS)
    assert row is not None
    return row
