"""`perdure import` from the command line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import asyncpg
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from tests.cli.command import Server, run_here

from perdure import Agents, Perdure

from .test_checkpoints import ASKED, SERVER_TABLES, builder, run_postgres, run_sqlite


def test_an_import_is_counted_and_repeated(tmp_path: Path) -> None:
    source, database = tmp_path / "checkpoints.db", ("--database", f"sqlite:///{tmp_path}/own.db")
    total = sum(map(len, run_sqlite(source)))
    command = ("import", "langgraph-sqlite", str(source))
    dry = run_here(tmp_path, *command, "--dry-run", *database)
    assert dry.returncode == 0, dry.stderr
    assert "Nothing was added: this was a dry run." in dry.stdout
    for added, present in ((total, 0), (0, total)):
        ended = run_here(tmp_path, *command, "--json", *database)
        assert ended.returncode == 0, ended.stderr
        report = json.loads(ended.stdout)
        (count,) = [each for each in report["counts"] if each["kind"] == "checkpoints"]
        assert (count["found"], count["added"], count["present"]) == (total, added, present)
    wrong = run_here(tmp_path, "import", "last-light", str(source), *database)
    assert wrong.returncode != 0
    assert "is it a Last Light database?" in wrong.stderr


def test_an_import_past_a_server_says_what_to_do(tmp_path: Path) -> None:
    source = tmp_path / "checkpoints.db"
    run_sqlite(source)
    with Server(tmp_path, "serve") as server:
        ended = server.run("import", "langgraph-sqlite", str(source))
    assert ended.returncode != 0
    assert "--database" in ended.stderr


def import_three_times(folder: Path, *command: str) -> list[dict[str, tuple[int, int, int, int]]]:
    """Import by the command: a dry run, a real one, and one more; give the counts of each."""
    found = []
    for options in (["--dry-run"], [], []):
        database = ("--database", f"sqlite:///{folder}/own.db", "--json")
        ended = run_here(folder, "import", *command, *options, *database)
        assert ended.returncode == 0, ended.stderr
        counts = json.loads(ended.stdout)["counts"]
        figures = ("found", "added", "present", "refused")
        found.append({each["kind"]: tuple(each[name] for name in figures) for each in counts})
    return found


def test_checkpoints_of_postgres_are_imported_by_the_command(tmp_path: Path, other_database_url: str) -> None:
    total = sum(map(len, asyncio.run(run_postgres(other_database_url))))
    dry, real, again = import_three_times(tmp_path, "langgraph-postgres", other_database_url)
    assert dry == real
    assert real["checkpoints"] == (total, total, 0, 0)
    assert again == {"checkpoints": (total, 0, total, 0)}


def test_a_memory_service_is_imported_by_the_command(tmp_path: Path) -> None:
    """From a server that speaks the protocol of agent-memory."""
    source = tmp_path / "source"
    source.mkdir()
    with Server(source, "serve", "--grpc-port", "0") as server:
        for number in range(3):
            server.json("memory", "ingest", f"event {number}", "--session", "s")
        address = f"127.0.0.1:{server.facts['grpc_port']}"
        dry, real, again = import_three_times(tmp_path, "agent-memory", address)
    assert dry == real == {"events": (3, 3, 0, 0)}
    assert again == {"events": (3, 0, 3, 0)}


async def test_threads_of_a_langgraph_server_go_on(tmp_path: Path, other_database_url: str) -> None:
    """With tables as the source document names them, and checkpoints of the real saver."""
    await fill_server(other_database_url)
    command = ("langgraph-server", other_database_url)
    dry, real, again = await asyncio.to_thread(import_three_times, tmp_path, *command)
    assert dry == real
    assert (real["threads"], real["runs"], real["checkpoints"]) == ((1, 1, 0, 0), (1, 0, 0, 0), (3, 3, 0, 0))
    assert (again["threads"], again["checkpoints"]) == ((1, 0, 1, 0), (3, 0, 3, 0))
    database = ("--database", f"sqlite:///{tmp_path}/own.db")
    shown = await asyncio.to_thread(run_here, tmp_path, "thread", "show", THREAD, *database)
    for words in ("interrupted", "Is it right?", "assistant: In Italy."):
        assert words in shown.stdout
    agents = Agents()
    agents.register("asker", builder.compile())
    async with Perdure(f"sqlite:///{tmp_path}/own.db", agents=agents) as perdure:
        history = await perdure.threads.history(THREAD)
        assert [(state.next, len(state.interrupts)) for state in history] == [
            (["check"], 1),
            (["answer"], 0),
            ([], 0),
        ]
        end = await perdure.run("asker", thread_id=THREAD, command={"resume": "yes"})
        assert end.values["marks"] == ["answered", "yes"]
        assert len(end.values["messages"]) == 2
    repeated = await asyncio.to_thread(import_three_times, tmp_path, *command)
    assert [each["checkpoints"] for each in repeated] == [(3, 0, 3, 0)] * 3
    async with Perdure(f"sqlite:///{tmp_path}/own.db", agents=agents) as perdure:
        state = await perdure.threads.get_state(THREAD)
        assert state is not None
        assert state.next == []


THREAD = "00000000-0000-0000-0000-000000000007"


async def fill_server(url: str) -> None:
    """Make the tables of a LangGraph server, with a thread that waits for an answer."""
    connection = await asyncpg.connect(url)
    for statement in SERVER_TABLES:
        await connection.execute(statement)
    await connection.close()
    metadata = {"graph_id": "asker", "run_id": "00000000-0000-0000-0000-000000000009"}
    async with AsyncPostgresSaver.from_conn_string(url) as saver:
        await saver.setup()
        graph = builder.compile(checkpointer=saver)
        await graph.ainvoke(ASKED, {"configurable": {"thread_id": THREAD}, "metadata": metadata})
