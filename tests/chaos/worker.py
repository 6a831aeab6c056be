"""`python -m tests.chaos.worker`: a worker that writes down what it asks for and what its agents do.

It waits for a plan on stdin, so that it can be started ahead of its turn, and says when it has begun. SIGTERM
asks it to stop, as it does `perdure worker`; so does the end of its stdin, so that it outlives no test.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from tests.chaos.agents import make_agents
from tests.chaos.planted import planted_by_environment
from tests.support.history import Recorder
from tests.support.recording import EffectLog, RecordingQueue

from perdure.kernel.config import load_settings
from perdure.runtime.app import App
from perdure.runtime.stores import open_configured
from perdure.worker.options import WorkerOptions
from perdure.worker.worker import RunWorker

READY = b"ready"


class WorkerPlan(msgspec.Struct):
    """Who it is, where it writes its effects, and the server it works for; none is the database itself."""

    name: str
    log: str
    url: str | None = None


@asynccontextmanager
async def opened(plan: WorkerPlan, recorder: Recorder) -> AsyncIterator[RunWorker]:
    """The worker, as the settings in the environment want it."""
    settings = load_settings()
    agents = make_agents(recorder)
    options = WorkerOptions.from_settings(settings, worker_id=plan.name)
    if plan.url is not None:
        from perdure.client.lightning import LightningStoreClient
        from perdure.client.run_queue import RemoteRunQueue

        async with LightningStoreClient(plan.url) as client:
            yield RunWorker(RecordingQueue(RemoteRunQueue(plan.url), recorder), agents, options, store=client)
        return
    store = open_configured(settings)
    try:
        queue = App(store, settings).services.run_queue
        yield RunWorker(RecordingQueue(queue, recorder), agents, options, store=store)
    finally:
        await store.close()


async def work(plan: WorkerPlan) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hear() -> None:
        loop.remove_reader(sys.stdin.fileno())
        stop.set()

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(sys.stdin.fileno(), hear)
    log = EffectLog(Path(plan.log))
    async with opened(plan, Recorder(plan.name, log.write)) as worker:
        starting = asyncio.ensure_future(worker.start())
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            os.write(sys.stdout.fileno(), READY + b"\n")
            await stopping
        await worker.stop()
        await asyncio.gather(starting, return_exceptions=True)
    log.close()


def main() -> None:
    # The failures that agents are asked for are no news.
    logging.getLogger("perdure.worker.execution").setLevel(logging.CRITICAL)
    line = sys.stdin.buffer.readline()
    if line:
        with planted_by_environment():
            asyncio.run(work(msgspec.json.decode(line, type=WorkerPlan)))


if __name__ == "__main__":
    main()
