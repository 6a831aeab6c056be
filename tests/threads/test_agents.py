"""Claims name the agents of their worker: it gets only runs of these agents, and only they wake it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg
import pytest
from tests.kernel.support import soon, until
from tests.threads.support import AGENTS, World, open_storage

from perdure.kernel.errors import InvalidInput
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.rollouts.operations.claim import MORE_SPARE_ROWS, SPARE_ROWS
from perdure.testing.clock import ManualClock
from perdure.threads.records import Run
from perdure.threads.work import Assignment

FORGET_AGENTS = statement("UPDATE rollouts SET agent = NULL WHERE ns = :ns")
LOCK_SOME = """
SELECT id FROM rollouts WHERE ready IS NOT NULL AND agent = $1 ORDER BY priority DESC, ready LIMIT $2
FOR NO KEY UPDATE
"""


def ids(claimed: list[Assignment]) -> list[str]:
    return [each.run.run_id for each in claimed]


async def claim(world: World, *agents: str, limit: int = 10, wait: float = 0.0) -> list[str]:
    return ids(await world.queue.claim("w1", agents, limit, wait))


async def two(world: World, priorities: list[int]) -> list[Run]:
    """Create runs of the two agents in turn."""
    names = ("echo", "other")
    pairs = enumerate(priorities)
    return [await world.run(assistant_id=names[n % 2], priority=priority) for n, priority in pairs]


async def test_a_claim_gets_runs_of_its_agents_alone(world: World) -> None:
    mine, theirs = await world.run(), await world.run(assistant_id="other")
    assert await claim(world, "neither") == []
    assert await claim(world, "other") == [theirs.run_id]
    assert await claim(world, "other") == []
    assert await world.status(mine) == "pending"
    assert await claim(world, "echo", "neither") == [mine.run_id]


async def test_runs_of_several_agents_are_claimed_in_one_order(world: World) -> None:
    runs = await two(world, [0, 5, -3, 5, 0, 0, 9, 0])
    order = [runs[place].run_id for place in (6, 1, 3, 0, 4, 5, 7, 2)]
    first = await claim(world, "echo", "other", "neither", limit=3)
    assert first + await claim(world, "other", "echo") == order


async def test_a_claim_without_agents_gets_nothing(world: World) -> None:
    await world.run()
    assert await claim(world) == []
    for wrong in ("", "x" * 256, "\0", 7):
        with pytest.raises(InvalidInput):
            await world.queue.claim("w1", [wrong], 1, 0)  # type: ignore[list-item]


async def test_claims_of_the_same_agents_are_merged_and_others_are_not(world: World) -> None:
    runs = await two(world, [0] * 6)
    queue = world.queue
    wishes = (["echo"], ["other"], ["echo"], ["other", "echo"])
    shares = await asyncio.gather(*(queue.claim(f"w{n}", names, 2, 0) for n, names in enumerate(wishes)))
    for names, share in zip(wishes, shares, strict=True):
        assert {each.run.agent for each in share} <= set(names)
    left = await claim(world, "echo", "other")
    assert sorted([*(each for share in shares for each in ids(share)), *left]) == sorted(
        run.run_id for run in runs
    )


async def test_only_whoever_has_the_agent_is_woken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[tuple[str, ...]] = []
    inner = world.queue.claim_now

    async def counted(
        wish: Any, agents: Sequence[str], queues: Sequence[str], key: str | None
    ) -> list[Assignment]:
        found = await inner(wish, agents, queues, key)
        looks.append(tuple(agents))
        return found

    monkeypatch.setattr(world.queue, "claim_now", counted)
    waiting = asyncio.create_task(claim(world, "other", wait=20))
    await until(lambda: len(looks) == 1)
    for _ in range(3):
        await world.run()
    held = (await world.queue.claim("w2", ["echo"], 3, 0))[0].held
    await world.queue.hand_back([held])
    mine = await world.run(assistant_id="other")
    assert await soon(waiting) == [mine.run_id]
    assert [agents for agents in looks if agents == ("other",)] == [("other",)]


@pytest.mark.parametrize("how", ["released", "retried", "delayed", "behind"])
async def test_whoever_waits_is_woken_however_a_run_gets_ready(world: World, how: str) -> None:
    thread = await world.thread()
    run = await world.run(thread, after_seconds=100 if how == "delayed" else None)
    if how != "delayed":
        (first,) = await world.claim()
    if how == "behind":
        run = await world.run(thread, "enqueue")
    waiting = asyncio.create_task(claim(world, "echo", wait=20))
    await until(lambda: bool(world.storage.signals.watched("rollouts.ready")))
    if how == "released":
        await world.queue.hand_back([first.held])
    elif how == "retried":
        await world.finish(first.held, "retriable", retry_after=0.0)
    elif how == "behind":
        await world.finish(first.held)
    else:
        await world.advance(200)
    assert await soon(waiting) == [run.run_id]


async def test_runs_that_an_earlier_release_queued_get_their_agent(world: World) -> None:
    thread = await world.thread()
    runs = [await world.run(), await world.run(thread), await world.run(thread, "enqueue")]
    late = await world.run(after_seconds=20)
    await world.storage.run(_forget_agents, ns=await world.threads.ns())
    assert await claim(world, "echo", "other") == []
    await world.queue.register("w2", AGENTS)
    assert await claim(world, "echo", "other") == [run.run_id for run in runs[:2]]
    await world.storage.run(_forget_agents, ns=await world.threads.ns())
    await world.advance(30)
    assert await claim(world, "echo", "other") == []
    await world.queue.fill_agents()
    assert await claim(world, "echo") == [late.run_id]


async def _forget_agents(tx: Tx) -> None:
    await tx.execute(FORGET_AGENTS)


@pytest.mark.parametrize("locked", [SPARE_ROWS + 5, SPARE_ROWS + MORE_SPARE_ROWS // 20])
async def test_a_claim_of_several_agents_passes_over_what_others_are_claiming(
    postgres_url: str, locked: int
) -> None:
    storage = open_storage(postgres_url)
    world = await World(storage, ManualClock()).begin()
    runs = [await world.run() for _ in range(locked + 2)]
    other = await asyncpg.connect(postgres_url)
    try:
        async with other.transaction():
            assert len(await other.fetch(LOCK_SOME, "echo", locked)) == locked
            assert await claim(world, "echo", "other", limit=1) == [runs[-2].run_id]
        assert await claim(world, "echo", "other", limit=1) == [runs[0].run_id]
    finally:
        await other.close()
        await storage.close()
