"""`python -m tests.worker.frozen LEASE`: a worker whose agent waits for a byte, then has an effect.

It prints what happens: begun, then effect if there is one, and the result of the attempt.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Any

from tests.kernel.support import until
from tests.worker.queue_support import MemoryQueue
from tests.worker.worker_support import House

from perdure.kernel.clock import boottime
from perdure.threads.model import RUN_QUEUES, QueueName
from perdure.threads.work import Assignment, Lease, Verdict


class LateQueue(MemoryQueue):
    """Queue with one attempt. After a freeze it answers no renewal before the agent has tried its effect."""

    tried = False
    renewed: float | None = None

    async def claim(
        self,
        worker_id: str,
        agents: Sequence[str],
        limit: int = 1,
        wait: float = 0.0,
        queues: Sequence[QueueName] = RUN_QUEUES,
        *,
        idempotency_key: str | None = None,
    ) -> list[Assignment]:
        if self.renewed is not None:
            return await asyncio.sleep(wait, [])
        found = await super().claim(worker_id, agents, limit, wait)
        self.renewed = boottime() if found else None
        return found

    async def renew(self, worker_id: str, held: Sequence[Lease]) -> list[Verdict]:
        if self.renewed is not None and boottime() - self.renewed > self.lease:
            await until(lambda: self.tried)
        self.renewed = boottime()
        return await super().renew(worker_id, held)


async def main(lease: float) -> None:
    house = House(lease)
    house.queue = queue = LateQueue(lease)

    @house.agents.agent("one")
    async def work(ctx: Any, input: Any) -> None:
        print("begun", flush=True)
        await asyncio.to_thread(os.read, 0, 1)
        try:
            await ctx.step("effect", lambda: print("effect", flush=True))
        finally:
            queue.tried = True

    async with house.working(heartbeat=lease) as worker:
        queue.add("one")
        await until(lambda: bool(worker.statistics.runs))
        print(*worker.statistics.runs, flush=True)


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
