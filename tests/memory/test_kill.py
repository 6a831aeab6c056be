"""A process that is killed between an event and its entry in the outbox leaves both or neither."""

from __future__ import annotations

import asyncio
import signal
import sys
import uuid
from pathlib import Path

from tests.support.python_process import PythonProcess

from perdure.kernel.config import Settings
from perdure.memory.model import INDEX_CONSUMER, TOC_CONSUMER
from perdure.memory.service import Memory
from perdure.memory.wiring import MemoryWork
from perdure.outbox.service import Outbox
from perdure.runtime.stores import open_store

ROOT = Path(__file__).parents[2]
CHILD = (sys.executable, "-m", "tests.memory.kill_child")


async def test_both_or_neither(shared_engine_url: str) -> None:
    namespace = f"test {uuid.uuid4().hex}"
    for when in ("before", "inside", "after"):
        child = PythonProcess([*CHILD, shared_engine_url, namespace, when], cwd=ROOT)
        assert await asyncio.to_thread(child.wait) == -signal.SIGKILL
    async with open_store(shared_engine_url, namespace=namespace, watchdog_interval=None) as store:
        memory, outbox = (
            Memory(store.storage, namespace=namespace),
            Outbox(store.storage, namespace=namespace),
        )
        assert [event.text for event in (await memory.get_events()).items] == ["zebra after"]
        entries = (await outbox.list()).items
        assert sorted(entry.consumer for entry in entries) == [INDEX_CONSUMER, TOC_CONSUMER]
        # Whoever comes next finishes it.
        work = MemoryWork(store.storage, Settings(memory_rest=0.0))
        for consumer in (work.indexer, work.updater):
            own = [await outbox.get(entry.id) for entry in entries if entry.consumer == consumer.name]
            await consumer.deliver_batch(await memory.ns(), own)
        assert [hit.text for hit in (await memory.search("zebra")).items] == ["zebra after"]
        assert (await memory.toc_root())[0].node_id == "toc:year:2024"
