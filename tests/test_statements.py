"""Every statement with a row class returns its columns, by name and in order, on both engines."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import apsw.ext
import asyncpg

import perdure
from perdure.kernel.storage.dialect import Statement
from perdure.kernel.storage.filters import Clause, Listing, SortKey, SortOrder
from perdure.kernel.storage.port import Tx
from perdure.kernel.storage.postgres import PostgresStorage
from perdure.kernel.storage.rows import VALUES, get_columns
from perdure.kernel.storage.sqlite import SqliteStorage
from perdure.runtime.stores import TABLES

ANYWHERE = """
    service.FIND_NAMESPACE service.LIST_NAMESPACES service.NEXT_NAMESPACE service.TAKE_KEY service.TRIM_AUDIT
    service.TRIM_KEYS approvals.DUE_NAMESPACES approvals.FIND_LINK approvals.NEXT_DUE assistants.CREATE
    assistants.KNOWN_ANYWHERE completion_sql.COMPLETE_ATTEMPTS completion_sql.COMPLETE_ROLLOUTS
    diagnostics.NAMESPACES_WITH diagnostics.OPEN_APPROVALS graph_requests.EXPIRED items.EXPIRED jobs.ENDED
    jobs.READY_NAMESPACES memory.DUE memory.FIRST_DUE messaging.ADD_SESSION outbox.CLAIM outbox.CLAIM_AGAIN
    outbox.CLAIM_NEW outbox.ENDED_BEFORE outbox.NEXT_AGAIN outbox.NEXT_DUE outbox.NEXT_NEW
    removal_sql.GONE_RUNS removal_sql.GONE_THREADS retention.OLD_AUDIT retention.OLD_EFFECTS
    retention.OLD_JOBS retention.OLD_KEYS retention.OLD_REMOVED retention.STATS rollouts.BEHIND_BY_QUEUE
    rollouts.DUE_BY_QUEUE rollouts.DUE_NAMESPACES rollouts.EVICTION_ORDER rollouts.HAS_FUTURE_ATTEMPTS
    rollouts.HAS_FUTURE_DELAYS rollouts.HAS_OVERDUE rollouts.LOCK_SWEEP rollouts.OPEN_LINES
    rollouts.OVERDUE_NAMESPACES rollouts.PROMOTE_DUE rollouts.READY_BY_QUEUE rollouts.ROLLOUTS_BY_STATUS
    rollouts.SHORTEN_ATTEMPTS rollouts.SHORTEN_DELAYS rollouts.TAKE_SEQUENCES rollouts.TRY_SWEEP
    rollouts.WORKERS_BY_STATUS rollouts.WORKERS_ELSEWHERE schedules.DUE_NAMESPACES schedules.NEXT
    schedules.RUNNING_NAMESPACES statistics.LOOKED_AT statistics.OLD_HOURS statistics.OLD_MINUTES
    statistics.TAKE_USAGE statistics.TRIM_HOURS statistics.TRIM_MINUTES statistics.TRIM_WAITS
    streams.ENDED_BEFORE threads.DUE_LIFETIMES threads.FILL_AGENTS workflows.DUE_NODES workflows.DUE_RUNS
    workflows.NEXT_NODE workflows.NEXT_RUN workflows.QUEUED_NAMESPACES
    """
"""Statements about all namespaces, or about none; a new one needs a reason to be here."""


def _values() -> Iterator[Any]:
    """Everything that the SQL modules of all domains define."""
    for module in pkgutil.walk_packages(perdure.__path__, "perdure."):
        if module.name.endswith("sql"):
            yield from vars(importlib.import_module(module.name)).values()


def _statements() -> Iterator[Statement[Any]]:
    """The statements of all domains that return records."""
    for value in _values():
        if isinstance(value, Listing):
            value, _ = value.page(Clause("TRUE", {}), SortOrder((SortKey("1", "int"),)), -1, 0)
        if isinstance(value, Statement) and value.row is not None:
            yield value


def _is_wrong(statement: Statement[Any], found: list[str]) -> bool:
    if statement.row in VALUES:
        return len(found) != 1
    assert statement.row is not None
    return tuple(found) != get_columns(statement.row)


async def _ready(tx: Tx) -> None:
    return None


async def test_on_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "perdure.db"
    storage = SqliteStorage(path, TABLES)
    await storage.run(_ready)
    await storage.close()
    connection = apsw.Connection(str(path))
    wrong = []
    for statement in _statements():
        for text in filter(None, (statement.sqlite, statement.single)):
            found = [name for name, *_ in apsw.ext.query_info(connection, text).description]
            if _is_wrong(statement, found):
                wrong.append((statement.name, found))
    connection.close()
    assert wrong == []


async def test_on_postgres(postgres_url: str) -> None:
    storage = PostgresStorage(postgres_url, TABLES)
    await storage.run(_ready)
    await storage.close()
    connection = await asyncpg.connect(postgres_url)
    wrong = []
    for statement in _statements():
        prepared = await connection.prepare(statement.postgres)
        found = [attribute.name for attribute in prepared.get_attributes()]
        if _is_wrong(statement, found):
            wrong.append((statement.name, found))
    await connection.close()
    assert wrong == []


def test_there_are_statements_to_check() -> None:
    names = {statement.name for statement in _statements()}
    assert {"streams.GET_HEAD", "outbox.LIST_EFFECTS", "checkpoints.FIND_BASES"} <= names


def test_statements_are_confined_to_a_namespace() -> None:
    """Nobody sees or changes another namespace because a condition was forgotten."""
    texts = {value.name: value.sqlite for value in _values() if isinstance(value, Statement)}
    open_to_all = {name for name, text in texts.items() if not re.search(r"\bns = :ns\b", text)}
    assert open_to_all == set(ANYWHERE.split())
