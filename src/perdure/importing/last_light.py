"""Databases of Last Light, and the tree of their sessions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

import apsw

from perdure.eventlog.port import LogName, check_name
from perdure.executions.rows import WholeExecution
from perdure.executions.service import Executions
from perdure.importing.langgraph_sqlite import open_foreign_sqlite
from perdure.importing.records import ImportReport
from perdure.kernel.errors import InvalidInput, NotFound
from perdure.sessions.batches import in_batches
from perdure.sessions.service import Sessions
from perdure.sessions.transcripts.files import read_lines
from perdure.workflows.override_service import WorkflowOverrides

EXECUTIONS: Final = "executions"
SESSIONS: Final = "sessions"
OVERRIDES: Final = "workflow_overrides"
NOT_IMPORTED: Final = ("workflow_runs", "workflow_approvals", "cron_overrides", "messaging_sessions")
"""Tables that are only counted: their rows are the state of a harness that runs elsewhere."""
WRITER: Final = "import"
BATCH: Final = 200
MAX_OUTPUT: Final = 1 << 20
_TABLES: Final = "SELECT name FROM sqlite_master WHERE type = 'table'"
_COLUMNS: Final = "SELECT name FROM pragma_table_info('executions')"
_EXECUTIONS: Final = "SELECT * FROM executions ORDER BY started_at, id"
_OVERRIDES: Final = "SELECT name, enabled FROM workflow_overrides ORDER BY name"
_COUNTS: Final = {
    "workflow_runs": "SELECT count(*) FROM workflow_runs",
    "workflow_approvals": "SELECT count(*) FROM workflow_approvals",
    "cron_overrides": "SELECT count(*) FROM cron_overrides",
    "messaging_sessions": "SELECT count(*) FROM messaging_sessions",
}


async def import_database(
    file: Path, executions: Executions, overrides: WorkflowOverrides, report: ImportReport
) -> None:
    """Import ended executions and workflow switches; count data that is not imported."""
    with open_foreign_sqlite(file) as connection:
        tables = {name for (name,) in connection.execute(_TABLES)}
        if EXECUTIONS not in tables:
            raise InvalidInput(f"{file} has no table 'executions'; is it a Last Light database?")
        source = _executions(connection, report)
        while rows := [*islice(source, BATCH)]:
            existing = await executions.find_known([row.id for row in rows])
            count = report.count(EXECUTIONS)
            count.present += len(existing)
            count.added += len({row.id for row in rows} - existing)
            if not report.dry_run:
                await executions.add_past(rows)
        if OVERRIDES in tables:
            await _import_overrides(connection, overrides, report)
        for name in NOT_IMPORTED:
            if name in tables:
                ((report.count(name).found,),) = connection.execute(_COUNTS[name])


async def _import_overrides(
    connection: apsw.Connection, overrides: WorkflowOverrides, report: ImportReport
) -> None:
    count = report.count(OVERRIDES)
    rows: list[Any] = connection.execute(_OVERRIDES).fetchall()
    for name, enabled in rows:
        count.found += 1
        try:
            if await overrides.is_enabled(name) == bool(enabled):
                count.present += 1
                continue
            if not report.dry_run:
                await overrides.set_enabled(name, enabled=bool(enabled))
            count.added += 1
        except InvalidInput as error:
            report.refuse(OVERRIDES, str(name), error.message)


def _executions(connection: apsw.Connection, report: ImportReport) -> Iterator[WholeExecution]:
    """Yield the ended executions; open ones belong to the harness that executes them."""
    columns = [name for (name,) in connection.execute(_COLUMNS)]
    for values in connection.execute(_EXECUTIONS):
        row = dict(zip(columns, values, strict=True))
        report.count(EXECUTIONS).found += 1
        try:
            yield _execution(row)
        except InvalidInput as error:
            report.refuse(EXECUTIONS, str(row.get("id")), error.message)


def _execution(row: Mapping[str, Any]) -> WholeExecution:
    if row.get("finished_at") is None or row.get("success") is None:
        raise InvalidInput("it has not ended")
    skill = _text(row.get("skill"))
    cost = row.get("cost_usd")
    return WholeExecution(
        id=_text(row.get("id")),
        trigger_type=_text(row.get("trigger_type")),
        trigger_id=_text(row.get("trigger_id")),
        skill=skill,
        label=skill.partition(":")[2] or None,
        started_at=_micros(row.get("started_at")),
        finished_at=_micros(row.get("finished_at")),
        success=int(bool(row.get("success"))),
        cost_usd=float(cost) if isinstance(cost, int | float) else None,
        rollout_id=None,
        attempt_id=None,
        output_text=_cut(row.get("output_text")),
        repo=_optional(row.get("repo")),
        session_id=_optional(row.get("session_id")),
        stop_reason=_optional(row.get("stop_reason")),
        workflow_run_id=_optional(row.get("workflow_run_id")),
        error=_optional(row.get("error")),
        issue_number=_figure(row.get("issue_number")),
        turns=_figure(row.get("turns")),
        duration_ms=_figure(row.get("duration_ms")),
        input_tokens=_figure(row.get("input_tokens")),
        cache_creation_input_tokens=_figure(row.get("cache_creation_input_tokens")),
        cache_read_input_tokens=_figure(row.get("cache_read_input_tokens")),
        output_tokens=_figure(row.get("output_tokens")),
        api_duration_ms=_figure(row.get("api_duration_ms")),
    )


def _optional(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _text(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 1024:
        raise InvalidInput("an id, a trigger or a skill is missing or too long")
    return value


def _figure(value: object) -> int | None:
    return value if isinstance(value, int) and -(2**53) < value < 2**53 else None


def _cut(value: object) -> str | None:
    return value[:MAX_OUTPUT] if isinstance(value, str) else None


def _micros(value: object) -> int:
    """Convert a time of Last Light, which is text in ISO 8601."""
    try:
        time = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
        return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1_000_000)
    except (ValueError, OverflowError):
        raise InvalidInput(f"{str(value)[:40]!r} is not a time") from None


# --- sessions ---------------------------------------------------------------------------------------------


async def import_tree(folder: Path, sessions: Sessions, report: ImportReport) -> None:
    """Import the sessions below `projects/` of a folder; each line is imported once."""
    projects = folder / "projects" if (folder / "projects").is_dir() else folder
    if not projects.is_dir():
        raise NotFound(f"folder {folder} not found")
    count = report.count(SESSIONS)
    for file in sorted(projects.rglob("*.jsonl")):
        if not file.is_file() or file.is_symlink():
            continue
        count.found += 1
        try:
            name = _log_name(file.relative_to(projects))
            before = await _line_count(sessions, name)
            if report.dry_run:
                new = any(True for _ in islice(read_lines(file), before, None))
            else:
                await _append(sessions, name, file)
                new = await _line_count(sessions, name) > before
        except InvalidInput as error:
            report.refuse(SESSIONS, str(file.relative_to(projects)), error.message)
            continue
        if new:
            count.added += 1
        else:
            count.present += 1


async def _append(sessions: Sessions, name: LogName, file: Path) -> None:
    number = 1
    for batch in in_batches(read_lines(file)):
        await sessions.append(
            name.session_id,
            batch,
            project=name.project,
            sub_agent=name.subpath,
            writer=WRITER,
            first=number,
        )
        number += len(batch)


async def _line_count(sessions: Sessions, name: LogName) -> int:
    count = after = 0
    while True:
        try:
            page = await sessions.lines(
                name.session_id, project=name.project, sub_agent=name.subpath, after=after, limit=1000
            )
        except NotFound:
            return count
        count, after = count + len(page.items), page.after
        if page.end:
            return count


def _log_name(path: Path) -> LogName:
    """Return the log name of a file below `projects/`: a session, or a sub-agent in its folder."""
    parts: Sequence[str] = path.with_suffix("").parts
    if len(parts) < 2:
        raise InvalidInput("a session must be in the folder of a project")
    project, session_id, *below = parts
    return check_name(LogName(project, session_id, "/".join(below)))
