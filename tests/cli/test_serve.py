"""`perdure serve`, `dev` and `store`: start, refusals, stop."""

import json
import re
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure
from perdure.cli.demo.scene import AGENTS, GUIDE, QUESTION

from .command import Server, Terminal, perdure, run_here

KEY = "a-key-of-the-server-1"


def error_of(folder: Path, *arguments: str) -> tuple[int, str]:
    """Return the exit code and the single error line of a failing command."""
    ended = run_here(folder, *arguments)
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    ("command", "number", "code"),
    [
        ("serve", signal.SIGTERM, 0),
        ("serve", signal.SIGINT, 130),
        ("dev", signal.SIGTERM, 0),
        ("store", signal.SIGINT, 130),
    ],
)
def test_it_serves_until_a_signal_ends_it(tmp_path: Path, command: str, number: int, code: int) -> None:
    with Server(tmp_path, command, popen=subprocess.Popen) as server:
        assert server.facts["database"] == "sqlite:///perdure.db"
        assert server.facts["key_needed"] is False
        assert [server.get(path)[0] for path in ("/healthz", "/readyz", "/v1/agl/health")] == [200, 200, 200]
        assert server.stop(number) == code
    assert "Traceback" not in server.errors
    assert (tmp_path / "perdure.db").stat().st_mode & 0o077 == 0


def test_it_says_where_it_listens_and_what_it_serves(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "serve", "--port", "0", "--database", "memory:")
    terminal.read_until("PERDURE_API_KEY is set")
    terminal.press_ctrl_c()
    assert terminal.end() == 130
    assert re.search(r"perdure is listening on http://127\.0\.0\.1:\d+", terminal.text)
    assert "database   memory:" in terminal.text
    assert "Aborted" not in terminal.text


@pytest.mark.parametrize("command", ["serve", "dev", "store"])
def test_a_taken_port_says_how_to_choose_another(tmp_path: Path, command: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, message = error_of(tmp_path, command, "--port", str(taken.getsockname()[1]))
    assert code == 1
    assert re.fullmatch(r"perdure: start_refused: the server cannot listen .* --port; 0 .*\n", message)


@pytest.mark.parametrize("command", ["serve", "store"])
def test_it_does_not_listen_beyond_this_machine_without_a_key(tmp_path: Path, command: str) -> None:
    code, message = error_of(tmp_path, command, "--port", "0", "--host", "0.0.0.0")
    assert code == 1
    assert "start_refused" in message
    assert "PERDURE_API_KEY" in message
    assert "--insecure-no-auth" in message


def test_it_may_be_told_to_let_everyone_in(tmp_path: Path) -> None:
    with Server(tmp_path, "serve", "--host", "0.0.0.0", "--insecure-no-auth") as server:
        assert "insecure" in server.facts["callers"]
        assert server.json("rollout", "list")["items"] == []


def test_a_key_from_a_file_is_needed_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY + "\n")
    with Server(tmp_path, "serve", "--api-key-file", "key", "--log-level", "debug") as server:
        assert server.facts["key_needed"] is True
        refused = server.run("rollout", "list")
        assert refused.returncode == 1
        assert "unauthorized" in refused.stderr
        assert "PERDURE_TOKEN" in refused.stderr
        assert server.run("rollout", "list", more={"PERDURE_TOKEN": KEY}).returncode == 0
        assert server.run("health").returncode == 0
        server.stop()
    assert KEY not in server.output + server.errors


def test_a_key_file_that_cannot_be_read_refuses_the_start(tmp_path: Path) -> None:
    code, message = error_of(tmp_path, "serve", "--port", "0", "--api-key-file", "missing")
    assert code == 1
    assert "missing" in message


@pytest.mark.parametrize(
    "command",
    ["serve --workers 2 --database sqlite:///agents.db", "store --n-workers 2 --backend memory"],
)
def test_several_workers_need_postgresql(tmp_path: Path, command: str) -> None:
    code, message = error_of(tmp_path, *command.split(), "--port", "0")
    assert code == 1
    assert "PostgreSQL" in message
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    for workers in ("1", "2"):
        database = "postgresql://anna:hunter22@127.0.0.1:1/agents"
        code, message = error_of(
            tmp_path, "serve", "--port", "0", "--database", database, "--workers", workers
        )
        assert code == 1
        assert re.fullmatch(r"perdure: storage_unavailable: .+\n", message)
        assert "hunter22" not in message


def test_logs_can_be_json(tmp_path: Path) -> None:
    more = {"LOG_JSON": "1", "LOG_LEVEL": "debug"}
    with Server(tmp_path, more=more) as server:
        server.get("/healthz")
        server.stop()
    lines = [json.loads(line) for line in server.errors.splitlines()]
    assert {"time", "level", "logger", "message"} <= set(lines[0])


def test_a_database_that_is_served_elsewhere_names_the_address(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        code, message = error_of(tmp_path, "serve", "--port", "0")
        assert code == 1
        assert "database_owned" in message
        assert server.url in message
        code, message = error_of(tmp_path, "rollout", "list", "--database", "perdure.db")
        assert (code, server.url in message, "--url" in message) == (1, True, True)


# --- store ------------------------------------------------------------------------------------------------


def test_store_takes_the_flags_of_agl_store(tmp_path: Path) -> None:
    flags = ["--host", "127.0.0.1", "--cors-origin", "http://a.example", "--cors-origin", "http://b.example"]
    flags += ["--log-level", "INFO", "--n-workers", "1", "--backend", "memory"]
    with Server(tmp_path, "store", *flags, "--tracker", "prometheus", "console") as server:
        assert server.facts["database"] == "memory:"
        assert server.json("rollout", "enqueue", "1")["status"] == "queuing"
        assert server.get("/metrics")[0] == 200
        server.stop()
    assert "total_rollouts" in server.errors
    # The directory of the secret of the command is empty again.
    assert [each for each in tmp_path.rglob("*") if not each.is_dir()] == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--tracker", "statsd"), "prometheus or console"),
        (("--backend", "mongo"), "MongoDB is not supported"),
        (("--backend", "postgres"), "postgresql://"),
        (("--n-workers", "0"), "n-workers"),
        (("--log-level", "LOUD"), "log_level"),
    ],
)
def test_store_refuses_helpfully(tmp_path: Path, flags: tuple[str, ...], said: str) -> None:
    code, message = error_of(tmp_path, "store", "--port", "0", *flags)
    assert code in (1, 2)
    assert said in " ".join(re.sub(r"[│╭╰─╮╯]", " ", message).split())


# --- dev --------------------------------------------------------------------------------------------------


def test_dev_keeps_the_traces_of_any_program(tmp_path: Path) -> None:
    times = {"startTimeUnixNano": "1700000000000000000", "endTimeUnixNano": "1700000002000000000"}
    span = {"traceId": "ab" * 16, "spanId": "cd" * 8, "name": "my agent", **times}
    traces = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    with Server(tmp_path, "dev", "--grpc-port", "0") as server:
        assert server.facts["grpc_port"] > 0
        assert server.facts["grpc_ports"][0] == server.facts["grpc_port"]
        address = f"127.0.0.1:{server.facts['grpc_port']}"
        assert server.json("health")["grpc"] == "SERVING"
        asked = ("health", "--json", "--grpc", address, "--service")
        assert server.run(*asked, "memory.MemoryService").returncode == 0
        assert server.run(*asked, "nobody").returncode == 1
        assert server.get("/docs")[0] == 200
        request = urllib.request.Request(
            server.url + "/v1/traces", json.dumps(traces).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200
        (rollout,) = server.json("rollout", "list", "--kept-traces")["items"]
        assert "my agent  2.00 s" in server.run("span", "list", rollout["rollout_id"]).stdout


def test_dev_plays_the_demo_over_http_and_ends_without_a_terminal(tmp_path: Path) -> None:
    ended = perdure(tmp_path, "dev", "--port", "0", "--grpc-port", "0", "--demo", "--rollouts", "3")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert re.search(r"of 3 rollouts succeeded.* \d+ attempts, \d+ of them retries", ended.stdout)
    assert re.search(r"invoke_agent trivia  [\d.]+ m?s", ended.stdout)

    def shown(*command: str) -> Any:
        ended = run_here(tmp_path, *command, "--json", "--database", "sqlite:///perdure.db")
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    assert shown("rollout", "list")["total"] == 3
    runs = shown("run", "list")["items"]
    assert [(each["agent"], each["status"]) for each in runs] == [
        ("demo-forecast", "error"),
        ("demo-guide", "success"),
        ("demo-guide", "success"),
        ("demo-guide", "success"),
    ]
    assert "no station in 'Atlantis'" in runs[0]["error"]["message"]
    assert [each["status"] for each in shown("thread", "list")["items"]] == ["error", "interrupted", "idle"]
    assert [each["workflow_name"] for each in shown("approval", "list")["items"]] == ["demo-release"]
    assert [each["name"] for each in shown("cron", "list")["items"]] == ["demo-morning"]
    assert len(shown("session", "list")["items"]) >= 2
    (model,) = {each["name"] for each in shown("usage")["items"]}
    assert model == "gpt-4o-mini"
    assert all(each["cost"] > 0 for each in shown("usage")["items"])


async def test_the_guide_of_the_demo_streams_and_asks_back_once() -> None:
    async with Perdure("memory:", agents=AGENTS) as perdure:
        said = {"messages": [{"role": "user", "content": "Plan a trip."}]}
        thread = await perdure.threads.create_thread("trip")
        asked = await perdure.run(GUIDE, said, thread_id=thread.thread_id)
        state = await perdure.threads.get_state("trip")
        assert state is not None
        assert [each.value for each in state.interrupts] == [QUESTION]
        assert [each["content"] for each in asked.values["messages"]] == ["Plan a trip."]
        answered = await perdure.run(GUIDE, thread_id="trip", command={"resume": "Sunday"})
        assert [each["role"] for each in answered.values["messages"]] == ["user", "assistant"]
        assert "leave on Sunday" in answered.values["messages"][-1]["content"]
        pieces = []
        again = {"messages": [{"type": "human", "content": "How does a retry work?"}]}
        async for event in perdure.stream(GUIDE, again, thread_id="trip"):
            if event.event == "messages":
                pieces.append(event.data[0]["content"])
        state = await perdure.threads.get_state("trip")
        assert state is not None
        whole = state.values["messages"][-1]["content"]
        assert "".join(pieces) == whole
        assert len(pieces) > 5
        assert "Before, you asked: 'Plan a trip.'" in whole


def test_dev_plays_the_demo_on_a_terminal_and_goes_on_serving(tmp_path: Path) -> None:
    arguments = ("--port", "0", "--grpc-port", "0", "--demo", "--rollouts", "3")
    terminal = Terminal(tmp_path, "dev", *arguments, columns=200)
    terminal.read_until("perdure worker list")
    found = re.search(r"export PERDURE_URL=(\S+)", terminal.text)
    assert found is not None
    rollout = re.search(r"perdure span list (ro-\w+)", terminal.text)
    assert rollout is not None
    spans = perdure(tmp_path, "span", "list", rollout[1], "--url", found[1])
    assert spans.returncode == 0
    assert "attempt 1 by worker-" in spans.stdout
    terminal.press_ctrl_c()
    assert terminal.end() == 130
    assert "Traceback" not in terminal.output


def test_dev_does_not_play_where_it_may_not_come_in(tmp_path: Path) -> None:
    assert run_here(tmp_path, "token", "create", "x", "--yes", "--database", "perdure.db").returncode == 0
    ended = perdure(tmp_path, "dev", "--port", "0", "--grpc-port", "0", "--demo", "--once")
    assert ended.returncode == 1
    assert re.fullmatch(r"perdure: unauthorized: .*PERDURE_TOKEN\n", ended.stderr)


def test_dev_counts_only_its_own_rollouts(tmp_path: Path) -> None:
    for _ in range(2):
        ended = perdure(
            tmp_path,
            "dev",
            "--port",
            "0",
            "--grpc-port",
            "0",
            "--demo",
            "--rollouts",
            "2",
            "--once",
            "--json",
        )
        report = json.loads(ended.stdout.splitlines()[1])
        assert report["rollouts"]["total"] == 2
        assert report["rollouts"]["succeeded"] + report["rollouts"]["failed"] == 2
