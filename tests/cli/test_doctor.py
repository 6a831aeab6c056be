"""`perdure doctor`: the effective settings and their sources, and the problems it finds."""

import json
import os
import re
import socket
from pathlib import Path
from typing import Any

from .command import Server, run_here

NOTHING: dict[str, str] = {}


def examine(folder: Path, code: int, *arguments: str, more: dict[str, str] = NOTHING) -> dict[str, Any]:
    ended = run_here(folder, "doctor", "--json", *arguments, more=more)
    assert (ended.returncode, ended.stderr) == (code, ""), ended.stdout
    document: dict[str, Any] = json.loads(ended.stdout)
    document["checks"] = {check["name"]: check for check in document["checks"]}
    return document


def test_a_new_folder_is_well_and_stays_empty(tmp_path: Path) -> None:
    document = examine(tmp_path, 0)
    assert document["settings"]["database_url"] == {"value": "sqlite:///perdure.db", "source": "default"}
    assert document["checks"]["database"]["state"] == "note"
    assert "does not exist yet" in document["checks"]["database"]["found"]
    assert document["versions"]["perdure"]
    assert document["checks"]["connections"]["state"] == "ok"
    assert list(tmp_path.iterdir()) == []


def test_it_says_where_settings_came_from_and_hides_secrets(tmp_path: Path) -> None:
    (tmp_path / "perdure.toml").write_text("[perdure]\nport = 4800\nmax_connections = 1_000_000\n")
    more = {
        "DATABASE_URL": "postgresql://anna:hunter22@127.0.0.1:1/agents",
        "PERDURE_API_KEY": "a-key-of-the-server-1",
        "REDIS_URL": "redis://:secret@127.0.0.1:1/0",
    }
    document = examine(tmp_path, 1, more=more)
    settings = document["settings"]
    assert settings["port"] == {"value": 4800, "source": "file perdure.toml"}
    assert settings["database_url"]["source"] == "environment DATABASE_URL"
    assert settings["api_key"]["value"] == "***"
    assert document["checks"]["database"]["state"] == "failed"
    assert document["checks"]["Redis"]["state"] == "failed"
    assert document["checks"]["Redis"]["found"].startswith("set by REDIS_URL, but does not answer")
    assert "ulimit -n" in document["checks"]["connections"]["found"]
    shown = json.dumps(document) + run_here(tmp_path, "doctor", more=more).stdout
    for secret in ("hunter22", "a-key-of", ":secret@"):
        assert secret not in shown


def test_it_asks_redis_where_redis_is_used(tmp_path: Path, redis_url: str, database_url: str) -> None:
    document = examine(tmp_path, 0, more={"REDIS_URI": redis_url})
    assert document["checks"]["Redis"]["state"] == "note"
    assert "set by REDIS_URI, but not used" in document["checks"]["Redis"]["found"]
    document = examine(tmp_path, 0, more={"REDIS_URI": redis_url, "DATABASE_URI": database_url})
    assert document["checks"]["Redis"]["state"] == "ok"
    assert re.search(r"set by REDIS_URI: \w+ [\d.]+, answered in", document["checks"]["Redis"]["found"])


def test_it_looks_at_the_file_and_the_server(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        document = examine(tmp_path, 0, "--url", server.url)
        assert document["checks"]["server"]["state"] == "ok"
        assert server.url in document["checks"]["database"]["found"]
    document = examine(tmp_path, 0)
    assert "0 rollouts" in document["checks"]["database"]["found"]
    assert document["checks"]["file mode"]["state"] == "ok"
    (tmp_path / "perdure.db").chmod(0o644)
    assert examine(tmp_path, 0)["checks"]["file mode"]["state"] == "note"
    os.utime(tmp_path / "perdure.db", (4e9, 4e9))
    assert examine(tmp_path, 1)["checks"]["clock"]["state"] == "failed"


def test_it_compares_the_clocks_of_postgresql(tmp_path: Path, database_url: str) -> None:
    document = examine(tmp_path, 0, "--database", database_url)
    assert document["checks"]["clock"]["state"] == "ok"
    assert "database's clock" in document["checks"]["clock"]["found"]
    assert document["checks"]["database"]["state"] == "ok"


def test_what_is_wrong_is_code_1(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        document = examine(tmp_path, 0, more={"PERDURE_PORT": port})
    assert document["checks"]["port"]["state"] == "note"
    (tmp_path / "text.db").write_text("not a database at all, but a text that is long enough" * 20)
    assert examine(tmp_path, 1, "--database", "text.db")["checks"]["database"]["state"] == "failed"
    assert examine(tmp_path, 1, "--database", "missing/x.db")["checks"]["folder"]["state"] == "failed"
    assert examine(tmp_path, 1, "--url", "http://127.0.0.1:1")["checks"]["server"]["state"] == "failed"


def test_people_get_a_table(tmp_path: Path) -> None:
    ended = run_here(tmp_path, "doctor")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "setting" in ended.stdout
    assert "ok" in ended.stdout


def test_what_langgraph_json_names_is_examined_and_said_at_start(tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text("async def fine(ctx, input):\n    return input\n")
    graphs = {"fine": "./agents.py:fine", "lost": "./agents.py:nothing"}
    content = {"graphs": graphs, "http": {"app": "./app.py:app"}, "encryption": {"path": "./e.py:e"}}
    (tmp_path / "langgraph.json").write_text(json.dumps(content))
    ended = run_here(tmp_path, "doctor", "--json")
    assert ended.returncode == 1
    checks = json.loads(ended.stdout)["checks"]
    found = {check["name"]: check for check in checks if check["state"] != "note"}
    assert found["agents"] == {"name": "agents", "state": "ok", "found": "fine"}
    assert found["agent lost"]["state"] == "failed"
    assert "there is no 'nothing'" in found["agent lost"]["found"]
    notes = [check["found"] for check in checks if check["name"] == "langgraph.json"]
    assert [note.partition("langgraph.json: ")[2].partition(" ")[0] for note in notes] == [
        "encryption",
        "http.app:",
    ]
    with Server(tmp_path) as server:
        assert server.facts["agents"] == ["fine"]
    assert "http.app: there is no file" in server.errors
    assert "encryption is not supported here" in server.errors
    assert "agent 'lost'" in server.errors


def test_it_says_that_a_redis_cluster_is_not_used(
    tmp_path: Path, redis_cluster_url: str, database_url: str
) -> None:
    more = {"REDIS_URI": redis_cluster_url, "DATABASE_URI": database_url}
    check = examine(tmp_path, 1, more=more)["checks"]["Redis"]
    assert check["state"] == "failed"
    assert "it is a Redis Cluster, which perdure does not support" in check["found"]
    assert "redis_url" in check["found"]
