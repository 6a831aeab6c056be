"""The planner on all small graphs with all rules and outcomes, compared with a direct implementation."""

from __future__ import annotations

from itertools import combinations, product

import msgspec
from tests.workflows.support import run_row

from perdure.workflows.definition import OnFailure, Phase, Workflow
from perdure.workflows.graph import TRIGGER_RULES, TriggerRule
from perdure.workflows.model import FAILED, NODE_ENDED, READY, SKIPPED, SUCCEEDED, NodeKey
from perdure.workflows.planner import RunNodes, WorkflowPlan
from perdure.workflows.rows import WorkflowNodeRow

NAMES = ("a", "b", "c", "d")
OUTCOMES = (SUCCEEDED, FAILED)


def phase(name: str, depends_on: list[str], rule: TriggerRule = "all_success", **more: object) -> Phase:
    return Phase(name=name, type="context", depends_on=depends_on, trigger_rule=rule, **more)  # type: ignore[arg-type]


def board_of(phases: list[Phase]) -> RunNodes:
    plan = WorkflowPlan(Workflow(name="w", phases=phases))
    return RunNodes(plan, run_row(open_nodes=len(phases)), plan.new_nodes("run"))


def expected(phases: list[Phase], outcomes: dict[str, str]) -> dict[str, str]:
    """Return how each phase ends, computed from the definition of the rules in the order of the phases."""
    ended: dict[str, str] = {}
    for each in phases:
        before = [ended[name] for name in each.depends_on or []]
        runs = {
            "all_success": all(status == SUCCEEDED for status in before),
            "one_success": not before or SUCCEEDED in before,
            "none_failed_min_one_success": not before or (FAILED not in before and SUCCEEDED in before),
            "all_done": True,
        }[each.trigger_rule]
        ended[each.name] = outcomes[each.name] if runs else SKIPPED
    return ended


def play(board: RunNodes, outcomes: dict[str, str], *, last_first: bool = False) -> list[str]:
    """End every phase that becomes ready with its outcome. Return the order in which phases began."""
    ready: list[WorkflowNodeRow] = board.begin()
    began: list[str] = []
    while ready:
        node = ready.pop(-1 if last_first else 0)
        assert node.status == READY
        began.append(node.node)
        board.move(node, "started")
        board.end(node, outcomes[node.node], fails_run=outcomes[node.node] == FAILED)
        while not board.is_settled:
            assert board.needs() == set()
            ready += board.settle().ready
    return began


def test_every_graph_of_three_phases_ends_as_its_rules_say() -> None:
    """All sets of edges, rules and outcomes, and 2 orders of ending."""
    edges = list(combinations(NAMES[:3], 2))
    for chosen in product([False, True], repeat=len(edges)):
        taken = [edge for edge, wanted in zip(edges, chosen, strict=True) if wanted]
        for rules in product(TRIGGER_RULES, repeat=2):
            phases = [
                phase(name, [a for a, b in taken if b == name], rule)
                for name, rule in zip(NAMES, ("all_success", *rules), strict=False)
            ]
            for ends in product(OUTCOMES, repeat=3):
                outcomes = dict(zip(NAMES, ends, strict=False))
                wanted = expected(phases, outcomes)
                for last_first in (False, True):
                    board = board_of(phases)
                    play(board, outcomes, last_first=last_first)
                    assert {node.node: node.status for node in board.nodes.values()} == wanted
                    assert board.run.open_nodes == 0
                    assert board.run.failed_nodes == list(wanted.values()).count(FAILED)
                    assert (board.run.ready_nodes, board.run.running_nodes) == (0, 0)


def test_a_join_of_three_waits_for_all_of_them() -> None:
    for rule, ends in product(TRIGGER_RULES, product(OUTCOMES, repeat=3)):
        phases = [phase(name, []) for name in NAMES[:3]] + [phase("d", list(NAMES[:3]), rule)]
        outcomes = {**dict(zip(NAMES, ends, strict=False)), "d": SUCCEEDED}
        board = board_of(phases)
        began = play(board, outcomes)
        wanted = expected(phases, outcomes)
        assert board.nodes[NodeKey("d")].status == wanted["d"]
        if wanted["d"] != SKIPPED:
            assert began[-1] == "d"


def test_a_phase_that_may_fail_counts_as_a_success_for_those_after_it() -> None:
    phases = [phase("a", [], on_failure=OnFailure(action="continue")), phase("b", ["a"])]
    board = board_of(phases)
    (first,) = board.begin()
    board.move(first, "started")
    board.end(first, "failed", fails_run=False)
    settled = board.settle()
    assert [node.node for node in settled.ready] == ["b"]
    assert board.run.failed_nodes == 0


def test_a_phase_that_may_fail_is_no_failure_for_those_after_it_also_after_a_reset() -> None:
    rules: tuple[TriggerRule, ...] = ("all_success", "one_success", "none_failed_min_one_success")
    may_fail = phase("a", [], on_failure=OnFailure(action="continue"))
    board = board_of([may_fail, *(phase(f"after {rule}", ["a"], rule) for rule in rules)])
    names = [f"after {rule}" for rule in rules]
    assert play(board, {"a": FAILED, **dict.fromkeys(names, SUCCEEDED)}) == ["a", *names]
    board.reset(names)
    for name in names:
        node = board.nodes[NodeKey(name)]
        assert board.plan[name].runs_after(node.succeeded_before, node.failed_before)


def test_a_skip_goes_on_through_a_chain_and_stops_at_all_done() -> None:
    phases = [phase("a", []), phase("b", ["a"]), phase("c", ["b"]), phase("d", ["c"], "all_done")]
    board = board_of(phases)
    began = play(board, {"a": FAILED, "d": SUCCEEDED})
    assert began == ["a", "d"]
    assert [node.status for node in board.nodes.values()] == [FAILED, SKIPPED, SKIPPED, SUCCEEDED]


def test_only_what_an_end_touches_is_asked_for() -> None:
    """With only the ended node loaded, `needs` returns its dependents and nothing else."""
    phases = [phase("a", []), phase("b", ["a"]), phase("c", ["b"]), phase("d", [])]
    whole = board_of(phases)
    whole.begin()
    node = whole.nodes[NodeKey("a")]
    whole.move(node, "started")
    board = RunNodes(whole.plan, whole.run, [node])
    board.end(node, "succeeded")
    assert board.needs() == {"b"}
    board.add([whole.nodes[NodeKey("b")]])
    assert [each.node for each in board.settle().ready] == ["b"]
    assert board.is_settled


def test_a_reset_counts_again_what_a_phase_waits_for() -> None:
    phases = [phase("a", []), phase("b", []), phase("c", ["a", "b"]), phase("d", ["c"])]
    board = board_of(phases)
    play(board, dict.fromkeys(NAMES, SUCCEEDED) | {"c": FAILED})
    assert board.run.failed_nodes == 1
    assert board.unfinished() == {"c", "d"}
    ready = board.reset(board.unfinished())
    assert [node.node for node in ready] == ["c"]
    assert board.run.failed_nodes == 0
    assert board.run.open_nodes == 2
    c, d = board.nodes[NodeKey("c")], board.nodes[NodeKey("d")]
    assert (c.waiting_on, c.succeeded_before, c.failed_before) == (0, 2, 0)
    assert (d.waiting_on, d.succeeded_before, d.failed_before) == (1, 0, 0)


def test_an_end_that_comes_twice_changes_nothing() -> None:
    board = board_of([phase("a", []), phase("b", ["a"])])
    (first,) = board.begin()
    board.move(first, "started")
    assert board.end(first, "succeeded")
    board.settle()
    before = msgspec.structs.astuple(board.run)
    assert not board.end(first, "failed", fails_run=True)
    assert not board.move(first, "started")
    assert board.is_settled
    assert msgspec.structs.astuple(board.run) == before


def test_cancelling_ends_every_open_node() -> None:
    board = board_of([phase("a", []), phase("b", ["a"]), phase("c", [])])
    first, other = board.begin()
    board.move(first, "started")
    board.end(other, "succeeded")
    board.cancel()
    assert all(node.status in NODE_ENDED for node in board.nodes.values())
    assert board.nodes[NodeKey("c")].status == SUCCEEDED
    assert board.run.open_nodes == 0
