"""Retries from a phase on, and with the current definition of the file."""

from __future__ import annotations

import pytest
from tests.support.kinds import PHASES
from tests.workflows.support import Done, WorkflowWorld, workflow

from perdure.kernel.errors import InvalidInput, NotFound
from perdure.workflows.operations import due
from perdure.workflows.records import WorkflowRun

LINE = """
name: line
phases:
  - {name: a, prompt: a}
  - {name: b, prompt: "b {{a}}"}
  - {name: c, prompt: "c {{b}}"}
"""


async def again(world: WorkflowWorld, run: WorkflowRun, **options: str) -> WorkflowRun:
    """Retry a run and let it end."""
    await world.workflows.retry(run.workflow_run_id, **options)  # type: ignore[arg-type]
    await world.work()
    return await world.workflows.get(run.workflow_run_id)


async def test_a_retry_from_a_phase_begins_it_anew_with_all_that_depends_on_it(world: WorkflowWorld) -> None:
    run = await world.play(LINE, {"b": ["first b", "second b"], "c": [Done(success=False), "c"]})
    assert run.status == "failed"
    run = await again(world, run, from_phase="b")
    assert (run.status, run.error) == ("succeeded", None)
    assert world.labels == ["a", "b", "c", "b", "c"]
    assert world.seen[-1][1]["prompt"] == "c second b"


async def test_a_phase_that_does_not_exist_is_refused_with_those_that_do(world: WorkflowWorld) -> None:
    run = await world.play(LINE, {"b": Done(success=False)})
    with pytest.raises(InvalidInput, match="no phase 'z'; its phases are: a, b, c"):
        await world.workflows.retry(run.workflow_run_id, from_phase="z")
    with pytest.raises(InvalidInput, match="definition"):
        await world.workflows.retry(run.workflow_run_id, definition="newest")  # type: ignore[arg-type]
    assert (await world.workflows.get(run.workflow_run_id)).status == "failed"


async def test_a_loop_begins_anew_with_its_first_iteration(world: WorkflowWorld) -> None:
    run = await world.play(
        "name: l\nphases:\n  - {name: p, prompt: '{{previousOutput}}', generic_loop: "
        "{max_iterations: 3, until: \"output == 'end'\"}}\n",
        {"p_iter_2": [Done(success=False), "end"]},
    )
    run = await again(world, run, from_phase="p")
    assert world.labels == ["p_iter_1", "p_iter_2", "p_iter_1", "p_iter_2"]
    assert run.status == "succeeded"


MAP = """
name: fan
phases:
  - {name: list, prompt: list}
  - {name: each, type: map, items: "{{list}}", prompt: "do {{item}}"}
  - {name: sum, prompt: "{{each}}"}
"""


async def test_a_map_begins_anew_with_the_items_that_there_are_then(world: WorkflowWorld) -> None:
    run = await world.play(MAP, {"list": ["x\ny\nz", "v\nw"], "sum": [Done(success=False), "sum"]})
    run = await again(world, run, from_phase="list")
    assert (run.status, run.error) == ("succeeded", None)
    assert world.labels[5:] == ["list", "each_item_1", "each_item_2", "sum"]
    assert [each[1]["prompt"] for each in world.seen[6:8]] == ["do v", "do w"]
    assert world.seen[-1][1]["prompt"] == '["output of each_item_1","output of each_item_2"]'


CHILD = "name: child\nphases:\n  - {name: work, prompt: w}\n  - {name: last, prompt: l}\n"
PARENT = (
    "name: parent\nphases:\n  - {name: sub, type: workflow, workflow: child}\n  - {name: end, prompt: e}\n"
)


async def test_the_end_of_an_earlier_child_is_not_that_of_the_new_one(world: WorkflowWorld) -> None:
    world.add(CHILD)
    run = await world.play(PARENT, {"end": [Done(success=False), "end"]})
    earlier = run.nodes[0].child_run_id or ""
    await world.workflows.retry(run.workflow_run_id, from_phase="sub")
    await world.settle()
    ns = await world.workflows.ns("write")
    assert not await world.storage.run(due.tell_parent, earlier, PHASES, ns=ns)
    node = (await world.workflows.get(run.workflow_run_id)).nodes[0]
    assert (node.status, node.child_run_id == earlier) == ("waiting", False)
    await world.work()
    assert (await world.workflows.get(run.workflow_run_id)).status == "succeeded"


async def test_a_phase_that_may_fail_is_no_failure_less_when_it_begins_anew(world: WorkflowWorld) -> None:
    run = await world.play(
        """
        name: back
        phases:
          - {name: first, prompt: f}
          - {name: may, prompt: m, on_failure: {action: continue}}
          - {name: check, prompt: c, on_failure: {action: goto, phase: first}}
        """,
        {"may": [Done(success=False), Done(success=False)], "check": [Done(success=False), "good"]},
    )
    assert world.labels == ["first", "may", "check"] * 2
    assert (run.status, run.error) == ("succeeded", None)


async def test_a_phase_that_starts_a_workflow_starts_a_new_one(world: WorkflowWorld) -> None:
    world.add(CHILD)
    run = await world.play(PARENT, {"last": [Done(success=False), "l"]})
    before = run.nodes[0].child_run_id or ""
    run = await again(world, run, from_phase="sub")
    assert run.status == "succeeded"
    assert run.nodes[0].child_run_id not in (None, before)
    # The earlier run does not change; a retry without a phase would continue it.
    assert (await world.workflows.get(before)).status == "failed"
    assert world.labels == ["work", "last", "work", "last", "end"]


async def test_a_jump_repeats_maps_and_workflows_that_are_done(world: WorkflowWorld) -> None:
    """Items and runs of the first pass do not count for the second; otherwise a map would wait forever."""
    world.add(CHILD)
    run = await world.play(
        """
        name: jumping
        phases:
          - {name: list, prompt: list}
          - {name: each, type: map, items: "{{list}}", prompt: "do {{item}}"}
          - {name: sub, type: workflow, workflow: child}
          - {name: test, prompt: test, on_failure: {action: goto, phase: list}}
        """,
        {"list": ["x\ny", "z"], "test": [Done(success=False), "ok"]},
    )
    assert run.status == "succeeded"
    once = ["work", "last", "test"]
    assert world.labels == ["list", "each_item_1", "each_item_2", *once, "list", "each_item_1", *once]


# --- the current definition -------------------------------------------------------------------------------


async def test_a_retry_keeps_its_definition_unless_it_is_asked_for_the_current_one(
    world: WorkflowWorld,
) -> None:
    run = await world.play(LINE, {"b": [Done(success=False), Done(success=False), "b"]})
    world.add(LINE.replace('"b {{a}}"', '"better {{a}}"'))
    run = await again(world, run)
    assert world.seen[-1][1]["prompt"] == "b output of a"
    digest = run.definition
    run = await again(world, run, definition="current")
    assert run.status == "succeeded"
    assert run.definition != digest
    assert (await world.workflows.run_definition(run.workflow_run_id)).current
    assert world.labels == ["a", "b", "b", "b", "c"]
    assert world.seen[3][1]["prompt"] == "better output of a"


async def test_the_current_definition_may_add_move_and_leave_out_phases(world: WorkflowWorld) -> None:
    run = await world.play(
        """
        name: line
        phases:
          - {name: list, prompt: list}
          - {name: gone, prompt: g}
          - {name: each, type: map, items: "{{list}}", prompt: "do {{item}}"}
          - {name: last, prompt: "{{each}}"}
        """,
        {"list": "x\ny", "each_item_2": [Done(success=False), "two"]},
    )
    assert run.status == "failed"
    world.add(
        """
        name: line
        phases:
          - {name: new, prompt: n}
          - {name: list, prompt: list}
          - {name: each, type: map, items: "{{list}}", prompt: "do {{item}}"}
          - {name: between, prompt: b}
          - {name: last, prompt: "{{each}}"}
        """
    )
    before = len(world.seen)
    run = await again(world, run, definition="current")
    assert run.status == "succeeded"
    # Phases that are done stay done, also the first item of the map; new ones are executed.
    assert world.labels[before:] == ["new", "each_item_2", "between", "last"]
    assert world.seen[-1][1]["prompt"] == '["output of each_item_1","two"]'
    phases = [node.node for node in run.nodes if not node.item]
    assert phases == ["new", "list", "each", "between", "last"]
    assert set(run.node_statuses.values()) == {"succeeded"}


async def test_a_phase_that_changed_its_type_begins_anew(world: WorkflowWorld) -> None:
    run = await world.play(MAP, {"list": "x\ny", "each_item_2": Done(success=False)})
    world.add(MAP.replace('type: map, items: "{{list}}", prompt: "do {{item}}"', 'prompt: "all of {{list}}"'))
    before = len(world.seen)
    run = await again(world, run, definition="current")
    assert run.status == "succeeded"
    assert world.labels[before:] == ["each", "sum"]
    assert world.seen[before][1]["prompt"] == "all of x\ny"


async def test_a_failure_that_may_now_be_passed_over_does_not_fail_the_run(world: WorkflowWorld) -> None:
    run = await world.play(LINE, {"b": Done(success=False)})
    world.add(LINE.replace('"b {{a}}"', '"b {{a}}", on_failure: {action: continue}'))
    run = await again(world, run, definition="current")
    assert (run.status, run.error) == ("succeeded", None)


async def test_a_run_that_was_started_is_retried_with_the_current_definition_too(
    world: WorkflowWorld,
) -> None:
    world.add(CHILD)
    run = await world.play(PARENT, {"last": [Done(success=False), "l"]})
    world.add(CHILD.replace("prompt: l", "prompt: better"))
    run = await again(world, run, definition="current")
    assert run.status == "succeeded"
    assert world.labels == ["work", "last", "last", "end"]
    assert world.seen[2][1]["prompt"] == "better"


async def test_a_phase_of_the_current_definition_may_be_begun_anew(world: WorkflowWorld) -> None:
    run = await world.play(LINE, {"c": [Done(success=False), "c"]})
    world.add(LINE.replace("name: c", "name: d").replace("prompt: a}", "prompt: better a}"))
    run = await again(world, run, definition="current", from_phase="a")
    assert run.status == "succeeded"
    assert world.labels == ["a", "b", "c", "a", "b", "d"]
    assert world.seen[3][1]["prompt"] == "better a"


async def test_a_workflow_without_a_file_has_no_current_definition(world: WorkflowWorld) -> None:
    world.definitions.load([("line.yaml", workflow(LINE))])
    run = await world.play(None, {"b": Done(success=False)}, name="line")
    world.definitions.load([])
    with pytest.raises(NotFound, match="line"):
        await world.workflows.retry(run.workflow_run_id, definition="current")
    assert (await world.workflows.get(run.workflow_run_id)).status == "failed"
