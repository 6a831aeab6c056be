"""`perdure cron`: runs that are started again and again, at their times."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.commands.runs import tell_deleted
from perdure.cli.commands.threads import TermsOption
from perdure.cli.shell.arguments import confirm, input_of, metadata_of, object_of
from perdure.cli.shell.options import CommandContext, LimitOption, YesOption, at_desk
from perdure.cli.shell.output import ago, facts_table, human_duration, make_table, shorten

if TYPE_CHECKING:
    from perdure.schedules.records import Firing, Schedule

EMPTY = """No crons yet. A cron runs an assistant at the times of its schedule, while a server runs:

  perdure cron create greet '0 9 * * MON-FRI' '{"name": "Ann"}' --timezone Europe/Berlin

Five fields are minute, hour, day of month, month and day of week; a sixth before them is the second."""

app = typer.Typer(help="Look at crons, make, pause and remove them.", no_args_is_help=True)

IdArgument = Annotated[str, typer.Argument(metavar="CRON_ID")]


def _next(schedule: Schedule) -> str:
    if not schedule.enabled:
        return "paused"
    if schedule.next_at is None:
        return "ended"
    left = schedule.next_at - time.time()
    return f"in {human_duration(left)}" if left > 0 else "now"


def _when(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _show(desk: CommandContext, schedule: Schedule, firings: list[Firing] | None = None) -> None:
    if desk.as_json:
        desk.output.document(schedule if firings is None else _with_firings(schedule, firings))
        return
    rows = (
        ("cron", schedule.schedule_id),
        ("schedule", schedule.expression),
        ("time zone", schedule.timezone or "UTC"),
        ("next", f"{_next(schedule)} ({_when(schedule.next_at)})" if schedule.next_at else _next(schedule)),
        ("end", _when(schedule.end_time)),
        ("assistant", schedule.assistant_id),
        ("thread", schedule.thread_id),
        (
            "fired",
            f"{schedule.fired} times, the last {ago(schedule.fired_at)}" if schedule.fired_at else None,
        ),
        ("refused", f"{schedule.refused} times" if schedule.refused else None),
        ("last run", schedule.started_id),
        ("last error", schedule.error),
        ("payload", schedule.payload or None),
        ("metadata", schedule.metadata or None),
    )
    desk.output.show(facts_table(rows))
    if firings:
        desk.output.say("")
        table = [(_when(each.due_at), each.started_id, each.error) for each in firings]
        desk.output.show(make_table(("due", "run_id", "error"), table))


def _with_firings(schedule: Schedule, firings: list[Firing]) -> dict[str, Any]:
    return {**schedule.model_dump(), "firings": firings}


@app.command("list", hidden=True)
@app.command("ls")
@at_desk
async def list_crons(
    desk: CommandContext,
    assistant: Annotated[str | None, typer.Option(metavar="ID", help="Only of this assistant.")] = None,
    thread: Annotated[str | None, typer.Option(metavar="ID", help="Only on this thread.")] = None,
    enabled: Annotated[
        bool | None, typer.Option("--enabled/--paused", help="Only those that fire, or that do not.")
    ] = None,
    metadata: TermsOption = None,
    limit: LimitOption = 20,
) -> None:
    """List crons, the newest first."""
    wanted: dict[str, Any] = {"assistant_id": assistant, "thread_id": thread, "enabled": enabled}
    wanted["metadata"] = metadata_of(metadata)
    async with desk.target.open() as connection:
        page = await connection.schedules.search(**wanted, limit=min(limit, 1000))
    if desk.as_json:
        desk.output.document({"items": page.items, "total": page.total})
    elif not page:
        unasked = all(value is None for value in wanted.values())
        desk.output.say(EMPTY if unasked else "No cron is like that.")
    else:
        columns = ("cron_id", "schedule", "time zone", "next", "last", "runs", "errors", "last error")
        desk.output.show(make_table(columns, map(_row, page)))
        if page.total > len(page):
            desk.output.say(f"{len(page)} of {page.total}; --limit shows more")


def _row(schedule: Schedule) -> tuple[Any, ...]:
    return (
        schedule.schedule_id,
        schedule.expression,
        schedule.timezone or "UTC",
        _next(schedule),
        ago(schedule.fired_at),
        schedule.fired,
        schedule.refused,
        None if schedule.error is None else shorten(schedule.error),
    )


@app.command("get", hidden=True)
@app.command("show")
@at_desk
async def show_cron(desk: CommandContext, cron_id: IdArgument, limit: LimitOption = 10) -> None:
    """Show a cron, and what came of its latest times."""
    async with desk.target.open() as connection:
        found = await connection.schedules.get(cron_id)
        firings = await connection.schedules.firings(cron_id, limit=limit)
    _show(desk, found, firings)


@app.command("create")
@at_desk
async def create_cron(
    desk: CommandContext,
    assistant: Annotated[str, typer.Argument(metavar="ASSISTANT", help="Its id, or the name of an agent.")],
    schedule: Annotated[str, typer.Argument(metavar="SCHEDULE", help="Such as '*/5 * * * *' or @daily.")],
    input: Annotated[str | None, typer.Argument(metavar="INPUT", help="JSON, or @FILE.")] = None,
    timezone: Annotated[
        str | None, typer.Option("--timezone", "-z", metavar="NAME", help="Such as Europe/Berlin; else UTC.")
    ] = None,
    thread: Annotated[str | None, typer.Option(metavar="ID", help="Run on this thread.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the thread that each run gets.")] = False,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Its end, as 2030-12-31T12:00.")] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Do not fire until it is resumed.")] = False,
    strategy: Annotated[
        str | None, typer.Option(help="If its thread is busy: enqueue, reject, interrupt or rollback.")
    ] = None,
    config: Annotated[str | None, typer.Option(help="A JSON object.")] = None,
    context: Annotated[str | None, typer.Option(help="A JSON object.")] = None,
    webhook: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the end of a run is told.")
    ] = None,
    metadata: Annotated[str | None, typer.Option(help="A JSON object.")] = None,
) -> None:
    """Run an assistant at the times of a schedule: on a thread, or each time on a new one."""
    if keep and thread is not None:
        raise typer.BadParameter("--keep is for runs without a thread; a thread of its own stays anyway")
    payload = {
        "input": None if input is None else input_of(input),
        "config": object_of(config, "--config"),
        "context": object_of(context, "--context"),
        "webhook": webhook,
        "multitask_strategy": strategy,
        "on_run_completed": "keep" if keep else None,
    }
    async with desk.target.open() as connection:
        made = await connection.schedules.create(
            schedule,
            assistant_id=assistant,
            thread_id=thread,
            timezone=timezone,
            enabled=not paused,
            end_time=None if until is None else _seconds(until),
            metadata=object_of(metadata, "--metadata"),
            payload={name: value for name, value in payload.items() if value is not None},
        )
    if desk.as_json:
        desk.output.document(made)
    else:
        desk.output.say(made.schedule_id)


def _seconds(text: str) -> float:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"--until is a time such as 2030-12-31T12:00+01:00, not {text!r}") from None
    return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()


@app.command("pause")
@at_desk
async def pause_cron(desk: CommandContext, cron_id: IdArgument) -> None:
    """Let a cron fire no more, until it is resumed."""
    async with desk.target.open() as connection:
        _tell(desk, await connection.schedules.pause(cron_id))


@app.command("resume")
@at_desk
async def resume_cron(desk: CommandContext, cron_id: IdArgument) -> None:
    """Let a cron fire again, from its next time on."""
    async with desk.target.open() as connection:
        _tell(desk, await connection.schedules.resume(cron_id))


def _tell(desk: CommandContext, schedule: Schedule) -> None:
    if desk.as_json:
        desk.output.document(schedule)
        return
    state = _next(schedule)
    said = (
        f"fires {state}"
        if schedule.next_at is not None
        else f"is {state}"
        if state == "paused"
        else "has ended"
    )
    desk.output.say(f"{schedule.schedule_id} {said}")


@app.command("rm")
@app.command("delete", hidden=True)
@at_desk
async def delete_cron(desk: CommandContext, cron_id: IdArgument, yes: YesOption = False) -> None:
    """Remove a cron; its runs stay."""
    if not yes:
        confirm(f"This removes cron {cron_id}. Go on?")
    async with desk.target.open() as connection:
        await connection.schedules.delete(cron_id)
    tell_deleted(desk, "cron_id", cron_id)
