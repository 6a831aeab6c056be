"""One statement, two dialects: expansion of the marks, and binding of parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from perdure.kernel.storage import ddl, dialect
from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, statement
from perdure.kernel.storage.schema import Column, Index, Table, blob, integer, text

SHELVES = Table(
    "shelves",
    (
        integer("ns"),
        text("id"),
        integer("height", null=True),
        integer("used", default=0),
        blob("label", null=True),
    ),
    key=("ns", "id"),
    hot=True,
)


def test_parameters_keep_their_names_or_get_numbers() -> None:
    select = statement("SELECT a FROM t WHERE ns = :ns AND b = :b AND c = :ns")
    assert select.sqlite == "SELECT a FROM t WHERE ns = :ns AND b = :b AND c = :ns"
    assert select.postgres == "SELECT a FROM t WHERE ns = $1 AND b = $2 AND c = $1"
    assert select.names == ("ns", "b")
    assert select.bind_postgres({"b": 2, "ns": 1, "unused": 3}) == [1, 2]


def test_casts_are_not_parameters() -> None:
    select = statement("SELECT :a::text, x::bigint FROM t")
    assert select.postgres == "SELECT $1::text, x::bigint FROM t"
    assert select.names == ("a",)


def test_a_missing_parameter_is_noticed() -> None:
    with pytest.raises(KeyError):
        statement("SELECT :a").bind_postgres({"b": 1})


def test_lists() -> None:
    select = statement("SELECT a FROM t WHERE b {among:names} AND c {among:others}")
    assert select.sqlite == (
        "SELECT a FROM t WHERE b IN (SELECT value FROM json_each(:names))"
        " AND c IN (SELECT value FROM json_each(:others))"
    )
    assert select.postgres == "SELECT a FROM t WHERE b = ANY($1) AND c = ANY($2)"
    assert select.lists == {"names", "others"}
    assert select.bind_sqlite({"names": ['a"', "ü"], "others": [1], "n": 5}) == (
        select.sqlite,
        {"names": '["a\\"", "\\u00fc"]', "others": "[1]", "n": 5},
    )


def test_lists_of_one_are_bound_as_they_are() -> None:
    select = statement("SELECT a FROM t WHERE b {among:names} AND {plain:c} {among:others} {lock}")
    text, bound = select.bind_sqlite({"names": ["a"], "others": [1], "n": 5})
    assert text == "SELECT a FROM t WHERE b IN (:names) AND +c IN (:others) "
    assert bound == {"names": "a", "others": 1, "n": 5}


def test_each_of_a_list_with_what_is_listed_for_it() -> None:
    select = statement(
        "SELECT 1 FROM {each:names}, t WHERE a {listed:SELECT b WHERE c = :c LIMIT {seen:n,m}}"
    )
    assert (
        select.sqlite
        == "SELECT 1 FROM json_each(:names) AS names, t WHERE a IN (SELECT b WHERE c = :c LIMIT :n)"
    )
    assert select.single == select.sqlite.replace("json_each(:names)", "(SELECT :names AS value)")
    assert select.postgres == (
        "SELECT 1 FROM unnest($1::text[]) AS names (value), t"
        " WHERE a = ANY(ARRAY(SELECT b WHERE c = $2 LIMIT $3))"
    )
    assert select.lists == {"names"}
    assert select.names == ("names", "c", "m")


def test_pairs_of_two_lists() -> None:
    select = statement("SELECT one FROM {pairs:ids,names}")
    assert select.sqlite == (
        "SELECT one FROM (SELECT value AS one, json_extract(:names, '$[' || key || ']') AS other"
        " FROM json_each(:ids)) AS pairs"
    )
    assert select.single == "SELECT one FROM (SELECT :ids AS one, :names AS other) AS pairs"
    assert select.postgres == (
        "SELECT one FROM unnest((SELECT $1::text[]), (SELECT $2::text[])) AS pairs (one, other)"
    )
    assert (select.names, select.lists) == (("ids", "names"), frozenset({"ids", "names"}))


def test_the_words_of_a_statement_name_its_tables() -> None:
    words = statement("SELECT r.id FROM rollouts AS r JOIN runs USING (id)").words
    assert {"rollouts", "runs"} <= words


def test_parts_of_text() -> None:
    select = statement("SELECT a FROM t WHERE {has:t.name,part}")
    assert select.sqlite == "SELECT a FROM t WHERE instr(t.name, :part) > 0"
    assert select.postgres == "SELECT a FROM t WHERE strpos(t.name, $1) > 0"


@pytest.mark.parametrize(
    ("mark", "words"), [("{lock}", "FOR NO KEY UPDATE"), ("{skip}", "FOR NO KEY UPDATE SKIP LOCKED")]
)
def test_row_locks_are_for_the_engine_that_has_them(mark: str, words: str) -> None:
    select = statement("SELECT a FROM t ORDER BY a " + mark)
    assert select.sqlite == "SELECT a FROM t ORDER BY a "
    assert select.postgres == "SELECT a FROM t ORDER BY a " + words


def test_a_column_that_the_planner_must_not_seek_by() -> None:
    select = statement("SELECT a FROM t WHERE {plain:t.kind} = :kind")
    assert select.sqlite == "SELECT a FROM t WHERE +t.kind = :kind"
    assert select.postgres == "SELECT a FROM t WHERE t.kind = $1"


def test_a_text_is_translated_once() -> None:
    assert statement("SELECT 1 AS once").postgres is statement("SELECT 1 AS once").postgres


def test_an_update_of_many() -> None:
    update = BulkUpdate(SHELVES, sets=("height", "label"), keys=("ns", "id"), guards=("used",))
    assert update.sqlite.startswith(
        "UPDATE shelves SET height = ?, label = ? WHERE ns = ? AND id = ? AND used "
    )
    assert update.columns == ("height", "label", "ns", "id", "used")


def test_a_value_that_all_rows_share_is_sent_once() -> None:
    update = BulkUpdate(SHELVES, sets=("height",), keys=("ns", "id"), guards=("used",))
    text, parameters = dialect.write_postgres([(update, [(5, 1, "a", None), (5, 1, "b", None)])])
    assert parameters == [5, "{1,1}", '{"a","b"}', None]
    assert text.startswith(
        "UPDATE shelves AS t SET height = $1::bigint"
        " FROM unnest( $2::text::bigint[], $3::text::text[] ) AS v( c2, c3 )"
        " WHERE t.ns = v.c2 AND t.id = v.c3 AND t.used "
    )


def test_one_row_keeps_a_column_to_unnest() -> None:
    text, parameters = dialect.write_postgres([(BulkInsert(SHELVES), [(1, "a", 2, 3, None)])])
    assert parameters == [1, '{"a"}', 2, 3, None]
    assert text.endswith("FROM unnest( $2::text::text[] ) AS v( c2 )")


def test_numbers_and_keys_are_sent_as_one_text() -> None:
    rows = [(1, "a", 2, 3, None), (1, "b", None, 3, None)]
    assert dialect.write_postgres([(BulkInsert(SHELVES), rows)])[1] == [1, '{"a","b"}', "{2,NULL}", 3, None]
    odd: list[tuple[Any, ...]] = [(1, 'a"\\', 2, 3, None), (1, "", 2, 3, None)]
    assert dialect.write_postgres([(BulkInsert(SHELVES), odd)])[1][1] == '{"a\\"\\\\",""}'


def test_writes_together_are_one_statement() -> None:
    update = BulkUpdate(SHELVES, sets=("height",), keys=("ns", "id"))
    text, parameters = dialect.write_postgres(
        [(update, [(5, 1, "a")]), (BulkInsert(SHELVES, on_conflict="NOTHING"), [(1, "b", 2, 3, None)])]
    )
    assert parameters == [5, "{1}", '{"a"}', 1, '{"b"}', 2, 3, None]
    assert text.startswith("WITH w0 AS (UPDATE shelves AS t SET height = $1::bigint FROM")
    assert "FROM unnest( $5::text::text[] ) AS v( c5 ) ON CONFLICT (ns, id) DO NOTHING RETURNING 1)" in text
    assert text.endswith("SELECT (SELECT count(*) FROM w0), (SELECT count(*) FROM w1)")


def test_inserts_name_their_columns() -> None:
    """A newer release may have added columns."""
    assert BulkInsert(SHELVES).sqlite == (
        "INSERT INTO shelves ( ns, id, height, used, label ) VALUES ( ?, ?, ?, ?, ? )"
    )
    text, _ = dialect.write_postgres([(BulkInsert(SHELVES), [(1, "a", 2, 3, None), (1, "b", 4, 3, None)])])
    assert text == (
        "INSERT INTO shelves ( ns, id, height, used, label ) SELECT $1::bigint, v.c2, v.c3, $4::bigint,"
        " $5::bytea FROM unnest( $2::text::text[], $3::text::bigint[] ) AS v( c2, c3 )"
    )


def test_what_becomes_of_a_row_that_is_there_already() -> None:
    grow = BulkInsert(SHELVES, on_conflict="UPDATE SET height = {larger:shelves.height,excluded.height}")
    assert grow.sqlite.endswith(
        "ON CONFLICT (ns, id) DO UPDATE SET height = max(shelves.height, excluded.height)"
    )
    text, _ = dialect.write_postgres([(grow, [(1, "a", 2, 3, None)])])
    assert text.endswith("DO UPDATE SET height = greatest(shelves.height, excluded.height)")


class Shelf(NamedTuple):
    id: str
    height: int
    used: int
    label: bytes | None = None


def test_what_is_seldom_set_is_a_statement_of_its_own_on_sqlite_alone() -> None:
    grow = BulkInsert(SHELVES, Shelf, on_conflict="UPDATE SET used = shelves.used + excluded.used")
    grow.sets_seldom("height = excluded.height", when="excluded.height > shelves.height")
    assert grow.seldom is not None
    text, rows = dialect.write_sqlite(grow.seldom, [Shelf("a", 2, 3)], 1)
    assert text == ("UPDATE shelves SET height = ?3 WHERE ns = ?1 AND id = ?2 AND ( ?3 > shelves.height )")
    assert rows == [(1, "a", 2)]
    assert grow.sqlite.endswith("DO UPDATE SET used = shelves.used + excluded.used")
    statement_text, _ = dialect.write_postgres([(grow, [Shelf("a", 2, 3)])], 1)
    assert statement_text.endswith(
        "DO UPDATE SET height = excluded.height, used = shelves.used + excluded.used"
    )


def test_rows_are_locked_in_the_order_of_their_keys() -> None:
    assert dialect.lock_postgres(SHELVES) == (
        "SELECT ns, id FROM shelves WHERE ( ns, id ) IN ( SELECT * FROM unnest( $1::text::bigint[],"
        " $2::text::text[] ) ) ORDER BY ns, id FOR NO KEY UPDATE"
    )


def test_tables() -> None:
    assert ddl.create_table(SHELVES, "sqlite") == (
        "CREATE TABLE IF NOT EXISTS shelves (ns INTEGER NOT NULL, id TEXT NOT NULL, height INTEGER,"
        " used INTEGER NOT NULL DEFAULT 0, label BLOB, PRIMARY KEY (ns, id))"
    )
    text = ddl.create_table(SHELVES, "postgres")
    assert text.startswith(
        'CREATE TABLE IF NOT EXISTS shelves (ns BIGINT NOT NULL, id TEXT COLLATE "C" NOT NULL, height BIGINT,'
        " used BIGINT NOT NULL DEFAULT 0, label BYTEA, PRIMARY KEY (ns, id)) WITH (fillfactor = 85,"
    )


def test_columns_and_indexes_that_are_added() -> None:
    column = Column("depth", "int", null=True)
    index = Index("shelves_height", ("ns", "height DESC"), "height IS NOT NULL", unique=True)
    assert ddl.add_column(SHELVES, column, "sqlite") == "ALTER TABLE shelves ADD COLUMN depth INTEGER"
    assert ddl.add_column(SHELVES, column, "postgres") == "ALTER TABLE shelves ADD COLUMN depth BIGINT"
    assert ddl.create_index(SHELVES, index) == (
        "CREATE UNIQUE INDEX IF NOT EXISTS shelves_height ON shelves (ns, height DESC)"
        " WHERE height IS NOT NULL"
    )
    assert "INDEX CONCURRENTLY IF NOT EXISTS" in ddl.create_index(SHELVES, index, concurrently=True)
