"""The crash matrix: the process dies before or after the commit of each operation, and the run ends as it
would have, with no phase executed again after its success was recorded."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest
from tests.threads.support import INLINE, open_storage
from tests.workflows.support import Done, WorkflowWorld

from perdure.kernel.errors import StorageClosed
from perdure.kernel.storage.port import Storage
from perdure.runtime.stores import PHASES
from perdure.testing.clock import ManualClock
from perdure.threads.policy import Policy

CHILD = "name: child\nphases:\n  - {name: inner, prompt: i}\n"
STORY = """
name: story
phases:
  - {name: plan, prompt: p}
  - name: write
    prompt: "{{previousOutput}}"
    depends_on: [plan]
    generic_loop: {max_iterations: 3, until: "output.contains('END')", until_bash: check}
  - {name: ask, type: approval, depends_on: [plan]}
  - {name: each, type: map, items: [x, y], prompt: "{{item}}", depends_on: [write]}
  - {name: sub, type: workflow, workflow: child, depends_on: [ask]}
  - {name: rest, type: wait, seconds: 5, depends_on: [each, sub]}
  - {name: shaky, prompt: s, depends_on: [rest], on_failure: {action: continue}}
  - {name: last, prompt: "{{write}} {{each}} {{sub}}", depends_on: [shaky]}
"""
SCRIPT: dict[str, Any] = {
    "write_iter_1": "one",
    "write_iter_1_check": Done(stop_reason="condition_not_met"),
    "write_iter_2": "two END",
    "shaky": Done(success=False),
}
ENDS = {
    "plan": "succeeded",
    "write": "succeeded",
    "ask": "succeeded",
    "each": "succeeded",
    "sub": "succeeded",
    "rest": "succeeded",
    "shaky": "failed",
    "last": "succeeded",
}


LEASE = 10.0


class Crash(StorageClosed):
    """The process has died."""


class Mortal:
    """A storage whose process dies at the operation with a number, before or after its commit."""

    def __init__(self, storage: Storage, at: int, *, after: bool) -> None:
        self._storage, self._at, self._after = storage, at, after
        self._dead = False
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def run(self, operation: Any, /, *args: Any, **options: Any) -> Awaitable[Any]:
        return self._run(operation, args, options)

    async def _run(self, operation: Any, args: Any, options: Any) -> Any:
        if self._dead:
            raise Crash
        self.calls += 1
        self._dead = self.calls == self._at
        if self._dead and not self._after:
            raise Crash
        answer = await self._storage.run(operation, *args, **options)
        if self._dead:
            raise Crash
        return answer


class Survivor(WorkflowWorld):
    """A world that is made anew after each death, over the same database.

    Its leases are shorter than the shortest timeout, as they are by default.
    """

    async def begin(self) -> WorkflowWorld:
        PHASES.policy = Policy(timeout=500.0, max_attempts=3, lease=LEASE, grace=5.0, linger=1000.0)
        return await super().begin()

    async def execute(self, claimed: Any) -> None:
        label = claimed.phase.label
        rows = (await self.executions.list(workflow_run_id=claimed.run.parent)).items
        done = [row for row in rows if row.label == label and row.success]
        assert not done, f"{label} is executed again after it has succeeded"
        await super().execute(claimed)


async def live(storage: Storage, clock: ManualClock, mortal: Mortal) -> WorkflowWorld:
    """Play the story to its end, and start anew after the death of the process."""
    current: Any = mortal
    while True:
        world = Survivor(current, clock)
        world.add(CHILD)
        world.add(STORY)
        world.script = dict(SCRIPT)
        try:
            await world.begin()
            await _play(world)
            return world
        except Crash:
            current = storage
            # What the dead process held is given up when its lease has ended.
            clock.advance(LEASE + 2.0)


async def _play(world: WorkflowWorld) -> None:
    known = (await world.workflows.list_runs(workflow_name="story")).items
    if not known:
        await world.workflows.run("story", trigger_id="t")
        known = (await world.workflows.list_runs(workflow_name="story")).items
    (summary,) = known
    run_id = summary.workflow_run_id
    for _ in range(60):
        await world.threads.watchdog.sweep()
        await world.step()
        for gate in (await world.approvals.list(status="pending")).items:
            await world.approvals.approve(gate.approval_id)
        run = await world.workflows.get(run_id)
        if run.status not in ("running", "paused"):
            return
        if run.node_statuses["rest"] == "waiting":
            world.clock.advance(6.0)
    raise AssertionError("it does not come to an end")


async def _one(at: int, *, after: bool) -> int:
    clock = ManualClock()
    storage = open_storage(INLINE, clock=clock)
    mortal = Mortal(storage, at, after=after)
    try:
        world = await live(storage, clock, mortal)
        runs = (await world.workflows.list_runs(workflow_name="story")).items
        (run,) = [await world.workflows.get(each.workflow_run_id) for each in runs]
        assert run.status == "succeeded", run
        assert run.node_statuses == ENDS
        assert run.restart_count <= 1
        assert (await world.workflows.list_runs(workflow_name="child")).total == 1
        rows = (await world.executions.list(workflow_run_id=run.workflow_run_id, limit=1000)).items
        assert all(row.finished_at is not None for row in rows)
        labels = sorted(row.label or "" for row in rows if row.success)
        assert labels == sorted(
            [
                "plan",
                "write_iter_1",
                "write_iter_1_check",
                "write_iter_2",
                "each_item_1",
                "each_item_2",
                "last",
            ]
        )
        await world.check()
        return mortal.calls
    finally:
        await storage.close()


@pytest.mark.parametrize("after", [False, True], ids=["before the commit", "after the commit"])
async def test_a_run_outlives_the_death_of_its_process_at_every_operation(after: bool) -> None:
    operations = await _one(0, after=after)
    for at in range(1, operations + 1):
        await _one(at, after=after)
