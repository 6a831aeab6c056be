"""Items of maps: those that end in one transaction, that are cancelled, and that are tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.workflows.support import AGENT, Done, WorkflowWorld

from perdure.threads.work import Assignment
from perdure.workflows.records import NodeInfo

FAN = """
name: fan
phases:
  - {name: each, type: map, items: [u, v, x, y, z], max_parallel: 2, assistant: ASSISTANT, prompt: p}
"""


def labels_of(claimed: Sequence[Assignment]) -> list[str]:
    """The labels of phases that were claimed."""
    return sorted(each.phase.label or "" for each in claimed if each.phase is not None)


async def items_of(world: WorkflowWorld, run_id: str) -> list[NodeInfo]:
    """The items of the map of a run, in their order."""
    return [node for node in (await world.workflows.get(run_id)).nodes if node.item]


async def test_items_that_cannot_be_executed_do_not_hold_up_the_others(world: WorkflowWorld) -> None:
    """They end in the transaction in which they begin, and the next one takes the place of each."""
    run = await world.play(FAN.replace("ASSISTANT", "nobody"))
    assert (run.status, world.labels) == ("failed", [])
    assert "5 of 5 items failed" in (run.error or "")


async def test_of_items_that_end_together_each_lets_another_one_begin(world: WorkflowWorld) -> None:
    await world.start(FAN.replace("ASSISTANT", AGENT))
    await world.settle()
    both = await world.claim_phases()
    assert labels_of(both) == ["each_item_1", "each_item_2"]
    await asyncio.gather(*(world.end(each, Done("done")) for each in both))
    assert labels_of(await world.claim_phases()) == ["each_item_3", "each_item_4"]


async def test_items_that_have_not_begun_are_cancelled_with_their_run(world: WorkflowWorld) -> None:
    run_id = await world.start(FAN.replace("ASSISTANT", AGENT))
    await world.settle()
    assert [node.status for node in await items_of(world, run_id)] == ["running"] * 2 + ["pending"] * 3
    await world.workflows.cancel(run_id)
    await world.settle()
    assert [node.status for node in await items_of(world, run_id)] == ["cancelled"] * 5


async def test_an_item_that_is_tried_again_shows_no_error_of_before(world: WorkflowWorld) -> None:
    run = await world.play(FAN.replace("ASSISTANT", AGENT), {"each_item_1": [Done(success=False), "done"]})
    item, *_ = await items_of(world, run.workflow_run_id)
    assert (item.status, item.error is None) == ("failed", False)
    await world.workflows.retry(run.workflow_run_id)
    await world.work()
    item, *_ = await items_of(world, run.workflow_run_id)
    assert (item.status, item.error) == ("succeeded", None)
