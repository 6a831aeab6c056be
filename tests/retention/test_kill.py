"""A sweep that is killed between two transactions leaves a sound database, and the next one goes on."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from tests.retention.support import World
from tests.support.python_process import PythonProcess

ROOT = Path(__file__).parents[2]
CHILD = (sys.executable, "-m", "tests.retention.kill_child")


async def test_a_killed_sweep_leaves_a_sound_database(engine_url: str) -> None:
    world = await World(engine_url).begin()
    await world.workflow()
    await world.chat("ann")
    await world.run(None)
    await world.finish_all()
    await world.remember(1_705_276_800_000, 1_705_376_800_000)
    await world.log("old")
    open_run = await world.run(None)
    await world.close()
    for count in (8, 9, 10):
        child = PythonProcess([*CHILD, engine_url, str(count)], cwd=ROOT)
        assert await asyncio.to_thread(child.wait) == -signal.SIGKILL
        world = await World(engine_url).begin()
        await world.verify()
        assert (await world.services.threads.get_run(open_run)).status == "pending"
        await world.close()
    world = await World(engine_url).begin()
    await world.finish_all()
    for _ in range(6):
        if not await world.gc():
            break
    left = await world.rows()
    await world.close()
    assert set(left) <= {"session_blobs"}
