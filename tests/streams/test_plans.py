"""Every statement of streams finds its rows by an index, on both engines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.kernel.support import NS, open_database
from tests.streams.support import add, new_events
from tests.support.plans import of_postgres, of_sqlite

from perdure.kernel.storage.dialect import Statement
from perdure.kernel.storage.port import Storage, Tx
from perdure.streams import sql
from perdure.streams.operations import StreamAppend
from perdure.streams.tables import TABLES

VALUES: dict[str, Any] = {
    "stream": "thread/1",
    "after": 300,
    "at": 300,
    "source": "run1",
    "limit": 500,
    "last": 500,
    "size": 1 << 20,
    "streams": ["run1", "run2"],
    "thread_id": "1",
    "before": 5,
    "n": 10,
    "ns": NS,
}
EXPECTED = {
    "GET_HEAD": {"streams_pkey"},
    "GET_HEADS": {"streams_pkey"},
    "LOCK_HEADS": {"streams_pkey"},
    "READ_EVENTS": {"stream_events_pkey"},
    "SENT_AFTER": {"stream_events_pkey"},
    "READ_JOINED": {"stream_events_pkey", "stream_links_pkey"},
    "LINK_AT": {"stream_links_pkey"},
    "FIRST_LINK_TO": {"stream_links_source"},
    "READ_REFERENCES": {"stream_events_pkey"},
    "READ_JOINED_REFERENCES": {"stream_events_pkey", "stream_links_pkey"},
    "REFERENCES_TO": {"stream_events_reference"},
    "DROP_HEADS": {"streams_pkey"},
    "DROP_EVENTS": {"stream_events_pkey"},
    "DROP_LINKS": {"stream_links_pkey"},
    "DROP_LINKS_TO": {"stream_links_source"},
    "ENDED_BEFORE": {"streams_ended"},
}
TABLES_READ = {"streams", "stream_events", "stream_links", "l", "e", "b"}


async def _explain(tx: Tx, statement: Statement[Any], engine: str) -> tuple[set[str], set[str]]:
    """Return the indexes that a statement uses, and the tables that it scans."""
    asked: Statement[Any] = Statement(
        "EXPLAIN QUERY PLAN " + statement.sqlite,
        "EXPLAIN (FORMAT JSON) " + statement.postgres,
        statement.names,
        statement.lists,
    )
    rows = await tx.all(asked, **{name: VALUES[name] for name in statement.names})
    if engine == "postgres":
        plan = of_postgres(rows[0][0])
        return set(plan.indexes), {"a table"} if "Seq Scan" in plan.text else set()
    plan = of_sqlite([row[3] for row in rows])
    return set(plan.indexes), set(plan.scanned) & TABLES_READ


@pytest.fixture
async def filled(new_engine_url: str) -> AsyncIterator[Storage]:
    storage = open_database(new_engine_url, TABLES)
    for number in range(20):
        await add(storage, StreamAppend(f"run{number}", new_events(1, 40), 1, f"thread/{number % 3}"))
    yield storage
    await storage.close()


async def test_every_statement_goes_by_its_index(filled: Storage) -> None:
    for name, expected in EXPECTED.items():
        indexes, scanned = await filled.run(_explain, getattr(sql, name), filled.engine, ns=NS)
        assert (name, scanned) == (name, set())
        assert expected <= indexes, name


def test_no_statement_was_forgotten() -> None:
    assert set(EXPECTED) == {name for name, value in vars(sql).items() if isinstance(value, Statement)}
