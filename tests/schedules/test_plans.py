"""The index that each statement of schedules goes by, on fifty thousand of them and both engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.schedules.support import TARGETS
from tests.support.plans import Plan, Subject, plans_of
from tests.threads.support import AGENTS, open_storage

from perdure.assistants.service import Assistants
from perdure.kernel.clock import MICROS
from perdure.kernel.storage.port import Storage, Tx
from perdure.schedules import sql, tables
from perdure.schedules.service import Schedules
from perdure.schedules.timer import ScheduleTimer
from perdure.service.namespaces import ensure_namespace

SCHEDULES = 50_000
CHUNK = 5_000
EXPECTED = {
    "DUE_NAMESPACES": {"schedules_due"},
    "NEXT": {"schedules_due"},
    "DUE": {"schedules_due"},
    "CLAIM": {"schedules_pkey"},
    "MOVE": {"schedules_pkey"},
    "GET": {"schedules_pkey"},
    "LOCK": {"schedules_pkey"},
    "SAVE": {"schedules_pkey"},
    "DROP": {"schedules_pkey"},
    "GET_NAMED": {"schedules_name"},
    "LIST_NAMED": {"schedules_name"},
    "RUNNING": {"schedules_running"},
    "OPEN_FIRINGS": {"firings_open"},
    "END_FIRINGS": {"firings_pkey"},
    "GET_FIRING": {"firings_pkey"},
    "LIST_FIRINGS": {"firings_pkey"},
    "DROP_FIRINGS": {"firings_pkey"},
    "GET_OVERRIDES": {"cron_overrides_pkey"},
    "LIST_OVERRIDES": {"cron_overrides_pkey"},
    "DROP_OVERRIDE": {"cron_overrides_pkey"},
}


SUBJECT = Subject((sql,), frozenset({"schedules", "firings", "cron_overrides"}), EXPECTED)


FILES = 1000
"""How many of them files define, one in ten with an override."""
BLANK = {
    column.name: None if column.null else "" if column.type == "text" else 0
    for column in tables.SCHEDULES.columns
}


def _rows(now: int) -> Iterator[list[tuple[Any, ...]]]:
    """Most wait for a time that is far away, some are paused, and a few are due or have an open firing."""
    for start in range(0, SCHEDULES, CHUNK):
        rows = []
        for number in range(start, start + CHUNK):
            next_at = None if number % 10 == 0 else now + (number - 30) * MICROS
            is_file = number % (SCHEDULES // FILES) == 0
            row: dict[str, Any] = BLANK | {
                "ns": 1,
                "id": f"{number:032x}",
                "name": f"name-{number}" if number % 2 == 0 else None,
                "origin": "file" if is_file else "api",
                "target": "run",
                "expression": "0 0 1 1 *",
                "enabled": int(next_at is not None),
                "next_at": next_at,
                "due_at": next_at,
                "assistant_id": f"assistant-{number % 50}",
                "thread_id": f"thread-{number // 2}",
                "created_at": now + number,
                "updated_at": now,
                "running": int(number % 500 == 7),
                "metadata": "{}",
                "payload": "{}",
            }
            rows.append(tuple(row.values()))
        yield rows


def _firing(schedule_id: str, due_at: int, is_open: bool) -> tuple[Any, ...]:
    status = "running" if is_open else "success"
    ends = (None, None, 1, None) if is_open else (due_at, 0, None, None)
    return (1, schedule_id, due_at, due_at, "r", None, "schedule", None, "run", status, None, *ends)


async def _fill(tx: Tx, rows: list[tuple[Any, ...]]) -> None:
    await tx.insert_many(tables.SCHEDULES, rows)
    firings = [
        _firing(row[1], number, is_open=number == 1 and int(row[1], 16) % 500 == 7)
        for row in rows
        for number in (1, 2, 3)
    ]
    await tx.insert_many(tables.FIRINGS, firings)
    overrides = [(1, row[2], 1, None, 1, None) for row in rows if row[3] == "file" and row[2] is not None]
    await tx.insert_many(tables.CRON_OVERRIDES, overrides[::10])


async def _now(tx: Tx) -> int:
    return tx.now


async def fill(storage: Storage) -> None:
    assert await storage.run(ensure_namespace, "default") == 1
    await Assistants(storage).register(AGENTS)
    for rows in _rows(await storage.read(_now)):
        await storage.run(_fill, rows)


async def use(storage: Storage) -> None:
    schedules = Schedules(storage, TARGETS)
    await ScheduleTimer(storage, TARGETS).fire_due()
    assert await schedules.search(limit=10)
    assert await schedules.search(assistant_id="assistant-7", limit=10)
    assert await schedules.search(thread_id="thread-7", limit=10)
    status = await schedules.status(limit=10)
    assert [each.job_name for each in status.jobs[:2]] == ["name-0", "name-10"]
    assert await schedules.overrides(limit=10)
    assert await schedules.get_override("name-0") is not None
    await schedules.set_override("name-100", enabled=False)
    await schedules.clear_override("name-100")
    made = await schedules.create("@daily", assistant_id="echo", name="mine")
    assert (await schedules.trigger("name-2")).error is not None
    await schedules.pause(made.schedule_id)
    assert (await schedules.firings(made.schedule_id)).items == []
    await schedules.delete(made.schedule_id)


def listings(found: dict[str, Plan]) -> list[frozenset[str]]:
    """The indexes of the pages that were listed."""
    return [plan.indexes for key, plan in found.items() if "order by created_at desc" in key.lower()]


async def test_plans(new_engine_url: str) -> None:
    storage = open_storage(new_engine_url)
    found = await plans_of(storage, new_engine_url, SUBJECT, fill, use)
    await storage.close()
    assert all(listings(found))
