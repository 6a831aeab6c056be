"""`perdure rollout`: enqueue, list, show, watch, cancel and retry rollouts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.shell.ids import ROLLOUTS, complete_queue, id_argument, id_option, part_argument
from perdure.cli.shell.options import (
    CommandContext,
    CommandGroup,
    LimitOption,
    MetadataOption,
    TimeoutOption,
    YesOption,
    confirm,
    duration,
    flag,
    number,
    parse_choices,
    parse_json,
    read_inputs,
    text,
)
from perdure.cli.shell.output import ago, cost_text, human_duration, shorten, tokens_text, warn
from perdure.cli.shell.results import CommandResults, listing, showing
from perdure.cli.shell.target import CommandConnection

if TYPE_CHECKING:
    from perdure import Attempt, EnqueueRolloutRequest, LightningStore, Rollout, Span
    from perdure.diagnostics.comparison import Pair
    from perdure.diagnostics.path import PathState
    from perdure.rollouts.records import RolloutStatus
    from perdure.spans.rollout_figures import RolloutFigures

SPANS_SEARCHED = 500
EMPTY = """No rollouts yet. Try:

  perdure rollout enqueue '{"question": 1}'"""
COLUMNS = ("rollout_id", "status", "attempt", "worker", "started", "reward", "input")
NO_TAKER = ("no_worker", "no_agent")
"""Rules by which a rollout waits for a missing worker or agent."""
FIGURES_A_CALL = 100
"""Maximum ids that fit the URL of one request."""
PATH_COLUMNS = ("status", "since", "for", "attempt", "worker", "cause")
PAIR_COLUMNS = ("", "left", "right", "differences")
ATTEMPT_COLUMNS = ("attempt", "attempt_id", "status", "worker", "started", "last heartbeat")

app = CommandGroup("Enqueue, show, watch, cancel and retry rollouts.")

StatusOption = Annotated[
    list[str] | None,
    text("STATUS", "Filter by status, such as queuing or failed; repeatable.", "--status", "-s"),
]
IdArgument = Annotated[str, id_argument("ROLLOUT_ID", *ROLLOUTS)]
IdsArgument = Annotated[list[str] | None, id_argument("ROLLOUT_ID", *ROLLOUTS, help="IDs of rollouts.")]


def _statuses(given: Sequence[str] | None) -> list[RolloutStatus] | None:
    from perdure.rollouts.records import ROLLOUT_STATUSES

    return parse_choices(given, ROLLOUT_STATUSES, "--status")


async def attempt_ids(connection: CommandConnection, given: Mapping[str, Any], start: str) -> list[str]:
    """List the attempts of a rollout, newest first."""
    attempts = await connection.store.query_attempts(given["rollout_id"])
    return [attempt.attempt_id for attempt in reversed(list(attempts))]


@app.client_command("list")
async def list_rollouts(
    context: CommandContext,
    status: StatusOption = None,
    since: Annotated[float | None, duration("Only rollouts started within this time")] = None,
    kept_traces: Annotated[
        bool, flag("--kept-traces", help="List the traces that are kept without a rollout instead.")
    ] = False,
    limit: LimitOption = 20,
) -> None:
    """List rollouts, newest first."""
    from perdure.kernel.checks import MAX_PAGE

    statuses = _statuses(status)
    start = 0.0 if since is None else time.time() - since
    async with context.connect() as connection:
        if kept_traces:
            page = await connection.rollouts.search(
                status=statuses, limit=min(limit, MAX_PAGE), kept_traces=True
            )
        else:
            page = await connection.store.query_rollouts(
                status_in=statuses, sort_by="start_time", sort_order="desc", limit=limit
            )
        rollouts = CommandResults([rollout for rollout in page if rollout.start_time >= start], page.total)
        figures = await _figures(connection, [rollout.rollout_id for rollout in rollouts])
    filtered = statuses is not None or since is not None
    listing(
        context,
        rollouts,
        COLUMNS,
        lambda rollout: _row(rollout, figures.get(rollout.rollout_id)),
        noun="rollouts",
        empty=EMPTY,
        filtered=filtered,
        document=lambda rollout: _document(rollout, figures.get(rollout.rollout_id)),
        hint=since is None,
    )


async def _figures(connection: CommandConnection, rollout_ids: Sequence[str]) -> dict[str, RolloutFigures]:
    """Return tokens and rewards of rollouts; a third-party store has none."""
    from perdure.errors import NotSupported

    figures: list[RolloutFigures] = []
    try:
        for start in range(0, len(rollout_ids), FIGURES_A_CALL):
            some = list(rollout_ids[start : start + FIGURES_A_CALL])
            figures += await connection.rollouts.figures(rollout_id=some)
    except NotSupported:
        return {}
    return {figure.rollout_id: figure for figure in figures}


def _document(rollout: Rollout, figures: RolloutFigures | None) -> Any:
    reward = None if figures is None else figures.reward
    return rollout if reward is None else {**rollout.model_dump(), "reward": reward}


def _row(rollout: Rollout, figures: RolloutFigures | None) -> tuple[Any, ...]:
    attempt = getattr(rollout, "attempt", None)
    return (
        rollout.rollout_id,
        rollout.status,
        f"{attempt.sequence_id} of {rollout.config.max_attempts}" if attempt else None,
        attempt.worker_id if attempt else None,
        ago(rollout.start_time),
        None if figures is None or figures.reward is None else f"{figures.reward:g}",
        shorten(rollout.input),
    )


def last_error(spans: Iterable[Span]) -> str | None:
    """Return the error of the latest failed span."""
    failed = [span for span in spans if span.status.status_code == "ERROR"]
    if not failed:
        return None
    span = max(failed, key=lambda span: (span.end_time or span.start_time or 0.0, span.sequence_id))
    return f"{span.name}: {span.status.description or 'error'}"


async def find(store: LightningStore, rollout_id: str) -> Rollout:
    """Return the rollout. Raise NotFound if it does not exist."""
    from perdure.errors import NotFound

    rollout = await store.get_rollout_by_id(rollout_id)
    if rollout is None:
        raise NotFound(f"rollout {rollout_id} not found")
    return rollout


@app.client_command("show")
async def show_rollout(context: CommandContext, rollout_id: IdArgument) -> None:
    """Show a rollout, why it is waiting or how it ended, and its attempts."""
    from perdure.errors import NotSupported

    async with context.connect() as connection:
        store = connection.store
        rollout = await find(store, rollout_id)
        attempts = list(await store.query_attempts(rollout_id))
        spans = (await store.query_spans(rollout_id, limit=1)).total
        latest = await store.query_spans(rollout_id, "latest", sort_order="desc", limit=SPANS_SEARCHED)
        figures = (await _figures(connection, [rollout_id])).get(rollout_id)
        try:
            why: str | None = (await connection.diagnostics.why(rollout_id)).sentence
        except NotSupported:
            # A server with a third-party store knows no reasons.
            why = None
    error = last_error(latest) if attempts and attempts[-1].status != "succeeded" else None
    rows = (
        ("rollout", rollout.rollout_id),
        ("status", rollout.status),
        ("why", f"{why or ''} Last error: {error}.".strip() if error else why or "-"),
        ("started", ago(rollout.start_time) or "-"),
        ("mode", rollout.mode),
        ("resources", rollout.resources_id),
        ("config", shorten(rollout.config, 2000)),
        ("metadata", shorten(rollout.metadata, 2000) if rollout.metadata else None),
        ("input", shorten(rollout.input, 2000)),
        ("tokens", figures and tokens_text(figures.input_tokens, figures.output_tokens)),
        ("cost", figures and cost_text(figures.cost)),
        ("reward", None if figures is None or figures.reward is None else f"{figures.reward:g}"),
        ("spans", f"{spans}; perdure span list {rollout.rollout_id}" if spans else "0"),
    )
    document = {
        "rollout": rollout,
        "attempts": attempts,
        "spans": spans,
        "figures": figures,
        "why": why,
        "error": error,
    }
    showing(context, document, rows, ATTEMPT_COLUMNS, map(_attempt_row, attempts))


def _attempt_row(attempt: Attempt) -> tuple[Any, ...]:
    return (
        attempt.sequence_id,
        attempt.attempt_id,
        attempt.status,
        attempt.worker_id,
        ago(attempt.start_time),
        ago(attempt.last_heartbeat_time),
    )


@app.client_command("path")
async def show_path(context: CommandContext, rollout_id: IdArgument) -> None:
    """Show the statuses that a rollout, run or phase was in, and what led to each."""
    async with context.connect() as connection:
        path = await connection.diagnostics.path(rollout_id)
    rows = (
        ("rollout", path.rollout_id),
        ("kind", path.kind),
        ("status", path.status),
        *(("not known", text) for text in path.unknown),
    )
    showing(context, path, rows, PATH_COLUMNS, map(_path_row, path.items))


def _path_row(state: PathState) -> tuple[Any, ...]:
    since = None if state.since is None else f"{'' if state.exact else '~'}{ago(state.since)}"
    took = None
    if state.since is not None and state.until is not None:
        took = human_duration(max(state.until - state.since, 0))
    return state.run_status or state.status, since, took, state.attempt, state.worker_id, state.cause


@app.client_command("compare")
async def compare_attempts(
    context: CommandContext,
    rollout_id: IdArgument,
    left: Annotated[
        str | None, part_argument("LEFT", "Number or ID of an attempt; the last but one.", attempt_ids)
    ] = None,
    right: Annotated[
        str | None, part_argument("RIGHT", "Number or ID of another attempt; the last.", attempt_ids)
    ] = None,
    limit: LimitOption = 100,
) -> None:
    """Compare two attempts of a rollout, run or phase, span by span."""
    async with context.connect() as connection:
        comparison = await connection.diagnostics.compare(rollout_id, left=left, right=right, limit=limit)
    rows = (
        ("left", f"attempt {comparison.left.sequence_id}, {comparison.left.status}"),
        ("right", f"attempt {comparison.right.sequence_id}, {comparison.right.status}"),
        ("result", comparison.sentence),
    )
    only = left is None and right is None and comparison.left.attempt_id == comparison.right.attempt_id
    if only and not context.as_json:
        context.output.print(f"{rollout_id} has one attempt only: there is nothing to compare it with.")
        return
    showing(context, comparison, rows, PAIR_COLUMNS, map(_pair_row, comparison.items))


def _pair_row(pair: Pair) -> tuple[Any, ...]:
    differences = ", ".join(
        f"{difference.field}: {shorten(difference.left, 30)} / {shorten(difference.right, 30)}"
        for difference in pair.differences
    )
    return pair.kind, pair.left and pair.left.name, pair.right and pair.right.name, differences


@app.client_command("watch")
async def watch_rollouts(
    context: CommandContext,
    rollout_ids: Annotated[
        list[str] | None, id_argument("ROLLOUT_ID", "rollout", help="IDs of rollouts.")
    ] = None,
    follow: Annotated[bool, flag("--follow", "-f", help="Continue after all rollouts have ended.")] = False,
    timeout: TimeoutOption = None,
) -> None:
    """Print every status change until the rollouts end: the given ones, or all unfinished ones."""
    from perdure.cli.commands.rollout_watch import watch

    async with context.connect() as connection:
        code = await watch(connection, context.output, rollout_ids or (), follow=follow, timeout=timeout)
    raise typer.Exit(code)


@app.client_command("cancel")
async def cancel_rollouts(
    context: CommandContext,
    rollout_ids: IdsArgument = None,
    status: StatusOption = None,
    yes: YesOption = False,
) -> None:
    """Cancel rollouts by ID, or all with a status."""
    await _change(context, rollout_ids, status, retry=False, yes=yes)


@app.client_command("retry")
async def retry_rollouts(
    context: CommandContext,
    rollout_ids: IdsArgument = None,
    status: StatusOption = None,
    yes: YesOption = False,
) -> None:
    """Retry ended rollouts by ID, or all with a status."""
    await _change(context, rollout_ids, status, retry=True, yes=yes)


async def _change(
    context: CommandContext,
    rollout_ids: Sequence[str] | None,
    status: Sequence[str] | None,
    *,
    retry: bool,
    yes: bool,
) -> None:
    """Cancel rollouts that have not ended, or retry those that have; report the others."""
    from perdure import is_finished
    from perdure.errors import Conflict

    statuses, reason = _statuses(status), "has not ended yet" if retry else "has already ended"
    if bool(rollout_ids) == bool(statuses):
        raise typer.BadParameter("give rollout IDs or --status")
    async with context.connect() as connection:
        change = connection.rollouts.retry if retry else connection.rollouts.cancel
        chosen = await _choose(connection.store, rollout_ids, statuses)
        ready = [rollout for rollout in chosen if is_finished(rollout) == retry]
        if len(chosen) == 1 and not ready:
            raise Conflict(f"rollout {chosen[0].rollout_id} {reason}: it is {chosen[0].status}")
        if len(ready) > 1 and not yes:
            confirm(f"{'Retry' if retry else 'Cancel'} {len(ready)} rollouts?")
        changed, unchanged = [], [rollout.rollout_id for rollout in chosen if rollout not in ready]
        for rollout in ready:
            try:
                changed.append(await change(rollout.rollout_id))
            except Conflict:
                # Its status has changed since it was read.
                unchanged.append(rollout.rollout_id)
    document = [{"rollout_id": rollout.rollout_id, "status": rollout.status} for rollout in changed]
    lines = [f"{rollout.rollout_id} is {rollout.status}" for rollout in changed]
    lines += [f"{rollout_id} {reason}" for rollout_id in unchanged]
    context.answer({"changed": document, "unchanged": unchanged}, "\n".join(lines) or "No rollouts match.")


async def _choose(
    store: LightningStore, rollout_ids: Sequence[str] | None, statuses: Sequence[RolloutStatus] | None
) -> list[Rollout]:
    if rollout_ids:
        return [await find(store, rollout_id) for rollout_id in dict.fromkeys(rollout_ids)]
    return list(await store.query_rollouts(status_in=statuses, sort_by="start_time"))


@app.client_command("enqueue")
async def enqueue_rollouts(
    context: CommandContext,
    input: Annotated[
        str,
        typer.Argument(
            metavar="INPUT", help="Input as JSON, @FILE to read a file, or - to read one per line from stdin."
        ),
    ],
    mode: Annotated[str | None, text("MODE", "Mode: train, val or test.", "--mode")] = None,
    resources_id: Annotated[
        str | None, id_option("RESOURCES_ID", "Resources to use.", "--resources", kinds=["resources"])
    ] = None,
    metadata: MetadataOption = None,
    queue: Annotated[str, text("NAME", "Queue name.", "--queue", complete=complete_queue)] = "default",
    priority: Annotated[int, number("Higher priorities are claimed first.", "--priority")] = 0,
    delay: Annotated[float | None, duration("Delay before the start")] = None,
    max_attempts: Annotated[int, number("Maximum number of attempts.", "--max-attempts", min=1)] = 1,
    timeout_seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Timeout of each attempt.")
    ] = None,
    unresponsive_seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Maximum time without a heartbeat.")
    ] = None,
    retry_on: Annotated[
        list[str] | None,
        text(
            "STATUS",
            "Retry an attempt that ends with this status: failed, timeout or unresponsive; repeatable.",
            "--retry-on",
        ),
    ] = None,
    key: Annotated[
        str | None, text("KEY", "Idempotency key: a repeated request returns the same rollout.", "--key")
    ] = None,
    wait: Annotated[bool, flag("--wait", help="Print every status change until it ends.")] = False,
    timeout: TimeoutOption = None,
) -> None:
    """Enqueue a rollout, or one for each line of stdin, and print its ID."""
    from perdure.cli.commands.rollout_watch import watch

    inputs = read_inputs(input)
    if key is not None and len(inputs) > 1:
        raise typer.BadParameter("--key needs a single input")
    options = {
        "mode": mode,
        "resources_id": resources_id,
        "metadata": None if metadata is None else parse_json(metadata, "--metadata"),
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
    requests = [_request({**options, "input": input}) for input in inputs]
    async with context.connect(create=True) as connection:
        queued = list(await connection.store.enqueue_many_rollouts(requests))
        ids = [rollout.rollout_id for rollout in queued]
        context.answer(queued[0] if len(queued) == 1 else queued, "\n".join(ids))
        if wait:
            await _warn_of_nobody(connection, ids)
            raise typer.Exit(await watch(connection, context.output, ids, timeout=timeout))


async def _warn_of_nobody(connection: CommandConnection, rollout_ids: Sequence[str]) -> None:
    """Warn on stderr if no live worker would claim the first of these rollouts."""
    from perdure.errors import NotFound, NotSupported

    try:
        why = await connection.diagnostics.why(rollout_ids[0])
    except (NotFound, NotSupported, IndexError):
        # A third-party store knows no reasons.
        return
    if why.rule in NO_TAKER:
        warn(why.sentence)


def _request(values: dict[str, Any]) -> EnqueueRolloutRequest:
    from perdure import EnqueueRolloutRequest

    return EnqueueRolloutRequest.model_validate(values)
