"""A process that fires schedules, and says so; told to, it dies in the middle of its first firing."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from tests.support.kinds import KINDS
from tests.threads.support import POLICY, open_storage

from perdure.kernel.errors import PerdureError
from perdure.kernel.storage.port import Tx
from perdure.schedules.model import ScheduleTargets
from perdure.schedules.run_target import RunTarget
from perdure.schedules.timer import ScheduleTimer
from perdure.threads.operations.create import NewRun


class Doomed(RunTarget):
    """Dies when the runs are made and nothing is committed."""

    async def start(self, tx: Tx, prepared: Sequence[NewRun]) -> list[str | PerdureError]:
        await super().start(tx, prepared)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it lives on")


async def main(url: str, manner: str) -> None:
    target = (Doomed if manner == "doomed" else RunTarget)(KINDS, POLICY)
    storage = open_storage(url)
    timer = ScheduleTimer(storage, ScheduleTargets(target), poll=0.2)
    await timer.start()
    print("firing", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await timer.stop()
    await storage.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
