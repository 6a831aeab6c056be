"""The index that each statement of schedules goes by, on fifty thousand of them and both engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.schedules.support import TARGETS
from tests.support.plans import Plan, Subject, plans_of
from tests.threads.support import AGENTS, open_storage

from perdure.access.operations import ensure_namespace
from perdure.assistants.service import Assistants
from perdure.kernel.clock import MICROS
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


SUBJECT = Subject((sql,), frozenset({"schedules", "firings"}), EXPECTED)


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


def listings(found: dict[str, Plan]) -> list[frozenset[str]]:
    """The indexes of the pages that were listed."""
    return [plan.indexes for key, plan in found.items() if "order by created_at desc" in key.lower()]


async def test_plans(new_engine_url: str) -> None:
    storage = open_storage(new_engine_url)
    found = await plans_of(storage, new_engine_url, SUBJECT, fill, use)
    await storage.close()
    assert all(listings(found))
