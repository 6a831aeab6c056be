"""The progress of a workflow run in the terminal: its phases drawn, and followed until it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from perdure.cli.shell.options import CommandContext
from perdure.cli.shell.output import (
    STYLES,
    TIMED_OUT,
    human_duration,
    parse_moment,
    print_error,
    printable,
    seconds_of_or_none,
    shorten,
)
from perdure.cli.shell.target import Hints, hints

if TYPE_CHECKING:
    from rich.text import Text

    from perdure.cli.shell.target import CommandConnection
    from perdure.workflows.records import NodeInfo, WorkflowRun

SHORT = 18
ENDED = ("succeeded", "failed", "cancelled")
REDRAWS_A_SECOND = 2.0
NODES_ENDED = (*ENDED, "skipped")
ERROR_WIDTH = 40
ERROR_LINES = 8
ERROR_LINE_WIDTH = 200
MARKS = {
    "pending": "·",
    "ready": "○",
    "running": "▶",
    "waiting": "⏸",
    "succeeded": "✔",
    "failed": "✘",
    "skipped": "↷",
    "cancelled": "■",
}
"""Marks of phases in a drawing."""
NODE_STYLES = {**STYLES, "ready": "cyan", "waiting": "magenta", "skipped": "dim", "pending": "dim"}


async def follow(
    context: CommandContext,
    connection: CommandConnection,
    run_id: str,
    timeout: float | None,
    *,
    stop_at_gates: bool = False,
) -> int:
    """Follow a run until it ends, or until it waits for a person. Return the exit code."""
    stops = (*ENDED, "paused") if stop_at_gates else ENDED
    try:
        async with asyncio.timeout(timeout), hints(connection, ("workflow_run",), run_id) as hint:
            run = await _follow(context, connection, run_id, hint, stops)
    except TimeoutError:
        print_error("timed_out", f"workflow run {run_id} did not end within {timeout:g} s", TIMED_OUT)
        return TIMED_OUT
    if not context.as_json:
        if run.status == "paused":
            print_gates(context, run)
        elif run.final_message:
            context.output.print("\n" + printable(run.final_message))
    return 0 if run.status in ("succeeded", "paused") else 1


def print_gates(context: CommandContext, run: WorkflowRun) -> None:
    """Print the approvals that a run waits for."""
    for node in run.nodes:
        if node.approval_id is not None and node.status == "waiting":
            context.output.print(f"\nWaits for a person: perdure approval show {node.approval_id[:SHORT]}")


async def _follow(
    context: CommandContext, connection: CommandConnection, run_id: str, hint: Hints, stops: Collection[str]
) -> WorkflowRun:
    """Redraw a run on a terminal, or print each change on a line."""
    from rich.live import Live

    run = await connection.workflows.get(run_id)
    printer = _Changes(context)
    console = context.output.console
    live = None
    if console.is_terminal and not context.as_json:
        # Redraw without changes too, because running phases show their duration.
        live = Live(console=console, refresh_per_second=REDRAWS_A_SECOND, get_renderable=lambda: drawing(run))
        live.start()
    try:
        while True:
            if live is None:
                printer.print(run)
            else:
                live.refresh()
            if run.status in stops:
                return run
            await hint.wait()
            run = await connection.workflows.get(run_id)
    finally:
        if live is not None:
            live.stop()


class _Changes:
    """Prints the changes of a run since the last print, one line each."""

    def __init__(self, context: CommandContext) -> None:
        self._context = context
        self._seen: dict[str, tuple[str, str | None]] = {}

    def print(self, run: WorkflowRun) -> None:
        now: dict[str, tuple[str, str | None]] = {
            _name(node): (node.status, None if node.label == node.node else node.label) for node in run.nodes
        }
        now["run"] = (run.status, None)
        errors = {_name(node): node.error for node in run.nodes if node.status == "failed"}
        for name, (status, label) in now.items():
            if self._seen.get(name) != (status, label):
                self._line(run.workflow_run_id, name, status, label, errors.get(name))
        self._seen = now

    def _line(self, run_id: str, name: str, status: str, label: str | None, error: str | None) -> None:
        output = self._context.output
        if self._context.as_json:
            output.line(
                {"workflow_run_id": run_id, "node": name, "status": status, "label": label, "error": error}
            )
            return
        part = f" ({printable(label)})" if label is not None else ""
        output.print(f"{time.strftime('%H:%M:%S')}  {status:<10} {printable(name)}{part}")
        for line in _last_lines(error or ""):
            output.print(" " * 10 + line)


# --- drawing ----------------------------------------------------------------------------------------------


def _name(node: NodeInfo) -> str:
    return f"{node.node}[{node.item}]" if node.item else node.node


def drawing(run: WorkflowRun) -> Text:
    """Draw a run as a tree of its phases, each below its last dependency."""
    from rich.text import Text

    cost = f"  ${run.total_cost_usd:.2f}" if run.total_cost_usd else ""
    ended = seconds_of_or_none(run.finished_at) or time.time()
    phases = [phase for phase in run.nodes if not phase.item]
    done = sum(phase.status in NODES_ENDED for phase in phases)
    lines = [
        Text.assemble(
            (printable(run.workflow_name), "bold"),
            f"  {printable(run.trigger_id)}  ",
            (run.status, STYLES.get(run.status, "")),
            f"  {done}/{len(phases)} phases",
            f"  {human_duration(max(0.0, ended - parse_moment(run.started_at)))}{cost}",
        ),
        Text(run.workflow_run_id, style="dim"),
    ]
    if run.error:
        lines.append(Text(printable(run.error.partition("\n")[0]), style="red"))
    edges = {phase.node: phase.depends_on for phase in phases}
    depths = compute_depths(list(edges), edges)
    for node in run.nodes:
        depth = depths.get(node.node, 0)
        lines.append(_line(node, depth, edges.get(node.node, ())))
        lines += _error_lines(node, depth)
    return Text("\n").join(lines)


def _error_lines(node: NodeInfo, depth: int) -> list[Text]:
    """Return the last lines of an error that does not fit the line of its phase, such as command output."""
    from rich.text import Text

    if node.error is None or ("\n" not in node.error and len(node.error) <= ERROR_WIDTH):
        return []
    indent = "  " + "   " * depth + "  "
    return [Text(indent + line, style="red") for line in _last_lines(node.error)]


def _last_lines(error: str) -> list[str]:
    """Return the last lines of an error, formatted."""
    return [shorten(printable(line), ERROR_LINE_WIDTH) for line in error.strip().splitlines()[-ERROR_LINES:]]


def compute_depths(names: Sequence[str], edges: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the minimum number of phases before each phase; a simple chain has no depths."""
    chain = all(list(edges.get(name, ())) == list(names[:at][-1:]) for at, name in enumerate(names))
    if chain:
        return {}
    depths: dict[str, int] = {}
    for name in names:
        depths[name] = max((depths.get(before, 0) + 1 for before in edges.get(name, ())), default=0)
    return depths


def _lasted(node: NodeInfo) -> str:
    """Format the duration of a phase; after retries, of the last attempt and of all."""
    began = seconds_of_or_none(node.started_at)
    if began is None:
        return ""
    ended = seconds_of_or_none(node.ended_at) or time.time()
    total = human_duration(max(0.0, ended - began))
    last = seconds_of_or_none(node.attempt_started_at)
    if node.attempts < 2 or last is None:
        return total
    return f"{human_duration(max(0.0, ended - last))} (attempt {node.attempts}; {total} in all)"


def _line(node: NodeInfo, depth: int, after: Sequence[str]) -> Text:
    from rich.text import Text

    mark = MARKS[node.status]
    lasted = _lasted(node)
    label = f" ({printable(node.label)})" if node.label and node.label != node.node else ""
    joins = f"  ← {', '.join(map(printable, after))}" if len(after) > 1 else ""
    reason = printable(node.error.partition("\n")[0]).removeprefix(f"{node.status}: ") if node.error else ""
    error = f"  {shorten(reason, ERROR_WIDTH)}" if reason else ""
    return Text.assemble(
        "  " + "   " * depth,
        (f"{mark} ", NODE_STYLES.get(node.status, "")),
        (printable(_name(node)), "bold" if node.status == "running" else ""),
        (label, "dim"),
        (f"  {node.status}", NODE_STYLES.get(node.status, "")),
        (f"  {lasted}" if lasted else "", "dim"),
        (joins, "dim"),
        (error, "red"),
    )
