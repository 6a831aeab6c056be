"""`perdure why` and `perdure stats`: what holds something, and how everything stands."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.shell.options import CommandContext, at_desk
from perdure.cli.shell.output import facts_table, human_duration, parse_duration

if TYPE_CHECKING:
    from rich.table import Table

    from perdure.cli.shell.target import Connection
    from perdure.schedules.why import ScheduleWhy
    from perdure.threads.why import Why

LOOK_SECONDS = 2.0


@at_desk
async def why(
    desk: CommandContext,
    id: Annotated[str, typer.Argument(metavar="ID", help="Of a rollout, a run, a thread or a cron.")],
) -> None:
    """Say why a rollout, a run, a thread or a cron stands where it stands, and by which rule."""
    async with desk.target.open() as connection:
        found = await _why(connection, id)
    if desk.as_json:
        desk.output.document(found)
    else:
        desk.output.say(found.sentence)


async def _why(connection: Connection, id: str) -> Why | ScheduleWhy:
    from perdure.kernel.errors import NotFound
    from perdure.schedules.why import explain

    try:
        return await connection.threads.why(id)
    except NotFound as unknown:
        try:
            schedule = await connection.schedules.get(id)
        except NotFound:
            raise unknown from None
    return explain(schedule, time.time())


@at_desk
async def stats(
    desk: CommandContext,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")] = False,
    every: Annotated[
        float | None,
        typer.Option("--every", parser=parse_duration, metavar="TIME", help="How often to look."),
    ] = None,
    times: Annotated[int | None, typer.Option(min=1, help="Look so many times, and end.")] = None,
) -> None:
    """Say how much waits and runs, who works, how full the pools are, and what is to be delivered."""
    looks = times if times is not None else None if watch else 1
    async with desk.target.open() as connection:
        number = 0
        while True:
            found = await connection.stats()
            _show(desk, found, several=looks != 1, first=number == 0)
            number += 1
            if number == looks:
                return
            await asyncio.sleep(every or LOOK_SECONDS)


def _show(desk: CommandContext, found: Mapping[str, Any], *, several: bool, first: bool) -> None:
    if desk.as_json:
        (desk.output.line if several else desk.output.document)(found)
        return
    if desk.output.console.is_terminal and not first:
        desk.output.console.clear()
    elif not first:
        desk.output.say("")
    desk.output.show(table_of(found))


def table_of(found: Mapping[str, Any]) -> Table:
    """Statistics, a line for each kind."""
    workers, outbox = found["workers"], found["outbox"]
    rows = [("runs", f"{found['n_pending']} pending, {found['n_running']} running")]
    if found["min_age_secs"] is not None:
        oldest, median = human_duration(found["min_age_secs"]), human_duration(found["med_age_secs"] or 0.0)
        rows.append(("waiting", f"the oldest for {oldest}, the one in the middle for {median}"))
    rows.append(("workers", _workers(workers)))
    for name, pool in found["pools"].items():
        used, limit = pool["in_use_connections"], pool["max_connections"]
        rows.append((f"{name} pool", f"{used} of {limit} in use, {pool['idle_connections']} idle"))
    rows.append(("webhooks", f"{outbox['pending']} to be delivered, {outbox['dead']} given up"))
    return facts_table(rows)


def _workers(workers: Mapping[str, int]) -> str:
    if not workers["alive"]:
        return "none is alive; start one with `perdure worker`"
    places = f"{workers['active']} of {workers['max']} places taken, {workers['available']} free"
    return f"{workers['alive']} alive, {places}"
