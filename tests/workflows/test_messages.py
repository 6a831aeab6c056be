"""The history of a run with the messages of its workflow."""

from __future__ import annotations

from tests.workflows.support import Done, WorkflowWorld

from perdure.workflows.records import WorkflowRun

REVIEW = """
name: reviewed
status_checklist: true
phases:
  - name: plan
    label: Plan it
    prompt: plan
    messages: {on_start: "planning {{title}}…", on_success: "planned {{plan}}", on_skipped_done: "was done"}
  - name: nap
    type: wait
    seconds: 1
    skip_if: "title == 'Slugs'"
    messages: {on_skipped_done: "{{title}} need no nap"}
  - name: review
    prompt: review
    trigger_rule: all_done
    loop:
      max_cycles: 2
      on_request_changes: {fix_prompt: fix, re_review_prompt: again}
      messages:
        on_cycle_start: "review {{cycle}}"
        on_approved: "approved in {{cycle}}"
        on_request_changes: "changes, {{cycle}} of {{maxCycles}}"
        on_fix_start: "fix {{cycle}}"
        on_fix_failed: "fix {{cycle}} failed"
        on_max_cycles: "no more than {{maxCycles}}"
"""


def entries(run: WorkflowRun) -> list[tuple[str, bool, str | None]]:
    return [(each.phase, each.success, each.summary) for each in run.phase_history]


async def test_a_run_says_what_starts_and_ends_in_the_words_of_its_workflow(world: WorkflowWorld) -> None:
    run = await world.play(
        REVIEW, {"plan": "three steps", "review_recheck_1": "APPROVED"}, context={"title": "Slugs"}
    )
    assert run.status == "succeeded"
    assert entries(run) == [
        ("plan", True, "planning Slugs…"),
        ("plan", True, "planned three steps"),
        ("nap", True, "Slugs need no nap"),
        ("review", True, "review 1"),
        ("review", True, "changes, 1 of 2"),
        ("review_fix_1", True, "fix 1"),
        ("review_recheck_1", True, "review 2"),
        ("review_recheck_1", True, "approved in 2"),
        ("review", True, None),
    ]
    assert run.checklist == "- [x] Plan it — planned three steps\n- [-] nap — Slugs need no nap\n- [x] review"


async def test_a_loop_says_that_it_has_no_more_cycles(world: WorkflowWorld) -> None:
    run = await world.play(REVIEW, {}, context={"title": "Slugs"})
    assert run.status == "succeeded"
    assert entries(run)[-2] == ("review_recheck_2", True, "no more than 2")


async def test_a_fix_that_failed_is_said_and_a_retry_says_what_was_done(world: WorkflowWorld) -> None:
    run = await world.play(REVIEW, {"review_fix_1": Done(success=False)}, context={"title": "Slugs"})
    assert run.status == "failed"
    assert entries(run)[-2] == ("review_fix_1", False, "fix 1 failed")
    await world.workflows.retry(run.workflow_run_id)
    await world.work({"review_recheck_1": "APPROVED"})
    told = entries(await world.workflows.get(run.workflow_run_id))
    assert ("plan", True, "was done") in told[len(run.phase_history) :]


async def test_blocked_and_let_pass_are_said_as_templates(world: WorkflowWorld) -> None:
    text = """
        name: checked
        phases:
          - name: check
            prompt: check
            on_output: {contains_BLOCKED: {action: fail, unless_title_matches: "^urgent"}}
            messages: {on_blocked: "{{title}} is stuck", on_blocked_bypassed: "{{title}} goes on"}
    """
    blocked = await world.play(text, {"check": "BLOCKED"}, context={"title": "Slugs"})
    assert (blocked.status, blocked.error) == ("failed", "phase check failed: Slugs is stuck")
    passed = await world.play(text, {"check": "BLOCKED"}, context={"title": "URGENT slugs"})
    assert (passed.status, entries(passed)[-1]) == ("succeeded", ("check", True, "URGENT slugs goes on"))
