"""Messages of an agent's process, one JSON line each."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from perdure.agents.records import RecordedSpan
from perdure.checkpoints.records import CheckpointQuery, GraphDeltaQuery, GraphSteps
from perdure.items.records import ItemOp
from perdure.streams.model import Shown


class ProcessMessage(msgspec.Struct, tag_field="type", kw_only=True):
    """A message of the process."""

    id: Any = UNSET
    """Returned with the reply."""
    branch: tuple[int, ...] = ()
    """The task of the agent that sends the message, below the tasks that started it."""


class ProcessEvent(ProcessMessage, tag="event"):
    """Append an event to the run's stream."""

    data: Any = None
    event: str = "custom"
    shown: Shown | None = None
    """The checkpoint that has the same data."""


class Save(ProcessMessage, tag="save"):
    """Save a state."""

    values: Any
    next: tuple[str, ...] = ()
    interrupts: tuple[dict[str, Any], ...] = ()
    metadata: dict[str, Any] | None = None
    state: bytes | None = None
    """In base64."""
    checkpoint_id: str | None = None
    parent_id: str | None = None
    quiet: bool = False


class ProcessStep(ProcessMessage, tag="step"):
    """Store the result of a step."""

    name: str
    result: Any = None
    key: str | None = None
    """Key that distinguishes steps of the same name; by default they are numbered on arrival."""
    within: str | None = None
    """The step whose action called this one."""
    start_time: float | None = None
    """Start of the step and its span, in epoch seconds."""
    traced: bool = False
    """True if the process has sent the span of the step."""


class Load(ProcessMessage, tag="load"):
    """Continue from the saved state: all further events are new."""


class ProcessInterrupt(ProcessMessage, tag="interrupt"):
    """Ask a person."""

    value: Any = None


class ProcessItems(ProcessMessage, tag="items"):
    """Read and write items."""

    ops: list[ItemOp]


class SearchMemory(ProcessMessage, tag="memory"):
    """Search memory."""

    query: str
    filters: dict[str, Any] = {}


class ProcessRecord(ProcessMessage, tag="record"):
    """Store steps of the process's graph."""

    steps: GraphSteps


class Settle(ProcessMessage, tag="settle"):
    """Wait until all steps are durable."""


class Find(ProcessMessage, tag="find"):
    """Find checkpoints."""

    query: CheckpointQuery


class Deltas(ProcessMessage, tag="deltas"):
    """Find changes of channels."""

    query: GraphDeltaQuery


class ProcessResources(ProcessMessage, tag="resources"):
    """Ask for the run's resources."""


class ProcessSpan(ProcessMessage, tag="span"):
    """Store a span that has ended."""

    span: RecordedSpan


class ProcessSession(ProcessMessage, tag="session"):
    """Write to another session from now on."""

    session_id: str | None = None
    cwd: str | None = None


class Say(ProcessMessage, tag="message"):
    """Write a message to the session."""

    role: str
    content: Any
    model: str | None = None
    usage: dict[str, Any] | None = None


class ToolResult(ProcessMessage, tag="tool_result"):
    """Write to the session what a tool returned."""

    tool_use_id: str
    content: Any = None
    is_error: bool = False


class ProcessUsage(ProcessMessage, tag="usage"):
    """Write the usage of the attempt so far to the session."""

    cost_usd: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    turns: int | None = None
    duration_ms: int | None = None
    api_duration_ms: int | None = None
    stop_reason: str | None = None


class ProcessTranscript(ProcessMessage, tag="transcript"):
    """Write a line of a known tool to the session, unchanged."""

    line: dict[str, Any]


class Log(ProcessMessage, tag="log"):
    """Write to the log."""

    message: str
    level: str = "info"


class Result(ProcessMessage, tag="result"):
    """End the run with success, with its values."""

    values: Any = None


class Error(ProcessMessage, tag="error"):
    """End the run with an error."""

    message: str
    error: str = "AgentError"
    retriable: bool = False
    stop_reason: str | None = None
    """For a phase: why it stopped."""
    output: str | None = None
    """For a phase: its partial result."""


TAGS: frozenset[Any] = frozenset(each.__struct_config__.tag for each in ProcessMessage.__subclasses__())
"""The types of our own messages."""

DECODER = msgspec.json.Decoder(
    ProcessEvent
    | Save
    | ProcessStep
    | Load
    | ProcessInterrupt
    | ProcessItems
    | SearchMemory
    | ProcessRecord
    | Settle
    | Find
    | Deltas
    | ProcessResources
    | ProcessSpan
    | ProcessSession
    | Say
    | ToolResult
    | ProcessUsage
    | ProcessTranscript
    | Log
    | Result
    | Error
)


def foreign_line(
    line: bytes, message: ProcessMessage | None, *, after_others: bool
) -> ProcessTranscript | None:
    """Return the line of another tool that looks like one of our messages; None for our messages.

    Some tools use our types for their lines. `after_others` is true if the process has written such lines
    before; only then is an error without our fields treated as one.
    """
    if message is not None and not isinstance(message, ProcessSession | Say | Result | Error):
        return None
    if isinstance(message, Result) and message.values is not None:
        return None
    try:
        record = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    kind = record.get("type")
    theirs = (
        kind not in TAGS
        or (kind == "result" and "subtype" in record)
        or (kind == "session" and "version" in record)
        or (kind == "message" and isinstance(record.get("message"), dict))
        or (kind == "error" and after_others and not {"error", "retriable"} & set(record))
    )
    return ProcessTranscript(line=record) if theirs and isinstance(kind, str) else None
