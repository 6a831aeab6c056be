"""Why workflow runs and approvals wait, and how they ended, on each engine."""

from __future__ import annotations

import re

from tests.support.kinds import KINDS
from tests.workflows.support import Done, WorkflowWorld

from perdure.diagnostics.model import Why
from perdure.diagnostics.service import Diagnostics

T = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \((?:in \S+ \S+|\S+ \S+ ago)\)"
ID = r"[0-9a-f-]{36}"

STEPS = "{name: steps, phases: [{name: first, prompt: go}, {name: second, prompt: go}]}"
GATED = "{name: gated, phases: [{name: gate, type: approval}, {name: after, prompt: go}]}"
WAITING = "{name: waiting, phases: [{name: rest, type: wait, seconds: 3600}]}"
OUTER = "{name: outer, phases: [{name: inner, type: workflow, workflow: gated}]}"


async def why(world: WorkflowWorld, id: str) -> Why:
    diagnostics = Diagnostics(world.storage, KINDS, namespace=world.threads.namespace)
    found = await diagnostics.why(id)
    assert found.kind == found.sentence.partition(" ")[0].lower()
    assert None not in found.facts.values()
    return found


def reads(found: Why, rule: str, sentence: str) -> None:
    assert (found.rule, re.fullmatch(sentence, found.sentence) is not None) == (rule, True), found


async def test_a_run_that_executes_names_its_phase(world: WorkflowWorld) -> None:
    run_id = await world.start(STEPS)
    name = rf"Workflow run {run_id} of steps"
    reads(
        await why(world, run_id),
        "executing",
        rf"{name} executes first \(run {ID}\). `perdure why {ID}` tells what that phase waits for\.",
    )
    await world.work({})
    reads(await why(world, run_id), "succeeded", rf"{name} succeeded at {T}\.")


async def test_a_run_that_failed_says_why_and_what_to_do(world: WorkflowWorld) -> None:
    run = await world.play(STEPS, {"first": Done(success=False)})
    found = await why(world, run.workflow_run_id)
    reads(found, "failed", rf"Workflow run {ID} of steps failed at {T}: phase first failed: .*retry.*")


async def test_a_run_that_waits_for_a_person_names_the_command(world: WorkflowWorld) -> None:
    run = await world.play(GATED)
    (approval,) = await world.pending(run.workflow_run_id)
    answer = rf"answer with `perdure approval approve {approval.approval_id}`\."
    reads(
        await why(world, run.workflow_run_id),
        "waits_for_person",
        rf"Workflow run {ID} of gated waits for a person\. Gate gate asks since {T}; {answer}",
    )
    reads(
        await why(world, approval.approval_id),
        "waits_for_person",
        rf"Approval {ID} of workflow run {ID} waits for anybody who may write\. It asks since {T}; {answer}",
    )
    await world.approvals.reject(approval.approval_id, reason="not today")
    reads(
        await why(world, approval.approval_id),
        "rejected",
        rf"Approval {ID} of workflow run {ID} was rejected.* at {T}: not today\.",
    )


async def test_waits_pauses_queues_and_other_workflows(world: WorkflowWorld) -> None:
    waiting = await world.play(WAITING)
    name = rf"Workflow run {ID} of"
    reads(
        await why(world, waiting.workflow_run_id),
        "waits_for_time",
        rf"{name} waiting waits in phase rest until {T}\.",
    )
    held = await world.start(STEPS)
    await world.workflows.pause(held)
    await world.work({})
    reads(await why(world, held), "held", rf"{name} steps was paused by an operator\. Resume it .*")
    world.add(GATED)
    outer = await world.play(OUTER)
    reads(
        await why(world, outer.workflow_run_id),
        "waits_for_workflow",
        rf"{name} outer waits for workflow run {ID}, which it started\.",
    )
    world.workflows.cap = 1
    queued = await world.start(name="steps")
    reads(
        await why(world, queued),
        "queued",
        rf"{name} steps waits until fewer runs are running; 0 queued runs are ahead of it\. "
        rf"It is cancelled at {T} unless it starts\.",
    )
