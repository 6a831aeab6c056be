"""Runs of workflows: phases in order and in parallel, rules, skips, failures and outputs."""

from __future__ import annotations

import pytest
from tests.workflows.support import Done, WorkflowWorld, workflow

from perdure.kernel.clock import to_iso, to_micros
from perdure.kernel.storage.port import Tx
from perdure.workflows.steps import find_missing_sandbox
from perdure.workflows.values import Config

LINE = """
name: line
phases:
  - {name: plan, prompt: "Plan {{title}}"}
  - {name: build, prompt: "Build ${plan.output} of {{plan}}", output_var: built}
  - {name: done, type: context}
"""


async def test_a_line_runs_one_phase_after_the_other(world: WorkflowWorld) -> None:
    run = await world.play(LINE, {"plan": "a plan", "build": "a house"}, context={"title": "it"})
    assert run.status == "succeeded"
    assert world.labels == ["plan", "build"]
    prompts = [given["prompt"] for _, given in world.seen]
    assert prompts == ["Plan it", "Build a plan of a plan"]
    assert run.node_statuses == {"plan": "succeeded", "build": "succeeded", "done": "succeeded"}
    assert [entry.phase for entry in run.phase_history] == ["plan", "build", "done"]
    assert run.executions.succeeded == 2
    assert run.open_nodes == 0
    assert run.finished_at is not None


DIAMOND = """
name: diamond
phases:
  - {name: a, prompt: a}
  - {name: b, prompt: b, depends_on: [a]}
  - {name: c, prompt: c, depends_on: [a]}
  - {name: d, prompt: "{{b}}+{{c}}", depends_on: [b, c]}
"""


async def test_phases_that_depend_on_the_same_run_at_the_same_time(world: WorkflowWorld) -> None:
    run_id = await world.start(DIAMOND)
    assert [each.phase.label for each in await world.claim_phases() if each.phase] == ["a"]
    await world.advance(1000.0)
    await world.work()
    assert world.labels == ["a", "b", "c", "d"]
    assert dict(world.seen)["d"]["prompt"] == "output of b+output of c"
    assert (await world.workflows.get(run_id)).status == "succeeded"


async def test_max_parallel_takes_them_in_the_order_of_the_file(world: WorkflowWorld) -> None:
    text = "name: many\nmax_parallel: {n}\nphases:\n" + "".join(
        f"  - {{name: p{number}, prompt: x, depends_on: []}}\n" for number in range(5)
    )
    await world.start(text.replace("{n}", "2"))
    assert len(await world.claim_phases()) == 2
    await world.advance(1000.0)
    await world.work()
    assert world.labels == [f"p{number}" for number in range(5)]


async def test_a_failure_skips_what_depends_on_it_but_not_all_done(world: WorkflowWorld) -> None:
    run = await world.play(
        """
        name: failing
        phases:
          - {name: a, prompt: a}
          - {name: b, prompt: b, depends_on: [a]}
          - {name: tidy, prompt: t, depends_on: [b], trigger_rule: all_done}
          - {name: other, prompt: o, depends_on: []}
        """,
        {"a": Done(success=False, error="no luck")},
    )
    assert run.status == "failed"
    assert run.error == "phase a failed: Error: no luck"
    assert run.node_statuses == {"a": "failed", "b": "skipped", "tidy": "succeeded", "other": "succeeded"}
    rows = (await world.executions.list(workflow_run_id=run.workflow_run_id)).items
    skipped = {row.label: row for row in rows}["b"]
    assert (skipped.success, skipped.stop_reason) == (False, "skipped")
    assert skipped.error == "skipped: trigger rule not satisfied"
    assert (run.executions.failed, run.executions.skipped) == (1, 1)


async def test_a_phase_is_skipped_on_its_own_condition_and_the_run_stays_green(world: WorkflowWorld) -> None:
    run = await world.play(
        """
        name: skipping
        phases:
          - {name: a, prompt: a, output_var: found}
          - {name: b, prompt: b, skip_if: ["kind == 'small'", "phaseOutputs.a.contains('nothing')"]}
          - {name: c, prompt: c, depends_on: [b], trigger_rule: all_done}
        """.replace("name: b, ", "name: b, depends_on: [a], "),
        {"a": "there is nothing to do"},
        context={"kind": "large"},
    )
    assert run.status == "succeeded"
    assert run.node_statuses == {"a": "succeeded", "b": "skipped", "c": "succeeded"}


SANDBOXES = """
name: sandboxed
phases:
  - {name: a, prompt: a, requires_sandbox: docker, messages: {on_skipped_done: "no docker here"}}
  - {name: b, prompt: b, requires_sandbox: none, depends_on: []}
  - {name: c, prompt: c, sandbox_image: qa, depends_on: []}
  - {name: d, prompt: d, depends_on: [a], trigger_rule: all_done}
"""


async def test_a_phase_is_skipped_where_the_sandbox_is_not_there_that_it_needs(world: WorkflowWorld) -> None:
    run = await world.play(SANDBOXES)
    assert run.status == "succeeded"
    assert run.node_statuses == {"a": "skipped", "b": "succeeded", "c": "skipped", "d": "succeeded"}
    found = await world.executions.list(workflow_run_id=run.workflow_run_id)
    rows = {row.label: row for row in found.items}
    assert (rows["a"].success, rows["a"].stop_reason) == (False, "skipped")
    assert rows["a"].error == "skipped: it requires the sandbox 'docker'; there is none"
    assert "no docker here" in [entry.summary for entry in run.phase_history]


def test_what_a_phase_needs_of_a_sandbox() -> None:
    docker = Config(sandbox="docker", sandbox_images=("qa",))
    for needs, is_there, is_in_docker in (
        ("label: A", True, True),
        ("requires_sandbox: docker", False, True),
        ("requires_sandbox: gondolin", False, False),
        ("requires_sandbox: none", True, False),
        ("requires_sandbox: true", False, True),
        ("requires_sandbox: false", True, True),
        ("sandbox_image: default", True, True),
        ("sandbox_image: qa", False, True),
        ("sandbox_image: other", False, False),
    ):
        (phase,) = workflow(f"name: w\nphases: [{{name: a, prompt: a, {needs}}}]").phases
        assert (find_missing_sandbox(phase, Config()) is None) is is_there, needs
        assert (find_missing_sandbox(phase, docker) is None) is is_in_docker, needs


async def test_a_phase_that_may_fail_does_not_stop_the_run(world: WorkflowWorld) -> None:
    run = await world.play(
        """
        name: lenient
        phases:
          - {name: a, prompt: a, on_failure: {action: continue}}
          - {name: b, prompt: b}
        """,
        {"a": Done(success=False)},
    )
    assert run.status == "succeeded"
    assert run.node_statuses == {"a": "failed", "b": "succeeded"}


async def test_a_failure_goes_back_to_a_phase_and_not_for_ever(world: WorkflowWorld) -> None:
    text = """
        name: back
        phases:
          - {name: a, prompt: "a {{b}}"}
          - {name: b, prompt: b, on_failure: {action: goto, phase: a}}
          - {name: c, prompt: c}
        """
    run = await world.play(text, {"b": [Done(success=False), Done(success=False), "good"]})
    assert run.status == "succeeded"
    assert world.labels == ["a", "b", "a", "b", "a", "b", "c"]
    run = await world.play(text, {"b": [Done(success=False)] * 20})
    assert run.status == "failed"
    assert run.node_statuses == {"a": "succeeded", "b": "failed", "c": "skipped"}
    assert world.labels[7:].count("b") == 11


async def test_a_failure_goes_forward_to_a_phase(world: WorkflowWorld) -> None:
    run = await world.play(
        """
        name: forward
        phases:
          - {name: a, prompt: a, on_failure: {action: goto, phase: rescue}}
          - {name: b, prompt: b}
          - {name: rescue, prompt: r}
          - {name: last, prompt: l}
        """,
        {"a": Done(success=False)},
    )
    assert run.node_statuses == {"a": "failed", "b": "skipped", "rescue": "succeeded", "last": "succeeded"}
    assert run.status == "succeeded"


async def test_a_phase_is_tried_as_often_as_it_says(world: WorkflowWorld) -> None:
    run_id = await world.start(
        """
        name: tried
        phases:
          - {name: a, prompt: a, retry: {max_attempts: 3, backoff_seconds: 10}}
        """
    )
    world.script["a"] = [Done(success=False), Done(success=False), "third time"]
    for _ in range(3):
        await world.step()
        await world.advance(100.0)
    run = await world.workflows.get(run_id)
    assert run.status == "succeeded"
    assert (run.executions.failed, run.executions.succeeded) == (2, 1)


@pytest.mark.parametrize(
    ("output", "context", "status", "error"),
    [
        ("all good MARK", {}, "succeeded", None),
        ("I am Blocked MARK", {}, "failed", "phase a failed: stuck"),
        ("blocked MARK", {"labels": ["force"]}, "succeeded", None),
        ("blocked MARK", {"issueLabels": [{"name": "force"}]}, "succeeded", None),
        ("blocked MARK", {"title": "[wip] x"}, "succeeded", None),
        ("no mark", {}, "failed", "phase a failed: the output does not contain 'MARK'"),
    ],
)
async def test_the_output_of_a_phase_is_checked(
    world: WorkflowWorld, output: str, context: dict[str, object], status: str, error: str | None
) -> None:
    run = await world.play(
        """
        name: checked
        phases:
          - name: a
            prompt: a
            on_output:
              contains_BLOCKED: {action: fail, message: stuck, unless_label: force,
                                 unless_title_matches: '^\\[wip\\]', bypass_message: let pass}
              requires_marker: MARK
        """,
        {"a": output},
        context=context,
    )
    assert (run.status, run.error) == (status, error)
    if error is not None:
        # Its execution counts as failed too, so that a retry executes it again.
        (row,) = (await world.executions.list(workflow_run_id=run.workflow_run_id)).items
        assert row.success is False
        assert (run.executions.failed, run.executions.succeeded) == (1, 0)
        await world.workflows.retry(run.workflow_run_id)
        await world.work({"a": "MARK"})
        assert (await world.workflows.get(run.workflow_run_id)).status == "succeeded"


async def test_a_wait_holds_no_worker_and_ends_when_its_time_has_come(world: WorkflowWorld) -> None:
    run_id = await world.start(
        "name: waits\nphases:\n  - {name: a, type: wait, seconds: 1000}\n  - {name: b, prompt: b}\n"
    )
    await world.work()
    assert (await world.workflows.get(run_id)).node_statuses == {"a": "waiting", "b": "pending"}
    await world.advance(700.0)
    assert (await world.workflows.get(run_id)).node_statuses["a"] == "waiting"
    await world.advance(301.0)
    await world.work()
    assert (await world.workflows.get(run_id)).status == "succeeded"


async def _get_wall(tx: Tx) -> int:
    return tx.wall


async def test_a_wait_until_a_time_follows_the_wall_clock(world: WorkflowWorld) -> None:
    world.clock.step(-7200.0)
    until = to_iso(await world.storage.read(_get_wall) + to_micros(1000.0))
    run_id = await world.start(
        "name: w\nphases:\n  - {name: a, type: wait, until_time: '{{when}}'}\n", context={"when": until}
    )
    await world.work()
    await world.advance(900.0)
    assert (await world.workflows.get(run_id)).node_statuses == {"a": "waiting"}
    await world.advance(101.0)
    assert (await world.workflows.get(run_id)).status == "succeeded"


async def test_a_time_that_is_none_fails_the_wait(world: WorkflowWorld) -> None:
    run = await world.play(
        "name: w\nphases:\n  - {name: a, type: wait, until_time: '{{when}}'}\n", context={"when": "soon"}
    )
    assert run.status == "failed"
    assert "ISO 8601" in (run.error or "")


async def test_a_phase_without_an_assistant_fails_with_what_to_do(world: WorkflowWorld) -> None:
    run = await world.play("name: w\nphases:\n  - {name: a, assistant: nobody, prompt: x}\n")
    assert run.status == "failed"
    assert run.error == "phase a failed: Assistant nobody not found"


async def test_the_last_marker_is_set_at_the_success_of_the_run(world: WorkflowWorld) -> None:
    run = await world.play(
        """
        name: marked
        status_checklist: true
        final_message: "made {{a}}{{#if none}}!{{/if}}"
        phases:
          - {name: a, prompt: a, on_success: {set_phase: halfway}}
          - {name: b, prompt: b, label: Build it, on_success: {set_phase: complete}}
        """
    )
    assert run.current_phase == "complete"
    assert [entry.phase for entry in run.phase_history] == ["a", "b", "complete"]
    assert run.final_message == "made output of a"
    assert run.checklist == "- [x] a\n- [x] Build it"


async def test_commands_get_values_as_variables_and_outputs_of_one_line(world: WorkflowWorld) -> None:
    run = await world.play(
        """
        name: commands
        phases:
          - {name: first-look, prompt: a}
          - {name: long, prompt: l}
          - {name: c, type: command, command: "echo {{first-look}} {{title}}"}
          - {name: s, type: script, script: "print(1)", runtime: python}
          - {name: h, type: http, http: {url: "http://x/{{title}}", body: {n: "{{count}}", t: "a {{title}}"}}}
          - {name: f, type: callable, callable: do_it, input: {value: "{{count}}"}}
        """,
        {"first-look": "; rm -rf /", "long": "two\nlines"},
        context={"title": "$(boom)", "count": 3},
    )
    assert run.status == "succeeded"
    given = dict(world.seen)
    assert given["c"]["command"] == 'echo "${PERDURE_VALUE_1}" "${PERDURE_VALUE_2}"'
    assert given["c"]["env"]["PERDURE_VALUE_1"] == "; rm -rf /"
    assert (
        given["c"]["env"]["PERDURE_OUT_FIRST_LOOK"] == given["c"]["env"]["LL_OUT_FIRST_LOOK"] == "; rm -rf /"
    )
    assert "PERDURE_OUT_LONG" not in given["c"]["env"]
    assert given["s"]["script"] == "print(1)"
    assert given["h"] == {
        "method": "GET",
        "url": "http://x/$(boom)",
        "headers": {},
        "body": {"n": 3, "t": "a $(boom)"},
    }
    assert given["f"] == {"callable": "do_it", "input": {"value": 3}}


async def test_an_input_that_cannot_be_rendered_fails_the_phase_and_nothing_is_executed(
    world: WorkflowWorld,
) -> None:
    run = await world.play(
        "name: w\nphases:\n  - {name: a, prompt: a}\n  - {name: b, prompt: '" + "{{a}}" * 3 + "'}\n",
        {"a": "x" * 500_000},
    )
    assert world.labels == ["a"]
    assert run.status == "failed"
    assert "rendered more than" in (run.error or "")


async def test_models_and_variants_come_from_the_phase_or_from_the_settings(world: WorkflowWorld) -> None:
    await world.play(
        """
        name: models
        phases:
          - {name: a, prompt: a, model: "{{models.fast}}", variant: low}
          - {name: b, prompt: b, skills: [review, test]}
        """,
        context={"models": {"fast": "tiny"}},
    )
    given = dict(world.seen)
    assert (given["a"]["model"], given["a"]["variant"]) == ("tiny", "low")
    assert (given["b"]["model"], given["b"]["skills"]) == (None, ["review", "test"])
    assert given["a"]["messages"] == [{"role": "user", "content": "a"}]
    assert given["b"]["outputs"] == {"a": "output of a"}
