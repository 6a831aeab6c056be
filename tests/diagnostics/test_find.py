"""The lookup of ids: every kind by its id, by a beginning and as the newest, on each engine."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator
from typing import Any

import apsw
import asyncpg
import pytest
from tests.fixtures.make_release import span_of
from tests.support.kinds import KINDS as KINDS_OF_ROLLOUTS
from tests.support.plans import of_postgres, of_sqlite
from tests.workflows.support import workflow

from perdure.agents.records import AgentSpec
from perdure.diagnostics import find_sql
from perdure.diagnostics.finding import KINDS, Kind
from perdure.eventlog import sql as log_sql
from perdure.executions.model import ExecutionSeed, NewPhase
from perdure.kernel.config import Settings
from perdure.kernel.errors import BadQuery, InvalidInput
from perdure.kernel.ids import derived_ulid
from perdure.kernel.storage.dialect import Statement
from perdure.kernel.storage.port import Tx
from perdure.memory import tables as memory_tables
from perdure.memory.records import NewMemoryEvent
from perdure.outbox.operations import NewEffect, put
from perdure.runtime.services import Services
from perdure.runtime.stores import ThreadPhases, open_store
from perdure.service.callers import Caller
from perdure.spans import tables as span_tables
from perdure.threads.records import RunRequest

GATED = "{name: gated, phases: [{name: gate, type: approval}, {name: after, prompt: go}]}"
EVENT_MS = 1_768_000_000_000
GRIP = f"grip:{EVENT_MS}:01KEJ6A8000000000000000000"


@pytest.fixture
async def services(engine_url: str) -> AsyncIterator[Services]:
    store = open_store(engine_url, namespace=f"test {uuid.uuid4().hex}", watchdog_interval=None)
    made = Services(store, Settings())
    yield made
    await made.close()


async def _rows(tx: Tx, ns: int) -> None:
    """What consumers and jobs write in their own time."""
    trace = (ns, "abcd" * 8, 4 * 10**18, 5 * 10**18, 1, 0, 0, 0, 1, -1, None)
    await tx.insert_many(span_tables.TRACES, [(*trace, "ro-0", "svc", "GET /", 0, 0, None)])
    node = (ns, "toc:day:2026-01-10", 4, None, EVENT_MS, EVENT_MS + 1, "complete", 1, 0, 0, None, None, None)
    await tx.insert_many(memory_tables.NODES, [(*node, 0, None, None, None, None, 0, 0, None, None, None)])
    grip = (ns, GRIP, "toc:day:2026-01-10", EVENT_MS, "s", "bullet", "[]", "A walk")
    await tx.insert_many(memory_tables.GRIPS, [grip])
    version = (ns, "toc:day:2026-01-10", 1, 0, "A day in January", "{}")
    await tx.insert_many(memory_tables.NODE_VERSIONS, [version])


async def seed(services: Services) -> dict[Kind, str]:
    """One thing of each kind, by its id."""
    store, found = services.store, dict[Kind, str]()
    found["resources"] = (await store.add_resources({})).resources_id
    await services.run_queue.register("worker-9", [AgentSpec(name="echo")], 1)
    found["worker"] = "worker-9"
    started = await store.start_rollout(input={"question": 1})
    found["rollout"], found["attempt"] = started.rollout_id, started.attempt.attempt_id
    await store.add_span(span_of(started, 1, span_id="5a5a5a5a5a5a5a5a"))
    found["span"] = "5a5a5a5a5a5a5a5a"
    found["thread"] = (await services.threads.create_thread()).thread_id
    asked = RunRequest(assistant_id="echo", thread_id=found["thread"])
    found["run"] = (await services.threads.create_run(asked)).run_id
    found["assistant"] = (await services.assistants.create("echo", name="Echo")).assistant_id
    found["schedule"] = (
        await services.schedules.create("0 9 * * *", assistant_id="echo", name="nightly")
    ).schedule_id
    services.definitions.add(workflow(GATED))
    found["workflow_run"] = (await services.workflows.run("gated")).workflow_run_id or ""
    found["approval"] = (await services.approvals.list()).items[0].approval_id
    new = NewPhase(
        input="{}",
        agent="default",
        execution=ExecutionSeed(trigger_type="api", trigger_id="t", skill="build:plan"),
        parent=found["workflow_run"],
    )
    phases = ThreadPhases(KINDS_OF_ROLLOUTS, services.threads.policy)
    found["phase"] = str((await services.run_queue.write(phases.create, [new]))[0])
    found["job"] = await services.jobs.enqueue("tidy", {})
    found["session"] = "session-1"
    await services.sessions.append("session-1", [{"type": "user", "message": {"content": "hello"}}])
    found["messaging_session"] = (await services.messaging.get_or_create("cli", "c", user_id="u")).session_id
    found["memory_event"] = derived_ulid(EVENT_MS, uuid.uuid4().hex)
    await services.memory.ingest(NewMemoryEvent(event_id=found["memory_event"], session_id="s"))
    (found["effect"],) = await services.outbox.write(put, [NewEffect("webhook", "run-1", "{}")])
    await services.storage.run(_rows, await services.outbox.ns())
    found["trace"], found["memory_node"] = "abcd" * 8, "toc:day:2026-01-10"
    found["memory_grip"] = GRIP
    found["token"] = (await services.access.create_token("laptop", scopes=["admin"])).token_id
    return found


EXPECTED: dict[Kind, tuple[str | None, str | None]] = {
    "run": ("echo", "pending"),
    "thread": (None, "busy"),
    "rollout": ("default", "running"),
    "attempt": (None, "running"),
    "workflow_run": ("gated", "paused"),
    "approval": ("gate", "pending"),
    "phase": ("default", "pending"),
    "schedule": ("nightly", "enabled"),
    "assistant": ("Echo", None),
    "session": ("hello", None),
    "messaging_session": ("cli", "active"),
    "trace": ("GET /", "ok"),
    "span": ("step 1", "ok"),
    "memory_node": ("A day in January", "complete"),
    "memory_event": (None, None),
    "memory_grip": ("A walk", None),
    "worker": (None, "idle"),
    "effect": ("webhook", "pending"),
    "resources": (None, None),
    "job": ("tidy", "queuing"),
    "token": ("laptop", "active"),
}
"""The title and the status of each."""
PARENTS: dict[Kind, Kind] = {
    "run": "thread",
    "attempt": "rollout",
    "span": "rollout",
    "approval": "workflow_run",
    "memory_grip": "memory_node",
}
WITHOUT_NEWEST = {"span", "request"}


async def test_each_kind_is_found(services: Services) -> None:
    ids = await seed(services)
    assert set(ids) | {"request"} == set(KINDS)
    find, words = services.diagnostics.find, {}
    for kind, id in ids.items():
        by_id = (await find(id))[0]
        assert (by_id.kind, by_id.id) == (kind, id)
        words[kind] = (by_id.title, by_id.status)
        assert by_id.parent_id == ids[PARENTS[kind]] if kind in PARENTS else True, kind
        assert by_id in await find(id[:-1], limit=100), kind
        assert [each.id for each in await find(id[:-1], kind=[kind])] == [id], kind
        newest = [each.id for each in await find("last", kind=[kind])]
        # What the server does with the others may put a later effect.
        assert newest == ([] if kind in WITHOUT_NEWEST else [id]) or (kind == "effect" and newest > [id]), (
            kind
        )
    assert words == EXPECTED
    assert [each.kind for each in await find("night")] == ["schedule"]
    assert [each.id for each in await find(ids["memory_event"][:20].lower())] == [ids["memory_event"]]
    assert await find("no such id") == []
    every = {each.kind for each in await find("last")}
    assert every == set(KINDS) - WITHOUT_NEWEST


async def test_only_administrators_find_tokens(services: Services) -> None:
    token = await services.access.create_token("laptop", scopes=["admin"])
    reader = Caller("ann", frozenset({"read"}), services.diagnostics.namespace, None)
    elsewhere = Caller("bo", frozenset({"read", "admin"}), "elsewhere", ("elsewhere",))
    for caller in (reader, elsewhere):
        diagnostics = services.diagnostics.acting_as(caller)
        assert [each for each in await diagnostics.find(token.token_id) if each.kind == "token"] == []
    assert [each.id for each in await services.diagnostics.find(token.token_id)] == [token.token_id]


async def test_an_id_that_is_called_last_comes_before_the_newest(services: Services) -> None:
    await services.threads.create_thread("last")
    await services.threads.create_thread("later")
    assert [each.id for each in await services.diagnostics.find("last", kind=["thread"])] == ["last"]
    assert [each.id for each in await services.diagnostics.find("la", kind=["thread"])] == ["last", "later"]
    assert [each.id for each in await services.diagnostics.find("la", limit=1)] == ["last"]


async def test_bad_input_is_refused(services: Services) -> None:
    for wrong in ({"q": ""}, {"q": " "}, {"q": "a\0"}, {"q": "a" * 300}, {"q": "a", "limit": 0}):
        with pytest.raises(InvalidInput):
            await services.diagnostics.find(**wrong)
    for kinds in (["rocket"], "run"):
        with pytest.raises((InvalidInput, BadQuery)):
            await services.diagnostics.find("a", kind=kinds)  # type: ignore[arg-type]


FEW = {"NEWEST_WORKERS", "NEWEST_TOKENS", "ROLLOUTS_OF_KINDS", "SPANS"}
"""What sorts or reads a few rows: those of small tables, and those that a limit inside bounds."""
STATEMENTS: dict[str, Statement[Any]] = {
    **{name: each for name, each in vars(find_sql).items() if isinstance(each, Statement)},
    "LOGS_STARTING": log_sql.LOGS_STARTING,
}


async def test_every_statement_reads_a_range_of_an_index(new_engine_url: str) -> None:
    store = open_store(new_engine_url, watchdog_interval=None)
    await store.add_resources({})
    plans = {}
    if store.storage.engine == "sqlite":
        await store.close()
        connection = apsw.Connection(new_engine_url)
        for name, statement in STATEMENTS.items():
            rows = list(connection.execute("EXPLAIN QUERY PLAN " + statement.sqlite, _bound(statement)))
            plans[name] = of_sqlite([row[3] for row in rows])
        connection.close()
    else:
        connection = await asyncpg.connect(new_engine_url)
        # Tables without rows would be scanned.
        await connection.execute("SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan")
        for name, statement in STATEMENTS.items():
            count = len(set(re.findall(r"\$(\d+)", statement.postgres)))
            await connection.execute("PREPARE asked AS " + statement.postgres)
            answer = await connection.fetchval(
                f"EXPLAIN (FORMAT JSON) EXECUTE asked({', '.join(['NULL'] * count)})"
            )
            await connection.execute("DEALLOCATE asked")
            plans[name] = of_postgres(answer, frozenset(LARGE))
        await connection.close()
        await store.close()
    wrong = {name: plan.text for name, plan in plans.items() if plan.scanned or _sorts(plan.text)}
    assert set(wrong) - FEW == set(), wrong
    assert "attempts_id" in plans["ATTEMPTS"].indexes
    assert "spans_pkey" in plans["SPANS"].indexes
    assert "schedules_name" in plans["NAMED_SCHEDULES"].indexes


LARGE = {"rollouts", "attempts", "runs", "threads", "spans", "traces", "workflow_runs", "memory_events"}


def _sorts(plan: str) -> bool:
    return "USE TEMP B-TREE" in plan or '"Node Type": "Sort"' in plan


def _bound(statement: Statement[Any]) -> dict[str, Any]:
    return dict.fromkeys(statement.names, "1")
