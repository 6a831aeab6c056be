"""Workflows of DBOS beside ours: links that enqueue one another, and steps in one workflow.

Run as `python -m bench.peer_workflows` in the environment of DBOS. Its engine is the default one, SQLite, in
the file of `url`, and its queue has the default settings. Each work returns its duration in seconds.
"""

import asyncio
import importlib
import threading
import time
from typing import Any

from bench.peer_loop import work_off

QUEUE = "bench"
PATIENCE_SECONDS = 300.0


class Dbos:
    """One executor, launched with the first work."""

    def __init__(self) -> None:
        module: Any = importlib.import_module("dbos")
        self._dbos: Any = module.DBOS
        self._launched = False
        self._ended = threading.Event()

    def _launch(self, url: str) -> None:
        if self._launched:
            return
        self._launched = True
        self._dbos(config={"name": "bench", "system_database_url": url, "log_level": "WARNING"})

        def link(left: int) -> int:
            if left > 1:
                self._enqueue(left - 1)
            else:
                self._ended.set()
            return left

        def nothing(number: int) -> int:
            return number

        self._step = self._dbos.step(name="nothing")(nothing)

        def steps(count: int) -> int:
            return sum(self._step(number) for number in range(count))

        self._dbos.workflow(name="link")(link)
        self._steps = self._dbos.workflow(name="steps")(steps)
        self._dbos.launch()
        self._dbos.register_queue(QUEUE)

    def _enqueue(self, left: int) -> None:
        self._dbos.enqueue_workflow_with_options({"workflow_name": "link", "queue_name": QUEUE}, left)

    def chain(self, url: str, size: int) -> float:
        """Return the seconds from the first link to the start of the last one."""
        self._launch(url)
        self._ended.clear()
        started = time.perf_counter()
        self._enqueue(size)
        if not self._ended.wait(PATIENCE_SECONDS):
            raise RuntimeError(f"{size} workflows did not end within {PATIENCE_SECONDS} s")
        return time.perf_counter() - started

    def steps(self, url: str, size: int) -> float:
        """Run one workflow with `size` steps."""
        self._launch(url)
        started = time.perf_counter()
        self._steps(size)
        return time.perf_counter() - started


async def main() -> None:
    peer = Dbos()

    async def do(work: str, size: int, url: str | None) -> float:
        return float(await asyncio.to_thread(getattr(peer, work), url, size))

    await work_off(do)


if __name__ == "__main__":
    asyncio.run(main())
