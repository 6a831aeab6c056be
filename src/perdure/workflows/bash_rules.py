"""Rules of bash: the words of each command that may contain values.

Bash evaluates an argument of some builtins again: as arithmetic, as the name of a variable, or as a command.
A value there could execute a command, so it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from perdure.kernel.errors import InvalidInput

HOLE: Final = "\0"
"""Placeholder of a value in a command, and in a word of each part that contains a value."""
DYNAMIC: Final = "\1"
"""Placeholder in a word: an expansion without a value of a template."""
SPLIT: Final = "\2"
"""Placeholder in a word: an unquoted substitution with a value, which may become several words."""
ARRAY: Final = "\3"
"""Placeholder in a word: the elements of an array."""

NUMBER_HINT: Final = "write {{int NAME}} for a number"
EVALUATED: Final = "in"
"""Attributes of variables (integer, reference) for which bash evaluates every value assigned to them."""
DECLARED: Final = "inaA"
"""Attributes for which bash evaluates the value in a declaration, including the declaration of an array."""
INTEGERS: Final = (
    "RANDOM",
    "SRANDOM",
    "SECONDS",
    "OPTIND",
    "HISTCMD",
    "LINENO",
    "BASHPID",
    "PPID",
    "UID",
    "EUID",
)
"""Variables that are integers from the start."""
ARRAYS: Final = (
    "BASH_ARGC",
    "BASH_ARGV",
    "BASH_CMDS",
    "BASH_LINENO",
    "BASH_REMATCH",
    "BASH_SOURCE",
    "COMP_WORDS",
    "COMPREPLY",
    "COPROC",
    "DIRSTACK",
    "FUNCNAME",
    "GROUPS",
    "MAPFILE",
    "PIPESTATUS",
)
"""Variables that are arrays from the start."""
EXPANDED: Final = ("BASH_ALIASES", "BASH_ENV", "PROMPT_COMMAND", "PS0", "PS1", "PS2", "PS4")
"""Variables with values that bash expands like a command."""

NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)(\[.*?\])?\+?=", re.ASCII | re.DOTALL)

_NAMES_A_VARIABLE: Final = "an argument that names a variable"
_NO_VALUES: Final[Mapping[str, str]] = {
    "let": "arithmetic",
    "unset": _NAMES_A_VARIABLE,
    "read": _NAMES_A_VARIABLE,
    "wait": _NAMES_A_VARIABLE,
    "mapfile": "an argument that names a variable or a command",
    "readarray": "an argument that names a variable or a command",
    "trap": "an argument that is a command",
    "alias": "an argument that is a command",
    "compgen": "an argument that is a command",
    "complete": "an argument that is a command",
    "compopt": "an argument that is a command",
    "bind": "an argument that is a command",
    "history": "an argument that is a command",
    "fc": "an argument that is a command",
    "jobs": "an argument that is a command",
    "enable": "an argument that is a command",
}
"""Builtins that take no value as an argument, and the meaning of their argument."""
_READS_ARRAY: Final = re.compile(r"-\w*a", re.ASCII)
_READERS: Final = frozenset({"read", "mapfile", "readarray"})
_DECLARATIONS: Final = frozenset({"declare", "typeset", "local", "export", "readonly"})
_NAME_TESTS: Final = frozenset({"-v", "-R"})
_ARITHMETIC_TESTS: Final = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
_PREFIXES: Final = frozenset({"command", "builtin", "exec"})


class BashValue(NamedTuple):
    """A value in a command: its name in the template, its line, and whether it is a checked integer."""

    name: str
    line: int
    is_integer: bool = False


class RefusedValue(InvalidInput):
    """Raised for a value in a place where bash can execute it. `line` is the line in the command."""

    def __init__(self, value: BashValue, place: str, hint: str = NUMBER_HINT) -> None:
        self.line = value.line
        super().__init__(
            f"{{{{{value.name[:100]}}}}} in line {value.line} of the command is in {place}, "
            f"where bash can execute commands in a value; {hint}"
        )


class BashWord(NamedTuple):
    """A word without its quotes; each part that bash expands is one character."""

    text: str
    values: Sequence[BashValue] = ()
    is_quoted: bool = False

    @property
    def has_value(self) -> bool:
        return HOLE in self.text or SPLIT in self.text

    def can_begin_with(self, character: str) -> bool:
        """Return whether the word may begin with this character."""
        return self.text[:1] in (character, HOLE, DYNAMIC, SPLIT)

    def refuse(self, place: str, hint: str = NUMBER_HINT) -> None:
        """Raise RefusedValue if the word has a value."""
        if self.has_value:
            refuse_values(self.values, place, hint)


class Attributed(NamedTuple):
    """A variable with attributes that a command declares."""

    variable: str
    attributes: str


class WrittenVariable(NamedTuple):
    """A variable that gets a value; with one of `attributes`, bash evaluates the value."""

    variable: str
    value: BashValue
    attributes: str = EVALUATED


class ReadVariable(NamedTuple):
    """A variable that `read` or `mapfile` sets."""

    variable: str


Effect = Attributed | WrittenVariable | ReadVariable


def refuse_values(values: Sequence[BashValue], place: str, hint: str = NUMBER_HINT) -> None:
    """Raise RefusedValue for the first value that is not a checked integer."""
    for value in values:
        if not value.is_integer:
            raise RefusedValue(value, place, hint)


def written(variable: str, values: Sequence[BashValue], attributes: str = EVALUATED) -> Sequence[Effect]:
    """Return the effect of assigning values, if any value is not a checked integer."""
    return [WrittenVariable(variable, value, attributes) for value in values if not value.is_integer][:1]


def check_words(words: Sequence[BashWord], fed: Sequence[BashValue]) -> Iterator[Effect]:
    """Yield the effects of a simple command on variables; `fed` are the values in its redirections.

    Raise RefusedValue if a word has a value that the command evaluates.
    """
    for word in words:
        refuse_expanded(word)
    has_prefix = False
    while words and words[0].text in _PREFIXES:
        has_prefix = True
        prefix, *words = words
        while words and words[0].text.startswith("-"):
            option, *words = words
            if prefix.text == "command" and {"v", "V"} & set(option.text):
                return
    if not words:
        return
    name, *arguments = words
    if SPLIT in name.text:
        name.refuse("a substitution whose words are a command", "write the command itself")
    if name.text in _NO_VALUES:
        for word in arguments:
            word.refuse(_NO_VALUES[name.text] + f" ({name.text})")
    if name.text in _READERS:
        is_array = name.text != "read" or any(_READS_ARRAY.match(word.text) for word in arguments)
        for word in arguments:
            yield from written(word.text, fed)
            yield ReadVariable(word.text)
            if is_array:
                yield Attributed(word.text, "a")
    elif name.text in _DECLARATIONS:
        if has_prefix or name.is_quoted:
            for word in arguments:
                if SPLIT in word.text:
                    word.refuse(f"a substitution that bash splits before {name.text}", "quote it")
        yield from _check_declaration(name.text, arguments)
    elif name.text == "printf":
        yield from _check_printf(arguments)
    elif name.text in ("test", "["):
        _check_test(arguments)
    elif name.text == "getopts":
        for word in arguments[1:2]:
            word.refuse(_NAMES_A_VARIABLE + " (getopts)")


def refuse_expanded(word: BashWord) -> None:
    """Raise RefusedValue if a word assigns a value to a variable that bash expands like a command."""
    variable = word.text.partition("=")[0].partition("[")[0].rstrip("+")
    if variable in EXPANDED:
        word.refuse(f"the value of {variable}", "bash executes it as a command")


def check_conditional(words: Sequence[BashWord]) -> None:
    """Raise RefusedValue if `[[ … ]]` reads a value as arithmetic or as the name of a variable."""
    for position, word in enumerate(words):
        if word.text in _NAME_TESTS:
            for operand in words[position + 1 : position + 2]:
                operand.refuse(f"the name of a variable (`[[ {word.text}`)")
        if word.text in _ARITHMETIC_TESTS:
            for operand in (*words[max(position - 1, 0) : position], *words[position + 1 : position + 2]):
                operand.refuse(
                    f"arithmetic (`[[ … {word.text}`)", f"{NUMBER_HINT}, or [ … {word.text} … ] for any value"
                )


def _check_test(arguments: Sequence[BashWord]) -> None:
    """Refuse a value after `-v`, or after a word that may expand to `-v`."""
    before: BashWord | None = None
    for word in arguments:
        if SPLIT in word.text:
            word.refuse("a substitution that test may split into an operator and a name", "quote it")
        if before is not None and before.text in _NAME_TESTS:
            word.refuse(f"the name of a variable (test {before.text})")
        if before is not None and before.can_begin_with("-") and {HOLE, DYNAMIC} & set(before.text):
            word.refuse("test after a word that may be an operator", "write an operator between them")
        before = word


def _check_printf(arguments: Sequence[BashWord]) -> Iterator[Effect]:
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word.text == "--" or not word.can_begin_with("-"):
            return
        if word.text.startswith("-v"):
            attached = len(word.text) > len("-v")
            target = word if attached else next(iter(arguments[position + 1 : position + 2]), word)
            target.refuse("the name of a variable (printf -v)")
            position += 1 if attached else 2
            variable = target.text.removeprefix("-v") if attached else target.text
            for other in arguments[position:]:
                yield from written(variable, other.values)
            continue
        if len(arguments) > 1 or SPLIT in word.text:
            word.refuse("the first argument of printf, which can be an option", "write a format before it")
        return


def _check_declaration(command: str, arguments: Sequence[BashWord]) -> Iterator[Effect]:
    flags = ""
    for word in arguments:
        if word.text.startswith(("-", "+")):
            word.refuse(f"an option ({command})", "write the option itself")
            flags += word.text[1:] if word.text.startswith("-") else ""
            continue
        assignment = ASSIGNED.match(word.text)
        if assignment is None or HOLE in (assignment[2] or "") or SPLIT in (assignment[2] or ""):
            word.refuse(f"an argument that names a variable ({command})")
        attributes = "".join(sorted(set(flags) & set(DECLARED)))
        variable = word.text if assignment is None else assignment[1]
        if attributes:
            yield Attributed(variable, attributes)
        if assignment is not None:
            is_array = word.text.startswith(ARRAY, assignment.end())
            if set(attributes) & set(EVALUATED if is_array else DECLARED):
                word.refuse(f"a value that `{command} -{attributes}` evaluates")
            yield from written(variable, word.values, EVALUATED if is_array else DECLARED)
