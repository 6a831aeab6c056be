"""Workers, Redis and servers are killed, frozen and stopped under a load of runs, which keep the promise."""

from pathlib import Path

import pytest
from tests.chaos.scenario import Run, run_clean
from tests.chaos.worker_chaos import torment_on, torment_on_sqlite

RUNS = 24


def see(run: Run, *faults: str) -> None:
    """Everything was done at least once, and everything ended."""
    assert run.done == run.facts["runs"] >= RUNS
    assert run.facts["events read"] > RUNS
    for fault in ("worker killed", "worker frozen", "worker asked to stop", *faults):
        assert run.facts[f"fault: {fault}"] > 0, fault


@pytest.mark.timeout(240)
def test_workers_on_postgresql_with_redis_keep_the_promise(tmp_path: Path, postgres_url: str) -> None:
    run = run_clean(lambda run: torment_on(run, postgres_url), RUNS, tmp_path)
    see(run, "Redis killed", "Redis flushed", "Redis frozen")


@pytest.mark.timeout(240)
def test_remote_workers_of_a_server_on_sqlite_keep_the_promise(tmp_path: Path) -> None:
    see(run_clean(torment_on_sqlite, RUNS, tmp_path), "server killed")
