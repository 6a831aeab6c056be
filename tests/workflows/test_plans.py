"""The index that each statement of workflow runs, nodes and approvals uses on filled tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from tests.support.kinds import PHASES
from tests.support.plans import SMALL, Subject, plans_of
from tests.threads.support import open_storage
from tests.workflows.support import Done, TestResumer, WorkflowWorld

from perdure.approvals import sql as approval_sql
from perdure.approvals import tables as approval_tables
from perdure.approvals.due import DueApprovals
from perdure.approvals.link_model import PATH, parse_link_token
from perdure.approvals.service import LinkedApprovals
from perdure.executions import sql as execution_sql
from perdure.kernel.clock import MICROS
from perdure.kernel.storage.port import Storage, Tx
from perdure.kernel.storage.schema import Table
from perdure.messaging import sql as messaging_sql
from perdure.rollouts import sql as rollout_sql
from perdure.service import sql as service_sql
from perdure.service.callers import Caller
from perdure.streams import sql as stream_sql
from perdure.testing.clock import ManualClock
from perdure.threads import sql as thread_sql
from perdure.workflows import override_sql, sql, tables
from perdure.workflows.rows import WorkflowCountRow
from perdure.workflows.timer import WorkflowTimer

RUNS = 50_000
PHASES_EACH = 3
"""Number of nodes and of history entries per run; only one run of this number has any."""
CHUNK = 5_000
STATUSES = ("succeeded",) * 16 + ("failed",) * 2 + ("running", "paused")
KEY, NODE_KEY, APPROVAL_KEY = {"workflow_runs_pkey"}, {"workflow_nodes_pkey"}, {"workflow_approvals_pkey"}
EXPECTED = {
    "LOCK_RUNS": KEY,
    "GET_RUNS": KEY,
    "GET_VALUES": KEY,
    "MOVE_RUNS": KEY,
    "TENDED": set(),
    "SET_SCRATCH": KEY,
    "LIVE_RUN": {"workflow_runs_active"},
    "CHILDREN": {"workflow_runs_children"},
    "NODES_OF_ROLLOUTS": {"workflow_nodes_rollout"},
    "GET_NODES": NODE_KEY,
    "GET_NODE": NODE_KEY,
    "GET_PHASES": set(),
    "GET_IN_STATUS": {"workflow_nodes_status"},
    "GET_ITEMS": {"workflow_nodes_status"},
    "LAST_OUTPUT": {"workflow_nodes_status"},
    "ALL_ITEMS": NODE_KEY,
    "ALL_NODES": set(),
    "MOVE_NODES": NODE_KEY,
    "HELD_ROLLOUTS": set(),
    "LIVE_PHASES": set(),
    "QUEUED": {"workflow_runs_queued"},
    "RUNNING": set(),
    "DUE_RUNS": {"workflow_runs_due"},
    "DUE_NODES": {"workflow_nodes_due"},
    "NEXT_RUN": {"workflow_runs_due"},
    "NEXT_NODE": {"workflow_nodes_due"},
    "HISTORY_OF": {"workflow_history_pkey"},
    "BY_TRIGGER": {"idx_workflow_runs_trigger"},
    "MOVE": APPROVAL_KEY,
    "LOCK": APPROVAL_KEY,
    "GET_ARTIFACT": APPROVAL_KEY,
    "ANSWERS": APPROVAL_KEY,
    "LOCK_OPEN_OF_RUNS": {"idx_approvals_workflow"},
    "OPEN_OF_RUN": {"idx_approvals_workflow"},
    "LIST_BY_STATUS": {"workflow_approvals_status_order"},
    "LIST_BY_TRIGGER": {"workflow_approvals_trigger"},
    "LIST_BY_RUN": {"idx_approvals_workflow"},
    "NEWEST_OPEN": {"workflow_approvals_trigger"},
    "DUE_NAMESPACES": {"workflow_approvals_due"},
    "NEXT_DUE": {"workflow_approvals_due"},
    "FIND_LINK": {"approval_links_id"},
}
"""An empty set allows any index, as two indexes begin with the run."""
OTHERS = (override_sql, execution_sql, rollout_sql, thread_sql, stream_sql, messaging_sql, service_sql)
"""Modules whose statements run too, on tables that are small here."""
SMALL_HERE = frozenset(
    {"workflow_overrides", "assistants", "rollouts", "attempts", "workers", "resources", "running"}
)
LARGE = frozenset(
    {"workflow_runs", "workflow_nodes", "workflow_history", "workflow_approvals", "approval_links"}
)
SUBJECT = Subject(
    (sql, approval_sql, *OTHERS),
    LARGE,
    EXPECTED,
    small=SMALL | SMALL_HERE,
    may_scan=frozenset({"QUEUED_NAMESPACES"}),
)


# --- filled tables ----------------------------------------------------------------------------------------


@cache
def _blank(table: Table) -> tuple[dict[str, int], list[Any]]:
    """Return the position of each column of a table, and a row of default values."""
    empty = {"int": 0, "real": 0.0, "text": ""}
    places = {each.name: place for place, each in enumerate(table.columns)}
    return places, [
        each.default if each.null or each.default is not None else empty[each.type] for each in table.columns
    ]


def _row(table: Table, **values: Any) -> tuple[Any, ...]:
    places, blank = _blank(table)
    row = blank.copy()
    for name, value in values.items():
        row[places[name]] = value
    return tuple(row)


def run_id(number: int) -> str:
    return f"{number:08x}-0000-7000-8000-000000000000"


def _run(number: int, ns: int, now: int) -> tuple[Any, ...]:
    status = STATUSES[number % len(STATUSES)]
    live = status in ("running", "paused")
    return _row(
        tables.RUNS,
        ns=ns,
        id=run_id(number),
        workflow_name=f"workflow-{number % 50}",
        trigger_id=f"trigger-{number // 3}",
        repo=f"repo-{number % 20}" if number % 2 else None,
        status=status,
        active=1 if live else None,
        started_at=now - (RUNS - number) * MICROS,
        parent_run_id=run_id(number - 1) if number % 40 == 1 else None,
        due_at=now + 3600 * MICROS if status == "paused" else None,
        definition="d",
        trigger_type="api",
    )


def _nodes(number: int, ns: int, now: int) -> Iterator[tuple[Any, ...]]:
    for position, name in enumerate("abc"[:PHASES_EACH]):
        live = STATUSES[number % len(STATUSES)] == "running"
        yield _row(
            tables.NODES,
            ns=ns,
            run_id=run_id(number),
            node=name,
            item=0,
            position=position,
            status="running" if live else "succeeded",
            rollout_id=f"rollout-{number}-{name}" if live else None,
            due_at=now + 3600 * MICROS if live and name == "c" else None,
        )


def _history(number: int, ns: int, now: int) -> Iterator[tuple[Any, ...]]:
    for seq in range(1, PHASES_EACH + 1):
        yield _row(tables.HISTORY, ns=ns, run_id=run_id(number), seq=seq, phase="a", timestamp=now, success=1)


def _approval(number: int, ns: int, now: int) -> tuple[Any, ...]:
    is_open = number % 20 == 18
    return _row(
        approval_tables.APPROVALS,
        ns=ns,
        id=f"{number:08x}-1111-7000-8000-000000000000",
        workflow_run_id=run_id(number),
        gate="g",
        status="pending" if is_open else "approved",
        open=int(is_open),
        created_at=now - (RUNS - number) * MICROS,
        workflow_name="w",
        trigger_id=f"trigger-{number // 3}",
        due_at=now + 3600 * MICROS if is_open and number % 40 == 18 else None,
        expires_at=now + 3600 * MICROS if is_open else None,
    )


def _link(number: int, ns: int, now: int) -> tuple[Any, ...]:
    return _row(
        approval_tables.LINKS,
        ns=ns,
        id=f"{number:024x}",
        approval_id=f"{number:08x}-1111-7000-8000-000000000000",
        assignee="ann",
        hash="h",
        created_at=now,
        expires_at=now,
    )


async def _fill(tx: Tx, first: int) -> None:
    assert tx.ns is not None
    numbers = range(first, first + CHUNK)
    # Ended runs are older, so that the newest are found among many.
    await tx.insert_many(tables.RUNS, [_run(number, tx.ns, tx.now) for number in numbers])
    counts = Counter((f"workflow-{number % 50}", STATUSES[number % len(STATUSES)]) for number in numbers)
    await tx.write(
        sql.ADD_COUNTS.of(
            [WorkflowCountRow(*each, tx.shard, total) for each, total in sorted(counts.items())]
        )
    )
    some = [number for number in numbers if number // len(STATUSES) % PHASES_EACH == 0]
    for table, make in ((tables.NODES, _nodes), (tables.HISTORY, _history)):
        await tx.insert_many(table, [row for number in some for row in make(number, tx.ns, tx.now)])
    await tx.insert_many(approval_tables.APPROVALS, [_approval(n, tx.ns, tx.now) for n in numbers])
    await tx.insert_many(approval_tables.LINKS, [_link(n, tx.ns, tx.now) for n in numbers])


def _world(storage: Storage, cap: int = RUNS) -> WorkflowWorld:
    world = WorkflowWorld(storage, ManualClock(), cap=cap)
    world.timer = WorkflowTimer(storage, PHASES, cap=100, also=[DueApprovals(storage, TestResumer()).settle])
    return world


async def fill(storage: Storage) -> None:
    world = await _world(storage).begin()
    for first in range(0, RUNS, CHUNK):
        await storage.run(_fill, first, ns=await world.workflows.ns("write"))


# --- calls ------------------------------------------------------------------------------------------------

CHILD = "name: child\nphases:\n  - {name: inner, prompt: i}\n"
ASKING = "name: asking\nphases:\n  - {name: ask, type: approval}\n"
STORY = """
name: story
phases:
  - {name: plan, prompt: "{{large}}"}
  - {name: each, type: map, items: [x, y, z], max_parallel: 1, prompt: "{{item}}", depends_on: [plan]}
  - {name: sub, type: workflow, workflow: child, depends_on: [each]}
  - {name: ask, type: approval, expires_after: 1000, depends_on: [sub]}
  - {name: talk, prompt: t, depends_on: [ask]}
  - {name: last, prompt: l, depends_on: [talk]}
"""


async def use(storage: Storage) -> None:
    world = _world(storage)
    for text in (CHILD, STORY):
        world.add(text)
    run = await world.start(trigger_id="mine")
    await world.work({"each_item_2": [Done(success=False)], "talk": [Done(asks="Which?"), "done"]})
    await world.workflows.retry(run)
    await world.work()
    (gate,) = await world.pending(run)
    await _answer_by_link(world, gate.approval_id)
    await world.work()
    await world.workflows.pause(run)
    (gate,) = await world.pending(run)
    await world.approvals.reply(gate.approval_id, "blue")
    await world.workflows.resume(run)
    await world.workflows.update_scratch(run, values={"n": 1})
    await world.settle()
    await world.workflows.cancel(run)
    await world.workflows.retry(run)
    await world.work()
    assert (await world.workflows.get(run)).status == "succeeded"
    asking = await world.start(ASKING, trigger_id="asking")
    await world.workflows.cancel(asking)
    crowded = _world(storage, cap=1)
    crowded.add(CHILD)
    queued = await crowded.start(trigger_id="other")
    await crowded.settle()
    await crowded.workflows.cancel(queued)
    await _look(world, run)


async def _answer_by_link(world: WorkflowWorld, approval_id: str) -> None:
    admin = Caller("boss", frozenset({"admin"}), world.namespace, (world.namespace,))
    link = await world.approvals.acting_as(admin).create_link(approval_id, "ann")
    token = parse_link_token(link.path.removeprefix(PATH))
    assert token is not None
    await LinkedApprovals(world.storage, TestResumer()).answer(token, "approve", None)


async def _open_of_run(tx: Tx, run: str) -> int:
    return len(await tx.all(approval_sql.OPEN_OF_RUN, run_id=run, n=5))


async def _look(world: WorkflowWorld, run: str) -> None:
    workflows, approvals = world.workflows, world.approvals
    filters: list[dict[str, Any]] = [{}, {"workflow_name": "workflow-7"}, {"repo": "repo-7"}]
    for each in (*filters, {"status": ["failed"]}, {"since": "2020-01-01T00:00:00Z"}):
        page = await workflows.list_runs(limit=20, **each)
        assert len(page.items) == 20
        assert (await workflows.list_runs(limit=20, cursor=page.next, **each)).items
    assert await workflows.history(run, limit=2)
    assert (await workflows.get_by_trigger("trigger-7", live=False)).status
    assert (await approvals.list(limit=5)).items
    assert await world.storage.read(_open_of_run, run_id(18), ns=await approvals.ns()) == 1
    for wanted in ({"status": "pending"}, {"trigger_id": "trigger-6"}, {"workflow_run_id": run}):
        assert (await approvals.list(limit=5, **wanted)).items  # type: ignore[arg-type]
    assert (await approvals.pending("trigger-6")).status == "pending"


@pytest.mark.timeout(300)
async def test_plans(new_engine_url: str) -> None:
    storage = open_storage(new_engine_url)
    await plans_of(storage, new_engine_url, SUBJECT, fill, use)
    await storage.close()
