"""Differences between the SQL of the two engines.

A statement is written once with named parameters (`:name`) and a few marks:

| mark | SQLite | PostgreSQL |
|---|---|---|
| `{among:names}` | `IN (SELECT value FROM json_each(:names))` | `= ANY(:names)` |
| `{each:names}` | `json_each(:names) AS names`, with `names.value` | `unnest(:names) AS names (value)` |
| `{pairs:ids,names}` | `pairs`, with `one` of the first list and `other` of the second | the same |
| `{listed:SELECT …}` | `IN (SELECT …)` | `= ANY(ARRAY(SELECT …))`: the list is built first |
| `{lock}` | nothing: there is one writer | `FOR NO KEY UPDATE` |
| `{skip}` | nothing | `FOR NO KEY UPDATE SKIP LOCKED` |
| `{others:value}` | `NULL`, because rows have no other locks | the value |
| `{seen:few,many}` | `:few`, because rows have no other locks | `:many` |
| `{plain:column}` | `+column`, which keeps the planner off its indexes | `column` |
| `{greatest:column,name}` | `max(column, :name)` | `greatest(column, :name)` |
| `{larger:a,b}` | `max(a, b)` | `greatest(a, b)` |
| `{pair:a,b,c,d}` | `a = c AND b = d` | the same as one range of an index on both, never an index on `b` |
| `{has:column,name}` | `instr(column, :name) > 0` | `strpos(column, :name) > 0` |
| `{ranked:table,index}` | rows that match a full-text index | the same; if there are many, the newest |
| `{elements:json,rows}` | a JSON array as `rows` with `key` (from 0) and `value` | the same; `key` from 1 |
| `{elements:json,name,rows}` | the elements of the array `name` of a JSON object | the same |
| `{database}`, `{database_bytes}` | the path of its file, its size | its name, its size |

`{ranked:…}` is a subquery with the columns `place` and `score`. It reads `:match` (see `fulltext`), the
bounds `:low` and `:high` of places, and on PostgreSQL `:tags`, `:few` and `:most`.

A statement with a row class (see `rows`) returns records of that class. `{columns}` in its text is the list
of the class's columns, `{columns:alias}` the same with a table's alias. Any other column is written out, `AS`
the name of its field.

The transaction binds `:ns`, `:now` and `:wall`, and `ns` in a bulk write of records without that field.

Each module of statements ends with `name_statements(globals())`, which writes the name of each statement as a
comment before its text for the engine's statistics and logs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any, Generic, overload

from perdure.kernel.storage.arrays import array, array_cast
from perdure.kernel.storage.rows import Maker, R, R_co, RecordReader, Row, get_columns

if TYPE_CHECKING:
    from perdure.kernel.storage.schema import Probe, Table

_PARAMETER = re.compile(r"(?<![:\w]):([a-z][a-z0-9_]*)")
_WORD = re.compile(r"(?<![.\w])[a-z_]+")
_AMONG = re.compile(r"\{among:([a-z0-9_]+)\}")
_EACH = re.compile(r"\{each:([a-z0-9_]+)\}")
_PAIRS = re.compile(r"\{pairs:([a-z0-9_]+),([a-z0-9_]+)\}")
_COMMENT = re.compile(r"/\*.*?\*/")
_EXCLUDED = re.compile(r"\bexcluded\.([a-z_]+)")
_COLUMNS = re.compile(r"\{columns(?::([a-z_]+))?\}")
_LOCK = "FOR NO KEY UPDATE"
_MARKS = (
    (_AMONG, r"IN (SELECT value FROM json_each(:\1))", r"= ANY(:\1)"),
    (_EACH, r"json_each(:\1) AS \1", r"unnest(:\1::text[]) AS \1 (value)"),
    (
        _PAIRS,
        r"(SELECT value AS one, json_extract(:\2, '$[' || key || ']') AS other FROM json_each(:\1)) AS pairs",
        # Subqueries hide the lengths of the lists, for which PostgreSQL would otherwise plan each time.
        r"unnest((SELECT :\1::text[]), (SELECT :\2::text[])) AS pairs (one, other)",
    ),
    (re.compile(r"\{listed:((?:[^{}]|\{[^{}]*\})*)\}"), r"IN (\1)", r"= ANY(ARRAY(\1))"),
    (re.compile(r"\{others:((?:[^{}]|\{[^{}]*\})*)\}"), "NULL", r"\1"),
    (re.compile(r"\{seen:([a-z]+),([a-z]+)\}"), r":\1", r":\2"),
    (re.compile(r"\{plain:([a-z_.]+)\}"), r"+\1", r"\1"),
    (
        re.compile(r"\{pair:([a-z_.]+),([a-z_.]+),([a-z_.]+),([a-z_.]+)\}"),
        r"\1 = \3 AND \2 = \4",
        r"(\1, \2) >= (\3, \4) AND (\1, \2) <= (\3, \4)",
    ),
    (re.compile(r"\{has:([a-z_.]+),([a-z0-9_]+)\}"), r"instr(\1, :\2) > 0", r"strpos(\1, :\2) > 0"),
    (re.compile(r"\{greatest:([a-z_.]+),([a-z0-9_]+)\}"), r"max(\1, :\2)", r"greatest(\1, :\2)"),
    (re.compile(r"\{larger:([a-z_.]+),([a-z_.]+)\}"), r"max(\1, \2)", r"greatest(\1, \2)"),
    (
        re.compile(r"\{ranked:([a-z_]+),([a-z_]+)\}"),
        r"(SELECT rowid AS place, -bm25(\2, 0.0, 1.0) AS score FROM \2"
        r" WHERE \2 MATCH :match AND rowid BETWEEN :low AND :high)",
        # Each part allows one index, so that the plan does not depend on statistics, which may be old.
        r"(WITH few AS MATERIALIZED (SELECT place, \2 FROM \1 WHERE \2 @@ to_tsquery('english', :match)"
        r" AND coalesce(place, -1) BETWEEN :low AND :high AND string_to_array(tags, ' ') @> :tags::text[]"
        r" LIMIT :few::bigint + 1),"
        r" newest AS (SELECT place, \2 FROM \1 WHERE ts_match_vq(\2, to_tsquery('english', :match))"
        r" AND place BETWEEN :low AND :high AND string_to_array(tags, ' ') @> :tags::text[]"
        r" ORDER BY place DESC LIMIT :most::bigint)"
        r" SELECT place, ts_rank_cd(\2, to_tsquery('english', :match)) AS score FROM few"
        r" WHERE (SELECT count(*) FROM few) <= :few::bigint"
        r" UNION ALL SELECT place, ts_rank_cd(\2, to_tsquery('english', :match)) AS score FROM newest"
        r" WHERE (SELECT count(*) FROM few) > :few::bigint)",
    ),
    (
        re.compile(r"\{elements:([a-z_.]+),([a-z]+)\}"),
        r"json_each(\1) AS \2",
        r"json_array_elements_text(\1::json) WITH ORDINALITY AS \2 (value, key)",
    ),
    (
        re.compile(r"\{elements:([a-z_.]+),([a-z_]+),([a-z]+)\}"),
        r"json_each(\1, '$.\2') AS \3",
        r"json_array_elements_text(\1::json -> '\2') WITH ORDINALITY AS \3 (value, key)",
    ),
    (
        re.compile(r"\{database\}"),
        "(SELECT file FROM pragma_database_list WHERE name = 'main')",
        "current_database()::text",
    ),
    (
        re.compile(r"\{database_bytes\}"),
        "(SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size())",
        "pg_database_size(current_database())",
    ),
    (re.compile(r"\{lock\}"), "", _LOCK),
    (re.compile(r"\{skip\}"), "", _LOCK + " SKIP LOCKED"),
)
"""Each mark, with its text for SQLite and for PostgreSQL."""

SQLITE_TYPES = {"int": "INTEGER", "real": "REAL", "text": "TEXT", "blob": "BLOB"}
POSTGRES_TYPES = {"int": "BIGINT", "real": "DOUBLE PRECISION", "text": 'TEXT COLLATE "C"', "blob": "BYTEA"}
POSTGRES_SCALARS = {"int": "bigint", "real": "double precision", "text": "text", "blob": "bytea"}


TEXTS = 1024
"""Number of cached translations: texts built at run time have many shapes."""

Folded = tuple[bool, ...]
"""For each column of a bulk write, true if all rows have the same value, which is then sent once."""


@dataclass(slots=True, eq=False)
class Statement(Generic[R_co]):
    """One piece of SQL in both dialects, and the class of the rows that it returns."""

    sqlite: str
    postgres: str
    names: tuple[str, ...]
    lists: frozenset[str]
    single: str = ""
    """SQLite's text for lists of one item each, which runs twice as fast."""
    row: type[R_co] | None = None
    name: str = ""
    _maker: Maker[R_co] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._maker = None if self.row is None else Maker(self.row)

    def take_name(self, name: str) -> None:
        """Write a name before the text."""
        self.name = name
        self.sqlite, self.postgres = _commented(name, self.sqlite), _commented(name, self.postgres)
        self.single = _commented(name, self.single)

    @property
    def words(self) -> frozenset[str]:
        """Every word of the text, table names included."""
        return _words(self.postgres)

    def bind_sqlite(self, parameters: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Return the text and the parameters for SQLite; lists of several items are JSON."""
        if not self.lists:
            return self.sqlite, parameters
        if all(len(parameters[name]) == 1 for name in self.lists):
            return self.single, {k: v[0] if k in self.lists else v for k, v in parameters.items()}
        return self.sqlite, {k: _json_list(v) if k in self.lists else v for k, v in parameters.items()}

    def bind_postgres(self, parameters: Mapping[str, Any]) -> list[Any]:
        return [parameters[name] for name in self.names]

    def record(self, row: Row | None) -> Any:
        """Convert a row to a record, if the statement has a row class."""
        return row if row is None or self._maker is None else self._maker.one(row, self.name)

    def records(self, rows: list[Any]) -> list[R_co]:
        """Convert rows to records, if the statement has a row class."""
        return rows if self._maker is None else self._maker.all(rows, self.name)


def _json_list(values: Sequence[Any]) -> str:
    """Encode a list as JSON: for texts, the usual case, in 1/3 of an encoder's time."""
    try:
        return "[" + ", ".join(map(encode_basestring_ascii, values)) + "]"
    except TypeError:
        return json.dumps(values)


def _commented(name: str, text: str) -> str:
    return "/* " + name + " */ " + text.lstrip() if text else ""


@lru_cache(maxsize=TEXTS)
def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(_COMMENT.sub("", text)))


@overload
def statement(text: str) -> Statement[Row]: ...
@overload
def statement(text: str, row: type[R]) -> Statement[R]: ...
def statement(text: str, row: type[Any] | None = None) -> Statement[Any]:
    """Build a statement that returns rows of the class `row`, or plain rows."""
    return Statement(*_translate(text if row is None else _with_columns(text, row)), row=row)


def _with_columns(text: str, row: type[Any]) -> str:
    def listed(match: re.Match[str]) -> str:
        alias = match.group(1) + "." if match.group(1) else ""
        return ", ".join(alias + name for name in get_columns(row))

    return _COLUMNS.sub(listed, text)


@lru_cache(maxsize=TEXTS)
def _translate(text: str) -> tuple[str, str, tuple[str, ...], frozenset[str], str]:
    """Translate a text to both dialects; return the first fields of a statement."""
    if "{columns" in text:
        raise AssertionError("a statement without a row class has no columns to list: " + text)
    paired = [name for names in _PAIRS.findall(text) for name in names]
    lists = frozenset(_AMONG.findall(text) + _EACH.findall(text) + paired)
    sqlite, postgres = text, text
    for mark, theirs, ours in _MARKS:
        sqlite, postgres = mark.sub(theirs, sqlite), mark.sub(ours, postgres)
    names: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        return "$" + str(names.setdefault(match.group(1), len(names) + 1))

    postgres = _PARAMETER.sub(number, postgres)
    single = _EACH.sub(r"(SELECT :\1 AS value) AS \1", _AMONG.sub(r"IN (:\1)", text))
    single = _PAIRS.sub(r"(SELECT :\1 AS one, :\2 AS other) AS pairs", single)
    for mark, theirs, _ in _MARKS:
        single = mark.sub(theirs, single)
    return sqlite, postgres, tuple(names), lists, single


@lru_cache(maxsize=64)
def probe_statement(probe: Probe) -> Statement[int]:
    """Return the statement of a probe, for a transaction that did not run it at the start."""
    return statement(probe.sql, row=int)


class BulkUpdate(Generic[R]):
    """An update of many rows, each with its own values: `sets` where `keys` and `guards` still match.

    The values are read from records of the class `row`: each set and key from the field of its name, the
    guard of a column from the field `was_<column>`. A guard holds the value read earlier, so that a row that
    has changed meanwhile is not counted. Without a row class a row is a tuple of sets, keys and guards.
    """

    @overload
    def __init__(
        self: BulkUpdate[tuple[Any, ...]],
        table: Table,
        *,
        sets: tuple[str, ...],
        keys: tuple[str, ...],
        guards: tuple[str, ...] = (),
    ) -> None: ...
    @overload
    def __init__(
        self,
        table: Table,
        row: type[R],
        *,
        sets: tuple[str, ...],
        keys: tuple[str, ...],
        guards: tuple[str, ...] = (),
    ) -> None: ...
    def __init__(
        self,
        table: Table,
        row: type[Any] | None = None,
        *,
        sets: tuple[str, ...],
        keys: tuple[str, ...],
        guards: tuple[str, ...] = (),
    ) -> None:
        self.table, self.sets, self.keys, self.guards, self.seldom = table, sets, keys, guards, None
        self.columns = sets + keys + guards
        self.name = ""
        attributes = (*sets, *keys, *map("was_{}".format, guards))
        self.reader = None if row is None else RecordReader(row, "update of " + table.name, attributes)

    def of(self, rows: Sequence[R]) -> Write:
        """Return this write with its rows."""
        return self, rows

    def take_name(self, name: str) -> None:
        self.name = name

    @property
    def short(self) -> Sequence[str]:
        """Columns whose values are short and never null."""
        return self.keys

    @property
    def kept(self) -> range:
        """Positions of the keys. Folded keys would be constants, for which the planner scans a namespace."""
        return range(len(self.sets), len(self.sets) + len(self.keys))

    @cached_property
    def sqlite(self) -> str:
        marks = iter(_places(self))
        sets = ", ".join(map("{} = {}".format, self.sets, marks))
        where = [*map("{} = {}".format, self.keys, marks), *map("{} IS {}".format, self.guards, marks)]
        return commented(
            self, " ".join(("UPDATE", self.table.name, "SET", sets, "WHERE", " AND ".join(where)))
        )

    def postgres(self, values: Sequence[str], source: str) -> str:
        sets = ", ".join(map("{} = {}".format, self.sets, values))
        at = len(self.sets) + len(self.keys)
        where = [*map("t.{} = {}".format, self.keys, values[len(self.sets) : at])]
        # Written so that no index matches: the row is found by its key.
        where += map("t.{} IS NOT DISTINCT FROM {}".format, self.guards, values[at:])
        return " ".join(
            ("UPDATE", self.table.name, "AS t SET", sets, "FROM", source, "WHERE", " AND ".join(where))
        )


class BulkInsert(Generic[R]):
    """An insert of many whole rows: records of the class `row`, or tuples in the order of the columns.

    `on_conflict` is the text after `ON CONFLICT (key) DO`; without it a taken key is an error. With `any_key`
    it applies to every unique index. With `folds=False` PostgreSQL has one text for all rows: for few rows
    with varying values, in one statement with other writes.
    """

    @overload
    def __init__(self: BulkInsert[tuple[Any, ...]], table: Table, *, on_conflict: str = "") -> None: ...
    @overload
    def __init__(
        self, table: Table, row: type[R], *, on_conflict: str = "", folds: bool = True, any_key: bool = False
    ) -> None: ...
    def __init__(
        self,
        table: Table,
        row: type[Any] | None = None,
        *,
        on_conflict: str = "",
        folds: bool = True,
        any_key: bool = False,
    ) -> None:
        self.table, self.on_conflict, self.any_key = table, on_conflict, any_key
        self.seldom: SeldomUpdate | None = None
        self.kept = range(len(table.key) - 1 if folds else 0, len(table.key) if folds else len(table.names))
        self.columns = table.names
        self.name = ""
        self.row: Any = row
        self.reader = None if row is None else RecordReader(row, "insert into " + table.name, table.names)

    def sets_seldom(self, sets: str, *, when: str) -> None:
        """Add rarely changed columns to its update, which changes them only where `when` holds."""
        self.seldom = SeldomUpdate(self, sets, when)

    @property
    def short(self) -> Sequence[str]:
        """Columns whose values are short and never null."""
        return self.table.key

    def of(self, rows: Sequence[R]) -> Write:
        """Return this write with its rows."""
        return self, rows

    def take_name(self, name: str) -> None:
        self.name = name

    @cached_property
    def sqlite(self) -> str:
        names, marks = ", ".join(self.columns), ", ".join(_places(self))
        words = ("INSERT INTO", self.table.name, "(", names, ") VALUES (", marks, ")")
        return commented(self, " ".join((*words, _translate(self._clause(self.on_conflict))[0])).strip())

    def postgres(self, values: Sequence[str], source: str) -> str:
        words = ("INSERT INTO", self.table.name, "(", ", ".join(self.columns), ") SELECT", ", ".join(values))
        action = self.on_conflict
        if self.seldom is not None:
            action = action.replace("UPDATE SET", "UPDATE SET " + self.seldom.sets + ",", 1)
        return " ".join((*words, "FROM", source, _translate(self._clause(action))[1])).strip()

    def _clause(self, action: str) -> str:
        if not action:
            return ""
        target = "" if self.any_key else "(" + ", ".join(self.table.key) + ") "
        return "ON CONFLICT " + target + "DO " + action


class SeldomUpdate:
    """Rarely changed columns, which SQLite sets by an extra update: each set writes an index entry again."""

    def __init__(self, insert: BulkInsert[Any], sets: str, when: str) -> None:
        self.insert, self.sets, self.when = insert, sets, when
        read = {*insert.table.key, *_EXCLUDED.findall(sets), *_EXCLUDED.findall(when)}
        self.columns = tuple(name for name in insert.columns if name in read)
        self.reader = RecordReader(insert.row, "update of " + insert.table.name, self.columns)

    @cached_property
    def sqlite(self) -> str:
        places = dict(zip(self.columns, _places(self), strict=True))
        table = self.insert.table
        where = " AND ".join([" = ".join((name, places[name])) for name in table.key])
        words = ("UPDATE", table.name, "SET", self.sets, "WHERE", where, "AND (", self.when, ")")
        text = _translate(" ".join(words))[0]
        return commented(self.insert, _EXCLUDED.sub(lambda match: places[match[1]], text))


Bulk = BulkUpdate[Any] | BulkInsert[Any]
Write = tuple[Bulk, Sequence[Any]]
"""A bulk write and its rows."""


def name_statements(module: Mapping[str, Any]) -> None:
    """Name the statements of a module, given by its globals, after its domain and their constants."""
    domain = module["__name__"].removesuffix(".sql").rpartition(".")[2]
    for name, value in module.items():
        if hasattr(value, "take_name") and not isinstance(value, type) and not value.name:
            value.take_name(domain + "." + name)


@lru_cache(maxsize=64)
def plain_insert(table: Table) -> BulkInsert[tuple[Any, ...]]:
    """Return the insert of rows that must be new; it is cached, because it keeps its texts."""
    return BulkInsert(table)


def _places(bulk: Bulk | SeldomUpdate) -> list[str]:
    """Return SQLite's parameter of each column; the transaction's namespace, if added, is the first."""
    at = None if bulk.reader is None else bulk.reader.ns_at
    if at is None:
        return ["?"] * len(bulk.columns)
    numbers = [*range(2, at + 2), 1, *range(at + 2, len(bulk.columns) + 1)]
    return ["?" + str(number) for number in numbers]


def commented(bulk: Bulk, text: str) -> str:
    """Return the text of a bulk write with its name before it."""
    return _commented(bulk.name, text) if bulk.name else text


def write_sqlite(bulk: Bulk | SeldomUpdate, rows: Sequence[Any], ns: int | None) -> tuple[str, Sequence[Any]]:
    """Return SQLite's text of a bulk write, and the parameters of each row."""
    return bulk.sqlite, rows if bulk.reader is None else bulk.reader.tuples(rows, ns)


def returning_keys(insert: BulkInsert[Any], text: str) -> str:
    """Return the text of an insert that returns the keys of the inserted rows."""
    return " ".join((text, "RETURNING", ", ".join(insert.table.key)))


def write_postgres(writes: Sequence[Write], ns: int | None = None) -> tuple[str, list[Any]]:
    """Build one PostgreSQL statement of bulk writes, and its parameters."""
    shapes: list[tuple[Bulk, Folded]] = []
    parameters: list[Any] = []
    for bulk, rows in writes:
        folded, columns = _fold(bulk, rows, ns)
        shapes.append((bulk, folded))
        parameters += columns
    return _writes_postgres(tuple(shapes)), parameters


@lru_cache(maxsize=1024)
def _writes_postgres(writes: tuple[tuple[Bulk, Folded], ...]) -> str:
    """Return the text of a single write, or combine several into a query of their counts."""
    texts, number = [], 1
    for bulk, folded in writes:
        text = bulk.postgres(_values(bulk, folded, number), _unnest(bulk, folded, number))
        texts.append(commented(bulk, text))
        number += len(folded)
    if len(texts) == 1:
        return texts[0]
    parts = ", ".join(map("w{} AS ({} RETURNING 1)".format, range(len(texts)), texts))
    counts = ", ".join(map("(SELECT count(*) FROM w{})".format, range(len(texts))))
    return " ".join(("WITH", parts, "SELECT", counts))


def _values(bulk: Bulk, folded: Folded, first: int) -> list[str]:
    """Return the source of each column: a parameter if it is folded, otherwise an unnested array."""
    return [
        f"${number}::{_scalar(bulk, name)}" if once else f"v.c{number}"
        for number, (name, once) in enumerate(zip(bulk.columns, folded, strict=True), first)
    ]


def _unnest(bulk: Bulk, folded: Folded, first: int) -> str:
    numbered = [(n, name) for n, name in enumerate(bulk.columns, first) if not folded[n - first]]
    arrays = [f"${n}{array_cast(_scalar(bulk, name), short=name in bulk.short)}" for n, name in numbered]
    names = [f"c{n}" for n, _ in numbered]
    return " ".join(("unnest(", ", ".join(arrays), ") AS v(", ", ".join(names), ")"))


def _scalar(bulk: Bulk, name: str) -> str:
    return POSTGRES_SCALARS[bulk.table.column(name).type]


def _fold(bulk: Bulk, rows: Sequence[Any], ns: int | None) -> tuple[Folded, list[Any]]:
    """Convert rows to columns; fold equal values into one, except in `kept` columns."""
    count, kept, short, column_of = len(rows), bulk.kept, bulk.short, bulk.table.column
    folded: list[bool] = []
    sent: list[Any] = []
    columns: Iterable[tuple[Any, ...]] = (
        zip(*rows, strict=True) if bulk.reader is None else bulk.reader.columns(rows, ns)
    )
    for place, (name, column) in enumerate(zip(bulk.columns, columns, strict=True)):
        once = place not in kept and column.count(column[0]) == count
        folded.append(once)
        sent.append(column[0] if once else array(column, column_of(name).type, short=name in short))
    return tuple(folded), sent


def _arrays(table: Table, columns: Sequence[str]) -> str:
    casts = (array_cast(POSTGRES_SCALARS[table.column(name).type], short=True) for name in columns)
    return ", ".join(map("${}{}".format, range(1, len(columns) + 1), casts))


def key_arrays(table: Table, keys: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Convert primary keys to PostgreSQL parameters of `existing_postgres` and `lock_postgres`."""
    columns = zip(*keys, strict=True)
    return [
        array(column, table.column(name).type, short=True)
        for name, column in zip(table.key, columns, strict=True)
    ]


@lru_cache(maxsize=64)
def existing_sqlite(table: Table) -> str:
    where = " AND ".join(map("{} = ?".format, table.key))
    return " ".join(("SELECT", ", ".join(table.key), "FROM", table.name, "WHERE", where))


@lru_cache(maxsize=64)
def existing_postgres(table: Table) -> str:
    names = ", ".join(table.key)
    source = " ".join(("unnest(", _arrays(table, table.key), ") AS v(", names, ")"))
    columns = ", ".join(map("t.{}".format, table.key))
    return " ".join(("SELECT", columns, "FROM", source, "JOIN", table.name, "AS t USING (", names, ")"))


@lru_cache(maxsize=64)
def lock_postgres(table: Table) -> str:
    """Return the text that locks rows by primary key in ascending order; the first column is `ns`."""
    names = ", ".join(table.key)
    source = " ".join(("SELECT * FROM unnest(", _arrays(table, table.key), ")"))
    return " ".join(
        (
            "SELECT",
            names,
            "FROM",
            table.name,
            "WHERE (",
            names,
            ") IN (",
            source,
            ") ORDER BY",
            names,
            "FOR NO KEY UPDATE",
        )
    )


def move_deadlines(table: Table) -> str:
    """Return SQLite's text that moves the deadlines of a table, and the times that they count from."""
    moved = ", ".join(name + " = " + name + " + ?" for name in table.deadlines)
    return " ".join(("UPDATE", table.name, "SET", moved, "WHERE", table.deadlines[0], "IS NOT NULL"))
