"""Scan the words of a bash command: quotes, expansions, and the values in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Final, NamedTuple

from perdure.kernel.errors import InvalidInput
from perdure.workflows.bash_rules import (
    ARRAY,
    ARRAYS,
    DYNAMIC,
    EXPANDED,
    HOLE,
    INTEGERS,
    NAME,
    NUMBER_HINT,
    SPLIT,
    Attributed,
    BashValue,
    BashWord,
    Effect,
    ReadVariable,
    RefusedValue,
    WrittenVariable,
    refuse_values,
    written,
)

MAX_NESTED: Final = 60
ARITHMETIC: Final = "arithmetic"

_PLAIN = re.compile(r"[A-Za-z0-9_./,:%-]+")
_NAME_CHARACTER = re.compile(r"\w", re.ASCII)
_SPECIAL = re.compile(r"[0-9]+|[@*#?$!-]", re.ASCII)
_ARRAY_NAME = re.compile(r"([A-Za-z_]\w*)(\[.*\])?\+?=", re.ASCII | re.DOTALL)
_ARITHMETIC_HINT: Final = NUMBER_HINT + ", and `( (` for a subshell in another"


class Quoting(Enum):
    """How the variable of a value is written; `{}` becomes its name."""

    BARE = "${{{}}}"
    PLAIN = '"${{{}}}"'
    SINGLE = "'\"${{{}}}\"'"
    ANSI = "'\"${{{}}}\"$'"


class HereDocument(NamedTuple):
    """A here-document with a body that begins on the next line."""

    word: str
    is_quoted: bool
    strips_tabs: bool


class WordScanner:
    """Scanner of bash words: quotes, expansions, and the values in them."""

    def __init__(self, text: str, values: Sequence[BashValue]) -> None:
        self._text = text
        self._values = values
        self._at = 0
        self._end = len(text)
        self._quotings: list[Quoting] = []
        self._place = ""
        """Outermost place that refuses every value; empty outside of such places."""
        self._word: list[str] = []
        self._depth = 0
        self._heres: list[HereDocument] = []
        self._substitutions = 0
        self._attributes: dict[str, str] = {
            **dict.fromkeys((*INTEGERS, *EXPANDED), "i"),
            **dict.fromkeys(ARRAYS, "a"),
        }
        self._written: list[WrittenVariable] = []
        self._reads: set[str] = set()
        """Variables that `read` and `mapfile` set."""

    # --- characters -------------------------------------------------------------------------------------

    def _peek(self, ahead: int = 0) -> str:
        """Return an upcoming character without line continuations, or "" at the end."""
        while self._text.startswith("\\\n", self._at) and self._at < self._end:
            self._at += 2
        at = self._at
        for _ in range(ahead):
            at += 1
            while self._text.startswith("\\\n", at):
                at += 2
        return self._text[at] if at < self._end else ""

    def _take(self) -> str:
        character = self._peek()
        self._at += 1
        return character

    def _takes(self, expected: str) -> bool:
        """Take the characters if they come next."""
        if any(self._peek(ahead) != character for ahead, character in enumerate(expected)):
            return False
        for _ in expected:
            self._take()
        return True

    def _skip_blanks(self, blanks: str = " \t") -> None:
        while (character := self._peek()) and character in blanks:
            self._at += 1
            if character == "\n":
                self._read_heres()

    def _unclear(self, what: str) -> InvalidInput:
        line = self._text.count("\n", 0, min(self._at, self._end)) + 1
        return InvalidInput(f"{what} in line {line} of the command, so its values cannot be put in safely")

    @contextmanager
    def _nested(self) -> Iterator[None]:
        self._depth += 1
        if self._depth > MAX_NESTED:
            raise self._unclear(f"parts are nested deeper than {MAX_NESTED} levels")
        yield
        self._depth -= 1

    @contextmanager
    def _within(self, place: str) -> Iterator[None]:
        """Refuse values in a place; errors name the outermost place."""
        before = self._place
        self._place = before or place
        with self._nested():
            yield
        self._place = before

    @contextmanager
    def _until(self, end: int) -> Iterator[None]:
        """Read the text only up to `end`."""
        before, self._end = self._end, end
        with self._nested():
            yield
        self._end = before

    # --- values -----------------------------------------------------------------------------------------

    def _value(self, quoting: Quoting) -> None:
        """Take a value."""
        value = self._values[len(self._quotings)]
        if self._place and not value.is_integer:
            raise RefusedValue(
                value, self._place, _ARITHMETIC_HINT if self._place == ARITHMETIC else NUMBER_HINT
            )
        self._at += 1
        self._quotings.append(Quoting.BARE if self._place else quoting)
        self._word.append("1" if value.is_integer else HOLE)

    def _expansion(self, read: Callable[[], object], *, splits: bool = False) -> None:
        """Read a part of a word that bash expands, and write one placeholder for it into the word."""
        outer, self._word = self._word, []
        heres, self._heres = self._heres, []
        start, before = self._at, len(self._quotings)
        self._substitutions += 1
        with self._nested():
            read()
        self._substitutions -= 1
        inner, self._word = self._word, outer
        if self._heres or (heres and "\n" in self._text[start : self._at]):
            raise self._unclear("a here-document begins in the middle of an expansion")
        self._heres = heres
        values = self._values_since(before)
        if all(value.is_integer for value in values):
            self._word.append(DYNAMIC)
        else:
            self._word.append(SPLIT if splits or SPLIT in inner else HOLE)

    def _note(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, WrittenVariable):
                self._written.append(effect)
            elif isinstance(effect, ReadVariable):
                self._reads.add(effect.variable)
            else:
                before = self._attributes.get(effect.variable, "")
                self._attributes[effect.variable] = before + effect.attributes

    def _values_since(self, first: int) -> Sequence[BashValue]:
        return self._values[first : len(self._quotings)]

    # --- quotes and expansions --------------------------------------------------------------------------

    def _single_quotes(self) -> None:
        self._at += 1
        while self._at < self._end:
            character = self._text[self._at]
            if character == HOLE:
                self._value(Quoting.SINGLE)
                continue
            self._at += 1
            if character == "'":
                return
            self._word.append(character)
        raise self._unclear("a single quote is not closed")

    def _ansi_quotes(self) -> None:
        """Read `'…'` after a dollar sign, in which a backslash escapes."""
        self._at += 1
        while self._at < self._end:
            character = self._text[self._at]
            if character == HOLE:
                self._value(Quoting.ANSI)
                continue
            self._at += 1
            if character == "'":
                return
            if character == "\\":
                self._escaped()
                self._word.append(DYNAMIC)
            else:
                self._word.append(character)
        raise self._unclear("a single quote is not closed")

    def _escaped(self) -> None:
        """Take the character after a backslash."""
        if self._at < self._end and self._text[self._at] == HOLE:
            value = self._values[len(self._quotings)]
            raise RefusedValue(value, "the place after a backslash", "remove the backslash")
        self._at += 1

    def _double_quotes(self, end: str = '"') -> None:
        """Read text in which only `$`, backticks and backslashes are special, until `end`."""
        while True:
            character = self._peek()
            if character == "" and end == "":
                return
            if character == "":
                raise self._unclear("a double quote is not closed")
            if character == HOLE:
                self._value(Quoting.BARE)
            elif character == "$":
                self._dollar(quoted=True)
            elif character == "`":
                self._backticks(quoted=True)
            elif character == "\\":
                self._at += 1
                if self._text[self._at : self._at + 1] not in '$`"\\\0':
                    self._word.append("\\")
                self._word.append(self._text[self._at : self._at + 1])
                self._escaped()
            else:
                self._at += 1
                if character == end:
                    return
                self._word.append(character)

    def _quoted(self, character: str, *, quoted: bool = False) -> bool:
        """Read quotes, an expansion or an escaped character, if any of these comes next."""
        if character == "'" and not quoted:
            self._single_quotes()
        elif character == '"':
            self._at += 1
            self._double_quotes()
        elif character == "$":
            self._dollar(quoted=quoted)
        elif character == "`":
            self._backticks(quoted=quoted)
        elif character == "\\":
            self._at += 1
            self._word.append(self._text[self._at : self._at + 1])
            self._escaped()
        else:
            return False
        return True

    def _backticks(self, *, quoted: bool) -> None:
        self._at += 1
        end = self._at
        while end < self._end and self._text[end] != "`":
            end += 2 if self._text[end] == "\\" else 1
        if end >= self._end:
            raise self._unclear("a backtick is not closed")
        body = self._text[self._at : end]
        if HOLE not in body:
            self._at = end
            self._word.append(DYNAMIC)
        else:
            if "\\" in body:
                value = self._values[len(self._quotings)]
                raise RefusedValue(
                    value, "backticks with a backslash", "write $(…) in place of the backticks"
                )
            with self._until(end):
                self._expansion(lambda: self._commands(""), splits=not quoted)
        self._at = end + 1

    def _dollar(self, *, quoted: bool) -> None:
        self._take()
        character = self._peek()
        if character == HOLE:
            value = self._values[len(self._quotings)]
            raise RefusedValue(value, "the place after a dollar sign", "write the dollar sign as '$'")
        if character == "(" and self._peek(1) == "(":
            self._takes("((")
            self._expansion(self._double_parentheses)
        elif character == "(":
            self._take()
            self._expansion(lambda: self._commands(")"), splits=not quoted)
        elif character == "[":
            self._take()
            with self._within("`$[`"):
                self._expansion(lambda: self._brackets("]"))
        elif character == "{":
            self._take()
            self._expansion(lambda: self._braces(quoted=quoted))
        elif character == "'" and not quoted:
            self._ansi_quotes()
        elif character == '"' and not quoted:
            self._at += 1
            self._double_quotes()
        else:
            self._word.append(DYNAMIC)
            if character and character in "#$!?*@-0123456789":
                self._at += 1
            elif (name := NAME.match(self._text, self._at, self._end)) is not None:
                self._at = name.end()

    def _double_parentheses(self) -> None:
        """Read arithmetic after `((`, or a nested subshell if the two parentheses do not end together."""
        with self._within(ARITHMETIC):
            self._brackets(")")
        if self._peek() == ")":
            self._take()
        else:
            self._commands(")")

    def _brackets(self, end: str, quoting: Quoting = Quoting.BARE) -> None:
        """Read arithmetic or a subscript until the bracket that closes it."""
        opening = {")": "(", "]": "[", "}": "{"}[end]
        depth = 0
        while True:
            character = self._peek()
            if character == "":
                raise self._unclear(f"{end!r} is missing")
            if character == HOLE:
                self._value(quoting)
            elif self._quoted(character):
                pass
            else:
                self._at += 1
                if character == end and not depth:
                    return
                self._word.append(character)
                depth += (character == opening) - (character == end)

    def _braces(self, *, quoted: bool) -> None:
        """Read a parameter expansion after `${`."""
        if self._peek() in (" ", "\t", "\n", "|"):
            with self._within("a command in `${ …}`"):
                return self._brackets("}")
        if self._peek() in ("!", "#") and self._peek(1) not in ("}", ":", "-", "=", "?", "+", "%"):
            self._take()
        match = NAME.match(self._text, self._at, self._end)
        variable = "" if match is None else match.group()
        with self._within("the name of a variable"):
            if self._peek() == HOLE:
                self._value(Quoting.BARE)
        if match is None:
            special = _SPECIAL.match(self._text, self._at, self._end)
            self._at = self._at if special is None else special.end()
        else:
            self._at = match.end()
            while _NAME_CHARACTER.fullmatch(self._peek()) is not None:
                # The name continues after a line continuation.
                variable += self._take()
        if self._peek() == "[":
            self._take()
            with self._within("a subscript"):
                self._brackets("]")
        operator = self._peek()
        assigns = self._peek(1) == "="
        if operator == ":" and (self._peek(1) == "" or self._peek(1) not in "-=?+"):
            with self._within("an offset or a length"):
                return self._brackets("}")
        if operator == "@":
            with self._within("an operator of `${…}`"):
                return self._brackets("}")
        before = len(self._quotings)
        self._braced_word(quoted=quoted)
        if operator == "=" or (operator == ":" and assigns):
            self._note(written(variable, self._values_since(before)))
        return None

    def _braced_word(self, *, quoted: bool) -> None:
        """Read the word of a parameter expansion until its brace."""
        while True:
            character = self._peek()
            if character == "":
                raise self._unclear("'}' is missing")
            if character == HOLE:
                self._value(Quoting.BARE if quoted else Quoting.PLAIN)
            elif character == "'" and quoted:
                self._single_quotes_in_braces()
            elif self._quoted(character, quoted=quoted):
                pass
            else:
                self._at += 1
                if character == "}":
                    return

    def _single_quotes_in_braces(self) -> None:
        """Skip single quotes in a quoted `${…}`: bash matches these quotes even where they are plain text."""
        is_ansi = self._text[self._at - 1] == "$"
        end = self._at + 1
        while end < self._end and self._text[end] != "'":
            end += 2 if is_ansi and self._text[end] == "\\" else 1
        if end >= self._end:
            raise self._unclear("a single quote is not closed")
        if HOLE in self._text[self._at : end]:
            value = self._values[len(self._quotings)]
            raise RefusedValue(value, "single quotes in a quoted `${…}`", "remove the single quotes")
        self._word.append(DYNAMIC)
        self._at = end + 1

    # --- words ------------------------------------------------------------------------------------------

    def _read_word(self, *, assigns: bool = False, element: bool = False, pattern: bool = False) -> BashWord:
        """Read a word. It may be an assignment, an element of an array, or a pattern of `[[`."""
        outer, self._word = self._word, []
        start, first = self._at, len(self._quotings)
        quoted = False
        while character := self._peek():
            if character == HOLE:
                self._value(Quoting.PLAIN)
            elif (plain := _PLAIN.match(self._text, self._at, self._end)) is not None:
                self._word.append(plain.group())
                self._at = plain.end()
            elif character in "'\"\\`$":
                quoted = quoted or character != "$"
                self._quoted(character)
            elif character in "<>" and self._peek(1) == "(" and not pattern:
                self._takes(character + "(")
                self._expansion(lambda: self._commands(")"))
            elif character == "(" and (pattern or (self._word and self._word[-1][-1:] in tuple("?*+@!"))):
                is_pattern = pattern or self._word[-1][-1:] != "!"
                self._take()
                self._expansion(self._group if is_pattern else self._parentheses)
            elif character == "(" and _ARRAY_NAME.fullmatch("".join(self._word)):
                self._array("".join(self._word))
            elif character == "[" and self._opens_subscript(assigns, element, first):
                self._subscript()
            elif character in " \t\n;&|<>()":
                break
            else:
                self._at += 1
                self._word.append(character)
        text, self._word = "".join(self._word), outer
        if self._at == start:
            self._at += 1
        return BashWord(text, self._values_since(first), quoted)

    def _opens_subscript(self, assigns: bool, element: bool, first: int) -> bool:
        if element and not self._word:
            return True
        if not assigns or first != len(self._quotings) or len(self._word) != 1:
            return False
        return NAME.fullmatch(self._word[0]) is not None

    def _subscript(self) -> None:
        """Read a subscript. Without an assignment it is a file name pattern."""
        first = len(self._quotings)
        word = "".join(self._word)
        self._take()
        before = len(self._word)
        self._brackets("]", Quoting.PLAIN)
        inner = "".join(self._word[before:])
        if self._peek() == "=" or (self._peek() == "+" and self._peek(1) == "="):
            refuse_values(self._values_since(first), "a subscript")
            self._note([Attributed(word, "a")])
        self._word[before:] = ["[", inner, "]"]

    def _array(self, word: str) -> None:
        """Read the elements of an array, after `name=`."""
        variable = word.rstrip("+=").partition("[")[0]
        first = len(self._quotings)
        self._note([Attributed(variable, "a")])
        heres, self._heres = self._heres, []
        start = self._at
        self._take()
        with self._nested():
            while True:
                self._skip_blanks(" \t\n")
                if self._peek() == "":
                    raise self._unclear("')' is missing")
                if self._takes(")"):
                    break
                if self._peek() == "#":
                    self._skip_comment()
                else:
                    self._read_word(element=True)
        if heres and "\n" in self._text[start : self._at]:
            raise self._unclear("a here-document begins in the middle of an array")
        self._heres = heres
        effects = written(variable, self._values_since(first))
        self._note(effects)
        self._word.append(ARRAY + HOLE * len(effects))

    def _group(self) -> None:
        """Read a group of a pattern or of a regular expression after its parenthesis."""
        while True:
            character = self._peek()
            if character == "":
                raise self._unclear("')' is missing")
            if character == HOLE:
                self._value(Quoting.PLAIN)
            elif self._quoted(character):
                pass
            elif self._takes("("):
                with self._nested():
                    self._group()
            else:
                self._at += 1
                if character == ")":
                    return

    def _skip_comment(self) -> None:
        end = self._text.find("\n", self._at, self._end)
        comment = self._text[self._at : self._end if end < 0 else end]
        # The value is one variable, so even a value of several lines ends with the comment.
        self._quotings += [Quoting.PLAIN] * comment.count(HOLE)
        self._at += len(comment)

    # --- commands ---------------------------------------------------------------------------------------

    def _parentheses(self) -> None:
        """Read arithmetic or commands after a parenthesis."""
        if self._peek() == "(":
            self._take()
            self._double_parentheses()
        else:
            self._commands(")")

    def _commands(self, end: str) -> str:
        """Read commands until `end` and return the text that ended the commands."""
        raise NotImplementedError

    def _read_heres(self) -> None:
        """Read the bodies of the here-documents that begin on this line."""
        raise NotImplementedError
