"""Conditions of workflows, such as `output.contains('READY') and not scratch.done`.

A condition is parsed when its file is loaded, so mistakes are found early. It reads values and calls nothing.
A missing value makes every comparison false.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from perdure.kernel.errors import InvalidInput

MAX_LENGTH: Final = 4096
MAX_DEPTH: Final = 50

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>-?\d+(?:\.\d+)?(?![\w.]))
    |(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<sign>==|!=|<=|>=|&&|\|\||[<>()!,])
    |(?P<name>[A-Za-z_][\w-]*(?:\.[\w-]+)*)
    )""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(.)")
_WORDS: Final[Mapping[str, Any]] = {"true": True, "false": False, "null": None}
_SYNONYMS: Final = {"&&": "and", "||": "or", "!": "not"}
_TRUE: Final = frozenset({"true", "1", "yes"})
_CONTAINS: Final = ".contains"


class Missing:
    """The value of a path that does not exist."""

    def __bool__(self) -> bool:
        return False


MISSING: Final = Missing()


class ConditionNode(Protocol):
    """A part of a condition."""

    def value(self, scope: Mapping[str, Any]) -> Any: ...
    def paths(self) -> Iterator[tuple[str, ...]]: ...


class Expression(NamedTuple):
    """A parsed condition; `text` is its source."""

    text: str
    root: ConditionNode

    def holds(self, scope: Mapping[str, Any]) -> bool:
        """Return whether the condition holds for the values of a scope."""
        return truth(self.root.value(scope))

    def paths(self) -> frozenset[tuple[str, ...]]:
        """Return the paths that the condition reads."""
        return frozenset(self.root.paths())


def parse(text: str) -> Expression:
    """Parse a condition. Raise InvalidInput with the position of a mistake."""
    if len(text) > MAX_LENGTH:
        raise InvalidInput(f"a condition must be at most {MAX_LENGTH} characters long")
    return Expression(text, _Parser(text).parse())


def look_up(path: Sequence[str], scope: Any) -> Any:
    """Return the value at a path of keys and list positions, or MISSING. Only plain data is searched."""
    value = scope
    for part in path:
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return MISSING
    return value


def truth(value: Any) -> bool:
    """Convert a value to a boolean: true, "true", "1", "yes" and numbers other than 0 are true."""
    if isinstance(value, str):
        return value.strip().lower() in _TRUE
    if isinstance(value, bool | int | float):
        return bool(value)
    return bool(value) and not isinstance(value, Missing)


# --- parts of a condition ---------------------------------------------------------------------------------


class _Literal(NamedTuple):
    content: Any

    def value(self, scope: Mapping[str, Any]) -> Any:
        return self.content

    def paths(self) -> Iterator[tuple[str, ...]]:
        return iter(())


class _Path(NamedTuple):
    parts: tuple[str, ...]

    def value(self, scope: Mapping[str, Any]) -> Any:
        return look_up(self.parts, scope)

    def paths(self) -> Iterator[tuple[str, ...]]:
        yield self.parts


class _Contains(NamedTuple):
    subject: ConditionNode
    wanted: ConditionNode

    def value(self, scope: Mapping[str, Any]) -> bool:
        subject, wanted = self.subject.value(scope), self.wanted.value(scope)
        if isinstance(subject, list):
            return any(_equal(element, wanted) for element in subject)
        plain = isinstance(subject, str | int | float) and not isinstance(subject, bool)
        return plain and str(wanted) in str(subject)

    def paths(self) -> Iterator[tuple[str, ...]]:
        return _paths(self.subject, self.wanted)


class _Compare(NamedTuple):
    sign: str
    left: ConditionNode
    right: ConditionNode

    def value(self, scope: Mapping[str, Any]) -> bool:
        left, right = self.left.value(scope), self.right.value(scope)
        if isinstance(left, Missing) or isinstance(right, Missing):
            return False
        if self.sign in ("==", "!="):
            return _equal(left, right) == (self.sign == "==")
        numbers = _number(left), _number(right)
        if numbers[0] is None or numbers[1] is None:
            return False
        return _ORDER[self.sign](numbers[0], numbers[1])

    def paths(self) -> Iterator[tuple[str, ...]]:
        return _paths(self.left, self.right)


class _Not(NamedTuple):
    inner: ConditionNode

    def value(self, scope: Mapping[str, Any]) -> bool:
        return not truth(self.inner.value(scope))

    def paths(self) -> Iterator[tuple[str, ...]]:
        return self.inner.paths()


class _All(NamedTuple):
    parts: tuple[ConditionNode, ...]

    def value(self, scope: Mapping[str, Any]) -> bool:
        return all(truth(part.value(scope)) for part in self.parts)

    def paths(self) -> Iterator[tuple[str, ...]]:
        return _paths(*self.parts)


class _Any(NamedTuple):
    parts: tuple[ConditionNode, ...]

    def value(self, scope: Mapping[str, Any]) -> bool:
        return any(truth(part.value(scope)) for part in self.parts)

    def paths(self) -> Iterator[tuple[str, ...]]:
        return _paths(*self.parts)


_ORDER: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _paths(*parts: ConditionNode) -> Iterator[tuple[str, ...]]:
    for part in parts:
        yield from part.paths()


def _equal(left: Any, right: Any) -> bool:
    """Compare as people expect: `5` equals "5", and true equals "yes"."""
    if isinstance(left, bool) or isinstance(right, bool):
        return truth(left) == truth(right)
    if isinstance(left, str) != isinstance(right, str) and left is not None and right is not None:
        return str(left) == str(right)
    return bool(left == right)


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


# --- parsing ----------------------------------------------------------------------------------------------


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Parser:
    """A parser by recursive descent: or, and, not, comparison, operand."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._split())
        self._next = 0
        self._depth = 0

    def _split(self) -> list[_Token]:
        tokens: list[_Token] = []
        position = 0
        while position < len(self._text.rstrip()):
            match = _TOKEN.match(self._text, position)
            if match is None:
                rest = self._text[position:]
                raise self._wrong("is not understood", len(self._text) - len(rest.lstrip()))
            kind = str(match.lastgroup)
            tokens.append(_Token(kind, match[kind], match.start(kind)))
            position = match.end()
        return tokens

    def parse(self) -> ConditionNode:
        if not self._tokens:
            raise InvalidInput("the condition is empty")
        root = self._any()
        if self._next < len(self._tokens):
            raise self._wrong("is not expected", self._tokens[self._next].at)
        return root

    def _wrong(self, what: str, at: int) -> InvalidInput:
        rest = self._text[at : at + 20].strip() or "the end"
        return InvalidInput(f"{rest!r} {what} at character {at + 1} of the condition {self._text!r}")

    def _peek(self) -> str | None:
        """Return the next sign or word, or None."""
        if self._next >= len(self._tokens) or self._tokens[self._next].kind not in ("sign", "name"):
            return None
        text = self._tokens[self._next].text
        return _SYNONYMS.get(text, text)

    def _take(self, *wanted: str) -> str | None:
        sign = self._peek()
        if sign not in wanted:
            return None
        self._next += 1
        return sign

    def _any(self) -> ConditionNode:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InvalidInput(f"the condition is nested deeper than {MAX_DEPTH} levels")
        parts = [self._all()]
        while self._take("or"):
            parts.append(self._all())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else _Any(tuple(parts))

    def _all(self) -> ConditionNode:
        parts = [self._negated()]
        while self._take("and"):
            parts.append(self._negated())
        return parts[0] if len(parts) == 1 else _All(tuple(parts))

    def _negated(self) -> ConditionNode:
        count = 0
        while self._take("not"):
            count += 1
        inner = self._comparison()
        return _Not(inner) if count % 2 else inner

    def _comparison(self) -> ConditionNode:
        left = self._operand()
        sign = self._take("==", "!=", "<", "<=", ">", ">=")
        return left if sign is None else _Compare(sign, left, self._operand())

    def _operand(self) -> ConditionNode:
        if self._take("("):
            inner = self._any()
            self._expect(")")
            return inner
        if self._next >= len(self._tokens):
            raise self._wrong("comes too early", len(self._text))
        token = self._tokens[self._next]
        self._next += 1
        if token.kind == "number":
            return _Literal(float(token.text) if "." in token.text else int(token.text))
        if token.kind == "string":
            return _Literal(_ESCAPE.sub(r"\1", token.text[1:-1]))
        if token.kind != "name":
            raise self._wrong("is not expected", token.at)
        if token.text in _WORDS:
            return _Literal(_WORDS[token.text])
        return self._path(token)

    def _path(self, token: _Token) -> ConditionNode:
        if not self._take("("):
            return _Path(tuple(token.text.split(".")))
        if not token.text.endswith(_CONTAINS):
            raise self._wrong("is no function; there is only contains", token.at)
        subject = _Path(tuple(token.text.removesuffix(_CONTAINS).split(".")))
        wanted = self._operand()
        self._expect(")")
        return _Contains(subject, wanted)

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            at = self._tokens[self._next].at if self._next < len(self._tokens) else len(self._text)
            raise self._wrong(f"is found where {sign!r} is expected", at)
