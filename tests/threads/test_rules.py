"""The rules of stored rows detect errors in threads, runs, lines and streams."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.support.invariants import broken_rules
from tests.threads.support import World, open_storage, told

from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.testing.clock import ManualClock

DAMAGE = {
    "UPDATE lines SET holder = NULL": "waits behind nobody",
    "UPDATE lines SET holder = 'nobody'": "is held by nobody",
    "UPDATE lines SET holder_attempt = 'other' WHERE line = 'a'": "knows attempt other",
    "UPDATE lines SET release_by = NULL WHERE line = 'b'": "is stopping: True",
    "UPDATE lines SET release_by = 5 WHERE line = 'a'": "is released by 5",
    "UPDATE attempts SET check_at = NULL WHERE check_at IS NOT NULL": "has all the time it wants to stop",
    "UPDATE rollouts SET ready = behind, behind = NULL WHERE behind IS NOT NULL": "back-off or stopping are",
    "UPDATE runs SET live = NULL WHERE thread_id = 'a'": "and live is None",
    "UPDATE runs SET live = 1 WHERE thread_id = 'b'": "and live is 1",
    "UPDATE runs SET gone_at = 1 WHERE thread_id = 'a'": "and out of sight",
    "DELETE FROM runs WHERE thread_id = 'a'": "executes a run that does not exist",
    "UPDATE threads SET status = 'idle' WHERE id = 'a'": "must be busy",
    "UPDATE threads SET status = 'busy' WHERE id = 'b'": "must be interrupted",
    "UPDATE threads SET gone_at = 1 WHERE id = 'a'": "is out of sight, and has live runs",
    "DELETE FROM threads WHERE id = 'b'": "its thread is None",
    "DELETE FROM checkpoints WHERE thread_id = 'a'": "which does not exist",
    "UPDATE checkpoints SET step = 9 WHERE thread_id = 'a'": "counts 1 steps",
    "DELETE FROM stream_events WHERE seq = 1": "has 2 events up to 4",
    "DELETE FROM stream_events WHERE event LIKE '%end%'": "ends at",
    "UPDATE streams SET last_seq = 9 WHERE end_seq IS NULL AND stream NOT LIKE 'thread/%'": "is at 9",
    "UPDATE streams SET end_seq = last_seq WHERE end_seq IS NULL": "its stream ends at",
    "UPDATE stream_links SET source_seq = 7": "from 7 after",
    "UPDATE streams SET last_seq = 0 WHERE stream LIKE 'thread/%'": "has events up to",
}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Thread with a running run and one behind it, and a thread whose worker still has to stop."""
    clock = ManualClock()
    storage = open_storage(":memory:", clock=clock)
    made = await World(storage, clock).begin()
    for name in ("a", "b"):
        await made.thread(thread_id=name)
        run = await made.run(name)
        held = (await made.take(run)).held
        await made.save(held, 1)
        await made.queue.append(held, told("metadata", "custom"))
        if name == "a":
            await made.run(name, "enqueue")
        else:
            await made.threads.cancel_run(run.run_id)
    await made.check()
    yield made
    await storage.close()


async def _damage(tx: Tx, sql: str) -> None:
    assert await tx.execute(statement(sql))


@pytest.mark.parametrize("sql", DAMAGE)
async def test_damage_is_noticed(world: World, sql: str) -> None:
    ns = await world.threads.ns()
    await world.storage.run(_damage, sql, ns=ns)
    wrong = await world.storage.read(broken_rules, ns=ns)
    assert DAMAGE[sql] in "; ".join(wrong)
