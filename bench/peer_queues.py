"""Queues on PostgreSQL beside ours, each with the settings with which it drains fastest.

Run as `python -m bench.peer_queues pgqueuer` (or `procrastinate`, or `dbos`) in the environment of that peer.
The work `drain` fills the queue of the database at `url` and returns the jobs per second of emptying it.
"""

import asyncio
import importlib
import sys
import time
from typing import Any

from bench.peer_loop import work_off
from bench.timing import spread

BATCH = 100
CONNECTIONS = 2
ENQUEUERS = 16
POLLING_SECONDS = 0.02
LEFT = """
SELECT count(*) FROM dbos.workflow_status WHERE queue_name = %s AND status IN ('ENQUEUED', 'PENDING')
"""


class Pgqueuer:
    """Two managers in one loop, each with its own connection, which take 100 jobs at a time."""

    def __init__(self) -> None:
        self._asyncpg: Any = importlib.import_module("asyncpg")
        self._db: Any = importlib.import_module("pgqueuer.db")
        self._queries: Any = importlib.import_module("pgqueuer.queries")
        self._managers: Any = importlib.import_module("pgqueuer.qm")
        self._modes: Any = importlib.import_module("pgqueuer.types").QueueExecutionMode
        self._known: set[str] = set()
        self._done = 0

    async def drain(self, url: str, size: int) -> float:
        connections = [await self._asyncpg.connect(url) for _ in range(CONNECTIONS)]
        try:
            stores = [self._queries.Queries(self._db.AsyncpgDriver(each)) for each in connections]
            await self._fill(stores[0], url, size)
            managers = [self._manager(each) for each in stores]
            self._done = 0
            started = time.perf_counter()
            await asyncio.gather(*(each.run(batch_size=BATCH, mode=self._modes.drain) for each in managers))
            taken = time.perf_counter() - started
        finally:
            for connection in connections:
                await connection.close()
        return check(size, self._done) / taken

    async def _fill(self, queries: Any, url: str, size: int) -> None:
        if url not in self._known:
            await queries.install()
            self._known.add(url)
        for start in range(0, size, BATCH):
            count = min(BATCH, size - start)
            await queries.enqueue(["noop"] * count, [b"{}"] * count, [0] * count)

    def _manager(self, queries: Any) -> Any:
        manager = self._managers.QueueManager(queries)

        async def noop(job: Any) -> None:
            self._done += 1

        manager.entrypoint("noop")(noop)
        return manager


class Procrastinate:
    """One worker that runs 100 jobs at once, and stops when the queue is empty."""

    def __init__(self) -> None:
        self._module: Any = importlib.import_module("procrastinate")
        self._known: set[str] = set()
        self._done = 0

    async def drain(self, url: str, size: int) -> float:
        app = self._module.App(connector=self._module.PsycopgConnector(conninfo=url, max_size=ENQUEUERS))

        async def noop(number: int) -> None:
            self._done += 1

        task = app.task(name="noop")(noop)
        async with app.open_async():
            if url not in self._known:
                await app.schema_manager.apply_schema_async()
                self._known.add(url)
            for start in range(0, size, BATCH):
                numbers = range(start, min(start + BATCH, size))
                await task.batch_defer_async(*({"number": number} for number in numbers))
            self._done = 0
            started = time.perf_counter()
            await app.run_worker_async(concurrency=BATCH, wait=False, install_signal_handlers=False)
            taken = time.perf_counter() - started
        return check(size, self._done) / taken


class Dbos:
    """One executor; every round has its own queue, without limits and with the shortest polling.

    The queue is filled before it is registered. The clock runs from the start of the first job until the last
    one is recorded as done, so that time before the start does not count.
    """

    def __init__(self) -> None:
        self._dbos: Any = importlib.import_module("dbos").DBOS
        self._psycopg: Any = importlib.import_module("psycopg")
        self._url = ""
        self._rounds = 0
        self._began = 0.0

    async def drain(self, url: str, size: int) -> float:
        if url != self._url:
            await asyncio.to_thread(self._launch, url)
        self._rounds += 1
        self._began = 0.0
        queue = f"bench-{self._rounds}"
        options = {"workflow_name": "noop", "queue_name": queue}
        await spread(
            ENQUEUERS,
            size,
            lambda number: asyncio.to_thread(self._dbos.enqueue_workflow_with_options, options, number),
        )
        await asyncio.to_thread(self._dbos.register_queue, queue, polling_interval_sec=POLLING_SECONDS)
        await self._emptied(queue)
        return size / (time.perf_counter() - self._began)

    def _launch(self, url: str) -> None:
        self._url = url
        self._dbos(config={"name": "bench", "system_database_url": url, "log_level": "WARNING"})

        def noop(number: int) -> None:
            self._began = self._began or time.perf_counter()

        self._dbos.workflow(name="noop")(noop)
        self._dbos.launch()

    async def _emptied(self, queue: str) -> None:
        async with await self._psycopg.AsyncConnection.connect(self._url, autocommit=True) as connection:
            while (await (await connection.execute(LEFT, (queue,))).fetchone())[0]:  # noqa: ASYNC110
                await asyncio.sleep(POLLING_SECONDS)


def check(size: int, done: int) -> int:
    """Return the number of jobs if all of them were done."""
    if size != done:
        raise RuntimeError(f"{done} of {size} jobs were done")
    return done


QUEUES: dict[str, type[Any]] = {"pgqueuer": Pgqueuer, "procrastinate": Procrastinate, "dbos": Dbos}


async def main(name: str) -> None:
    peer = QUEUES[name]()

    async def do(work: str, size: int, url: str | None) -> float:
        return float(await getattr(peer, work)(url, size))

    await work_off(do)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
