"""`perdure workflow`: runs of workflows, with their phases drawn."""

from __future__ import annotations

from itertools import dropwhile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.commands.workflow_watch import SHORT, drawing, follow, print_gates
from perdure.cli.shell.ids import complete_workflow, id_argument
from perdure.cli.shell.options import (
    CommandContext,
    CommandGroup,
    LimitOption,
    TimeoutOption,
    flag,
    name_argument,
    number,
    parse_choice,
    parse_choices,
    parse_object,
    text,
)
from perdure.cli.shell.output import ago, human_duration, parse_moment, printable, shorten
from perdure.cli.shell.results import listing, pages

if TYPE_CHECKING:
    from perdure.executions.records import ExecutionFigures
    from perdure.workflows.records import WorkflowInfo, WorkflowRunSummary

NO_RUNS = """No workflow runs yet. `perdure workflow list --files` shows what can be run; then:

  perdure workflow run NAME"""
NO_WORKFLOWS = """No workflows. Put a YAML file into workflows/ beside perdure.toml and reload the server.
docs/workflows.md shows one; `perdure workflow validate` checks it."""
BY = ("status", "workflow", "phase", "day", "hour")
"""Subjects by which `stats` counts."""
FIGURES = ("executions", "succeeded", "skipped", "deferred", "failed", "mean", "cost", "tokens")
COLUMNS = ("run_id", "workflow", "status", "phase", "trigger", "started", "cost")

IdArgument = Annotated[str, id_argument("RUN_ID", "workflow_run")]
NameArgument = Annotated[str, name_argument("NAME", "Name of a workflow.", complete_workflow)]
WorkflowFilter = Annotated[
    str | None, text("NAME", "Filter by workflow.", "--workflow", "-w", complete=complete_workflow)
]


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
    workflow: WorkflowFilter = None,
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
            workflows = await connection.workflows.list()
        columns = ("workflow", "state", "phases", "description")
        listing(context, workflows, columns, _workflow_row, noun="workflows", empty=NO_WORKFLOWS)
        return
    chosen = parse_choices(status, RUN_STATUSES, "--status")
    async with context.connect() as connection:
        runs = await pages(
            lambda limit, cursor: connection.workflows.list_runs(
                workflow_name=workflow, status=chosen, limit=limit, cursor=cursor
            ),
            limit,
        )
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
        ago(parse_moment(run.started_at)),
        f"${run.total_cost_usd:.2f}" if run.total_cost_usd else None,
    )


# --- statistics -------------------------------------------------------------------------------------------


async def stats(
    context: CommandContext,
    by: Annotated[
        str, text("WHAT", "What is counted by: status, workflow, phase, day or hour.", "--by", "-b")
    ] = "status",
    workflow: WorkflowFilter = None,
    last: Annotated[
        int | None, number("How many days, or hours (default: 30 days, 24 hours).", "--last", min=1)
    ] = None,
) -> None:
    """Count the runs of each workflow by status, or the executions of phases by workflow, phase, day or hour.

    Days and hours are those of UTC. A deferred execution is one that was put off, such as by a quota.
    """
    chosen = parse_choice(by, BY, "--by")
    if chosen == "status":
        if last is not None:
            raise typer.BadParameter("--last needs --by workflow, phase, day or hour")
        await _runs_by_status(context, workflow)
        return
    rows: list[tuple[str, ExecutionFigures]]
    async with context.connect() as connection:
        executions = connection.executions
        if chosen == "hour":
            hours = await executions.hourly_stats(hours=last or 24, workflow=workflow)
            rows = [(hour.at, hour) for hour in hours]
        elif chosen == "day":
            days = await executions.daily_stats(days=last or 30, workflow=workflow)
            rows = [(day.at, day) for day in days]
        elif chosen == "workflow":
            rows = list((await executions.stats_by_workflow(days=last or 30)).items())
        else:
            rows = list((await executions.stats_by_skill(days=last or 30)).items())
    if chosen in ("day", "hour") and not context.as_json:
        # Skip the empty time before the first execution.
        rows = list(dropwhile(lambda row: not row[1].total, rows)) or rows[-1:]
    if workflow is not None and chosen in ("workflow", "phase"):
        rows = [row for row in rows if row[0].partition(":")[0] == workflow]
    listing(
        context,
        rows,
        (chosen, *FIGURES),
        lambda row: _figures_row(*row),
        noun="executions",
        empty=NO_RUNS,
        filtered=workflow is not None,
        document=lambda row: {chosen: row[0], **_figures(row[1])},
    )


async def _runs_by_status(context: CommandContext, workflow: str | None) -> None:
    from perdure.workflows.model import RUN_STATUSES

    async with context.connect() as connection:
        rows = await connection.workflows.counts()
    listing(
        context,
        [row for row in rows if workflow in (None, row.workflow_name)],
        ("workflow", *RUN_STATUSES),
        lambda row: (printable(row.workflow_name), *(row.counts.get(name) for name in RUN_STATUSES)),
        noun="workflow runs",
        empty=NO_RUNS,
        filtered=workflow is not None,
    )


def _figures(figures: ExecutionFigures) -> dict[str, Any]:
    document = figures.model_dump()
    document.pop("at", None)
    return document


def _figures_row(name: str, figures: ExecutionFigures) -> tuple[Any, ...]:
    ended = figures.succeeded + figures.failed
    return (
        printable(name),
        figures.total or None,
        figures.succeeded or None,
        figures.skipped or None,
        figures.deferred or None,
        figures.failed or None,
        human_duration(figures.duration_ms / 1000 / ended) if ended else None,
        f"${figures.cost_usd:.2f}" if figures.cost_usd else None,
        figures.input_tokens + figures.output_tokens or None,
    )


# --- starting and stopping --------------------------------------------------------------------------------


async def run_workflow(
    context: CommandContext,
    name: NameArgument,
    given: Annotated[str | None, text("JSON", "Context of the run, as a JSON object.", "--context")] = None,
    trigger: Annotated[
        str | None, text("TRIGGER", "What starts it; its live run is reused.", "--trigger", "-t")
    ] = None,
    trigger_type: Annotated[
        str, text("TYPE", "Kind of the trigger: webhook, cron, chat or api.", "--trigger-type")
    ] = "api",
    repo: Annotated[str | None, text("REPO", "Repository that the run is about.", "--repo")] = None,
    issue: Annotated[int | None, number("Issue that the run is about.", "--issue", min=0)] = None,
    watch: Annotated[bool, flag("--watch", help="Show its progress until it ends or waits.")] = False,
    timeout: TimeoutOption = None,
) -> None:
    """Run a workflow and print the ID of the run."""
    from perdure.workflows.model import TRIGGER_TYPES

    chosen = parse_choice(trigger_type, TRIGGER_TYPES, "--trigger-type")
    async with context.connect(create=True) as connection:
        dispatched = await connection.workflows.run(
            name,
            context=parse_object(given, "--context") or {},
            trigger_id=trigger,
            trigger_type=chosen,
            repo=repo,
            issue_number=issue,
        )
        run_id = dispatched.workflow_run_id
        if run_id is None:
            off = f"Workflow {name} is switched off; `perdure override clear workflow {name}` reverts it."
            context.answer(dispatched, off)
            return
        if watch:
            raise typer.Exit(await follow(context, connection, run_id, timeout, stop_at_gates=True))
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


async def retry_run(
    context: CommandContext,
    run_id: IdArgument,
    from_phase: Annotated[
        str | None,
        text("PHASE", "Begin this phase anew, and those that depend on it, also if they are done.", "--from"),
    ] = None,
    definition: Annotated[
        str,
        text("WHICH", "Definition to go on with: original, or current for that of the file.", "--definition"),
    ] = "original",
) -> None:
    """Retry a run that failed or was cancelled, from the first phase that is not done, or from a phase."""
    from perdure.workflows.model import DEFINITION_CHOICES

    chosen = parse_choice(definition, DEFINITION_CHOICES, "--definition")
    async with context.connect() as connection:
        run = await connection.workflows.retry(run_id, from_phase=from_phase, definition=chosen)
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
    other_id: Annotated[str, id_argument("OTHER_ID", "workflow_run", help="Another run.")],
) -> None:
    """Compare two runs: their contexts, their scratch and how their phases ended."""
    async with context.connect() as connection:
        workflows = connection.workflows
        left, right = await workflows.get(run_id), await workflows.get(other_id)
        difference = await workflows.diff(left.workflow_run_id, right.workflow_run_id)
    if context.as_json:
        context.output.document(difference)
        return
    if not difference.same_definition:
        context.output.print("The runs were started with different definitions.")
    if not difference.differences:
        context.output.print("The runs do not differ.")
        return
    rows = [
        (printable(change.path), shorten(change.left, 40), shorten(change.right, 40))
        for change in difference.differences
    ]
    context.output.table(("value", difference.left[:SHORT], difference.right[:SHORT]), rows)


# --- one run ----------------------------------------------------------------------------------------------


async def show_run(context: CommandContext, run_id: IdArgument) -> None:
    """Show a run with its phases drawn, and what it waits for."""
    async with context.connect() as connection:
        run = await connection.workflows.get(run_id)
    if context.as_json:
        context.output.document(run)
        return
    context.output.console.print(drawing(run))
    print_gates(context, run)
    if run.final_message:
        context.output.print("\n" + printable(run.final_message))


async def watch_run(context: CommandContext, run_id: IdArgument, timeout: TimeoutOption = None) -> None:
    """Show the progress of a run until it ends (exit code 1 if it fails, 5 on timeout)."""
    async with context.connect() as connection:
        run = await connection.workflows.get(run_id)
        code = await follow(context, connection, run.workflow_run_id, timeout)
    raise typer.Exit(code)
