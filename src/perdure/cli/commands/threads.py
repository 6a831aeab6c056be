"""`perdure thread`: the threads that runs work on, and their states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from perdure.cli.commands.runs import ActionOption, tell_deleted, tell_ended
from perdure.cli.shell.arguments import choice_of, confirm, json_of, metadata_of, object_of
from perdure.cli.shell.options import CommandContext, LimitOption, YesOption, at_desk
from perdure.cli.shell.output import ago, facts_table, make_table, shorten

if TYPE_CHECKING:
    from perdure.threads.records import CancelAction, Checkpoint

EMPTY = """No threads yet. A thread keeps what runs on it have said and done:

  perdure thread create my-thread
  perdure run create greet '{"name": "Ann"}' --thread my-thread --wait"""

app = typer.Typer(help="Look at threads and their states.", no_args_is_help=True)

IdArgument = Annotated[str, typer.Argument(metavar="THREAD_ID")]
TermsOption = Annotated[
    list[str] | None,
    typer.Option("--metadata", "-m", metavar="KEY:TEXT", help="Only with this metadata; repeat it for more."),
]


@app.command("create")
@at_desk
async def create_thread(
    desk: CommandContext,
    thread_id: Annotated[str | None, typer.Argument(metavar="[THREAD_ID]")] = None,
    metadata: Annotated[str | None, typer.Option(help="A JSON object.")] = None,
    values: Annotated[str | None, typer.Option(metavar="JSON", help="What it begins with.")] = None,
    if_exists: Annotated[str, typer.Option(help="raise or do_nothing.")] = "raise",
) -> None:
    """Make a thread."""
    async with desk.target.open(create=True) as connection:
        thread = await connection.threads.create_thread(
            thread_id,
            metadata=object_of(metadata, "--metadata"),
            values=None if values is None else json_of(values, "--values"),
            if_exists=choice_of(if_exists, ("raise", "do_nothing"), "--if-exists") or "raise",
        )
    if desk.as_json:
        desk.output.document(thread)
    else:
        desk.output.say(thread.thread_id)


@app.command("list", hidden=True)
@app.command("ls")
@at_desk
async def list_threads(
    desk: CommandContext,
    status: Annotated[
        str | None, typer.Option("--status", "-s", help="idle, busy, interrupted or error.")
    ] = None,
    metadata: TermsOption = None,
    limit: LimitOption = 20,
) -> None:
    """List the newest threads."""
    from perdure.threads.records import THREAD_STATUSES

    choice_of(status, THREAD_STATUSES, "--status")
    wanted = metadata_of(metadata)
    async with desk.target.open() as connection:
        page = await connection.threads.search_threads(
            status=status, metadata=wanted, limit=min(limit, 1000), values=desk.as_json
        )
    if desk.as_json:
        desk.output.document({"items": page.items, "total": page.total})
    elif not page:
        desk.output.say(EMPTY if status is None and wanted is None else "No thread is like that.")
    else:
        rows = [
            (each.thread_id, each.status, ago(each.created_at), ago(each.updated_at), shorten(each.metadata))
            for each in page
        ]
        desk.output.show(make_table(("thread_id", "status", "created", "changed", "metadata"), rows))
        if page.total > len(page):
            desk.output.say(f"{len(page)} of {page.total}; --limit shows more")


@app.command("show", hidden=True)
@app.command("get")
@at_desk
async def get_thread(desk: CommandContext, thread_id: IdArgument) -> None:
    """Show a thread, its values, and why it stands where it stands."""
    async with desk.target.open() as connection:
        thread = await connection.threads.get_thread(thread_id)
        why = await connection.threads.why(thread_id)
    if desk.as_json:
        desk.output.document({"thread": thread, "why": why})
        return
    rows = (
        ("thread", thread.thread_id),
        ("status", thread.status),
        ("why", why.sentence),
        ("created", ago(thread.created_at)),
        ("changed", ago(thread.updated_at)),
        ("checkpoint", thread.checkpoint_id),
        ("error", None if thread.error is None else f"{thread.error.error}: {thread.error.message}"),
        ("metadata", thread.metadata or None),
        ("config", thread.config or None),
        ("values", thread.values),
    )
    desk.output.show(facts_table(rows))


@app.command("state")
@at_desk
async def get_state(
    desk: CommandContext,
    thread_id: IdArgument,
    checkpoint: Annotated[str | None, typer.Option(metavar="ID", help="An older one.")] = None,
) -> None:
    """Show a state of a thread: the latest, or that of a checkpoint."""
    async with desk.target.open() as connection:
        state = await connection.threads.get_state(thread_id, checkpoint)
    if desk.as_json:
        desk.output.document(None if state is None else _plain(state))
    elif state is None:
        desk.output.say("It has no state yet: no run has saved one.")
    else:
        desk.output.show(facts_table(_state_rows(state)))


def _plain(state: Checkpoint) -> dict[str, Any]:
    """A state without the agent's own form of it, which nobody else reads."""
    return state.model_dump(mode="json", exclude={"state"})


def _state_rows(state: Checkpoint) -> list[tuple[str, Any]]:
    return [
        ("checkpoint", state.checkpoint_id),
        ("step", state.step),
        ("saved", ago(state.created_at)),
        ("run", state.run_id),
        ("parent", state.parent_id),
        ("next", ", ".join(state.next) or None),
        ("asks", [each.value for each in state.interrupts] or None),
        ("metadata", state.metadata or None),
        ("values", state.values),
    ]


@app.command("history")
@at_desk
async def history(desk: CommandContext, thread_id: IdArgument, limit: LimitOption = 10) -> None:
    """List the states of a thread, the newest first."""
    async with desk.target.open() as connection:
        states = await connection.threads.history(thread_id, limit=min(limit, 1000))
    if desk.as_json:
        desk.output.document({"items": [_plain(each) for each in states]})
    elif not states:
        desk.output.say("It has no states yet: no run has saved one.")
    else:
        rows = [
            (each.checkpoint_id, each.step, ago(each.created_at), each.run_id, shorten(each.values))
            for each in states
        ]
        desk.output.show(make_table(("checkpoint_id", "step", "saved", "run_id", "values"), rows))


@app.command("copy")
@at_desk
async def copy_thread(desk: CommandContext, thread_id: IdArgument) -> None:
    """Make another thread with the same states."""
    async with desk.target.open() as connection:
        thread = await connection.threads.copy_thread(thread_id)
    if desk.as_json:
        desk.output.document(thread)
    else:
        desk.output.say(thread.thread_id)


@app.command("cancel")
@at_desk
async def cancel_thread(
    desk: CommandContext, thread_id: IdArgument, action: ActionOption = "interrupt"
) -> None:
    """End every run of a thread that has not ended."""
    how = cast("CancelAction", choice_of(action, ("interrupt", "rollback"), "--action"))
    async with desk.target.open() as connection:
        await connection.threads.get_thread(thread_id)
        ended = await connection.threads.cancel_runs(thread_id=thread_id, action=how)
    tell_ended(desk, ended)


@app.command("delete")
@at_desk
async def delete_thread(desk: CommandContext, thread_id: IdArgument, yes: YesOption = False) -> None:
    """End a thread's runs and remove it with its states and events; traces stay."""
    if not yes:
        confirm(f"This removes thread {thread_id} with its runs and states. Go on?")
    async with desk.target.open() as connection:
        await connection.threads.delete_thread(thread_id)
    tell_deleted(desk, "thread_id", thread_id)
