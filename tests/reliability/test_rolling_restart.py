"""Workers with different agents are restarted under runs, and no run is lost."""

from pathlib import Path

import pytest
from tests.chaos.rolling_restart import restart_workers
from tests.chaos.scenario import run_clean

RUNS = 16


@pytest.mark.timeout(300)
def test_no_run_is_lost_while_two_different_workers_are_restarted(tmp_path: Path, postgres_url: str) -> None:
    run = run_clean(lambda run: restart_workers(run, postgres_url), RUNS, tmp_path)
    assert run.done == RUNS
