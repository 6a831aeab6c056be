"""A run drawn in the terminal, and a map that executes a command."""

from __future__ import annotations

from tests.workflows.support import Done, WorkflowWorld

from perdure.cli.commands.workflow_watch import ERROR_LINES, drawing

FLOW = """
name: w
phases:
  - {name: test, type: command, command: make}
"""
MAP = """
name: w
phases:
  - {name: each, type: map, items: "{{list}}", command: "make {{item}}"}
"""


async def test_a_failed_command_shows_the_end_of_what_it_wrote(world: WorkflowWorld) -> None:
    written = "\n".join(f"line {number} \x1b[2J" for number in range(50))
    error = f"CommandFailed: the command exited with 2: {written}"
    run = await world.play(FLOW, {"test": Done(success=False, error=error)})
    lines = drawing(run).plain.splitlines()
    assert "the command exited with 2" in lines[2]
    assert [line.split()[1] for line in lines[-ERROR_LINES:]] == [str(n) for n in range(50 - ERROR_LINES, 50)]
    assert "\x1b" not in drawing(run).plain


async def test_a_short_error_needs_no_lines_of_its_own(world: WorkflowWorld) -> None:
    run = await world.play(FLOW, {"test": Done(success=False, error="it broke")})
    assert drawing(run).plain.splitlines()[-1].endswith("it broke")


async def test_a_map_executes_a_command_for_each_item(world: WorkflowWorld) -> None:
    seen: list[tuple[str, dict[str, str]]] = []

    def make(given: dict[str, dict[str, str]]) -> str:
        seen.append((str(given["command"]), given["env"]))
        return "made"

    labels = {f"each_item_{number}": make for number in (1, 2)}
    run = await world.play(MAP, labels, context={"list": ["a b", "$(x)"]})
    assert run.status == "succeeded"
    assert sorted(env["PERDURE_VALUE_1"] for _, env in seen) == ["$(x)", "a b"]
    assert {command for command, _ in seen} == {'make "${PERDURE_VALUE_1}"'}
