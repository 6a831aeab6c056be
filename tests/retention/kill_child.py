"""Sweeps a database, and is killed after so many transactions."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from tests.retention.support import World


async def main(url: str, count: int) -> None:
    world = World(url)
    background = world.storage.background
    done = 0

    def and_end(operation: Any, *args: Any, ns: int | None = None) -> Any:
        async def run() -> Any:
            nonlocal done
            answer = await background(operation, *args, ns=ns)
            done += 1
            if done >= count:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return run()

    world.storage.background = and_end  # type: ignore[method-assign]
    await world.upkeep().gc()
    raise SystemExit("it was not killed")


if __name__ == "__main__":
    place, number = sys.argv[1:]
    asyncio.run(main(place, int(number)))
