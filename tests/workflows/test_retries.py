"""Phases that are executed while their run is retried, cancelled or jumps back."""

from __future__ import annotations

from tests.support.kinds import PHASES
from tests.workflows.support import Done, WorkflowWorld

from perdure.kernel.storage.dialect import statement
from perdure.threads.work import Assignment
from perdure.workflows.model import NOT_ENDED
from perdure.workflows.operations.advance import NOT_AWAITED
from perdure.workflows.operations.lifecycle import cancel

PAIR = """
name: pair
phases:
  - {name: a, prompt: a, depends_on: []}
  - {name: b, prompt: b, depends_on: []}
"""
CHILD = "name: child\nphases:\n  - {name: ask, type: approval}\n"
PARENT = "name: parent\nphases:\n  - {name: sub, type: workflow, workflow: child}\n"
LIVE_PHASES = statement(
    "SELECT label FROM execution_seeds AS s JOIN rollouts AS r ON r.ns = s.ns AND r.id = s.rollout_id"
    " WHERE r.ns = :ns AND r.parent = :run_id AND r.status {among:statuses} ORDER BY label"
)


async def live_phases(world: WorkflowWorld, run_id: str) -> list[str]:
    """Return the labels of the phases of a run that are queued or executed."""
    return [label for (label,) in await world.rows(LIVE_PHASES, run_id=run_id, statuses=sorted(NOT_ENDED))]


def label_of(claimed: Assignment) -> str:
    assert claimed.phase is not None
    return claimed.phase.label or ""


async def test_a_retry_stops_the_phases_that_are_still_executed(world: WorkflowWorld) -> None:
    """No phase is executed twice at once, even if the process that cancelled the run crashed afterwards."""
    run_id = await world.start(PAIR)
    before = await world.claim_phases()
    await world.storage.run(cancel, run_id, None, PHASES, ns=await world.workflows.ns("write"))
    assert await live_phases(world, run_id) == ["a", "b"]
    await world.workflows.retry(run_id)
    assert await live_phases(world, run_id) == ["a", "b"]
    for assignment in before:
        await world.end(assignment, Done("too late"))
    assert await live_phases(world, run_id) == ["a", "b"]
    await world.work()
    assert world.labels == ["a", "b"]
    assert (await world.workflows.get(run_id)).status == "succeeded"


async def test_a_retry_goes_on_with_a_child_that_a_person_cancelled(world: WorkflowWorld) -> None:
    world.add(CHILD)
    run_id = await world.start(PARENT)
    await world.settle()
    child = (await world.workflows.get(run_id)).nodes[0].child_run_id or ""
    await world.workflows.cancel(child)
    await world.settle()
    assert (await world.workflows.get(run_id)).status == "failed"
    await world.workflows.retry(run_id)
    await world.settle()
    assert (await world.workflows.get(run_id)).nodes[0].child_run_id == child
    (gate,) = await world.pending(child)
    await world.approvals.approve(gate.approval_id)
    await world.work()
    assert [(await world.workflows.get(each)).status for each in (child, run_id)] == ["succeeded"] * 2


async def test_a_paused_run_that_was_cancelled_runs_after_its_retry(world: WorkflowWorld) -> None:
    run_id = await world.start(PAIR)
    await world.workflows.pause(run_id)
    await world.workflows.cancel(run_id)
    await world.workflows.retry(run_id)
    run = await world.workflows.get(run_id)
    assert (run.status, run.held) == ("running", False)
    await world.work()
    assert (await world.workflows.get(run_id)).status == "succeeded"


async def test_a_success_that_the_run_did_not_wait_for_counts_as_failed(world: WorkflowWorld) -> None:
    """Otherwise the skill would count as done for its trigger, although a retry executes it again."""
    run_id = await world.start("name: one\nphases: [{name: a, prompt: a}]\n", trigger_id="t")
    (claimed,) = await world.claim_phases()
    await world.storage.run(cancel, run_id, None, PHASES, ns=await world.workflows.ns("write"))
    await world.end(claimed, Done("too late"))
    (execution,) = (await world.executions.list()).items
    assert (execution.success, execution.error) == (False, NOT_AWAITED)
    assert await world.executions.readiness("one:a", "t") == "run"


async def test_going_back_stops_what_begins_anew_and_nothing_else(world: WorkflowWorld) -> None:
    world.add(CHILD)
    run_id = await world.start(
        """
        name: back
        phases:
          - {name: first, prompt: f, depends_on: []}
          - {name: check, prompt: c, depends_on: [first], on_failure: {action: goto, phase: first}}
          - {name: side, prompt: s, depends_on: [first]}
          - {name: apart, prompt: p, depends_on: []}
          - {name: below, type: workflow, workflow: child, depends_on: []}
        """
    )
    await world.settle()
    apart, first = sorted(await world.claim_phases(), key=label_of)
    await world.end(first, Done("first"))
    check, _ = sorted(await world.claim_phases(), key=label_of)
    await world.end(check, Done(success=False))
    await world.settle()
    assert await live_phases(world, run_id) == ["apart", "first"]
    child = next(each.child_run_id for each in (await world.workflows.get(run_id)).nodes if each.child_run_id)
    (gate,) = await world.pending(child)
    await world.approvals.approve(gate.approval_id)
    await world.end(apart, Done("it went on"))
    await world.work()
    assert sorted(world.labels) == ["check", "first", "side"]
    assert (await world.workflows.get(run_id)).status == "succeeded"


async def test_a_worker_that_came_back_and_is_lost_again_counts_again(world: WorkflowWorld) -> None:
    run_id = await world.start("name: one\nphases: [{name: a, prompt: a}]\n")
    for lost in (1, 2):
        assert await world.claim_phases()
        await world.advance(100.0)
        # On PostgreSQL the attempt becomes older, as if it had begun before the loss of the worker.
        if lost == 1 or world.storage.engine == "sqlite":
            assert (await world.workflows.get(run_id)).restart_count == lost
