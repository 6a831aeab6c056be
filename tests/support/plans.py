"""Query plans of everything a store runs: a transaction that asks the engine for each plan first."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from types import ModuleType
from typing import Any, NamedTuple

import asyncpg

from perdure.kernel.storage import dialect
from perdure.kernel.storage.dialect import BulkUpdate, Statement, Write
from perdure.kernel.storage.port import Check, Operation, Storage, Tx
from perdure.kernel.storage.postgres import PostgresStorage
from perdure.kernel.storage.postgres_connection import by_key
from perdure.kernel.storage.postgres_tx import BEGIN_WRITE
from perdure.kernel.storage.rows import R
from perdure.kernel.storage.schema import Column, Probe, Table

_SCAN = re.compile(r"^SCAN (\S+)")
_INDEX = re.compile(r"USING (?:COVERING )?(?:PARTIAL )?INDEX (\S+)")
_ALIAS = re.compile(r"(\w+) AS (\w+)")
_PRIMARY = re.compile(r"^SEARCH (\S+) USING PRIMARY KEY")
_OWN_KEY = re.compile(r"^sqlite_autoindex_(\w+)_1$")
SMALL = frozenset(
    {"json_each", "agents", "queues", "names", "ids", "pairs", "c", "b", "heads", "CONSTANT", "namespaces"}
)
"""Scans that SQLite may do: over a passed list, over a statement's own results, and over a few names."""


@dataclass(frozen=True)
class Subject:
    """The statements of a domain, and how they must run."""

    modules: tuple[ModuleType, ...]
    """The modules in which its statements and probes have names."""
    large: frozenset[str]
    """Tables that no statement may read whole."""
    expected: Mapping[str, set[str]]
    """Indexes that a statement must use."""
    small: frozenset[str] = SMALL
    """Further scans that SQLite may do."""
    any_index: frozenset[str] = frozenset()
    """Statements on small tables, for which the planner may not use the index."""
    may_scan: frozenset[str] = frozenset()
    """Statements on many rows at once, for which reading all may be cheaper."""

    @cached_property
    def names(self) -> dict[Any, str]:
        """Return the name of each statement; the second of two equal names includes its module."""
        found: dict[Any, str] = {}
        for module in self.modules:
            taken = set(found.values())
            for name, value in vars(module).items():
                unique = f"{module.__name__}.{name}" if name in taken else name
                if isinstance(value, Statement | BulkUpdate):
                    found[value] = unique
                elif isinstance(value, Probe):
                    found[dialect.probe_statement(value)] = unique
        return found

    def wrong(self, found: Mapping[str, Plan]) -> dict[str, str]:
        """Return the statements whose plan differs from the intended one, with that plan."""
        mistaken = {}
        for key, plan in found.items():
            name = key.partition(":")[0]
            missing = set() if name in self.any_index else self.expected.get(name, set()) - plan.indexes
            scanned = set() if name in self.may_scan else plan.scanned
            if scanned or missing:
                mistaken[key] = f"reads {set(scanned)} whole, misses {missing}:\n{plan.text}"
        return mistaken

    def never_asked(self, found: Mapping[str, Plan]) -> set[str]:
        return set(self.expected) - {key.partition(":")[0] for key in found}


class Plan(NamedTuple):
    """How the engine runs a statement: the indexes it uses, and the large tables that it reads whole."""

    indexes: frozenset[str]
    scanned: frozenset[str]
    text: str


def of_sqlite(lines: Sequence[str], small: frozenset[str] = SMALL, text: str = "") -> Plan:
    found = [match.group(1) for line in lines if (match := _INDEX.search(line))]
    tables = {alias: table for table, alias in _ALIAS.findall(text)}
    named = [str(match.group(1)) for line in lines if (match := _PRIMARY.match(line))]
    found += [tables.get(name, name) + "_pkey" for name in named]
    scanned = {match.group(1) for line in lines if (match := _SCAN.match(line))} - small
    scanned = {name for name in scanned if not name.startswith("(")}
    return Plan(frozenset(map(_plain, found)), frozenset(scanned), "\n".join(lines))


def _plain(index: str) -> str:
    return _OWN_KEY.sub(r"\1_pkey", index)


def of_postgres(answer: Any, large: frozenset[str] = frozenset()) -> Plan:
    tree = json.loads(answer) if isinstance(answer, str) else answer
    nodes = list(_nodes(tree[0]["Plan"]))
    indexes = {node["Index Name"] for node in nodes if "Index Name" in node}
    scanned = {node["Relation Name"] for node in nodes if _reads_whole(node, large)}
    return Plan(frozenset(indexes), frozenset(scanned), json.dumps(tree, indent=1))


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _reads_whole(node: dict[str, Any], large: frozenset[str]) -> bool:
    if node.get("Relation Name") not in large:
        return False
    kind = node["Node Type"]
    return kind == "Seq Scan" or (kind in ("Index Scan", "Index Only Scan") and "Index Cond" not in node)


class Plans:
    """The plans of all statements that a storage has run, each once."""

    def __init__(self, storage: Storage, subject: Subject) -> None:
        self.subject = subject
        self.found: dict[str, Plan] = {}
        self.texts: dict[str, str] = {}
        self._engine = storage.engine
        self._storage = storage
        for lane in ("run", "read", "background"):
            setattr(storage, lane, self._explained(getattr(storage, lane)))

    def _explained(self, call: Any) -> Any:
        async def explained(tx: Tx, operation: Operation[..., Any], *args: Any) -> Any:
            return await operation(_ExplainingTx(tx, self), *args)

        def lane(
            operation: Operation[..., Any], /, *args: Any, before: Sequence[Check] = (), **options: Any
        ) -> Any:
            if before:
                options["before"] = [partial(explained, operation=check) for check in before]
            return call(explained, operation, *args, **options)

        return lane

    async def add(self, tx: Any, name: str, texts: tuple[str, str], values: Any) -> None:
        """Ask for the plan of a text, unless it was asked before."""
        text = texts[self._engine == "postgres"]
        key = f"{name}: {' '.join(text.split())}"
        if key in self.found:
            return
        self.texts[key] = text
        if self._engine == "sqlite":
            rows = tx.connection.execute("EXPLAIN QUERY PLAN " + text, values).fetchall()
            self.found[key] = of_sqlite([row[3] for row in rows], self.subject.small, text)
        else:
            asked = tx._connection.fetchval("EXPLAIN (FORMAT JSON) " + text, *values)
            self.found[key] = of_postgres(await tx._wait(asked), self.subject.large)

    async def ask_for_generic(self, url: str) -> dict[str, Plan]:
        """Return PostgreSQL's generic plans, which ignore the values, as after some executions."""
        connection = await asyncpg.connect(url, statement_cache_size=0)
        generic: dict[str, Plan] = {}
        assert isinstance(self._storage, PostgresStorage)
        texts = {**self.texts, "prelude:": self._storage._write_prelude}
        try:
            await connection.execute(by_key(BEGIN_WRITE))
            await connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
            for key, text in texts.items():
                count = max((int(number) for number in re.findall(r"\$(\d+)", text)), default=0)
                nothing = "(" + ", ".join(["NULL"] * count) + ")" if count else ""
                await connection.execute("PREPARE asked AS " + text)
                answer = await connection.fetchval("EXPLAIN (FORMAT JSON) EXECUTE asked" + nothing)
                await connection.execute("DEALLOCATE asked")
                generic[key] = of_postgres(answer, self.subject.large)
        finally:
            await connection.close()
        return generic


async def plans_of(
    storage: Storage,
    url: str,
    subject: Subject,
    fill: Callable[[Storage], Awaitable[None]],
    use: Callable[[Storage], Awaitable[None]],
) -> dict[str, Plan]:
    """Return the plans of everything that `use` runs after `fill`; none is wrong, and none is missing."""
    await fill(storage)
    if storage.engine == "postgres":
        await settle(url)
    plans = Plans(storage, subject)
    await use(storage)
    assert subject.wrong(plans.found) == {}
    asked = plans.found
    if storage.engine == "postgres":
        generic = await plans.ask_for_generic(url)
        assert subject.wrong(generic) == {}
        asked = generic
    # Only PostgreSQL has a prelude.
    never = subject.never_asked(asked)
    assert never <= {"prelude"} - asked.keys(), never
    return plans.found


async def settle(url: str) -> None:
    """Run the work that autovacuum would do within its next minute."""
    connection = await asyncpg.connect(url)
    await connection.execute("VACUUM ANALYZE")
    await connection.close()


class _ExplainingTx:
    """A transaction that asks for the plan of each statement before it runs it."""

    def __init__(self, tx: Any, plans: Plans) -> None:
        self._tx = tx
        self._plans = plans

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    async def _explain(self, statement: Statement[Any], parameters: Mapping[str, Any]) -> None:
        bound = self._tx._bind(statement, dict(parameters))
        text = statement.sqlite
        if self._plans._engine == "sqlite":
            text, bound = bound
        name = self._plans.subject.names.get(statement, "listing")
        await self._plans.add(self._tx, name, (text, statement.postgres), bound)

    async def probe(self, probe: Probe, /) -> bool:
        return await self.one(dialect.probe_statement(probe)) is not None

    async def one(self, statement: Statement[R], /, **parameters: Any) -> R | None:
        await self._explain(statement, parameters)
        row: R | None = await self._tx.one(statement, **parameters)
        return row

    async def all(self, statement: Statement[R], /, **parameters: Any) -> list[R]:
        await self._explain(statement, parameters)
        rows: list[R] = await self._tx.all(statement, **parameters)
        return rows

    async def execute(self, statement: Statement[Any], /, **parameters: Any) -> int:
        await self._explain(statement, parameters)
        return int(await self._tx.execute(statement, **parameters))

    async def execute_many(self, statement: Statement[Any], rows: Sequence[Mapping[str, Any]], /) -> None:
        if rows:
            await self._explain(statement, rows[0])
        await self._tx.execute_many(statement, rows)

    async def update_many(self, update: BulkUpdate[R], rows: Sequence[R], /) -> int:
        return (await self.write((update, rows)))[0]

    async def write(self, *writes: Write) -> list[int]:
        """Ask for the plan of each update; run them together."""
        await self._explain_writes(writes)
        return list(await self._tx.write(*writes))

    async def defer(self, *writes: Write) -> None:
        await self._explain_writes(writes)
        await self._tx.defer(*writes)

    async def expect(self, write: Write, otherwise: Callable[[], Awaitable[None]]) -> None:
        await self._explain_writes([write])
        await self._tx.expect(write, otherwise)

    async def _explain_writes(self, writes: Sequence[Write]) -> None:
        for bulk, rows in writes:
            if rows and isinstance(bulk, BulkUpdate):
                text, values = dialect.write_postgres([(bulk, rows)], self._tx.ns)
                asked, first = dialect.write_sqlite(bulk, rows, self._tx.ns)
                bound = values if self._plans._engine == "postgres" else first[0]
                await self._plans.add(self._tx, self._plans.subject.names[bulk], (asked, text), bound)

    async def existing(self, table: Table, keys: Sequence[tuple[Any, ...]], /) -> set[tuple[Any, ...]]:
        if keys:
            values = dialect.key_arrays(table, keys) if self._plans._engine == "postgres" else keys[0]
            texts = (dialect.existing_sqlite(table), dialect.existing_postgres(table))
            await self._plans.add(self._tx, f"known {table.name}", texts, values)
        found: set[tuple[Any, ...]] = await self._tx.existing(table, keys)
        return found


# --- rows -------------------------------------------------------------------------------------------------


def _default(column: Column) -> Any:
    if column.null or column.default is not None:
        return column.default
    return {"int": 0, "real": 0.0, "text": "", "blob": b""}[column.type]


@cache
def _defaults(table: Table) -> tuple[list[Any], dict[str, int]]:
    return [_default(each) for each in table.columns], {name: place for place, name in enumerate(table.names)}


def row_of(table: Table, **values: Any) -> tuple[Any, ...]:
    """Build a row with these values, and with nothing in its other columns."""
    defaults, places = _defaults(table)
    row = defaults.copy()
    for name, value in values.items():
        row[places[name]] = value
    return tuple(row)
