"""The programs of docs/frameworks.md are those that have run with the real packages."""

from __future__ import annotations

import ast
import json

from tests.conformance.framework_client import SEEN, read_common, read_programs

FRAMEWORKS = {
    "LangGraph and LangChain",
    "OpenAI Agents SDK",
    "Pydantic AI",
    "CrewAI",
    "AutoGen",
    "LlamaIndex",
    "smolagents",
    "Agno",
}


def test_each_program_has_run_as_it_is_written() -> None:
    programs = read_programs()
    assert {program.title for program in programs} == FRAMEWORKS
    changed = {program.title: program.digest for program in programs} != json.loads(SEEN.read_text())
    assert not changed, (
        "a program of docs/frameworks.md differs from the one that ran with its package; run "
        "PERDURE_RECORD_FRAMEWORKS=1 ./dev conformance --client frameworks, which records what passes"
    )


def test_each_program_is_python_that_registers_one_agent() -> None:
    ast.parse(read_common())
    for program in read_programs():
        names = {
            node.value for node in ast.walk(ast.parse(program.program)) if isinstance(node, ast.Constant)
        }
        assert "guide" in names, program.title
        assert program.packages
