"""Sweeps among random states: what an open run needs stays, all that is due goes, and nothing is orphaned."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping
from typing import Any

import pytest
from tests.retention.support import World

from perdure.kernel.errors import Conflict, NotFound
from perdure.kernel.storage.dialect import Statement, statement
from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import ENDED
from perdure.workflows.model import LIVE

STEPS = 60
DAY_MS = 86_400_000
LONG_AGO = 1_705_276_800_000
"""The beginning of a day, in 2024."""
NEEDED: Mapping[str, Statement[Any]] = {
    "rollouts": statement("SELECT id FROM rollouts WHERE NOT status {among:ended}", row=str),
    "attempts of open rollouts": statement(
        "SELECT a.id FROM attempts AS a JOIN rollouts AS r ON r.ns = a.ns AND r.id = a.rollout_id"
        " WHERE NOT r.status {among:ended}",
        row=str,
    ),
    "spans of open rollouts": statement(
        "SELECT s.span_id FROM spans AS s JOIN rollouts AS r ON r.ns = s.ns AND r.id = s.rollout_id"
        " WHERE NOT r.status {among:ended}",
        row=str,
    ),
    "traces of open rollouts": statement(
        "SELECT DISTINCT t.trace_id FROM traces AS t"
        " JOIN spans AS s ON s.ns = t.ns AND s.trace_id = t.trace_id"
        " JOIN rollouts AS r ON r.ns = s.ns AND r.id = s.rollout_id WHERE NOT r.status {among:ended}",
        row=str,
    ),
    "threads of open runs": statement(
        "SELECT DISTINCT n.thread_id FROM runs AS n JOIN threads AS t ON t.ns = n.ns AND t.id = n.thread_id"
        " WHERE n.live IS NOT NULL AND t.gone_at IS NULL",
        row=str,
    ),
    "states of such threads": statement(
        "SELECT c.id FROM checkpoints AS c WHERE EXISTS (SELECT 1 FROM runs AS n WHERE n.ns = c.ns"
        " AND n.thread_id = c.thread_id AND n.live IS NOT NULL)",
        row=str,
    ),
    "open workflow runs": statement("SELECT id FROM workflow_runs WHERE status {among:live}", row=str),
    "nodes of open workflow runs": statement(
        "SELECT n.run_id || n.node FROM workflow_nodes AS n JOIN workflow_runs AS w"
        " ON w.ns = n.ns AND w.id = n.run_id WHERE w.status {among:live}",
        row=str,
    ),
    "executions of open workflow runs": statement(
        "SELECT e.id FROM executions AS e JOIN workflow_runs AS w ON w.ns = e.ns AND w.id = e.workflow_run_id"
        " WHERE w.status {among:live}",
        row=str,
    ),
    "parents of open workflow runs": statement(
        "SELECT p.id FROM workflow_runs AS p"
        " JOIN workflow_runs AS c ON c.ns = p.ns AND c.parent_run_id = p.id WHERE c.status {among:live}",
        row=str,
    ),
    "open approvals": statement("SELECT id FROM workflow_approvals WHERE open = 1", row=str),
    "messages of open turns": statement(
        "SELECT m.session_id || m.content FROM messaging_messages AS m JOIN messaging_sessions AS s"
        " ON s.ns = m.ns AND s.id = m.session_id JOIN runs AS n ON n.ns = s.ns AND n.thread_id = s.line"
        " WHERE n.live IS NOT NULL",
        row=str,
    ),
    "held lines": statement("SELECT line FROM lines WHERE holder IS NOT NULL", row=str),
}
MISCOUNTED = statement(
    "SELECT t.trace_id FROM traces AS t WHERE t.spans <> (SELECT count(*) FROM spans AS s"
    " WHERE s.ns = t.ns AND s.trace_id = t.trace_id) OR NOT EXISTS (SELECT 1 FROM rollouts AS r"
    " WHERE r.ns = t.ns AND r.id = t.rollout_id)",
    row=str,
)


async def _needed(tx: Tx) -> dict[str, list[str]]:
    statuses = {"ended": sorted(ENDED), "live": list(LIVE)}
    found = {}
    for name, query in NEEDED.items():
        bound = {key: value for key, value in statuses.items() if key in query.names}
        found[name] = sorted(set(await tx.all(query, **bound)))
    return found


async def _live(tx: Tx) -> set[str]:
    return set(await tx.all(statement("SELECT id FROM runs WHERE live IS NOT NULL", row=str)))


async def _miscounted(tx: Tx) -> list[str]:
    return await tx.all(MISCOUNTED)


class Walk:
    """Random steps of callers and workers."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.tasks: list[Any] = []
        self.threads: list[str] = []
        self.opened: set[str] = set()

    async def step(self) -> None:
        steps = (
            self.add_task,
            self.claim_tasks,
            self.end_task,
            self.add_run,
            self.add_workflow,
            self.add_chat,
            self.claim,
            self.end_run,
            self.approve,
            self.cancel,
            self.delete,
            self.say,
            self.remember,
        )
        await self.random.choice(steps)()

    async def add_task(self) -> None:
        await self.world.task()

    async def claim_tasks(self) -> None:
        claimed = await self.world.services.store.dequeue_rollout(worker_id="w")
        if claimed is not None:
            self.tasks.append(claimed)
            for _ in range(self.random.randrange(4)):
                await self._span(claimed.rollout_id, claimed.attempt.attempt_id)

    async def _span(self, rollout_id: str, attempt_id: str) -> None:
        trace = self.random.randrange(1, 6)
        await self.world.span(rollout_id, attempt_id, trace, error=self.random.random() < 0.3)

    async def end_task(self) -> None:
        if self.tasks:
            claimed = self.tasks.pop(self.random.randrange(len(self.tasks)))
            await self.world.end_task(claimed, success=self.random.random() < 0.5)

    async def add_run(self) -> None:
        thread = self.random.choice([None, *self.threads, "new"])
        if thread == "new":
            thread = (await self.world.services.threads.create_thread()).thread_id
            self.threads.append(thread)
        # One that was swept is gone.
        with contextlib.suppress(NotFound):
            await self.world.run(thread, multitask_strategy="enqueue")

    async def add_workflow(self) -> None:
        await self.world.workflow(self.random.choice(("parent", "child")))

    async def add_chat(self) -> None:
        # A sweep may delete the session before anything is said in it.
        with contextlib.suppress(NotFound):
            await self.world.chat(self.random.choice(("ann", "bob")))

    async def claim(self) -> None:
        for each in await self.world.work(3):
            # Another may have ended it meanwhile, and a sweep deleted it.
            with contextlib.suppress(NotFound):
                for _ in range(self.random.randrange(3)):
                    await self._span(each.run.run_id, each.held.attempt_id)
            if self.random.random() < 0.5:
                name = await self.world.log(each.run.session_id or each.run.thread_id)
                self.opened.add(name.session_id)

    async def end_run(self) -> None:
        if self.world.claimed:
            chosen = self.random.choice(sorted(self.world.claimed))
            await self.world.finish(self.world.claimed[chosen], success=self.random.random() < 0.8)

    async def approve(self) -> None:
        await self.world.approve()

    async def cancel(self) -> None:
        running = (await self.world.services.workflows.list_runs(status=["running"])).items
        if running and self.random.random() < 0.5:
            chosen = self.random.choice(sorted(run.workflow_run_id for run in running))
            with contextlib.suppress(Conflict, NotFound):
                await self.world.services.workflows.cancel(chosen)

    async def delete(self) -> None:
        if self.threads and self.random.random() < 0.5:
            thread = self.threads.pop(self.random.randrange(len(self.threads)))
            with contextlib.suppress(NotFound):
                await self.world.services.threads.delete_thread(thread)

    async def say(self) -> None:
        number = self.random.randrange(3)
        await self.world.log(f"session-{number}", long=self.random.random() < 0.3)
        if self.random.random() < 0.3:
            await self.world.log(f"session-{number}", sub_agent="subagents/agent-1")

    async def remember(self) -> None:
        start = LONG_AGO + self.random.randrange(40) * DAY_MS
        await self.world.remember(*(start + self.random.randrange(DAY_MS) for _ in range(3)))

    async def sweep(self) -> None:
        world = self.world
        before = await world.storage.read(_needed)
        await world.gc()
        assert await world.storage.read(_needed) == before
        assert await world.storage.read(_miscounted) == []
        # A log that a live run writes to is still there.
        log = world.services.sessions.log
        live = await world.storage.read(_live)
        for each in world.claimed.values():
            session_id = each.run.session_id or each.run.thread_id
            if session_id in self.opened and each.run.run_id in live:
                assert await log.find(1, session_id), session_id


@pytest.mark.parametrize("seed", range(3))
async def test_what_is_open_stays_and_all_that_is_due_goes(world: World, seed: int) -> None:
    walk = Walk(world, seed)
    for number in range(1, STEPS + 1):
        await walk.step()
        if number % 20 == 0:
            await walk.sweep()
    await world.finish_all()
    for claimed in walk.tasks:
        await world.end_task(claimed)
    while claimed := await world.services.store.dequeue_rollout(worker_id="w"):
        await world.end_task(claimed)
    for _ in range(6):
        if not await world.gc():
            break
    assert await world.rows() == {}


async def test_sweeps_beside_callers_break_nothing(world: World) -> None:
    """Callers, workers and two sweeps at once: nobody fails, and nothing that is open is lost."""
    walk = Walk(world, 77)
    others = [Walk(world, seed) for seed in (78, 79)]
    done = asyncio.Event()

    async def act(each: Walk) -> None:
        for _ in range(STEPS):
            await each.step()

    async def sweep() -> None:
        while not done.is_set():
            await world.upkeep().gc()

    sweeps = [asyncio.create_task(sweep()) for _ in range(2)]
    await asyncio.gather(*map(act, (walk, *others)))
    done.set()
    await asyncio.gather(*sweeps)
    await world.verify()
    await world.finish_all()
    for each in (walk, *others):
        for claimed in each.tasks:
            await world.end_task(claimed)
    while claimed := await world.services.store.dequeue_rollout(worker_id="w"):
        await world.end_task(claimed)
    for _ in range(6):
        if not await world.gc():
            break
    assert await world.rows() == {}
