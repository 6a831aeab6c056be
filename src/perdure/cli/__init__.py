"""The `perdure` command."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from perdure.cli.commands import (
    approvals,
    assistants,
    crons,
    database,
    items,
    memory,
    outbox,
    overrides,
    resources,
    rollouts,
    runs,
    scheduler,
    sessions,
    spans,
    threads,
    tokens,
    traces,
    webhooks,
    workers,
    workflows,
)
from perdure.cli.commands.about import machines, version
from perdure.cli.commands.chat import chat
from perdure.cli.commands.diagnostics import health, stats, why
from perdure.cli.commands.mcp import mcp
from perdure.cli.demo.command import demo
from perdure.cli.hosting.agents import agents
from perdure.cli.hosting.daemon import restart, start, status, stop
from perdure.cli.hosting.dev import dev
from perdure.cli.hosting.doctor import doctor
from perdure.cli.hosting.init import init
from perdure.cli.hosting.serve import serve
from perdure.cli.hosting.store import store
from perdure.cli.shell.output import NOT_FOUND, warn
from perdure.kernel.errors import DatabaseOwned, NotFound, PerdureError, Unauthorized, Unreachable

HINTS: dict[type[PerdureError], str] = {
    Unreachable: "start a server with `perdure dev` or `perdure serve`, or set another URL with --url",
    Unauthorized: "set --token or PERDURE_TOKEN",
    DatabaseOwned: "use that server: omit --database and set its URL with --url",
}


class _InOrder(TyperGroup):
    """Lists commands and groups in the order of `PANELS`; typer puts all groups last."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for commands in PANELS.values() for name in commands]


app = typer.Typer(
    cls=_InOrder,
    help="A durable queue, execution engine and trace store for AI agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
PANELS: dict[str, dict[str, Any]] = {
    "Start": {
        "init": init,
        "dev": dev,
        "serve": serve,
        "start": start,
        "stop": stop,
        "restart": restart,
        "status": status,
        "worker": workers.app,
        "store": store,
        "demo": demo,
    },
    "Agents and runs": {
        "agents": agents,
        "assistant": assistants.app,
        "run": runs.app,
        "chat": chat,
        "thread": threads.app,
        "session": sessions.app,
        "workflow": workflows.app,
        "approval": approvals.app,
        "override": overrides.app,
        "cron": crons.app,
        "scheduler": scheduler.app,
        "item": items.app,
        "memory": memory.app,
        "webhook": webhooks.app,
    },
    "Rollouts and traces": {
        "rollout": rollouts.app,
        "trace": traces.app,
        "span": spans.app,
        "resources": resources.app,
    },
    "Operations": {
        "why": why,
        "stats": stats,
        "health": health,
        "outbox": outbox.app,
        "db": database.app,
        "mcp": mcp,
        "doctor": doctor,
        "token": tokens.app,
        "version": version,
        "machines": machines,
    },
}
for panel, commands in PANELS.items():
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel)(command)


def main() -> None:
    """Run the command; a known error is one line with its code, and exit code 1 or 4."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal does not have is replaced.
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
        # Buffered output would fail once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"system error: {error}")


def _fail(message: str, code: int = 1) -> NoReturn:
    warn(message)
    sys.exit(code)
