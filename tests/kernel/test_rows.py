"""Rows with names: rows of queries, rows of bulk writes, and names of statements."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest
from tests.kernel.support import NS, THINGS, put

from perdure.kernel.storage import dialect
from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement
from perdure.kernel.storage.filters import Clause, Listing, SortKey, SortOrder
from perdure.kernel.storage.port import Storage, Tx


class ThingRow(NamedTuple):
    id: str
    size: int | None
    note: str | None


class WorkingRow(msgspec.Struct):
    """A row that is changed and written back; a field with a default is no column."""

    id: str
    size: int | None
    was_size: int | None = None
    touched: bool = False

    def __post_init__(self) -> None:
        self.was_size = self.size


class WholeRow(NamedTuple):
    """All columns of the table, in its order."""

    ns: int
    id: str
    size: int | None
    note: str | None = None
    body: bytes | None = None


class NewRow(msgspec.Struct):
    """All columns of the table except the namespace, in another order."""

    id: str
    note: str | None = None
    size: int | None = None

    @property
    def body(self) -> bytes:
        return self.id.encode()


THING = statement("SELECT {columns} FROM things WHERE ns = :ns AND id = :id", row=ThingRow)
ALIASED = statement("SELECT {columns:t} FROM things AS t WHERE t.ns = :ns ORDER BY t.id", row=ThingRow)
WORKING = statement("SELECT {columns} FROM things WHERE ns = :ns ORDER BY id {lock}", row=WorkingRow)
TOO_FEW = statement("SELECT id, size FROM things WHERE ns = :ns", row=ThingRow)
COUNT = statement("SELECT count(*) FROM things WHERE ns = :ns", row=int)
NAMES = statement("SELECT id FROM things WHERE ns = :ns ORDER BY id", row=str)
BODIES = statement("SELECT body FROM things WHERE ns = :ns ORDER BY id", row=bytes)
LARGEST = statement("SELECT max(size) FROM things WHERE ns = :ns", row=int)
LIST = Listing("{columns:t}", "things AS t WHERE t.ns = :ns", ThingRow)
ADD_WHOLE = BulkInsert(THINGS, WholeRow)
ADD_NEW = BulkInsert(THINGS, NewRow, on_conflict="UPDATE SET size = excluded.size")
RESIZE = BulkUpdate(THINGS, WorkingRow, sets=("size",), keys=("ns", "id"), guards=("size",))

name_statements(globals())


async def _fill(tx: Tx) -> None:
    await put(tx, "a", 1)
    await put(tx, "b", None)


async def test_a_query_returns_records(storage: Storage) -> None:
    async def ask(tx: Tx) -> tuple[ThingRow | None, ThingRow | None, list[ThingRow]]:
        await _fill(tx)
        return await tx.one(THING, id="a"), await tx.one(THING, id="x"), await tx.all(ALIASED)

    stored_row, missing, every = await storage.run(ask, ns=NS)
    assert isinstance(stored_row, ThingRow)
    assert (stored_row.id, stored_row.size, stored_row.note) == ("a", 1, None)
    assert missing is None
    assert every == [ThingRow("a", 1, None), ThingRow("b", None, None)]
    assert all(isinstance(row, ThingRow) for row in every)


async def test_a_query_returns_working_rows(storage: Storage) -> None:
    async def ask(tx: Tx) -> tuple[list[WorkingRow], WorkingRow | None]:
        await _fill(tx)
        return await tx.all(WORKING), await tx.one(WORKING)

    every, first = await storage.run(ask, ns=NS)
    assert every == [WorkingRow("a", 1, 1), WorkingRow("b", None)]
    assert first == WorkingRow("a", 1, 1)


async def test_a_query_of_one_column_returns_its_values(storage: Storage) -> None:
    async def ask(tx: Tx) -> list[Any]:
        nothing = [await tx.one(COUNT), await tx.all(NAMES), await tx.one(NAMES), await tx.one(LARGEST)]
        await tx.write(ADD_NEW.of([NewRow("b"), NewRow("a", size=3)]))
        return [*nothing, await tx.one(COUNT), await tx.all(NAMES), await tx.all(BODIES)]

    assert await storage.run(ask, ns=NS) == [0, [], None, None, 2, ["a", "b"], [b"a", b"b"]]


@pytest.mark.parametrize("how", ["one", "all"])
async def test_a_query_with_another_number_of_columns_fails(storage: Storage, how: str) -> None:
    async def ask(tx: Tx) -> Any:
        await _fill(tx)
        return await getattr(tx, how)(TOO_FEW)

    with pytest.raises(AssertionError, match=r"test_rows\.TOO_FEW returns 2 columns, but ThingRow has 3"):
        await storage.run(ask, ns=NS)


async def test_records_are_inserted_by_name(storage: Storage) -> None:
    async def write(tx: Tx) -> list[ThingRow]:
        whole = [WholeRow(ns=NS, id="a", size=1), WholeRow(ns=NS, id="b", size=2, note="two")]
        await tx.write(ADD_WHOLE.of(whole))
        await tx.write(ADD_NEW.of([NewRow("b", note="other", size=5), NewRow("c", note="three")]))
        return await tx.all(ALIASED)

    assert await storage.run(write, ns=NS) == [("a", 1, None), ("b", 5, "two"), ("c", None, "three")]


async def test_working_rows_are_written_back_by_name(storage: Storage) -> None:
    async def write(tx: Tx) -> tuple[int, list[int], list[ThingRow]]:
        await _fill(tx)
        rows = await tx.all(WORKING)
        for number, row in enumerate(rows):
            row.size = 10 + number
        changed = await tx.update_many(RESIZE, rows)
        stale = WorkingRow("a", 1)
        return changed, await tx.write(RESIZE.of([stale, *rows])), await tx.all(ALIASED)

    changed, again, rows = await storage.run(write, ns=NS)
    assert (changed, again) == (2, [0])
    assert rows == [("a", 10, None), ("b", 11, None)]


async def test_writes_of_records_and_of_tuples_together(storage: Storage) -> None:
    async def write(tx: Tx) -> list[ThingRow]:
        await _fill(tx)
        rows = await tx.all(WORKING)
        rows[0].size = 7
        counts = await tx.write(RESIZE.of(rows[:1]), ADD_NEW.of([]))
        await tx.defer(ADD_NEW.of([NewRow("d")]))
        await tx.defer((dialect.plain_insert(THINGS), [(NS, "e", 1, None, None)]))
        assert counts == [1, 0]
        return await tx.all(ALIASED)

    rows = await storage.run(write, ns=NS)
    assert [(row.id, row.size) for row in rows] == [("a", 7), ("b", None), ("d", None), ("e", 1)]


async def test_a_page_of_records_and_their_number(storage: Storage) -> None:
    async def ask(tx: Tx) -> tuple[list[ThingRow], int | None]:
        await _fill(tx)
        clause = Clause("TRUE", {})
        page, values = LIST.page(clause, SortOrder((SortKey("id", "text", descending=True),)), 1, 0)
        assert page.name == "test_rows.LIST"
        return await tx.all(page, **values), await tx.one(LIST.count(clause))

    assert await storage.run(ask, ns=NS) == ([ThingRow("b", None, None)], 2)


def test_a_statement_has_its_name_in_its_text() -> None:
    assert THING.name == "test_rows.THING"
    expected = "/* test_rows.THING */ SELECT id, size, note FROM things WHERE ns = :ns AND id = :id"
    assert THING.sqlite == THING.single == expected
    assert THING.postgres == expected.replace(":ns", "$1").replace(":id", "$2")
    assert ADD_WHOLE.sqlite.startswith("/* test_rows.ADD_WHOLE */ INSERT INTO things")
    write = RESIZE.of([WorkingRow("a", 1)])
    assert dialect.write_postgres([write], NS)[0].startswith("/* test_rows.RESIZE */ UPDATE things")
    together, _ = dialect.write_postgres([write, ADD_NEW.of([NewRow("a")])], NS)
    assert "w0 AS (/* test_rows.RESIZE */ UPDATE" in together
    assert "w1 AS (/* test_rows.ADD_NEW */ INSERT" in together


def test_a_name_is_no_word_of_the_statement() -> None:
    select = statement("SELECT id FROM other")
    select.take_name("things.FIND")
    assert "things" not in select.words
    assert "other" in select.words


def test_columns_need_a_row_class() -> None:
    with pytest.raises(AssertionError, match="without a row class"):
        statement("SELECT {columns} FROM things")


def test_a_bulk_write_needs_a_field_for_every_column() -> None:
    with pytest.raises(AssertionError, match="insert into things: ThingRow has no body"):
        BulkInsert(THINGS, ThingRow)
    with pytest.raises(AssertionError, match="update of things: ThingRow has no was_size"):
        BulkUpdate(THINGS, ThingRow, sets=("note",), keys=("ns", "id"), guards=("size",))
