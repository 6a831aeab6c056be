"""`perdure db backup`, `restore`, `verify` and `export`, and their refusals."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.cli.command import Server, after, run_here, settings


def files_in(folder: Path, part: str) -> list[str]:
    return [name for name in os.listdir(folder) if part in name]


def test_a_served_database_is_backed_up_checked_exported_and_never_replaced(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        for number in range(3):
            server.json("rollout", "enqueue", str(number))
        made = server.run("db", "backup", "a.backup")
        assert made.returncode == 0, made.stderr
        assert "Backed up to a.backup" in made.stdout
        assert "perdure db verify a.backup" in made.stdout
        again = server.run("db", "backup", "a.backup")
        assert again.returncode == 2
        assert "--overwrite" in again.stderr
        assert server.json("db", "backup", "a.backup", "--overwrite")["engine"] == "sqlite"

        found = server.json("db", "verify")
        assert found["ok"]
        shown = server.run("db", "gc", "--older-than", "spans=30", "--older-than", "threads=0.5")
        kept = [line.split()[:3] for line in shown.stdout.splitlines()]
        assert kept[0] == ["data", "older", "than"]
        assert {tuple(each) for each in kept} >= {
            ("audit", "90", "d"),
            ("removed", "60", "s"),
            ("spans", "30", "d"),
            ("threads", "12", "h"),
            ("memory", "kept", "0"),
        }
        swept = server.json("db", "gc", "--dry-run", "--older-than", "rollouts=0.0000001")
        deleted = {each["kind"]: each["deleted"] for each in swept["items"]}
        assert (swept["complete"], deleted["rollouts"]) == (True, 0), "they wait in the queue"
        for wrong in ("spans", "spans=", "spans=soon", "nothing=3", "spans=-1"):
            refused = server.run("db", "gc", "--older-than", wrong)
            assert (refused.returncode, "invalid_input" in refused.stderr) == (1, True), wrong
        checked = server.run("db", "verify", "a.backup")
        assert (checked.returncode, "integrity" in checked.stdout) == (0, True)
        assert max(map(len, checked.stdout.splitlines())) <= 80

        # A live database is not changed.
        refused = server.run("db", "restore", "a.backup", "--database", "perdure.db", "--yes")
        assert refused.returncode == 1
        assert "stop it first" in refused.stderr
        assert "Nothing was changed" in refused.stderr
        assert len(server.json("rollout", "list")["items"]) == 3
        assert files_in(tmp_path, "before-restore") == []

        exported = server.run("db", "export", "rollouts", "threads")
        lines = [json.loads(line) for line in exported.stdout.splitlines()]
        assert [line["kind"] for line in lines] == ["rollouts"] * 3
        assert "Exported 3 rollouts, 0 threads." in exported.stderr
        to_file = server.run("db", "export", "rollouts", "--limit", "2", "-o", "out.jsonl")
        assert (to_file.returncode, to_file.stdout) == (0, "")
        assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2
        for arguments, problem in (
            (("nothing",), "rollouts"),
            (("threads", "--status", "\0"), "status"),
            (("rollouts", "-o", "missing/out.jsonl"), "missing"),
        ):
            bad = server.run("db", "export", *arguments)
            assert bad.returncode != 0
            assert problem in bad.stderr
            assert "Traceback" not in bad.stderr

        # Read the same rows over HTTP, page by page.
        ids: list[str] = []
        after: str | None = ""
        while after is not None:
            status, body = server.get(f"/api/v1/db/export/rollouts?limit=2&after={after}")
            assert status == 200
            page = json.loads(body)
            ids += [each["id"] for each in page["items"]]
            after = page["next"]
        assert ids == sorted(line["data"]["id"] for line in lines)
        for path in ("nothing", "rollouts?limit=5000", "rollouts?since=-1", "memory_events?status=x"):
            assert server.get(f"/api/v1/db/export/{path}")[0] == 422

    # Without a server the backup is restored, and the replaced file is kept.
    restore = ("db", "restore", "a.backup", "--database", "perdure.db")
    asked = run_here(tmp_path, *restore)
    assert asked.returncode != 0
    assert files_in(tmp_path, "before-restore") == []
    done = run_here(tmp_path, *restore, "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["kept"]) >= 1
    assert len(files_in(tmp_path, "before-restore")) >= 1
    assert (
        len(
            json.loads(run_here(tmp_path, "rollout", "ls", "--database", "perdure.db", "--json").stdout)[
                "items"
            ]
        )
        == 3
    )


LIMIT = 96 << 10
LIMITED = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT}, {LIMIT}))"


def limited(folder: Path, *arguments: str) -> str:
    """Return the error of a command whose process may write only small files, as on a full disk."""
    command = after(LIMITED, *arguments, "--json")
    ended = subprocess.run(
        command, cwd=folder, env=settings(folder), capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, ""), ended.stderr
    found = json.loads(ended.stderr)["error"]
    assert found["code"] == "storage_full"
    assert found["message"].endswith("; nothing was left behind")
    return str(found["message"])


def test_a_disk_that_takes_no_more_is_one_sentence_and_nothing_is_lost(tmp_path: Path) -> None:
    to = ("--database", "perdure.db")
    for number in range(3):
        assert run_here(tmp_path, "rollout", "enqueue", str(number), *to).returncode == 0
    assert run_here(tmp_path, "db", "backup", "a.backup", *to).returncode == 0
    kept, names = (tmp_path / "a.backup").read_bytes(), set(os.listdir(tmp_path))
    found = limited(tmp_path, "db", "backup", "b.backup", *to)
    assert found.startswith("cannot write b.backup: the disk refuses more data")
    limited(tmp_path, "db", "backup", "a.backup", "--overwrite", *to)
    limited(tmp_path, "db", "restore", "a.backup", "--yes", *to)
    assert set(os.listdir(tmp_path)) == names
    assert (tmp_path / "a.backup").read_bytes() == kept
    assert len(json.loads(run_here(tmp_path, "rollout", "list", "--json", *to).stdout)["items"]) == 3


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("backup", "--database", "sqlite:///missing.db"), "missing.db"),
        (("restore", "missing.backup", "--database", "x.db"), "missing.backup"),
        (("restore", "text", "--database", "x.db"), "text"),
        (("restore", "text"), "--database"),
        (("verify", "text"), "text"),
    ],
)
def test_what_is_no_backup_is_refused_with_a_sentence(
    tmp_path: Path, arguments: tuple[str, ...], problem: str
) -> None:
    (tmp_path / "text").write_text("no database at all" * 1000)
    refused = run_here(tmp_path, "db", *arguments)
    assert refused.returncode != 0
    assert problem in refused.stderr
    assert "Traceback" not in refused.stderr
    assert sorted(files_in(tmp_path, "")) == ["text"]
