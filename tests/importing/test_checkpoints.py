"""Checkpoints of LangGraph's own savers, made by the real packages, in a perdure database."""

from __future__ import annotations

import operator
import pickle
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict
from uuid import UUID

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

from perdure.checkpoints.records import CheckpointQuery
from perdure.checkpoints.service import StoredCheckpoints
from perdure.importing.checkpoints import import_checkpoints
from perdure.importing.langgraph_postgres import check_tables, import_threads, read_postgres_checkpoints
from perdure.importing.langgraph_sqlite import read_sqlite_checkpoints
from perdure.importing.records import ImportReport
from perdure.integrations.langgraph import PerdureSaver
from perdure.kernel.errors import InvalidInput
from perdure.kernel.storage.postgres_foreign import foreign_postgres
from perdure.runtime.stores import open_store

FIRST: Any = {"configurable": {"thread_id": "t-1"}}
SECOND: Any = {"configurable": {"thread_id": "t-2"}}


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    marks: Annotated[list[str], operator.add]
    extra: Any


def answer(state: State) -> dict[str, Any]:
    extra = {"id": UUID(int=7), "tags": {"a"}, "none": None, "raw": b"\0\1"}
    return {"messages": [AIMessage("In Italy.", id="a-1")], "marks": ["answered"], "extra": extra}


def check(state: State) -> dict[str, Any]:
    return {"marks": [str(interrupt("Is it right?"))]}


builder = StateGraph(State)
builder.add_node("answer", answer)
builder.add_node("check", check)
builder.add_edge(START, "answer")
builder.add_edge("answer", "check")
builder.add_edge("check", END)
ASKED: Any = {"messages": [HumanMessage("Where is Rome?", id="h-1")], "marks": [], "extra": None}


def run_sqlite(file: Path) -> Any:
    """Run the graph on a database of the real saver; give what it shows of its threads."""
    with SqliteSaver.from_conn_string(str(file)) as saver:
        graph = builder.compile(checkpointer=saver)
        graph.invoke(ASKED, FIRST)
        graph.invoke(ASKED, SECOND)
        graph.invoke(Command(resume="yes"), SECOND)
        return [[shown(each) for each in graph.get_state_history(config)] for config in (FIRST, SECOND)]


async def run_postgres(url: str) -> Any:
    async with AsyncPostgresSaver.from_conn_string(url) as saver:
        await saver.setup()
        graph = builder.compile(checkpointer=saver)
        await graph.ainvoke(ASKED, FIRST)
        await graph.ainvoke(ASKED, SECOND)
        await graph.ainvoke(Command(resume="yes"), SECOND)
        return [
            [shown(each) async for each in graph.aget_state_history(config)] for config in (FIRST, SECOND)
        ]


def shown(snapshot: Any) -> Any:
    tasks = [(task.name, [each.value for each in task.interrupts]) for task in snapshot.tasks]
    return (snapshot.config["configurable"]["checkpoint_id"], snapshot.values, snapshot.next, tasks)


@pytest.fixture
async def storage(engine_url: str) -> AsyncIterator[Any]:
    async with open_store(engine_url) as store:
        yield store.storage


async def check_import(storage: Any, read: Callable[[], Any], expected: Any) -> None:
    graphs = StoredCheckpoints(storage)

    async def imported(*, dry_run: bool = False) -> tuple[int, int, int]:
        report = ImportReport(source="test", dry_run=dry_run)
        await import_checkpoints(graphs, read(), report)
        assert report.refusals == []
        count = report.count("checkpoints")
        return count.found, count.added, count.present

    total = sum(map(len, expected))
    assert await imported(dry_run=True) == (total, total, 0)
    assert await graphs.find(CheckpointQuery(thread_id="t-1")) == []
    assert await imported() == (total, total, 0)
    saver = PerdureSaver(storage)
    graph = builder.compile(checkpointer=saver)
    for config, history in zip((FIRST, SECOND), expected, strict=True):
        assert [shown(each) async for each in graph.aget_state_history(config)] == history
    # The thread that waits goes on, and what it does is not undone by another import.
    end = await graph.ainvoke(Command(resume="yes"), FIRST)
    assert end["marks"] == ["answered", "yes"]
    assert await imported() == (total, 0, total)
    assert (await graph.aget_state(FIRST)).values["marks"] == ["answered", "yes"]


async def test_threads_of_the_sqlite_saver_go_on(storage: Any, tmp_path: Path) -> None:
    file = tmp_path / "checkpoints.db"
    expected = run_sqlite(file)
    await check_import(storage, lambda: read_sqlite_checkpoints(file), expected)


async def test_threads_of_the_postgres_saver_go_on(storage: Any, other_database_url: str) -> None:
    expected = await run_postgres(other_database_url)
    async with foreign_postgres(other_database_url) as fetch:
        await check_tables(fetch, "checkpoints", "checkpoint_blobs", "checkpoint_writes")
        await check_import(storage, lambda: read_postgres_checkpoints(fetch), expected)


class Harmful:
    """Leaves a file where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


async def test_nothing_is_unpickled_and_what_cannot_be_read_is_named(storage: Any, tmp_path: Path) -> None:
    file, marker = tmp_path / "checkpoints.db", tmp_path / "marker"
    run_sqlite(file)
    body = pickle.dumps(Harmful(marker))
    connection = sqlite3.connect(file)
    statement = "INSERT INTO checkpoints VALUES (?, '', ?, NULL, ?, ?, '{}')"
    bad = [("t-8", "c-1", "pickle", body), ("t-8", "c-2", "msgpack", b"\xc1"), ("t-8", "c-3", "json", b"[]")]
    connection.executemany(statement, bad)
    value = "INSERT INTO writes VALUES ('t-2', '', ?, 'task', '', 99, 'channel', 'pickle', ?)"
    ((checkpoint_id,),) = connection.execute(
        "SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = 't-2'"
    )
    connection.execute(value, (checkpoint_id, body))
    connection.commit()
    connection.close()
    report, graphs = ImportReport(source="test"), StoredCheckpoints(storage)
    await import_checkpoints(graphs, read_sqlite_checkpoints(file), report)
    assert [each.id for each in report.refusals] == ["c-1", "c-2", "c-3"]
    (found,) = await graphs.find(
        CheckpointQuery(thread_id="t-2", checkpoint_ns="", checkpoint_id=checkpoint_id)
    )
    assert [write.value for write in found.writes if write.channel == "channel"] == [("pickle", body)]
    assert not marker.exists()


async def test_other_files_are_refused(tmp_path: Path, other_database_url: str) -> None:
    text, empty = tmp_path / "text.db", tmp_path / "empty.db"
    text.write_text("no database at all, but a text that is long enough to be looked at " * 40)
    sqlite3.connect(empty).execute("CREATE TABLE other (a)")
    for file in (text, empty):
        with pytest.raises(InvalidInput):
            _ = [each async for each in read_sqlite_checkpoints(file)]
    async with foreign_postgres(other_database_url) as fetch:
        with pytest.raises(InvalidInput, match="no table"):
            await check_tables(fetch, "checkpoints", "checkpoint_blobs", "checkpoint_writes")


SERVER_TABLES = (
    "CREATE TABLE thread (thread_id uuid PRIMARY KEY, metadata jsonb, config jsonb)",
    "CREATE TABLE run (run_id uuid PRIMARY KEY)",
    "INSERT INTO thread VALUES ('00000000-0000-0000-0000-000000000007', '{\"owner\": \"ann\"}', '{}')",
    "INSERT INTO run VALUES ('00000000-0000-0000-0000-000000000009')",
)


async def test_threads_are_imported_with_their_metadata(engine_url: str, other_database_url: str) -> None:
    """With tables as the source document names them; no dump of a LangGraph server was to be had."""
    import asyncpg

    from perdure import Perdure

    connection = await asyncpg.connect(other_database_url)
    for statement in SERVER_TABLES:
        await connection.execute(statement)
    await connection.close()
    async with Perdure(engine_url) as perdure, foreign_postgres(other_database_url) as fetch:
        for added in (1, 0):
            report = ImportReport(source="test")
            await import_threads(fetch, perdure.threads, report)
            count = report.count("threads")
            assert (count.found, count.added, count.present) == (1, added, 1 - added)
            assert report.count("runs").found == 1
        thread = await perdure.threads.get_thread("00000000-0000-0000-0000-000000000007")
        assert thread.metadata["owner"] == "ann"
