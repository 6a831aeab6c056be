"""The messages of an agent's process, one JSON line each."""

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
    """Returned with the answer."""
    branch: tuple[int, ...] = ()
    """Which of the agent's tasks sends it, after the tasks that started that one."""


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
    """What tells it from other steps of the same name; by default they are numbered as they arrive."""
    within: str | None = None
    """The step whose action called it."""
    start_time: float | None = None
    """When the step began, in epoch seconds; its span begins then."""
    traced: bool = False
    """Whether the process has sent the span of the step."""


class Load(ProcessMessage, tag="load"):
    """Continue from the saved state: what is emitted from now on is new."""


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
    """Write to the session what somebody says."""

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
    """Write to the session what the attempt has taken so far."""

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
    """Write to the session a line of a known tool, as it is."""

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
    """Of a phase: why it stopped."""
    output: str | None = None
    """Of a phase: what it has all the same."""


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
    """A line that another tool may have written, although it has a type; None for a message of ours.

    Some tools use our types for lines of theirs. `after_others` says that the process has written such lines
    before; only then is an error without the fields of ours one of them.
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
