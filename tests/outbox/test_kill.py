"""A process that is killed between a delivery and its record: the same webhook is sent again."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from tests.outbox.support import OutboxWithDeliveries, add, age, open_storage
from tests.outbox.webhooks.support import body_for, private_sender, receiving

ROOT = Path(__file__).resolve().parents[2]


async def killed_child(url: str) -> None:
    command = [sys.executable, "-m", "tests.outbox.child", url]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    try:
        assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_what_was_delivered_and_not_recorded_is_delivered_again(url: str) -> None:
    async with receiving() as receiver:
        storage = open_storage(url)
        (id,) = await add(storage, body_for(receiver.url + "/hook"), consumer="webhook")
        await storage.close()
        await killed_child(url)
        assert [got.headers["webhook-id"] for got in receiver.got] == [id]
        storage = open_storage(url)
        outbox = OutboxWithDeliveries(storage, [private_sender()])
        before = await outbox.get(id)
        assert (before.status, before.attempts) == ("pending", 1)
        await age(storage, 3600)
        await outbox.start()
        await receiver.has(2)
        await outbox.stop()
        after = await outbox.get(id)
        await storage.close()
    assert (after.status, after.attempts) == ("delivered", 2)
    assert [got.headers["webhook-id"] for got in receiver.got] == [id, id]
