"""Stored checkpoints are read back unchanged, and are removed when nothing needs them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.checkpoints.support import changes, checkpoint, grown, shown, typed, whole, write
from tests.kernel.support import Database

from perdure.access.service import Access
from perdure.access.tables import TABLES as ACCESS_TABLES
from perdure.checkpoints import operations
from perdure.checkpoints.records import CheckpointQuery, GraphChanges, GraphDeltaQuery, Piece, SpliceRange
from perdure.checkpoints.rows import encode_changes
from perdure.checkpoints.service import StoredCheckpoints
from perdure.checkpoints.tables import TABLES
from perdure.checkpoints.view import view, view_value
from perdure.kernel.errors import Conflict, InvalidInput
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Storage, Tx
from perdure.service.callers import Caller

ALL = CheckpointQuery(thread_id="t")
NAMED = ("thread_id", "checkpoint_ns", "checkpoint_id", "before")
COUNTS = {
    name: statement("SELECT count(*) FROM graph_" + name)
    for name in ("checkpoints", "pieces", "items", "writes", "threads")
}


async def _counts(tx: Tx) -> dict[str, int]:
    found = {}
    for name, sql in COUNTS.items():
        row = await tx.one(sql)
        found[name] = int(row[0]) if row else 0
    return found


async def counts(graphs: StoredCheckpoints) -> dict[str, int]:
    found = await graphs.storage.read(_counts)
    # A thread has a row as long as it has any other rows.
    assert bool(found.pop("threads")) == any(found.values())
    return found


async def test_a_checkpoint_comes_back_as_it_was(graphs: StoredCheckpoints) -> None:
    put = checkpoint(
        1,
        whole("a", "1.x", {"ключ": "значение \u0000 \U0001f600"}),
        grown("2", None, 0, "one", "two"),
        parent=0,
        run_id="r",
        metadata={"source": "loop", "step": -1, "weird \u0000": ["\u2028", None, 1.5], "parents": {"": "c"}},
        versions={"a": "1.x", "list": 2, "empty": 3.5, "none": None},
    )
    await graphs.put(changes(put))
    (found,) = await graphs.find(ALL)
    assert (found.parent_id, found.run_id, found.checkpoint) == ("c0000", "r", put.checkpoint)
    assert (found.metadata, found.versions) == (put.metadata, put.versions)
    assert shown([found]) == {"c0001": {"a": {"ключ": "значение \u0000 \U0001f600"}, "list": ["one", "two"]}}
    assert found.writes == []


async def test_a_list_grows_by_what_is_new(graphs: StoredCheckpoints) -> None:
    await graphs.put(changes(checkpoint(0, grown("0", None, 0, "item 0"))))
    for number in range(1, 40):
        piece = grown(str(number), str(number - 1), number, f"item {number}")
        await graphs.put(changes(checkpoint(number, piece, parent=number - 1)))
    assert await counts(graphs) == {"checkpoints": 40, "pieces": 40, "items": 40, "writes": 0}
    found = shown(await graphs.find(ALL))
    assert all(found[f"c{n:04}"]["list"] == [f"item {m}" for m in range(n + 1)] for n in range(40))
    (last,) = await graphs.find(CheckpointQuery(thread_id="t", checkpoint_ns="", limit=1))
    assert last.values[0].spans == 1


async def test_forks_and_edits_share_what_they_have_in_common(graphs: StoredCheckpoints) -> None:
    await graphs.put(changes(checkpoint(1, grown("1", None, 0, "a", "b", "c"))))
    fork = grown("2", "1", 3, "left")
    other = grown("3", "1", 2, "right")
    middle = Piece(
        channel="list",
        version="4",
        value=typed(["new", "last"]),
        spans=[
            SpliceRange(False, 1, 2),
            SpliceRange(True, 0, 1),
            SpliceRange(False, 2, 3),
            SpliceRange(True, 1, 2),
        ],
        count=2,
        base="3",
    )
    emptied = Piece(channel="list", version="5", spans=[], base="4")
    # All in one call, as when writes are delayed.
    puts = [checkpoint(n, piece, parent=1) for n, piece in enumerate([fork, other, middle, emptied], 2)]
    await graphs.put(changes(*puts))
    found = {name: each["list"] for name, each in shown(await graphs.find(ALL)).items()}
    assert found == {
        "c0001": ["a", "b", "c"],
        "c0002": ["a", "b", "c", "left"],
        "c0003": ["a", "b", "right"],
        "c0004": ["b", "new", "right", "last"],
        "c0005": [],
    }
    assert (await counts(graphs))["items"] == 4


async def test_a_checkpoint_that_is_kept_again_is_replaced(graphs: StoredCheckpoints) -> None:
    await graphs.put(changes(checkpoint(1, whole("a", "1", "old"), metadata={"n": 1})))
    again = checkpoint(1, whole("a", "1", "new"), metadata={"n": 2})
    await graphs.put(changes(again, again))
    (found,) = await graphs.find(ALL)
    assert (shown([found]), found.metadata) == ({"c0001": {"a": "new"}}, {"n": 2})


async def test_writes_are_in_the_order_in_which_they_are_applied(graphs: StoredCheckpoints) -> None:
    first = [
        write(1, "t2", 0, "b"),
        write(1, "t1", 1, "d", task_path="z"),
        write(1, "t1", 0, "c", task_path="z"),
    ]
    await graphs.put(changes(checkpoint(1), writes=first))
    again = [write(1, "t2", 0, "ignored"), write(1, "t2", -1, "an error"), write(1, "t2", -1, "another")]
    await graphs.put(GraphChanges(writes=again))
    (found,) = await graphs.find(ALL)
    assert [view(each.value) for each in found.writes] == ["another", "b", "c", "d"]


async def test_a_listing_is_filtered_limited_and_ends_before_a_checkpoint(graphs: StoredCheckpoints) -> None:
    for number in range(250):
        await graphs.put(changes(checkpoint(number, metadata={"step": number, "odd": bool(number % 2)})))
    await graphs.put(changes(checkpoint(500, checkpoint_ns="sub:1"), checkpoint(501, thread_id="other")))

    async def ids(**query: Any) -> list[str]:
        return [
            each.checkpoint_id for each in await graphs.find(CheckpointQuery(**{"thread_id": "t", **query}))
        ]

    assert await ids(limit=2) == ["c0500", "c0249"]
    assert await ids(checkpoint_ns="", limit=2) == ["c0249", "c0248"]
    assert await ids(before="c0002") == ["c0001", "c0000"]
    assert await ids(limit=0) == []
    assert await ids(checkpoint_id="c0007", checkpoint_ns="") == ["c0007"]
    assert await ids(filter={"odd": True}, limit=2) == ["c0249", "c0247"]
    assert await ids(filter={"odd": False, "step": 4}) == ["c0004"]
    assert await ids(filter={"none": None}) == []
    assert len(await ids(filter={"odd": True})) == 125
    assert (await ids(thread_id=None, limit=1)) == ["c0501"]


async def test_a_base_that_is_not_there_changes_nothing(graphs: StoredCheckpoints) -> None:
    good = checkpoint(1, whole("a", "1", 1), thread_id="other")
    bad = checkpoint(2, grown("2", "1", 3, "x"))
    # Merged into one transaction, neither call affects the other.
    answers = await asyncio.gather(
        graphs.put(changes(good)), graphs.put(changes(bad)), return_exceptions=True
    )
    assert answers[0] is None
    assert isinstance(answers[1], Conflict)
    assert await counts(graphs) == {"checkpoints": 1, "pieces": 1, "items": 0, "writes": 0}


BAD: list[dict[str, Any]] = [
    {"thread_id": "with \0"},
    {"thread_id": "x" * 600},
    {"checkpoint_ns": "\ud800"},
    {"checkpoint_id": "x" * 300},
    {"versions": {"a": "with space"}},
    {"versions": {"with \0": 1}},
    {"pieces": [Piece(channel="a", version="1", spans=[SpliceRange(False, 0, 1)])]},
    {"pieces": [Piece(channel="a", version="1", value=typed([1]), spans=[SpliceRange(True, 0, 2)], count=1)]},
    {"metadata": {"a": b"bytes"}},
]


async def test_bad_input_changes_nothing(graphs: StoredCheckpoints) -> None:
    for bad in BAD:
        with pytest.raises(InvalidInput):
            await graphs.put(changes(checkpoint(1, **bad)))
    assert not any((await counts(graphs)).values())


async def test_names_that_nothing_can_have(graphs: StoredCheckpoints) -> None:
    for name in ("with \0", "\ud800", "x" * 2000):
        calls = [
            *(graphs.find(CheckpointQuery(**{field: name})) for field in NAMED),  # type: ignore[arg-type]
            graphs.delete_threads([name]),
            graphs.delete_runs([name]),
            graphs.prune([name]),
            graphs.copy_thread("t", name),
            graphs.copy_thread(name, "t"),
            graphs.delta(GraphDeltaQuery(thread_id=name, channels=["log"])),
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(answer) for answer in answers} == {InvalidInput}


async def test_long_names_are_kept(graphs: StoredCheckpoints) -> None:
    names: dict[str, Any] = {
        "thread_id": "т" * 256,
        "checkpoint_ns": "|".join(f"node{n}:{n:032}" for n in range(24)),
    }
    piece = whole("ч" * 200, "1" * 128, "deep")
    put = checkpoint(1, piece, **names)
    await graphs.put(changes(put, writes=[write(1, "x" * 256, 0, 1, **names)]))
    (found,) = await graphs.find(CheckpointQuery(**names))
    assert (view_value(found.values[0]), len(found.writes)) == ("deep", 1)


async def test_a_large_value(graphs: StoredCheckpoints) -> None:
    value = "x" * 3_000_000
    await graphs.put(changes(checkpoint(1, whole("a", "1", value), grown("1", None, 0, value))))
    assert shown(await graphs.find(ALL)) == {"c0001": {"a": value, "list": [value]}}


# --- removing ---------------------------------------------------------------------------------------------


async def _thread(graphs: StoredCheckpoints, thread_id: str = "t", steps: int = 6) -> None:
    """Store a growing list, and a channel that changes every other step; two steps are one run."""
    versions: dict[str, Any] = {}
    for number in range(steps):
        pieces = [grown(str(number), str(number - 1) if number else None, number, f"item {number}")]
        if number % 2 == 0:
            pieces.append(whole("even", f"e{number}", number))
        versions = {**versions, **{piece.channel: piece.version for piece in pieces}}
        given: dict[str, Any] = {
            "parent": number - 1 if number else None,
            "versions": versions,
            "run_id": f"run {number // 2}",
        }
        put = checkpoint(number, *pieces, thread_id=thread_id, **given)
        await graphs.put(changes(put, writes=[write(number, "task", 0, number, thread_id=thread_id)]))


async def test_removed_runs_leave_what_later_ones_need(graphs: StoredCheckpoints) -> None:
    await _thread(graphs)
    await graphs.delete_runs(["run 1", "unknown"])
    found = shown(await graphs.find(ALL))
    assert sorted(found) == ["c0000", "c0001", "c0004", "c0005"]
    assert found["c0005"] == {"list": [f"item {n}" for n in range(6)], "even": 4}
    assert await counts(graphs) == {"checkpoints": 4, "pieces": 6, "items": 6, "writes": 4}
    await graphs.delete_runs(["run 2"])
    assert await counts(graphs) == {"checkpoints": 2, "pieces": 3, "items": 2, "writes": 2}


async def test_pruned_threads_keep_the_newest_of_each_namespace(graphs: StoredCheckpoints) -> None:
    await _thread(graphs)
    await _thread(graphs, "untouched")
    await graphs.put(
        changes(
            checkpoint(8, whole("a", "1", 1), checkpoint_ns="sub"),
            checkpoint(9, whole("a", "2", 2), checkpoint_ns="sub"),
            # Written by a task whose checkpoint was never stored.
            writes=[write(77, "task", 0, "lost")],
        )
    )
    before = await counts(graphs)
    await graphs.prune(["t", "unknown"])
    found = await graphs.find(ALL)
    assert [each.checkpoint_id for each in found] == ["c0009", "c0005"]
    assert shown(found)["c0005"] == {"list": [f"item {n}" for n in range(6)], "even": 4}
    assert await counts(graphs) == {
        "checkpoints": before["checkpoints"] - 6,
        "pieces": before["pieces"] - 8,
        "items": before["items"],
        "writes": before["writes"] - 6,
    }
    await graphs.prune(["t"], "delete")
    await graphs.delete_threads(["untouched"])
    assert not any((await counts(graphs)).values())


async def test_a_strategy_that_does_not_exist(graphs: StoredCheckpoints) -> None:
    with pytest.raises(InvalidInput, match="keep_latest"):
        await graphs.prune(["t"], "keep_all")  # type: ignore[arg-type]


async def test_a_copy_has_a_life_of_its_own(graphs: StoredCheckpoints) -> None:
    await _thread(graphs)
    await graphs.copy_thread("t", "copy")
    await graphs.copy_thread("nothing", "nobody")
    with pytest.raises(Conflict):
        await graphs.copy_thread("t", "copy")
    await graphs.delete_runs(["run 0", "run 1", "run 2"])
    assert await graphs.find(ALL) == []
    copied = CheckpointQuery(thread_id="copy")
    assert len(await graphs.find(copied)) == 6
    more = checkpoint(6, grown("6", "5", 6, "item 6"), parent=5, thread_id="copy")
    await graphs.put(changes(more))
    assert shown(await graphs.find(copied))["c0006"]["list"] == [f"item {n}" for n in range(7)]


async def test_who_removed_and_copied_is_on_record(graphs: StoredCheckpoints) -> None:
    named = graphs.acting_as(Caller.trusted("somebody", "default"))
    await _thread(named)
    await named.copy_thread("t", "copy")
    await named.delete_runs(["run 1"])
    await named.prune(["copy"])
    await named.delete_threads(["t", "copy"])
    await named.delete_threads([])
    entries = (await Access(graphs.storage).query_audit()).items
    assert Counter(entry.action for entry in entries) == {
        "copy_graph_thread": 1,
        "delete_graph_run": 1,
        "prune_graph_thread": 1,
        "delete_graph_thread": 1,
    }


# --- channels that are stored as changes ------------------------------------------------------------------


async def test_changes_are_collected_up_to_the_nearest_value(graphs: StoredCheckpoints) -> None:
    versions = {"log": 0, "other": 0}
    for number in range(200):
        pieces = [whole("log", f"v{number}", "seed")] if number == 20 else []
        put = checkpoint(number, *pieces, parent=number - 1, versions={**versions, "log": f"v{number}"})
        writes = [write(number, "b", 0, f"b{number}"), write(number, "a", 0, f"a{number}")]
        await graphs.put(changes(put, writes=[*writes, write(number, "a", 1, "elsewhere", channel="x")]))
    query = GraphDeltaQuery(thread_id="t", checkpoint_id="c0150", channels=["log", "other", "x"])
    log, other, elsewhere = await graphs.delta(query)
    assert log.seed is not None
    assert view_value(log.seed) == "seed"
    expected = [f"{task}{number}" for number in range(20, 150) for task in "ab"]
    assert [view(each.value) for each in log.writes] == expected
    assert (other.seed, other.writes) == (None, [])
    assert (elsewhere.seed, len(elsewhere.writes)) == (None, 150)
    (newest,) = await graphs.delta(GraphDeltaQuery(thread_id="t", channels=["log"]))
    assert len(newest.writes) == 2 * (199 - 20)
    (nothing,) = await graphs.delta(GraphDeltaQuery(thread_id="unknown", channels=["log"]))
    assert (nothing.seed, nothing.writes) == (None, [])


# --- cost and concurrency ---------------------------------------------------------------------------------


class _Counting:
    """Transaction that counts its statements."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._tx, name)
        if name in ("one", "all", "execute", "execute_many", "write", "defer", "lock", "existing"):
            self.asked.append(name)
        return found


async def _counted(tx: Tx, put: GraphChanges) -> list[str]:
    counting = _Counting(tx)
    await operations.put(counting, [encode_changes(put)])
    return counting.asked


async def test_a_step_costs_few_statements(graphs: StoredCheckpoints) -> None:
    await _thread(graphs)
    ns = await graphs.ns("write")
    small = changes(checkpoint(6, whole("even", "e6", 6), parent=5), writes=[write(6, "task", 0, 1)])
    assert await graphs.storage.run(_counted, small, ns=ns) == ["all", "defer"]
    long = changes(checkpoint(7, grown("7", "5", 6, "x"), whole("even", "e7", 7), parent=6))
    assert await graphs.storage.run(_counted, long, ns=ns) == ["all", "all", "defer"]


async def test_two_who_build_on_one_version_at_once(database: Database) -> None:
    one = database.open((*ACCESS_TABLES, *TABLES))
    others = [
        StoredCheckpoints(one if database.kind != "postgres" else database.open((*ACCESS_TABLES, *TABLES)))
        for _ in "ab"
    ]
    try:
        await others[0].put(changes(checkpoint(0, grown("0", None, 0, "base"))))
        puts = [
            graphs.put(changes(checkpoint(10 * n + m, grown(f"{n}.{m}", "0", 1, f"{n}.{m}"), parent=0)))
            for m in range(8)
            for n, graphs in enumerate(others, 1)
        ]
        await asyncio.gather(*puts)
        found = shown(await others[0].find(ALL))
        assert all(
            found[f"c{10 * n + m:04}"]["list"] == ["base", f"{n}.{m}"] for n in (1, 2) for m in range(8)
        )
    finally:
        await _close({one, *(each.storage for each in others)})


async def _close(storages: set[Storage]) -> None:
    for each in storages:
        await each.close()
