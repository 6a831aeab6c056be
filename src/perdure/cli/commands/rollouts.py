"""`perdure rollout`: list, show, watch, cancel, retry, enqueue."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.shell.arguments import confirm, inputs_of, json_of
from perdure.cli.shell.options import CommandContext, DurationOption, LimitOption, YesOption, at_desk
from perdure.cli.shell.output import ago, make_table, parse_duration, shorten

if TYPE_CHECKING:
    from perdure import EnqueueRolloutRequest, LightningStore, Rollout, Span
    from perdure.rollouts.records import RolloutStatus

A_PAGE = 200
SPANS_SEARCHED = 500
INPUT_SHOWN = 2000
EMPTY = """No rollouts yet. Try:

  perdure rollout enqueue '{"question": 1}'"""

app = typer.Typer(help="Look at rollouts, and act on them.", no_args_is_help=True)

StatusOption = Annotated[
    list[str] | None, typer.Option("--status", "-s", help="Only with this status; repeat it for more.")
]
IdArgument = Annotated[str, typer.Argument(metavar="ROLLOUT_ID")]
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="[ROLLOUT_ID]...")]


def check_statuses(given: Sequence[str] | None) -> list[RolloutStatus] | None:
    """Statuses as they were typed, or the message that lists them."""
    from perdure.rollouts.records import ROLLOUT_STATUSES

    known: dict[str, RolloutStatus] = {status: status for status in ROLLOUT_STATUSES}
    for status in given or ():
        if status not in known:
            raise typer.BadParameter(f"--status is one of {', '.join(known)}, not {status!r}")
    return [known[status] for status in given] if given else None


async def newest(
    store: LightningStore, statuses: Sequence[RolloutStatus] | None, limit: int, since: float | None
) -> tuple[list[Rollout], int]:
    """The newest rollouts, and how many there are in all; `since` is a stretch of seconds."""
    start = None if since is None else time.time() - since
    found: list[Rollout] = []
    while True:
        size = min(A_PAGE, limit - len(found))
        page = await store.query_rollouts(
            status_in=statuses, sort_by="start_time", sort_order="desc", limit=size, offset=len(found)
        )
        recent = [each for each in page if start is None or each.start_time >= start]
        found += recent
        if len(recent) < size or len(found) >= limit:
            return found, page.total


@app.command("ls", hidden=True)
@app.command("list")
@at_desk
async def list_rollouts(
    desk: CommandContext,
    status: StatusOption = None,
    since: Annotated[
        float | None,
        typer.Option(parser=parse_duration, metavar="TIME", help="Only of the last 30s, 10m, 1h."),
    ] = None,
    limit: LimitOption = 20,
) -> None:
    """List the newest rollouts."""
    statuses = check_statuses(status)
    async with desk.target.open() as connection:
        found, total = await newest(connection.store, statuses, limit, since)
    if desk.as_json:
        desk.output.document({"items": found, "total": total})
    elif not found:
        desk.output.say(EMPTY if statuses is None and since is None else "No rollout is like that.")
    else:
        columns = ("rollout_id", "status", "attempt", "worker", "started", "input")
        desk.output.show(make_table(columns, map(_row, found)))
        if total > len(found) and since is None:
            desk.output.say(f"{len(found)} of {total}; --limit shows more")


def _row(rollout: Rollout) -> tuple[Any, ...]:
    attempt = getattr(rollout, "attempt", None)
    return (
        rollout.rollout_id,
        rollout.status,
        f"{attempt.sequence_id} of {rollout.config.max_attempts}" if attempt else None,
        attempt.worker_id if attempt else None,
        ago(rollout.start_time),
        shorten(rollout.input),
    )


def last_error(spans: Iterable[Span]) -> str | None:
    """What the latest span that failed says of it."""
    failed = [span for span in spans if span.status.status_code == "ERROR"]
    if not failed:
        return None
    span = max(failed, key=lambda span: (span.end_time or span.start_time or 0.0, span.sequence_id))
    return f"{span.name}: {span.status.description or 'error'}"


async def find(store: LightningStore, rollout_id: str) -> Rollout:
    """The rollout, or NotFound."""
    from perdure.errors import NotFound

    rollout = await store.get_rollout_by_id(rollout_id)
    if rollout is None:
        raise NotFound(f"there is no rollout {rollout_id}")
    return rollout


@app.command("get", hidden=True)
@app.command("show")
@at_desk
async def show_rollout(desk: CommandContext, rollout_id: IdArgument) -> None:
    """Show a rollout: where it stands and why, its attempts, its input."""
    from perdure.errors import NotSupported

    async with desk.target.open() as connection:
        store = connection.store
        rollout = await find(store, rollout_id)
        attempts = list(await store.query_attempts(rollout_id))
        spans = (await store.query_spans(rollout_id, limit=1)).total
        latest = await store.query_spans(rollout_id, "latest", sort_order="desc", limit=SPANS_SEARCHED)
        try:
            why: str | None = (await connection.threads.why(rollout_id)).sentence
        except NotSupported:
            # A store of somebody's own behind our server knows no reasons.
            why = None
    error = last_error(latest) if attempts and attempts[-1].status != "succeeded" else None
    if desk.as_json:
        desk.output.document(
            {"rollout": rollout, "attempts": attempts, "spans": spans, "why": why, "error": error}
        )
    else:
        told = f"{why or ''} The last error: {error}.".strip() if error else why
        _print_rollout(desk, rollout, attempts, spans, told)


def _print_rollout(
    desk: CommandContext, rollout: Rollout, attempts: Sequence[Any], spans: int, why: str | None
) -> None:
    from rich.table import Table
    from rich.text import Text

    from perdure.cli.shell.render import STYLES

    facts = Table(box=None, show_header=False, padding=(0, 3, 0, 0))
    status = Text(rollout.status, style=STYLES.get(rollout.status, "bold"))
    for name, value in (
        ("rollout", Text(rollout.rollout_id, style="bold")),
        ("status", status),
        ("why", Text(why or "-")),
        ("started", Text(ago(rollout.start_time) or "-")),
        ("mode", Text(rollout.mode or "-")),
        ("resources", Text(rollout.resources_id or "-")),
        ("config", Text(shorten(rollout.config, INPUT_SHOWN))),
        ("metadata", Text(shorten(rollout.metadata, INPUT_SHOWN))),
        ("input", Text(shorten(rollout.input, INPUT_SHOWN))),
        ("spans", Text(f"{spans}; perdure span list {rollout.rollout_id}" if spans else "0")),
    ):
        facts.add_row(Text(name, style="dim"), value)
    desk.output.show(facts)
    if attempts:
        desk.output.say("")
        columns = ("attempt", "attempt_id", "status", "worker", "started", "last heard of")
        rows = [
            (
                each.sequence_id,
                each.attempt_id,
                each.status,
                each.worker_id,
                ago(each.start_time),
                ago(each.last_heartbeat_time),
            )
            for each in attempts
        ]
        desk.output.show(make_table(columns, rows))


@app.command("watch")
@at_desk
async def watch_rollouts(
    desk: CommandContext,
    rollout_ids: IdsArgument = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on for ever, also when all have ended.")
    ] = False,
    timeout: DurationOption = None,
) -> None:
    """Tell of every change until the rollouts have ended: those named, or all that have not ended yet."""
    from perdure.cli.shell.watching import watch

    async with desk.target.open() as connection:
        code = await watch(connection, desk.output, rollout_ids or (), follow=follow, timeout=timeout)
    raise typer.Exit(code)


@app.command("cancel")
@at_desk
async def cancel_rollouts(
    desk: CommandContext, rollout_ids: IdsArgument = None, status: StatusOption = None, yes: YesOption = False
) -> None:
    """Cancel rollouts by their ids, or all that have a status."""
    from perdure import is_finished

    async with desk.target.open() as connection:
        chosen = await _choose(connection.store, rollout_ids, check_statuses(status))
        ready = [each for each in chosen if not is_finished(each)]
        await _move(desk, connection.cancel, chosen, ready, "has ended already", yes)


@app.command("retry")
@at_desk
async def retry_rollouts(
    desk: CommandContext, rollout_ids: IdsArgument = None, status: StatusOption = None, yes: YesOption = False
) -> None:
    """Queue rollouts that have ended once more."""
    from perdure import is_finished

    async with desk.target.open() as connection:
        chosen = await _choose(connection.store, rollout_ids, check_statuses(status))
        ready = [each for each in chosen if is_finished(each)]
        await _move(desk, connection.retry, chosen, ready, "has not ended yet", yes)


async def _choose(
    store: LightningStore, rollout_ids: Sequence[str] | None, statuses: Sequence[RolloutStatus] | None
) -> list[Rollout]:
    if bool(rollout_ids) == bool(statuses):
        raise typer.BadParameter("name rollouts by their ids, or give --status")
    if rollout_ids:
        return [await find(store, each) for each in dict.fromkeys(rollout_ids)]
    return list(await store.query_rollouts(status_in=statuses, sort_by="start_time"))


async def _move(
    desk: CommandContext,
    move: Callable[[str], Awaitable[Rollout]],
    chosen: Sequence[Rollout],
    ready: Sequence[Rollout],
    otherwise: str,
    yes: bool,
) -> None:
    from perdure.errors import Conflict

    if len(chosen) == 1 and not ready:
        raise Conflict(f"rollout {chosen[0].rollout_id} {otherwise}: it is {chosen[0].status}")
    if len(ready) > 1 and not yes:
        confirm(f"This changes {len(ready)} rollouts. Go on?")
    changed, unchanged = [], [each.rollout_id for each in chosen if each not in ready]
    for each in ready:
        try:
            changed.append(await move(each.rollout_id))
        except Conflict:
            # It was quicker than we.
            unchanged.append(each.rollout_id)
    _tell_moved(desk, changed, unchanged, otherwise)


def _tell_moved(
    desk: CommandContext, changed: Sequence[Rollout], unchanged: Sequence[str], otherwise: str
) -> None:
    if desk.as_json:
        moved = [{"rollout_id": each.rollout_id, "status": each.status} for each in changed]
        desk.output.document({"changed": moved, "unchanged": unchanged})
        return
    for each in changed:
        desk.output.say(f"{each.rollout_id} is {each.status}")
    for rollout_id in unchanged:
        desk.output.say(f"{rollout_id} {otherwise}")
    if not changed and not unchanged:
        desk.output.say("No rollout is like that.")


@app.command("enqueue")
@at_desk
async def enqueue_rollouts(
    desk: CommandContext,
    input: Annotated[
        str,
        typer.Argument(metavar="INPUT", help="JSON; @FILE reads it there; - reads one a line from stdin."),
    ],
    mode: Annotated[str | None, typer.Option(help="train, val or test.")] = None,
    resources_id: Annotated[str | None, typer.Option("--resources", help="The id of resources.")] = None,
    metadata: Annotated[str | None, typer.Option(help="A JSON object.")] = None,
    queue: Annotated[str, typer.Option(help="The queue it waits in.")] = "default",
    priority: Annotated[int, typer.Option(help="A higher one is claimed first.")] = 0,
    delay: DurationOption = None,
    max_attempts: Annotated[int, typer.Option(min=1, help="How many attempts there may be.")] = 1,
    timeout_seconds: Annotated[float | None, typer.Option(help="How long an attempt may run.")] = None,
    unresponsive_seconds: Annotated[float | None, typer.Option(help="How long it may be silent.")] = None,
    retry_on: Annotated[
        list[str] | None,
        typer.Option(
            help="An attempt's status that is tried again: failed, timeout, unresponsive; repeatable."
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="An idempotency key: the same key is queued once.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Tell of every change until it has ended.")] = False,
    timeout: DurationOption = None,
) -> None:
    """Queue a rollout, or one for every line of stdin."""
    from perdure.cli.shell.watching import watch

    inputs = inputs_of(input)
    if key is not None and len(inputs) > 1:
        raise typer.BadParameter("--key names one rollout, and there are several")
    options = {
        "mode": mode,
        "resources_id": resources_id,
        "metadata": None if metadata is None else json_of(metadata, "--metadata"),
        "queue": queue,
        "priority": priority,
        "not_before": None if delay is None else time.time() + delay,
        "idempotency_key": key,
        "config": {
            "max_attempts": max_attempts,
            "timeout_seconds": timeout_seconds,
            "unresponsive_seconds": unresponsive_seconds,
            "retry_condition": retry_on or [],
        },
    }
    requests = [_request({**options, "input": each}) for each in inputs]
    async with desk.target.open(create=True) as connection:
        queued = list(await connection.store.enqueue_many_rollouts(requests))
        _tell_queued(desk, queued)
        if wait:
            ids = [each.rollout_id for each in queued]
            raise typer.Exit(await watch(connection, desk.output, ids, timeout=timeout))


def _request(values: dict[str, Any]) -> EnqueueRolloutRequest:
    from perdure import EnqueueRolloutRequest

    return EnqueueRolloutRequest.model_validate(values)


def _tell_queued(desk: CommandContext, queued: Sequence[Rollout]) -> None:
    if desk.as_json:
        desk.output.document(queued[0] if len(queued) == 1 else queued)
        return
    for each in queued:
        desk.output.say(each.rollout_id)
