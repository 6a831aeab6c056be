"""`perdure approval`: approvals that wait for a person, and their answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.shell.ids import id_argument, id_option
from perdure.cli.shell.options import (
    CommandContext,
    CommandGroup,
    LimitOption,
    duration,
    flag,
    optional_choice,
    text,
)
from perdure.cli.shell.output import ago, in_time, parse_moment, printable, seconds_of_or_none, shorten
from perdure.cli.shell.results import listing, pages, showing

if TYPE_CHECKING:
    from perdure.approvals.model import Approval
    from perdure.cli.shell.target import CommandConnection

EMPTY = """Nothing waits for an answer. A workflow asks for one in a phase of the type approval:

  phases:
    - {name: release, type: approval}"""
COLUMNS = ("approval_id", "status", "workflow", "gate", "asked", "question")
SHORT = 18
"""Number of characters of an id in a table; the first 13 are its time."""

app = CommandGroup("Show what waits for a person, and answer it.")

IdArgument = Annotated[str, id_argument("APPROVAL_ID", "approval")]


@app.client_command("list")
async def list_approvals(
    context: CommandContext,
    status: Annotated[
        str | None,
        text(
            "STATUS",
            "pending, approved, rejected, expired or withdrawn (default: pending).",
            "--status",
            "-s",
        ),
    ] = None,
    all_: Annotated[bool, flag("--all", "-a", help="List approvals of every status.")] = False,
    run: Annotated[
        str | None, id_option("RUN_ID", "Filter by workflow run.", "--run", kinds=["workflow_run"])
    ] = None,
    trigger: Annotated[
        str | None, text("TRIGGER", "Filter by what started the run, such as owner/repo#7.", "--trigger")
    ] = None,
    limit: LimitOption = 20,
) -> None:
    """List approvals: pending ones, newest first."""
    from perdure.approvals.model import APPROVAL_STATUSES

    chosen = optional_choice(status, APPROVAL_STATUSES, "--status")
    if all_ and chosen is not None:
        raise typer.BadParameter("give --all or --status, not both")
    wanted = None if all_ else chosen or "pending"
    async with context.connect() as connection:
        approvals = await pages(
            lambda limit, cursor: connection.approvals.list(
                status=wanted, workflow_run_id=run, trigger_id=trigger, limit=limit, cursor=cursor
            ),
            limit,
        )
    filtered = chosen is not None or run is not None or trigger is not None
    listing(context, approvals, COLUMNS, _row, noun="approvals", empty=EMPTY, filtered=filtered)


def _row(approval: Approval) -> tuple[Any, ...]:
    return (
        _short(approval.approval_id),
        approval.status,
        printable(approval.workflow_name),
        printable(approval.gate),
        ago(parse_moment(approval.created_at)),
        shorten(printable(approval.summary)),
    )


def _short(approval_id: str) -> str:
    return approval_id[:SHORT]


@app.client_command("show")
async def show_approval(context: CommandContext, approval_id: IdArgument) -> None:
    """Show an approval with what is to be decided."""
    async with context.connect() as connection:
        approval = await connection.approvals.get(approval_id)
    expires = None
    if approval.expires_at is not None:
        then = "the run goes on" if approval.on_expiry == "approve" else "the run fails"
        expires = f"{in_time(parse_moment(approval.expires_at))}, then {then}"
    rows = (
        ("approval", approval.approval_id),
        ("status", approval.status),
        ("workflow", printable(approval.workflow_name)),
        ("run", approval.workflow_run_id),
        ("trigger", printable(approval.trigger_id)),
        ("gate", printable(approval.gate)),
        ("phase", printable(approval.label)),
        ("asked", ago(parse_moment(approval.created_at))),
        ("asked by", approval.requested_by),
        ("for", ", ".join(approval.assignees) or None),
        ("expires", expires if approval.status == "pending" else None),
        ("reminders", approval.reminders or None),
        ("answered", ago(seconds_of_or_none(approval.responded_at))),
        ("by", approval.responded_by),
        ("with", " ".join(filter(None, (approval.responded_with, approval.responded_with_id))) or None),
        ("answered by", ", ".join(approval.answer_by) or None),
        ("answer", None if approval.response is None else printable(approval.response)),
        ("question", printable(approval.summary)),
    )
    showing(context, approval, rows)
    if context.as_json:
        return
    if approval.artifact is not None:
        context.output.print("")
        context.output.print(printable(approval.artifact))
    if approval.status == "pending":
        context.output.print("")
        context.output.print("Answer with:")
        for line in _ways(approval):
            context.output.print(f"  perdure approval {line}")


def _ways(approval: Approval) -> tuple[str, str]:
    """Return the commands that answer an approval."""
    short = _short(approval.approval_id)
    first = f"reply {short} 'TEXT'" if approval.kind == "reply" else f"approve {short}"
    return first, f"reject {short} --reason 'TEXT'"


@app.client_command("approve")
async def approve(
    context: CommandContext,
    approval_id: IdArgument,
    comment: Annotated[str | None, text("TEXT", "Comment to record.", "--comment", "-c")] = None,
) -> None:
    """Approve what waits, so that its run goes on."""
    async with context.connect() as connection:
        full_id = await _id(connection, approval_id)
        approval = await connection.approvals.approve(full_id, comment=comment)
    _answered(context, approval, "the run goes on")


@app.client_command("reject")
async def reject(
    context: CommandContext,
    approval_id: IdArgument,
    reason: Annotated[str | None, text("TEXT", "Reason, for the error of the run.", "--reason", "-r")] = None,
) -> None:
    """Reject what waits: its run fails, with the reason in its error."""
    async with context.connect() as connection:
        full_id = await _id(connection, approval_id)
        approval = await connection.approvals.reject(full_id, reason=reason)
    _answered(context, approval, "the run fails")


@app.client_command("reply")
async def reply(
    context: CommandContext,
    approval_id: IdArgument,
    reply: Annotated[str, typer.Argument(metavar="TEXT", show_default=False)],
) -> None:
    """Answer a question with a text: the run goes on with it."""
    async with context.connect() as connection:
        full_id = await _id(connection, approval_id)
        approval = await connection.approvals.reply(full_id, reply)
    _answered(context, approval, "the run goes on")


@app.client_command("link")
async def create_link(
    context: CommandContext,
    approval_id: IdArgument,
    assignee: Annotated[str, typer.Argument(metavar="ASSIGNEE", help="Who answers.", show_default=False)],
    expires: Annotated[float | None, duration("How long it is valid (default: 7d)", "--expires")] = None,
) -> None:
    """Create a link with which a person answers once, without a token."""
    async with context.connect() as connection:
        full_id = await _id(connection, approval_id)
        options = {} if expires is None else {"expires_in": expires}
        link = await connection.approvals.create_link(full_id, assignee, **options)
        session = connection.session
    address = link.url or (link.path if session is None else session.base_url.rstrip("/") + link.path)
    context.answer(link, address)


async def _id(connection: CommandConnection, beginning: str) -> str:
    """Return the id that begins with these characters."""
    return (await connection.approvals.get(beginning)).approval_id


def _answered(context: CommandContext, approval: Approval, then: str) -> None:
    context.answer(
        approval,
        f"{approval.status.capitalize()} as {approval.responded_by}: {then} ({approval.workflow_run_id}).",
    )
