"""Workflow runs and approvals from the command line, on a database without a server."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

from tests.workflows.test_approval_runs import asked, opened, started

from .command import run_here

DATABASE = ("--database", "sqlite:///perdure.db")


async def _pause(folder: Path) -> tuple[str, str]:
    async with opened(f"sqlite:///{folder}/perdure.db") as perdure:
        run_id = await started(perdure)
        return run_id, (await asked(perdure, "post_plan")).approval_id


def perdure(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_here(folder, *arguments, *DATABASE)


def test_what_waits_is_listed_shown_and_answered_and_its_run_is_cancelled(tmp_path: Path) -> None:
    folder = tmp_path
    run_id, approval_id = asyncio.run(_pause(folder))
    listed = perdure(folder, "approval", "list").stdout
    assert approval_id[:18] in listed
    assert "Go on?" in listed
    shown = perdure(folder, "approval", "show", approval_id[:18]).stdout
    assert f"perdure approval approve {approval_id[:18]}" in shown
    run = perdure(folder, "workflow", "show", run_id[:18]).stdout
    assert "⏸ plan" in run
    assert f"perdure approval show {approval_id[:18]}" in run
    assert run_id[:18] in perdure(folder, "workflow", "list").stdout
    reply = perdure(folder, "approval", "reply", approval_id, "yes")
    assert (reply.returncode, "takes no reply" in reply.stderr) == (1, True)
    answered = json.loads(perdure(folder, "approval", "approve", approval_id[:18], "--json").stdout)
    assert answered["status"] == "approved"
    again = perdure(folder, "approval", "reject", approval_id)
    assert again.returncode == 1
    assert "was approved by" in again.stderr
    assert "Release it?" in perdure(folder, "approval", "list").stdout
    assert approval_id[:18] in perdure(folder, "approval", "list", "--all").stdout
    assert perdure(folder, "approval", "show", "nothing").returncode == 4
    # The next phase is not executed, because there is no worker.
    assert "gated" in perdure(folder, "workflow", "stats").stdout
    assert perdure(folder, "workflow", "diff", run_id[:18], run_id).stdout == "The runs do not differ.\n"
    cancelled = perdure(folder, "workflow", "cancel", run_id[:18], "--reason", "enough")
    assert cancelled.stdout == f"{run_id} is cancelled\n"
    assert "Nothing waits for an answer" in perdure(folder, "approval", "list").stdout
    watched = perdure(folder, "workflow", "watch", run_id)
    assert watched.returncode == 1
    assert "cancelled" in watched.stdout
    found = json.loads(perdure(folder, "workflow", "list", "--status", "cancelled", "--json").stdout)
    assert [each["workflow_run_id"] for each in found["items"]] == [run_id]
    assert "No workflow runs match." in perdure(folder, "workflow", "list", "--status", "queued").stdout
