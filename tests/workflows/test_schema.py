"""The schema of workflow files: a sentence for each field, and for each variable of templates."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.support.kinds import PHASES
from tests.workflows.support import AGENT, Done, WorkflowWorld

from perdure.workflows.definition import Cron, Workflow
from perdure.workflows.inputs import Material, gather
from perdure.workflows.model import Pointer
from perdure.workflows.schema import ABOUT, VARIABLES, json_schema
from perdure.workflows.service import Workflows
from perdure.workflows.values import Config


def test_every_field_has_a_sentence_and_every_sentence_a_field() -> None:
    components = json_schema()["$defs"]
    (_, _), plain = msgspec.json.schema_components((Workflow, Cron))
    fields = {name: set(part["properties"]) for name, part in plain.items()}
    assert fields == {record.__name__: set(sentences) for record, sentences in ABOUT.items()}
    for part in components.values():
        assert part["description"]
        for field in part["properties"].values():
            assert field["description"].endswith(".")


NAMES = {each.name for each in VARIABLES}
YOURS = {"NAME", "NAME.a.b", "PHASE", "OUTPUT_VAR"}
"""Placeholders for names that a workflow chooses."""
WORKFLOW = """
name: all
phases:
  - {name: plan, output_var: planned, prompt: "{{title}}|{{users.0.name}}|{{models.plan}}|{{variants.plan}}"}
  - {name: work, type: map, items: "[1]", prompt: "{{item}}|{{itemNumber}}|{{phase}}|{{label}}"}
  - name: talk
    output_var: talked
    prompt: >-
      {{iteration}}|{{maxIterations}}|{{previousOutput}}|{{reply}}|{{qa.0.answer}}|{{scratch.talk.iteration}}
    generic_loop: {max_iterations: 3, until: "output == 'end'", interactive: true, gate_kind: reply}
  - name: check
    output_var: checked
    prompt: "{{plan}}|{{planned}}|{{phaseOutputs.plan}}|{{work}}|{{talked.iterations}}"
    loop:
      max_cycles: 2
      messages: {on_fix_start: "fix {{cycle}} of {{maxCycles}}"}
      on_request_changes: {fix_prompt: "{{output}}|{{cycle}}", re_review_prompt: "{{cycle}}"}
  - {name: last, prompt: "{{checked.cycles}}", messages: {on_failure: "lost: {{error}}"}}
"""


async def test_every_variable_has_the_value_that_its_sentence_says(world: WorkflowWorld) -> None:
    config = Config(models={"plan": "m"}, variants={"plan": "v"}, assistants={"default": AGENT})
    world.workflows = Workflows(
        world.storage, world.definitions, PHASES, config=config, namespace=world.workflows.namespace
    )
    world.script = {
        "plan": "a plan",
        "talk_iter_1": "what?",
        "talk_iter_2": "end",
        "check": "VERDICT: REQUEST_CHANGES",
        "check_recheck_1": "VERDICT: APPROVED",
        "last": Done(success=False, error="the reason"),
    }
    run_id = await world.start(WORKFLOW, context={"title": "T", "users": [{"name": "ann"}]})
    await world.work()
    (gate,) = await world.pending(run_id)
    await world.approvals.reply(gate.approval_id, "because")
    await world.work()
    prompts = {label: given["prompt"] for label, given in world.seen}
    assert prompts == {
        "plan": "T|ann|m|v",
        "work_item_1": "1|1|work|work_item_1",
        "talk_iter_1": "1|3||||",
        "talk_iter_2": "2|3|what?|because|because|1",
        "check": 'a plan|a plan|a plan|["output of work_item_1"]|2',
        "check_fix_1": "VERDICT: REQUEST_CHANGES|1",
        "check_recheck_1": "1",
        "last": "1",
    }
    said = [entry.summary for entry in (await world.workflows.get(run_id)).phase_history]
    assert "fix 1 of 2" in said
    assert "lost: Error: the reason" in said


async def test_every_variable_of_an_input_is_in_the_reference(world: WorkflowWorld) -> None:
    world.script = {"talk_iter_1": "what?"}
    run_id = await world.start(WORKFLOW)
    found: set[str] = set()
    while claimed := await world.claim_phases():
        for each in claimed:
            phase = each.phase
            assert phase is not None
            found |= await _scope(world, run_id, phase.label)
            await world.execute(each)
        await world.settle()
    (gate,) = await world.pending(run_id)
    await world.approvals.reply(gate.approval_id, "because")
    (claim,) = await world.claim_phases()
    assert claim.phase is not None
    found |= await _scope(world, run_id, claim.phase.label)
    outputs = {"plan", "planned", "work", "talk", "talked"}
    assert found - outputs == NAMES - YOURS - {"cycle", "maxCycles", "error"}


async def _scope(world: WorkflowWorld, run_id: str, label: str | None) -> set[str]:
    """Return the names that the templates of an execution can read."""
    assert label is not None
    node, _, part = label.partition("_")
    kind, _, number = part.partition("_")
    more: dict[str, Any] = {"item": {"item": int(number or 0)}, "iter": {"iteration": int(number or 0)}}
    pointer = Pointer(workflow_run_id=run_id, node=node, label=label, **more.get(kind, {}))
    ns = await world.threads.ns()
    (material,) = await world.storage.read(gather, [pointer], ns=ns)
    assert isinstance(material, Material), material
    return set(material.scope)
