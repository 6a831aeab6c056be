"""The scheduler from the command line: its table, and firing, pausing and resuming by name."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure, PerdureClient, errors
from perdure.cli.commands.scheduler import status_lines
from perdure.client.session import error_from
from perdure.errors import PerdureError
from perdure.schedules.records import JobStatus, SchedulerStatus

from .command import ROOT, Server, run_here
from .test_cron_commands import AGENTS, DATABASE, YEARLY, said

TABLE = """\
Scheduler: RUNNING

JOB                  STATUS       LAST RUN             NEXT RUN             RUNS       ERRORS   $
────────────────────────────────────────────────────────────────────────────────────────────
rollup-day           IDLE         2024-01-29 15:00     2024-01-29 16:00     24         0        $
rollup-week          PAUSED       Never                -                    4          0        $
compaction           RUNNING      Never                -                    0          1        $
  Last error: a b
"""
"""A dollar sign marks the space at the end of a line."""
CRON = """
kind: cron
name: nightly
schedule: "0 3 * * *"
handler: nobody
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("scheduler")
    (folder / "agents.py").write_text((ROOT / "examples" / "agents.py").read_text())
    (folder / "crons").mkdir()
    (folder / "crons" / "nightly.yaml").write_text(CRON)
    with Server(folder, "serve", *AGENTS) as server:
        yield server


def test_the_status_is_a_table_of_fixed_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    base: dict[str, Any] = {"schedule_id": "s", "cron_expr": "@hourly", "target": "job"}
    jobs = [
        JobStatus(job_name="rollup-day", last_run=1706536800.0, next_run=1706540400.0, run_count=24, **base),
        JobStatus(job_name="rollup-week", is_paused=True, is_running=True, next_run=1.0, run_count=4, **base),
        JobStatus(
            job_name="compaction",
            is_running=True,
            error_count=1,
            last_result="failed",
            last_error="a\nb",
            **base,
        ),
    ]
    status = SchedulerStatus(state="running", scheduler_running=True, jobs=jobs)
    try:
        assert "\n".join(status_lines(status)) + "\n" == TABLE.replace("$", " ")
    finally:
        monkeypatch.undo()
        time.tzset()
    stopped = status_lines(SchedulerStatus(state="idle", scheduler_running=False, jobs=[]))
    assert stopped[:2] == ["Scheduler: STOPPED", ""]
    assert stopped[2].startswith("No jobs registered.")


def test_a_job_is_triggered_paused_resumed_and_has_a_history(server: Server) -> None:
    words = ("greet", YEARLY, '{"name": "Ann"}', "--name", "greeting", "--overlap", "skip", "--jitter", "10s")
    said(server.run("cron", "create", *words, "--misfire", "skip", "--timeout", "1m"))
    assert "has not fired yet" in said(server.run("scheduler", "history", "greeting"))
    assert said(server.run("scheduler", "trigger", "greeting")).startswith("Job greeting started ")

    def ended() -> bool:
        firing = server.json("scheduler", "history", "greeting")["items"][0]
        return bool(firing["status"] != "running")

    deadline = time.monotonic() + 20
    while not ended():
        assert time.monotonic() < deadline
    (firing,) = server.json("scheduler", "history", "greeting")["items"]
    assert (firing["status"], firing["source"]) == ("success", "manual")
    assert "manual" in said(server.run("scheduler", "history", "greeting"))
    assert said(server.run("scheduler", "pause", "greeting")) == "Job greeting is paused."
    lines = said(server.run("scheduler", "status")).splitlines()
    assert lines[0] == "Scheduler: RUNNING"
    (row,) = [line.split() for line in lines if line.startswith("greeting ")]
    assert (row[1], row[-3:]) == ("PAUSED", ["-", "1", "0"])
    found = server.json("scheduler", "status")
    names = [each["job_name"] for each in found["jobs"]]
    assert names == sorted(names)
    assert {"greeting", "rollup-day"} <= set(names)
    assert [each["name"] for each in server.json("cron", "ls")["items"]] == ["greeting"]
    assert server.json("cron", "ls", "--all")["total"] == len(names)
    assert server.run("scheduler", "resume", "greeting").stdout.startswith("Job greeting fires in ")
    assert said(server.run("cron", "trigger", "greeting")).startswith("Cron greeting started ")
    shown = said(server.run("cron", "show", "greeting"))
    assert "overlap" in shown
    assert "misfire" in shown
    for command in ("trigger", "pause", "resume", "history"):
        missing = server.run("scheduler", command, "nothing")
        assert (missing.returncode, missing.stderr) == (4, "perdure: job_not_found: Job not found: nothing\n")


def test_without_a_server_the_scheduler_is_stopped(tmp_path: Path) -> None:
    run_here(tmp_path, "thread", "create", *DATABASE)
    assert said(run_here(tmp_path, "scheduler", "status", *DATABASE)).startswith("Scheduler: STOPPED")
    found = json.loads(said(run_here(tmp_path, "scheduler", "status", "--json", *DATABASE)))
    assert (found["scheduler_running"], found["jobs"]) == (False, [])


def test_the_errors_of_the_scheduler_keep_their_names_over_http_and_in_the_command(server: Server) -> None:
    """The original has five errors: three occur over HTTP, two only when starting and stopping in process."""

    async def raised(*arguments: Any, **fields: Any) -> str:
        async with PerdureClient(server.url) as client:
            try:
                await client.schedules.create(*arguments, target="run", assistant_id="greet", **fields)
            except PerdureError as error:
                return type(error).__name__
        raise AssertionError("nothing was refused")

    assert asyncio.run(raised("nonsense")) == "InvalidCron"
    assert asyncio.run(raised("0 9 * * *", timezone="Mars/Base")) == "InvalidTimezone"
    commands = {
        ("cron", "create", "greet", "x y z"): "invalid_cron",
        ("cron", "create", "greet", "0 9 * * *", "--timezone", "Mars/Base"): "invalid_timezone",
        ("scheduler", "pause", "nobody"): "job_not_found",
        ("cron", "show", "nobody"): "job_not_found",
    }
    for arguments, code in commands.items():
        ended = server.run(*arguments)
        assert ended.stderr.startswith(f"perdure: {code}: "), (arguments, ended.stderr)
        assert ended.returncode == (4 if code == "job_not_found" else 1)
        told = json.loads(server.run(*arguments, "--json").stderr)
        assert told["error"]["code"] == code
    for status, code in ((409, "already_running"), (409, "not_running")):
        body = json.dumps({"code": code, "detail": "as the server says"}).encode()
        assert error_from(status, body).code == code


async def test_starting_twice_and_stopping_twice_have_errors_of_their_own() -> None:
    async with Perdure("memory:") as perdure:
        timer = perdure.services.schedule_timer
        with pytest.raises(errors.AlreadyRunning) as raised:
            await timer.start()
        assert raised.value.code == "already_running"
        await timer.stop()
        with pytest.raises(errors.NotRunning):
            await timer.stop()
        await timer.start()
