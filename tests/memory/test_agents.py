"""Agents search memory as `ctx.memory`, wherever they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kernel.support import until_true
from tests.memory.agents import recall
from tests.server.native.support import housed

from perdure import Agents, InMemoryLightningStore, Perdure, RunRequest
from perdure.agents.commands import isolated
from perdure.client.run_queue import RemoteRunQueue
from perdure.kernel.ids import derived_ulid
from perdure.memory.index import MemoryIndexer
from perdure.memory.records import NewMemoryEvent
from perdure.worker.options import WorkerOptions
from perdure.worker.worker import RunWorker

ROOT = Path(__file__).parents[2]
EVENT = NewMemoryEvent(
    event_id=derived_ulid(1_705_312_800_000, "a"), session_id="talk", text="The zebra was renamed to horse"
)


def check(values: Any) -> None:
    assert (values["texts"], values["sessions"], values["mode"]) == ([EVENT.text], ["talk"], "text")
    assert "no filter 'magic'" in values["refused"]


async def test_in_the_process_of_the_worker_and_in_one_of_its_own(tmp_path: Path) -> None:
    agents = Agents()
    agents.register("here", recall)
    agents.register("apart", isolated("tests.memory.agents:recall", directory=ROOT))
    async with Perdure(f"sqlite:///{tmp_path}/a.db", agents=agents) as perdure:
        await perdure.memory.ingest(EVENT)

        async def indexed() -> bool:
            return bool((await perdure.memory.search("zebra")).items)

        # The outbox's consumer indexes it.
        await until_true(indexed)
        for name in ("here", "apart"):
            end = await perdure.run(name, {"query": "zebra"})
            assert end.run.status == "success", end
            check(end.values)


async def test_in_a_worker_without_a_database() -> None:
    agents = Agents()
    agents.register("far", recall)
    async with InMemoryLightningStore() as store, housed(store) as house:
        services = house.visitor.app.services
        await services.memory.ingest(EVENT)
        await MemoryIndexer(services.storage).index(await services.memory.ns())
        queue = RemoteRunQueue(house.visitor.url)
        worker = RunWorker(queue, agents, WorkerOptions(heartbeat=5.0, interval=1.0), memory=queue.memory)
        await worker.start()
        try:
            run = await house.client.create_run(RunRequest(assistant_id="far", input={"query": "zebra"}))
            end = await house.client.join_run(run.run_id)
        finally:
            await worker.stop()
        assert end.run.status == "success", end
        check(end.values)
