"""`perdure worker`, and the worker inside `serve` and `dev`: real processes, real signals."""

import asyncio
import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from tests.cli.command import COMMAND, Server, perdure, run_here, settings
from tests.support.kinds import KINDS
from tests.support.python_process import PythonProcess

from perdure.runtime.stores import open_store
from perdure.threads.records import RunRequest
from perdure.threads.service import Threads

AGENTS = """
import asyncio
from perdure.worker.registry import Agents

agents = Agents()

@agents.agent("greet")
async def greet(ctx, input):
    "Says hello."
    return {"greeting": f"Hello, {input}!"}

@agents.agent("wait")
async def wait(ctx, input):
    await ctx.emit("begun")
    if ctx.attempt == 1:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if input != "stubborn":
                raise
            await asyncio.Event().wait()
    return {"attempt": ctx.attempt}
"""


FLAKY = """
from perdure import Retriable
from perdure.worker.registry import Agents

agents = Agents()

@agents.agent("flaky")
async def flaky(ctx, input):
    if ctx.attempt == 1:
        raise Retriable("again")
    return {"attempt": ctx.attempt}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agents.py").write_text(AGENTS)
    return tmp_path


class Worker:
    """A `perdure worker` process."""

    def __init__(self, folder: Path, *arguments: str, **more: str) -> None:
        self.process = PythonProcess(
            [*COMMAND, "worker", "--json", *arguments],
            cwd=folder,
            env=settings(folder, {"PYTHONUNBUFFERED": "1", "LOG_LEVEL": "info", **more}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.facts: dict[str, Any] = json.loads(line)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self, *numbers: int) -> tuple[int, str]:
        for number in numbers or (signal.SIGTERM,):
            if self.process.poll() is None:
                self.process.send_signal(number)
        if self.process.stdout is not None and not self.process.stdout.closed:
            _, self.errors = self.process.communicate(timeout=30)
        return self.process.wait(), self.errors

    def hear(self, words: str) -> None:
        """Read its log until it contains these words."""
        assert self.process.stderr is not None
        while words not in self.process.stderr.readline():
            assert self.process.poll() is None


def ask(server: Server, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + "/api/v1" + path, data=data)
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def greet(server: Server, name: str = "you") -> Any:
    return ask(server, "/runs/wait", {"assistant_id": "greet", "input": name})


def test_a_worker_without_agents_says_how_to_write_one(tmp_path: Path) -> None:
    ended = run_here(tmp_path, "worker")
    assert ended.returncode == 1
    assert "--agents ./agents.py:agents" in ended.stderr
    assert "[perdure.agents]" in ended.stderr


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("agents", "module:name"),
        ("./agents.py:nothing", "there is no 'nothing'"),
        ("./absent.py:agents", "there is no file"),
        ("no_such_module:agents", "ModuleNotFoundError"),
    ],
)
def test_agents_that_are_not_there_are_named(folder: Path, named: str, words: str) -> None:
    ended = run_here(folder, "worker", "--agents", named)
    assert ended.returncode == 1
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_remote_worker_executes_the_runs_of_a_server(folder: Path) -> None:
    with (
        Server(folder, "serve") as server,
        Worker(folder, "--url", server.url, "--agents", "./agents.py:agents", "--name", "far") as worker,
    ):
        assert worker.facts == {
            "queues": ["agents", "workflows"],
            "worker_id": "far",
            "agents": ["greet", "wait"],
            "concurrency": worker.facts["concurrency"],
            "place": server.url,
        }
        assert greet(server)["values"] == {"greeting": "Hello, you!"}
        for command in ("list", "ls"):
            assert [each["worker_id"] for each in server.json("worker", command)["items"]] == ["far"]
        code, errors = worker.stop()
    assert code == 0, errors
    assert "Traceback" not in errors


def test_an_idle_worker_of_a_server_stays_alive(folder: Path) -> None:
    short = {"BG_JOB_HEARTBEAT": "0.5"}
    arguments = ("--agents", "./agents.py:agents", "--name", "idle", "--url")
    with Server(folder, "serve", more=short) as server, Worker(folder, *arguments, server.url, **short):
        (first,) = ask(server, "/workers")["items"]
        beat = first
        deadline = time.monotonic() + 60
        # Longer than the silence after which a worker counts as dead.
        while beat["last_heartbeat_time"] < first["last_heartbeat_time"] + 2.0:
            assert time.monotonic() < deadline, "an idle worker sends no heartbeat"
            time.sleep(0.1)
            (beat,) = ask(server, "/workers")["items"]
        assert ask(server, "/stats")["workers"]["alive"] == 1


def test_the_attempts_of_a_run_are_decided_where_it_is_created(folder: Path) -> None:
    (folder / "flaky.py").write_text(FLAKY)
    once = {"BG_JOB_MAX_RETRIES": "1"}
    arguments = ("--agents", "./flaky.py:agents", "--url")
    with (
        Server(folder, "serve", more={"BG_JOB_MAX_RETRIES": "2"}) as server,
        Worker(folder, *arguments, server.url, **once) as worker,
    ):
        assert ask(server, "/runs/wait", {"assistant_id": "flaky"})["values"] == {"attempt": 2}
        _, errors = worker.stop()
    assert "BG_JOB_MAX_RETRIES (job_max_retries) has no effect on this worker" in errors


def test_a_worker_that_is_stopped_hands_its_run_to_the_next(folder: Path) -> None:
    short = {"SHUTDOWN_GRACE_PERIOD_SECS": "0", "BG_JOB_HEARTBEAT": "60"}
    arguments = ("--agents", "./agents.py:agents", "--url")
    with Server(folder, "serve", more=short) as server:
        with Worker(folder, *arguments, server.url, **short) as first:
            run_id = ask(server, "/runs", {"assistant_id": "wait", "max_attempts": 1})["run_id"]
            with urllib.request.urlopen(f"{server.url}/api/v1/runs/{run_id}/stream", timeout=30) as stream:
                assert any(b"begun" in line for line in stream)
            code, errors = first.stop(signal.SIGINT)
            assert code == 130
            assert "hands 1 runs back" in errors
        with Worker(folder, *arguments, server.url, **short):
            # The first worker may have claimed and lost the run while it stopped.
            assert ask(server, f"/runs/{run_id}/wait")["values"]["attempt"] in (2, 3)


def test_a_second_signal_ends_a_worker_at_once(folder: Path) -> None:
    with (
        Server(folder, "serve") as server,
        Worker(
            folder, "--agents", "./agents.py:agents", "--url", server.url, SHUTDOWN_GRACE_PERIOD_SECS="600"
        ) as worker,
    ):
        run_id = ask(server, "/runs", {"assistant_id": "wait", "input": "stubborn"})["run_id"]
        with urllib.request.urlopen(f"{server.url}/api/v1/runs/{run_id}/stream", timeout=30) as stream:
            assert any(b"begun" in line for line in stream)
        worker.process.send_signal(signal.SIGTERM)
        worker.hear("stops; it executes 1 runs")
        code, _ = worker.stop(signal.SIGTERM)
    assert code == 128 + signal.SIGTERM


@pytest.mark.parametrize("command", ["serve", "dev"])
def test_a_server_executes_runs_itself(folder: Path, command: str) -> None:
    with Server(folder, command, "--agents", "./agents.py:agents") as server:
        assert server.facts["agents"] == ["greet", "wait"]
        assert greet(server, "server")["values"] == {"greeting": "Hello, server!"}
        # The worker counts an attempt after it has reported its end.
        counted = 'perdure_attempts_ended_total{result="success"} 1.0'
        deadline = time.monotonic() + 20
        while counted not in server.get("/metrics")[1].decode():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert server.stop() == 0
    assert "Traceback" not in server.errors


def test_a_server_finds_agents_in_its_configuration(folder: Path) -> None:
    (folder / "perdure.toml").write_text('[perdure.agents]\ngreet = "./agents.py:greet"\n')
    with Server(folder, "serve") as server:
        assert server.facts["agents"] == ["greet"]
        assert greet(server)["values"] == {"greeting": "Hello, you!"}
    with Server(folder, "serve", "--no-worker") as server:
        assert server.facts["agents"] == []


def test_an_agent_that_cannot_be_loaded_does_not_keep_a_server_from_starting(folder: Path) -> None:
    (folder / "perdure.toml").write_text(
        '[perdure.agents]\ngreet = "./agents.py:greet"\nbad = "./absent.py:agent"\n'
    )
    with Server(folder, "serve") as server:
        assert server.facts["agents"] == ["greet"]
        server.stop()
    assert "agent 'bad'" in server.errors


async def _greet_on(url: str) -> Any:
    store = open_store(url)
    threads = Threads(store.storage, KINDS)
    try:
        run = await threads.create_run(RunRequest(assistant_id="greet", input="you"))
        return (await threads.join_run(run.run_id, 60)).values
    finally:
        await store.close()


def test_a_worker_opens_a_database_itself(folder: Path, database_url: str) -> None:
    with Worker(folder, "--agents", "./agents.py:agents", DATABASE_URI=database_url) as worker:
        assert worker.facts["place"].startswith("postgresql://")
        assert asyncio.run(_greet_on(database_url)) == {"greeting": "Hello, you!"}


def test_several_server_processes_execute_runs(folder: Path, database_url: str) -> None:
    arguments = ("--workers", "2", "--database", database_url, "--agents", "./agents.py:agents")
    with Server(folder, "serve", *arguments) as server:
        assert server.facts["agents"] == ["greet", "wait"]
        for number in range(5):
            assert greet(server, str(number))["values"] == {"greeting": f"Hello, {number}!"}


def test_a_database_that_a_server_owns_is_not_opened_twice(folder: Path) -> None:
    with Server(folder, "serve", "--database", "sqlite:///runs.db"):
        ended = perdure(folder, "worker", "--agents", "./agents.py:agents", "--database", "sqlite:///runs.db")
    assert ended.returncode == 1
    assert "database_owned" in ended.stderr


def read_port(worker: Worker, path: str, **headers: str) -> tuple[int, str]:
    """Return the response of a worker's port."""
    url = worker.facts["metrics"].replace("0.0.0.0", "127.0.0.1").removesuffix("/metrics") + path
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()


def test_a_worker_answers_probes_and_counts_its_runs_on_a_port(folder: Path) -> None:
    arguments = ("--agents", "./agents.py:agents", "--metrics-port", "0", "--concurrency", "3", "--url")
    with Server(folder, "serve") as server, Worker(folder, *arguments, server.url) as worker:
        assert greet(server)["values"]
        assert read_port(worker, "/healthz") == (200, '{"status":"ok"}')
        assert read_port(worker, "/readyz") == (200, '{"status":"ok"}')
        assert read_port(worker, "/anything")[0] == 404
        status, text = read_port(worker, "/metrics")
        assert status == 200
        assert 'perdure_attempts_ended_total{result="success"} 1.0' in text
        assert 'perdure_worker_slots{state="max"} 3.0' in text
        assert "process_resident_memory_bytes" in text
        port = worker.facts["metrics"].split(":")[2].partition("/")[0]
        taken = run_here(folder, "worker", *arguments[:3], port, "--url", server.url)
        assert taken.returncode == 1
        assert f"metrics_port {port} cannot be opened" in taken.stderr
        server.stop()
        deadline = time.monotonic() + 60
        while read_port(worker, "/readyz")[0] != 503:
            assert time.monotonic() < deadline, "the worker is ready without its server"
            time.sleep(0.1)
        assert read_port(worker, "/healthz")[0] == 200


def test_a_worker_on_a_database_has_its_counters_on_its_port(folder: Path, database_url: str) -> None:
    key = "a-key-of-sixteen-characters"
    arguments = ("--agents", "./agents.py:agents", "--metrics-port", "0", "--database", database_url)
    with (
        Server(folder, "serve", "--database", database_url) as server,
        Worker(folder, *arguments, PERDURE_HOST="0.0.0.0", PERDURE_API_KEY=key) as worker,
    ):
        assert greet(server)["values"]
        assert read_port(worker, "/readyz")[0] == 200
        status, text = read_port(worker, "/metrics")
        assert (status, "set api_key on the worker" in text) == (401, True)
        assert read_port(worker, "/metrics", **{"x-api-key": "wrong"})[0] == 401
        assert read_port(worker, "/metrics", **{"x-api-key": key})[0] == 200
        status, text = read_port(worker, "/metrics", Authorization=f"Bearer {key}")
        assert 'perdure_runs_total{status="success"} 1.0' in text
        assert 'perdure_run_duration_seconds_count{kind="run"} 1.0' in text
        # The server has not counted this run, because another process executed and ended it.
        assert b'perdure_runs_total{status="success"} 0.0' in server.get("/metrics")[1]
