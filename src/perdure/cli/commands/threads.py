"""`perdure thread`: threads and their states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.commands.runs import ActionOption, cancel_action, print_cancelled
from perdure.cli.shell.ids import id_argument, part_option
from perdure.cli.shell.options import (
    CommandContext,
    CommandGroup,
    LimitOption,
    MetadataFilter,
    MetadataOption,
    YesOption,
    optional_choice,
    parse_choice,
    parse_json,
    parse_metadata,
    parse_object,
    text,
)
from perdure.cli.shell.output import ago, cost_text, error_text, printable, shorten, tokens_text
from perdure.cli.shell.results import listing, pages, removing, showing
from perdure.cli.shell.target import CommandConnection

if TYPE_CHECKING:
    from perdure.threads.records import Checkpoint, Thread

EMPTY = """No threads yet. A thread keeps the state of the runs on it:

  perdure thread create my-thread
  perdure run create greet '{"name": "Ann"}' --thread my-thread --wait"""
NO_STATE = "No state yet: no run has saved one."
ROLES = {"human": "user", "ai": "assistant"}
"""Roles of messages, by LangChain's names."""
SHOWN_MESSAGES = 50
LONGEST_MESSAGE = 2000
COLUMNS = ("thread_id", "status", "created", "updated", "metadata")
MOST_CHECKPOINTS = 1000
STATE_COLUMNS = ("checkpoint_id", "step", "saved", "run_id", "values")

app = CommandGroup("Create, show and delete threads and their states.")

IdArgument = Annotated[str, id_argument("THREAD_ID", "thread")]


@app.client_command("create")
async def create_thread(
    context: CommandContext,
    thread_id: Annotated[
        str | None, typer.Argument(metavar="THREAD_ID", help="Generated if omitted.")
    ] = None,
    metadata: MetadataOption = None,
    values: Annotated[str | None, text("JSON", "Initial values.", "--values")] = None,
    if_exists: Annotated[
        str, text("ACTION", "If the thread exists: raise or do_nothing.", "--if-exists")
    ] = "raise",
) -> None:
    """Create a thread and print its ID."""
    async with context.connect(create=True) as connection:
        thread = await connection.threads.create_thread(
            thread_id,
            metadata=parse_object(metadata, "--metadata"),
            values=None if values is None else parse_json(values, "--values"),
            if_exists=parse_choice(if_exists, ("raise", "do_nothing"), "--if-exists"),
        )
    context.answer(thread, thread.thread_id)


@app.client_command("list")
async def list_threads(
    context: CommandContext,
    status: Annotated[
        str | None, text("STATUS", "Filter by status: idle, busy, interrupted or error.", "--status", "-s")
    ] = None,
    metadata: MetadataFilter = None,
    limit: LimitOption = 20,
) -> None:
    """List threads, newest first."""
    from perdure.threads.records import THREAD_STATUSES

    chosen = optional_choice(status, THREAD_STATUSES, "--status")
    wanted = parse_metadata(metadata)
    async with context.connect() as connection:
        threads = await pages(
            lambda limit, cursor: connection.threads.search_threads(
                status=chosen, metadata=wanted, limit=limit, cursor=cursor, values=context.as_json
            ),
            limit,
        )
    filtered = status is not None or wanted is not None
    listing(context, threads, COLUMNS, _row, noun="threads", empty=EMPTY, filtered=filtered)


def _row(thread: Thread) -> tuple[Any, ...]:
    created, updated = ago(thread.created_at), ago(thread.updated_at)
    metadata = shorten(thread.metadata) if thread.metadata else None
    return thread.thread_id, thread.status, created, updated, metadata


@app.client_command("show")
async def show_thread(context: CommandContext, thread_id: IdArgument) -> None:
    """Show a thread, its values, and why it is waiting."""
    async with context.connect() as connection:
        thread = await connection.threads.get_thread(thread_id)
        why = await connection.diagnostics.why(thread_id)
        figures = await connection.diagnostics.thread_figures(thread_id)
    rows = (
        ("thread", thread.thread_id),
        ("status", thread.status),
        ("why", why.sentence),
        ("created", ago(thread.created_at)),
        ("updated", ago(thread.updated_at)),
        ("checkpoint", thread.checkpoint_id),
        ("error", error_text(thread.error)),
        ("tokens", tokens_text(figures.input_tokens, figures.output_tokens)),
        ("cost", cost_text(figures.cost)),
        ("metadata", thread.metadata or None),
        ("config", thread.config or None),
        ("values", _without_messages(thread.values)),
        ("messages", messages_text(thread.values)),
    )
    showing(context, {"thread": thread, "why": why, "figures": figures}, rows)


async def checkpoint_ids(connection: CommandConnection, given: Mapping[str, Any], start: str) -> list[str]:
    """List the checkpoints of a thread, newest first, from one response."""
    states = await connection.threads.history(given["thread_id"], limit=MOST_CHECKPOINTS, values=False)
    return [state.checkpoint_id for state in states]


@app.client_command("state")
async def show_state(
    context: CommandContext,
    thread_id: IdArgument,
    checkpoint: Annotated[
        str | None,
        part_option(
            "CHECKPOINT_ID", "Show the state at this checkpoint.", "--checkpoint", among=checkpoint_ids
        ),
    ] = None,
) -> None:
    """Show the latest state of a thread, or the state at a checkpoint."""
    async with context.connect() as connection:
        state = await connection.threads.get_state(thread_id, checkpoint)
    if state is None:
        context.answer(None, NO_STATE)
        return
    rows = (
        ("checkpoint", state.checkpoint_id),
        ("step", state.step),
        ("saved", ago(state.created_at)),
        ("run", state.run_id),
        ("parent", state.parent_id),
        ("next", ", ".join(state.next) or None),
        ("questions", [interrupt.value for interrupt in state.interrupts] or None),
        ("metadata", state.metadata or None),
        ("values", _without_messages(state.values)),
        ("messages", messages_text(state.values)),
    )
    showing(context, _document(state), rows)


def messages_text(values: Any) -> str | None:
    """Format the messages of a thread as `role: text`; None if its values have no messages."""
    messages = values.get("messages") if isinstance(values, dict) else None
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return None
    return "\n".join(f"{_role(message)}: {_text(message)}" for message in messages[-SHOWN_MESSAGES:]) or None


def _role(message: dict[str, Any]) -> str:
    kind = str(message.get("role") or message.get("type") or "message")
    return ROLES.get(kind, kind)


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        content = " ".join(str(part) for part in parts if part)
    calls = [call.get("name") for call in message.get("tool_calls") or () if isinstance(call, dict)]
    called = f" [calls {', '.join(map(str, calls))}]" if calls else ""
    return (
        printable(shorten(content if isinstance(content, str) else content or "", LONGEST_MESSAGE)) + called
    )


def _without_messages(values: Any) -> Any:
    """Return the values that are not shown as messages."""
    if messages_text(values) is None:
        return values
    return {name: value for name, value in values.items() if name != "messages"} or None


def _document(state: Checkpoint) -> dict[str, Any]:
    """Return a state without its serialised form, which only the agent can read."""
    return state.model_dump(mode="json", exclude={"state"})


@app.client_command("history")
async def list_states(context: CommandContext, thread_id: IdArgument, limit: LimitOption = 10) -> None:
    """List the states of a thread, newest first."""
    async with context.connect() as connection:
        states = await connection.threads.history(thread_id, limit=min(limit, 1000))
    listing(context, states, STATE_COLUMNS, _state_row, noun="states", empty=NO_STATE, document=_document)


def _state_row(state: Checkpoint) -> tuple[Any, ...]:
    return state.checkpoint_id, state.step, ago(state.created_at), state.run_id, shorten(state.values)


@app.client_command("copy")
async def copy_thread(context: CommandContext, thread_id: IdArgument) -> None:
    """Copy a thread with its states and print the ID of the copy."""
    async with context.connect() as connection:
        thread = await connection.threads.copy_thread(thread_id)
    context.answer(thread, thread.thread_id)


@app.client_command("cancel")
async def cancel_thread(
    context: CommandContext, thread_id: IdArgument, action: ActionOption = "interrupt"
) -> None:
    """Cancel all pending and running runs of a thread."""
    how = cancel_action(action)
    async with context.connect() as connection:
        await connection.threads.get_thread(thread_id)
        cancelled = await connection.threads.cancel_runs(thread_id=thread_id, action=how)
    print_cancelled(context, cancelled)


@app.client_command("delete")
async def delete_thread(context: CommandContext, thread_id: IdArgument, yes: YesOption = False) -> None:
    """Delete a thread with its runs, states and events; traces are kept."""
    await removing(
        context,
        "thread",
        thread_id,
        lambda connection: connection.threads.delete_thread(thread_id),
        yes=yes,
        along="its runs and states",
    )
