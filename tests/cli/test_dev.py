"""`perdure dev` for daily work: code reloads while it serves, common flags, the banner."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sysconfig
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph_sdk import get_client
from tests.cli.command import COMMAND, ROOT, Server, Terminal, perdure, run_here, settings, start
from tests.outbox.webhooks.support import receiving

from perdure import PerdureClient, RunRequest
from perdure.cli.hosting.dev import MEMORY_PORT, OTLP_GRPC_PORT
from perdure.kernel.config import Settings
from perdure.kernel.errors import InvalidInput, StartRefused
from perdure.server.http.server import bind

GRAPH = """\
import asyncio
from pathlib import Path
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.config import get_stream_writer
from words import WORD

async def answer(state):
    with Path("begun.txt").open("a") as file:
        file.write(WORD + "\\n")
    get_stream_writer()(WORD)
    while state["messages"][-1].content == "wait" and not Path("go").exists():
        await asyncio.sleep(0.02)
    return {"messages": [("ai", WORD)]}

graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile()
"""
AUTH = """\
from langgraph_sdk import Auth
auth = Auth()

@auth.authenticate
async def who(headers):
    if headers.get(b"x-api-key") != b"KEY":
        raise Auth.exceptions.HTTPException(status_code=401)
    return {"identity": "ann"}
"""


FILE = "langgraph.json"
DEFAULT_PORT = Settings().port


class Project(Server):
    """A LangGraph project that `perdure dev` serves."""

    def __init__(
        self, folder: Path, *arguments: str, graph: str = GRAPH, sections: Any = None, file: str = FILE
    ) -> None:
        self.folder = folder
        self._file = file
        self.write("words.py", 'WORD = "one"\n')
        self.write("agent.py", graph)
        self.write_graphs({"agent": "./agent.py:graph"}, **(sections or {}))
        super().__init__(folder, "dev", "--grpc-port", "0", *arguments)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def write_graphs(self, graphs: dict[str, str], **sections: Any) -> None:
        self.write(self._file, json.dumps({"dependencies": ["."], "graphs": graphs, **sections}))

    async def reloaded(self) -> dict[str, Any]:
        """Return the report of the next reload."""
        assert self.process.stdout is not None
        line = await asyncio.to_thread(self.process.stdout.readline)
        return dict(json.loads(line)["reload"])


async def ask(client: Any, text: str = "now", agent: str = "agent") -> str:
    state = await client.runs.wait(None, agent, input={"messages": [{"role": "user", "content": text}]})
    return str(state["messages"][-1]["content"])


async def test_a_graph_is_edited_while_it_serves(tmp_path: Path) -> None:
    with Project(tmp_path) as project:
        client = get_client(url=project.url)
        assert await ask(client) == "one"

        # A run is active, and its stream is read, while the file is saved.
        question: dict[str, Any] = {"messages": [{"role": "user", "content": "wait"}]}
        events = client.runs.stream(None, "agent", input=question, stream_mode=["values", "custom"])
        parts = [part async for part in _until(events, "custom")]
        project.write("words.py", 'WORD = "two"\n')
        report = await project.reloaded()
        assert report["changed"]["agents"] == "agent; 1 run goes on with the old code"
        assert await ask(client) == "two"

        # An error leaves the old code active, and is shown with its file and line.
        project.write("words.py", 'WORD = "three\n')
        report = await project.reloaded()
        assert (
            "agent 'agent': words.py, line 1: SyntaxError: unterminated string" in report["failed"]["agents"]
        )
        assert await ask(client) == "two"

        # Graphs are added and removed, with their assistants, schemas and drawings.
        project.write("words.py", 'WORD = "four"\n')
        await project.reloaded()
        renamed = GRAPH.replace("add_node(answer)", 'add_node("reply", answer)')
        project.write("agent.py", renamed.replace('START, "answer"', 'START, "reply"'))
        await project.reloaded()
        assistant = (await client.assistants.search())[0]
        drawn = await client.assistants.get_graph(assistant["assistant_id"])
        assert "reply" in {node["id"] for node in drawn["nodes"]}
        project.write("other.py", GRAPH)
        project.write_graphs({"other": "./other.py:graph"})
        report = await project.reloaded()
        assert "new: other; gone: agent" in report["changed"]["agents"]
        assert [each["graph_id"] for each in await client.assistants.search()] == ["other"]
        assert await ask(client, agent="other") == "four"

        # The first run ends once, with the code that it started with.
        (tmp_path / "go").touch()
        parts += [part async for part in events]
        assert parts[-1].data["messages"][-1]["content"] == "one"
        begun = (tmp_path / "begun.txt").read_text().split()
        assert begun == ["one", "one", "two", "two", "four"]
        await client.aclose()
    assert project.errors.count("started") == project.errors.count(": success") == 5


async def _until(events: Any, name: str) -> Any:
    async for part in events:
        yield part
        if part.event == name:
            return


async def test_a_project_that_was_broken_at_the_start_is_served_once_it_is_mended(tmp_path: Path) -> None:
    with Project(tmp_path, graph="import missing_words\n" + GRAPH) as project:
        assert project.facts["agents"] == []
        project.write("missing_words.py", "")
        assert (await project.reloaded())["changed"]["agents"] == "new: agent"
        async with get_client(url=project.url) as client:
            assert await ask(client) == "one"
    assert "agent.py, line 1: ModuleNotFoundError: No module named 'missing_words'" in project.errors


async def test_a_graph_that_could_not_be_loaded_is_named_with_its_reason(tmp_path: Path) -> None:
    """Also if other graphs are loaded. The traceback is logged once."""
    reason = "bad.py, line 1: ModuleNotFoundError: No module named 'not_installed'"
    (tmp_path / "bad.py").write_text("import not_installed\n")
    with Project(tmp_path) as project:
        project.write_graphs({"agent": "./agent.py:graph", "bad": "./bad.py:graph"})
        assert f"agent 'bad': {reason}" in (await project.reloaded())["changed"]["agents"]
        async with get_client(url=project.url) as client:
            for graph, said in (("bad", reason), ("nothing", "neither a UUID nor the name of a graph")):
                with pytest.raises(httpx.HTTPStatusError, match="422") as refused:
                    await ask(client, agent=graph)
                assert said in json.loads(refused.value.response.text)["detail"]
        async with PerdureClient(project.url) as client:
            with pytest.raises(InvalidInput, match="agent 'bad' could not be loaded: bad"):
                await client.create_run(RunRequest(assistant_id="bad"))
            found = {check.name: check for check in (await client.diagnostics.doctor()).items}
            assert (found["agents"].state, reason in found["agents"].found) == ("failed", True)
        async with get_client(url=project.url) as client:
            project.write("bad.py", GRAPH)
            await project.reloaded()
            assert await ask(client, agent="bad") == "one"
    assert project.errors.count(reason) == 1
    assert project.errors.count("Traceback") == 1
    listed = run_here(tmp_path, "agents")
    assert listed.returncode == 0


async def test_a_start_prints_once_why_a_graph_could_not_be_loaded(tmp_path: Path) -> None:
    with Project(tmp_path, "--no-reload", graph="import not_installed\n") as project:
        pass
    assert project.errors.count("agent.py, line 1: ModuleNotFoundError") == 1
    assert project.errors.count("Traceback") == 1
    listed = run_here(tmp_path, "agents")
    assert listed.returncode == 1
    assert "agent 'agent': agent.py, line 1: ModuleNotFoundError" in listed.stderr


async def test_custom_auth_and_the_app_of_the_project_are_reloaded(tmp_path: Path) -> None:
    (tmp_path / "auth.py").write_text(AUTH.replace("KEY", "first"))
    app = "from starlette.responses import PlainTextResponse\napp = PlainTextResponse('first')\n"
    (tmp_path / "app.py").write_text(app)
    sections = {"auth": {"path": "./auth.py:auth"}, "http": {"app": "./app.py:app"}}
    with Project(tmp_path, sections=sections) as project:
        project.write("app.py", app.replace("first", "second"))
        report = await project.reloaded()
        assert report["changed"] == {"agents": "agent", "http.app": "it is served anew"}
        project.write("auth.py", AUTH.replace("KEY", "second"))
        await project.reloaded()
        async with get_client(url=project.url, api_key="second").http.client as http:
            assert (await http.get("/mine")).text == "second"
            assert (await http.get("/mine", headers={"x-api-key": "first"})).status_code == 401
        # Auth that cannot be loaded, or was removed, never opens the server.
        project.write("auth.py", "auth = no_such_name\n")
        assert "auth.py, line 1: NameError" in (await project.reloaded())["failed"]["agents"]
        project.write_graphs({"agent": "./agent.py:graph"}, http=sections["http"])
        assert "auth was removed" in (await project.reloaded())["failed"]["agents"]
        assert project.get("/mine")[0] == 401


async def test_without_reload_nothing_is_watched(tmp_path: Path) -> None:
    with Project(tmp_path, "--no-reload", "--no-browser", "--allow-blocking") as project:
        project.write("words.py", "WORD = (\n")
        async with get_client(url=project.url) as client:
            assert await ask(client) == "one"
    assert "SyntaxError" not in project.errors


async def test_the_flags_of_langgraph_dev(tmp_path: Path) -> None:
    """Another langgraph.json, the log level, and webhooks to any port of this machine."""
    flags = ("--config", "inner/graphs.json", "--n-jobs-per-worker", "3", "--server-log-level", "DEBUG")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "agent.py").write_text(GRAPH)
    async with receiving() as receiver:
        with Project(tmp_path, *flags, graph="raise SystemExit\n", file="inner/graphs.json") as project:
            question: dict[str, Any] = {"messages": [{"role": "user", "content": "now"}]}
            async with get_client(url=project.url) as client:
                await client.runs.wait(None, "agent", input=question, webhook=receiver.url)
            await receiver.has(1)
            assert json.loads(receiver.got[0].body)["status"] == "success"
            _, body = await asyncio.to_thread(project.get, "/api/v1/workers")
            assert json.loads(body)["items"][0]["heartbeat_stats"]["max"] == 3
    assert "DEBUG" in project.errors


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--tunnel",), "--tunnel is not supported: perdure sends nothing through the servers of others"),
        (("--config", "nowhere.json"), "--config nowhere.json: there is no such file"),
        (("--server-log-level", "loud"), "log_level"),
        (("--debug-port", "5678"), "python -m debugpy --listen 5678 -m perdure.cli dev"),
        (("--wait-for-client",), "python -m debugpy --listen 5678 --wait-for-client -m perdure.cli dev"),
        (("--studio-url", "https://smith.example"), "The page of this server is at /ui/"),
        (("--no-grpc", "--grpc-port", "0"), "give one of them"),
        (("--ssl-keyfile", "key.pem"), "tls_key_file needs tls_cert_file"),
    ],
)
def test_a_wrong_flag_is_one_sentence(tmp_path: Path, flags: tuple[str, ...], said: str) -> None:
    ended = run_here(tmp_path, "dev", "--port", "0", *flags)
    assert ended.returncode == 1
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1


# --- ports ------------------------------------------------------------------------------------------------


def installed_without(folder: Path, package: str) -> dict[str, str]:
    """Return the variables of an interpreter that has all packages of this one except one."""
    links = folder / f"without {package}"
    links.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith((package, f"grpcio_{package.removeprefix('grpc_')}")):
            (links / path.name).symlink_to(path)
    return {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(links)))}


def without_site(command: list[str], **options: Any) -> subprocess.Popen[str]:
    """Start Python with only the packages of PYTHONPATH."""
    python, *rest = command
    return subprocess.Popen([python, "-S", *rest], **options)


@pytest.mark.parametrize(
    ("package", "needed"),
    [("grpc", "grpcio"), ("grpc_reflection", "grpcio-reflection")],
)
def test_it_starts_where_a_package_of_grpc_is_missing_and_says_which(
    tmp_path: Path, package: str, needed: str
) -> None:
    """Other packages install grpcio, but not its packages for health and reflection."""
    more = installed_without(tmp_path, package)
    with Server(tmp_path, "dev", more=more, popen=without_site) as server:
        assert server.facts["grpc_port"] is None
        assert server.facts["grpc_note"] == f"disabled: gRPC needs {needed}: pip install 'perdure[grpc]'"
        assert server.get("/health")[0] == 200
    refused = without_site(
        [*COMMAND, "serve", "--port", "0", "--grpc-port", "0"],
        cwd=tmp_path,
        env=settings(tmp_path, more),
        stderr=subprocess.PIPE,
        text=True,
    )
    _, errors = refused.communicate()
    assert refused.returncode == 1
    assert f"gRPC needs {needed}: pip install 'perdure[grpc]'" in errors


def test_grpc_is_turned_off(tmp_path: Path) -> None:
    with Server(tmp_path, "dev", "--no-grpc", more={"PERDURE_GRPC_PORT": "0"}) as server:
        assert (server.facts["grpc_port"], server.facts["grpc_ports"]) == (None, [])
        assert server.facts["grpc_note"] == "disabled by --no-grpc"


def test_a_second_server_takes_free_ports_unless_a_port_was_given(tmp_path: Path) -> None:
    with ExitStack() as stack:
        held = set()
        for port in (DEFAULT_PORT, OTLP_GRPC_PORT, MEMORY_PORT, 0):
            # A port that another program of this machine uses works too.
            with suppress(StartRefused):
                held.add(stack.enter_context(bind("127.0.0.1", port)).getsockname()[1])
        second = start(tmp_path, "dev", "--json")
        assert second.stdout is not None
        facts = json.loads(second.stdout.readline())
        try:
            assert not {int(facts["url"].rpartition(":")[2]), *facts["grpc_ports"]} & {0, *held}
            assert (len(facts["grpc_ports"]) > 0, facts["grpc_note"]) == (True, None)
            with urllib.request.urlopen(facts["url"] + "/health") as answer:
                assert answer.status == 200
        finally:
            second.terminate()
            second.communicate()
        busy = str(max(held - {DEFAULT_PORT, OTLP_GRPC_PORT, MEMORY_PORT}))
        for options, more in ((("--port", busy), {}), ((), {"PERDURE_PORT": busy})):
            refused = perdure(tmp_path, "dev", *options, more=more)
            assert f"port {busy}" in refused.stderr
            assert "Choose another port with --port" in refused.stderr
        refused = perdure(tmp_path, "dev", "--port", "0", "--grpc-port", busy)
        assert f"gRPC cannot listen on 127.0.0.1 port {busy}" in refused.stderr
        assert refused.returncode == 1


@contextmanager
def banner(folder: Path, *arguments: str) -> Iterator[str]:
    terminal = Terminal(folder, "dev", "--port", "0", "--grpc-port", "0", *arguments, columns=80)
    terminal.read_until("run ls")
    yield terminal.text
    terminal.press_ctrl_c()
    terminal.end()


def test_the_banner_names_what_the_project_needs(tmp_path: Path) -> None:
    run_here(tmp_path, "init", "graphs", "--langgraph")
    (tmp_path / "graphs" / "auth.py").write_text(AUTH)
    config = tmp_path / "graphs" / "langgraph.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "auth": {"path": "./auth.py:auth"}}))
    with banner(tmp_path / "graphs") as text:
        assert 'client     langgraph_sdk.get_client(url="http://127.0.0.1:' in text
        assert "auth       ./auth.py:auth (langgraph.json)" in text
        assert "reload     when a file of the project changes" in text
    run_here(tmp_path, "init", "functions")
    with banner(tmp_path / "functions", "--no-reload") as text:
        assert 'client     perdure.PerdureClient("http://127.0.0.1:' in text
        assert "reload" not in text
