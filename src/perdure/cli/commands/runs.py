"""`perdure run`: ask for runs, look at them, follow them, end them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from perdure.cli.shell.arguments import choice_of, confirm, input_of, json_of, object_of
from perdure.cli.shell.options import CommandContext, DurationOption, LimitOption, YesOption, at_desk
from perdure.cli.shell.output import (
    TIMED_OUT,
    ago,
    facts_table,
    human_duration,
    make_table,
    parse_duration,
    shorten,
    warn,
)

if TYPE_CHECKING:
    from perdure.cli.shell.target import Connection
    from perdure.streams.model import Event
    from perdure.threads.records import CancelAction, Run, RunEnd, RunRequest, RunStatus

FAILED = 1
EMPTY = """No runs yet. With a worker that has an agent called greet (see `perdure agents`), try:

  perdure run create greet '{"name": "Ann"}' --wait"""

app = typer.Typer(help="Ask for runs, follow them, end them.", no_args_is_help=True)

IdArgument = Annotated[str, typer.Argument(metavar="RUN_ID")]
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="[RUN_ID]...")]
ThreadOption = Annotated[str | None, typer.Option("--thread", metavar="ID", help="The thread.")]
ActionOption = Annotated[
    str, typer.Option(help="interrupt keeps what the run saved, rollback takes it back.")
]
ModesOption = Annotated[
    list[str] | None, typer.Option("--event", "-e", help="Only events of this name; repeat it for more.")
]


@app.command("create")
@at_desk
async def create_run(
    desk: CommandContext,
    assistant: Annotated[str, typer.Argument(metavar="ASSISTANT", help="An assistant, or an agent's name.")],
    input: Annotated[
        str | None, typer.Argument(metavar="[INPUT]", help="JSON; @FILE reads it there.")
    ] = None,
    thread: ThreadOption = None,
    new_thread: Annotated[
        bool, typer.Option("--new-thread", help="Make the thread if it does not exist.")
    ] = False,
    temporary: Annotated[
        bool, typer.Option("--temporary", help="Without a thread: remove the run when it has ended.")
    ] = False,
    strategy: Annotated[
        str, typer.Option(help="If the thread is busy: reject, enqueue, interrupt or rollback.")
    ] = "reject",
    resume: Annotated[
        str | None, typer.Option(metavar="JSON", help="The answer that the thread's interrupt waits for.")
    ] = None,
    config: Annotated[str | None, typer.Option(help="A JSON object.")] = None,
    context: Annotated[str | None, typer.Option(help="A JSON object.")] = None,
    metadata: Annotated[str | None, typer.Option(help="A JSON object.")] = None,
    after: Annotated[
        float | None,
        typer.Option(parser=parse_duration, metavar="TIME", help="Start after 30s, 10m, 1h, and no sooner."),
    ] = None,
    webhook: Annotated[str | None, typer.Option(metavar="URL", help="Where its end is told.")] = None,
    priority: Annotated[int, typer.Option(help="A higher one is claimed first.")] = 0,
    max_attempts: Annotated[int | None, typer.Option(min=1, help="How often it is tried.")] = None,
    limit: Annotated[
        float | None,
        typer.Option("--limit", parser=parse_duration, metavar="TIME", help="How long an attempt may take."),
    ] = None,
    key: Annotated[str | None, typer.Option(help="An idempotency key: the same key asks once.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end, and print the values.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Print its events until its end.")] = False,
    timeout: DurationOption = None,
) -> None:
    """Ask for a run of an assistant: on a thread, or on a new one."""
    request = _request(
        assistant_id=assistant,
        input=None if input is None else input_of(input),
        command=None if resume is None else {"resume": json_of(resume, "--resume")},
        thread_id=thread,
        if_not_exists="create" if new_thread else "reject",
        on_completion="delete" if temporary else "keep",
        multitask_strategy=strategy,
        config=object_of(config, "--config") or {},
        context=object_of(context, "--context"),
        metadata=object_of(metadata, "--metadata") or {},
        after_seconds=after,
        webhook=webhook,
        priority=priority,
        max_attempts=max_attempts,
        timeout_seconds=limit,
    )
    async with desk.target.open(create=True) as connection:
        run = await connection.threads.create_run(request, idempotency_key=key)
        if watch:
            raise typer.Exit(await _watch(desk, connection, run.run_id, "-1", None, timeout))
        if wait:
            raise typer.Exit(await _wait(desk, connection, run.run_id, timeout))
    if desk.as_json:
        desk.output.document(run)
    else:
        desk.output.say(run.run_id)


def _request(**values: Any) -> RunRequest:
    import msgspec

    from perdure.threads.records import RunRequest

    try:
        return msgspec.convert(values, RunRequest)
    except msgspec.ValidationError as error:
        raise typer.BadParameter(str(error)) from None


@app.command("list", hidden=True)
@app.command("ls")
@at_desk
async def list_runs(
    desk: CommandContext,
    status: Annotated[
        str | None,
        typer.Option("--status", "-s", help="pending, running, success, error, timeout, interrupted, …"),
    ] = None,
    thread: ThreadOption = None,
    limit: LimitOption = 20,
) -> None:
    """List the newest runs."""
    from perdure.threads.records import RUN_STATUSES

    chosen = cast("RunStatus | None", choice_of(status, RUN_STATUSES, "--status"))
    async with desk.target.open() as connection:
        page = await connection.threads.list_runs(status=chosen, thread_id=thread, limit=min(limit, 1000))
    if desk.as_json:
        desk.output.document({"items": page.items, "total": page.total})
    elif not page:
        desk.output.say(EMPTY if status is None and thread is None else "No run is like that.")
    else:
        columns = ("run_id", "agent", "status", "attempt", "created", "thread_id", "input")
        desk.output.show(make_table(columns, map(_row, page)))
        if page.total > len(page):
            desk.output.say(f"{len(page)} of {page.total}; --limit shows more")


def _row(run: Run) -> tuple[Any, ...]:
    thread = None if run.temporary else run.thread_id
    created = (
        ago(run.created_at)
        if run.created_at <= time.time()
        else f"in {human_duration(run.created_at - time.time())}"
    )
    return run.run_id, run.agent, run.status, run.attempt or None, created, thread, shorten(run.kwargs.input)


@app.command("show", hidden=True)
@app.command("get")
@at_desk
async def get_run(desk: CommandContext, run_id: IdArgument) -> None:
    """Show a run, and why it stands where it stands."""
    async with desk.target.open() as connection:
        run = await connection.threads.get_run(run_id)
        why = await connection.threads.why(run_id)
    if desk.as_json:
        desk.output.document({"run": run, "why": why})
        return
    rows = (
        ("run", run.run_id),
        ("status", run.status),
        ("why", why.sentence),
        ("agent", run.agent),
        ("assistant", run.assistant_id),
        ("thread", f"{run.thread_id}{' (ends with it)' if run.temporary else ''}"),
        ("strategy", run.multitask_strategy),
        ("attempts", run.attempt),
        ("created", ago(run.created_at)),
        ("ended", ago(run.ended_at)),
        ("error", None if run.error is None else f"{run.error.error}: {run.error.message}"),
        ("webhook", run.webhook),
        ("metadata", run.metadata or None),
        ("input", run.kwargs.input),
    )
    desk.output.show(facts_table(rows))


@app.command("stream", hidden=True)
@app.command("watch")
@at_desk
async def watch_run(
    desk: CommandContext,
    run_id: IdArgument,
    after: Annotated[str, typer.Option(metavar="EVENT_ID", help="Go on after this event.")] = "-1",
    event: ModesOption = None,
    timeout: DurationOption = None,
) -> None:
    """Print the events of a run, from its beginning until its end; it may be over already."""
    async with desk.target.open() as connection:
        await connection.threads.get_run(run_id)
        code = await _watch(desk, connection, run_id, after, event, timeout)
    raise typer.Exit(code)


async def _watch(
    desk: CommandContext,
    connection: Connection,
    run_id: str,
    after: str,
    only: Sequence[str] | None,
    timeout: float | None,
) -> int:
    import asyncio

    status = None
    try:
        async with asyncio.timeout(timeout):
            async for burst in connection.threads.stream_run(run_id, after):
                for each in burst:
                    status = _ended(each) or status
                    if not only or each.event in only:
                        _tell(desk, each)
    except TimeoutError:
        warn(f"timed_out: run {run_id} has not ended after {timeout:g} s")
        return TIMED_OUT
    return _code(status)


def _tell(desk: CommandContext, event: Event) -> None:
    from perdure.kernel.codec import decode_json

    if desk.as_json:
        desk.output.line({"id": event.id, "event": event.event, "data": decode_json(event.body)})
        return
    from rich.text import Text

    clock = time.strftime("%H:%M:%S", time.localtime(event.ms / 1000))
    line = Text.assemble((clock, "dim"), f"  {event.event:<9} ", shorten(event.body, 10_000))
    desk.output.console.print(line, soft_wrap=True)


def _ended(event: Event) -> str | None:
    from perdure.kernel.codec import decode_json

    return str(decode_json(event.body)["status"]) if event.event == "end" else None


def _code(status: str | None) -> int:
    return FAILED if status in ("error", "timeout") else 0


@app.command("wait")
@at_desk
async def wait_for_run(desk: CommandContext, run_id: IdArgument, timeout: DurationOption = None) -> None:
    """Wait for the end of a run, and print its thread's values then; 1 if it failed, 5 if time is up."""
    async with desk.target.open() as connection:
        code = await _wait(desk, connection, run_id, timeout)
    raise typer.Exit(code)


async def _wait(desk: CommandContext, connection: Connection, run_id: str, timeout: float | None) -> int:
    try:
        end: RunEnd = await connection.threads.join_run(run_id, timeout)
    except TimeoutError:
        warn(f"timed_out: run {run_id} has not ended after {timeout:g} s")
        return TIMED_OUT
    if desk.as_json:
        desk.output.document(end)
    elif end.run.error is not None:
        warn(f"{end.run.status}: {end.run.error.error}: {end.run.error.message}")
    elif end.interrupts:
        asked = ", ".join(shorten(each.value, 200) for each in end.interrupts)
        desk.output.say(f"{end.run.status}; it waits for an answer to {asked}")
        desk.output.say(f"  perdure run create {end.run.agent} --thread {end.run.thread_id} --resume '…'")
    else:
        desk.output.say(shorten(end.values, 100_000) if end.run.status == "success" else end.run.status)
    return _code(end.run.status)


@app.command("cancel")
@at_desk
async def cancel_runs(
    desk: CommandContext,
    run_ids: IdsArgument = None,
    status: Annotated[str | None, typer.Option("--status", "-s", help="pending, running or all.")] = None,
    action: ActionOption = "interrupt",
    wait: Annotated[bool, typer.Option("--wait", help="Until whoever executes them has stopped.")] = False,
    yes: YesOption = False,
) -> None:
    """End runs by their ids, or all that are pending or running."""
    if bool(run_ids) == bool(status):
        raise typer.BadParameter("name runs by their ids, or give --status")
    choice_of(status, ("pending", "running", "all"), "--status")
    how = cast("CancelAction", choice_of(action, ("interrupt", "rollback"), "--action"))
    if status is not None and not yes:
        confirm(f"This ends every run that is {status if status != 'all' else 'pending or running'}. Go on?")
    async with desk.target.open() as connection:
        threads = connection.threads
        if run_ids and (wait or len(run_ids) == 1):
            ended = [await threads.cancel_run(each, action=how, wait=wait) for each in dict.fromkeys(run_ids)]
        else:
            ended = await threads.cancel_runs(run_ids=run_ids or None, status=status, action=how)
    tell_ended(desk, ended)


def tell_ended(desk: CommandContext, ended: Sequence[Run]) -> None:
    """Say which runs were ended."""
    if desk.as_json:
        desk.output.document({"changed": [{"run_id": each.run_id, "status": each.status} for each in ended]})
        return
    for each in ended:
        desk.output.say(f"{each.run_id} is {each.status}")
    if not ended:
        desk.output.say("No run is like that.")


@app.command("delete")
@at_desk
async def delete_run(desk: CommandContext, run_id: IdArgument, yes: YesOption = False) -> None:
    """Remove a run with its checkpoints and its events; its trace stays."""
    if not yes:
        confirm(f"This removes run {run_id} with what it saved. Go on?")
    async with desk.target.open() as connection:
        await connection.threads.delete_run(run_id)
    tell_deleted(desk, "run_id", run_id)


def tell_deleted(desk: CommandContext, name: str, id: str) -> None:
    if desk.as_json:
        desk.output.document({name: id, "deleted": True})
    else:
        desk.output.say(f"{id} is deleted")
