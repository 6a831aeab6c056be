"""`perdure import` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.command import Server, run_here

from .test_checkpoints import run_sqlite


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
