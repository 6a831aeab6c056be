"""The `perdure` command: it serves stores, looks at them, and shows them at work."""

from __future__ import annotations

import io
import os
import platform
import sys
from typing import Annotated, NoReturn

import typer

from perdure import __version__
from perdure.cli.commands import (
    assistants,
    crons,
    items,
    resources,
    rollouts,
    runs,
    spans,
    threads,
    tokens,
    webhooks,
    workers,
)
from perdure.cli.commands.assistants import agents
from perdure.cli.commands.diagnostics import stats, why
from perdure.cli.commands.health import health
from perdure.cli.hosting.dev import RolloutsOption, SeedOption, dev
from perdure.cli.hosting.doctor import doctor
from perdure.cli.hosting.serve import serve
from perdure.cli.hosting.store import store
from perdure.cli.shell.options import JsonOption, NoColorOption
from perdure.cli.shell.output import NOT_FOUND, print_json, warn
from perdure.kernel.errors import DatabaseOwned, NotFound, PerdureError, Unauthorized, Unreachable

HINTS: dict[type[PerdureError], str] = {
    Unreachable: "start a server with `perdure dev` or `perdure serve`, or name another with --url",
    Unauthorized: "give --token or PERDURE_TOKEN",
    DatabaseOwned: "ask that process: leave --database away and give its address with --url",
}

app = typer.Typer(
    help="The durable state and execution layer for AI agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (dev, serve, store, health, doctor, why, stats, agents):
    app.command()(command)
for name, group in (
    ("run", runs.app),
    ("thread", threads.app),
    ("assistant", assistants.app),
    ("cron", crons.app),
    ("item", items.app),
    ("rollout", rollouts.app),
    ("span", spans.app),
    ("worker", workers.app),
    ("resources", resources.app),
    ("webhook", webhooks.app),
    ("token", tokens.app),
):
    app.add_typer(group, name=name)


def main() -> None:
    """Run the command; an error that perdure knows is one line with its code, and exit code 1, or 4."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that lacks a character shows another one, and the command goes on.
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="perdure")
    except PerdureError as error:
        hint = next((f"; {text}" for kind, text in HINTS.items() if isinstance(error, kind)), "")
        _fail(
            f"{error.code}: {error.message.rstrip('.') if hint else error.message}{hint}",
            NOT_FOUND if isinstance(error, NotFound) else 1,
        )
    except OSError as error:
        # What waits to be written would fail once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"the system refused: {error}")


def _fail(message: str, code: int = 1) -> NoReturn:
    warn(message)
    sys.exit(code)


@app.command()
def demo(
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Where: memory:, sqlite:///file or postgresql://…; a new file if left out."
        ),
    ] = None,
    rollouts: RolloutsOption = 24,
    seed: SeedOption = 11,
    as_json: JsonOption = False,
    no_color: NoColorOption = False,
) -> None:
    """Show the store at work: two workers, failures, a silence, retries, and a trace."""
    from perdure.cli.demo.play import run

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
        print_json(facts)
    else:
        typer.echo(", ".join(f"{name} {found or 'not installed'}" for name, found in facts.items()))


@app.command()
def machines(as_json: JsonOption = False) -> None:
    """Print the state machines of rollouts, attempts and workers as mermaid charts."""
    from perdure.rollouts.model import MACHINES

    if as_json:
        print_json({machine.name: machine.chart() for machine in MACHINES})
    else:
        typer.echo("\n".join(f"%% {machine.name}\n{machine.chart()}" for machine in MACHINES), nl=False)


def _installed(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
