"""Loops of phases: until a condition holds, with people, with a reviewer; maps and other workflows."""

from __future__ import annotations

from typing import Any

import pytest
from tests.workflows.support import Done, WorkflowWorld

from perdure.kernel.codec import decode_json
from perdure.threads.records import Failure
from perdure.threads.work import Ending
from perdure.workflows.values import Config

LOOP = """
name: looping
phases:
  - name: write
    prompt: "{{iteration}}/{{maxIterations}}: {{previousOutput}}"
    output_var: written
    generic_loop: LOOP
  - {name: after, prompt: "{{written.completed}} {{written.iterations}} {{write}}"}
"""


def looping(loop: str) -> str:
    return LOOP.replace("LOOP", loop)


async def test_a_loop_goes_round_until_its_condition_holds(world: WorkflowWorld) -> None:
    run = await world.play(
        looping("{max_iterations: 5, until: \"output.contains('DONE')\"}"),
        {"write_iter_1": "one", "write_iter_2": "two", "write_iter_3": "DONE"},
    )
    assert run.status == "succeeded"
    assert world.labels == ["write_iter_1", "write_iter_2", "write_iter_3", "after"]
    prompts = [given["prompt"] for _, given in world.seen]
    assert prompts == ["1/5: ", "2/5: one", "3/5: one\n\ntwo", "true 3 DONE"]
    node = run.nodes[0]
    assert run.scratch["write"] == {
        "iteration": 3,
        "lastOutputExecutionId": node.execution_id,
        "ready": True,
    }
    entries = [(entry.phase, entry.summary) for entry in run.phase_history]
    assert entries[-4:-1] == [
        ("write_iter_3", "iteration 3 — work complete"),
        ("write_iter_3", "condition met"),
        ("write", None),
    ]


async def test_a_loop_that_never_meets_its_condition_does_not_fail_the_run(world: WorkflowWorld) -> None:
    run = await world.play(
        looping(
            "{max_iterations: {from: limits.tries, default: 9}, until: 'scratch.nothing == true', "
            "scratch_key: notes, fresh_context: true}"
        ),
        context={"limits": {"tries": "1.2"}},
    )
    assert run.status == "succeeded"
    assert world.labels == ["write_iter_1", "write_iter_2", "after"]
    assert [given["prompt"] for _, given in world.seen][1:] == ["2/2: ", "false 2 output of write_iter_2"]
    assert "ready" not in run.scratch["notes"]


async def test_a_command_decides_after_the_condition(world: WorkflowWorld) -> None:
    run = await world.play(
        looping("{max_iterations: 3, until: \"output == 'never'\", until_bash: 'test -f done'}"),
        {
            "write_iter_1_check": Done(stop_reason="condition_not_met"),
            "write_iter_2_check": Done(stop_reason="condition_met"),
        },
    )
    assert run.status == "succeeded"
    assert world.labels == [
        "write_iter_1",
        "write_iter_1_check",
        "write_iter_2",
        "write_iter_2_check",
        "after",
    ]
    given = dict(world.seen)
    assert given["write_iter_1_check"]["command"] == "test -f done"
    assert given["after"]["prompt"] == "true 2 output of write_iter_2"


async def test_a_check_that_breaks_counts_as_not_met(world: WorkflowWorld) -> None:
    run = await world.play(
        looping("{max_iterations: 2, until_bash: 'false'}"),
        {"write_iter_1_check": Done(success=False), "write_iter_2_check": Done(success=False)},
    )
    assert run.status == "succeeded"
    assert dict(world.seen)["after"]["prompt"] == "false 2 output of write_iter_2"


async def test_the_marker_is_required_of_the_last_iteration_alone(world: WorkflowWorld) -> None:
    text = looping("{max_iterations: 3, until_bash: 'x'}\n    on_output: {requires_marker: OK}")
    met = Done(stop_reason="condition_met")
    run = await world.play(text, {"write_iter_1": "no", "write_iter_2": "OK", "write_iter_2_check": met})
    assert run.status == "succeeded"
    run = await world.play(text, {"write_iter_1": "OK", "write_iter_2": "no", "write_iter_2_check": met})
    assert run.status == "failed"


async def test_soft_failures_are_tried_again_and_then_complete_or_fail(world: WorkflowWorld) -> None:
    soft = Done(success=False, stop_reason="error_truncated")
    text = looping("{max_iterations: 2, until: 'output == 1', on_soft_failure: {retries: 1, then: THEN}}")
    script: dict[str, Any] = {"write_iter_1": soft, "write_iter_1_retry": soft}
    run = await world.play(text.replace("THEN", "complete"), script)
    assert run.status == "succeeded"
    assert world.labels == ["write_iter_1", "write_iter_1_retry", "after"]
    run = await world.play(text.replace("THEN", "fail"), script)
    assert run.status == "failed"
    # A crash is never soft.
    run = await world.play(text.replace("THEN", "complete"), {"write_iter_1": Done(success=False)})
    assert run.status == "failed"


async def test_an_agent_that_took_too_long_has_not_failed_softly(world: WorkflowWorld) -> None:
    """Whatever it said of itself before its time was over."""
    loop = "{max_iterations: 2, until: 'output == 1', on_soft_failure: {retries: 1, then: complete}}"
    run_id = await world.start(looping(loop))
    (claimed,) = await world.claim_phases()
    failure = Failure(error="TimeoutError", message="it took too long")
    await world.queue.finish(
        Ending(held=claimed.held, result="timeout", error=failure, stop_reason="error_truncated")
    )
    await world.work()
    assert world.labels == []
    assert (await world.workflows.get(run_id)).status == "failed"


async def test_a_loop_asks_a_person_and_goes_on_with_the_reply(world: WorkflowWorld) -> None:
    run_id = await world.start(
        looping(
            "{max_iterations: 4, until: \"output.contains('READY')\", interactive: true, gate_kind: reply}"
        ).replace("{{previousOutput}}", "{{reply}}")
        + "  - {name: last, prompt: '{{scratch.write.qa}}'}\n"
    )
    await world.work({"write_iter_1": "How big?", "write_iter_2": "How red?", "write_iter_3": "READY"})
    run = await world.workflows.get(run_id)
    assert run.status == "paused"
    assert run.current_phase == "waiting_approval"
    (gate,) = await world.pending(run_id)
    assert (gate.kind, gate.gate, gate.summary) == ("reply", "write_iter_1", "How big?")
    assert run.phase_history[-1].summary == f"Waiting for reply: write_iter_1 ({gate.approval_id})"
    await world.approvals.reply(gate.approval_id, text="very big")
    await world.work()
    assert world.seen[-1][1]["prompt"] == "2/4: very big"
    (gate,) = await world.pending(run_id)
    await world.approvals.reply(gate.approval_id, text="deep red")
    await world.work()
    run = await world.workflows.get(run_id)
    assert run.status == "succeeded"
    qa = world.seen[-3][1]["qa"]
    assert [(each["question"], each["answer"]) for each in qa] == [
        ("How big?", "very big"),
        ("How red?", "deep red"),
    ]
    # A later phase reads the texts; the scratch has ids in place of them.
    assert decode_json(world.seen[-1][1]["prompt"]) == qa
    assert "How big?" not in str(run.scratch)
    assert "very big" not in str(run.scratch)
    assert [set(each) for each in run.scratch["write"]["qa"]] == [
        {"questionExecutionId", "approvalId", "sender", "at"}
    ] * 2


async def test_a_loop_that_is_rejected_fails_the_run(world: WorkflowWorld) -> None:
    run_id = await world.start(
        looping("{max_iterations: 4, until: 'output == 1', interactive: true, gate_message: 'Go on?'}")
    )
    await world.work()
    (gate,) = await world.pending(run_id)
    assert (gate.kind, gate.summary) == ("approve", "Go on?")
    await world.approvals.reject(gate.approval_id)
    run = await world.workflows.get(run_id)
    assert (run.status, run.error) == ("failed", "Rejected: no reason given")
    assert run.node_statuses == {"write": "failed", "after": "skipped"}


# --- reviewers --------------------------------------------------------------------------------------------

REVIEW = """
name: reviewing
phases:
  - name: review
    prompt: "review"
    output_var: verdict
    loop:
      max_cycles: 2
      approval_gate: before_fix
      on_request_changes: {fix_prompt: "fix {{output}}", re_review_prompt: "again {{cycle}}", fix_model: big}
  - {name: after, prompt: "{{verdict.approved}} {{verdict.cycles}}"}
"""


async def test_a_reviewer_that_approves_at_once(world: WorkflowWorld) -> None:
    run = await world.play(REVIEW, {"review": "text\nVERDICT: APPROVED\n"})
    assert world.labels == ["review", "after"]
    assert world.seen[-1][1]["prompt"] == "true 0"
    assert run.status == "succeeded"


async def test_a_reviewer_and_a_fix_take_turns(world: WorkflowWorld) -> None:
    await world.play(REVIEW, {"review": "VERDICT: REQUEST_CHANGES", "review_recheck_1": "APPROVED, fine"})
    assert world.labels == ["review", "review_fix_1", "review_recheck_1", "after"]
    given = dict(world.seen)
    assert (given["review_fix_1"]["prompt"], given["review_fix_1"]["model"]) == (
        "fix VERDICT: REQUEST_CHANGES",
        "big",
    )
    assert given["review_recheck_1"]["prompt"] == "again 1"
    assert given["after"]["prompt"] == "true 1"


async def test_a_reviewer_that_is_never_content_does_not_fail_the_run(world: WorkflowWorld) -> None:
    run = await world.play(REVIEW, {"review_recheck_1": "approved but REQUEST_CHANGES"})
    assert world.labels == [
        "review",
        "review_fix_1",
        "review_recheck_1",
        "review_fix_2",
        "review_recheck_2",
        "after",
    ]
    assert world.seen[-1][1]["prompt"] == "false 2"
    assert run.status == "succeeded"


async def test_a_gate_before_the_fix_counts_only_where_it_is_on(world: WorkflowWorld) -> None:
    world.workflows.config = Config(assistants={"default": "echo"}, gates=("before_fix",))
    world.workflows.__init__(  # type: ignore[misc]
        world.storage,
        world.definitions,
        world.workflows.phases,
        config=world.workflows.config,
        namespace=world.namespace,
    )
    run_id = await world.start(REVIEW)
    await world.work({"review_recheck_1": "APPROVED"})
    assert world.labels == ["review"]
    (gate,) = await world.pending(run_id)
    assert (gate.gate, gate.label) == ("before_fix", "review_fix_1")
    await world.approvals.approve(gate.approval_id)
    await world.work()
    assert world.labels == ["review", "review_fix_1", "review_recheck_1", "after"]


# --- maps and other workflows -----------------------------------------------------------------------------

MAP = """
name: mapping
phases:
  - {name: find, prompt: find}
  - {name: each, type: map, items: ITEMS, max_parallel: 2, prompt: "do {{item.name}}{{item}} {{itemNumber}}"}
  - {name: sum, prompt: "{{each}}"}
"""


@pytest.mark.parametrize("items", ["'{{find}}'", "'{{names}}'", "[x, y, z]"])
async def test_a_map_runs_its_phase_for_each_item(world: WorkflowWorld, items: str) -> None:
    run_id = await world.start(MAP.replace("ITEMS", items), context={"names": ["x", "y", "z"]})
    world.script["find"] = '["x", "y", "z"]'
    await world.step()
    await world.timer.settle()
    claimed = await world.claim_phases()
    assert [each.phase.label for each in claimed if each.phase] == ["each_item_1", "each_item_2"]
    for each in claimed:
        await world.execute(each)
    await world.work()
    run = await world.workflows.get(run_id)
    assert run.status == "succeeded"
    assert [given["prompt"] for label, given in world.seen if "item" in label] == [
        "do x 1",
        "do y 2",
        "do z 3",
    ]
    assert (
        world.seen[-1][1]["prompt"]
        == '["output of each_item_1","output of each_item_2","output of each_item_3"]'
    )


async def test_a_map_fails_if_an_item_does_and_a_retry_repeats_only_that(world: WorkflowWorld) -> None:
    run = await world.play(
        MAP.replace("ITEMS", "[x, y, z]"), {"each_item_2": [Done(success=False), "second time"]}
    )
    assert run.status == "failed"
    assert "1 of 3 items failed" in (run.error or "")
    before = len(world.seen)
    await world.workflows.retry(run.workflow_run_id)
    await world.work()
    assert world.labels[before:] == ["each_item_2", "sum"]
    assert (await world.workflows.get(run.workflow_run_id)).status == "succeeded"


@pytest.mark.parametrize("items", ["'{{nothing}}'", "'{{count}}'", "'[{{count}}'", "[]"])
async def test_a_map_of_no_list_fails_and_one_of_no_items_succeeds(
    world: WorkflowWorld, items: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = await world.play(MAP.replace("ITEMS", items), context={"count": 3})
    assert run.status == ("succeeded" if items == "[]" else "failed")
    assert [each for each in caplog.records if each.exc_info] == []


CHILD = """
name: child
phases:
  - {name: work, prompt: "child {{kind}} {{title}}"}
  - {name: last, prompt: l}
"""
PARENT = """
name: parent
phases:
  - {name: first, prompt: f}
  - {name: sub, type: workflow, workflow: child, context: {kind: "{{first}}"}}
  - {name: end, prompt: "got {{sub}}"}
"""


async def test_a_workflow_starts_another_and_waits_for_it(world: WorkflowWorld) -> None:
    world.add(CHILD)
    origin = {"trigger_type": "webhook", "repo": "acme/app", "issue_number": 7}
    run = await world.play(
        PARENT, {"first": "red", "last": "the child's end"}, context={"title": "T"}, **origin
    )
    assert run.status == "succeeded"
    given = dict(world.seen)
    assert given["work"]["prompt"] == "child red T"
    assert given["end"]["prompt"] == "got the child's end"
    child = await world.workflows.get(run.nodes[1].child_run_id or "")
    assert (child.workflow_name, child.parent_run_id, child.parent_node) == (
        "child",
        run.workflow_run_id,
        "sub",
    )
    assert {name: getattr(child, name) for name in origin} == origin


async def test_a_child_that_fails_fails_its_phase_and_is_retried_with_it(world: WorkflowWorld) -> None:
    world.add(CHILD)
    run = await world.play(PARENT, {"last": [Done(success=False), "now it works"]})
    assert run.status == "failed"
    before = len(world.seen)
    await world.workflows.retry(run.workflow_run_id)
    await world.work()
    assert world.labels[before:] == ["last", "end"]
    assert (await world.workflows.get(run.workflow_run_id)).status == "succeeded"


async def test_a_workflow_that_starts_itself_is_stopped(world: WorkflowWorld) -> None:
    run = await world.play("name: self\nphases:\n  - {name: again, type: workflow, workflow: self}\n")
    assert run.status == "failed"
    page = await world.workflows.list_runs(workflow_name="self")
    assert page.total == 9


async def test_a_map_starts_a_workflow_for_each_item(world: WorkflowWorld) -> None:
    world.add(CHILD)
    run = await world.play(
        """
        name: fan
        phases:
          - {name: each, type: map, items: [a, b], workflow: child, context: {kind: "{{item}}"}}
        """
    )
    assert run.status == "succeeded"
    works = [given["prompt"] for label, given in world.seen if label == "work"]
    assert sorted(works) == ["child a ", "child b "]


# --- graphs that ask --------------------------------------------------------------------------------------


async def test_a_graph_that_asks_goes_on_with_the_answer_in_its_own_thread(world: WorkflowWorld) -> None:
    run_id = await world.start(
        "name: asks\nphases:\n  - {name: a, prompt: x}\n  - {name: b, prompt: '{{a}}'}\n"
    )
    world.script["a"] = [Done(asks="Which colour?"), "painted"]
    (asking,) = await world.claim_phases()
    await world.execute(asking)
    await world.work()
    (gate,) = await world.pending(run_id)
    assert (gate.kind, gate.summary) == ("reply", "Which colour?")
    assert (await world.workflows.get(run_id)).status == "paused"
    await world.approvals.reply(gate.approval_id, text="green")
    await world.timer.settle()
    (claimed,) = await world.claim_phases()
    assert claimed.run.kwargs.command is not None
    assert claimed.run.kwargs.command.resume == "green"
    assert claimed.run.thread_id == asking.run.thread_id
    await world.execute(claimed)
    await world.work()
    run = await world.workflows.get(run_id)
    assert run.status == "succeeded"
    assert world.seen[-1][1]["prompt"] == "painted"


async def test_a_fix_and_its_review_have_assistants_of_their_own(world: WorkflowWorld) -> None:
    named = REVIEW.replace("fix_model: big", "fix_assistant: '{{fixer}}', re_review_assistant: echo")
    world.script |= {"review": "VERDICT: REQUEST_CHANGES", "review_recheck_1": "APPROVED"}
    await world.start(named.replace("loop:", "assistant: other\n    loop:"), context={"fixer": "echo"})
    agents: dict[str, str] = {}
    while claimed := await world.claim_phases():
        for assignment in claimed:
            assert assignment.phase is not None
            agents[str(assignment.phase.label)] = assignment.run.assistant_id
            await world.execute(assignment)
    reviewer, other = agents["review"], agents["after"]
    assert reviewer != other
    assert agents == {"review": reviewer, "review_fix_1": other, "review_recheck_1": other, "after": other}
