"""The `perdure` command."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated, NoReturn

import typer
from typer._click.exceptions import ClickException

from perdure.cli.shell.lazy import lazy_group, use_quick_params
from perdure.cli.shell.output import NOT_FOUND, print_error, wants_json
from perdure.kernel.errors import DatabaseOwned, NotFound, PerdureError, Unauthorized, Unreachable
from perdure.kernel.version import VERSION

HINTS: dict[type[PerdureError], str] = {
    Unreachable: "start a server with `perdure dev` or `perdure serve`, or set another URL with --url",
    Unauthorized: "with an API key, a server writes no secret for this command, unless local_secret is on; "
    "set --token or PERDURE_TOKEN",
    DatabaseOwned: "use that server: omit --database and set its URL with --url",
}
COMMANDS = "perdure.cli.commands."
HOSTING = "perdure.cli.hosting."
PANELS: dict[str, dict[str, str]] = {
    "Start": {
        "init": HOSTING + "init:init",
        "dev": HOSTING + "dev:dev",
        "serve": HOSTING + "serve:serve",
        "start": HOSTING + "daemon:start",
        "stop": HOSTING + "daemon:stop",
        "restart": HOSTING + "daemon:restart",
        "status": HOSTING + "daemon:status",
        "worker": COMMANDS + "workers:app",
        "store": HOSTING + "serve:store",
        "demo": "perdure.cli.demo.command:demo",
    },
    "Agents and runs": {
        "agents": HOSTING + "agents:agents",
        "assistant": COMMANDS + "assistants:app",
        "run": COMMANDS + "runs:app",
        "chat": COMMANDS + "chat:chat",
        "thread": COMMANDS + "threads:app",
        "session": COMMANDS + "sessions:app",
        "workflow": COMMANDS + "workflows:app",
        "approval": COMMANDS + "approvals:app",
        "override": COMMANDS + "overrides:app",
        "cron": COMMANDS + "crons:app",
        "scheduler": COMMANDS + "scheduler:app",
        "item": COMMANDS + "items:app",
        "memory": COMMANDS + "memory:app",
        "webhook": COMMANDS + "webhooks:app",
    },
    "Rollouts and traces": {
        "rollout": COMMANDS + "rollouts:app",
        "queue": COMMANDS + "queues:app",
        "trace": COMMANDS + "traces:app",
        "span": COMMANDS + "spans:app",
        "resources": COMMANDS + "resources:app",
    },
    "Operations": {
        "find": COMMANDS + "find:find",
        "why": COMMANDS + "diagnostics:why",
        "stats": COMMANDS + "diagnostics:stats",
        "usage": COMMANDS + "diagnostics:usage",
        "health": COMMANDS + "diagnostics:health",
        "outbox": COMMANDS + "outbox:app",
        "view": COMMANDS + "views:app",
        "db": COMMANDS + "database:app",
        "mcp": COMMANDS + "mcp:mcp",
        "import": COMMANDS + "imports:app",
        "doctor": HOSTING + "doctor:doctor",
        "token": COMMANDS + "tokens:app",
        "audit": COMMANDS + "audit:audit",
        "version": COMMANDS + "about:version",
        "machines": COMMANDS + "about:machines",
        "completion": COMMANDS + "completion:completion",
    },
}
"""The module and function of each command, in the order and panels of the help."""

app = typer.Typer(
    cls=lazy_group(PANELS),
    help="A durable queue, execution engine and trace store for AI agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"perdure {VERSION}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", metavar="", callback=_print_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """Declare the options of the command itself."""


def main() -> None:
    """Run the command. A known error is one line with its code, and the exit code is 1 or 4."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Replace characters that the terminal does not support.
            stream.reconfigure(errors="replace")
    use_quick_params()
    if "_PERDURE_COMPLETE" in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
    try:
        code = app(prog_name="perdure", standalone_mode=False)
    except typer.Abort:
        _fail("aborted", "Aborted.", 1)
    except ClickException as error:
        _fail_usage(error)
    except PerdureError as error:
        hint = next((f"; {text}" for kind, text in HINTS.items() if isinstance(error, kind)), "")
        message = f"{error.message.rstrip('.') if hint else error.message}{hint}"
        _fail(error.code, message, NOT_FOUND if isinstance(error, NotFound) else 1)
    except OSError as error:
        # Otherwise, flushing the buffered output would fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail("system error", str(error), 1)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(code: str, message: str, exit_code: int) -> NoReturn:
    print_error(code, message, exit_code)
    sys.exit(exit_code)


def _fail_usage(error: ClickException) -> NoReturn:
    """Report a wrong command line; a group without a command shows its help."""
    if wants_json():
        _fail("usage", error.format_message(), error.exit_code)
    from typer.rich_utils import rich_format_error

    rich_format_error(error)
    sys.exit(error.exit_code)
