"""The index that each statement of schedules goes by, on fifty thousand of them and both engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.reliability import plans
from tests.reliability.plans import Plan, Plans
from tests.schedules.support import TARGETS
from tests.threads.support import AGENTS, open_storage

from perdure.access.operations import ensure_namespace
from perdure.assistants.service import Assistants
from perdure.kernel.clock import MICROS
from perdure.kernel.storage.dialect import BulkUpdate, Statement
from perdure.kernel.storage.port import Storage, Tx
from perdure.schedules import sql, tables
from perdure.schedules.service import Schedules
from perdure.schedules.timer import ScheduleTimer

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
    "LIST_FIRINGS": {"firings_pkey"},
    "DROP_FIRINGS": {"firings_pkey"},
}


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    named = {value: name for name, value in vars(sql).items() if isinstance(value, Statement | BulkUpdate)}
    monkeypatch.setattr(plans, "NAMES", named)
    monkeypatch.setattr(plans, "LARGE", frozenset({"schedules", "firings"}))


def _rows(now: int) -> Iterator[list[tuple[Any, ...]]]:
    """Most wait for a time that is far away, some are paused, and a few are due."""
    for start in range(0, SCHEDULES, CHUNK):
        rows = []
        for number in range(start, start + CHUNK):
            next_at = None if number % 10 == 0 else now + (number - 30) * MICROS
            times = (None if next_at is None else next_at, None)
            whose = (f"assistant-{number % 50}", f"thread-{number // 2}", None)
            counts = (now + number, now, None, 0, 0, None, None)
            what = ("run", "0 0 1 1 *", None, int(next_at is not None))
            rows.append((1, f"{number:032x}", *what, *times, *whose, *counts, "{}", "{}"))
        yield rows


async def _fill(tx: Tx, rows: list[tuple[Any, ...]]) -> None:
    await tx.insert_many(tables.SCHEDULES, rows)


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
    made = await schedules.create("@daily", assistant_id="echo")
    await schedules.pause(made.schedule_id)
    assert await schedules.firings(made.schedule_id) == []
    await schedules.delete(made.schedule_id)


def wrong(found: dict[str, Plan]) -> dict[str, str]:
    mistaken = {}
    for key, plan in found.items():
        name = key.partition(":")[0]
        missing = EXPECTED.get(name, set()) - plan.indexes
        if missing or (plan.scanned and name in EXPECTED):
            mistaken[key] = f"reads {set(plan.scanned)} whole, misses {missing}:\n{plan.text}"
    return mistaken


def listings(found: dict[str, Plan]) -> list[frozenset[str]]:
    """The indexes of the pages that were listed."""
    return [plan.indexes for key, plan in found.items() if "order by created_at desc" in key.lower()]


async def test_plans_of_sqlite(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "db"))
    await fill(storage)
    seen = Plans(storage)
    await use(storage)
    await storage.close()
    assert set(EXPECTED) <= {key.partition(":")[0] for key in seen.found}
    assert wrong(seen.found) == {}
    assert all(listings(seen.found))


async def test_plans_of_postgres(postgres_url: str) -> None:
    storage = open_storage(postgres_url)
    await fill(storage)
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("VACUUM ANALYZE")
    await connection.close()
    seen = Plans(storage)
    await use(storage)
    generic = await seen.ask_for_generic(postgres_url)
    await storage.close()
    assert wrong(seen.found) == {}
    assert wrong(generic) == {}
    assert all(listings(seen.found))
