"""A Last Light database with the tree of its sessions, and events of an agent-memory service."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import run_here
from tests.server.grpc.support import serving

from perdure.cli.shell.direct import Direct
from perdure.client.grpc.memory import GrpcMemory
from perdure.importing.agent_memory import import_events
from perdure.importing.last_light import import_database, import_tree
from perdure.importing.records import ImportReport
from perdure.kernel import ids
from perdure.kernel.errors import InvalidInput, NotFound
from perdure.memory.records import NewMemoryEvent
from perdure.runtime.services import Services
from perdure.runtime.stores import open_store

from .test_commands import import_three_times

# The tables as the source document prints them.
SCHEMA = """
CREATE TABLE executions (
  id TEXT PRIMARY KEY, trigger_type TEXT NOT NULL, trigger_id TEXT NOT NULL, skill TEXT NOT NULL, repo TEXT,
  issue_number INTEGER, started_at TEXT NOT NULL, finished_at TEXT, success INTEGER, error TEXT,
  turns INTEGER,
  duration_ms INTEGER, session_id TEXT, cost_usd REAL, input_tokens INTEGER,
  cache_creation_input_tokens INTEGER, cache_read_input_tokens INTEGER, output_tokens INTEGER,
  api_duration_ms INTEGER, stop_reason TEXT, workflow_run_id TEXT, output_text TEXT);
CREATE TABLE workflow_overrides (
  name TEXT PRIMARY KEY, enabled INTEGER NOT NULL DEFAULT 1, updated_at TEXT NOT NULL, updated_by TEXT);
CREATE TABLE workflow_runs (id TEXT PRIMARY KEY);
INSERT INTO workflow_runs VALUES ('w-1');
INSERT INTO workflow_overrides VALUES ('build', 0, '2026-05-23T06:28:06.989Z', 'ann'), ('review', 1, '', '');
"""
AT = "2026-05-23T06:28:06.989Z"
END = "2026-05-23T06:29:06.989Z"
EXECUTIONS = [
    ("e-1", "webhook", "a/b#7", "build:plan", AT, END, 1, 3, "s-1", 0.5, 100, "the plan"),
    ("e-2", "cron", "a/b::triage", "triage:triage", AT, END, 0, 1, "s-2", None, 20, None),
    ("e-3", "chat", "slack:1", "chat", AT, None, None, None, None, None, None, None),
    ("e-4", "chat", "slack:1", "chat", "yesterday", END, 1, None, None, None, None, None),
]
COLUMNS = (
    "id, trigger_type, trigger_id, skill, started_at, finished_at, success, turns, session_id, cost_usd,"
    " input_tokens, output_text"
)


def said(role: str, text: str) -> str:
    return json.dumps({"type": role, "message": {"role": role, "content": text}, "timestamp": AT}) + "\n"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state directory of a harness."""
    folder = tmp_path / "state"
    folder.mkdir()
    connection = sqlite3.connect(folder / "lastlight.db")
    connection.executescript(SCHEMA)
    marks = ", ".join("?" * len(EXECUTIONS[0]))
    connection.executemany(f"INSERT INTO executions ({COLUMNS}) VALUES ({marks})", EXECUTIONS)
    connection.commit()
    connection.close()
    projects = folder / "agent-sessions" / "projects"
    files = {"-app/s-2": "Hello", "-srv-shop/s-1": "Plan it", "-srv-shop/s-1/subagents/agent-9": "Look"}
    for name, text in files.items():
        path = projects / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(said("user", text) + said("assistant", f"{text}, done"))
    (projects / "-srv-shop" / "not a name!.jsonl").write_text(said("user", "x"))
    return folder


@pytest.fixture
async def services(engine_url: str) -> AsyncIterator[Services]:
    database = engine_url if "://" in engine_url else f"sqlite:///{engine_url}"
    connection = Direct(database, None, "test", create=True)
    yield connection.own_services
    await connection.close()


def counts(report: ImportReport) -> dict[str, tuple[int, ...]]:
    return {each.kind: (each.found, each.added, each.present, each.refused) for each in report.counts}


async def import_all(services: Services, state: Path, *, dry_run: bool = False) -> dict[str, tuple[int, ...]]:
    report = ImportReport(source="last-light", dry_run=dry_run)
    file = state / "lastlight.db"
    await import_database(file, services.executions, services.workflow_overrides, report)
    await import_tree(state / "agent-sessions", services.sessions, report)
    assert {each.id for each in report.refusals} == {"e-3", "e-4", "-srv-shop/not a name!.jsonl"}
    return counts(report)


async def test_a_database_is_imported_once_with_its_sessions(services: Services, state: Path) -> None:
    first = {
        "executions": (4, 2, 0, 2),
        "workflow_overrides": (2, 1, 1, 0),
        "workflow_runs": (1, 0, 0, 0),
        "sessions": (4, 3, 0, 1),
    }
    again = {"executions": (4, 0, 2, 2), "workflow_overrides": (2, 0, 2, 0), "sessions": (4, 0, 3, 1)}
    assert await import_all(services, state, dry_run=True) == first
    assert (await services.executions.list()).items == []
    assert (await services.sessions.list()).items == []
    assert await import_all(services, state) == first
    assert await import_all(services, state) == {**first, **again}
    plan = await services.executions.get("e-1")
    assert (plan.skill, plan.label, plan.success, plan.output_text) == (
        "build:plan",
        "plan",
        True,
        "the plan",
    )
    assert (plan.started_at, plan.cost_usd, plan.input_tokens) == (AT, 0.5, 100)
    stats = await services.executions.stats()
    assert stats.all.total == 2
    assert not await services.workflow_overrides.is_enabled("build")
    session = await services.sessions.get("s-1")
    assert (session.project, session.first_message, session.messages) == ("-srv-shop", "Plan it", 2)
    assert [each.name for each in session.sub_agents] == ["subagents/agent-9"]
    # A session that has grown adds what is new.
    with (state / "agent-sessions" / "projects" / "-app" / "s-2.jsonl").open("a") as file:
        file.write(said("user", "More"))
    assert (await import_all(services, state))["sessions"] == (4, 1, 2, 1)
    assert (await services.sessions.get("s-2")).messages == 3


def test_last_light_is_imported_by_the_command(tmp_path: Path, state: Path) -> None:
    sessions = ("--sessions", str(state / "agent-sessions"))
    dry, real, again = import_three_times(tmp_path, "last-light", str(state / "lastlight.db"), *sessions)
    assert dry == real
    assert (real["executions"], real["sessions"]) == ((4, 2, 0, 2), (4, 3, 0, 1))
    assert (again["executions"], again["sessions"]) == ((4, 0, 2, 2), (4, 0, 3, 1))
    shown = run_here(tmp_path, "session", "list", "--database", f"sqlite:///{tmp_path}/own.db")
    assert "Plan it" in shown.stdout


async def test_other_files_are_refused(services: Services, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    sqlite3.connect(other).execute("CREATE TABLE a (b)")
    report = ImportReport(source="last-light")
    with pytest.raises(InvalidInput, match="Last Light"):
        await import_database(other, services.executions, services.workflow_overrides, report)
    with pytest.raises(NotFound):
        await import_tree(tmp_path / "none", services.sessions, report)


async def test_events_of_a_memory_service_are_imported_once(services: Services, tmp_path: Path) -> None:
    """Also where more events have one time than a page has."""
    moment = 1_772_359_201_000
    times = [moment + number // 700 for number in range(1500)]
    events = [
        NewMemoryEvent(
            event_id=ids.derived_ulid(time, str(number)),
            session_id="s",
            timestamp_ms=time,
            text=f"event {number}",
            role="assistant",
            event_type="assistant_message",
        )
        for number, time in enumerate(times)
    ]
    async with (
        open_store(f"sqlite:///{tmp_path}/source.db") as store,
        serving(store) as source,
        GrpcMemory(source.address) as client,
    ):
        for start in range(0, len(events), 100):
            await client.ingest_many(events[start : start + 100])

        async def imported(*, dry_run: bool = False) -> tuple[int, ...]:
            report = ImportReport(source="agent-memory", dry_run=dry_run)
            await import_events(client, services.memory, report)
            return counts(report)["events"]

        assert await imported(dry_run=True) == (1500, 1500, 0, 0)
        assert await imported() == (1500, 1500, 0, 0)
        assert await imported() == (1500, 0, 1500, 0)
    page: Any = await services.memory.get_events(limit=1000)
    assert len(page.items) == 1000
    assert {event.role for event in page.items} == {"assistant"}
