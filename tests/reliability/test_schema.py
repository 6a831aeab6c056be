"""The schema: the same on both engines, and only ever extended, in the open and behind callers' backs."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.make_release import definitions, path_of
from tests.reliability import catalog
from tests.reliability.places import (
    Place,
    PostgresPlace,
    SqlitePlace,
    insert,
    open_once,
    opened,
    without_indexes,
)

from perdure import __version__
from perdure.kernel.errors import NewerSchema, StorageError
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.kernel.storage.schema import (
    META,
    SCHEMA_GENERATION,
    Column,
    ForeignKey,
    Index,
    Schema,
    Table,
    integer,
    real,
    text,
)
from perdure.rollouts.store import DatabaseLightningStore
from perdure.rollouts.tables import ROLLOUTS
from perdure.runtime.stores import TABLES
from perdure.testing import servers

FLOWS = Table(
    "sample_flows",
    (
        integer("ns"),
        text("id"),
        real("cost", default=-0.5),
        real("seconds", null=True),
        text("state", default="it's new\\"),
        integer("level", default=-3),
    ),
    key=("ns", "id"),
)
STEPS = Table(
    "sample_steps",
    (integer("ns"), text("id"), text("flow_id"), text("after", null=True), text("seen_by", null=True)),
    key=("ns", "id"),
    indexes=(Index("sample_steps_flow", ("ns", "flow_id")), Index("sample_steps_after", ("ns", "after"))),
    foreign_keys=(
        ForeignKey(("ns", "flow_id"), "sample_flows", cascade=True),
        ForeignKey(("ns", "after"), "sample_steps"),
        ForeignKey(("ns", "seen_by"), "sample_flows", enforced=False),
    ),
)
SAMPLES = (FLOWS, STEPS)
"""What tables may have, and those of the releases so far have not."""
RELEASES = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0")


@pytest.fixture
def sqlite(tmp_path: Path) -> SqlitePlace:
    return SqlitePlace(tmp_path / "perdure.db")


@pytest.fixture
def postgres(postgres_url: str) -> PostgresPlace:
    return PostgresPlace(postgres_url)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path, postgres_server_url: str) -> Iterator[Place]:
    if request.param == "sqlite":
        yield SqlitePlace(tmp_path / "perdure.db")
        return
    name = f"schema_{uuid.uuid4().hex}"
    servers.create_database(postgres_server_url, name)
    yield PostgresPlace(servers.with_database(postgres_server_url, name))
    servers.drop_database(postgres_server_url, name)


# --- parity -----------------------------------------------------------------------------------------------


async def test_both_engines_have_what_is_declared(sqlite: SqlitePlace, postgres: PostgresPlace) -> None:
    await open_once(sqlite, [*TABLES, *SAMPLES])
    await open_once(postgres, [*TABLES, *SAMPLES])
    expected = catalog.declared([*TABLES, *SAMPLES])
    assert await sqlite.catalog() == expected
    assert await postgres.catalog() == expected


async def test_columns_stand_in_the_order_of_the_declaration(place: Place) -> None:
    await open_once(place)
    seen = await place.catalog()
    assert {name: tuple(table.columns) for name, table in seen.items()} == {
        table.name: table.names for table in Schema(TABLES).tables.values()
    }


def test_every_key_leads_with_its_namespace() -> None:
    other = {META.name, "namespaces"}
    assert {table.name for table in TABLES if table.key[0] != "ns"} <= other


def test_what_may_be_added_later_is_nullable_or_has_a_default() -> None:
    """Blobs and other large values stand last, where a row that is not read whole ends before them."""
    for table in TABLES:
        kinds = [column.type for column in table.columns]
        assert kinds == sorted(kinds, key=lambda kind: kind == "blob"), table.name


def test_names_are_not_used_twice() -> None:
    names = [index.name for table in TABLES for index in table.indexes] + [table.name for table in TABLES]
    assert len(set(names)) == len(names)
    with pytest.raises(AssertionError, match="twice"):
        Schema([ROLLOUTS, ROLLOUTS])


# --- reals, defaults and foreign keys ---------------------------------------------------------------------

ADD_FLOW = statement("INSERT INTO sample_flows (ns, id) VALUES (1, :id)")
DROP_FLOW = statement("DELETE FROM sample_flows WHERE ns = 1 AND id = :id")
DROP_STEP = statement("DELETE FROM sample_steps WHERE ns = 1 AND id = :id")


async def _do(tx: Tx, sql: Any, id: str) -> None:
    await tx.execute(sql, id=id)


async def test_reals_come_back_as_they_were_given(place: Place) -> None:
    given = [0.0, 1.0, 0.1, -1e308, 5e-324, float("inf"), 2.0**53 + 2]
    rows = [(1, f"{number}", cost, None if number % 2 else cost, "s", 0) for number, cost in enumerate(given)]
    async with opened(place, SAMPLES) as storage:
        await storage.run(insert, FLOWS, rows)
        await storage.run(insert, FLOWS, [(2, "whole", 3, 4, "s", 0)])
    seen = {(row["ns"], row["id"]): (row["cost"], row["seconds"]) for row in (await place.rows())[FLOWS.name]}
    assert [seen[1, id] for _, id, *_ in rows] == [(cost, seconds) for _, _, cost, seconds, *_ in rows]
    assert [type(value) for value in seen[2, "whole"]] == [float, float]


async def test_defaults_hold_for_rows_that_do_not_say_and_for_rows_that_came_before(place: Place) -> None:
    expected = {"cost": -0.5, "seconds": None, "state": "it's new\\", "level": -3}
    async with opened(place, [without_columns(FLOWS)]) as storage:
        await storage.run(_do, ADD_FLOW, "before")
    async with opened(place, SAMPLES) as storage:
        await storage.run(_do, ADD_FLOW, "after")
    assert (await place.rows())[FLOWS.name] == [{"ns": 1, "id": id, **expected} for id in ("after", "before")]
    assert await place.catalog() == catalog.declared(SAMPLES)


async def test_a_foreign_key_is_enforced(place: Place) -> None:
    async with opened(place, SAMPLES) as storage:
        await storage.run(_do, ADD_FLOW, "flow")
        await storage.run(insert, STEPS, [(1, "first", "flow", None, "nobody")])
        await storage.run(insert, STEPS, [(1, "second", "flow", "first", None)])
        unknown = [(1, "x", "none", None, None), (2, "x", "flow", None, None), (1, "x", "flow", "z", None)]
        for wrong in unknown:
            with pytest.raises(StorageError):
                await storage.run(insert, STEPS, [wrong])
        with pytest.raises(StorageError):
            await storage.run(_do, DROP_STEP, "first")
        assert len((await place.rows())[STEPS.name]) == 2
        await storage.run(_do, DROP_STEP, "second")
        await storage.run(_do, DROP_FLOW, "flow")
        assert (await place.rows())[STEPS.name] == []


async def test_a_table_with_a_foreign_key_is_added_to_a_database(place: Place) -> None:
    async with opened(place, [FLOWS]) as storage:
        await storage.run(_do, ADD_FLOW, "flow")
    async with opened(place, SAMPLES) as storage:
        await storage.run(insert, STEPS, [(1, "first", "flow", None, None)])
        with pytest.raises(StorageError):
            await storage.run(insert, STEPS, [(1, "second", "none", None, None)])
    assert await place.catalog() == catalog.declared(SAMPLES)


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ((STEPS, FLOWS), "declared before"),
        ((FLOWS, dataclasses.replace(STEPS, indexes=())), "no index begins with ns, flow_id"),
        (
            (FLOWS, dataclasses.replace(STEPS, foreign_keys=(ForeignKey(("flow_id",), "sample_flows"),))),
            "must be those of its key, ns, id",
        ),
    ],
)
def test_a_foreign_key_that_cannot_be_is_refused(tables: tuple[Table, ...], problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        Schema(tables)


# --- older declarations -----------------------------------------------------------------------------------


def _mentions(index: Index, column: Column) -> bool:
    return any(each.split()[0] == column.name for each in index.columns) or column.name in (index.where or "")


def without_columns(table: Table) -> Table:
    """The table before its nullable and defaulted columns came."""
    referring = {name for foreign_key in table.foreign_keys for name in foreign_key.columns}
    dropped = [
        each
        for each in table.columns
        if (each.null or each.default is not None) and each.name not in {*table.key, *referring}
    ]
    kept = tuple(each for each in table.columns if each not in dropped)
    indexes = tuple(each for each in table.indexes if not any(_mentions(each, column) for column in dropped))
    return dataclasses.replace(
        table, columns=kept, indexes=indexes, probes=(), full_text=None, filled_by=None, views=()
    )


def fewer_columns() -> list[Table]:
    return [without_columns(table) for table in TABLES]


def fewer_indexes() -> list[Table]:
    return [without_indexes(table) for table in TABLES]


def fewer_tables() -> list[Table]:
    return _whole(TABLES[::2])


def fewer_of_everything() -> list[Table]:
    return [without_indexes(without_columns(table)) for table in _whole(TABLES[1::2])]


def _whole(tables: Sequence[Table]) -> list[Table]:
    """Those of the tables that refer to none that is missing."""
    found: dict[str, Table] = {}
    for table in tables:
        if all(each.table in (table.name, *found) for each in table.foreign_keys):
            # A view reads tables that may be missing; it comes with the last of them.
            found[table.name] = dataclasses.replace(table, filled_by=None, views=())
    return list(found.values())


def example(table: Table, column: Column, number: int) -> Any:
    if column.null and number % 2:
        return None
    for foreign_key in table.foreign_keys:
        if column.name in foreign_key.columns:
            target = Schema(TABLES).tables[foreign_key.table]
            named = target.column(target.key[foreign_key.columns.index(column.name)])
            return number if named.type == "int" else f"{named.name}-{number}"
    return {
        "int": number,
        "real": number + 0.5,
        "text": f"{column.name}-{number}",
        "blob": bytes([number]),
    }[column.type]


def examples(table: Table) -> list[tuple[Any, ...]]:
    return [tuple(example(table, column, number) for column in table.columns) for number in range(1, 6)]


@pytest.mark.parametrize("older", [fewer_columns, fewer_indexes, fewer_tables, fewer_of_everything])
async def test_an_older_database_is_extended_and_keeps_its_rows(
    place: Place, older: Callable[[], list[Table]]
) -> None:
    tables = older()
    async with opened(place, tables) as storage:
        for table in tables:
            await storage.run(insert, table, examples(table))
    before = await place.rows()
    await open_once(place)
    assert await place.catalog() == catalog.declared(TABLES)
    after = await place.rows()
    assert {
        name: [_only(row, before[name]) for row in rows] for name, rows in after.items() if name in before
    } == before
    for table in Schema(TABLES).tables.values():
        added = [
            each
            for each in table.columns
            if before.get(table.name) and each.name not in before[table.name][0]
        ]
        for row in after[table.name]:
            assert {each.name: row[each.name] for each in added} == {
                each.name: each.default for each in added
            }
    await open_once(place)
    assert await place.rows() == after


def _only(row: dict[str, Any], older: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name in older[0]} if older else row


async def test_the_store_works_on_a_database_that_was_extended(place: Place) -> None:
    await open_once(place, fewer_of_everything())
    async with place.store() as store:
        await _use(store)


async def _use(store: DatabaseLightningStore) -> None:
    rollout = await store.enqueue_rollout({"n": 1}, idempotency_key="once", priority=3)
    claimed = await store.dequeue_rollout("worker")
    assert claimed is not None
    assert claimed.rollout_id == rollout.rollout_id
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
    assert [each.status for each in await store.query_rollouts()] == ["succeeded"]
    assert (await store.statistics())["total_rollouts"] == 1


async def test_an_older_release_works_on_a_newer_database(place: Place) -> None:
    """What a newer release added is nullable or has a default, so that this one need not know of it."""
    extra = (Column("added", "text", null=True), Column("counted", "int", default=5))
    newer = [dataclasses.replace(table, columns=(*table.columns, *extra)) for table in TABLES]
    newer[0] = dataclasses.replace(newer[0], indexes=(*newer[0].indexes, Index("added_index", ("added",))))
    newer.append(Table("added_table", (Column("id", "int"),), key=("id",)))
    await open_once(place, newer)
    async with place.store() as store:
        await _use(store)
    assert await place.catalog() == catalog.declared(newer)
    assert {row["counted"] for row in (await place.rows())["rollouts"]} == {5}


async def test_a_newer_generation_is_refused(place: Place) -> None:
    await open_once(place)
    await place.execute(f"UPDATE perdure_meta SET value = '{SCHEMA_GENERATION + 1}' WHERE name = 'schema'")
    before = await place.rows()
    with pytest.raises(NewerSchema):
        await open_once(place, [*TABLES, Table("added_table", (Column("id", "int"),), key=("id",))])
    assert await place.rows() == before


# --- what earlier releases made ---------------------------------------------------------------------------


async def _load(place: Place, release: str) -> None:
    engine = "sqlite" if isinstance(place, SqlitePlace) else "postgres"
    await place.execute(path_of(release, engine).read_text(encoding="utf-8"))


@pytest.mark.parametrize("release", RELEASES)
async def test_a_database_of_an_earlier_release_opens_with_its_rows_intact(
    place: Place, release: str
) -> None:
    await _load(place, release)
    before, made = await place.rows(), await place.catalog()
    assert len([row for row in before["rollouts"] if row["kind"] == "task"]) == 10
    await open_once(place)
    assert await place.catalog() == _with_older_indexes(made)
    after = await place.rows()
    assert {name: [_only(row, rows) for row in after[name]] for name, rows in before.items()} == before


def _with_older_indexes(made: catalog.Catalog) -> catalog.Catalog:
    """What is declared, and the indexes of the earlier release, since nothing is dropped."""
    return {
        name: table._replace(indexes={**(made[name].indexes if name in made else {}), **table.indexes})
        for name, table in catalog.declared(TABLES).items()
    }


@pytest.mark.parametrize("release", RELEASES)
async def test_both_engines_of_an_earlier_release_held_the_same(
    sqlite: SqlitePlace, postgres: PostgresPlace, release: str
) -> None:
    await _load(sqlite, release)
    await _load(postgres, release)
    assert await sqlite.rows() == await postgres.rows()


@pytest.mark.parametrize("release", RELEASES)
async def test_the_store_reads_what_an_earlier_release_wrote(place: Place, release: str) -> None:
    await _load(place, release)
    async with place.store() as store:
        ended = await store.query_rollouts(status_in=["succeeded"])
        assert [each.input for each in ended] == [{"word": "hello"}]
        spans = await store.query_spans(ended[0].rollout_id)
        assert [each.name for each in spans] == ["step 1", "step 2", "step 3"]
        assert {each.model_extra["unknown"]["kept"] for each in spans} == {True}
        assert {each.resource.attributes["service.name"] for each in spans} == {"fixture"}
        latest = await store.get_latest_resources()
        assert latest is not None
        assert latest.version == 2
        attempts = [len(await store.query_attempts(each.rollout_id)) for each in await store.query_rollouts()]
        statistics = await store.statistics()
        assert (statistics["total_attempts"], statistics["total_spans"]) == (sum(attempts), 3)
        assert statistics["total_span_bytes"] > 0
        again = await store.enqueue_rollout("another", idempotency_key="key-1")
        assert again.input == "once"
        assert len(await store.in_namespace("other team").query_rollouts()) == 1
        claimed = await store.dequeue_rollout("new worker")
        assert claimed is not None


def test_the_release_that_is_not_out_yet_is_written_down_as_it_is() -> None:
    """If this fails, run `python -m tests.fixtures.make_release`, or raise the version first if it is out."""
    for engine in ("sqlite", "postgres"):
        written = path_of(__version__, engine).read_text(encoding="utf-8").splitlines()
        assert [line for line in written if line.startswith(("CREATE", "ALTER"))] == list(definitions(engine))
