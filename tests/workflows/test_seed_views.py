"""The views for people who read the database with SQL, in the columns and formats that they know."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.threads.support import World, open_storage
from tests.workflows.support import Done, WorkflowWorld

from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Row, Tx
from perdure.kernel.storage.postgres import PostgresStorage
from perdure.kernel.storage.sqlite import SqliteStorage
from perdure.runtime.stores import TABLES
from perdure.testing.clock import ManualClock

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
FLOW = """
name: review
max_parallel: 1
phases:
  - {name: plan, prompt: "plan", messages: {on_success: "planned \\"it\\""}}
  - {name: skip, prompt: "x", skip_if: "flag == true"}
  - {name: build, prompt: "fail"}
  - {name: ship, prompt: "ship"}
"""
DETAIL = "SELECT * FROM workflow_runs_seed WHERE id = :id"
LISTED = """
SELECT id, workflow_name, trigger_id, repo, issue_number, current_phase, phase_history, status, restart_count,
  started_at, updated_at, finished_at
FROM workflow_runs_seed ORDER BY started_at DESC LIMIT 20
"""
PENDING = "SELECT * FROM run WHERE status = 'pending' ORDER BY created_at;"
IN_FLIGHT = "SELECT * FROM run WHERE thread_id = '<thread_id>' AND status = 'running';"
RUNNING = "SELECT * FROM run WHERE status = 'running' ORDER BY created_at;"
RETRIES = """SELECT run_id, status, created_at FROM run
WHERE status = 'pending'
ORDER BY created_at;"""
SWEEP = "SELECT run_id FROM run WHERE status = 'running';"
"""Queries for troubleshooting, as in LangGraph's documentation."""


async def ask(world: World, query: str, **values: str) -> Sequence[Row]:
    return await world.rows(statement(query.strip().removesuffix(";")), **values)


async def test_a_workflow_run_is_read_as_the_seed_shows_it(world: WorkflowWorld) -> None:
    run = await world.play(
        FLOW, {"build": Done(success=False)}, context={"flag": True, "title": "é"}, repo="a/b"
    )
    (row,) = await ask(world, DETAIL, id=run.workflow_run_id)
    columns = dict(zip(SEED_COLUMNS, row, strict=True))
    assert columns["repo"] == "a/b"
    assert columns["restart_count"] == 0
    assert columns["namespace"] == world.namespace
    assert json.loads(columns["context"])["title"] == "é"
    for name in ("started_at", "updated_at", "finished_at"):
        assert TIME.fullmatch(columns[name]), name
    history = json.loads(columns["phase_history"])
    shown = await world.workflows.history(run.workflow_run_id)
    assert [(each["phase"], each["success"]) for each in history] == [
        (entry.phase, entry.success) for entry in shown
    ]
    assert all(TIME.fullmatch(each["timestamp"]) for each in history)
    assert any(each.get("summary") == 'planned "it"' for each in history)
    assert all(each["summary"] is not None for each in history if "summary" in each)
    statuses = json.loads(columns["node_statuses"])
    assert list(statuses) == ["plan", "skip", "build", "ship"]
    assert statuses["plan"] == "succeeded"
    assert statuses["skip"] == "skipped"
    assert set(statuses.values()) <= {"pending", "running", "succeeded", "failed", "skipped"}
    listed = await ask(world, LISTED)
    assert run.workflow_run_id in {found for found, *_ in listed}


SEED_COLUMNS = (
    *(
        "id",
        "workflow_name",
        "trigger_id",
        "repo",
        "issue_number",
        "current_phase",
        "phase_history",
        "status",
    ),
    *("context", "scratch", "node_statuses", "restart_count", "started_at", "updated_at", "finished_at"),
    *("error", "namespace"),
)


async def test_a_run_that_begins_has_a_history_and_statuses(world: WorkflowWorld) -> None:
    run_id = await world.start(FLOW)
    (row,) = await ask(world, DETAIL, id=run_id)
    columns = dict(zip(SEED_COLUMNS, row, strict=True))
    assert json.loads(columns["phase_history"]) == []
    assert columns["finished_at"] is None
    assert sorted(json.loads(columns["node_statuses"]).values()) == [
        "pending",
        "pending",
        "pending",
        "running",
    ]


async def test_the_queries_for_troubleshooting_find_runs(shared_engine_url: str) -> None:
    clock = ManualClock()
    storage = open_storage(shared_engine_url, clock=clock)
    world = await World(storage, clock, namespace=f"test {uuid.uuid4().hex}").begin()
    try:
        thread = await world.thread()
        ids = [(await world.run(thread, "enqueue")).run_id for _ in range(2)]
        first, second = ids
        pending = await ask(world, PENDING)
        assert [row[0] for row in pending if row[0] in (first, second)] == [first, second]
        await world.claim()
        (in_flight,) = await ask(world, IN_FLIGHT.replace("<thread_id>", thread))
        assert in_flight[0] == first
        assert first in {row[0] for row in await ask(world, RUNNING)}
        assert first in {row[0] for row in await ask(world, SWEEP)}
        assert [row[:2] for row in await ask(world, RETRIES) if row[0] == second] == [(second, "pending")]
        (shown,) = await ask(world, "SELECT status, metadata FROM thread WHERE thread_id = :id", id=thread)
        assert shown[0] == "busy"
        run = await ask(
            world, "SELECT assistant_id, kwargs, multitask_strategy FROM run WHERE run_id = :id", id=first
        )
        assert len(run) == 1
    finally:
        await storage.close()


VIEWS = statement(
    "SELECT name FROM sqlite_schema WHERE type = 'view' AND name NOT LIKE '%source' ORDER BY name"
)


async def _views(tx: Tx) -> list[str]:
    return [name for (name,) in await tx.all(VIEWS)]


async def test_a_database_that_was_made_before_gets_the_views(tmp_path: Path) -> None:
    path = tmp_path / "perdure.db"
    before = [replace(table, views=()) for table in TABLES]
    for tables in (before, TABLES, TABLES):
        storage = SqliteStorage(path, tables)
        try:
            found = await storage.read(_views)
        finally:
            await storage.close()
        assert found == ([] if tables is before else ["run", "thread", "workflow_runs_seed"])


PG_VIEWS = statement(
    "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
    " AND relkind = 'v' ORDER BY relname"
)
CHANGES = [
    statement("DROP VIEW run"),
    statement("DROP VIEW thread"),
    statement("CREATE TABLE thread (thread_id text)"),
]


async def test_a_name_that_is_taken_on_postgres_stays_as_it_is(database_url: str) -> None:
    for expected in (["run", "thread", "workflow_runs_seed"], ["run", "workflow_runs_seed"]):
        storage = PostgresStorage(database_url, TABLES)
        try:
            assert [name for (name,) in await storage.read(_pg_views)] == expected
            if "thread" in expected:
                await storage.run(_change)
        finally:
            await storage.close()


async def _pg_views(tx: Tx) -> Sequence[Row]:
    return await tx.all(PG_VIEWS)


async def _change(tx: Tx) -> None:
    for each in CHANGES:
        await tx.execute(each)
