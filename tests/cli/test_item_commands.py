"""The long-term memory of agents from the command line: over a server, and directly on a database."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .command import Server, run_here

DATABASE = ("--database", "sqlite:///items.db")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server"), "serve") as server:
        yield server


def said(ended: subprocess.CompletedProcess[str]) -> str:
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.strip()


def test_items_over_a_server(server: Server) -> None:
    assert said(server.run("item", "ls")).startswith("No items yet.")
    assert said(server.run("item", "namespaces")).startswith("No items yet.")
    assert (
        said(server.run("item", "put", "users.ada", "theme", '{"dark": true}'))
        == "Stored theme in users.ada."
    )
    said(server.run("item", "put", "users.bob", "theme", '{"dark": false}', "--ttl", "1h"))
    shown = said(server.run("item", "ls"))
    assert re.search(r'users\.ada +theme +[\d.]+ s ago +{"dark":true}', shown)
    found = server.json("item", "ls", "users", "--filter", '{"dark": false}')["items"]
    assert [item["namespace"] for item in found] == [["users", "bob"]]
    assert said(server.run("item", "ls", "nowhere")) == "No items match."
    assert re.search(r"ttl +60 min", said(server.run("item", "get", "users.bob", "theme")))
    assert server.json("item", "get", "users.ada", "theme")["value"] == {"dark": True}
    assert said(server.run("item", "namespaces", "users")).split() == ["users.ada", "users.bob"]
    assert server.json("item", "namespaces", "--max-depth", "1") == {"namespaces": [["users"]]}
    assert server.json("item", "namespaces", "--suffix", "bob") == {"namespaces": [["users", "bob"]]}
    assert said(server.run("item", "rm", "users.bob", "theme")) == "Deleted theme from users.bob."
    missing = server.run("item", "get", "users.bob", "theme")
    assert (missing.returncode, missing.stderr) == (
        4,
        "perdure: not_found: Item theme not found in the namespace users.bob\n",
    )


def test_bad_input_is_told(server: Server) -> None:
    for wrong in (("a..b", "k", "{}"), ("langgraph.x", "k", "{}"), ("a", "k", "[]")):
        ended = server.run("item", "put", *wrong)
        assert (ended.returncode, "invalid_input" in ended.stderr) == (1, True)
    assert server.run("item", "put", "a", "k", "{").returncode == 2
    assert server.run("item", "ls", "--filter", "[]").returncode == 2


def test_items_on_a_database(tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        return said(run_here(tmp_path, "item", *arguments, *DATABASE))

    assert json.loads(run("put", "a.b", "k", '{"n": 1}', "--json"))["kept"] is True
    assert json.loads(run("ls", "a", "--json"))["items"][0]["value"] == {"n": 1}
    assert json.loads(run("rm", "a.b", "k", "--json"))["deleted"] is True
    assert run("namespaces", "a") == "No namespaces match."
