"""`perdure workflow`: runs of workflows, with their phases drawn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.shell.arguments import choices_of, object_of
from perdure.cli.shell.options import CommandContext, CommandGroup, LimitOption, TimeoutOption, flag, text
from perdure.cli.shell.output import (
    STYLES,
    TIMED_OUT,
    ago,
    human_duration,
    make_table,
    printable,
    shorten,
    warn,
)
from perdure.cli.shell.results import listing
from perdure.cli.shell.times import seconds_of, seconds_of_or_none

if TYPE_CHECKING:
    from rich.text import Text

    from perdure.cli.shell.target import Connection
    from perdure.workflows.records import NodeInfo, WorkflowInfo, WorkflowRun, WorkflowRunSummary

SHORT = 18
LOOK_SECONDS = 0.5
ENDED = ("succeeded", "failed", "cancelled")
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
"""How a phase is marked in a drawing."""
NODE_STYLES = {**STYLES, "ready": "cyan", "waiting": "magenta", "skipped": "dim", "pending": "dim"}
NO_RUNS = """No workflow runs yet. `perdure workflow list --files` shows what can be run; then:

  perdure workflow run NAME"""
NO_WORKFLOWS = """No workflows. Put a YAML file into workflows/ beside perdure.toml and reload the server.
docs/workflows.md shows one; `perdure workflow validate` checks it."""
COLUMNS = ("run_id", "workflow", "status", "phase", "trigger", "started", "cost")

IdArgument = Annotated[
    str, typer.Argument(metavar="RUN_ID", help="ID of a run, or its first characters.", show_default=False)
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of a workflow.", show_default=False)]


def add_to(app: CommandGroup) -> None:
    """Add the commands to `perdure workflow`."""
    for name, command in (
        ("list", list_runs),
        ("run", run_workflow),
        ("show", show_run),
        ("watch", watch_run),
        ("cancel", cancel_run),
        ("retry", retry_run),
        ("resume", resume_run),
        ("pause", pause_run),
        ("diff", diff_runs),
        ("stats", stats),
    ):
        app.client_command(name)(command)


# --- lists ------------------------------------------------------------------------------------------------


async def list_runs(
    context: CommandContext,
    files: Annotated[bool, flag("--files", "-f", help="List the workflows that can be run.")] = False,
    workflow: Annotated[str | None, text("NAME", "Filter by workflow.", "--workflow", "-w")] = None,
    status: Annotated[
        list[str] | None,
        text("STATUS", "Filter by status; repeatable.", "--status", "-s"),
    ] = None,
    limit: LimitOption = 20,
) -> None:
    """List workflow runs: running, paused and queued ones first."""
    from perdure.workflows.model import RUN_STATUSES

    if files:
        async with context.connect() as connection:
            found = await connection.workflows.list()
        columns = ("workflow", "state", "phases", "description")
        listing(context, found, columns, _workflow_row, noun="workflows", empty=NO_WORKFLOWS)
        return
    chosen = choices_of(status, RUN_STATUSES, "--status")
    runs: list[WorkflowRunSummary] = []
    cursor = None
    async with context.connect() as connection:
        while len(runs) < limit:
            page = await connection.workflows.list_runs(
                workflow_name=workflow, status=chosen, limit=min(limit - len(runs), 1000), cursor=cursor
            )
            runs += page.items
            cursor = page.next
            if cursor is None:
                break
    filtered = workflow is not None or chosen is not None
    listing(context, runs, COLUMNS, _row, noun="workflow runs", empty=NO_RUNS, filtered=filtered)


def _workflow_row(workflow: WorkflowInfo) -> tuple[Any, ...]:
    state = "on" if workflow.enabled else "off"
    return printable(workflow.name), state, len(workflow.phases), shorten(printable(workflow.description))


def _row(run: WorkflowRunSummary) -> tuple[Any, ...]:
    return (
        run.workflow_run_id[:SHORT],
        printable(run.workflow_name),
        run.status,
        printable(run.current_phase),
        shorten(printable(run.trigger_id), 24),
        ago(seconds_of(run.started_at)),
        f"${run.total_cost_usd:.2f}" if run.total_cost_usd else None,
    )


async def stats(context: CommandContext) -> None:
    """Count the runs of each workflow by status."""
    from perdure.workflows.model import RUN_STATUSES

    async with context.connect() as connection:
        found = await connection.workflows.counts()
    columns = ("workflow", *RUN_STATUSES)
    listing(
        context,
        found,
        columns,
        lambda each: (printable(each.workflow_name), *(each.counts.get(name) for name in RUN_STATUSES)),
        noun="workflow runs",
        empty=NO_RUNS,
    )


# --- starting and stopping --------------------------------------------------------------------------------


async def run_workflow(
    context: CommandContext,
    name: NameArgument,
    given: Annotated[str | None, text("JSON", "Context of the run, as a JSON object.", "--context")] = None,
    trigger: Annotated[
        str | None, text("TRIGGER", "What starts it; its live run is reused.", "--trigger", "-t")
    ] = None,
    watch: Annotated[bool, flag("--watch", help="Show its progress until it ends or waits.")] = False,
    timeout: TimeoutOption = None,
) -> None:
    """Run a workflow and print the ID of the run."""
    async with context.connect(create=True) as connection:
        dispatched = await connection.workflows.run(
            name, context=object_of(given, "--context") or {}, trigger_id=trigger
        )
        run_id = dispatched.workflow_run_id
        if run_id is None:
            off = f"Workflow {name} is switched off; `perdure override clear workflow {name}` reverts it."
            context.answer(dispatched, off)
            return
        if watch:
            raise typer.Exit(await _watch(context, connection, run_id, timeout))
    reused = " (its live run goes on)" if dispatched.reused else ""
    context.answer(dispatched, f"{run_id}{reused}")


async def cancel_run(
    context: CommandContext,
    run_id: IdArgument,
    reason: Annotated[str | None, text("TEXT", "Reason to record.", "--reason")] = None,
) -> None:
    """Cancel a run: its phases are stopped and its approvals withdrawn."""
    async with context.connect() as connection:
        run = await connection.workflows.cancel(run_id, reason=reason)
    _changed(context, run)


async def retry_run(context: CommandContext, run_id: IdArgument) -> None:
    """Retry a run that failed or was cancelled, from the first phase that is not done."""
    async with context.connect() as connection:
        run = await connection.workflows.retry(run_id)
    _changed(context, run)


async def pause_run(context: CommandContext, run_id: IdArgument) -> None:
    """Pause a run: no more phases are started."""
    async with context.connect() as connection:
        run = await connection.workflows.pause(run_id)
    _changed(context, run)


async def resume_run(context: CommandContext, run_id: IdArgument) -> None:
    """Resume a run that was paused."""
    async with context.connect() as connection:
        run = await connection.workflows.resume(run_id)
    _changed(context, run)


def _changed(context: CommandContext, run: WorkflowRunSummary) -> None:
    context.answer(run, f"{run.workflow_run_id} is {run.status}")


async def diff_runs(
    context: CommandContext,
    run_id: IdArgument,
    other_id: Annotated[str, typer.Argument(metavar="OTHER_ID", help="Another run.", show_default=False)],
) -> None:
    """Compare two runs: their contexts, their scratch and how their phases ended."""
    async with context.connect() as connection:
        workflows = connection.workflows
        left, right = await workflows.get(run_id), await workflows.get(other_id)
        found = await workflows.diff(left.workflow_run_id, right.workflow_run_id)
    if context.as_json:
        context.output.document(found)
        return
    if not found.same_definition:
        context.output.print("The runs were started with different definitions.")
    if not found.differences:
        context.output.print("The runs do not differ.")
        return
    rows = [
        (printable(each.path), shorten(each.left, 40), shorten(each.right, 40)) for each in found.differences
    ]
    context.output.show(make_table(("value", found.left[:SHORT], found.right[:SHORT]), rows))


# --- one run ----------------------------------------------------------------------------------------------


async def show_run(context: CommandContext, run_id: IdArgument) -> None:
    """Show a run with its phases drawn, and what it waits for."""
    async with context.connect() as connection:
        run = await connection.workflows.get(run_id)
        edges = await _edges(connection, run)
    if context.as_json:
        context.output.document(run)
        return
    context.output.console.print(drawing(run, edges))
    for each in run.nodes:
        if each.approval_id is not None and each.status == "waiting":
            context.output.print(f"\nWaits for a person: perdure approval show {each.approval_id[:SHORT]}")
    if run.final_message:
        context.output.print("\n" + printable(run.final_message))


async def _edges(connection: Connection, run: WorkflowRun) -> Mapping[str, Sequence[str]]:
    """What each phase depends on, by the definition that is loaded now; nothing if there is none."""
    from perdure.kernel.errors import NotFound

    try:
        detail = await connection.workflows.show(run.workflow_name)
    except NotFound:
        return {}
    return {phase.name: phase.depends_on for phase in detail.phases}


async def watch_run(context: CommandContext, run_id: IdArgument, timeout: TimeoutOption = None) -> None:
    """Show the progress of a run until it ends (exit code 1 if it fails, 5 on timeout)."""
    async with context.connect() as connection:
        run = await connection.workflows.get(run_id)
        code = await _watch(context, connection, run.workflow_run_id, timeout)
    raise typer.Exit(code)


async def _watch(context: CommandContext, connection: Connection, run_id: str, timeout: float | None) -> int:
    try:
        async with asyncio.timeout(timeout):
            run = await _follow(context, connection, run_id)
    except TimeoutError:
        warn(f"timed_out: workflow run {run_id} did not end within {timeout:g} s")
        return TIMED_OUT
    if context.as_json:
        return 0 if run.status == "succeeded" else 1
    if run.status == "paused":
        for each in run.nodes:
            if each.approval_id is not None and each.status == "waiting":
                context.output.print(f"Waits for a person: perdure approval show {each.approval_id[:SHORT]}")
        return 0
    return 0 if run.status == "succeeded" else 1


async def _follow(context: CommandContext, connection: Connection, run_id: str) -> WorkflowRun:
    """Draw a run again and again on a terminal, or print each change on a line."""
    from rich.live import Live

    run = await connection.workflows.get(run_id)
    edges = await _edges(connection, run)
    seen: dict[str, str] = {}
    console = context.output.console
    live = Live(console=console, auto_refresh=False) if console.is_terminal and not context.as_json else None
    if live is not None:
        live.start()
    try:
        while True:
            if live is not None:
                live.update(drawing(run, edges), refresh=True)
            else:
                _print_changes(context, run, seen)
            if run.status in ENDED or run.status == "paused":
                return run
            await asyncio.sleep(LOOK_SECONDS)
            run = await connection.workflows.get(run_id)
    finally:
        if live is not None:
            live.stop()


def _print_changes(context: CommandContext, run: WorkflowRun, seen: dict[str, str]) -> None:
    now = {_name(each): each.status for each in run.nodes} | {"run": run.status}
    for name, status in now.items():
        if seen.get(name) != status:
            if context.as_json:
                context.output.line({"workflow_run_id": run.workflow_run_id, "node": name, "status": status})
            else:
                context.output.print(f"{time.strftime('%H:%M:%S')}  {status:<10} {printable(name)}")
    seen.update(now)


def _name(node: NodeInfo) -> str:
    return f"{node.node}[{node.item}]" if node.item else node.node


def drawing(run: WorkflowRun, edges: Mapping[str, Sequence[str]]) -> Text:
    """A run as a tree of its phases: each below the one that it waits for last."""
    from rich.text import Text

    cost = f"  ${run.total_cost_usd:.2f}" if run.total_cost_usd else ""
    ended = seconds_of_or_none(run.finished_at) or time.time()
    lines = [
        Text.assemble(
            (printable(run.workflow_name), "bold"),
            f"  {printable(run.trigger_id)}  ",
            (run.status, STYLES.get(run.status, "")),
            f"  {human_duration(max(0.0, ended - seconds_of(run.started_at)))}{cost}",
        ),
        Text(run.workflow_run_id, style="dim"),
    ]
    if run.error:
        lines.append(Text(printable(run.error), style="red"))
    depths = depths_of([each.node for each in run.nodes], edges)
    for node in run.nodes:
        lines.append(_line(node, depths.get(node.node, 0), edges.get(node.node, ())))
    return Text("\n").join(lines)


def depths_of(names: Sequence[str], edges: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """How many phases come before each one at least, one after the other; a line of them has no depth."""
    chain = all(list(edges.get(name, ())) == list(names[:at][-1:]) for at, name in enumerate(names))
    if chain:
        return {}
    depths: dict[str, int] = {}
    for name in names:
        depths[name] = max((depths.get(each, 0) + 1 for each in edges.get(name, ())), default=0)
    return depths


def _line(node: NodeInfo, depth: int, after: Sequence[str]) -> Text:
    from rich.text import Text

    mark = MARKS[node.status]
    began, ended = seconds_of_or_none(node.started_at), seconds_of_or_none(node.ended_at)
    lasted = "" if began is None else human_duration(max(0.0, (ended or time.time()) - began))
    label = f" ({printable(node.label)})" if node.label and node.label != node.node else ""
    joins = f"  ← {', '.join(map(printable, after))}" if len(after) > 1 else ""
    error = f"  {shorten(printable(node.error), 40)}" if node.error else ""
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
