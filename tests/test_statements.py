"""Every statement with a row class returns its columns, by name and in order, on both engines."""

from __future__ import annotations

import importlib
import pkgutil
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


def _statements() -> Iterator[Statement[Any]]:
    """The statements of all domains that return records."""
    for module in pkgutil.walk_packages(perdure.__path__, "perdure."):
        if module.name.endswith("sql"):
            for value in vars(importlib.import_module(module.name)).values():
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
