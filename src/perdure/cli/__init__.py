"""The `perdure` command: it looks at stores and shows them at work."""

from __future__ import annotations

import io
import json
import os
import platform
import sys
from importlib import metadata
from typing import Annotated, Any, NoReturn

import typer

from perdure import __version__
from perdure.kernel.errors import PerdureError

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document, and nothing else.")]

app = typer.Typer(
    help="The durable state and execution layer for AI agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command; an error that perdure knows is one line with its code, and exit code 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that lacks a character shows another one, and the command goes on.
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="perdure")
    except PerdureError as error:
        _fail(f"{error.code}: {error.message}")
    except OSError as error:
        # What waits to be written would fail once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"the system refused: {error}")


def _fail(message: str) -> NoReturn:
    typer.echo(f"perdure: {' '.join(message.split())}", err=True)
    sys.exit(1)


@app.command()
def demo(
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Where: memory:, sqlite:///file or postgresql://…; a new file if left out."
        ),
    ] = None,
    rollouts: Annotated[int, typer.Option(min=1, max=10_000, help="How many rollouts to enqueue.")] = 24,
    seed: Annotated[int, typer.Option(help="Another seed, other failures.")] = 11,
    as_json: JsonOption = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours; NO_COLOR does the same.")] = False,
) -> None:
    """Show the store at work: two workers, failures, a silence, retries, and a trace."""
    from perdure.cli.demo import run

    try:
        run(database, rollouts, seed, as_json=as_json, no_color=no_color)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@app.command()
def version(as_json: JsonOption = False) -> None:
    """Say which perdure this is, and what it runs on."""
    import apsw

    facts = {
        "perdure": __version__,
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "asyncpg": _installed("asyncpg"),
    }
    if as_json:
        _print_json(facts)
    else:
        typer.echo(", ".join(f"{name} {found or 'not installed'}" for name, found in facts.items()))


@app.command()
def machines(as_json: JsonOption = False) -> None:
    """Print the state machines of rollouts, attempts and workers as mermaid charts."""
    from perdure.rollouts.model import MACHINES

    if as_json:
        _print_json({machine.name: machine.chart() for machine in MACHINES})
    else:
        typer.echo("\n".join(f"%% {machine.name}\n{machine.chart()}" for machine in MACHINES), nl=False)


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _print_json(document: Any) -> None:
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
