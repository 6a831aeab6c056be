"""How commands read their arguments: JSON, files, lines of stdin, choices, and confirmations."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import typer

C = TypeVar("C", bound=str)


def parse_json(text: str, what: str) -> Any:
    """A JSON value."""
    from perdure.errors import InvalidInput
    from perdure.kernel.codec import decode_json

    try:
        return decode_json(text)
    except InvalidInput as error:
        hint = """; a string needs double quotes inside the shell's quotes: '"hello"'"""
        reason = error.message.removeprefix("the text is not JSON: ")
        raise typer.BadParameter(f"{what} is not JSON: {reason}{hint}") from None


def parse_object(text: str | None, what: str) -> dict[str, Any] | None:
    """A JSON object; None if nothing was given."""
    if text is None:
        return None
    found = parse_json(text, what)
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{what} must be a JSON object, such as '{{\"key\": 1}}'")
    return found


def read_inputs(text: str) -> list[Any]:
    """The values of INPUT: JSON, `@FILE`, or with `-` one value a line of stdin."""
    if text == "-":
        return [
            parse_json(line, f"line {number}") for number, line in enumerate(sys.stdin, 1) if line.strip()
        ]
    return [read_input(text)]


def read_input(text: str, what: str = "INPUT") -> Any:
    """One JSON value, or the one in `@FILE`."""
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"cannot read {text[1:]}: {error}") from None
    return parse_json(text, what)


def parse_metadata(terms: Sequence[str] | None) -> dict[str, Any] | None:
    """Metadata to filter by, each `key:value`, or a JSON object."""
    found: dict[str, Any] = {}
    for term in terms or ():
        key, colon, text = term.partition(":")
        if term.startswith("{"):
            found.update(parse_object(term, "--metadata") or {})
        elif key and colon:
            found[key] = text
        else:
            raise typer.BadParameter("--metadata must be key:value or a JSON object")
    return found or None


def parse_choice(value: str, choices: Sequence[C], option: str) -> C:
    """One of the choices."""
    for choice in choices:
        if choice == value:
            return choice
    from perdure.kernel.validation import one_of

    raise typer.BadParameter(f"{option} must be {one_of(choices)}, not {value!r}")


def optional_choice(value: str | None, choices: Sequence[C], option: str) -> C | None:
    """One of the choices; None if nothing was given."""
    return None if value is None else parse_choice(value, choices, option)


def parse_choices(values: Sequence[str] | None, choices: Sequence[C], option: str) -> list[C] | None:
    """Some of the choices; None if nothing was given."""
    return [parse_choice(each, choices, option) for each in values] if values else None


def confirm(question: str) -> None:
    """Ask on a terminal; without one, --yes is required."""
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{question} Cannot ask for confirmation without a terminal; add --yes")
    typer.confirm(question, abort=True, err=True)
