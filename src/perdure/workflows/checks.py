"""Mistakes of a workflow or cron that its schema does not show, each with the path to its field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from perdure.kernel.checks import one_of
from perdure.kernel.cron import check_expression, check_timezone
from perdure.kernel.errors import InvalidInput
from perdure.workflows import expressions, templates
from perdure.workflows.bash_rules import RefusedValue
from perdure.workflows.definition import COMMANDS, Cron, Phase, Workflow
from perdure.workflows.graph import graph_mistakes
from perdure.workflows.shell import check_command

RESERVED_INTENTS: Final = frozenset({"approve", "reject", "status", "reset", "chat"})

_NESTED = re.compile(r"\([^()]*[+*}][^()]*\)[+*{]")


class FileMistake(Exception):
    """A mistake in a file: the path to a value, and the line within the text of the value.

    `by_type` marks a mistake that follows from the type of a phase and from its fields.
    """

    def __init__(
        self, message: str, path: tuple[str | int, ...] = (), line: int = 1, *, by_type: bool = False
    ) -> None:
        super().__init__(message)
        self.message, self.path, self.line, self.by_type = message, path, line, by_type


def find_mistakes(definition: Workflow | Cron) -> Iterator[FileMistake]:
    """Yield every mistake of a workflow or a cron, each with the path to its field."""
    if isinstance(definition, Cron):
        if (definition.workflow is None) == (definition.handler is None):
            yield FileMistake("a cron has a workflow or a handler: exactly one of them")
        for field, check in (("schedule", check_expression), ("timezone", check_timezone)):
            try:
                check(getattr(definition, field))
            except InvalidInput as error:
                yield FileMistake(error.message, (field,))
        return
    names = [phase.name for phase in definition.phases]
    for number, phase in enumerate(definition.phases):
        if phase.name in names[:number]:
            yield FileMistake(f"there are two phases called {phase.name!r}", ("phases", number, "name"))
        for name, message in _type_mistakes(phase):
            yield FileMistake(f"phase {phase.name!r}: {message}", ("phases", number, name), by_type=True)
        for name, message in _phase_mistakes(phase):
            yield FileMistake(f"phase {phase.name!r}: {message}", ("phases", number, *parse_path(name)))
        yield from _command_mistakes(phase, number)
    outputs = list_outputs(definition)
    for number, phase in enumerate(definition.phases):
        for name, text in (*phase.templates(), *list_prompts(phase), *phase.value_templates()):
            for message in unknown_outputs(text, outputs):
                yield FileMistake(f"phase {phase.name!r}: {message}", ("phases", number, *parse_path(name)))
    yield from _graph_mistakes(definition)
    if definition.classification is not None and definition.classification.intent in RESERVED_INTENTS:
        intent = definition.classification.intent
        yield FileMistake(f"the intent {intent!r} is reserved", ("classification", "intent"))
    if definition.final_message is not None:
        messages = (*_template(definition.final_message), *unknown_outputs(definition.final_message, outputs))
        yield from (FileMistake(message, ("final_message",)) for message in messages)


def list_outputs(workflow: Workflow) -> frozenset[str]:
    """Return the names that `${name.output}` may use: phases and their `output_var`s."""
    names = [name for phase in workflow.phases for name in (phase.name, phase.output_var)]
    return frozenset(name for name in names if name is not None)


def unknown_outputs(text: str, outputs: frozenset[str]) -> Iterator[str]:
    """Yield a message for each output in a template that no phase has."""
    try:
        named = templates.parse(text).outputs()
    except InvalidInput:
        # `check_template` reports a template that cannot be parsed.
        return
    yield from (f"${{{name}.output}} names no phase" for name in sorted(named - outputs))


def _graph_mistakes(workflow: Workflow) -> Iterator[FileMistake]:
    phases = [(phase.name, phase.depends_on) for phase in workflow.phases]
    for number, message in graph_mistakes(phases):
        yield FileMistake(message, ("phases",) if number is None else ("phases", number, "depends_on"))


def _command_mistakes(phase: Phase, number: int) -> Iterator[FileMistake]:
    """Yield why bash cannot safely execute the command of a phase, with the line in the command."""
    try:
        check_command(phase.command or "")
    except InvalidInput as error:
        line = error.line if isinstance(error, RefusedValue) else 1
        yield FileMistake(f"phase {phase.name!r}: {error.message}", ("phases", number, "command"), line)


def parse_path(name: str) -> list[str | int]:
    """Return the path of a field such as `input.list.0`."""
    return [int(step) if step.isdecimal() else step for step in name.split(".")]


def _template(text: str) -> Iterator[str]:
    try:
        templates.check_template(text)
    except InvalidInput as error:
        yield error.message


def _condition(text: str) -> Iterator[str]:
    try:
        expressions.parse(text)
    except InvalidInput as error:
        yield error.message


_NEEDS: Final = {
    "command": "command",
    "bash": "command",
    "script": "script",
    "callable": "callable",
    "http": "http",
    "workflow": "workflow",
    "map": "items",
}
"""Field that a phase of each type must have."""
_ONLY: Final = {
    "command": COMMANDS | {"map"},
    "script": frozenset({"script", "map"}),
    "runtime": frozenset({"script", "map"}) | COMMANDS,
    "callable": frozenset({"callable", "map"}),
    "http": frozenset({"http", "map"}),
    "items": frozenset({"map"}),
    "seconds": frozenset({"wait"}),
    "until_time": frozenset({"wait"}),
    "sandbox": frozenset({"agent", "map", "script"}) | COMMANDS,
    "network": frozenset({"agent", "map", "script"}) | COMMANDS,
}
"""Types of phases that may have each field."""
_REPEATED: Final = ("prompt", "command", "script", "callable", "http", "workflow")
"""A map phase repeats one of these fields."""


def _type_mistakes(phase: Phase) -> Iterator[tuple[str, str]]:
    """Yield fields that a phase lacks for its type, and fields that belong to other types."""
    needed = _NEEDS.get(phase.type)
    if needed is not None and getattr(phase, needed) is None:
        yield "type", f"a phase of type {phase.type} needs {needed!r}"
    for name, types in _ONLY.items():
        if getattr(phase, name) is not None and phase.type not in types:
            yield name, f"{name!r} is for phases of type {one_of(sorted(types))}, not {phase.type}"
    given = [name for name in _REPEATED if getattr(phase, name) is not None]
    if phase.type == "map" and len(given) > 1:
        yield "type", f"a phase of type map repeats one thing: give {one_of(list(map(repr, given)))}"
    if phase.type == "wait" and (phase.seconds is None) == (phase.until_time is None):
        yield "type", "a phase of type wait needs 'seconds' or 'until_time'"


def _phase_mistakes(phase: Phase) -> Iterator[tuple[str, str]]:
    """Yield the wrong fields of a phase, each with the reason."""
    if phase.skill is not None and phase.skills:
        yield "skill", "give 'skill' or 'skills', not both"
    yield from _loop_mistakes(phase)
    prompts = [(name, text) for name, text in list_prompts(phase) if not is_file_name(text)]
    for name, text in (*phase.templates(), *prompts, *phase.value_templates()):
        # `_command_mistakes` checks the command.
        yield from ((name, message) for message in _template(text) if name != "command")
    for text in phase.conditions:
        yield from (("skip_if", message) for message in _condition(text))
    blocked = None if phase.on_output is None else phase.on_output.contains_BLOCKED
    if blocked is not None and blocked.unless_title_matches is not None:
        try:
            re.compile(blocked.unless_title_matches)
        except re.error as error:
            yield "on_output", f"unless_title_matches is no regular expression: {error}"
        if _NESTED.search(blocked.unless_title_matches):
            yield "on_output", "unless_title_matches repeats a repetition, which can take very long"
    if phase.on_failure is not None and (phase.on_failure.action == "goto") != bool(phase.on_failure.phase):
        yield "on_failure", "'phase' goes with the action goto"


def _loop_mistakes(phase: Phase) -> Iterator[tuple[str, str]]:
    loop = phase.generic_loop
    if loop is None:
        return
    if phase.loop is not None:
        yield "loop", "give 'loop' or 'generic_loop', not both"
    if loop.until is None and loop.until_bash is None:
        yield "generic_loop", "a loop needs 'until' or 'until_bash'"
    if loop.until is not None:
        yield from (("generic_loop.until", message) for message in _condition(loop.until))
    if loop.until_bash is not None and ("{{" in loop.until_bash or "${" in loop.until_bash):
        yield "generic_loop.until_bash", "until_bash is executed as written and takes no template"


def list_prompts(phase: Phase) -> Iterator[tuple[str, str]]:
    if phase.prompt is not None:
        yield "prompt", phase.prompt
    if phase.loop is not None:
        changes = phase.loop.on_request_changes
        yield "loop.on_request_changes.fix_prompt", changes.fix_prompt
        yield "loop.on_request_changes.re_review_prompt", changes.re_review_prompt


def is_file_name(prompt: str) -> bool:
    """Return whether a prompt is a file name, such as prompts/fix.md, instead of the text itself."""
    return "\n" not in prompt and re.fullmatch(r"[\w./-]+\.(md|txt|prompt)", prompt) is not None
