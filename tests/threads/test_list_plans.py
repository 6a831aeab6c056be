"""Indexes of lists of runs and threads, and of states of copies, with many rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.support.plans import SMALL, Plan, Subject, plans_of
from tests.threads.support import World, open_storage

from perdure.kernel.storage import labels
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Storage, Tx
from perdure.kernel.storage.schema import Table
from perdure.rollouts.tables import ROLLOUTS
from perdure.testing.clock import ManualClock
from perdure.threads import sql
from perdure.threads.tables import CHECKPOINTS, RUNS, THREADS

COPIES = 20_000
CHUNK = 5_000
STATE = {"n": 1}
COPIED: Mapping[Table, tuple[str, ...]] = {
    THREADS: ("id", "created_at", "updated_at"),
    RUNS: ("id", "thread_id", "created_at"),
    # As in copies of a thread: the same ID.
    CHECKPOINTS: ("thread_id", "position"),
    ROLLOUTS: ("id", "line", "position", "start_time"),
    labels.LABELS: ("id",),
}
"""Tables to copy, and the columns with a different value in each copy."""
LATER_STATES = statement(
    "SELECT thread_id, id FROM checkpoints WHERE ns = :ns AND thread_id > ''"
    " ORDER BY thread_id DESC, position DESC LIMIT 10"
)
COUNT = statement("UPDATE rollout_counts SET total = total * :times WHERE ns = :ns")
OF_PAIRS = ("GET_CHECKPOINTS", "NEXT_OF")
"""Queries by state and thread that claims and ends of runs make."""
SUBJECT = Subject(
    (sql,),
    frozenset({"threads", "runs", "rollouts", "labels", "checkpoints"}),
    {
        "COUNT_GONE_RUNS": {"runs_gone"},
        "GET_RUNS": {"runs_pkey", "rollouts_pkey"},
        "LATEST_STATES": {"threads_pkey", "checkpoints_pkey"},
        **{statement: {"checkpoints_pkey"} for statement in OF_PAIRS},
    },
    # An earlier statement has limited these rows, so they may be counted.
    SMALL | {"found"},
)


async def _rows(tx: Tx, table: Table) -> list[dict[str, Any]]:
    names = [column.name for column in table.columns]
    found = await tx.all(statement("SELECT " + ", ".join(names) + " FROM " + table.name + " WHERE ns = :ns"))
    return [dict(zip(names, row, strict=True)) for row in found]


async def _copy(tx: Tx, table: Table, rows: list[dict[str, Any]], first: int) -> None:
    changed = COPIED[table]
    copies = [
        tuple(_changed(value, number) if name in changed else value for name, value in row.items())
        for row in rows
        for number in range(first, first + CHUNK)
    ]
    await tx.insert_many(table, copies)


def _changed(value: Any, number: int) -> Any:
    return f"{value}-{number}" if isinstance(value, str) else value + number


async def _count(tx: Tx) -> None:
    await tx.execute(COUNT, times=COPIES + 1)


async def fill(storage: Storage) -> None:
    """Store many copies of an ended run and of a thread with labels, and a few others."""
    world = await World(storage, ManualClock()).begin()
    thread = (await world.threads.create_thread(metadata={"user": "ann"})).thread_id
    await world.finish((await world.take(await world.run(thread))).held, values=STATE)
    ns = await world.threads.ns("write")
    for table in COPIED:
        rows = await storage.read(_rows, table, ns=ns)
        for first in range(1, COPIES, CHUNK):
            await storage.run(_copy, table, rows, first, ns=ns)
    await storage.run(_count, ns=ns)
    other = (await world.threads.create_thread(metadata={"user": "ann", "team": "x"})).thread_id
    await world.finish((await world.take(await world.run(other))).held, "error")
    await world.run(other)


async def _find_states(tx: Tx) -> None:
    rows = await tx.all(LATER_STATES)
    for some in (rows[:1], rows):
        thread_ids, ids = map(list, zip(*some, strict=True))
        for each in (sql.GET_CHECKPOINTS, sql.NEXT_OF):
            assert len(await tx.all(each, thread_ids=thread_ids, ids=ids)) == len(some)


async def use(storage: Storage) -> None:
    threads = World(storage, ManualClock()).threads
    await storage.read(_find_states, ns=await threads.ns())
    newest = await threads.list_runs(limit=10)
    assert (newest[0].status, newest.total) == ("pending", COPIES + 3)
    assert len(await threads.list_runs(limit=10, cursor=newest.next)) == 10
    for status, found in (("pending", 1), ("running", 0), ("error", 1), ("timeout", 0), ("success", 10)):
        assert len(await threads.list_runs(status=status, limit=10)) == found, status  # type: ignore[arg-type]
    assert len(await threads.list_runs(kind="phase", limit=10)) == 0
    for sort_by in ("created_at", "updated_at"):
        page = await threads.search_threads(sort_by=sort_by, limit=10, values=False)
        assert (len(page), page.total) == (10, None)
    assert len(await threads.search_threads(status="idle", limit=10, values=False)) == 10
    found_states = [each.values for each in await threads.search_threads(status="idle", limit=10)]
    assert found_states == [STATE] * 10
    for wanted, found in (({"user": "ann"}, 10), ({"team": "x"}, 1), ({"user": "ann", "team": "x"}, 1)):
        assert len(await threads.search_threads(metadata=wanted, limit=10, values=False)) == found, wanted


def indexes_of(found: Mapping[str, Plan], *words: str) -> list[frozenset[str]]:
    """Return the indexes used by lists whose statement contains all these words."""
    return [plan.indexes for key, plan in found.items() if all(word in key for word in (*words, "LIMIT"))]


async def test_plans(new_engine_url: str) -> None:
    storage = open_storage(new_engine_url)
    found = await plans_of(storage, new_engine_url, SUBJECT, fill, use)
    await storage.close()
    # For a rare status, PostgreSQL may use another small index.
    assert any("rollouts_status" in each for each in indexes_of(found, "FROM rollouts", "AND status ="))
    assert any("rollouts_outcome" in each for each in indexes_of(found, "FROM rollouts", "AND outcome ="))
    assert all("threads_updated" in each for each in indexes_of(found, "ORDER BY updated_at"))
    states = [plan.text for key, plan in found.items() if key.startswith(("LATEST_STATES", *OF_PAIRS))]
    assert all(re.search(r"id=\? AND thread_id=\?|ROW\(id, thread_id\)", each) for each in states), states
    by_label = indexes_of(found, "FROM threads", "FROM labels", "ORDER BY created_at")
    assert any("labels_value" in each for each in by_label)
    assert any(each & {"threads_created", "threads_status"} for each in by_label)
