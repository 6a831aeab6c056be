"""The life of a run: dispatch, admission, cancel, retry, pause, lost workers, gates."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.support.kinds import PHASES
from tests.workflows.support import Done, WorkflowWorld, workflow

from perdure.approvals.model import Decision
from perdure.cli.commands.workflow_watch import drawing
from perdure.cli.shell.output import parse_moment
from perdure.kernel.errors import Conflict, InvalidInput, NotFound
from perdure.kernel.storage.port import Tx
from perdure.schedules.model import FiringRequest
from perdure.schedules.workflow_target import WorkflowTarget
from perdure.service.callers import Caller
from perdure.workflows.operations import lifecycle
from perdure.workflows.operations.advance import resume_node
from perdure.workflows.operations.runs import lock_run
from perdure.workflows.override_service import WorkflowOverrides
from perdure.workflows.service import Workflows
from perdure.workflows.values import Config

ONE = "name: one\nphases:\n  - {name: a, prompt: a}\n  - {name: b, prompt: b}\n"
GATED = """
name: gated
phases:
  - {name: plan, prompt: p, approval_gate: post_plan, approval_gate_message: "Is {{plan}} good?",
     approval_artifact: "{{plan}}", assignees: [ann]}
  - {name: build, prompt: b}
"""


def with_gates(world: WorkflowWorld, *gates: str) -> None:
    """Enable gates."""
    world.workflows = Workflows(
        world.storage,
        world.definitions,
        world.workflows.phases,
        config=Config(assistants={"default": "echo"}, gates=gates),
        namespace=world.namespace,
    )


# --- dispatch ---------------------------------------------------------------------------------------------


async def test_the_live_run_of_a_workflow_and_a_trigger_is_used_again(world: WorkflowWorld) -> None:
    world.add(ONE)
    first = await world.workflows.run("one", trigger_id="repo#1")
    again = await world.workflows.run("one", trigger_id="repo#1")
    assert again.workflow_run_id == first.workflow_run_id
    assert (first.reused, again.reused) == (False, True)
    other = await world.workflows.run("one", trigger_id="repo#2")
    assert other.workflow_run_id != first.workflow_run_id
    await world.work()
    new = await world.workflows.run("one", trigger_id="repo#1")
    assert not new.reused


async def test_a_run_shows_the_definition_that_it_began_with(world: WorkflowWorld) -> None:
    world.add(
        "name: one\nphases:\n  - name: a\n    prompt: |\n      Say x: 1,\n      then 'y'.\n  - {name: b}\n"
    )
    run_id = (await world.workflows.run("one")).workflow_run_id
    assert run_id is not None
    begun = await world.workflows.run_definition(run_id)
    assert begun.current is True
    world.add(ONE)
    found = await world.workflows.run_definition(run_id)
    assert (found.workflow_name, found.current, found.digest) == ("one", False, begun.digest)
    assert found.yaml == begun.yaml
    lines = found.yaml.text.splitlines()
    assert [(each.phase, each.first, each.last) for each in found.yaml.phases] == [("a", 3, 6), ("b", 7, 7)]
    assert [line.strip() for line in lines] == [
        "name: one", "phases:", "- name: a", "prompt: |", "Say x: 1,", "then 'y'.", "- name: b"
    ]  # fmt: skip
    again = workflow(found.yaml.text)
    assert again.phases[0].prompt == "Say x: 1,\nthen 'y'.\n"
    shown = await world.workflows.show("one")
    assert [each.phase for each in shown.yaml.phases] == ["a", "b"]
    with pytest.raises(NotFound):
        await world.workflows.run_definition("none")


async def test_many_dispatches_at_once_make_one_run(world: WorkflowWorld) -> None:
    world.add(ONE)
    callers = [world.workflows.in_namespace(world.namespace) for _ in range(6)]
    answers = await asyncio.gather(*(each.run("one", trigger_id="t") for each in callers))
    assert len({answer.workflow_run_id for answer in answers}) == 1
    assert sum(not answer.reused for answer in answers) == 1


async def test_a_workflow_that_is_switched_off_answers_without_a_run(world: WorkflowWorld) -> None:
    world.add(ONE)
    overrides = WorkflowOverrides(world.storage, namespace=world.namespace)
    await overrides.set_enabled("one", enabled=False)
    answer = await world.workflows.run("one")
    assert (answer.workflow_run_id, answer.enabled) == (None, False)
    assert (await world.workflows.list_runs()).total == 0
    assert [(each.name, each.enabled) for each in await world.workflows.list()] == [("one", False)]
    await overrides.clear("one")
    assert (await world.workflows.run("one")).enabled


async def test_bad_requests_are_refused(world: WorkflowWorld) -> None:
    world.add(ONE)
    with pytest.raises(NotFound):
        await world.workflows.run("nothing")
    with pytest.raises(InvalidInput):
        await world.workflows.run("one", trigger_type="mail")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        await world.workflows.run("one", context={"x": "y" * (1 << 21)})
    with pytest.raises(InvalidInput):
        await world.workflows.run("one", trigger_id="")
    with pytest.raises(NotFound):
        await world.workflows.get("nothing")
    assert (await world.workflows.list_runs()).total == 0


async def test_the_definition_of_a_run_is_that_of_its_beginning(world: WorkflowWorld) -> None:
    run_id = await world.start(ONE)
    world.add("name: one\nphases:\n  - {name: other, prompt: o}\n")
    await world.work()
    assert world.labels == ["a", "b"]
    assert (await world.workflows.get(run_id)).status == "succeeded"


async def test_large_values_stand_in_rows_of_their_own(world: WorkflowWorld) -> None:
    context = {"small": 1, "large": "x" * 50_000, "many": ["y" * 20_000]}
    run = await world.play("name: big\nphases:\n  - {name: a, prompt: '{{large}}'}\n", context=context)
    assert run.context == context
    assert world.seen[0][1]["prompt"] == "x" * 50_000
    assert world.seen[0][1]["context"] == context
    await world.workflows.update_scratch(run.workflow_run_id, values={"n": 1, "text": "z" * 30_000})
    scratch = (await world.workflows.get(run.workflow_run_id)).scratch
    assert scratch["n"] == 1
    assert set(scratch["text"]) == {"$output"}


# --- admission --------------------------------------------------------------------------------------------


async def test_runs_above_the_cap_wait_in_their_order(world: WorkflowWorld) -> None:
    world.add(ONE)
    runs = [await world.start(trigger_id=f"t{number}") for number in range(6)]
    statuses = [(await world.workflows.get(run)).status for run in runs]
    assert statuses == ["running"] * 4 + ["queued"] * 2
    again = await world.workflows.run("one", trigger_id="t5")
    assert (again.workflow_run_id, again.status, again.reused) == (runs[5], "queued", True)
    await world.workflows.cancel(runs[1])
    await world.settle()
    statuses = [(await world.workflows.get(run)).status for run in runs]
    assert statuses == ["running", "cancelled", "running", "running", "running", "queued"]
    await world.work()
    assert [(await world.workflows.get(run)).status for run in runs].count("succeeded") == 5


async def with_timeout(world: WorkflowWorld, *schedules: str) -> list[str]:
    """Start runs of the workflow `w` by schedules, with a timeout of half an hour.

    On PostgreSQL the duration of the test counts too, so checks keep minutes away from the timeout.
    """
    target = WorkflowTarget(world.workflows, PHASES)
    order = FiringRequest(
        schedule_id="s",
        due_at=0,
        assistant_id=None,
        thread_id=None,
        metadata={},
        payload={"workflow": "w"},
        timeout=1800.0,
    )
    orders = [target.prepare(msgspec.structs.replace(order, schedule_id=each)) for each in schedules]
    ns = await world.workflows.ns("write")
    return [str(each) for each in await world.storage.run(target.start, orders, ns=ns)]


async def test_a_run_with_a_timeout_fails_as_a_whole_also_while_it_waits(world: WorkflowWorld) -> None:
    world.add("name: w\nphases:\n  - {name: a, prompt: a}\n  - {name: ask, type: approval}\n")
    waiting, ended = await with_timeout(world, "s1", "s2")
    await world.work()
    (gate,) = await world.pending(waiting)
    (other,) = await world.pending(ended)
    await world.approvals.approve(other.approval_id)
    await world.work()
    await world.advance(1500.0)
    assert (await world.workflows.get(waiting)).status == "paused"
    await world.advance(301.0)
    run = await world.workflows.get(waiting)
    assert (run.status, run.error) == ("failed", "timed out after 1800 seconds")
    assert (await world.approvals.get(gate.approval_id)).status == "withdrawn"
    assert (await world.workflows.get(ended)).status == "succeeded"
    # A retry by a person has no timeout.
    await world.workflows.retry(waiting)
    await world.advance(3600.0)
    assert (await world.workflows.get(waiting)).status == "paused"


async def test_a_run_that_waited_for_an_hour_is_dropped(world: WorkflowWorld) -> None:
    world.add(ONE)
    runs = [await world.start(trigger_id=f"t{number}") for number in range(5)]
    await world.advance(3300.0)
    assert (await world.workflows.get(runs[4])).status == "queued"
    await world.advance(301.0)
    run = await world.workflows.get(runs[4])
    assert (run.status, run.error) == ("cancelled", "dropped from the queue after waiting too long")


async def test_a_run_whose_time_is_over_does_not_wait_in_the_queue(world: WorkflowWorld) -> None:
    world.add("name: w\nphases: [{name: a, prompt: a}]\n")
    for number in range(4):
        await world.start(trigger_id=f"t{number}")
    (queued,) = await with_timeout(world, "s1")
    await world.advance(1500.0)
    assert (await world.workflows.get(queued)).status == "queued"
    await world.advance(301.0)
    run = await world.workflows.get(queued)
    assert (run.status, run.error) == ("cancelled", "timed out after 1800 seconds in the queue")


async def test_a_paused_run_gives_its_place_to_another(world: WorkflowWorld) -> None:
    with_gates(world, "post_plan")
    world.add(GATED)
    runs = [await world.start(trigger_id=f"t{number}") for number in range(5)]
    await world.step()
    assert [(await world.workflows.get(run)).status for run in runs] == ["paused"] * 4 + ["running"]


# --- gates ------------------------------------------------------------------------------------------------


async def test_a_gate_that_is_off_does_not_stop_the_run(world: WorkflowWorld) -> None:
    assert (await world.play(GATED)).status == "succeeded"


async def test_a_gate_pauses_the_run_until_it_is_approved(world: WorkflowWorld) -> None:
    with_gates(world, "post_plan")
    run_id = await world.start(GATED)
    await world.work({"plan": "the plan"})
    run = await world.workflows.get(run_id)
    assert (run.status, run.current_phase, run.waiting_approvals) == ("paused", "waiting_approval", 1)
    (listed,) = await world.pending(run_id)
    gate = await world.approvals.get(listed.approval_id)
    assert (gate.gate, gate.summary, gate.artifact) == ("post_plan", "Is the plan good?", "the plan")
    assert gate.assignees == ["ann"]
    with pytest.raises(Conflict, match="waits for a person"):
        await world.workflows.resume(run_id)
    ann = world.approvals.acting_as(Caller("ann", frozenset({"write"}), world.namespace, (world.namespace,)))
    await ann.approve(gate.approval_id)
    await world.work()
    assert world.labels == ["plan", "build"]
    assert (await world.workflows.get(run_id)).status == "succeeded"


async def test_a_decision_on_another_approval_moves_no_node(world: WorkflowWorld) -> None:
    run_id = await world.start("name: asks\nphases:\n  - {name: ask, type: approval}\n")
    (gate,) = await world.pending(run_id)

    async def answer(tx: Tx, approval_id: str) -> bool:
        run = await lock_run(tx, run_id)
        assert run is not None
        decision = Decision(
            approval_id, run_id, "ask", "ask", "ask", "approve", "approved", "fail", None, "ann", 1
        )
        return await resume_node(tx, run, "ask", decision, PHASES)

    ns = await world.workflows.ns()
    assert not await world.storage.run(answer, "another", ns=ns)
    assert (await world.workflows.get(run_id)).status == "paused"
    assert [each.approval_id for each in await world.pending(run_id)] == [gate.approval_id]
    await world.approvals.approve(gate.approval_id)
    assert (await world.workflows.get(run_id)).status == "succeeded"


async def test_an_approval_phase_always_asks_and_other_branches_go_on(world: WorkflowWorld) -> None:
    run_id = await world.start(
        """
        name: asks
        phases:
          - {name: ask, type: approval, approval_gate_message: "Deploy {{what}}?", depends_on: []}
          - {name: other, prompt: o, depends_on: []}
          - {name: deploy, prompt: d, depends_on: [ask, other]}
        """,
        context={"what": "it"},
    )
    assert (await world.workflows.get(run_id)).status == "running"
    await world.work()
    run = await world.workflows.get(run_id)
    assert (run.status, run.node_statuses["other"]) == ("paused", "succeeded")
    (gate,) = await world.pending(run_id)
    assert gate.summary == "Deploy it?"
    answers = await asyncio.gather(
        world.approvals.approve(gate.approval_id),
        world.approvals.in_namespace(world.namespace).reject(gate.approval_id),
        return_exceptions=True,
    )
    assert sum(isinstance(answer, Conflict) for answer in answers) == 1
    await world.work()
    run = await world.workflows.get(run_id)
    approved = not isinstance(answers[0], Conflict)
    assert run.status == ("succeeded" if approved else "failed")
    assert world.labels == (["other", "deploy"] if approved else ["other"])


async def test_a_gate_that_was_rejected_is_opened_again_by_a_retry(world: WorkflowWorld) -> None:
    """Phases before the gate are not executed again."""
    with_gates(world, "post_plan")
    run_id = await world.start(GATED.replace(", assignees: [ann]", ""))
    await world.work()
    (gate,) = await world.pending(run_id)
    await world.approvals.reject(gate.approval_id, reason="not yet")
    assert (await world.workflows.get(run_id)).error == "Rejected: not yet"
    await world.workflows.retry(run_id)
    await world.work()
    assert world.labels == ["plan"]
    (gate,) = await world.pending(run_id)
    await world.approvals.approve(gate.approval_id)
    await world.work()
    assert world.labels == ["plan", "build"]


# --- cancel, retry, pause ---------------------------------------------------------------------------------


async def test_a_cancelled_run_stays_cancelled_whatever_its_phases_say(world: WorkflowWorld) -> None:
    run_id = await world.start(ONE)
    await world.step()
    (claimed,) = await world.claim_phases()
    run = await world.workflows.cancel(run_id)
    assert (run.status, run.error) == ("cancelled", "cancelled")
    await world.execute(claimed)
    await world.work()
    run = await world.workflows.get(run_id)
    assert run.status == "cancelled"
    assert run.node_statuses == {"a": "succeeded", "b": "cancelled"}
    with pytest.raises(Conflict):
        await world.workflows.cancel(run_id)


async def test_phases_that_wait_for_a_worker_are_cancelled_with_their_run(world: WorkflowWorld) -> None:
    run_id = await world.start(ONE)
    other = await world.start(trigger_id="other")
    await world.workflows.cancel(run_id)
    (claimed,) = await world.claim_phases()
    assert claimed.run.parent == other


async def test_cancelling_withdraws_the_gates_and_cancels_what_was_started(world: WorkflowWorld) -> None:
    world.add("name: child\nphases:\n  - {name: ask, type: approval}\n")
    run_id = await world.start("name: parent\nphases:\n  - {name: sub, type: workflow, workflow: child}\n")
    await world.settle()
    child = (await world.workflows.get(run_id)).nodes[0].child_run_id or ""
    (gate,) = await world.pending(child)
    await world.workflows.cancel(run_id)
    await world.settle()
    assert (await world.workflows.get(child)).status == "cancelled"
    assert (await world.approvals.get(gate.approval_id)).status == "withdrawn"


async def test_a_retry_goes_on_at_the_first_phase_that_is_not_done(world: WorkflowWorld) -> None:
    run = await world.play(
        """
        name: line
        phases:
          - {name: a, prompt: a, output_var: av}
          - {name: b, prompt: "b {{av}} {{a}}"}
          - {name: c, prompt: "c {{b}}"}
        """,
        {"b": [Done(success=False), "b's output"]},
    )
    assert run.status == "failed"
    with pytest.raises(Conflict):
        await world.workflows.resume(run.workflow_run_id)
    await world.workflows.retry(run.workflow_run_id)
    await world.work()
    run = await world.workflows.get(run.workflow_run_id)
    assert (run.status, run.error, run.restart_count) == ("succeeded", None, 0)
    assert world.labels == ["a", "b", "b", "c"]
    assert world.seen[2][1]["prompt"] == "b output of a output of a"
    assert world.seen[3][1]["prompt"] == "c b's output"
    with pytest.raises(Conflict):
        await world.workflows.retry(run.workflow_run_id)


async def test_a_phase_that_is_tried_again_shows_its_last_attempt_and_the_total(world: WorkflowWorld) -> None:
    run = await world.play("name: w\nphases:\n  - {name: a, prompt: a}\n", {"a": [Done(success=False), "ok"]})
    world.clock.advance(60.0)
    await world.workflows.retry(run.workflow_run_id)
    await world.work()
    (node,) = (await world.workflows.get(run.workflow_run_id)).nodes
    assert (node.status, node.attempts) == ("succeeded", 2)
    times = [parse_moment(each or "") for each in (node.started_at, node.attempt_started_at)]
    if world.storage.engine == "sqlite":
        assert times[1] - times[0] >= 60.0
    assert times[0] < times[1]
    assert " (attempt 2; " in drawing(await world.workflows.get(run.workflow_run_id)).plain


async def test_a_run_cannot_be_retried_beside_another_of_its_trigger(world: WorkflowWorld) -> None:
    run = await world.play(ONE, {"a": Done(success=False)}, trigger_id="t")
    await world.start(trigger_id="t")
    with pytest.raises(Conflict, match="is live"):
        await world.workflows.retry(run.workflow_run_id)


async def test_a_retry_goes_on_in_the_middle_of_a_loop(world: WorkflowWorld) -> None:
    run = await world.play(
        "name: l\nphases:\n  - {name: p, prompt: '{{previousOutput}}', generic_loop: "
        "{max_iterations: 3, until: \"output == 'end'\"}}\n",
        {"p_iter_2": [Done(success=False), "two"], "p_iter_3": "end"},
    )
    assert run.status == "failed"
    await world.workflows.retry(run.workflow_run_id)
    await world.work()
    assert world.labels == ["p_iter_1", "p_iter_2", "p_iter_2", "p_iter_3"]
    assert world.seen[2][1]["prompt"] == "output of p_iter_1"


async def test_a_paused_run_starts_nothing_until_it_is_resumed(world: WorkflowWorld) -> None:
    run_id = await world.start(ONE)
    (claimed,) = await world.claim_phases()
    assert (await world.workflows.pause(run_id)).status == "paused"
    await world.execute(claimed)
    await world.work()
    assert world.labels == ["a"]
    assert (await world.workflows.get(run_id)).held
    assert (await world.workflows.resume(run_id)).status == "running"
    await world.work()
    assert (await world.workflows.get(run_id)).status == "succeeded"
    with pytest.raises(Conflict):
        await world.workflows.pause(run_id)


async def test_a_run_is_paused_only_while_nothing_but_people_can_continue_it(world: WorkflowWorld) -> None:
    run_id = await world.start(
        """
        name: both
        phases:
          - {name: ask, type: approval, depends_on: []}
          - {name: nap, type: wait, seconds: 1000, depends_on: []}
        """
    )
    await world.work()
    run = await world.workflows.get(run_id)
    assert (run.status, run.node_statuses) == ("running", {"ask": "waiting", "nap": "waiting"})
    await world.advance(1001.0)
    assert (await world.workflows.get(run_id)).status == "paused"


# --- lost workers -----------------------------------------------------------------------------------------

WIDE = "name: wide\nphases:\n" + "".join(
    f"  - {{name: p{number}, prompt: x, depends_on: []}}\n" for number in range(4)
)


async def test_a_lost_worker_counts_once_however_many_phases_it_held(world: WorkflowWorld) -> None:
    run_id = await world.start(WIDE)
    assert len(await world.claim_phases()) == 4
    await world.advance(100.0)
    run = await world.workflows.get(run_id)
    assert (run.status, run.restart_count) == ("running", 1)
    await world.work()
    assert (await world.workflows.get(run_id)).status == "succeeded"


async def test_a_worker_that_was_lost_with_a_check_counts_though_its_lease_is_longer_than_the_check(
    world: WorkflowWorld,
) -> None:
    run_id = await world.start(
        """
        name: checking
        phases:
          - {name: a, prompt: a, generic_loop: {max_iterations: 2, until_bash: "true"}}
        """
    )
    await world.step()
    (check,) = await world.claim_phases()
    assert check.timeout_seconds is not None
    assert check.lease_seconds > check.timeout_seconds
    await world.advance(check.lease_seconds - 5.0)
    assert (await world.workflows.get(run_id)).restart_count == 0
    await world.advance(10.0)
    run = await world.workflows.get(run_id)
    assert (run.status, run.restart_count) == ("running", 1)
    await world.work({"a_iter_1_check": Done(stop_reason="condition_met")})
    assert world.labels == ["a_iter_1", "a_iter_1_check"]
    assert (await world.workflows.get(run_id)).status == "succeeded"


async def test_a_run_that_loses_too_many_workers_fails_and_a_retry_begins_to_count_anew(
    world: WorkflowWorld,
) -> None:
    run_id = await world.start(WIDE)
    for lost in range(1, 5):
        assert await world.claim_phases(worker_id=f"w{lost}")
        await world.advance(100.0)
        assert (await world.workflows.get(run_id)).restart_count == lost
    run = await world.workflows.get(run_id)
    assert run.status == "failed"
    assert "4 workers were lost" in (run.error or "")
    assert await world.claim_phases() == []
    await world.workflows.retry(run_id)
    await world.work()
    run = await world.workflows.get(run_id)
    assert (run.status, run.restart_count) == ("succeeded", 0)


async def test_workers_that_were_lost_with_phases_of_a_cancelled_run_do_not_count_after_its_retry(
    world: WorkflowWorld,
) -> None:
    run_id = await world.start(WIDE)
    for number in range(4):
        assert len(await world.claim_phases(1, worker_id=f"w{number}")) == 1
    await world.workflows.cancel(run_id)
    await world.workflows.retry(run_id)
    await world.advance(100.0)
    run = await world.workflows.get(run_id)
    assert (run.status, run.restart_count) == ("running", 0)
    await world.work()
    assert (await world.workflows.get(run_id)).status == "succeeded"


async def test_workers_that_are_lost_after_the_end_of_a_run_do_not_count(world: WorkflowWorld) -> None:
    run_id = await world.start(WIDE)
    for number in range(4):
        assert len(await world.claim_phases(1, worker_id=f"w{number}")) == 1
    # The process that cancels it ends before it has stopped the phases.
    await world.storage.run(lifecycle.cancel, run_id, None, PHASES, ns=await world.threads.ns())
    await world.advance(100.0)
    run = await world.workflows.get(run_id)
    assert (run.status, run.restart_count) == ("cancelled", 0)


async def test_a_phase_that_is_handed_back_does_not_count(world: WorkflowWorld) -> None:
    run_id = await world.start(ONE)
    (claimed,) = await world.claim_phases()
    await world.queue.hand_back([claimed.held])
    await world.work()
    run = await world.workflows.get(run_id)
    assert (run.status, run.restart_count) == ("succeeded", 0)


async def test_an_end_that_comes_late_changes_nothing(world: WorkflowWorld) -> None:
    run_id = await world.start(ONE)
    (late,) = await world.claim_phases()
    await world.advance(100.0)
    await world.work({"a": "in time"})
    with pytest.raises(Conflict):
        await world.end(late, Done("too late"))
    run = await world.workflows.get(run_id)
    assert run.status == "succeeded"
    assert world.labels == ["a", "b"]


# --- lists ------------------------------------------------------------------------------------------------


async def test_lists_show_running_paused_and_queued_runs_first(world: WorkflowWorld) -> None:
    with_gates(world, "post_plan")
    world.add(ONE)
    world.add(GATED)
    ended = [await world.start(name="one", trigger_id=f"e{number}") for number in range(3)]
    await world.work({"a": [Done(success=False)]})
    paused = await world.start(name="gated", trigger_id="p")
    await world.work()
    running = [await world.start(name="one", trigger_id=f"r{number}", repo="r") for number in range(4)]
    queued = [await world.start(name="one", trigger_id=f"q{number}") for number in range(2)]
    wanted = [*reversed(running), paused, *reversed(queued), *reversed(ended)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = await world.workflows.list_runs(limit=3, cursor=cursor)
        assert page.total == 10
        seen += [run.workflow_run_id for run in page.items]
        cursor = page.next
        if cursor is None:
            break
    assert seen == wanted

    async def found(**filters: Any) -> list[str]:
        page = await world.workflows.list_runs(**filters)
        assert page.total == len(page.items)
        return [run.workflow_run_id for run in page.items]

    assert await found(status=["failed", "paused"]) == [paused, ended[0]]
    assert await found(workflow_name="gated") == [paused]
    assert await found(workflow_name="one", status=["succeeded"]) == [ended[2], ended[1]]
    assert await found(repo="r") == list(reversed(running))
    assert await found(since="2100-01-01T00:00:00Z") == []
    assert await world.workflows.names() == ["gated", "one"]
    assert [each.counts for each in await world.workflows.counts()] == [
        {"paused": 1},
        {"failed": 1, "queued": 2, "running": 4, "succeeded": 2},
    ]
    first, *_ = running
    assert (await world.workflows.get(first[:18])).workflow_run_id == first
    assert (await world.workflows.get_by_trigger("r0")).workflow_run_id == first
    diff = await world.workflows.diff(ended[0], ended[1])
    assert {each.path for each in diff.differences} >= {"status", "error", "nodes.a.status"}
    logs = await world.workflows.search_logs("output of plan")
    assert [(match.where, match.workflow_run_id) for match in logs.items] == [("output", paused)]
    with pytest.raises(InvalidInput):
        await world.workflows.list_runs(cursor="nonsense")
