"""`perdure scheduler`: the named schedules of a server, as its operators see them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from perdure.cli.commands.crons import FIRING_COLUMNS, firing_row, print_fired, print_next
from perdure.cli.shell.ids import id_argument
from perdure.cli.shell.options import CommandContext, CommandGroup, LimitOption
from perdure.cli.shell.output import printable
from perdure.cli.shell.results import listing, pages

if TYPE_CHECKING:
    from perdure.schedules.records import JobStatus, SchedulerStatus

PAGE = 1000
EMPTY = """No jobs registered. A cron with a name is listed here:

  perdure cron create greet '0 9 * * MON-FRI' '{"name": "Ann"}' --name greeting"""
WIDTHS = (20, 12, 20, 20, 10, 10)
NARROW = (20, 8, 16, 16, 5, 6)
"""Column widths of a terminal that is too narrow for the others."""
RULE = "─"
HEADER = ("JOB", "STATUS", "LAST RUN", "NEXT RUN", "RUNS", "ERRORS")

app = CommandGroup("Show, trigger, pause and resume the named schedules of a server.")

JobArgument = Annotated[
    str, id_argument("JOB", "schedule", help="Name of the job, its first characters, or `last`.")
]


@app.client_command("status")
async def show_status(context: CommandContext) -> None:
    """Show whether the scheduler runs, and all named jobs."""
    async with context.connect() as connection:
        status = page = await connection.schedules.status(limit=PAGE)
        while page.next_after is not None:
            page = await connection.schedules.status(after=page.next_after, limit=PAGE)
            status.jobs += page.jobs
    status.next_after = None
    if context.as_json:
        context.output.document(status)
    else:
        console = context.output.console
        fits = not console.is_terminal or console.width >= _width(WIDTHS)
        lines = status_lines(status, WIDTHS if fits else NARROW)
        console.print("\n".join(lines), markup=False, soft_wrap=True)


def status_lines(status: SchedulerStatus, widths: Sequence[int] = WIDTHS) -> list[str]:
    """Format the status as a table of fixed columns."""
    lines = [f"Scheduler: {'RUNNING' if status.scheduler_running else 'STOPPED'}", ""]
    if not status.jobs:
        return [*lines, EMPTY]
    lines += [_line(HEADER, widths), RULE * min(sum(WIDTHS), _width(widths))]
    for job in status.jobs:
        lines.append(_line(_cells(job), widths))
        if job.last_result == "failed" and job.last_error:
            lines.append(f"  Last error: {printable(' '.join(job.last_error.split()))}")
    return lines


def _cells(job: JobStatus) -> tuple[str, ...]:
    state = "PAUSED" if job.is_paused else "RUNNING" if job.is_running else "IDLE"
    last = "Never" if job.last_run is None else _local(job.last_run)
    following = "-" if job.next_run is None or job.is_paused else _local(job.next_run)
    return job.job_name, state, last, following, str(job.run_count), str(job.error_count)


def _line(cells: tuple[str, ...], widths: Sequence[int]) -> str:
    return " ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))


def _width(widths: Sequence[int]) -> int:
    return sum(widths) + len(widths) - 1


def _local(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


@app.client_command("pause")
async def pause_job(context: CommandContext, job: JobArgument) -> None:
    """Pause a job until it is resumed; it stays paused after a restart."""
    async with context.connect() as connection:
        print_next(context, await connection.schedules.pause(job), "Job")


@app.client_command("resume")
async def resume_job(context: CommandContext, job: JobArgument) -> None:
    """Resume a paused job, from its next time on."""
    async with context.connect() as connection:
        print_next(context, await connection.schedules.resume(job), "Job")


@app.client_command("trigger")
async def trigger_job(context: CommandContext, job: JobArgument) -> None:
    """Run a job now, also if it is paused."""
    async with context.connect() as connection:
        print_fired(context, await connection.schedules.trigger(job), "Job", job)


@app.client_command("history")
async def show_history(context: CommandContext, job: JobArgument, limit: LimitOption = 20) -> None:
    """List the latest firings of a job, newest first: what they started, and how it ended."""
    async with context.connect() as connection:
        firings = await pages(
            lambda limit, cursor: connection.schedules.firings(job, limit=limit, cursor=cursor), limit
        )
    empty = f"Job {job} has not fired yet. To run it now: perdure scheduler trigger {job}"
    listing(context, firings, FIRING_COLUMNS, firing_row, noun="firings", empty=empty)
