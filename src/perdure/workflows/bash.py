"""Scan a bash command: how each value is quoted, and where bash would execute commands in a value.

Bash expands the value of a variable once, as data, in nearly all places. It evaluates the value again in
arithmetic, in subscripts and where a builtin takes the name of a variable: `a[$(cmd)]` executes `cmd` there.
The scanner reads a command as bash does and refuses values in these places.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from perdure.kernel.errors import InvalidInput
from perdure.workflows.bash_rules import (
    ASSIGNED,
    EVALUATED,
    HOLE,
    SPLIT,
    BashValue,
    BashWord,
    RefusedValue,
    check_conditional,
    check_words,
    refuse_expanded,
    refuse_values,
    written,
)
from perdure.workflows.bash_words import ARITHMETIC, HereDocument, Quoting, WordScanner

_DESCRIPTOR = re.compile(r"[0-9]+|\{\w+\}", re.ASCII)
_NO_PARAMETERS = re.compile(r"[ \t]*\([ \t]*\)")
_ESAC = re.compile(r"esac(?=[\s;&|)]|$)")
_REDIRECTIONS: Final = ("<<<", "<<-", "<<", "<&", "<>", "<", ">>", ">&", ">|", ">")
_AGAIN: Final = frozenset({"if", "then", "elif", "else", "while", "until", "do", "{", "!", "time", "coproc"})
"""Reserved words after which another command begins."""
_ENDS: Final = frozenset({"fi", "done", "}"})
_OPENERS: Final = frozenset({"{", "[[", "if", "while", "until", "for", "case", "select"})


class _SimpleCommand:
    """A simple command that is being read."""

    def __init__(self) -> None:
        self.words: list[BashWord] = []
        self.fed: list[BashValue] = []
        """The values in its redirections."""
        self.begins = True
        """Whether a reserved word can come next."""
        self.after_time = False
        self.after_coproc = False


def scan_bash(text: str, values: Sequence[BashValue]) -> list[Quoting]:
    """Return how each value of a command is quoted; `text` has one HOLE for each.

    Raise RefusedValue for a value in a place where bash evaluates it. Raise InvalidInput for a command with
    values and unclosed quotes or parentheses.
    """
    return BashScanner(text, values).scan() if values else []


class BashScanner(WordScanner):
    """Scanner of a bash command from its first character to its last."""

    def scan(self) -> list[Quoting]:
        """Return how each value is quoted."""
        self._commands("")
        for variable, value, attributes in self._written:
            if set(attributes) & set(self._attributes.get(variable, "")):
                raise RefusedValue(value, f"a value of {variable}, which bash evaluates")
        for variable in sorted(self._reads):
            if set(EVALUATED) & set(self._attributes.get(variable, "")):
                refuse_values(self._values, f"a command that reads {variable}, which bash evaluates")
        return self._quotings

    # --- commands ---------------------------------------------------------------------------------------

    def _commands(self, end: str) -> str:
        """Read commands until a parenthesis, or the end of a case or the text. Return what ended the list."""
        command = _SimpleCommand()
        while True:
            self._skip_blanks()
            character = self._peek()
            if character == "" or (character == ")" and end == ")"):
                self._check(command)
                if character != (end if end != "case" else None):
                    raise self._unclear("')' is missing" if end == ")" else "esac is missing")
                self._at += len(character)
                return character
            if character == "#":
                self._skip_comment()
            elif character == "\n":
                self._check(command)
                self._at += 1
                self._read_heres()
                command = _SimpleCommand()
            elif character in "<>" and self._peek(1) != "(":
                self._redirection(command)
            elif character == "&" and self._peek(1) == ">":
                self._take()
                self._redirection(command, joined=True)
            elif character in ";&|":
                self._check(command)
                self._take()
                if end == "case" and character == ";" and self._peek() in (";", "&"):
                    self._take()
                    return ";;"
                command = _SimpleCommand()
            elif character == "(":
                command = self._parenthesis(command)
            elif character == ")":
                raise self._unclear("')' has no '('")
            else:
                again = self._next_word(command, end)
                if again is None:
                    return "esac"
                command = again

    def _parenthesis(self, command: _SimpleCommand) -> _SimpleCommand:
        self._take()
        # After a word, the parentheses belong to a function or to a named coprocess.
        with self._nested():
            self._parentheses()
        return _SimpleCommand() if command.words else command

    def _next_word(self, command: _SimpleCommand, end: str) -> _SimpleCommand | None:
        """Read a word of a command. Return the command that goes on, or None after the end of a case."""
        word = self._read_word(assigns=not command.words)
        if self._peek() in ("<", ">") and _DESCRIPTOR.fullmatch(word.text) and not word.is_quoted:
            self._redirection(command)
            return command
        if self._peek() in ("<", ">") and word.text.startswith("{") and word.text.endswith("}"):
            word.refuse("the name of a variable")
        if command.after_time and word.text in ("-p", "--"):
            return command
        command.after_time = False
        if command.after_coproc and len(command.words) == 1 and word.text in _OPENERS:
            command = _SimpleCommand()
        if command.begins and not command.words and not word.is_quoted:
            if word.text == "esac" and end == "case":
                return None
            if word.text in _AGAIN:
                command = _SimpleCommand()
                command.after_time, command.after_coproc = word.text == "time", word.text == "coproc"
                return command
            if word.text in _ENDS:
                return command
            if word.text in _COMPOUNDS:
                with self._nested():
                    return _COMPOUNDS[word.text](self)
        assignment = None if command.words else ASSIGNED.match(word.text)
        if assignment is None:
            command.words.append(word)
        else:
            refuse_expanded(word)
            if word.has_value and HOLE in (assignment[2] or "") + (assignment[2] or "").replace(SPLIT, HOLE):
                refuse_values(word.values, "a subscript")
            self._note(written(assignment[1], word.values))
        command.begins = False
        return command

    def _check(self, command: _SimpleCommand) -> None:
        self._note(check_words(command.words, command.fed))

    def _redirection(self, command: _SimpleCommand, *, joined: bool = False) -> None:
        """Read a redirection. `joined`: it begins with `&`, for both outputs."""
        operator = next(candidate for candidate in _REDIRECTIONS if self._takes(candidate))
        command.begins = False
        self._skip_blanks()
        if operator in ("<<", "<<-"):
            return self._here(operator)
        first = len(self._quotings)
        if self._peek() not in ("", "\n"):
            self._read_word()
        values = self._values_since(first)
        if operator == ">&" and not joined:
            refuse_values(values, "the target of `>&`", "write `&>` for a file")
        command.fed += values
        return None

    # --- compound commands ------------------------------------------------------------------------------

    def _conditional(self) -> _SimpleCommand:
        """Read `[[ … ]]`."""
        words: list[BashWord] = []
        while True:
            self._skip_blanks(" \t\n")
            character = self._peek()
            if character == "":
                raise self._unclear("']]' is missing")
            if character == "#":
                self._skip_comment()
                continue
            if character in "()<>&|;" and not (character == "(" and words and words[-1].text == "=~"):
                self._at += 1
                words.append(BashWord(character))
                continue
            word = self._read_word(pattern=True)
            if word.text == "]]" and not word.is_quoted:
                check_conditional(words)
                return _SimpleCommand()
            words.append(word)

    def _for(self) -> _SimpleCommand:
        """Read `for` or `select` with its list."""
        self._skip_blanks()
        if self._takes("(("):
            with self._within(ARITHMETIC):
                self._brackets(")")
            self._takes(")")
            return _SimpleCommand()
        variable = self._read_word()
        variable.refuse("the name of a variable")
        self._skip_blanks(" \t\n")
        if self._peek(2) not in ("", " ", "\t", "\n", ";") or not self._takes("in"):
            return _SimpleCommand()
        first = len(self._quotings)
        while True:
            self._skip_blanks()
            if self._peek() in ("", ";", "\n", "&"):
                break
            if self._peek() == "#":
                self._skip_comment()
            else:
                self._read_word()
        self._note(written(variable.text, self._values_since(first)))
        return _SimpleCommand()

    def _case(self) -> _SimpleCommand:
        self._skip_blanks(" \t\n")
        self._read_word()
        self._skip_blanks(" \t\n")
        if not self._takes("in"):
            raise self._unclear("'in' is missing")
        with self._nested():
            while True:
                self._skip_blanks(" \t\n;&")
                if self._peek() == "#":
                    self._skip_comment()
                    continue
                if (esac := _ESAC.match(self._text, self._at, self._end)) is not None:
                    self._at = esac.end()
                    break
                self._takes("(")
                self._patterns()
                if self._commands("case") == "esac":
                    break
        return _SimpleCommand()

    def _patterns(self) -> None:
        while not self._takes(")"):
            self._skip_blanks(" \t\n|")
            if self._peek() == "":
                raise self._unclear("')' is missing")
            if self._peek() != ")":
                self._read_word()

    def _function(self) -> _SimpleCommand:
        self._skip_blanks()
        self._read_word().refuse("the name of a function", "write the name itself")
        if (parentheses := _NO_PARAMETERS.match(self._text, self._at, self._end)) is not None:
            self._at = parentheses.end()
        return _SimpleCommand()

    # --- here-documents ---------------------------------------------------------------------------------

    def _here(self, operator: str) -> None:
        start = self._at
        word = self._read_word()
        word.refuse("the word that ends a here-document", "write a fixed word")
        if {"$", "`"} & set(self._text[start : self._at]):
            raise self._unclear("the word that ends a here-document is not fixed")
        is_quoted = any(quote in self._text[start : self._at] for quote in "'\"\\")
        self._heres.append(HereDocument(word.text, is_quoted, operator == "<<-"))

    def _read_heres(self) -> None:
        heres, self._heres = self._heres, []
        for here in heres:
            start = self._at
            end, after = self._here_end(here)
            body = self._text[start:end]
            if HOLE in body and here.is_quoted:
                self._refuse_quoted_here(body)
            if HOLE in body:
                with self._until(end):
                    self._expansion(lambda: self._double_quotes(""))
            self._at = after

    def _refuse_quoted_here(self, body: str) -> None:
        value = self._values[len(self._quotings)]
        raise InvalidInput(
            f"{{{{{value.name}}}}} in line {value.line} of the command is in a here-document whose end is "
            "quoted, where bash expands nothing; write <<EOF without quotes"
        )

    def _here_end(self, here: HereDocument) -> tuple[int, int]:
        """Return where the body of a here-document ends, and where the text after it begins."""
        at, start, joined = self._at, self._at, ""
        while at < self._end:
            newline = self._text.find("\n", at, self._end)
            stop = self._end if newline < 0 else newline
            line = self._text[at:stop]
            at = stop + 1
            if not here.is_quoted and (len(line) - len(line.rstrip("\\"))) % 2 == 1:
                joined += line[:-1]
                continue
            line = joined + line
            if (line.lstrip("\t") if here.strips_tabs else line) == here.word:
                return start, min(at, self._end)
            if self._substitutions and line.lstrip("\t").startswith(here.word) and ")" in line:
                raise self._unclear("the end of a here-document and ')' are in one line")
            start, joined = at, ""
        return self._end, self._end


_COMPOUNDS: Final[Mapping[str, Callable[[BashScanner], _SimpleCommand]]] = {
    "[[": BashScanner._conditional,
    "for": BashScanner._for,
    "select": BashScanner._for,
    "case": BashScanner._case,
    "function": BashScanner._function,
}
