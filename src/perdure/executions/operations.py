"""Operations on executions: opening and ending them with the attempts of phases, and what is known of them.

`EXECUTIONS` listens to the kind `phase`: a row is opened in the transaction that claims an attempt and closed
in the one that ends it, whatever ended it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

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
    UNRESPONSIVE: "the worker that executed it fell silent",
    TIMEOUT: "it took too long",
}
_CANCELLED: Final = "cancelled"


class ExecutionUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt has taken so far; what is None is not known."""

    cost_usd: float | None = None
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None
    turns: int | None = None
    api_duration_ms: int | None = None


_FIGURES: Final = ExecutionUsage.__struct_fields__


class ExecutionProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt that goes on says of itself. The caller has checked that it holds its rollout."""

    rollout_id: str
    attempt_id: str
    session_id: str | None = None
    usage: ExecutionUsage = ExecutionUsage()


class ExecutionFinish(msgspec.Struct, frozen=True, kw_only=True):
    """How an execution ended."""

    success: bool
    error: str | None = None
    stop_reason: str | None = None
    output: str | None = None
    session_id: str | None = None
    duration_ms: int | None = None
    """Measured since its start, if it is not given."""
    usage: ExecutionUsage = ExecutionUsage()


# --- with phases ------------------------------------------------------------------------------------------


def build_seed_write(phases: Sequence[tuple[str, ExecutionSeed]]) -> Write:
    """The seeds of new phases, each with its rollout's id; written with the phases."""
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
    """Open an execution for each attempt. Its session is the thread's, until it names another."""
    found = await tx.all(sql.GET_SEEDS, ids=[start.rollout_id for start in starts])
    seeds = {row.rollout_id: row for row in found}
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


async def _on_attempt_ended(tx: Tx, ends: Sequence[AttemptEnd]) -> None:
    """End the executions of these attempts, and tell the notes of the attempts which they were."""
    by_attempt = {(end.rollout_id, end.attempt_id): end for end in ends}
    rows = await tx.all(sql.LOCK_OPEN_OF, ids=sorted({end.rollout_id for end in ends}))
    closed: list[tuple[ExecutionRow, ExecutionFinish]] = []
    for row in rows:
        end = by_attempt.get((row.rollout_id or "", row.attempt_id or ""))
        if end is None:
            continue
        report = end.note if isinstance(end.note, PhaseReport) else PhaseReport()
        closed.append((row, _build_finish(end, report)))
        report.execution_id, report.session_id = row.id, row.session_id
        report.tokens, report.cost_usd = row.tokens, row.cost_usd or 0.0
        report.error = report.error or _lapse(end)
        report.turns = row.turns if report.turns is None else report.turns
    await _close(tx, closed)


def _lapse(end: AttemptEnd) -> str | None:
    """Why an attempt failed that its worker did not speak for."""
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


async def _on_ended(tx: Tx, ended: Sequence[EndedRollout]) -> None:
    await tx.execute(sql.DROP_SEEDS, ids=[end.rollout_id for end in ended])


EXECUTIONS: Final = Listener(on_claimed=_on_claimed, on_attempt_ended=_on_attempt_ended, on_ended=_on_ended)
"""What executions do when phases move."""


async def record_progress(tx: Tx, reports: Sequence[ExecutionProgress]) -> None:
    """Note what attempts that go on have taken so far, and the session that they write to."""
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
    """Keep what is known now; gives whether that is news."""
    before = msgspec.structs.astuple(row)
    row.session_id = session_id or row.session_id
    for name in _FIGURES:
        value = getattr(usage, name)
        if value is not None:
            setattr(row, name, value)
    return msgspec.structs.astuple(row) != before


# --- by themselves ----------------------------------------------------------------------------------------


async def start(tx: Tx, seeds: Sequence[ExecutionSeed]) -> list[str]:
    """Open executions of something that is no phase; returns their ids."""
    rows = [_new(tx, _seed_row("", seed), None, None) for seed in seeds]
    await _add(tx, rows)
    return [row.id for row in rows]


async def skip(tx: Tx, seeds: Sequence[ExecutionSeed], error: str = "skipped") -> list[str]:
    """Write down phases that were skipped: executions that ended as they began; returns their ids."""
    rows = [_new(tx, _seed_row("", seed), None, None) for seed in seeds]
    for row in rows:
        row.finished_at, row.success, row.duration_ms = tx.now, 0, 0
        row.stop_reason, row.error = SKIPPED, error_text(error)
    await _add(tx, rows)
    await count(tx, rows)
    return [row.id for row in rows]


async def add_past(tx: Tx, rows: Sequence[WholeExecution]) -> int:
    """Add executions that have ended elsewhere, except those that are there; return how many."""
    known = {row.id for row in await tx.all(sql.LOCK, ids=sorted({row.id for row in rows}))}
    new = list({row.id: row for row in rows if row.id not in known}.values())
    await tx.defer(sql.ADD.of(new))
    await count(tx, new)
    return len(new)


async def finish(tx: Tx, execution_id: str, ending: ExecutionFinish) -> None:
    """End an execution; one that has ended is written over, and counts anew. NotFound if there is none."""
    (row,) = await _locked(tx, [execution_id])
    await _close(tx, [(row, ending)])


async def _locked(tx: Tx, execution_ids: Sequence[str]) -> list[ExecutionRow]:
    rows = await tx.all(sql.LOCK, ids=sorted(set(execution_ids)))
    missing = set(execution_ids) - {row.id for row in rows}
    if missing:
        raise NotFound(f"Execution {min(missing)} not found")
    return rows


async def _close(tx: Tx, closed: Sequence[tuple[ExecutionRow, ExecutionFinish]]) -> None:
    """End executions. What is not known of an end leaves what was known before."""
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
    await tx.write(sql.CLOSE.of(without))
    await tx.write(sql.CLOSE_WITH_OUTPUT.of(whole))
    await count(tx, ended)
    changes.tell(tx, "execution", ((row.id, get_outcome(row.success or 0, row.stop_reason)) for row in ended))


async def record_session(tx: Tx, execution_id: str, session_id: str) -> None:
    """Note the session of an execution."""
    await _locked(tx, [execution_id])
    await tx.write(sql.SET_SESSIONS.of([ExecutionSessionRow(execution_id, session_id)]))


async def set_outputs(tx: Tx, outputs: Mapping[str, str]) -> None:
    """Store the outputs of executions by their ids."""
    await _locked(tx, list(outputs))
    await tx.write(sql.SET_OUTPUTS.of([ExecutionOutputRow(id, text) for id, text in sorted(outputs.items())]))


async def outputs(tx: Tx, execution_ids: Sequence[str]) -> dict[str, str]:
    """The outputs of executions that have one, by their ids."""
    found = await tx.all(sql.GET_OUTPUTS, ids=list(execution_ids))
    return {row.id: row.output_text for row in found if row.output_text is not None}


async def mark_failed(tx: Tx, execution_ids: Sequence[str], error: str) -> int:
    """Let executions have failed that ended well, so that they are executed again; returns how many."""
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
    """End the open executions of a trigger as failed, of a skill or a workflow run alone if one is given.

    Those of attempts end with their attempts, and are left alone. Returns how many there were.
    """
    rows = await tx.all(sql.LOCK_OPEN, trigger_id=trigger_id, skill=skill or "", run=run or "")
    stale = [row for row in rows if row.attempt_id is None]
    ending = ExecutionFinish(success=False, error=error, stop_reason=FATAL)
    await _close(tx, [(row, ending) for row in stale])
    return len(stale)


async def mark_latest_failed(tx: Tx, skill: str, trigger_id: str, error: str, run: str | None = None) -> int:
    """Let the newest execution of a skill have failed; returns how many were changed."""
    rows = await tx.all(sql.LOCK_NEWEST, skill=skill, trigger_id=trigger_id, run=run or "")
    return await _fail(tx, rows, error)


Readiness = Literal["run", "running", "done"]


async def readiness(tx: Tx, skill: str, trigger_id: str, run: str | None = None) -> Readiness:
    """Whether a skill is to be executed for a trigger, or in a workflow run: not if it is, or was with
    success."""
    if run is None:
        found = await tx.one(sql.FIND_OF_TRIGGER, skill=skill, trigger_id=trigger_id)
    else:
        found = await tx.one(sql.FIND_OF_RUN, skill=skill, run=run)
    if found is None:
        return "run"
    return "running" if found.open else "done" if found.done else "run"


# --- counting ---------------------------------------------------------------------------------------------


async def count(tx: Tx, rows: Sequence[ExecutionRow], sign: int = 1) -> None:
    """Add executions that have ended to the statistics, or take them out again."""
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
