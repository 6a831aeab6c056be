"""Transactions and operations of every storage: one suite for all engines."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import pytest
from tests.kernel.support import (
    ADD,
    AMONG,
    FIND,
    HAVING,
    IDS,
    NOW_AND_NS,
    NS,
    RESIZE,
    RESIZE_EACH,
    THINGS,
    Gate,
    get_ids,
    put,
    put_and_fail,
    put_and_hint,
    record_hints,
    soon,
    stored,
)

from perdure.kernel.errors import (
    NestedOperation,
    ReadOnlyDatabase,
    StorageError,
    SuspendedOperation,
)
from perdure.kernel.merge import Merger
from perdure.kernel.storage.dialect import BulkInsert, statement
from perdure.kernel.storage.port import Storage, Tx

MOST = 2**63 - 1
PAIRS = statement("SELECT pairs.one, pairs.other FROM {pairs:ones,others}")


class Refused(Exception):
    """Raised by operations of these tests."""


# --- the transaction --------------------------------------------------------------------------------------


async def test_values_come_back_as_they_were_bound(storage: Storage) -> None:
    rows = [
        (NS, "a", MOST, "§ 😀 'quoted' %_\\", b"\x00\xff"),
        (NS, "b", -MOST - 1, "", b""),
        (NS, "c", None, None, None),
    ]

    async def write_and_read(tx: Tx) -> list[tuple[Any, ...]]:
        await tx.insert_many(THINGS, rows)
        answers = [await tx.one(FIND, id=row[1]) for row in rows]
        return [tuple(row) for row in answers if row is not None]

    answers = await storage.run(write_and_read, ns=NS)
    assert [(NS, row[1], *answers[i]) for i, row in enumerate(rows)] == rows


ODD_TEXTS = [
    "",
    " ",
    "NULL",
    "null",
    "a,b",
    "{}",
    '"',
    '""',
    "\\",
    '\\"',
    "a\nb",
    "'",
    "§ 😀",
    '","',
    "$1",
    "%_",
]


async def test_keys_may_hold_any_text(storage: Storage) -> None:
    async def write_and_read(tx: Tx) -> list[Any]:
        await tx.insert_many(THINGS, [(NS, name, None, None, None) for name in ODD_TEXTS])
        rows: list[tuple[Any, ...]] = [(size, NS, name, None) for size, name in enumerate(ODD_TEXTS)]
        changed = await tx.update_many(RESIZE_EACH, rows)
        keys = await tx.existing(THINGS, [(NS, name) for name in (*ODD_TEXTS, "no such")])
        await tx.lock(THINGS, sorted(keys))
        sizes = [size for name in ODD_TEXTS for size, _, _ in await tx.all(FIND, id=name)]
        return [changed, sorted(keys), sizes]

    answers = await storage.run(write_and_read, ns=NS)
    wanted = sorted((NS, name) for name in ODD_TEXTS)
    assert answers == [len(ODD_TEXTS), wanted, list(range(len(ODD_TEXTS)))]


async def test_lists_are_read_as_pairs(storage: Storage) -> None:
    async def read(tx: Tx) -> list[Any]:
        lists = [ODD_TEXTS[:count] for count in (0, 1, len(ODD_TEXTS))]
        return [await tx.all(PAIRS, ones=list(texts), others=list(reversed(texts))) for texts in lists]

    expected = [list(zip(texts, reversed(texts), strict=True)) for texts in ([], ODD_TEXTS[:1], ODD_TEXTS)]
    assert [[tuple(row) for row in rows] for rows in await storage.read(read, ns=NS)] == expected


async def test_one_gives_none_and_all_gives_nothing_where_no_row_is(storage: Storage) -> None:
    async def look(tx: Tx) -> tuple[Any, list[Any]]:
        return await tx.one(FIND, id="none"), list(await tx.all(IDS))

    assert await storage.read(look, ns=NS) == (None, [])


async def test_the_transaction_binds_now_and_its_namespace(storage: Storage) -> None:
    async def look(tx: Tx) -> tuple[tuple[int, ...], int]:
        row = await tx.one(NOW_AND_NS)
        assert row is not None
        return tuple(row), tx.now

    (now, ns), own = await storage.run(look, ns=NS)
    assert (now, ns) == (own, NS)
    assert now > 1_600_000_000_000_000


async def test_writes_count_the_rows_they_changed(storage: Storage) -> None:
    async def write(tx: Tx) -> list[int]:
        added = [await tx.execute(ADD, id=name, size=1) for name in "abc"]
        return [*added, await tx.execute(RESIZE, ids=["a", "c", "x"], size=2), len(await tx.all(IDS))]

    assert await storage.run(write, ns=NS) == [1, 1, 1, 2, 3]


async def test_many_writes_of_one_kind(storage: Storage) -> None:
    async def write(tx: Tx) -> None:
        await tx.execute_many(ADD, [{"id": "a", "size": 1}, {"id": "b", "size": 2}])
        await tx.execute_many(ADD, [{"id": "c", "size": 3}])
        await tx.execute_many(ADD, [])

    await storage.run(write, ns=NS)
    assert await stored(storage) == ["a", "b", "c"]


async def test_an_update_of_many_counts_only_rows_that_are_as_they_were_read(storage: Storage) -> None:
    async def write(tx: Tx) -> tuple[int, list[Any]]:
        await tx.insert_many(THINGS, [(NS, name, 1, None, None) for name in "abc"])
        changed = await tx.update_many(RESIZE_EACH, [(10, NS, "a", 1), (20, NS, "b", 9), (30, NS, "c", 1)])
        things = [await tx.one(FIND, id=name) for name in "abc"]
        return changed, [row[0] for row in things if row is not None]

    assert await storage.run(write, ns=NS) == (2, [10, 1, 30])


async def test_an_update_of_many_with_values_that_all_rows_share(storage: Storage) -> None:
    async def sizes(tx: Tx) -> list[Any]:
        things = [await tx.one(FIND, id=name) for name in "abc"]
        return [row[0] for row in things if row is not None]

    async def write(tx: Tx) -> list[Any]:
        await tx.insert_many(THINGS, [(NS, name, None, None, None) for name in "abc"])
        seen: list[Any] = [await tx.update_many(RESIZE_EACH, [(5, NS, name, None) for name in "abc"])]
        seen.append(await sizes(tx))
        seen.append(await tx.update_many(RESIZE_EACH, [(None, NS, "a", 5), (7, NS, "b", 5)]))
        seen.append(await sizes(tx))
        seen.append(await tx.update_many(RESIZE_EACH, [(9, NS, name, None) for name in "abc"]))
        seen.append(await sizes(tx))
        return seen

    seen = await storage.run(write, ns=NS)
    assert seen == [3, [5, 5, 5], 2, [None, 7, 5], 1, [9, 7, 5]]


async def test_inserts_of_rows_that_share_every_value_but_their_key(storage: Storage) -> None:
    async def write(tx: Tx) -> list[Any]:
        await tx.insert_many(THINGS, [(NS, f"n{n}", None, "same", b"same") for n in range(3)])
        await tx.insert_many(THINGS, [(NS, "one", 1, None, None)])
        return [tuple(row) for name in ("n0", "n2", "one") if (row := await tx.one(FIND, id=name))]

    same = (None, "same", b"same")
    assert await storage.run(write, ns=NS) == [same, same, (1, None, None)]


KEEP_THE_LARGER = BulkInsert(THINGS, on_conflict="UPDATE SET size = {larger:things.size,excluded.size}")
KEEP_THE_FIRST = BulkInsert(THINGS, on_conflict="NOTHING")


async def test_an_insert_of_new_rows_names_those_that_were_new(storage: Storage) -> None:
    new: BulkInsert[tuple[Any, ...]] = BulkInsert(THINGS, on_conflict="NOTHING")

    async def write(tx: Tx) -> list[set[tuple[Any, ...]]]:
        rows = [(NS, name, size, None, None) for size, name in enumerate("abc")]
        return [
            await tx.insert_new(new, rows[1:2]),
            await tx.insert_new(new, rows),
            await tx.insert_new(new, rows),
            await tx.insert_new(new, []),
        ]

    assert await storage.run(write, ns=NS) == [{(NS, "b")}, {(NS, "a"), (NS, "c")}, set(), set()]
    assert await stored(storage) == ["a", "b", "c"]


async def test_several_writes_at_once_each_with_its_count(storage: Storage) -> None:
    async def write(tx: Tx) -> list[Any]:
        await tx.insert_many(THINGS, [(NS, name, 5, None, None) for name in "abc"])
        seen: list[Any] = await tx.write(
            (RESIZE_EACH, [(10, NS, "a", 5), (20, NS, "b", 9)]),
            (KEEP_THE_FIRST, []),
            (KEEP_THE_LARGER, [(NS, "c", 7, None, None), (NS, "d", 1, 'say "\\', b"")]),
        )
        seen += await tx.write((KEEP_THE_FIRST, [(NS, "d", 2, None, None), (NS, "e", None, None, None)]))
        seen += await tx.write((KEEP_THE_LARGER, [(NS, "c", 6, None, None)]))
        return seen + [row[0] for name in "abcde" if (row := await tx.one(FIND, id=name))]

    assert await storage.run(write, ns=NS) == [1, 0, 2, 1, 1, 10, 5, 7, 1, None]


async def test_what_is_left_for_later_is_there_when_it_is_asked_for_and_at_the_end(storage: Storage) -> None:
    async def write(tx: Tx) -> list[Any]:
        await tx.defer((KEEP_THE_FIRST, [(NS, "a", 1, None, None)]))
        seen: list[Any] = [row[0] for row in await tx.all(IDS)]
        await tx.defer((KEEP_THE_FIRST, [(NS, "b", 1, None, None)]), (RESIZE_EACH, []))
        seen += await tx.write((RESIZE_EACH, [(2, NS, "b", 1), (2, NS, "x", 1)]))
        await tx.defer((RESIZE_EACH, [(3, NS, "b", 2)]))
        await tx.defer((KEEP_THE_LARGER, [(NS, "b", 2, None, None), (NS, "c", 4, None, None)]))
        await tx.defer()
        return seen

    assert await storage.run(write, ns=NS) == ["a", 1]
    assert await storage.run(_sizes, ns=NS) == [("a", 1), ("b", 3), ("c", 4)]


async def test_what_is_left_for_later_by_one_that_fails_is_gone(storage: Storage) -> None:
    async def write(tx: Tx) -> None:
        await tx.defer((KEEP_THE_FIRST, [(NS, "a", 1, None, None)]))
        raise Refused

    with pytest.raises(Refused):
        await storage.run(write, ns=NS)
    assert await stored(storage) == []


async def _sizes(tx: Tx) -> list[tuple[Any, ...]]:
    rows = [(name, await tx.one(FIND, id=name)) for (name,) in await tx.all(IDS)]
    return [(name, row[0]) for name, row in rows if row is not None]


async def test_locking_and_asking_for_known_keys(storage: Storage) -> None:
    async def write(tx: Tx) -> list[tuple[Any, ...]]:
        await put(tx, "a")
        await put(tx, "b")
        await tx.lock(THINGS, [(NS, "b"), (NS, "a"), (NS, "missing")])
        return sorted(await tx.existing(THINGS, [(NS, "b"), (NS, "x"), (NS, "a")]))

    assert sorted(await storage.run(write, ns=NS)) == [(NS, "a"), (NS, "b")]


async def test_nothing_to_do_is_done_at_once(storage: Storage) -> None:
    async def write(tx: Tx) -> list[Any]:
        await tx.insert_many(THINGS, [])
        await tx.lock(THINGS, [])
        return [await tx.update_many(RESIZE_EACH, []), list(await tx.existing(THINGS, []))]

    assert await soon(storage.run(write, ns=NS)) == [0, []]


async def test_lists_and_parts_of_text_are_bound(storage: Storage) -> None:
    async def write(tx: Tx) -> list[list[str]]:
        notes = {"a": "100%", "b": "under_score", "c": "it's"}
        await tx.insert_many(THINGS, [(NS, name, None, note, None) for name, note in notes.items()])
        asked: list[Any] = [await tx.all(HAVING, part=part) for part in ("%", "_", "'", "")]
        asked += [await tx.all(AMONG, ids=ids) for ids in ([], ["a", "a", "c"], ["') OR 1=1 --"])]
        return [[row[0] for row in rows] for rows in asked]

    assert await storage.run(write, ns=NS) == [["a"], ["b"], ["c"], ["a", "b", "c"], [], ["a", "c"], []]


async def test_a_parameter_that_is_missing_is_noticed_at_once(storage: Storage) -> None:
    async def write(tx: Tx) -> None:
        await put(tx, "a")
        await tx.one(FIND)

    with pytest.raises(KeyError):
        await soon(storage.run(write, ns=NS))
    assert await stored(storage) == []


async def test_a_value_that_fits_no_column_fails_at_once_and_degrades_nothing(storage: Storage) -> None:
    async def write(tx: Tx) -> None:
        await put(tx, "a")
        await put(tx, "b", 2**70)

    with pytest.raises((StorageError, ValueError, OverflowError)):
        await soon(storage.run(write, ns=NS))
    assert (await storage.health())["status"] == "ok"
    assert await stored(storage) == []


async def test_a_key_that_is_taken_fails_and_changes_nothing(storage: Storage) -> None:
    async def write(tx: Tx) -> None:
        await put(tx, "b")
        await put(tx, "a")

    await storage.run(put, "a", ns=NS)
    with pytest.raises(StorageError):
        await soon(storage.run(write, ns=NS))
    assert await stored(storage) == ["a"]


async def test_an_error_that_an_operation_hides_is_never_acknowledged_without_its_writes(
    storage: Storage,
) -> None:
    async def hide(tx: Tx) -> None:
        await put(tx, "b")
        try:
            await put(tx, "a")
        except Exception:  # noqa: BLE001 - what is tested
            return

    await storage.run(put, "a", ns=NS)
    try:
        await soon(storage.run(hide, ns=NS))
    except StorageError:
        assert await stored(storage) == ["a"]
    else:
        assert await stored(storage) == ["a", "b"]


class AddedRow(NamedTuple):
    """Growth of a thing's size."""

    id: str
    note: None
    body: None
    size: int


ADD_SIZES = BulkInsert(
    THINGS, AddedRow, on_conflict="UPDATE SET size = coalesce(things.size, 0) + excluded.size"
)


async def test_totals_are_added_up_and_written_last(storage: Storage) -> None:
    async def count(tx: Tx) -> int:
        tx.add(ADD_SIZES, [AddedRow("a", None, None, 2), AddedRow("b", None, None, 1)])
        tx.add(ADD_SIZES, [AddedRow("a", None, None, 3), AddedRow("b", None, None, -1)])
        return len(await tx.all(IDS))

    async def count_elsewhere(tx: Tx) -> None:
        here, tx.ns = tx.ns, NS + 1
        tx.add(ADD_SIZES, [AddedRow("c", None, None, 4)])
        tx.ns = here
        tx.add(ADD_SIZES, [AddedRow("a", None, None, 1)])

    assert await storage.run(count, ns=NS) == 0
    await storage.run(count_elsewhere, ns=NS)
    sizes = [dict(await storage.read(_sizes, ns=ns)) for ns in (NS, NS + 1)]
    assert sizes == [{"a": 6}, {"c": 4}]


class NotedRow(NamedTuple):
    """A thing that grows, with the note of its largest part."""

    id: str
    size: int
    note: str
    body: None = None


GROW = BulkInsert(THINGS, NotedRow, on_conflict="UPDATE SET size = things.size + excluded.size", folds=False)
GROW.sets_seldom(
    "note = CASE WHEN excluded.note > things.note THEN excluded.note ELSE things.note END",
    when="excluded.note > things.note",
)
NOTES = statement("SELECT id, size, note FROM things WHERE ns = :ns ORDER BY id")


async def test_what_is_seldom_set_is_set_only_where_it_changes(storage: Storage) -> None:
    async def grow(tx: Tx, *rows: NotedRow) -> list[int]:
        return await tx.write(GROW.of(rows))

    async def notes(tx: Tx) -> list[Any]:
        return [tuple(row) for row in await tx.all(NOTES)]

    assert await storage.run(grow, NotedRow("a", 1, "m"), NotedRow("b", 1, "m"), ns=NS) == [2]
    larger = (NotedRow("a", 2, "z"), NotedRow("b", 2, "b"), NotedRow("c", 2, "c"))
    assert await storage.run(grow, *larger, ns=NS) == [3]
    assert await storage.run(grow, NotedRow("a", 5, "a"), ns=NS + 1) == [1]
    assert await storage.read(notes, ns=NS) == [("a", 3, "z"), ("b", 3, "m"), ("c", 2, "c")]
    assert await storage.read(notes, ns=NS + 1) == [("a", 5, "a")]


async def test_a_write_that_should_write_all_rows_says_where_it_did_not(storage: Storage) -> None:
    async def resize(tx: Tx, was: int) -> list[str]:
        told: list[str] = []

        async def missed() -> None:
            told.append("missed")
            await tx.execute(RESIZE, ids=["a"], size=100)

        await tx.expect((RESIZE_EACH, [(was + 1, NS, "a", was)]), missed)
        await tx.write((KEEP_THE_FIRST, [(NS, f"of {was}", 1, None, None)]))
        return told

    await storage.run(put, "a", 1, ns=NS)
    assert await storage.run(resize, 1, ns=NS) == []
    assert await storage.run(resize, 5, ns=NS) == ["missed"]
    assert dict(await storage.read(_sizes, ns=NS)) == {"a": 100, "of 1": 1, "of 5": 1}


async def test_writes_that_were_deferred_keep_their_namespace(storage: Storage) -> None:
    async def grow(tx: Tx) -> None:
        here = tx.ns
        for ns in (NS, NS + 1):
            tx.ns = ns
            await tx.defer(ADD_SIZES.of([AddedRow("a", None, None, ns)]))
        tx.ns = here

    await storage.run(grow)
    sizes = [dict(await storage.read(_sizes, ns=ns)) for ns in (NS, NS + 1)]
    assert sizes == [{"a": NS}, {"a": NS + 1}]


# --- operations -------------------------------------------------------------------------------------------


async def test_every_caller_gets_the_result_of_its_own_call(storage: Storage) -> None:
    names = [f"n{number:03}" for number in range(300)]
    assert await asyncio.gather(*(storage.run(put, name, ns=NS) for name in names)) == names
    assert await asyncio.gather(*(storage.read(get_ids, ns=NS) for _ in range(20))) == [names] * 20


async def test_an_error_rolls_back_its_own_operation_alone(storage: Storage) -> None:
    calls: list[Any] = []
    for number in range(30):
        failing = number % 3 == 1
        operation, args = (put_and_fail, (Refused(str(number)),)) if failing else (put, ())
        calls.append(storage.run(operation, f"n{number:02}", *args, ns=NS))
    results = await asyncio.gather(*calls, return_exceptions=True)
    failed = [str(result) for result in results if isinstance(result, Refused)]
    assert failed == [str(number) for number in range(30) if number % 3 == 1]
    assert await stored(storage) == [f"n{number:02}" for number in range(30) if number % 3 != 1]


@pytest.mark.parametrize("lane", ["run", "read", "background"])
async def test_an_operation_cannot_open_another(storage: Storage, lane: str) -> None:
    async def nest(tx: Tx) -> None:
        await put(tx, "outer")
        await getattr(storage, lane)(get_ids, ns=NS)

    with pytest.raises(NestedOperation):
        await soon(storage.run(nest, ns=NS))
    assert await stored(storage) == []


async def test_a_read_cannot_open_another(storage: Storage) -> None:
    async def nest(tx: Tx) -> None:
        await storage.run(put, "inner", ns=NS)

    with pytest.raises(NestedOperation):
        await soon(storage.read(nest, ns=NS))


async def test_an_operation_cannot_join_a_batch(storage: Storage) -> None:
    merger = Merger()

    async def nest(tx: Tx) -> None:
        merger.call("key", _answer, "item")

    with pytest.raises(NestedOperation):
        await soon(storage.run(nest, ns=NS))


async def _answer(items: Any) -> Any:
    return items


async def _yield_once(tx: Tx) -> None:
    await asyncio.sleep(0)


async def _sleep(tx: Tx) -> None:
    await asyncio.sleep(60)


async def _await_a_future(tx: Tx) -> None:
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("suspend", [_yield_once, _sleep, _await_a_future])
async def test_an_operation_that_awaits_anything_else_fails_loudly(storage: Storage, suspend: Any) -> None:
    async def write(tx: Tx) -> None:
        await put(tx, "a")
        await suspend(tx)

    with pytest.raises(SuspendedOperation):
        await soon(storage.run(write, ns=NS))
    await storage.run(put, "b", ns=NS)
    assert await stored(storage) == ["b"]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), Refused("no")])
async def test_whatever_an_operation_raises_reaches_its_caller_alone(
    storage: Storage, error: BaseException
) -> None:
    neighbour = asyncio.ensure_future(storage.run(put, "neighbour", ns=NS))
    with pytest.raises(type(error)):
        await storage.run(put_and_fail, "a", error, ns=NS)
    await soon(neighbour)
    await soon(storage.run(put, "later", ns=NS))
    assert await stored(storage) == ["later", "neighbour"]


@pytest.mark.parametrize("error", [SystemExit(3), Refused("no")])
async def test_whatever_a_read_raises_reaches_its_caller_alone(
    storage: Storage, error: BaseException
) -> None:
    async def fail(tx: Tx) -> None:
        await tx.all(IDS)
        raise error

    for _ in range(5):
        with pytest.raises(type(error)):
            await storage.read(fail, ns=NS)
    assert await stored(storage) == []


async def test_a_read_changes_nothing(storage: Storage) -> None:
    with pytest.raises(ReadOnlyDatabase):
        await soon(storage.read(put, "a", ns=NS))
    assert await stored(storage) == []


async def test_a_read_sees_one_snapshot(storage: Storage, gate: Gate) -> None:
    """In memory a read runs by itself; on other engines it does not see concurrent commits."""
    await storage.run(put, "before", ns=NS)
    writing = asyncio.ensure_future(storage.run(gate.pass_through, "after", ns=NS))
    await gate.entered()
    reading = asyncio.ensure_future(stored(storage))
    if storage.engine == "postgres" or not getattr(storage, "_engine").in_memory:  # noqa: B009
        assert await soon(reading) == ["before"]
    await gate.open()
    await soon(writing)
    await soon(reading)
    assert await stored(storage) == ["after", "before"]


async def test_what_was_acknowledged_is_read(storage: Storage) -> None:
    for number in range(25):
        await storage.run(put, f"n{number:02}", ns=NS)
        assert len(await stored(storage)) == number + 1


async def test_the_background_lane_does_its_work_too(storage: Storage) -> None:
    assert await storage.background(put, "a", ns=NS) == "a"
    with pytest.raises(Refused):
        await storage.background(put_and_fail, "b", Refused(), ns=NS)
    assert await stored(storage) == ["a"]


# --- hints ------------------------------------------------------------------------------------------------


async def test_hints_are_published_once_after_the_commit(storage: Storage, gate: Gate) -> None:
    published = record_hints(storage)
    watch = storage.signals.watch("things", ["held", "other"])
    call = asyncio.ensure_future(storage.run(gate.pass_through, "held", ns=NS))
    await gate.entered()
    assert published == []
    await gate.open()
    assert await soon(watch.changed()) == {"held"}
    assert await stored(storage) == ["held"]
    assert await soon(call) == "held"
    assert published == [[("things", "held")]]
    watch.close()


async def test_equal_hints_are_published_once(storage: Storage) -> None:
    published = record_hints(storage)
    await storage.run(put_and_hint, "a", ns=NS)
    assert published == [[("things", "a")]]


async def test_what_is_rolled_back_hints_at_nothing(storage: Storage) -> None:
    published = record_hints(storage)
    with pytest.raises(Refused):
        await storage.run(put_and_fail, "a", Refused(), ns=NS)
    assert published == []


async def test_hints_are_published_though_the_caller_has_gone(storage: Storage, gate: Gate) -> None:
    watch = storage.signals.watch("things", ["held"])
    call = asyncio.ensure_future(storage.run(gate.pass_through, "held", ns=NS))
    await gate.entered()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await gate.open()
    assert await soon(watch.changed()) == {"held"}
    watch.close()
