"""`perdure why`, `perdure stats`, `perdure usage` and `perdure health`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.shell.ids import EXPLAINED, id_argument
from perdure.cli.shell.options import (
    CommandContext,
    client_command,
    duration,
    flag,
    number,
    parse_choice,
    text,
)
from perdure.cli.shell.output import cost_text, facts_table, human_duration, parse_duration, shorten
from perdure.cli.shell.results import listing, showing
from perdure.kernel.errors import PerdureError, Unauthorized

if TYPE_CHECKING:
    from rich.table import Table

    from perdure.statistics.model import QueuePoint, UsagePoint

INTERVAL_SECONDS = 2.0
HEALTHY = ("ok", "ready", "healthy")
SERVING = "SERVING"
COUNTED = {
    "total_rollouts": "rollouts of the queue",
    "total_attempts": "attempts of rollouts, runs and phases",
    "total_spans": "spans",
    "total_resources": "versions of resources",
    "total_workers": "workers, alive or not",
    "total_span_bytes": "size of the spans",
    "name": "store",
}
"""Descriptions of a namespace's statistics. Runs and phases are rollouts of other kinds."""
NOT_CHECKED = "not checked: pip install 'perdure[grpc]'"


@client_command
async def why(
    context: CommandContext,
    id: Annotated[
        str,
        id_argument("ID", *EXPLAINED, help="Any ID: of a run, thread, rollout, attempt, worker, …"),
    ],
) -> None:
    """Show why a run, thread, rollout or anything else with an ID is waiting, or how it ended."""
    async with context.connect() as connection:
        reason = await connection.diagnostics.why(id)
    context.answer(reason, reason.sentence)


@client_command
async def stats(
    context: CommandContext,
    watch: Annotated[bool, flag("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    every: Annotated[
        float | None,
        typer.Option(parser=parse_duration, metavar="DURATION", help="Refresh interval (default: 2s)."),
    ] = None,
    times: Annotated[int | None, number("Stop after this many refreshes.", "--times", min=1)] = None,
    since: Annotated[float | None, duration("Show the queues over time, so far back", "--since")] = None,
) -> None:
    """Show queue depth, workers, connection pools and undelivered webhooks, or the queues over time."""
    if since is not None:
        await _history(context, since)
        return
    count = times if times is not None else None if watch else 1
    async with context.connect() as connection:
        number = 0
        while True:
            statistics = await connection.diagnostics.stats()
            _show(context, statistics, several=count != 1, first=number == 0)
            number += 1
            if number == count:
                return
            await asyncio.sleep(every or INTERVAL_SECONDS)


async def _history(context: CommandContext, seconds: float) -> None:
    """Print the queues over time, a line for each step of each queue."""
    async with context.connect() as connection:
        history = await connection.diagnostics.queue_history(since=max(time.time() - seconds, 0.0))
    if context.as_json:
        context.output.document(history)
        return
    listing(
        context,
        history.items,
        (
            "time",
            "queue",
            "ready",
            "delayed",
            "waiting",
            "claimed",
            "wait p50",
            "wait p95",
            "ended",
            "failed",
        ),
        _point,
        noun="minutes",
        empty="Nothing was queued in this time. A server writes the queues down once a minute.",
    )


def _point(point: QueuePoint) -> tuple[Any, ...]:
    return (
        datetime.fromtimestamp(point.time).strftime("%m-%d %H:%M"),
        point.queue,
        point.ready,
        point.delayed,
        point.waiting,
        point.claimed,
        None if point.wait_seconds_p50 is None else human_duration(point.wait_seconds_p50),
        None if point.wait_seconds_p95 is None else human_duration(point.wait_seconds_p95),
        point.succeeded + point.cancelled,
        point.failed,
    )


@client_command
async def usage(
    context: CommandContext,
    by: Annotated[str, text("NAME", "Sum by model, agent, user or kind of step.", "--by")] = "model",
    since: Annotated[float | None, duration("How far back to look (default: 1d)", "--since")] = None,
) -> None:
    """Show tokens, cost, steps and errors by model, agent, user or kind of step."""
    from perdure.statistics.model import USAGE_BY

    async with context.connect() as connection:
        begin = None if since is None else max(time.time() - since, 0.0)
        usage = await connection.diagnostics.usage(by=parse_choice(by, USAGE_BY, "--by"), since=begin)
    if context.as_json:
        context.output.document(usage)
        return
    listing(
        context,
        usage_sums(usage.items),
        (by, "steps", "errors", "time", "input", "cached", "output", "cost"),
        lambda row: row,
        noun="steps",
        empty="Nothing was used in this time. Spans with tokens are added to their hour within a minute.",
    )


def usage_sums(points: Sequence[UsagePoint]) -> list[tuple[Any, ...]]:
    """Build a row for each name, the highest cost or input first."""
    by_name: dict[str, list[UsagePoint]] = {}
    for point in points:
        by_name.setdefault(point.name, []).append(point)

    def total(name: str, field: str) -> Any:
        return sum(getattr(point, field) or 0 for point in by_name[name])

    names = sorted(by_name, key=lambda name: (-total(name, "cost"), -total(name, "input_tokens"), name))
    return [
        (
            name or "unknown",
            *(total(name, field) for field in ("steps", "errors")),
            human_duration(total(name, "seconds")),
            *(total(name, field) for field in ("input_tokens", "cached_tokens", "output_tokens")),
            cost_text(total(name, "cost") or None),
        )
        for name in names
    ]


def _show(context: CommandContext, statistics: Mapping[str, Any], *, several: bool, first: bool) -> None:
    if context.as_json:
        (context.output.line if several else context.output.document)(statistics)
        return
    if context.output.console.is_terminal and not first:
        context.output.console.clear()
    elif not first:
        context.output.print("")
    context.output.show(stats_table(statistics))


def stats_table(stats: Mapping[str, Any]) -> Table:
    """Build a table of statistics, a line for each subject."""
    webhooks = stats["outbox"]
    rows = [("runs", f"{stats['n_pending']} pending, {stats['n_running']} running")]
    if stats["min_age_secs"] is not None:
        oldest, median = (
            human_duration(stats["min_age_secs"]),
            human_duration(stats["med_age_secs"] or 0.0),
        )
        rows.append(("waiting time", f"oldest {oldest}, median {median}"))
    rows.append(("workers", _workers(stats["workers"])))
    for name, pool in stats["pools"].items():
        used, limit = pool["in_use_connections"], pool["max_connections"]
        rows.append((f"{name} pool", f"{used} of {limit} in use, {pool['idle_connections']} idle"))
    rows.append(("webhooks", f"{webhooks['pending']} pending, {webhooks['dead']} dead"))
    return facts_table(rows)


def _workers(workers: Mapping[str, int]) -> str:
    if not workers["alive"]:
        return "none alive; start one with `perdure worker`"
    slots = f"{workers['active']} of {workers['max']} slots busy, {workers['available']} free"
    return f"{workers['alive']} alive, {slots}"


@client_command
async def health(
    context: CommandContext,
    grpc: Annotated[
        str | None, text("HOST:PORT", "Check this gRPC server only, as grpc_health_probe does.", "--grpc")
    ] = None,
    service: Annotated[
        str, text("NAME", "gRPC service to check (default: the whole server).", "--service")
    ] = "",
) -> None:
    """Check the health of a server or database (exit code 1 if unhealthy)."""
    if grpc is not None:
        facts: dict[str, Any] = {"grpc": await _grpc_health(context, grpc, service)}
        rows = list(facts.items())
        document = facts
    else:
        facts, statistics = await _get_health(context, service)
        rows = [*facts.items(), *statistics.items()]
        document = {**facts, "statistics": statistics}
    if context.as_json:
        context.output.document(document)
    else:
        shown = [(COUNTED.get(name, name.replace("_", " ")), _fact(name, value)) for name, value in rows]
        showing(context, document, shown)
    if facts.get("status", "ok") not in HEALTHY or facts.get("grpc", SERVING) not in (SERVING, NOT_CHECKED):
        raise typer.Exit(1)


def _fact(name: str, value: Any) -> str | None:
    """Format a fact of a server for people; return None for empty ones."""
    if name == "uptime":
        return human_duration(value)
    if name.endswith("_bytes"):
        return f"{value / 1e6:.1f} MB"
    return None if value in ([], {}, "") else shorten(value)


async def _get_health(context: CommandContext, service: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the health of a server or database, over HTTP and gRPC, and its statistics."""
    async with context.connect() as connection:
        facts = await connection.health()
        address = await connection.grpc_address()
        try:
            statistics = dict(await connection.store.statistics())
        except Unauthorized:
            # Health is public; statistics need a token.
            statistics = {}
    if address is not None:
        facts["grpc"] = await _grpc_health(context, address, service)
    return facts, statistics


async def _grpc_health(context: CommandContext, address: str, service: str) -> str:
    """Return the status of a gRPC server, or why it has none."""
    try:
        from perdure.client.grpc import GrpcMemory
    except ModuleNotFoundError:
        return NOT_CHECKED
    from perdure.client.tls import ClientTls

    files = ClientTls.from_environment()
    secure = (context.target.url or "").startswith("https://") or files.ca_file is not None
    async with GrpcMemory(address, tls=files if secure else None, patience=0.0) as memory:
        try:
            return await memory.health(service)
        except PerdureError as error:
            return f"{error.code}: {error.message}; {getattr(error, 'hint', '')}".rstrip("; ")
