"""Tasks of operators: workers without a token, JSON logs, the audit, health, the doctor, and backups."""

import importlib.util
import json
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
from tests.cli.command import ROOT, Server, run_here, start

AGENTS = """
import warnings
from perdure import Agents

agents = Agents()

@agents.agent("hi")
async def hi(ctx, input):
    warnings.warn("a warning of a library")
    return "hello"
"""
FROM_FILE = ("--agents", "./agents.py:agents")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agents.py").write_text(AGENTS)
    (tmp_path / "run").mkdir(mode=0o700)
    return tmp_path


@pytest.fixture
def runtime(folder: Path) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": str(folder / "run")}


def test_a_worker_without_a_token_is_refused_and_told_to_get_one(
    folder: Path, runtime: dict[str, str]
) -> None:
    with Server(folder, "serve", more=runtime) as server:
        server.json("token", "create", "me", "--scope", "admin", more=runtime)
        reader = server.json("token", "create", "r", "--scope", "read", more=runtime)["secret"]
        # The local secret admits the command on this machine, but not a worker.
        assert server.run("token", "list", more=runtime).returncode == 0
        for token, words in ((None, "token"), (reader, "the scopes read only"), ("pdr_wrong", "unknown")):
            more = runtime if token is None else {**runtime, "PERDURE_TOKEN": token}
            refused = server.run("worker", *FROM_FILE, more=more)
            assert refused.returncode == 1, token
            assert words in refused.stderr
            assert "perdure token create NAME --scope worker" in refused.stderr
        actors = {entry["actor"] for entry in server.json("audit", more=runtime)["items"]}
        assert actors == {"local"}


@pytest.mark.parametrize("command", ["serve", "dev"])
def test_a_json_log_contains_nothing_else(folder: Path, runtime: dict[str, str], command: str) -> None:
    logs = {**runtime, "PERDURE_LOG_JSON": "true"}
    process = start(folder, command, "--port", "0", *FROM_FILE, more=logs)
    assert process.stdout is not None
    first = process.stdout.readline()
    url = json.loads(first)["url"]
    ended = run_here(folder, "run", "create", "hi", "{}", "--wait", more={**runtime, "PERDURE_URL": url})
    assert ended.returncode == 0, ended.stderr
    process.terminate()
    output, errors = process.communicate()
    lines = [json.loads(line) for line in (output + errors).splitlines()]
    assert any("a warning of a library" in line.get("message", "") for line in lines)


def test_a_refused_start_is_json_where_the_log_is(folder: Path, runtime: dict[str, str]) -> None:
    process = start(
        folder, "serve", "--port", "0", "--host", "0.0.0.0", more={**runtime, "PERDURE_LOG_JSON": "true"}
    )
    output, errors = process.communicate()
    assert process.wait() == 1
    assert output == ""
    assert "is open to other machines" in [json.loads(line) for line in errors.splitlines()][-1]["message"]


def test_the_audit_is_listed_and_filtered(folder: Path, runtime: dict[str, str]) -> None:
    with Server(folder, "serve", more=runtime) as server:
        assert "The audit is empty" in server.run("audit", more=runtime).stdout
        for number in range(3):
            server.json("rollout", "enqueue", str(number), more=runtime)
        token = server.json("token", "create", "me", "--scope", "admin", more=runtime)
        entries = server.json("audit", more=runtime)["items"]
        assert [entry["action"] for entry in entries] == ["create_token", *["enqueue_rollout"] * 3]
        (created,) = server.json("audit", "--action", "create_token", more=runtime)["items"]
        assert (created["object"], created["actor"]) == (token["token_id"], "local")
        assert len(server.json("audit", "--limit", "2", more=runtime)["items"]) == 2
        assert server.json("audit", "--actor", "nobody", more=runtime)["items"] == []
        assert "enqueue_rollout" in server.run("audit", more=runtime).stdout


def test_health_says_what_it_counts(folder: Path) -> None:
    database = ("--database", "sqlite:///perdure.db")
    assert run_here(folder, "rollout", "enqueue", "1", *database).returncode == 0
    shown = run_here(folder, "health", *database).stdout
    assert "rollouts of the queue                   1" in shown
    assert "attempts of rollouts, runs and phases   0" in shown
    assert "workers, alive or not                   0" in shown
    assert (
        json.loads(run_here(folder, "health", "--json", *database).stdout)["statistics"]["total_rollouts"]
        == 1
    )


def test_the_doctor_shows_its_checks_first_and_defaults_on_request(folder: Path) -> None:
    brief = run_here(folder, "doctor", more={"PERDURE_RATE_LIMIT": "7"}).stdout.splitlines()
    assert brief[0].split()[1] == "folder"
    assert any(line.startswith("rate_limit") for line in brief)
    assert not any(line.startswith("max_streams") for line in brief)
    assert any("--all shows them" in line for line in brief)
    whole = run_here(folder, "doctor", "--all").stdout.splitlines()
    assert whole[0].split()[1] == "folder"
    assert any(line.startswith("max_streams") for line in whole)


def test_a_backup_without_a_server_names_the_option(folder: Path) -> None:
    ended = run_here(folder, "db", "backup", more={"PERDURE_URL": "http://127.0.0.1:9"})
    assert ended.returncode == 1
    assert "--database" in ended.stderr


def test_logs_of_sessions_are_not_committed(folder: Path) -> None:
    assert run_here(folder, "init", "mine").returncode == 0
    assert "agent-sessions/" in (folder / "mine" / ".gitignore").read_text().splitlines()
    assert "/agent-sessions/" in (ROOT / ".gitignore").read_text().splitlines()


def test_a_long_setup_shows_that_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    loader = SourceFileLoader("dev_script", str(ROOT / "dev"))
    spec = importlib.util.spec_from_loader("dev_script", loader)
    assert spec is not None
    dev = importlib.util.module_from_spec(spec)
    loader.exec_module(dev)
    said = ""
    with dev.progress("installing", every=0.01):
        deadline = time.monotonic() + 20
        while said.count("still installing, since") < 2 and time.monotonic() < deadline:
            said += capsys.readouterr().out
    assert said.count("still installing, since") >= 2
