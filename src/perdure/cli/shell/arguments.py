"""How commands read what they are given: JSON, files, lines of stdin, and a yes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer


def json_of(text: str, what: str) -> Any:
    """A value, or the message that says how to write it."""
    from perdure.errors import InvalidInput
    from perdure.kernel.codec import decode_json

    try:
        return decode_json(text)
    except InvalidInput as error:
        hint = """; a text needs quotes of its own: '"hello"'"""
        raise typer.BadParameter(f"{what} is not JSON: {error.message}{hint}") from None


def object_of(text: str | None, what: str) -> dict[str, Any] | None:
    """A JSON object; None if nothing was given."""
    if text is None:
        return None
    found = json_of(text, what)
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{what} is a JSON object, such as '{{\"key\": 1}}'")
    return found


def inputs_of(text: str) -> list[Any]:
    """What `INPUT` names: JSON, `@FILE`, or with `-` one a line of stdin."""
    if text == "-":
        return [json_of(line, f"line {number}") for number, line in enumerate(sys.stdin, 1) if line.strip()]
    return [input_of(text)]


def input_of(text: str) -> Any:
    """One JSON value, or the one in `@FILE`."""
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"cannot read {text[1:]}: {error}") from None
    return json_of(text, "INPUT")


def metadata_of(terms: Sequence[str] | None) -> dict[str, Any] | None:
    """Metadata to search for, each `key:text`, or a JSON object."""
    found: dict[str, Any] = {}
    for term in terms or ():
        key, colon, text = term.partition(":")
        if term.startswith("{"):
            found.update(object_of(term, "--metadata") or {})
        elif key and colon:
            found[key] = text
        else:
            raise typer.BadParameter("--metadata is key:text, or a JSON object")
    return found or None


def choice_of(value: str | None, choices: Sequence[str], option: str) -> str | None:
    """One of some words, or the message that lists them."""
    if value is not None and value not in choices:
        raise typer.BadParameter(f"{option} is one of {', '.join(choices)}, not {value!r}")
    return value


def confirm(question: str) -> None:
    """Ask on a terminal; elsewhere nobody could answer."""
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{question} Nobody can be asked here; add --yes")
    typer.confirm(question, abort=True, err=True)
