"""The HTTP server is killed under load and started again; its clients lose nothing and do nothing twice."""

from pathlib import Path

import pytest
from tests.chaos.scenario import run_clean
from tests.chaos.server_kills import ServerKills, kill_server_on_sqlite

ROLLOUTS = 200
KILLS = 2


@pytest.mark.timeout(180)
def test_clients_outlive_the_kills_of_a_server_on_sqlite(tmp_path: Path) -> None:
    run = run_clean(kill_server_on_sqlite, KILLS, tmp_path, rollouts=ROLLOUTS)
    assert run.done == KILLS
    assert run.facts["rollouts ended"] >= ROLLOUTS


@pytest.mark.timeout(180)
def test_clients_outlive_the_kills_of_a_server_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    rollouts = ROLLOUTS // 2
    run = run_clean(lambda run: ServerKills(run, postgres_url).kill_all(), 1, tmp_path, rollouts=rollouts)
    assert run.facts["rollouts ended"] >= rollouts
