"""Workflow files from the command line."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from perdure.agents.records import AgentSpec
from perdure.embedding.perdure import Perdure

from .command import ROOT, Server, run_here

PATIENCE = 60.0


def test_files_are_checked_and_mistakes_have_their_lines(tmp_path: Path) -> None:
    (tmp_path / "workflows").mkdir()
    (tmp_path / "crons").mkdir()
    (tmp_path / "workflows" / "good.yaml").write_text("name: good\nphases:\n  - {name: a, prompt: hello}\n")
    (tmp_path / "workflows" / "bad.yaml").write_text("name: bad\nphases:\n  - name: a\n    typ: agent\n")
    (tmp_path / "crons" / "daily.yaml").write_text(
        "kind: cron\nname: daily\nschedule: 0 9 * * *\nworkflow: good\n"
    )
    ended = run_here(tmp_path, "workflow", "validate")
    assert ended.returncode == 1
    assert ended.stdout.splitlines()[0].startswith("error: workflows/bad.yaml:4: ")
    assert ended.stdout.splitlines()[-1] == "2 files are valid, 1 has mistakes."
    one = run_here(tmp_path, "workflow", "validate", "workflows/good.yaml")
    assert (one.returncode, one.stdout.strip()) == (0, "1 file is valid, 0 have mistakes.")
    document = json.loads(run_here(tmp_path, "workflow", "validate", "--json").stdout)
    assert [item["name"] for item in document["items"]] == [None, "good", "daily"]
    assert document["items"][0]["problems"][0]["line"] == 4


def test_assistants_are_looked_up_where_a_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "workflows").mkdir()
    (tmp_path / "workflows" / "w.yaml").write_text(
        "name: w\nphases:\n  - name: a\n    prompt: x\n    assistant: coder\n"
    )
    database = f"sqlite:///{tmp_path / 'p.db'}"
    note = "note: --url or --database looks up the assistants that phases name: coder"
    offline = run_here(tmp_path, "workflow", "validate")
    assert (offline.returncode, offline.stdout.splitlines()[0]) == (0, note)

    async def register() -> None:
        async with Perdure(str(tmp_path / "p.db")) as opened:
            await opened.assistants.register([AgentSpec(name="coder")])

    asyncio.run(_touch(tmp_path / "p.db"))
    unknown = run_here(tmp_path, "workflow", "validate", "--database", database)
    error = "error: workflows/w.yaml:5: phase 'a': there is no assistant or agent 'coder'"
    assert (unknown.returncode, unknown.stdout.splitlines()[0]) == (1, error)
    asyncio.run(register())
    known = run_here(tmp_path, "workflow", "validate", "--database", database)
    assert (known.returncode, known.stdout.strip()) == (0, "1 file is valid, 0 have mistakes.")


async def _touch(path: Path) -> None:
    async with Perdure(str(path)):
        pass


def test_a_folder_without_files_teaches(tmp_path: Path) -> None:
    ended = run_here(tmp_path, "workflow", "validate")
    assert (ended.returncode, ended.stdout.startswith("No workflow files here.")) == (0, True)


def test_the_example_is_valid(tmp_path: Path) -> None:
    ended = run_here(tmp_path, "workflow", "validate", str(ROOT / "examples" / "workflows"))
    assert (ended.returncode, ended.stdout.strip()) == (0, "1 file is valid, 0 have mistakes.")


def test_the_schema_describes_both_kinds_of_file(tmp_path: Path) -> None:
    schema = json.loads(run_here(tmp_path, "workflow", "schema").stdout)
    assert schema["anyOf"] == [{"$ref": "#/$defs/Workflow"}, {"$ref": "#/$defs/Cron"}]
    assert "generic_loop" in schema["$defs"]["Phase"]["properties"]


def test_a_run_keeps_what_it_is_about(tmp_path: Path) -> None:
    (tmp_path / "workflows").mkdir()
    (tmp_path / "workflows" / "w.yaml").write_text("name: w\nphases:\n  - {name: a, type: approval}\n")
    options = ("--repo", "acme/shop", "--issue", "7", "--trigger-type", "webhook", "--trigger", "acme/shop#7")
    with Server(tmp_path) as server:
        run_id = server.json("workflow", "run", "w", *options)["workflow_run_id"]
        run = server.json("workflow", "show", run_id)
        assert (run["repo"], run["issue_number"], run["trigger_type"]) == ("acme/shop", 7, "webhook")
        for wrong in (("--trigger-type", "mail"), ("--issue", "-1"), ("--issue", "x")):
            refused = server.run("workflow", "run", "w", *wrong)
            assert refused.returncode == 2, wrong
            assert wrong[0] in refused.stderr


FAN = """
name: fan
phases:
  - {name: topics, type: command, command: "printf 'queues\\nleases\\n'"}
  - {name: each, type: map, items: "{{topics}}", command: "echo about {{item}}"}
  - name: check
    type: command
    command: |
      echo "reading report.md" >&2
      echo "there is no report.md" >&2
      exit 4
final_message: "{{each}}"
"""


def test_a_run_with_a_map_fails_with_its_last_lines_and_is_retried_from_a_phase(tmp_path: Path) -> None:
    """The steps of a workflow author: the run fails, the file is corrected, the same run continues."""
    file = tmp_path / "workflows" / "fan.yaml"
    file.parent.mkdir()
    file.write_text(FAN)
    with Server(tmp_path, "dev", "--no-grpc") as server:
        failed = server.run("workflow", "run", "fan", "--watch", "--timeout", "1m")
        assert failed.returncode == 1, failed.stderr
        assert "          there is no report.md\n" in failed.stdout
        run_id = server.json("workflow", "list")["items"][0]["workflow_run_id"]
        refused = server.run("workflow", "retry", run_id, "--from", "nothing")
        assert "its phases are: topics, each, check" in refused.stderr
        file.write_text(FAN.replace("about", "more about").replace("exit 4", "exit 0"))
        ends = time.monotonic() + PATIENCE
        while b"more about" not in server.get("/api/v1/workflows/fan")[1]:
            assert time.monotonic() < ends
        anew = server.run("workflow", "retry", run_id, "--from", "each", "--definition", "current")
        assert anew.returncode == 0, anew.stderr
        assert server.run("workflow", "watch", run_id, "--timeout", "1m").returncode == 0
        shown = server.run("workflow", "show", run_id).stdout
        assert "more about queues\\n" in shown
        assert "attempt 2" in shown
