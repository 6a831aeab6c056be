"""Templates of workflows: `{{a.b}}`, `{{#if a}}…{{/if}}`, `{{slugify a}}`, `{{int a}}` and `${phase.output}`.

A template is parsed once and rendered in one pass. A value that looks like a template, such as the output of
an agent, therefore stays text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from perdure.kernel.codec import encode_json
from perdure.kernel.errors import InvalidInput, TooLarge
from perdure.workflows.expressions import Missing, look_up

MAX_TEMPLATE: Final = 256 << 10
MAX_RENDERED: Final = 1 << 20
MAX_NESTING: Final = 10
OUTPUTS: Final = "phaseOutputs"
"""Key of the outputs of phases in a scope; paths without a value are looked up there too."""
LONGEST_SLUG: Final = 40
SLUGIFY: Final = "slugify"
INT: Final = "int"
HELPERS: Final = frozenset({SLUGIFY, INT})
MAX_INTEGER: Final = 1 << 63
SHOWN_TAG: Final = 100
"""Maximum length of a wrong tag in an error."""

_OPENING = re.compile(r"\{\{|\$\{([\w-]+)\.output\}")
_OUTPUT = re.compile(r"\$\{([\w-]+)\.output\}")
_PATH = re.compile(r"[A-Za-z_][\w-]*(?:\.[\w-]+)*")
_IF = re.compile(r"#if\s+(?:(!)\s*)?(" + _PATH.pattern + ")")
_HELPER = re.compile(r"([A-Za-z_]\w*)\s+(\S+)")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_NO_SLUG = re.compile(r"[^a-z0-9]+")


class Text(NamedTuple):
    """Literal text."""

    text: str


class Value(NamedTuple):
    """The value at a path."""

    path: tuple[str, ...]
    line: int = 1


class Help(NamedTuple):
    """A helper with its argument: the name of a value, or a word."""

    helper: str
    argument: str
    line: int = 1


class If(NamedTuple):
    """A part that is rendered if a value is present, or if it is absent."""

    path: tuple[str, ...]
    negated: bool
    parts: tuple[Part, ...]


Part = Text | Value | Help | If


class Template(NamedTuple):
    """A parsed template; `text` is its source."""

    text: str
    parts: tuple[Part, ...]
    unclosed: int = 0
    """Line of the first unclosed `{{`, which is plain text; 0 if every `{{` is closed."""

    @property
    def is_literal(self) -> bool:
        """Return whether the template is only text."""
        return all(isinstance(part, Text) for part in self.parts)

    def helpers(self) -> frozenset[str]:
        """Return the names of its helpers."""
        return frozenset(part.helper for part in _walk(self.parts) if isinstance(part, Help))

    def paths(self) -> frozenset[tuple[str, ...]]:
        """Return the paths that it reads."""
        return frozenset(
            tuple(part.argument.split(".")) if isinstance(part, Help) else part.path
            for part in _walk(self.parts)
            if not isinstance(part, Text)
        )

    def outputs(self) -> frozenset[str]:
        """Return the phases whose output the template reads as `${phase.output}`."""
        return frozenset(path[1] for path in self.paths() if path[0] == OUTPUTS and len(path) > 1)

    @property
    def only_path(self) -> tuple[str, ...] | None:
        """Return the path if the template is a single value."""
        parts = [part for part in self.parts if not (isinstance(part, Text) and not part.text.strip())]
        return parts[0].path if len(parts) == 1 and isinstance(parts[0], Value) else None

    def render(self, scope: Mapping[str, Any]) -> str:
        """Render the text with the values of a scope. A missing value renders nothing."""
        size = 0
        pieces: list[str] = []
        for piece in _render(self.parts, scope):
            size += len(piece)
            if size > MAX_RENDERED:
                raise TooLarge(f"a template rendered more than {MAX_RENDERED} characters")
            pieces.append(piece)
        return "".join(pieces)


def parse(text: str) -> Template:
    """Parse a template. Raise InvalidInput with the mistake."""
    if len(text) > MAX_TEMPLATE:
        raise InvalidInput(f"a template must be at most {MAX_TEMPLATE} characters long")
    stack: list[tuple[tuple[tuple[str, ...], bool] | None, list[Part]]] = [(None, [])]
    position, line = 0, 1
    for tag in _tags(text):
        _add_text(stack[-1][1], text[position : tag.start])
        line += text.count("\n", position, tag.start)
        if tag.output is not None:
            stack[-1][1].append(Value((OUTPUTS, tag.output), line))
        elif tag.inner == "/if":
            condition, parts = stack.pop()
            if condition is None:
                raise InvalidInput(f"{{{{/if}}}} without {{{{#if}}}} in line {line}")
            stack[-1][1].append(If(*condition, tuple(parts)))
        elif (match := _IF.fullmatch(tag.inner)) is not None:
            if len(stack) > MAX_NESTING:
                raise InvalidInput(f"{{{{#if}}}} is nested deeper than {MAX_NESTING} levels")
            stack.append(((tuple(match[2].split(".")), bool(match[1])), []))
        else:
            stack[-1][1].append(_parse_tag(tag.inner, line))
        line += text.count("\n", tag.start, tag.end)
        position = tag.end
    _add_text(stack[-1][1], text[position:])
    if len(stack) > 1:
        raise InvalidInput("{{#if}} without {{/if}}")
    begin = text.find("{{", position)
    unclosed = 0 if begin < 0 else line + text.count("\n", position, begin)
    return Template(text, tuple(stack[0][1]), unclosed)


def check_template(text: str) -> Template:
    """Parse a template of a file. Raise InvalidInput also for `{{` without `}}`."""
    template = parse(text)
    if template.unclosed:
        raise InvalidInput(f"{{{{ without }}}} in line {template.unclosed} of the template")
    return template


class _Tag(NamedTuple):
    """A tag of a template: the text between its braces, or the phase of `${phase.output}`."""

    start: int
    end: int
    inner: str
    output: str | None


def _tags(text: str) -> Iterator[_Tag]:
    """Yield the tags of a template. Each character is read once."""
    position = 0
    while (match := _OPENING.search(text, position)) is not None:
        if match[1] is not None:
            position = match.end()
            yield _Tag(match.start(), position, "", match[1])
            continue
        closing = text.find("}}", match.end())
        if closing < 0:
            # Without `}}`, no later tag in braces ends either.
            for output in _OUTPUT.finditer(text, match.end()):
                yield _Tag(output.start(), output.end(), "", output[1])
            return
        position = closing + 2
        yield _Tag(match.start(), position, text[match.end() : closing].strip(), None)


def _add_text(parts: list[Part], text: str) -> None:
    if text:
        parts.append(Text(text))


def _parse_tag(inner: str, line: int) -> Part:
    if _PATH.fullmatch(inner):
        return Value(tuple(inner.split(".")), line)
    match = _HELPER.fullmatch(inner)
    if match is None:
        name = "{{" + inner[:SHOWN_TAG] + "}}"
        raise InvalidInput(f"{name} in line {line} of the template is not a value or a helper")
    return Help(match[1], match[2], line)


def _walk(parts: tuple[Part, ...]) -> Iterator[Part]:
    for part in parts:
        yield part
        if isinstance(part, If):
            yield from _walk(part.parts)


# --- rendering --------------------------------------------------------------------------------------------


def _render(parts: tuple[Part, ...], scope: Mapping[str, Any]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, Text):
            yield part.text
        elif not isinstance(part, If):
            yield shown(read_value(part, scope))
        elif is_there(read_value(part, scope)) != part.negated:
            yield from _render(part.parts, scope)


def read_value(part: Value | Help | If, scope: Mapping[str, Any]) -> Any:
    """Return the value that a tag reads, or Missing."""
    if isinstance(part, Help):
        return _help(part, scope)
    return find(part.path, scope)


def find(path: tuple[str, ...], scope: Mapping[str, Any]) -> Any:
    """Return the value at a path of a scope, or among the outputs of phases."""
    value = look_up(path, scope)
    return look_up(path, scope.get(OUTPUTS, {})) if isinstance(value, Missing) else value


def is_there(value: Any) -> bool:
    """Return whether a value counts in `#if`: nothing, an empty text, false, 0 and an empty list do not."""
    return bool(value) or isinstance(value, Mapping)


def _help(part: Help, scope: Mapping[str, Any]) -> str:
    value = find(tuple(part.argument.split(".")), scope)
    if part.helper == SLUGIFY:
        return slugify(shown(value))
    if part.helper == INT:
        return str(integer(value, part))
    # Helpers of other systems render nothing; a warning names them when the file is loaded.
    return ""


def integer(value: Any, part: Help) -> int:
    """Return an integer of 64 bits, given as a number or its digits. Raise InvalidInput otherwise."""
    number = value if isinstance(value, int) and not isinstance(value, bool) else None
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        number = int(value)
    if number is None or not -MAX_INTEGER <= number < MAX_INTEGER:
        given = "nothing" if value is None or isinstance(value, Missing) else repr(shown(value)[:SHOWN_TAG])
        raise InvalidInput(
            f"{{{{{INT} {part.argument[:SHOWN_TAG]}}}}} in line {part.line} needs a whole number, not {given}"
        )
    return number


def slugify(text: str) -> str:
    """Convert a text to a part of a URL: lower case, with dashes, at most 40 characters."""
    return _NO_SLUG.sub("-", text.lower()).strip("-")[:LONGEST_SLUG].rstrip("-")


def shown(value: Any) -> str:
    """Convert a value to text: a string unchanged, an object as JSON, a missing value as an empty text."""
    if value is None or isinstance(value, Missing):
        return ""
    return value if isinstance(value, str) else encode_json(value)
