"""Operations on executions: open and end them with the attempts of phases, and record their usage.

The transaction that claims an attempt of a phase opens a row, by the listener `EXECUTIONS`. The transaction
that ends the attempt closes it, for every kind of end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from perdure.eventlog.port import default_session_id
from perdure.executions import sql
from perdure.executions.model import (
    CHAT,
    FATAL,
    RELEASED,
    SKIPPED,
    SUCCESS,
    ExecutionSeed,
    PhaseReport,
    error_text,
    get_outcome,
    parse_workflow_name,
)
from perdure.executions.rows import (
    ChatRow,
    ExecutionOutputRow,
    ExecutionRow,
    ExecutionSessionRow,
    SeedRow,
    StatRow,
    WholeExecution,
)
from perdure.kernel import changes, ids
from perdure.kernel.errors import NotFound
from perdure.kernel.storage.dialect import Write
from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import (
    CANCELLED,
    SUCCEEDED,
    TIMEOUT,
    UNRESPONSIVE,
    AttemptEnd,
    AttemptStart,
    EndedRollout,
    Listener,
)

HOUR: Final = 3_600_000_000
DAY: Final = 24 * HOUR
HOURS: Final = "hour"
SKILL_DAYS: Final = "skill day"
WORKFLOW_HOURS: Final = "workflow hour"
WORKFLOW_DAYS: Final = "workflow day"
SKILLS: Final = "skill"
TRIGGERS: Final = "trigger"

_LAPSES: Final[Mapping[str, str]] = {
    UNRESPONSIVE: "the worker that executed it stopped sending heartbeats",
    TIMEOUT: "it took too long",
}
_CANCELLED: Final = "cancelled"


class ExecutionUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of an attempt so far; None is unknown."""

    cost_usd: float | None = None
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None
    turns: int | None = None
    api_duration_ms: int | None = None


_FIGURES: Final = ExecutionUsage.__struct_fields__


class ExecutionProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a running attempt. The caller has checked that it holds its rollout."""

    rollout_id: str
    attempt_id: str
    session_id: str | None = None
    usage: ExecutionUsage = ExecutionUsage()


class ExecutionFinish(msgspec.Struct, frozen=True, kw_only=True):
    """End of an execution."""

    success: bool
    error: str | None = None
    stop_reason: str | None = None
    output: str | None = None
    session_id: str | None = None
    duration_ms: int | None = None
    """By default measured since its start."""
    usage: ExecutionUsage = ExecutionUsage()


# --- with phases ------------------------------------------------------------------------------------------


def build_seed_write(phases: Sequence[tuple[str, ExecutionSeed]]) -> Write:
    """Build the write of the seeds of new phases, each with its rollout id."""
    return sql.ADD_SEEDS.of([_seed_row(rollout_id, seed) for rollout_id, seed in phases])


def _seed_row(rollout_id: str, seed: ExecutionSeed) -> SeedRow:
    return SeedRow(
        rollout_id=rollout_id,
        trigger_type=seed.trigger_type,
        trigger_id=seed.trigger_id,
        skill=seed.skill,
        label=seed.label,
        repo=seed.repo,
        issue_number=seed.issue_number,
        workflow_run_id=seed.workflow_run_id,
    )


async def _on_claimed(tx: Tx, starts: Sequence[AttemptStart]) -> None:
    """Open an execution for each attempt, with the session of its thread until it names another."""
    seed_rows = await tx.all(sql.GET_SEEDS, ids=[start.rollout_id for start in starts])
    seeds = {row.rollout_id: row for row in seed_rows}
    rows = [
        _new(tx, seeds[start.rollout_id], start.attempt_id, default_session_id(start.line or ""))
        for start in starts
        if start.rollout_id in seeds
    ]
    await _add(tx, rows)


def _new(tx: Tx, seed: SeedRow, attempt_id: str | None, session_id: str | None) -> WholeExecution:
    return WholeExecution(
        id=ids.uuid(tx.now, tx.ids),
        trigger_type=seed.trigger_type,
        trigger_id=seed.trigger_id,
        skill=seed.skill,
        repo=seed.repo,
        issue_number=seed.issue_number,
        started_at=tx.now,
        finished_at=None,
        success=None,
        turns=None,
        duration_ms=None,
        session_id=session_id,
        cost_usd=None,
        input_tokens=None,
        cache_creation_input_tokens=None,
        cache_read_input_tokens=None,
        output_tokens=None,
        api_duration_ms=None,
        stop_reason=None,
        workflow_run_id=seed.workflow_run_id,
        rollout_id=seed.rollout_id or None,
        attempt_id=attempt_id,
        label=seed.label,
        error=None,
        output_text=None,
    )


async def _add(tx: Tx, rows: Sequence[WholeExecution]) -> None:
    await tx.defer(sql.ADD.of(rows))
    changes.tell(tx, "execution", ((row.id, "running") for row in rows))


class EndedAttempt(NamedTuple):
    """An ended attempt of a phase, and its execution, which has ended with it; None if none was open."""

    end: AttemptEnd
    report: PhaseReport
    execution: ExecutionRow | None
    error: str | None
    """Error that its worker reported, otherwise the reason of the end of the execution."""


class EndedPhase(NamedTuple):
    """An ended phase. Execution and error are those of an attempt that ended at the same time."""

    end: EndedRollout
    report: PhaseReport
    execution: ExecutionRow | None
    error: str | None
    interrupts: str | None
    """Questions that its thread waits to have answered, as JSON."""


async def close_attempts(tx: Tx, ends: Sequence[AttemptEnd]) -> list[EndedAttempt]:
    """End the executions of these attempts. Return each attempt with its execution."""
    rows = await tx.all(sql.LOCK_OPEN_OF, ids=sorted({end.rollout_id for end in ends})) if ends else []
    by_attempt = {(row.rollout_id, row.attempt_id): row for row in rows}
    attempts: list[EndedAttempt] = []
    closing: list[tuple[ExecutionRow, ExecutionFinish]] = []
    for end in ends:
        report, row = _get_report(end), by_attempt.get((end.rollout_id, end.attempt_id))
        if row is not None:
            closing.append((row, _build_finish(end, report)))
        error = report.error or (None if row is None else _lapse(end))
        attempts.append(EndedAttempt(end, report, row, error))
    await _close(tx, closing)
    return attempts


def _get_report(end: AttemptEnd | EndedRollout) -> PhaseReport:
    """Return the report of a worker; an empty one if no worker reported the end."""
    return end.report if isinstance(end.report, PhaseReport) else PhaseReport()


def build_ended_phases(
    ended: Sequence[EndedRollout], attempts: Sequence[EndedAttempt], interrupts: Mapping[str, str]
) -> list[EndedPhase]:
    """Build the ended phases, each with the results of its attempt that ended at the same time."""
    phases: list[EndedPhase] = []
    by_rollout = {attempt.end.rollout_id: attempt for attempt in attempts}
    for end in ended:
        report, attempt = _get_report(end), by_rollout.get(end.rollout_id)
        execution, error = (None, report.error) if attempt is None else (attempt.execution, attempt.error)
        phases.append(EndedPhase(end, report, execution, error, interrupts.get(end.rollout_id)))
    return phases


def _lapse(end: AttemptEnd) -> str | None:
    """Return why an attempt failed for which its worker reported no error."""
    if end.rollout_status == CANCELLED:
        return _CANCELLED
    if end.reason == RELEASED:
        return "handed back by its worker"
    return _LAPSES.get(end.status)


def _build_finish(end: AttemptEnd, report: PhaseReport) -> ExecutionFinish:
    success = end.status == SUCCEEDED
    default = SUCCESS if success else RELEASED if end.reason == RELEASED else FATAL
    return ExecutionFinish(
        success=success,
        error=None if success else report.error or _lapse(end),
        stop_reason=report.stop_reason or default,
        output=report.output,
        usage=ExecutionUsage(turns=report.turns, api_duration_ms=report.api_duration_ms),
    )


async def drop_seeds(tx: Tx, rollout_ids: Sequence[str]) -> None:
    """Delete the seeds of ended phases, of which no execution follows."""
    if rollout_ids:
        await tx.execute(sql.DROP_SEEDS, ids=list(rollout_ids))


EXECUTIONS: Final = Listener(on_claimed=_on_claimed)
"""Listener that opens executions with the attempts of phases."""


async def record_progress(tx: Tx, reports: Sequence[ExecutionProgress]) -> None:
    """Record the usage of running attempts, and their sessions."""
    rows = await tx.all(sql.LOCK_OPEN_OF, ids=sorted({report.rollout_id for report in reports}))
    open_rows = {(row.rollout_id, row.attempt_id): row for row in rows}
    changed: dict[str, ExecutionRow] = {}
    for report in reports:
        row = open_rows.get((report.rollout_id, report.attempt_id))
        if row is not None and _take(row, report.session_id, report.usage):
            changed[row.id] = row
    await tx.write(sql.USE.of(list(changed.values())))
    changes.tell(tx, "execution", ((row_id, "running") for row_id in changed))


def _take(row: ExecutionRow, session_id: str | None, usage: ExecutionUsage) -> bool:
    """Update a row with known values. Return whether it changed."""
    before = msgspec.structs.astuple(row)
    row.session_id = session_id or row.session_id
    for name in _FIGURES:
        value = getattr(usage, name)
        if value is not None:
            setattr(row, name, value)
    return msgspec.structs.astuple(row) != before


# --- without phases ---------------------------------------------------------------------------------------


async def start(tx: Tx, seeds: Sequence[ExecutionSeed]) -> list[str]:
    """Open executions that belong to no phase. Return their ids."""
    rows = [_new(tx, _seed_row("", seed), None, None) for seed in seeds]
    await _add(tx, rows)
    return [row.id for row in rows]


async def skip(tx: Tx, seeds: Sequence[ExecutionSeed], error: str = "skipped") -> list[str]:
    """Add executions of skipped phases, which end when they begin. Return their ids."""
    rows = [_new(tx, _seed_row("", seed), None, None) for seed in seeds]
    for row in rows:
        row.finished_at, row.success, row.duration_ms = tx.now, 0, 0
        row.stop_reason, row.error = SKIPPED, error_text(error)
    await _add(tx, rows)
    await count(tx, rows)
    return [row.id for row in rows]


async def add_past(tx: Tx, rows: Sequence[WholeExecution]) -> int:
    """Add ended executions of another system, except those that exist. Return the number added."""
    existing = {row.id for row in await tx.all(sql.LOCK, ids=sorted({row.id for row in rows}))}
    new = list({row.id: row for row in rows if row.id not in existing}.values())
    await tx.defer(sql.ADD.of(new))
    await count(tx, new)
    return len(new)


async def finish(tx: Tx, execution_id: str, ending: ExecutionFinish) -> None:
    """End an execution. An ended one is overwritten and counted again. Raise NotFound if there is none."""
    (row,) = await _locked(tx, [execution_id])
    await _close(tx, [(row, ending)])


async def _locked(tx: Tx, execution_ids: Sequence[str]) -> list[ExecutionRow]:
    rows = await tx.all(sql.LOCK, ids=sorted(set(execution_ids)))
    missing = set(execution_ids) - {row.id for row in rows}
    if missing:
        raise NotFound(f"Execution {min(missing)} not found")
    return rows


async def _close(tx: Tx, closed: Sequence[tuple[ExecutionRow, ExecutionFinish]]) -> None:
    """End executions. Unknown values of an end keep their earlier values."""
    without: list[ExecutionRow] = []
    whole: list[WholeExecution] = []
    for row, ending in closed:
        if row.finished_at is not None:
            await count(tx, [row], -1)
        _take(row, ending.session_id, ending.usage)
        row.finished_at, row.success = tx.now, int(ending.success)
        row.error = None if ending.error is None else error_text(ending.error)
        row.stop_reason = ending.stop_reason or row.stop_reason
        measured = (tx.now - row.started_at) // 1000
        row.duration_ms = measured if ending.duration_ms is None else ending.duration_ms
        if ending.output is None:
            without.append(row)
        else:
            whole.append(WholeExecution(**msgspec.structs.asdict(row), output_text=ending.output))
    ended = [row for row, _ in closed]
    await tx.defer(sql.CLOSE.of(without))
    await tx.defer(sql.CLOSE_WITH_OUTPUT.of(whole))
    await count(tx, ended)
    changes.tell(tx, "execution", ((row.id, get_outcome(row.success or 0, row.stop_reason)) for row in ended))


async def record_session(tx: Tx, execution_id: str, session_id: str) -> None:
    """Record the session of an execution."""
    await _locked(tx, [execution_id])
    await tx.write(sql.SET_SESSIONS.of([ExecutionSessionRow(execution_id, session_id)]))


async def set_outputs(tx: Tx, outputs: Mapping[str, str]) -> None:
    """Store the outputs of executions by their ids."""
    await _locked(tx, list(outputs))
    await tx.write(sql.SET_OUTPUTS.of([ExecutionOutputRow(id, text) for id, text in sorted(outputs.items())]))


async def outputs(tx: Tx, execution_ids: Sequence[str]) -> dict[str, str]:
    """Return the outputs of executions that have one, by id."""
    rows = await tx.all(sql.GET_OUTPUTS, ids=list(execution_ids))
    return {row.id: row.output_text for row in rows if row.output_text is not None}


async def mark_failed(tx: Tx, execution_ids: Sequence[str], error: str) -> int:
    """Mark successful executions as failed, so that they are executed again. Return the number changed."""
    return await _fail(tx, await _locked(tx, execution_ids), error)


async def _fail(tx: Tx, rows: Sequence[ExecutionRow], error: str) -> int:
    ended = [row for row in rows if row.finished_at is not None]
    await count(tx, ended, -1)
    for row in ended:
        row.success, row.error = 0, error_text(error)
    await tx.write(sql.FAIL.of(ended))
    await count(tx, ended)
    return len(ended)


async def mark_stale_failed(
    tx: Tx, trigger_id: str, error: str, skill: str | None = None, run: str | None = None
) -> int:
    """End the open executions of a trigger as failed; optionally only of one skill or workflow run.

    Executions of attempts end with their attempts and do not change. Return the number ended.
    """
    rows = await tx.all(sql.LOCK_OPEN, trigger_id=trigger_id, skill=skill or "", run=run or "")
    stale = [row for row in rows if row.attempt_id is None]
    ending = ExecutionFinish(success=False, error=error, stop_reason=FATAL)
    await _close(tx, [(row, ending) for row in stale])
    return len(stale)


async def mark_latest_failed(tx: Tx, skill: str, trigger_id: str, error: str, run: str | None = None) -> int:
    """Mark the newest execution of a skill as failed. Return the number changed."""
    rows = await tx.all(sql.LOCK_NEWEST, skill=skill, trigger_id=trigger_id, run=run or "")
    return await _fail(tx, rows, error)


Readiness = Literal["run", "running", "done"]


async def readiness(tx: Tx, skill: str, trigger_id: str, run: str | None = None) -> Readiness:
    """Return whether a skill must run for a trigger or in a workflow run, is running, or has succeeded."""
    if run is None:
        state = await tx.one(sql.FIND_OF_TRIGGER, skill=skill, trigger_id=trigger_id)
    else:
        state = await tx.one(sql.FIND_OF_RUN, skill=skill, run=run)
    if state is None:
        return "run"
    return "running" if state.open else "done" if state.done else "run"


# --- counting ---------------------------------------------------------------------------------------------


async def count(tx: Tx, rows: Sequence[ExecutionRow], sign: int = 1) -> None:
    """Add ended executions to the statistics; with the sign -1, subtract them."""
    stats: dict[tuple[str, int, str, str], StatRow] = {}
    for row in rows:
        outcome = get_outcome(row.success or 0, row.stop_reason)
        for series, at, name in (
            (HOURS, row.started_at - row.started_at % HOUR, ""),
            (SKILL_DAYS, row.started_at - row.started_at % DAY, row.skill),
            (WORKFLOW_HOURS, row.started_at - row.started_at % HOUR, parse_workflow_name(row.skill)),
            (WORKFLOW_DAYS, row.started_at - row.started_at % DAY, parse_workflow_name(row.skill)),
            (SKILLS, 0, row.skill),
            (TRIGGERS, 0, row.trigger_type),
        ):
            key = (series, at, name, outcome)
            stat = stats.get(key)
            if stat is None:
                stat = stats[key] = StatRow(*key, tx.shard, 0, 0, 0, 0, 0, 0, 0, 0.0)
            stat.total += sign
            stat.turns += sign * (row.turns or 0)
            stat.duration_ms += sign * (row.duration_ms or 0)
            stat.input_tokens += sign * (row.input_tokens or 0)
            stat.output_tokens += sign * (row.output_tokens or 0)
            stat.cache_read_input_tokens += sign * (row.cache_read_input_tokens or 0)
            stat.cache_creation_input_tokens += sign * (row.cache_creation_input_tokens or 0)
            stat.cost_usd += sign * (row.cost_usd or 0.0)
    chats = _chats([row for row in rows if row.skill == CHAT], sign)
    await tx.defer(sql.ADD_STATS.of([stats[key] for key in sorted(stats)]), sql.ADD_CHATS.of(chats))


def _chats(rows: Sequence[ExecutionRow], sign: int) -> list[ChatRow]:
    chats: dict[str, ChatRow] = {}
    for row in sorted(rows, key=lambda row: (row.trigger_id, row.started_at)):
        last_at = row.finished_at or row.started_at
        chat = chats.setdefault(
            row.trigger_id, ChatRow(row.trigger_id, row.started_at, last_at, 0, 0, 0, 0.0, row.id)
        )
        chat.last_at, chat.last_execution_id = max(chat.last_at, last_at), row.id
        chat.turns += sign
        chat.input_tokens += sign * (row.input_tokens or 0)
        chat.output_tokens += sign * (row.output_tokens or 0)
        chat.cost_usd += sign * (row.cost_usd or 0.0)
    return list(chats.values())
