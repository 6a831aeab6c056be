"""Queued runs: admission in order, expiry, and refused pauses."""

from __future__ import annotations

import pytest
from tests.support.kinds import PHASES
from tests.workflows.support import Done, WorkflowWorld
from tests.workflows.test_lifecycle import with_timeout

from perdure.kernel.errors import Conflict
from perdure.workflows.model import NodeKey
from perdure.workflows.operations import due
from perdure.workflows.operations.lifecycle import cancel

ONE_PHASE = "name: w\nphases: [{name: a, prompt: a}]\n"


async def filled(world: WorkflowWorld) -> None:
    """Start the maximum number of running runs."""
    world.add(ONE_PHASE)
    for number in range(4):
        await world.start(trigger_id=f"t{number}")


async def free_a_place(world: WorkflowWorld) -> None:
    """End one of the runs, before the next one is admitted."""
    (claimed,) = await world.claim_phases(1)
    await world.end(claimed, Done("done"))


async def test_a_new_run_does_not_overtake_those_that_wait(world: WorkflowWorld) -> None:
    await filled(world)
    first = await world.start(trigger_id="first")
    await free_a_place(world)
    later = await world.start(trigger_id="later")
    assert (await world.workflows.get(later)).status == "queued"
    await world.settle()
    assert [(await world.workflows.get(each)).status for each in (first, later)] == ["running", "queued"]


async def test_the_time_of_a_run_goes_on_after_it_was_admitted(world: WorkflowWorld) -> None:
    await filled(world)
    (run_id,) = await with_timeout(world, "s1")
    await world.advance(600.0)
    await free_a_place(world)
    await world.settle()
    assert (await world.workflows.get(run_id)).status == "running"
    await world.advance(900.0)
    assert (await world.workflows.get(run_id)).status == "running"
    await world.advance(600.0)
    run = await world.workflows.get(run_id)
    assert (run.status, run.error) == ("failed", "timed out after 1800 seconds")


async def test_a_run_that_waits_for_its_turn_cannot_be_paused(world: WorkflowWorld) -> None:
    await filled(world)
    waiting = await world.start(trigger_id="waits")
    with pytest.raises(Conflict, match="is queued; only one that is running can be paused"):
        await world.workflows.pause(waiting)
    await free_a_place(world)
    await world.settle()
    assert (await world.workflows.get(waiting)).status == "running"


async def test_nothing_that_is_due_happens_before_its_time(world: WorkflowWorld) -> None:
    """Another process may have changed a due time, so it is checked again under the lock of the run."""
    ns = await world.workflows.ns("write")
    await filled(world)
    queued = await world.start(trigger_id="queued")
    await world.storage.run(due.expire, queued, PHASES, ns=ns)
    assert (await world.workflows.get(queued)).status == "queued"
    await world.work()
    (bound,) = await with_timeout(world, "s1")
    await world.storage.run(due.expire, bound, PHASES, ns=ns)
    assert (await world.workflows.get(bound)).status == "running"
    waits = await world.start("name: waits\nphases: [{name: nap, type: wait, seconds: 60}]\n")
    assert not await world.storage.run(due.end_wait, waits, NodeKey("nap"), PHASES, ns=ns)
    assert (await world.workflows.get(waits)).status == "running"
    await world.advance(61.0)
    assert (await world.workflows.get(waits)).status == "succeeded"


async def test_runs_that_others_have_started_take_no_place(world: WorkflowWorld) -> None:
    """Otherwise parents that wait for their children could keep them from starting."""
    world.add(ONE_PHASE)
    parent = "name: parent\nphases: [{name: sub, type: workflow, workflow: w}]\n"
    runs = [await world.start(parent, trigger_id=f"p{number}") for number in (1, 2)]
    await world.settle()
    assert [node.child_run_id is None for run in runs for node in (await world.workflows.get(run)).nodes] == [
        False
    ] * 2
    more = [await world.start(name="w", trigger_id=f"t{number}") for number in (1, 2, 3)]
    statuses = [(await world.workflows.get(run)).status for run in more]
    assert statuses == ["running", "running", "queued"]


async def test_what_was_asked_for_anew_is_not_taken_for_done(world: WorkflowWorld) -> None:
    """A run that is to be looked after again, while it is being looked after, is looked after again."""
    ns = await world.workflows.ns("write")
    run_id = await world.start(ONE_PHASE)
    await world.storage.run(cancel, run_id, None, PHASES, ns=ns)
    (before,) = await world.storage.read(due.due_runs)
    await world.storage.run(due.clear_due, run_id, before.due_at - 1, ns=ns)
    assert [run.id for run in await world.storage.read(due.due_runs)] == [run_id]
    await world.storage.run(due.clear_due, run_id, before.due_at, ns=ns)
    assert await world.storage.read(due.due_runs) == []
