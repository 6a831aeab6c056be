"""Dependencies of phases: chains, cycles and trigger rules, over all combinations of statuses."""

from __future__ import annotations

from itertools import product

from perdure.workflows.graph import (
    ENDED,
    FAILED,
    PENDING,
    RUNNING,
    SKIPPED,
    SUCCEEDED,
    TRIGGER_RULES,
    compute_dependencies,
    graph_mistakes,
    verdict,
)

CYCLE = "phases depend on each other in a cycle: "


def test_phases_without_dependencies_are_a_chain() -> None:
    assert compute_dependencies([("a", None), ("b", None), ("c", None)]) == {
        "a": (),
        "b": ("a",),
        "c": ("b",),
    }
    assert compute_dependencies([("a", None), ("b", ["a"]), ("c", None)]) == {"a": (), "b": ("a",), "c": ()}
    assert compute_dependencies([("a", []), ("b", None)]) == {"a": (), "b": ()}


def test_what_cannot_be_ordered_is_named_with_its_path() -> None:
    for graph, mistakes in (
        ({"a": ["a"]}, [(0, "phase 'a' depends on itself")]),
        (
            {"a": ["x"], "b": ["y", "b"]},
            [
                (0, "phase 'a' depends on 'x', which is no phase"),
                (1, "phase 'b' depends on 'y', which is no phase"),
                (1, "phase 'b' depends on itself"),
            ],
        ),
        ({"a": ["b"], "b": ["c"], "c": ["a"]}, [(None, CYCLE + "a → b → c → a")]),
        ({"s": [], "a": ["s", "b"], "b": ["a"]}, [(None, CYCLE + "a → b → a")]),
        ({"a": [], "b": ["a"], "c": ["a", "b"], "d": ["b", "c"]}, []),
        ({str(n): [str(n + 1)] if n < 5000 else [] for n in range(5001)}, []),
    ):
        assert list(graph_mistakes(list(graph.items()))) == mistakes
    assert list(graph_mistakes([("a", None), ("a", None)])) == []


def test_a_trigger_rule_decides_for_every_combination_of_statuses() -> None:
    for rule in TRIGGER_RULES:
        assert verdict(rule, []) == "run"
        for count in (1, 2, 3):
            for statuses in product((PENDING, RUNNING, SUCCEEDED, FAILED, SKIPPED), repeat=count):
                found = verdict(rule, statuses)
                if not ENDED.issuperset(statuses):
                    assert found == "wait", (rule, statuses)
                    continue
                succeeded = SUCCEEDED in statuses
                expected = {
                    "all_success": set(statuses) == {SUCCEEDED},
                    "one_success": succeeded,
                    "none_failed_min_one_success": succeeded and FAILED not in statuses,
                    "all_done": True,
                }[rule]
                assert (found == "run") == expected, (rule, statuses)
