"""A commit that is acknowledged and lost, or done twice, is found in the runs of a worker."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.agents import make_agents
from tests.chaos.client import Client, ClientPlan
from tests.chaos.planted import Planted, planted
from tests.support.effects import EffectReport, check_effects
from tests.support.history import Recorder
from tests.support.recording import EffectLog, RecordingQueue, read_log
from tests.support.run_snapshot import take_runs

from perdure.embedding.perdure import Perdure
from perdure.kernel.errors import NotFound
from perdure.worker.options import WorkerOptions
from perdure.worker.worker import RunWorker

RUNS = 16
LEASE = 0.4
PLAN: dict[str, Any] = {
    "runs": RUNS,
    "threads": 4,
    "pause": 0.005,
    "whole": 0,
    "webhook": "http://127.0.0.1:8080/ended",
}
SETTINGS: dict[str, Any] = {
    "watchdog_interval": 0.05,
    "job_heartbeat": LEASE,
    "webhook_allow_private": True,
}
LOST = ("claim_runs", "append_events", "save_checkpoints", "keep_steps", "finish_runs")
DOUBLED = ("claim_runs", "save_checkpoints")
"""A second execution of any other operation changes nothing."""


@asynccontextmanager
async def working(perdure: Perdure, recorder: Recorder) -> AsyncIterator[None]:
    queue = RecordingQueue(perdure.services.run_queue, recorder)
    options = WorkerOptions(worker_id="w1", concurrency=4, heartbeat=LEASE, interval=0.05, grace=0.1)
    worker = RunWorker(queue, make_agents(recorder), options, store=perdure.store)
    await worker.start()
    try:
        yield
    finally:
        await worker.stop()


async def execute(folder: Path) -> EffectReport:
    """Some runs from the first to the last call, and what the checker says of them."""
    log = EffectLog(folder / "log")
    async with Perdure(":memory:", **SETTINGS) as perdure:
        async with working(perdure, Recorder("w1", log.write)):
            plan = ClientPlan(log="", seed=1, **PLAN)
            client = Client(perdure.threads, Recorder("client", log.write), plan, lambda: None)
            client.enough.set()
            await client.run()
        rows = await take_runs(perdure.services.storage)
    log.close()
    return check_effects(read_log(folder / "log"), rows, grace=LEASE)


async def test_without_a_fault_nothing_is_found(tmp_path: Path) -> None:
    report = await execute(tmp_path)
    assert report.violations == []
    assert report.facts["acknowledged events"] > RUNS


async def test_a_lost_run_is_missed_by_its_client(tmp_path: Path) -> None:
    with (
        planted(Planted("lost", operation="create_runs")),
        pytest.raises(ExceptionGroup) as failed,
    ):
        await execute(tmp_path)
    assert failed.value.subgroup(NotFound) is not None


@pytest.mark.parametrize("operation", LOST)
async def test_a_lost_commit_is_found(tmp_path: Path, operation: str) -> None:
    with planted(Planted("lost", operation=operation)):
        report = await execute(tmp_path)
    assert report.violations


@pytest.mark.parametrize("operation", DOUBLED)
async def test_a_doubled_commit_is_found(tmp_path: Path, operation: str) -> None:
    with planted(Planted("doubled", operation=operation)):
        report = await execute(tmp_path)
    assert any("doubled" in violation for violation in report.violations), report.violations
