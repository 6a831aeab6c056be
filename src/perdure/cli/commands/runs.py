"""`perdure run`: create, list, show, watch, wait for, cancel and delete runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.shell.ids import AssistantArgument, ThreadFilter, id_argument, id_option
from perdure.cli.shell.options import (
    CommandContext,
    CommandGroup,
    ConfigOption,
    ContextOption,
    LimitOption,
    MetadataOption,
    TimeoutOption,
    YesOption,
    confirm,
    duration,
    flag,
    number,
    optional_choice,
    parse_choice,
    parse_json,
    parse_object,
    read_input,
    text,
)
from perdure.cli.shell.output import (
    TIMED_OUT,
    ago,
    cost_text,
    error_text,
    human_duration,
    print_error,
    shorten,
    tokens_text,
    warn,
)
from perdure.cli.shell.results import listing, pages, removing, showing

if TYPE_CHECKING:
    from perdure.cli.shell.target import CommandConnection
    from perdure.streams.model import StreamEvent
    from perdure.threads.records import CancelAction, MultitaskStrategy, Run, RunEnd, RunRequest

FAILED = 1
EMPTY = """No runs yet. If a worker has an agent called greet (see `perdure agents`), try:

  perdure run create greet '{"name": "Ann"}' --wait"""
COLUMNS = ("run_id", "agent", "status", "took", "error", "created", "thread_id", "attempt", "input")

app = CommandGroup("Create, show, watch and cancel runs.")

IdArgument = Annotated[str, id_argument("RUN_ID", "run")]
IdsArgument = Annotated[list[str] | None, id_argument("RUN_ID", "run", help="IDs of runs.")]
InputArgument = Annotated[
    str | None, typer.Argument(metavar="INPUT", help="Input as JSON, or @FILE to read it from a file.")
]
ActionOption = Annotated[
    str,
    text("ACTION", "interrupt keeps the state the run saved; rollback discards it.", "--action"),
]


@app.client_command("create")
async def create_run(
    context: CommandContext,
    assistant: AssistantArgument,
    input: InputArgument = None,
    thread: Annotated[
        str | None,
        id_option(
            "THREAD_ID",
            "Run on this thread (default: a new one).",
            "--thread",
            kinds=["thread"],
            unless="new_thread",
        ),
    ] = None,
    new_thread: Annotated[bool, flag("--new-thread", help="Create the thread if it does not exist.")] = False,
    temporary: Annotated[
        bool,
        flag(
            "--temporary",
            help="Without --thread: delete the run and its thread when it succeeds.",
        ),
    ] = False,
    strategy: Annotated[
        str,
        text("STRATEGY", "If the thread is busy: reject, enqueue, interrupt or rollback.", "--strategy"),
    ] = "reject",
    resume: Annotated[
        str | None, text("JSON", "Answer to the question that paused the thread.", "--resume")
    ] = None,
    config: ConfigOption = None,
    run_context: ContextOption = None,
    metadata: MetadataOption = None,
    after: Annotated[float | None, duration("Delay before the start", "--after")] = None,
    webhook: Annotated[str | None, text("URL", "URL to POST when the run ends.", "--webhook")] = None,
    priority: Annotated[int, number("Higher priorities are claimed first.", "--priority")] = 0,
    max_attempts: Annotated[
        int | None, number("Maximum number of attempts.", "--max-attempts", min=1)
    ] = None,
    limit: Annotated[float | None, duration("Timeout of each attempt", "--limit")] = None,
    key: Annotated[
        str | None, text("KEY", "Idempotency key: a repeated request returns the same run.", "--key")
    ] = None,
    wait: Annotated[bool, flag("--wait", help="Wait until the run ends and print its values.")] = False,
    watch: Annotated[bool, flag("--watch", help="Print events until the run ends.")] = False,
    timeout: TimeoutOption = None,
) -> None:
    """Create a run of an assistant and print its ID."""
    request = _request(
        assistant_id=assistant,
        input=None if input is None else read_input(input),
        command=None if resume is None else {"resume": parse_json(resume, "--resume")},
        thread_id=thread,
        if_not_exists="create" if new_thread else "reject",
        on_completion="delete" if temporary else None,
        multitask_strategy=parse_strategy(strategy),
        config=parse_object(config, "--config") or {},
        context=parse_object(run_context, "--context"),
        metadata=parse_object(metadata, "--metadata") or {},
        after_seconds=after,
        webhook=webhook,
        priority=priority,
        max_attempts=max_attempts,
        timeout_seconds=limit,
    )
    async with context.connect(create=True) as connection:
        run = await connection.threads.create_run(request, idempotency_key=key)
        if watch:
            raise typer.Exit(await _watch(context, connection, run.run_id, "-1", None, timeout))
        if wait:
            raise typer.Exit(await _wait(context, connection, run.run_id, timeout))
    context.answer(run, run.run_id)


def parse_strategy(strategy: str) -> MultitaskStrategy:
    """Parse --strategy."""
    from perdure.threads.records import MULTITASK_STRATEGIES

    return parse_choice(strategy, MULTITASK_STRATEGIES, "--strategy")


def _request(**values: Any) -> RunRequest:
    import msgspec

    from perdure.kernel.checks import explain
    from perdure.threads.records import RunRequest

    try:
        return msgspec.convert(values, RunRequest)
    except msgspec.ValidationError as error:
        raise typer.BadParameter(explain(error, RunRequest, "the run request")) from None


@app.client_command("list")
async def list_runs(
    context: CommandContext,
    status: Annotated[
        str | None,
        text(
            "STATUS",
            "Filter by status: pending, running, success, error, timeout, interrupted or rollback.",
            "--status",
            "-s",
        ),
    ] = None,
    thread: ThreadFilter = None,
    since: Annotated[float | None, duration("Only runs created within this time", "--since")] = None,
    limit: LimitOption = 20,
) -> None:
    """List runs, newest first."""
    from perdure.threads.records import RUN_STATUSES

    chosen = optional_choice(status, RUN_STATUSES, "--status")
    start = 0.0 if since is None else time.time() - since
    async with context.connect() as connection:
        runs = await pages(
            lambda limit, cursor: connection.threads.list_runs(
                status=chosen, thread_id=thread, limit=limit, cursor=cursor
            ),
            limit,
            lambda run: run.created_at >= start,
        )
    filtered = status is not None or thread is not None or since is not None
    listing(context, runs, COLUMNS, _row, noun="runs", empty=EMPTY, filtered=filtered, hint=since is None)


def _row(run: Run) -> tuple[Any, ...]:
    thread = None if run.temporary else run.thread_id
    wait = run.created_at - time.time()
    created = ago(run.created_at) if wait <= 0 else f"in {human_duration(wait)}"
    error = None if run.error is None else shorten(error_text(run.error))
    attempt, input = run.attempt or None, shorten(run.kwargs.input)
    return run.run_id, run.agent, run.status, _took(run), error, created, thread, attempt, input


def _took(run: Run) -> str | None:
    """Return how long a run took from its creation to its end, or until now."""
    if run.attempt == 0:
        return None
    return human_duration(max((run.ended_at or time.time()) - run.created_at, 0.0))


@app.client_command("show")
async def show_run(context: CommandContext, run_id: IdArgument) -> None:
    """Show a run, why it is waiting or how it ended, and what its spans count."""
    async with context.connect() as connection:
        run = await connection.threads.get_run(run_id)
        why = await connection.diagnostics.why(run_id)
        figures = next(iter(await connection.rollouts.figures(rollout_id=[run.run_id])), None)
        spans, trace_id = await _count_spans(connection, run.run_id)
        kept = await _kept_trace(connection, trace_id)
    rows = (
        ("run", run.run_id),
        ("status", run.status),
        ("why", why.sentence),
        ("agent", run.agent),
        ("assistant", run.assistant_id),
        ("thread", f"{run.thread_id}{' (temporary)' if run.temporary else ''}"),
        ("session", run.session_id),
        ("strategy", run.multitask_strategy),
        ("attempts", run.attempt),
        ("created", ago(run.created_at)),
        ("took", _took(run)),
        ("ended", ago(run.ended_at)),
        ("error", error_text(run.error)),
        ("webhook", run.webhook),
        ("metadata", run.metadata or None),
        ("input", run.kwargs.input),
        ("tokens", figures and tokens_text(figures.input_tokens, figures.output_tokens)),
        ("cost", figures and cost_text(figures.cost)),
        ("spans", f"{spans}; perdure span list {run.run_id}" if spans else None),
        ("trace", trace_id),
        ("kept apart", kept and f"{kept}; its spans belong to no attempt alone"),
    )
    document = {
        "run": run,
        "why": why,
        "figures": figures,
        "spans": spans,
        "trace_id": trace_id,
        "kept_trace": kept,
    }
    showing(context, document, rows)


async def _count_spans(connection: CommandConnection, run_id: str) -> tuple[int | None, str | None]:
    """Return the number of a run's spans and their trace, or None if they were deleted."""
    from perdure.errors import SpansEvicted

    try:
        page = await connection.store.query_spans(run_id, limit=1)
    except SpansEvicted:
        return None, None
    return page.total, next((span.trace_id for span in page), None)


async def _kept_trace(connection: CommandConnection, trace_id: str | None) -> str | None:
    """Return the rollout with the spans of a trace that belong to no attempt."""
    if trace_id is None:
        return None
    kept = await connection.store.get_rollout_by_id(f"ro-{trace_id}")
    return None if kept is None else kept.rollout_id


@app.client_command("watch", "stream")
async def watch_run(
    context: CommandContext,
    run_id: IdArgument,
    after: Annotated[
        str, typer.Option(metavar="EVENT_ID", help="Start after this event.", show_default=False)
    ] = "-1",
    event: Annotated[
        list[str] | None, text("NAME", "Filter by event name; repeatable.", "--event", "-e")
    ] = None,
    timeout: TimeoutOption = None,
) -> None:
    """Print the events of a run from its start until it ends."""
    async with context.connect() as connection:
        await connection.threads.get_run(run_id)
        code = await _watch(context, connection, run_id, after, event, timeout)
    raise typer.Exit(code)


async def _watch(
    context: CommandContext,
    connection: CommandConnection,
    run_id: str,
    after: str,
    only: Sequence[str] | None,
    timeout: float | None,
) -> int:
    status = None
    try:
        async with asyncio.timeout(timeout):
            async for burst in connection.threads.stream_run(run_id, after):
                for entry in burst:
                    status = _end_status(entry) or status
                    if not only or entry.event in only:
                        _print_event(context, entry)
    except TimeoutError:
        return _timed_out(run_id, timeout)
    return _exit_code(status)


def _timed_out(run_id: str, timeout: float | None) -> int:
    print_error("timed_out", f"run {run_id} did not end within {timeout:g} s", TIMED_OUT)
    return TIMED_OUT


def _print_event(context: CommandContext, event: StreamEvent) -> None:
    from perdure.kernel.codec import decode_json

    if context.as_json:
        context.output.line({"id": event.id, "event": event.event, "data": decode_json(event.body)})
        return
    from rich.text import Text

    clock = time.strftime("%H:%M:%S", time.localtime(event.ms / 1000))
    line = Text.assemble((clock, "dim"), f"  {event.event:<9} ", shorten(event.body, 10_000))
    context.output.console.print(line, soft_wrap=True)


def _end_status(event: StreamEvent) -> str | None:
    from perdure.kernel.codec import decode_json

    return str(decode_json(event.body)["status"]) if event.event == "end" else None


def _exit_code(status: str | None) -> int:
    return FAILED if status in ("error", "timeout") else 0


@app.client_command("wait")
async def wait_for_run(context: CommandContext, run_id: IdArgument, timeout: TimeoutOption = None) -> None:
    """Wait until a run ends and print its values (exit code 1 if it failed, 5 on timeout)."""
    async with context.connect() as connection:
        await connection.threads.get_run(run_id)
        code = await _wait(context, connection, run_id, timeout)
    raise typer.Exit(code)


async def _wait(
    context: CommandContext, connection: CommandConnection, run_id: str, timeout: float | None
) -> int:
    try:
        end = await connection.threads.join_run(run_id, timeout)
    except TimeoutError:
        return _timed_out(run_id, timeout)
    if context.as_json:
        context.output.document(end)
    elif end.run.error is not None:
        warn(f"{end.run.status}: {error_text(end.run.error)}")
    elif end.interrupts:
        _print_question(context, end)
    else:
        context.output.print(shorten(end.values, 100_000) if end.run.status == "success" else end.run.status)
    return _exit_code(end.run.status)


def _print_question(context: CommandContext, end: RunEnd) -> None:
    questions = ", ".join(shorten(interrupt.value, 200) for interrupt in end.interrupts)
    context.output.print(f"Paused. The agent asks: {questions}")
    context.output.print("Answer with:")
    context.output.print(
        f"  perdure run create {end.run.agent} --thread {end.run.thread_id} --resume '\"ANSWER\"' --wait"
    )


@app.client_command("cancel")
async def cancel_runs(
    context: CommandContext,
    run_ids: IdsArgument = None,
    status: Annotated[
        str | None,
        text("STATUS", "Cancel all runs with this status: pending, running or all.", "--status", "-s"),
    ] = None,
    action: ActionOption = "interrupt",
    wait: Annotated[bool, flag("--wait", help="Wait until the worker has stopped.")] = False,
    yes: YesOption = False,
) -> None:
    """Cancel runs by ID, or all that are pending or running."""
    if bool(run_ids) == bool(status):
        raise typer.BadParameter("give run IDs or --status")
    chosen: Any = optional_choice(status, ("pending", "running", "all"), "--status")
    how = cancel_action(action)
    if chosen is not None and not yes:
        confirm(f"Cancel all {'pending and running' if chosen == 'all' else chosen} runs?")
    async with context.connect() as connection:
        threads = connection.threads
        if run_ids and (wait or len(run_ids) == 1):
            ids = dict.fromkeys(run_ids)
            cancelled = [await threads.cancel_run(run_id, action=how, wait=wait) for run_id in ids]
        else:
            cancelled = await threads.cancel_runs(run_ids=run_ids or None, status=chosen, action=how)
    print_cancelled(context, cancelled)


@app.client_command("retry")
async def retry_run(
    context: CommandContext,
    run_id: IdArgument,
    strategy: Annotated[
        str,
        text("STRATEGY", "If the thread is busy: reject, enqueue, interrupt or rollback.", "--strategy"),
    ] = "reject",
    wait: Annotated[bool, flag("--wait", help="Wait until the run ends and print its values.")] = False,
    timeout: TimeoutOption = None,
) -> None:
    """Run again what has ended: a new run with the same input, on the same thread; prints its ID."""
    how = parse_strategy(strategy)
    async with context.connect() as connection:
        run = await connection.bulk.retry_run(run_id, multitask_strategy=how)
        if wait:
            raise typer.Exit(await _wait(context, connection, run.run_id, timeout))
    context.answer(run, run.run_id)


def cancel_action(action: str) -> CancelAction:
    """Parse --action."""
    from perdure.threads.records import CANCEL_ACTIONS

    return parse_choice(action, CANCEL_ACTIONS, "--action")


def print_cancelled(context: CommandContext, cancelled: Sequence[Run]) -> None:
    """Print cancelled runs with their new status."""
    changed = [{"run_id": run.run_id, "status": run.status} for run in cancelled]
    lines = [f"{run.run_id} is {run.status}" for run in cancelled]
    context.answer({"changed": changed}, "\n".join(lines) or "No runs match.")


@app.client_command("delete")
async def delete_run(context: CommandContext, run_id: IdArgument, yes: YesOption = False) -> None:
    """Delete a run with its checkpoints and events; its trace is kept."""
    await removing(
        context,
        "run",
        run_id,
        lambda connection: connection.threads.delete_run(run_id),
        yes=yes,
        along="its checkpoints and events",
    )
