"""Ingests one event and is killed: between the event and its entry in the outbox, or right after both."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from perdure.kernel.ids import derived_ulid
from perdure.memory.operations import events
from perdure.memory.records import NewMemoryEvent
from perdure.memory.service import Memory
from perdure.runtime.stores import open_store


def end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(url: str, namespace: str, when: str) -> None:
    async with open_store(url, namespace=namespace, watchdog_interval=None) as store:
        memory = Memory(store.storage, namespace=namespace)
        await memory.ns("write")
        module: Any = events
        put = module.put

        async def and_end(*arguments: Any) -> Any:
            if when == "before":
                end()
            await put(*arguments)
            if when == "inside":
                end()

        module.put = and_end
        await memory.ingest(
            NewMemoryEvent(
                event_id=derived_ulid(1_705_312_800_000, when), session_id="s", text=f"zebra {when}"
            )
        )
        # It is acknowledged: from here on it must be there.
        end()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
