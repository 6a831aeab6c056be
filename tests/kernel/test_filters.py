"""The only dynamic SQL: names come from the allowed fields, and values are bound."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest
from hypothesis import given as property_of
from hypothesis import strategies as st
from tests.kernel.support import NS, THINGS
from tests.kernel.test_rows import ThingRow

from perdure.kernel.checks import MAX_ROWS, check_query_page
from perdure.kernel.cursors import write_cursor
from perdure.kernel.errors import BadQuery, InvalidInput
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.filters import (
    Clause,
    FilterCondition,
    ListField,
    Listing,
    SortKey,
    SortOrder,
    Test,
    given,
    order_by,
    where,
)
from perdure.kernel.storage.port import Storage, Tx
from perdure.rollouts.operations import queries

FIELDS = {
    "name": ListField("id", "text"),
    "size": ListField("size", "int", null=True),
    "note": ListField("note", "text", null=True),
    "ended": ListField("size", "time", null=True),
}
BY_ID = SortOrder((SortKey("id", "text"),))
HOSTILE = (
    "id; DROP TABLE things",
    "id) OR 1=1 --",
    "id/**/DESC",
    "ID",
    " name",
    "name,",
    "{has:note,x}",
    ":ns",
    "things.id",
    "rowid",
    "__class__",
    "",
    "\0",
    "naïve",
)
NOT_NAMES: tuple[Any, ...] = (5, True, b"name", ["name"], {"name": 1}, ("name",), object())


def test_conditions_that_are_not_given_are_left_out() -> None:
    conditions = given(("name", "exact", "a"), ("note", "contains", None), ("size", "within", []))
    assert conditions == [FilterCondition("name", "exact", "a"), FilterCondition("size", "within", [])]


def test_one_pool_joined_by_its_logic() -> None:
    conditions = [
        FilterCondition("name", "exact", "a"),
        FilterCondition("note", "contains", "b"),
        FilterCondition("size", "within", [1]),
    ]
    expected = "id = :f0 {} {{has:note,f1}} {} size {{among:f2}}"
    for logic in ("and", "or"):
        clause = where(FIELDS, conditions, logic)
        assert clause.sql == "(" + expected.format(logic.upper(), logic.upper()) + ")"
        assert clause.values == {"f0": "a", "f1": "b", "f2": [1]}


def test_an_empty_pool_holds_for_every_row() -> None:
    assert where(FIELDS, [], "and") == Clause("TRUE", {}) == where(FIELDS, [], "or")


@pytest.mark.parametrize("logic", ["xor", "AND", "", None, 5, "and 1=1 or", ["and"]])
def test_an_unknown_logic_is_refused(logic: Any) -> None:
    with pytest.raises(BadQuery, match="filter_logic"):
        where(FIELDS, [], logic)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_condition_on_a_field_that_is_not_allowed_is_refused(name: str) -> None:
    with pytest.raises(BadQuery):
        where(FIELDS, [FilterCondition(name, "exact", 1)], "and")


@pytest.mark.parametrize("name", [*HOSTILE, *NOT_NAMES])
def test_sorting_by_a_field_that_is_not_allowed_is_refused(name: Any) -> None:
    with pytest.raises(BadQuery, match="sort_by"):
        order_by(FIELDS, name, "asc", BY_ID)


@pytest.mark.parametrize("order", ["ASC", "up", "", None, 1, "asc; DROP TABLE things", ["asc"]])
def test_an_unknown_order_is_refused(order: Any) -> None:
    with pytest.raises(BadQuery, match="sort_order"):
        order_by(FIELDS, "name", order, BY_ID)


@pytest.mark.parametrize(
    ("sort_by", "sort_order", "sql"),
    [
        (None, "desc", " ORDER BY position, id"),
        ("name", "asc", " ORDER BY id, position"),
        ("name", "desc", " ORDER BY id DESC, position"),
        ("size", "asc", " ORDER BY size NULLS FIRST, position, id"),
        ("size", "desc", " ORDER BY size DESC NULLS LAST, position, id"),
        ("ended", "asc", " ORDER BY size NULLS LAST, position, id"),
        ("ended", "desc", " ORDER BY size DESC NULLS FIRST, position, id"),
    ],
)
def test_a_missing_time_sorts_last_and_any_other_missing_value_first(
    sort_by: str | None, sort_order: str, sql: str
) -> None:
    ties = SortOrder((SortKey("position", "int"), SortKey("id", "text")))
    assert order_by(FIELDS, sort_by, sort_order, ties).sql == sql


@pytest.mark.parametrize(
    ("limit", "offset", "bound"),
    [
        (-1, 0, {}),
        (-1, 5, {"limit": MAX_ROWS, "offset": 5}),
        (0, 0, {"limit": 0, "offset": 0}),
        (10, 20, {"limit": 10, "offset": 20}),
    ],
)
def test_pages_are_bound(limit: int, offset: int, bound: dict[str, int]) -> None:
    check_query_page(limit, offset)
    listing = Listing("id", "things WHERE ns = :ns")
    sql, values = listing.page(Clause("(size = :f0)", {"f0": 5}), BY_ID, limit, offset)
    part = " LIMIT :limit OFFSET :offset" if bound else ""
    assert sql.sqlite == "SELECT id FROM things WHERE ns = :ns AND (size = :f0) ORDER BY id" + part
    assert values == {"f0": 5, **bound}


def test_a_listing_is_counted_with_the_same_conditions() -> None:
    listing = Listing("id", "things WHERE ns = :ns")
    counted = listing.count(Clause("(size = :f0)", {"f0": 5}))
    assert counted.sqlite == "SELECT count(*) FROM things WHERE ns = :ns AND (size = :f0)"


@pytest.mark.parametrize("heads", [False, True])
async def test_pages_by_their_cursors_are_the_whole_list(storage: Storage, heads: bool) -> None:
    """In every order, with missing and equal values, no row is missing or duplicated."""
    listing = Listing("id, size, note", "things WHERE ns = :ns", ThingRow)
    limits = []

    async def fill(tx: Tx) -> None:
        sizes, notes = (None, 3, 3, 5, -1, None, 7), ("b", None, "", "é", "b")
        rows = [(NS, f"n{n:02}", sizes[n % 7], notes[n % 5], None) for n in range(40)]
        await tx.insert_many(THINGS, [row for row in rows if not heads or row[3] is not None])

    async def walk(tx: Tx, order: SortOrder, limit: int) -> list[str]:
        everything = Clause("TRUE", {})
        walked: list[str] = []
        cursor, keyset = None, order.keyset("things")
        while True:
            place = keyset.read(cursor)
            if heads:
                page, values = listing.heads("note", ["b", "", "é"], order, limit, 0, place)
            else:
                page, values = listing.page(everything, order, limit, 0, place)
            rows = await tx.all(page, **values)
            walked += [row.id for row in rows]
            cursor = keyset.next_if_full(rows, limit)
            if cursor is None:
                return walked

    await storage.run(fill, ns=NS)
    for sort_by in FIELDS:
        for sort_order in ("asc", "desc"):
            for ties in (BY_ID, SortOrder((SortKey("id", "text", descending=True),))):
                order = order_by(FIELDS, sort_by, sort_order, ties)
                page, values = listing.page(Clause("TRUE", {}), order, -1, 0)

                async def everything(tx: Tx, page: Any = page, values: Any = values) -> list[str]:
                    return [row.id for row in await tx.all(page, **values)]

                whole = await storage.read(everything, ns=NS)
                assert len(whole) == (32 if heads else 40)
                for limit in (1, 7, 100):
                    assert await storage.read(walk, order, limit, ns=NS) == whole, (order.sql, limit)
                    limits.append(limit)
    assert len(limits) == 48


@pytest.mark.parametrize(
    "cursor", ["", "x", "né", "W10", "!!", "e30", "a" * 5000, "bnVsbA", "W251bGxd", 5, b"W10"]
)
def test_a_broken_cursor_is_refused(cursor: Any) -> None:
    with pytest.raises(InvalidInput):
        BY_ID.keyset("things").read(cursor)


def test_a_cursor_of_another_list_or_order_is_refused() -> None:
    cursor = BY_ID.keyset("things").write(ThingRow("a", None, None))
    assert BY_ID.keyset("things").read(cursor) == ("a",)
    for what, order in (
        ("others", BY_ID),
        ("things", SortOrder((SortKey("id", "text", descending=True),))),
        ("things", SortOrder((SortKey("size", "int"), SortKey("id", "text")))),
    ):
        with pytest.raises(InvalidInput, match="invalid cursor"):
            order.keyset(what).read(cursor)


@pytest.mark.parametrize("values", [(5,), (None,), ("a", "b"), (), ("\0",), (True,), (1.5,)])
def test_a_cursor_with_values_of_another_kind_is_refused(values: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidInput):
        BY_ID.keyset("things").read(write_cursor("things" + BY_ID.sql, *values))
    with pytest.raises(InvalidInput):
        SortOrder((SortKey("size", "int"),)).keyset("things").read(
            write_cursor("things ORDER BY size", 2**63)
        )


async def test_the_heads_of_each_value_make_the_same_page_as_a_scan(storage: Storage) -> None:
    listing = Listing("id, size", "things WHERE ns = :ns")
    order = SortOrder((SortKey("size", "int", descending=True), SortKey("id", "text")))

    async def ask(tx: Tx) -> list[tuple[Any, Any]]:
        rows = [(NS, f"n{n:03}", n % 17, "abcd"[n % 4], None) for n in range(200)]
        await tx.insert_many(THINGS, rows)
        pages = []
        for limit, offset in ((5, 0), (10, 30), (200, 0), (3, 148), (5, 500)):
            heads, bound = listing.heads("note", ["a", "c", "d", "missing"], order, limit, offset)
            clause = where(FIELDS, [FilterCondition("note", "within", ["a", "c", "d"])], "and")
            scan, values = listing.page(clause, order, limit, offset)
            pages.append((await tx.all(heads, **bound), await tx.all(scan, **values)))
        return pages

    pages = await storage.run(ask, ns=NS)
    assert [[tuple(row) for row in heads] for heads, _ in pages] == [
        [tuple(row) for row in scan] for _, scan in pages
    ]
    assert [len(heads) for heads, _ in pages] == [5, 10, 150, 2, 0]


@pytest.mark.parametrize(
    ("limit", "offset"),
    [
        (-2, 0),
        (0, -1),
        (True, 0),
        (0, False),
        (1.5, 0),
        ("1", 0),
        (None, 0),
        (0, None),
        (1, 2**63),
        (2**63, 0),
        (2**70, 2**70),
    ],
)
def test_a_page_that_cannot_be_is_refused(limit: Any, offset: Any) -> None:
    with pytest.raises(BadQuery):
        check_query_page(limit, offset)


def test_the_largest_page_still_fits_the_engines() -> None:
    check_query_page(MAX_ROWS, MAX_ROWS)
    assert MAX_ROWS + MAX_ROWS < 2**63


conditions_of = st.lists(
    st.builds(
        FilterCondition,
        st.sampled_from(sorted(FIELDS)),
        st.sampled_from(get_args(Test)),
        st.text(min_size=8) | st.lists(st.text(min_size=8), min_size=1),
    ),
    max_size=5,
)


@property_of(conditions_of, st.sampled_from(["and", "or"]))
def test_no_value_ever_stands_in_the_sql(conditions: list[FilterCondition], logic: str) -> None:
    clause = where(FIELDS, conditions, logic)
    assert list(clause.values.values()) == [condition.value for condition in conditions]
    words = r"TRUE|\(|\)| AND | OR |(id|size|note) (= :f\d|\{among:f\d\})|\{has:(id|size|note),f\d\}"
    assert re.fullmatch(f"({words})+", clause.sql)
    translated = statement(clause.sql)
    assert re.fullmatch(r"[ \w=():$.,<>]+", translated.sqlite + translated.postgres)


@pytest.mark.parametrize(
    "fields",
    [
        queries.ROLLOUT_FIELDS,
        queries.ATTEMPT_FIELDS,
        queries.SPAN_FIELDS,
        queries.RESOURCE_FIELDS,
        queries.WORKER_FIELDS,
    ],
)
def test_the_rooms_allow_plain_columns_only(fields: dict[str, ListField]) -> None:
    assert all(re.fullmatch("[a-z_]+", field.column) for field in fields.values())


async def test_hostile_values_are_only_compared(storage: Storage) -> None:
    values = ["' OR '1'='1", "x'); DROP TABLE things; --", "%", "_", ":ns", "{lock}", "$1", "\\", '"']

    async def ask(tx: Tx) -> list[list[str]]:
        await tx.insert_many(THINGS, [(NS, value, n, value, None) for n, value in enumerate(values)])
        columns = []
        for value in values:
            for test, bound in (("exact", value), ("within", [value]), ("contains", value)):
                condition = FilterCondition("note", test, bound)  # type: ignore[arg-type]
                clause = where(FIELDS, [condition], "and")
                sql = statement("SELECT id FROM things WHERE ns = :ns AND " + clause.sql)
                columns.append([row[0] for row in await tx.all(sql, **clause.values)])
        return columns

    columns = await storage.run(ask, ns=NS)
    for number, value in enumerate(values):
        exact, within, contains = columns[number * 3 : number * 3 + 3]
        assert exact == within == [value]
        assert sorted(contains) == sorted(other for other in values if value in other)
