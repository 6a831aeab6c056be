"""Shared by all client commands: loaded modules, ids, tables, errors and completion."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import ROOT, Server, Terminal, commands, run_here, settings
from typer.core import TyperGroup

from perdure.cli import PANELS
from perdure.cli.examples import EXAMPLES
from perdure.cli.shell.ids import AMONG, KINDS
from perdure.cli.shell.lazy import lazy_group
from perdure.cli.shell.output import make_table
from perdure.jobs.model import new_job
from perdure.jobs.operations import enqueue_jobs
from perdure.kernel.config import Settings
from perdure.kernel.storage.port import Tx
from perdure.runtime.services import Services

UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SERVER_PARTS = ["aiohttp", "asyncpg", "apsw", "grpc", "langgraph", "mcp", "opentelemetry", "pydantic"]
SERVER_PARTS += ["redis", "starlette", "uvicorn", "yaml"]
SERVER_PARTS += [f"perdure.{part}" for part in ("server", "runtime.services", "worker", "langgraph")]
"""Modules that a client command must not load."""
MOST_MODULES = 600
"""With this many modules a command takes about 0.25 s of CPU on a quiet machine, below its limit of 0.4 s;
`./dev bench --only command` measures the time itself."""
SUMMARY = "{name: summary, phases: [{name: write, prompt: Write it.}]}"
LOADED = "import sys; import perdure.cli; sys.argv = ['perdure', *sys.argv[1:]]; " + (
    "import atexit; atexit.register(lambda: print('\\n'.join(sys.modules), file=sys.stderr)); "
    "perdure.cli.main()"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    agents = f"{ROOT / 'examples' / 'agents.py'}:agents"
    folder = tmp_path_factory.mktemp("server")
    (folder / "workflows").mkdir()
    (folder / "workflows" / "summary.yaml").write_text(SUMMARY)
    with Server(folder, "serve", "--agents", agents) as server:
        server.run("thread", "create", "trip-to-rome")
        server.run("thread", "create", "trip-to-oslo")
        for name in ("Ann", "Bo"):
            server.run("run", "create", "greet", json.dumps({"name": name}), "--wait")
        server.run("run", "create", "greet", "{}", "--wait")
        server.run("cron", "create", "greet", "0 9 * * *", "{}", "--name", "nightly")
        server.run("cron", "create", "greet", "*/5 * * * *", "{}", "--paused")
        server.run("rollout", "enqueue", '{"question": 1}')
        yield server


@pytest.mark.parametrize(
    "command",
    [
        "--version",
        "--help",
        "run list",
        "thread list",
        "cron list",
        "worker list",
        "rollout list",
        "span list last",
        "resources list",
        "workflow list",
        "approval list",
        "find last",
        "why nightly",
    ],
)
def test_a_client_command_loads_no_server(server: Server, command: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LOADED, *command.split()],
        cwd=server.folder,
        env=settings(server.folder, {"PERDURE_URL": server.url}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    loaded = ended.stderr.split()
    assert [part for part in SERVER_PARTS if part in loaded] == []
    assert len(loaded) < MOST_MODULES


def test_one_command_of_a_group_builds_no_other() -> None:
    group = lazy_group(PANELS)(name="perdure").commands["run"]
    assert isinstance(group, TyperGroup)
    built = vars(group.commands)["_made"]
    assert built == {}
    assert group.commands["list"].name == "list"
    assert list(built) == ["list"]


def test_the_help_names_every_command(tmp_path: Path) -> None:
    ended = run_here(tmp_path, "--help")
    named = {name for panel in PANELS.values() for name in panel}
    assert {name for name in named if re.search(rf"^│ {name} ", ended.stdout, re.M)} == named
    assert set(commands().commands) == named


def test_the_version_is_an_option(tmp_path: Path) -> None:
    assert re.fullmatch(r"perdure \d+\.\d+\S*\n", run_here(tmp_path, "--version").stdout)


def test_the_beginning_of_an_id_and_last_are_enough(server: Server) -> None:
    runs = server.json("run", "list")["items"]
    assert server.json("run", "show", "last")["run"]["run_id"] == runs[0]["run_id"]
    assert server.json("run", "show", runs[1]["run_id"][:-2])["run"]["run_id"] == runs[1]["run_id"]
    assert server.json("thread", "show", "trip-to-r")["thread"]["thread_id"] == "trip-to-rome"
    assert server.json("cron", "show", "night")["name"] == "nightly"
    server.json("rollout", "enqueue", '{"question": 2}')
    rollout = server.json("rollout", "show", "last")["rollout"]
    assert rollout["input"] == {"question": 2}
    # `last` skips objects that the server and its workers create by themselves.
    assert server.json("why", "last")["id"] == rollout["rollout_id"]
    assert server.json("why", "trip-to-o")["id"] == "trip-to-oslo"
    found = server.json("find", "trip-to-")["items"]
    assert [each["id"] for each in found] == ["trip-to-oslo", "trip-to-rome"]


def test_what_is_ambiguous_names_the_candidates(server: Server) -> None:
    ended = server.run("thread", "show", "trip-to-")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert (
        "'trip-to-' is the beginning of several ids: thread trip-to-oslo, thread trip-to-rome" in ended.stderr
    )
    assert server.run("thread", "show", "nowhere").returncode == 4
    assert server.run("find", "nowhere").returncode == 4
    assert server.run("approval", "show", "last").returncode == 4


def test_with_yes_only_whole_ids_are_taken(server: Server) -> None:
    server.run("thread", "create", "kept-thread")
    assert server.run("thread", "delete", "kept-threa", "--yes").returncode == 4
    assert server.run("thread", "delete", "kept-thread", "--yes").returncode == 0


def test_a_run_is_retried_with_its_input(server: Server) -> None:
    old = next(each for each in server.json("run", "list")["items"] if each["status"] == "success")
    ended = server.json("run", "retry", old["run_id"], "--wait")
    assert ended["run"]["kwargs"]["input"] == old["kwargs"]["input"]
    assert ended["run"]["metadata"]["retry_of"] == old["run_id"]
    assert (ended["run"]["thread_id"], ended["run"]["status"]) == (old["thread_id"], "success")


def test_runs_are_listed_since(server: Server) -> None:
    assert server.json("run", "list", "--since", "1h")["items"]
    assert "No runs match." in server.run("run", "list", "--since", "0s").stdout


@pytest.mark.parametrize("command", ["run list", "thread list", "cron list", "find 0", "assistant list"])
def test_ids_are_whole_at_80_columns(server: Server, command: str) -> None:
    terminal = Terminal(
        server.folder, *command.split(), more={"PERDURE_URL": server.url, "NO_COLOR": "1"}, columns=80
    )
    assert terminal.end() == 0
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in terminal.output.splitlines()]
    assert all(len(line) <= 80 for line in lines), lines
    shown = {found for line in lines for found in UUID.findall(line)}
    known = set(UUID.findall(server.run(*command.split(), "--json").stdout))
    assert shown
    assert shown <= known


def test_a_table_gives_way_around_its_ids() -> None:
    from rich.console import Console

    rows = [("0192f0a1-7e5c-7b3a-9c1d-2e4f60718292", "a" * 50, None, "b" * 50)]
    for width in (40, 60, 80, 200):
        console = Console(width=width, color_system=None)
        with console.capture() as captured:
            console.print(make_table(("run_id", "first", "empty", "second"), rows, width))
        lines = captured.get().splitlines()
        assert lines[1].startswith(rows[0][0]), width
        assert max(map(len, lines)) <= width
    assert "empty" not in lines[0] or width == 200


async def test_the_last_rollout_is_no_job_of_the_server(tmp_path: Path) -> None:
    services = Services.open(Settings(database_url=f"sqlite:///{tmp_path}/x.db"))
    try:
        rollout = await services.store.enqueue_rollout("asked for")

        async def enqueue(tx: Tx) -> None:
            await enqueue_jobs(tx, [new_job("retention")])

        await services.storage.run(enqueue, ns=await services.sessions.ns("write"))
    finally:
        await services.close()
    command = ("rollout", "show", "last", "--database", "sqlite:///x.db", "--json")
    shown = await asyncio.to_thread(run_here, tmp_path, *command)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["rollout"]["rollout_id"] == rollout.rollout_id


def test_times_and_schedules_are_whole_or_not_there() -> None:
    from rich.console import Console

    columns = ("cron", "schedule", "next", "last", "runs", "last error")
    rows = [("nightly-report", "*/15 8-18 * * MON-FRI", "in 42 min", "42 min ago", "117", "x" * 60)]
    for width in (40, 60, 80):
        console = Console(width=width, color_system=None)
        with console.capture() as captured:
            console.print(make_table(columns, rows, width))
        head, line = captured.get().splitlines()
        assert max(len(head), len(line)) <= width
        for name, cell in zip(columns[:-1], rows[0], strict=False):
            assert (name in head.split()) == (cell in line), (width, name)
    assert "42 min ago" in line


def test_errors_are_json_with_json(server: Server) -> None:
    for command, code, exit_code in (
        ("thread show nowhere", "not_found", 4),
        ("run list --status nothing", "usage", 2),
        ("run lst", "usage", 2),
        ("run wait last --timeout 0s --strategy", "usage", 2),
    ):
        ended = server.run(*command.split(), "--json")
        error = json.loads(ended.stderr)["error"]
        assert (error["code"], error["exit_code"], ended.returncode) == (code, exit_code, exit_code)
        assert ended.stdout == ""


def test_misspelt_commands_and_options_are_suggested(tmp_path: Path) -> None:
    for command, meant in (("rnu", "'run'"), ("run lst", "'list'"), ("run list --statsu all", "--status")):
        ended = run_here(tmp_path, *command.split())
        assert (ended.returncode, meant in ended.stderr) == (2, True), ended.stderr


def test_nobody_alive_is_said_before_waiting(server: Server) -> None:
    ended = server.run("rollout", "enqueue", "{}", "--queue", "nobody", "--wait", "--timeout", "0.2")
    assert ended.returncode == 5
    assert "no worker is alive for queue 'nobody'" in ended.stderr


def test_every_command_has_an_example_that_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("workflows", "agent-sessions"):
        (tmp_path / folder).mkdir()
    databases = ("checkpoints.db", "lastlight.db")
    for file in ("transcript.jsonl", "perdure.backup", "workflows/coding.yaml", *databases):
        (tmp_path / file).touch()
    found = dict(_commands(commands(), ""))
    assert set(EXAMPLES) == set(found)
    for path, example in EXAMPLES.items():
        words = shlex.split(example.partition(" < ")[0].partition(" > ")[0])
        assert words[: len(path.split()) + 1] == ["perdure", *path.split()]
        assert len(f" Example: {example}") <= 80
        assert found[path].epilog == f"Example: {example}"
        # Building the context refuses invalid arguments.
        found[path].make_context(path, words[len(path.split()) + 1 :])


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            if command.invoke_without_command:
                yield f"{path}{name}", command
            yield from _commands(command, f"{path}{name} ")
        elif not command.hidden:
            yield f"{path}{name}", command


NEW = {
    "thread create thread_id",
    "assistant create assistant_id",
    "session import session_id",
    "memory ingest id",
    "memory ingest session",
    "run create key",
    "rollout enqueue key",
}
"""Ids and keys that name new objects."""
POSITIONS = {"run watch after", "find id"}
"""A position in a stream; and `find`, which accepts beginnings itself."""


def test_every_id_is_taken_by_its_beginning() -> None:
    """A new id parameter uses id_argument, id_option or the functions for parts beside them."""
    missing = []
    for path, parameter in _parameters(commands()):
        described = f"{parameter.name} {parameter.metavar}".lower()
        looks = re.search(r"(^|_)(id|ids|job|subject|checkpoint|attempt|left|right)( |$)|_id$", described)
        info = parameter.type_descriptor.parameter_info
        if looks and not (hasattr(info, KINDS) or hasattr(info, AMONG)):
            missing.append(f"{path}{parameter.name}")
    assert set(missing) - NEW - POSITIONS == set()


def _parameters(group: Any) -> Iterator[tuple[str, Any]]:
    for path, command in _commands(group, ""):
        yield from ((f"{path} ", each) for each in command.params)


def test_parts_are_taken_by_their_beginnings(server: Server) -> None:
    run = next(each for each in server.json("run", "list")["items"] if each["status"] == "success")
    attempt = server.json("rollout", "show", run["run_id"])["attempts"][-1]["attempt_id"]
    # A worker sends its spans after the end of a run.
    while not (spans := server.json("span", "list", run["run_id"])["items"]):
        pass
    assert {span["attempt_id"] for span in spans} == {attempt}
    for start in (attempt[:-2], "last"):
        found = server.json("span", "list", run["run_id"], "--attempt", start)["items"]
        assert found == spans
    wanted = spans[0]["span_id"]
    assert server.json("span", "show", run["run_id"], wanted[:-1])["span_id"] == wanted
    newest = max(spans, key=lambda span: span["start_time"])
    assert server.json("span", "show", run["run_id"], "last")["span_id"] == newest["span_id"]
    ended = server.run("span", "show", run["run_id"], "ffff")
    assert (ended.returncode, "no span has the ID ffff" in ended.stderr) == (4, True)
    states = server.json("thread", "history", run["thread_id"])["items"]
    checkpoint = states[0]["checkpoint_id"]
    for start in (checkpoint[:-1], "last"):
        found = server.json("thread", "state", run["thread_id"], "--checkpoint", start)
        assert found["checkpoint_id"] == checkpoint
    assert server.json("outbox", "list", "--subject", run["run_id"][:-1])["items"] == []
    assistant = server.json("assistant", "list")["items"][0]["assistant_id"]
    made = server.json("run", "create", assistant[:-1], '{"name": "Cy"}')
    assert made["assistant_id"] == assistant


def _completed(server: Server, line: str, url: str | None = None) -> list[str]:
    words = line.split(" ")
    more = {
        "PERDURE_URL": url or server.url,
        "_PERDURE_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    return run_here(server.folder, *words[1:], more=more).stdout.split()


def test_shells_complete_ids_and_names(server: Server) -> None:
    assert _completed(server, "perdure thread show trip") == ["trip-to-oslo", "trip-to-rome"]
    assert "nightly" in _completed(server, "perdure cron show ")
    assert "greet" in _completed(server, "perdure run create gr")
    assert "greet" in _completed(server, "perdure chat gr")
    assert _completed(server, "perdure assistant create gr") == ["greet"]
    assert _completed(server, "perdure assistant list --agent gr") == ["greet"]
    assert _completed(server, "perdure workflow run sum") == ["summary"]
    assert _completed(server, "perdure workflow list --workflow s") == ["summary"]
    assert _completed(server, "perdure override set workflow s") == ["summary"]
    assert _completed(server, "perdure override set cron ni") == ["nightly"]
    assert _completed(server, "perdure scheduler pause ni") == ["nightly"]
    assert _completed(server, "perdure queue pause ag") == ["agents"]
    assert _completed(server, "perdure rollout enqueue 1 --queue def") == ["default"]
    assert _completed(server, "perdure thread show trip", url="http://127.0.0.1:1") == []
    assert _completed(server, "perdure thr") == ["thread"]
    for shell in ("bash", "zsh", "fish"):
        assert "_PERDURE_COMPLETE" in run_here(server.folder, "completion", shell).stdout


def test_tables_are_not_padded_in_pipes_and_texts_are_cut_on_terminals(server: Server) -> None:
    for command in (("agents", "--agents", f"{ROOT / 'examples' / 'agents.py'}:agents"), ("run", "list")):
        lines = server.run(*command).stdout.splitlines()
        assert [line for line in lines if line != line.rstrip()] == []
    columns = ("run_id", "agent", "status", "took", "error", "created", "thread_id")
    failed = ("0" * 36, "fail", "error", "0.0 s", "ValueError: no such city", "4 min ago", "1" * 36)
    table = make_table(columns, [failed], 80)
    assert [column.header for column in table.columns] == ["run_id", "agent", "status", "took", "error"]
    wide = make_table(
        ("webhook_id", "status", "run_id", "created"), [("0" * 36, "dead", "1" * 36, "now")], 70
    )
    assert [column.header for column in wide.columns] == ["webhook_id", "status", "created"]


def test_sentences_are_wrapped_between_words_on_a_terminal(server: Server) -> None:
    terminal = Terminal(server.folder, "override", "list", more={"PERDURE_URL": server.url}, columns=80)
    assert terminal.end() == 0
    assert "To switch a workflow \r\noff:\r\n" in terminal.text
    failed = Terminal(
        server.folder, "run", "show", "nowhere" * 8, more={"PERDURE_URL": server.url}, columns=60
    )
    assert failed.end() == 4
    assert f"Run\r\n{'nowhere' * 8} not\r\nfound" in failed.text


def test_the_usage_of_models_has_a_default_time(server: Server) -> None:
    assert server.run("usage").returncode == 0
    assert server.run("usage", "--since", "1h").returncode == 0
    assert server.run("usage", "--since", "soon").returncode == 2
