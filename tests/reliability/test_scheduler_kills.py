"""The short form of the scenario in which processes that fire schedules are killed."""

from pathlib import Path

from tests.chaos.scenario import run_clean
from tests.chaos.scheduler_kills import kill_schedulers


def test_processes_that_are_killed_miss_and_double_no_firing(database_url: str, tmp_path: Path) -> None:
    run = run_clean(lambda run: kill_schedulers(run, database_url, schedules=30), 90, tmp_path)
    assert run.facts["kills"] > 0
