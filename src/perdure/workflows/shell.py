"""Commands with values in them. A value reaches the shell as an environment variable, never as text.

So the output of an agent or the title of an issue stays data, whatever it says: a shell does not read the
value of a variable as a command.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from perdure.kernel.errors import InvalidInput, TooLarge
from perdure.workflows.templates import If, Part, Template, Text, is_there, shown, value_of

PREFIX: Final = "PERDURE_VALUE_"
MAX_VALUE: Final = 100_000
"""How many bytes a value in a command may have; an operating system takes no more than 128 KiB."""

_HERE = re.compile(r"<<-?[ \t]*(['\"]?)(?P<word>\w+)\1")


class Command(NamedTuple):
    """A command for a shell, and the variables that it uses."""

    text: str
    env: dict[str, str]


def shell_command(template: Template, scope: Mapping[str, Any]) -> Command:
    """A command with the values of a scope in variables."""
    writer = _Writer(scope)
    writer.write(template.parts)
    text = "".join(writer.pieces)
    if "{{" in text:
        raise InvalidInput("the command still has '{{' in it after its values were put in")
    return Command(text, writer.env)


class _Writer:
    """Writes a command and follows the quotes of the shell in it."""

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self._scope = scope
        self.pieces: list[str] = []
        self.env: dict[str, str] = {}
        self._quote = ""
        self._around: list[str] = []
        """The quotes around each open parenthesis: quotes begin anew in `$(…)`."""
        self._heres: list[tuple[str, bool]] = []
        """The here-documents that begin with the next line: the word that ends each, and whether it is
        quoted."""
        self._line = ""

    def write(self, parts: tuple[Part, ...]) -> None:
        for part in parts:
            if isinstance(part, Text):
                self.pieces.append(part.text)
                self._follow(part.text)
            elif isinstance(part, If):
                if is_there(value_of(part, self._scope)) != part.negated:
                    self.write(part.parts)
            else:
                self._value(shown(value_of(part, self._scope)))

    def _value(self, value: str) -> None:
        if len(value.encode("utf-8", "replace")) > MAX_VALUE:
            raise TooLarge(f"a value in a command is larger than {MAX_VALUE} bytes; read it from a file")
        name = PREFIX + str(len(self.env) + 1)
        self.env[name] = value.replace("\0", "")
        in_here = self._in_here
        if in_here:
            _, quoted = next(iter(self._heres))
            if quoted:
                raise InvalidInput(
                    "a value stands in a here-document whose end is quoted: write <<EOF without"
                )
        variable = "${" + name + "}"
        if in_here or self._quote == '"':
            self.pieces.append(variable)
        else:
            self.pieces.append("'\"" + variable + "\"'" if self._quote else '"' + variable + '"')
        self._line += "x"

    @property
    def _in_here(self) -> bool:
        return bool(self._heres) and self._begun

    _begun = False

    def _follow(self, text: str) -> None:
        """Follow quotes, comments and here-documents through a text."""
        position = 0
        while position < len(text):
            if self._in_here:
                position = self._follow_here(text, position)
                continue
            character = text[position]
            if character == "\n" and not self._quote:
                self._begun = bool(self._heres)
                self._line = ""
            elif character == "\\" and self._quote != "'":
                position += 1
            elif character == self._quote:
                self._quote = ""
            elif character == "(" and (not self._quote or (self._quote == '"' and self._line[-1:] == "$")):
                self._around.append(self._quote)
                self._quote = ""
            elif character == ")" and not self._quote and self._around:
                self._quote = self._around.pop()
            elif not self._quote and character in "'\"":
                self._quote = character
            elif not self._quote and character == "#" and (not self._line or self._line[-1].isspace()):
                end = text.find("\n", position)
                position = len(text) if end < 0 else end
                continue
            elif not self._quote and (found := _HERE.match(text, position)) is not None:
                self._heres.append((found["word"], text[found.start("word") - 1] in "'\""))
                self._line += found.group()
                position = found.end()
                continue
            if character != "\n":
                self._line += character
            position += 1

    def _follow_here(self, text: str, position: int) -> int:
        """Follow a line of a here-document; the word that ends it stands alone."""
        word, _ = next(iter(self._heres))
        end = text.find("\n", position)
        self._line += text[position:] if end < 0 else text[position:end]
        if end < 0:
            return len(text)
        if self._line.strip("\t") == word:
            del self._heres[:1]
            self._begun = bool(self._heres)
        self._line = ""
        return end + 1
