"""Random workflows, actions, workers and times in any order, on the engine and on a model in plain Python.

`PERDURE_EXAMPLES` and `PERDURE_STEPS` set the size; `run` is the long run.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from tests.reliability.test_model import exactly, size
from tests.threads.support import open_storage
from tests.workflows.model import WORKFLOWS, Model, ModelClaim, ModelRun, ModelWorkflow, Refused
from tests.workflows.support import Done, TestResumer, WorkflowWorld

from perdure.approvals.due import DueApprovals
from perdure.kernel.errors import Conflict
from perdure.kernel.storage.port import Storage
from perdure.testing.clock import ManualClock
from perdure.threads.work import Assignment

CAP = 2
# Limits differ by far from every sum of these times, so that a slow machine does not change a result.
TIMES = (25.0, 75.0, 3700.0)

picks = st.integers(0, 30)


class Bench:
    """An engine that provides empty worlds."""

    def __init__(self, url: str = ":memory:") -> None:
        self._url = url
        self._runner = asyncio.Runner()
        self._numbers = itertools.count()
        self._storage: Storage | None = None
        self._clock = ManualClock()

    def open(self) -> WorkflowWorld:
        """Return a world without runs."""
        if self._storage is None or self._url == ":memory:":
            self.close_storage()
            self._clock = ManualClock()
            self._storage = open_storage(self._url, clock=self._clock)
        self._namespace = f"example {next(self._numbers)}"
        return self.world()

    def world(self) -> WorkflowWorld:
        """Return the services of a new process over the same database."""
        assert self._storage is not None
        world = WorkflowWorld(self._storage, self._clock, namespace=self._namespace, cap=CAP)
        world.timer.also = [DueApprovals(self._storage, TestResumer()).settle]
        for definition in WORKFLOWS:
            world.add(definition.text)
        self.do(world.begin())
        return world

    def do(self, work: Any) -> Any:
        return self._runner.run(work)

    def close_storage(self) -> None:
        if self._storage is not None:
            self.do(self._storage.close())
            self._storage = None

    def close(self) -> None:
        self.close_storage()
        self._runner.close()


class WorkflowMachine(RuleBasedStateMachine):
    """State machine whose rules act on both and compare all runs."""

    bench: ClassVar[Bench]

    @initialize()
    def begin(self) -> None:
        self.world = self.bench.open()
        self.model = Model(CAP)
        self.ids: list[str] = []
        self.claims: list[tuple[ModelClaim, Assignment]] = []
        self.gates: dict[int, str] = {}
        self.workers = itertools.count()

    # --- the rules ----------------------------------------------------------------------------------------

    @rule(workflow=st.sampled_from(WORKFLOWS), trigger=st.sampled_from(["t", "u"]))
    def dispatch(self, workflow: ModelWorkflow, trigger: str) -> None:
        self._do(self._dispatch(workflow, trigger))

    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        self._wish("cancel", pick)

    @rule(pick=picks)
    def pause(self, pick: int) -> None:
        self._wish("pause", pick)

    @rule(pick=picks)
    def resume(self, pick: int) -> None:
        self._wish("resume", pick)

    @rule(pick=picks)
    def retry(self, pick: int) -> None:
        self._wish("retry", pick)

    @rule(pick=picks, approves=st.booleans())
    def answer(self, pick: int, approves: bool) -> None:
        self._do(self._answer(pick, approves))

    @rule(limit=st.integers(1, 4))
    def claim(self, limit: int) -> None:
        self._do(self._claim(limit))

    @rule(pick=picks, success=st.sampled_from([True, True, True, False]))
    def end(self, pick: int, success: bool) -> None:
        self._do(self._end(pick, success))

    @rule(pick=picks)
    def hand_back(self, pick: int) -> None:
        self._do(self._hand_back(pick))

    @rule(seconds=st.sampled_from(TIMES))
    def time_passes(self, seconds: float) -> None:
        self._do(self._pass_time(seconds))

    @rule()
    def restart(self) -> None:
        """Restart all processes; their executions are lost when their leases expire."""
        self.claims.clear()
        self.world = self.bench.world()

    # --- actions ------------------------------------------------------------------------------------------

    def _do(self, work: Any) -> None:
        self.bench.do(self._compared(work))

    async def _compared(self, work: Any) -> None:
        await work
        self.model.settle()
        for _ in range(3):
            await self.world.settle()
        await self._compare()

    async def _dispatch(self, workflow: ModelWorkflow, trigger: str) -> None:
        known = len(self.model.runs)
        run = self.model.dispatch(workflow, trigger)
        answer = await self.world.workflows.run(workflow.name, trigger_id=trigger)
        assert answer.reused == (len(self.model.runs) == known)
        assert answer.status == run.status
        if not answer.reused:
            self.ids.append(answer.workflow_run_id or "")
        assert answer.workflow_run_id == self._id(run)

    def _id(self, run: ModelRun) -> str:
        return next(id for id, each in zip(self.ids, self.model.runs, strict=True) if each is run)

    def _wish(self, what: str, pick: int) -> None:
        if self.model.runs:
            self._do(self._wished(what, self.model.runs[pick % len(self.model.runs)]))

    async def _wished(self, what: str, run: ModelRun) -> None:
        call = getattr(self.world.workflows, what)(self._id(run))
        try:
            getattr(self.model, what)(run)
        except Refused:
            with pytest.raises(Conflict):
                await call
        else:
            assert (await call).status == run.status

    async def _answer(self, pick: int, approves: bool) -> None:
        open_gates = [
            (run, node) for run in self.model.runs for node in run.nodes.values() if node.gate is not None
        ]
        if not open_gates:
            return
        run, node = open_gates[pick % len(open_gates)]
        pending = {each.label: each for each in await self.world.pending(self._id(run))}
        self.model.answer(run, node, approves=approves)
        respond = self.world.approvals.approve if approves else self.world.approvals.reject
        approval_id = pending[node.phase.name].approval_id
        await respond(approval_id)
        with pytest.raises(Conflict):
            await respond(approval_id)

    async def _claim(self, limit: int) -> None:
        claimable = {(self._id(run), node.phase.name): (run, node) for run, node in self.model.claimable()}
        worker = f"worker {next(self.workers)}"
        claimed = await self.world.claim_phases(limit, worker)
        assert len(claimed) == min(limit, len(claimable))
        for each in claimed:
            assert each.phase is not None
            run, node = claimable.pop((each.run.parent or "", each.phase.label or ""))
            self.claims.append((self.model.claim(run, node, worker), each))

    async def _end(self, pick: int, success: bool) -> None:
        if not self.claims:
            return
        claim, held = self.claims.pop(pick % len(self.claims))
        done = Done("done", success)
        if claim.is_awaited:
            self.model.end(claim, success=success)
            await self.world.end(held, done)
            return
        try:
            await self.world.end(held, done)
        except Conflict:
            assert not claim.is_awaited

    async def _hand_back(self, pick: int) -> None:
        if self.claims:
            claim, held = self.claims.pop(pick % len(self.claims))
            self.model.hand_back(claim)
            await self.world.queue.hand_back([held.held])

    async def _pass_time(self, seconds: float) -> None:
        self.model.pass_time(seconds)
        await self.world.advance(seconds)

    # --- the comparison -----------------------------------------------------------------------------------

    async def _compare(self) -> None:
        for id, run in zip(self.ids, self.model.runs, strict=True):
            found = await self.world.workflows.get(id)
            statuses = {node.node: node.status for node in found.nodes}
            assert (found.status, statuses) == (run.status, run.statuses), (run.workflow.name, run.trigger)
            assert (found.restart_count, found.held) == (run.restarts, run.held)
            approvals = (await self.world.approvals.list(workflow_run_id=id)).items
            gates = Counter((gate.node, gate.status) for gate in run.gates)
            assert Counter((each.label, each.status) for each in approvals) == gates

    async def _finish(self) -> None:
        """Check that every run ends when all workers and people act."""
        for _ in range(100):
            await self._compared(self._pass_time(75.0))
            for run in self.model.runs:
                if run.held:
                    await self._compared(self._wished("resume", run))
            await self._compared(self._answer(0, True))
            await self._compared(self._claim(4))
            while self.claims:
                await self._compared(self._end(0, True))
            if not any(run.status in ("running", "paused", "queued") for run in self.model.runs):
                break
        else:
            raise AssertionError("it does not come to an end")
        for id, run in zip(self.ids, self.model.runs, strict=True):
            rows = (await self.world.executions.of_workflow_run(id, limit=1000)).items
            assert all(row.finished_at is not None for row in rows)
            assert sum(row.success is True for row in rows) == run.done
        await self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.bench.do(self._finish())


def run_on(bench: Bench, limits: settings) -> None:
    machine = type("Machine", (WorkflowMachine,), {"bench": bench})
    try:
        run_state_machine_as_test(machine, settings=limits)
    finally:
        bench.close()


def run(url: str = ":memory:", examples: int = 1000, steps: int = 60) -> None:
    """The long run, in memory or on the database of a URL."""
    run_on(Bench(url), exactly(examples, steps))


@pytest.mark.timeout(300)
def test_the_engine_does_what_the_model_does() -> None:
    run_on(Bench(), size(12, 40))
