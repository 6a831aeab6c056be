"""The services of several databases in one process."""

from __future__ import annotations

from pathlib import Path

from perdure.kernel.config import Settings
from perdure.runtime.services import Services
from perdure.threads.work import Ending
from perdure.workflows.loading import load_text

WORKFLOW = """
name: w
phases:
  - {name: a, type: command, command: a}
  - {name: b, type: command, command: b}
"""


async def test_each_database_has_its_own_policy_for_phases(tmp_path: Path) -> None:
    leases = [3.0, 7.0]
    opened = [
        Services.open(Settings(database_url=str(tmp_path / f"{lease}.db"), job_heartbeat=lease))
        for lease in leases
    ]
    try:
        for services, lease in zip(opened, leases, strict=True):
            workflow = load_text(WORKFLOW).definition
            assert workflow is not None
            services.definitions.add(workflow)  # type: ignore[arg-type]
            await services.workflows.run("w")
            for _ in ("a", "b"):
                # The second phase is created in the transaction that ends the first.
                (claimed,) = await services.run_queue.claim("w1", ["perdure.command"], 1, 0, ["workflows"])
                assert claimed.lease_seconds == lease
                await services.run_queue.finish(Ending(held=claimed.held, result="success"))
    finally:
        for services in opened:
            await services.store.close()
