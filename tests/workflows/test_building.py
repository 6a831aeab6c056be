"""Workflows in Python equal those of files."""

from __future__ import annotations

import pytest
from tests.workflows.support import workflow as from_yaml

from perdure import phase, workflow
from perdure.kernel.errors import InvalidInput
from perdure.workflows.registry import WorkflowRegistry


def test_python_and_yaml_give_the_same_record() -> None:
    built = workflow(
        "w",
        phase("a", prompt="x", retry={"max_attempts": 2}),
        phase("b", type="wait", seconds=3, depends_on=["a"]),
        max_parallel=2,
    )
    assert built == from_yaml(
        "name: w\nmax_parallel: 2\nphases:\n  - {name: a, prompt: x, retry: {max_attempts: 2}}\n"
        "  - {name: b, type: wait, seconds: 3, depends_on: [a]}\n"
    )


def test_mistakes_are_refused_as_in_files() -> None:
    with pytest.raises(InvalidInput, match="promt"):
        phase("a", promt="x")
    with pytest.raises(InvalidInput, match="depends on itself"):
        workflow("w", phase("a", prompt="x", depends_on=["a"]))
    with pytest.raises(InvalidInput, match="two phases"):
        workflow("w", phase("a", prompt="x"), phase("a", prompt="y"))


def test_files_are_replaced_together_and_a_broken_one_keeps_what_it_had() -> None:
    registry = WorkflowRegistry()
    one, two = workflow("one", phase("a", prompt="x")), workflow("two", phase("a", prompt="x"))
    assert registry.load([("w/one.yaml", one), ("w/two.yaml", two)]) == "workflows new: one, two"
    assert registry.load([("w/two.yaml", two)], ["w/one.yaml"]) is None
    assert sorted(registry.workflows) == ["one", "two"]
    assert registry.load([("w/two.yaml", two)]) == "workflows gone: one"
    other = workflow("two", phase("b", prompt="y"))
    registry.add(other)
    assert registry.get("two").workflow == other
