"""`perdure cron`: runs that a schedule starts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from perdure.cli.commands.runs import InputArgument, parse_strategy
from perdure.cli.shell.ids import AssistantArgument, ThreadFilter, id_argument, id_option
from perdure.cli.shell.options import (
    CommandContext,
    CommandGroup,
    ConfigOption,
    ContextOption,
    LimitOption,
    MetadataFilter,
    MetadataOption,
    YesOption,
    duration,
    flag,
    parse_choice,
    parse_metadata,
    parse_object,
    read_input,
    text,
)
from perdure.cli.shell.output import ago, human_duration, in_time, shorten
from perdure.cli.shell.results import listing, pages, removing, showing

if TYPE_CHECKING:
    from perdure.schedules.records import Firing, Schedule

EMPTY = """No crons yet. A cron starts a run of an assistant on a schedule, while a server is running:

  perdure cron create greet '0 9 * * MON-FRI' '{"name": "Ann"}'

The five fields are minute, hour, day of month, month and day of week; a sixth in front is the second."""
COLUMNS = ("cron", "schedule", "time zone", "next", "last", "runs", "errors", "last error")
FIRING_COLUMNS = ("due", "source", "status", "took", "started", "error")

app = CommandGroup("Create, show, trigger, pause and delete crons.")

IdArgument = Annotated[
    str, id_argument("CRON", "schedule", help="Name or ID of the cron, its first characters, or `last`.")
]


def _next(schedule: Schedule) -> str:
    if not schedule.enabled:
        return "paused"
    return in_time(schedule.next_at) or "ended"


def _timestamp(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@app.client_command("list")
async def list_crons(
    context: CommandContext,
    assistant: Annotated[
        str | None, id_option("ASSISTANT_ID", "Filter by assistant.", "--assistant", kinds=["assistant"])
    ] = None,
    thread: ThreadFilter = None,
    enabled: Annotated[
        bool | None, flag("--enabled/--paused", help="List only enabled or only paused crons.")
    ] = None,
    metadata: MetadataFilter = None,
    everything: Annotated[bool, flag("--all", help="List the server's own jobs too.")] = False,
    limit: LimitOption = 20,
) -> None:
    """List crons, newest first."""
    wanted: dict[str, Any] = {"assistant_id": assistant, "thread_id": thread, "enabled": enabled}
    wanted["metadata"] = parse_metadata(metadata)
    filtered = any(value is not None for value in wanted.values())
    wanted["origin"] = None if everything else ["api", "file"]
    async with context.connect() as connection:
        crons = await pages(
            lambda limit, cursor: connection.schedules.search(**wanted, limit=limit, cursor=cursor),
            limit,
        )
    listing(context, crons, COLUMNS, _row, noun="crons", empty=EMPTY, filtered=filtered)


def _row(schedule: Schedule) -> tuple[Any, ...]:
    return (
        schedule.name or schedule.schedule_id,
        schedule.expression,
        schedule.timezone or "UTC",
        _next(schedule),
        ago(schedule.fired_at),
        schedule.fired + schedule.refused + schedule.skipped,
        schedule.refused + schedule.failed,
        None if schedule.error is None else shorten(schedule.error),
    )


@app.client_command("show")
async def show_cron(context: CommandContext, cron_id: IdArgument, limit: LimitOption = 10) -> None:
    """Show a cron and its latest firings."""
    async with context.connect() as connection:
        firings = await pages(
            lambda limit, cursor: connection.schedules.firings(cron_id, limit=limit, cursor=cursor), limit
        )
        schedule = await connection.schedules.get(cron_id)
    due = _timestamp(schedule.next_at)
    rows = (
        ("cron", schedule.schedule_id),
        ("name", schedule.name),
        ("file", schedule.file),
        ("starts", schedule.target),
        ("schedule", f"{schedule.expression} (override)" if schedule.overridden else schedule.expression),
        ("time zone", schedule.timezone or "UTC"),
        ("next", f"{_next(schedule)} ({due})" if due else _next(schedule)),
        ("end", _timestamp(schedule.end_time)),
        ("jitter", human_duration(schedule.jitter) if schedule.jitter else None),
        ("overlap", schedule.overlap),
        ("misfire", schedule.misfire if schedule.misfire != "once" else None),
        ("timeout", None if schedule.timeout is None else human_duration(schedule.timeout)),
        ("unless", schedule.unless),
        ("assistant", schedule.assistant_id),
        ("thread", schedule.thread_id),
        ("fired", f"{schedule.fired} times, last {ago(schedule.fired_at)}" if schedule.fired_at else None),
        ("running", schedule.running or None),
        ("skipped", schedule.skipped or None),
        ("errors", schedule.refused + schedule.failed or None),
        ("last started", schedule.started_id),
        ("last error", schedule.error),
        ("payload", schedule.payload or None),
        ("metadata", schedule.metadata or None),
    )
    document = {**schedule.model_dump(), "firings": firings}
    showing(context, document, rows, FIRING_COLUMNS, map(firing_row, firings))


def firing_row(firing: Firing) -> tuple[Any, ...]:
    """Build the table row of a firing."""
    return (
        _timestamp(firing.due_at),
        firing.source if firing.actor is None else f"{firing.source} by {firing.actor}",
        firing.status if firing.skipped is None else f"{firing.status}: {firing.skipped}",
        None if not firing.duration else human_duration(firing.duration),
        firing.started_id,
        None if firing.error is None else shorten(firing.error),
    )


@app.client_command("create")
async def create_cron(
    context: CommandContext,
    assistant: AssistantArgument,
    schedule: Annotated[
        str, typer.Argument(metavar="SCHEDULE", help="Cron expression, such as '*/5 * * * *' or @daily.")
    ],
    input: InputArgument = None,
    name: Annotated[
        str | None, text("NAME", "Name of the cron, to be used as its ID.", "--name", "-n")
    ] = None,
    timezone: Annotated[
        str | None,
        text("NAME", "Time zone, such as Europe/Berlin (default: UTC).", "--timezone", "-z"),
    ] = None,
    thread: Annotated[
        str | None,
        id_option(
            "THREAD_ID", "Run on this thread (default: a new one for each run).", "--thread", kinds=["thread"]
        ),
    ] = None,
    keep: Annotated[bool, flag("--keep", help="Without --thread: keep the thread of each run.")] = False,
    until: Annotated[
        str | None, text("TIME", "Stop at this time, such as 2030-12-31T12:00.", "--until")
    ] = None,
    paused: Annotated[bool, flag("--paused", help="Create it paused.")] = False,
    jitter: Annotated[float | None, duration("Fire up to this long after the time", "--jitter")] = None,
    overlap: Annotated[
        str, text("POLICY", "While its last run has not ended: concurrent or skip.", "--overlap")
    ] = "concurrent",
    misfire: Annotated[
        str,
        text("POLICY", "Missed times, while no server was running: once, skip or all.", "--misfire"),
    ] = "once",
    timeout: Annotated[float | None, duration("Timeout of each run", "--timeout")] = None,
    strategy: Annotated[
        str | None,
        text("STRATEGY", "If the thread is busy: enqueue, reject, interrupt or rollback.", "--strategy"),
    ] = None,
    config: ConfigOption = None,
    run_context: ContextOption = None,
    webhook: Annotated[str | None, text("URL", "URL to POST when a run ends.", "--webhook")] = None,
    metadata: MetadataOption = None,
) -> None:
    """Create a cron that runs an assistant on a schedule, and print its ID."""
    from perdure.schedules.model import Misfire, Overlap

    if keep and thread is not None:
        raise typer.BadParameter("--keep cannot be used with --thread, which is always kept")
    payload = {
        "input": None if input is None else read_input(input),
        "config": parse_object(config, "--config"),
        "context": parse_object(run_context, "--context"),
        "webhook": webhook,
        "multitask_strategy": None if strategy is None else parse_strategy(strategy),
        "on_run_completed": "keep" if keep else None,
    }
    async with context.connect() as connection:
        created = await connection.schedules.create(
            schedule,
            name=name,
            jitter=jitter or 0.0,
            overlap=parse_choice(overlap, get_args(Overlap), "--overlap"),
            misfire=parse_choice(misfire, get_args(Misfire), "--misfire"),
            timeout=timeout,
            assistant_id=assistant,
            thread_id=thread,
            timezone=timezone,
            enabled=not paused,
            end_time=None if until is None else _seconds(until),
            metadata=parse_object(metadata, "--metadata"),
            payload={name: value for name, value in payload.items() if value is not None},
        )
    context.answer(created, created.schedule_id)


def _seconds(text: str) -> float:
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"--until must be a time such as 2030-12-31T12:00+01:00, not {text!r}"
        ) from None
    return (parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)).timestamp()


@app.client_command("trigger")
async def trigger_cron(context: CommandContext, cron_id: IdArgument) -> None:
    """Fire a cron now, also if it is paused."""
    async with context.connect() as connection:
        print_fired(context, await connection.schedules.trigger(cron_id), "Cron", cron_id)


def print_fired(context: CommandContext, firing: Firing, noun: str, name: str) -> None:
    """Print the result of a manual firing. Exit with code 1 if it could not start anything."""
    if firing.skipped is not None:
        message = f"{noun} {name} was skipped ({firing.skipped}): what it started before has not ended."
    elif firing.started_id is None:
        message = f"{noun} {name} could not start anything: {firing.error}"
    else:
        message = f"{noun} {name} started {firing.started_id}."
    context.answer(firing, message)
    if firing.started_id is None and firing.skipped is None:
        raise typer.Exit(1)


@app.client_command("pause")
async def pause_cron(context: CommandContext, cron_id: IdArgument) -> None:
    """Pause a cron until it is resumed."""
    async with context.connect() as connection:
        print_next(context, await connection.schedules.pause(cron_id), "Cron")


@app.client_command("resume")
async def resume_cron(context: CommandContext, cron_id: IdArgument) -> None:
    """Resume a paused cron, from its next time on."""
    async with context.connect() as connection:
        print_next(context, await connection.schedules.resume(cron_id), "Cron")


def print_next(context: CommandContext, schedule: Schedule, noun: str) -> None:
    """Print when a schedule fires next, or why it does not."""
    state = _next(schedule)
    message = f"is {state}" if state in ("paused", "ended") else f"fires {state}"
    context.answer(schedule, f"{noun} {schedule.name or schedule.schedule_id} {message}.")


@app.client_command("delete")
async def delete_cron(context: CommandContext, cron_id: IdArgument, yes: YesOption = False) -> None:
    """Delete a cron; its runs are kept."""
    await removing(context, "cron", cron_id, lambda connection: connection.schedules.delete(cron_id), yes=yes)
