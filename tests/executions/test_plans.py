"""The index that each statement of executions uses, on 50,000 executions and both engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.support.kinds import KINDS
from tests.support.plans import SMALL, Subject, plans_of
from tests.threads.support import AGENT_NAMES, AGENTS, POLICY, open_storage

from perdure.executions import sql, tables
from perdure.executions.model import ExecutionSeed, NewPhase
from perdure.executions.operations import (
    DAY,
    HOUR,
    ExecutionFinish,
    ExecutionProgress,
    ExecutionUsage,
    mark_failed,
    outputs,
    record_progress,
    skip,
)
from perdure.executions.service import Executions
from perdure.kernel.storage.port import Storage, Tx
from perdure.rollouts import sql as rollout_sql
from perdure.runs.queue import RunQueue
from perdure.runtime.stores import ThreadPhases
from perdure.service.namespaces import ensure_namespace
from perdure.threads import sql as thread_sql
from perdure.threads.service import Threads
from perdure.threads.work import Ending

EXECUTIONS = 50_000
CHUNK = 5_000
KEY = {"executions_pkey"}
EXPECTED = {
    "GET_SEEDS": {"execution_seeds_pkey"},
    "DROP_SEEDS": {"execution_seeds_pkey"},
    "LOCK": KEY,
    "LOCK_OPEN_OF": {"executions_of_rollout"},
    "LOCK_OPEN": {"executions_of_trigger"},
    "LOCK_NEWEST": {"executions_of_trigger"},
    "CLOSE": KEY,
    "CLOSE_WITH_OUTPUT": KEY,
    "USE": KEY,
    "FAIL": KEY,
    "SET_SESSIONS": KEY,
    "SET_OUTPUTS": KEY,
    "GET_OUTPUTS": KEY,
    "GET": KEY,
    "FIND_OF_TRIGGER": {"executions_of_trigger"},
    "FIND_OF_RUN": {"idx_executions_workflow_run"},
    "LIST": {"executions_started"},
    "LIST_SKILL": {"idx_executions_skill"},
    "LIST_TRIGGER": {"executions_of_trigger"},
    "LIST_RUN": {"executions_of_run"},
    "LIST_OPEN": {"executions_open"},
    "OF_WORKFLOW_RUN": {"executions_of_run"},
    "ENDED_OF_SKILL": {"idx_executions_skill"},
    "SUMS_SINCE": {"execution_stats_pkey"},
    "SUMS_BY_NAME": {"execution_stats_pkey"},
    "OPEN_BY_HOUR": {"executions_open"},
    "LIST_CHATS": {"chat_threads_last"},
    "GET_CHAT": {"chat_threads_pkey"},
}
LARGE = frozenset({"executions", "execution_seeds", "execution_stats", "chat_threads"})
SUBJECT = Subject((sql, rollout_sql, thread_sql), LARGE, EXPECTED, SMALL | {"resources"})


def _rows(now: int) -> Iterator[list[tuple[Any, ...]]]:
    """Yield executions: most have ended, a few are open; each belongs to a run, a trigger and a skill."""
    for start in range(0, EXECUTIONS, CHUNK):
        rows = []
        for number in range(start, start + CHUNK):
            began = now - DAY + number
            ended = (None, None) if number % 500 == 0 else (began + 9, 1)
            whose = ("api", f"trigger-{number // 20}", f"build:{number % 100}", None, None)
            taken = (None,) * 10
            names = (f"run-{number // 10}", f"rollout-{number}", f"at-{number}", None, None, None)
            rows.append((1, f"{number:032x}", *whose, began, *ended, *taken, *names))
        yield rows


async def _fill(tx: Tx, rows: list[tuple[Any, ...]]) -> None:
    await tx.insert_many(tables.EXECUTIONS, rows)
    figures = (1, 1, 1, 1, 1, 1, 1, 0.5)
    seeds = [(1, f"rollout-{row[1]}", *row[2:5], None, None, None, None) for row in rows]
    await tx.insert_many(tables.SEEDS, seeds)
    chats = [(1, f"chat-{row[1]}", row[7], row[7], 1, 1, 1, 0.5, row[1]) for row in rows]
    await tx.insert_many(tables.CHAT_THREADS, chats)
    first = min(row[1] for row in rows)
    for series in ("hour", "skill day", "skill", "trigger"):
        stats = [(1, series, at * HOUR, first, "failed", 0, *figures) for at in range(3000)]
        await tx.insert_many(tables.STATS, stats)


async def _now(tx: Tx) -> int:
    return tx.now


async def fill(storage: Storage) -> None:
    assert await storage.run(ensure_namespace, "default") == 1
    await RunQueue.beside(Threads(storage, KINDS, policy=POLICY)).register("w1", AGENTS)
    for rows in _rows(await storage.read(_now)):
        await storage.run(_fill, rows)


async def use(storage: Storage) -> None:
    executions = Executions(storage)
    queue = RunQueue.beside(Threads(storage, KINDS, policy=POLICY))
    phases = ThreadPhases(KINDS, POLICY)
    seed = ExecutionSeed(trigger_type="api", trigger_id="trigger-7", skill="build:7", workflow_run_id="run-7")
    new = [NewPhase(input="{}", agent="echo", execution=seed) for _ in range(2)]
    await queue.write(phases.create, new)
    for text in ("done", None):
        (taken,) = await queue.claim("w1", AGENT_NAMES, 1, 0, ["workflows"])
        held = taken.held
        progress = ExecutionProgress(
            rollout_id=held.run_id, attempt_id=held.attempt_id, usage=ExecutionUsage(input_tokens=5)
        )
        await queue.write(record_progress, [progress])
        await queue.finish(Ending(held=held, result="success", output_text=text))
    (skipped,) = await queue.write(skip, [seed], "skipped")
    await queue.write(mark_failed, [skipped], "blocked")
    await queue.read(outputs, [skipped])
    started = await executions.record_start(seed)
    await executions.record_session_id(started, "s")
    await executions.record_output_text(started, "text")
    await executions.record_finish(started, ExecutionFinish(success=True))
    await executions.mark_all_stale_failed("trigger-8", "stale")
    await executions.mark_latest_failed("build:7", "trigger-7", "blocked")
    await executions.readiness("build:7", "trigger-7")
    await executions.readiness("build:7", "trigger-7", "run-7")
    filters: list[dict[str, Any]] = [{}, {"skill": "build:7"}, {"trigger_id": "trigger-7"}]
    for each in (*filters, {"workflow_run_id": "run-7"}, {"running": True}):
        assert (await executions.list(limit=3, **each)).items
    assert (await executions.of_workflow_run("run-7", trigger_id="trigger-7")).items
    await executions.consecutive_failures("build:7")
    await executions.stats()
    await executions.daily_stats()
    assert (await executions.list_chat_threads(limit=3)).items
    assert (await executions.get(skipped)).output_text is None
    await executions.get_chat_thread("chat-" + "0" * 32)


async def test_plans(new_engine_url: str) -> None:
    storage = open_storage(new_engine_url)
    await plans_of(storage, new_engine_url, SUBJECT, fill, use)
    await storage.close()
