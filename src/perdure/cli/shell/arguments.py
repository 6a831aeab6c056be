"""Arguments of commands: JSON, files, lines of stdin, choices, and confirmations."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import typer

C = TypeVar("C", bound=str)


def parse_json(text: str, what: str) -> Any:
    """Parse a JSON value."""
    from perdure.errors import InvalidInput
    from perdure.kernel.codec import decode_json

    try:
        return decode_json(text)
    except InvalidInput as error:
        hint = """; a string needs double quotes inside the shell's quotes: '"hello"'"""
        reason = error.message.removeprefix("the text is not JSON: ")
        raise typer.BadParameter(f"{what} is not JSON: {reason}{hint}") from None


def parse_object(text: str | None, what: str) -> dict[str, Any] | None:
    """Parse a JSON object; None means not given."""
    if text is None:
        return None
    value = parse_json(text, what)
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{what} must be a JSON object, such as '{{\"key\": 1}}'")
    return value


def read_inputs(text: str) -> list[Any]:
    """Read the values of INPUT: JSON, `@FILE`, or with `-` one value per line of stdin."""
    if text == "-":
        return [
            parse_json(line, f"line {number}") for number, line in enumerate(sys.stdin, 1) if line.strip()
        ]
    return [read_input(text)]


def read_input(text: str, what: str = "INPUT") -> Any:
    """Read one JSON value, directly or from `@FILE`."""
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"cannot read {text[1:]}: {error}") from None
    return parse_json(text, what)


def parse_metadata(terms: Sequence[str] | None) -> dict[str, Any] | None:
    """Parse metadata to filter by: `key:value` terms or JSON objects."""
    metadata: dict[str, Any] = {}
    for term in terms or ():
        key, colon, text = term.partition(":")
        if term.startswith("{"):
            metadata.update(parse_object(term, "--metadata") or {})
        elif key and colon:
            metadata[key] = text
        else:
            raise typer.BadParameter("--metadata must be key:value or a JSON object")
    return metadata or None


def parse_choice(value: str, choices: Sequence[C], option: str) -> C:
    """Check that a value is one of the choices, and return it."""
    for choice in choices:
        if choice == value:
            return choice
    from perdure.kernel.checks import one_of

    raise typer.BadParameter(f"{option} must be {one_of(choices)}, not {value!r}")


def optional_choice(value: str | None, choices: Sequence[C], option: str) -> C | None:
    """Check that a value is one of the choices; None means not given."""
    return None if value is None else parse_choice(value, choices, option)


def parse_choices(values: Sequence[str] | None, choices: Sequence[C], option: str) -> list[C] | None:
    """Check that values are among the choices; None means not given."""
    return [parse_choice(value, choices, option) for value in values] if values else None


def confirm(question: str) -> None:
    """Ask for confirmation on a terminal; without one, --yes is required."""
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{question} Cannot ask for confirmation without a terminal; add --yes")
    typer.confirm(question, abort=True, err=True)
