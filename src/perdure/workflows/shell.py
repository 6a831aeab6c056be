"""Commands with values in them. A value reaches the shell in a variable, never as text of the command.

The output of an agent or the title of an issue stays data: bash expands a variable once, and `bash` refuses
the places in which bash evaluates the value again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any, Final, NamedTuple

from perdure.kernel.errors import InvalidInput, TooLarge
from perdure.workflows import templates
from perdure.workflows.bash import scan_bash
from perdure.workflows.bash_rules import HOLE, BashValue
from perdure.workflows.templates import (
    INT,
    Help,
    If,
    Part,
    Template,
    Text,
    Value,
    is_there,
    read_value,
    shown,
)

PREFIX: Final = "PERDURE_VALUE_"
MAX_VALUE: Final = 100_000
"""Maximum size of a value in a command, in bytes; operating systems allow at most 128 KiB."""
MAX_CONDITIONS: Final = 4
"""Up to this number of conditions, every combination is checked when the file is loaded."""


class ShellCommand(NamedTuple):
    """A command for a shell, and its environment variables."""

    text: str
    env: dict[str, str]


def shell_command(template: Template, scope: Mapping[str, Any]) -> ShellCommand:
    """Return a command with its values in variables. Raise InvalidInput if bash would evaluate a value."""
    text, parts = _flatten(template, lambda part: is_there(read_value(part, scope)))
    quotings = scan_bash(text, [_bash_value(part) for part in parts])
    pieces = text.split(HOLE)
    env: dict[str, str] = {}
    written = [pieces[0]]
    for part, quoting, after in zip(parts, quotings, pieces[1:], strict=True):
        value = shown(read_value(part, scope))
        if len(value.encode("utf-8", "replace")) > MAX_VALUE:
            raise TooLarge(f"a value in a command is larger than {MAX_VALUE} bytes; read it from a file")
        name = PREFIX + str(len(env) + 1)
        env[name] = value.replace("\0", "")
        written += [quoting.value.format(name), after]
    command = "".join(written)
    if "{{" in command:
        raise InvalidInput("the command still has '{{' in it after its values were put in")
    return ShellCommand(command, env)


def check_command(text: str) -> None:
    """Raise RefusedValue if bash evaluates a value of a command, for any outcome of its conditions."""
    template = templates.check_template(text)
    conditions = sorted({part.path for part in _conditions(template.parts)})
    failures: list[InvalidInput] = []
    count = 0
    for there in _choices(conditions):
        count += 1
        command, parts = _flatten(template, lambda part, there=there: there[part.path])  # type: ignore[misc]
        try:
            scan_bash(command, [_bash_value(part) for part in parts])
        except InvalidInput as error:
            failures.append(error)
    refused = [failure for failure in failures if hasattr(failure, "line")]
    if refused or len(failures) == count:
        raise (refused or failures)[0]


def _choices(conditions: list[tuple[str, ...]]) -> Iterator[Mapping[tuple[str, ...], bool]]:
    """Yield truth values of conditions: every combination of a few; of many, all, none, all but one, one."""
    if len(conditions) <= MAX_CONDITIONS:
        for chosen in product((True, False), repeat=len(conditions)):
            yield dict(zip(conditions, chosen, strict=True))
        return
    for usual in (True, False):
        yield dict.fromkeys(conditions, usual)
        for path in conditions[:100]:
            yield {**dict.fromkeys(conditions, usual), path: not usual}


def _conditions(parts: tuple[Part, ...]) -> Iterator[If]:
    for part in parts:
        if isinstance(part, If):
            yield part
            yield from _conditions(part.parts)


def _flatten(template: Template, holds: Callable[[If], bool]) -> tuple[str, list[Value | Help]]:
    """Return the text of a command with a HOLE for each value, and the values."""
    pieces: list[str] = []
    values: list[Value | Help] = []

    def write(parts: tuple[Part, ...]) -> None:
        for part in parts:
            if isinstance(part, Text):
                if HOLE in part.text:
                    raise InvalidInput("a command must not have NUL characters")
                pieces.append(part.text)
            elif isinstance(part, If):
                if holds(part) != part.negated:
                    write(part.parts)
            else:
                pieces.append(HOLE)
                values.append(part)

    write(template.parts)
    return "".join(pieces), values


def _bash_value(part: Value | Help) -> BashValue:
    if isinstance(part, Value):
        return BashValue(".".join(part.path), part.line)
    return BashValue(f"{part.helper} {part.argument}", part.line, is_integer=part.helper == INT)
