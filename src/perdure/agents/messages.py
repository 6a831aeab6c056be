"""The messages of an agent's process, one JSON line each."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from perdure.agents.records import RecordedSpan
from perdure.graphs.records import GraphDeltaQuery, GraphQuery, GraphSteps
from perdure.items.records import ItemOp
from perdure.streams.model import Shown


class Message(msgspec.Struct, tag_field="type", kw_only=True):
    """A message of the process."""

    id: Any = UNSET
    """Returned with the answer."""
    branch: tuple[int, ...] = ()
    """Which of the agent's tasks sends it, after the tasks that started that one."""


class Event(Message, tag="event"):
    """Append an event to the run's stream."""

    data: Any = None
    event: str = "custom"
    shown: Shown | None = None
    """The checkpoint that has the same data."""


class Save(Message, tag="save"):
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


class Step(Message, tag="step"):
    """Store the result of a step."""

    name: str
    result: Any = None
    within: str | None = None
    """The step whose action called it."""
    start_time: float | None = None
    """When the step began, in epoch seconds; its span begins then."""
    traced: bool = False
    """Whether the process has sent the span of the step."""


class Load(Message, tag="load"):
    """Continue from the saved state: what is emitted from now on is new."""


class Interrupt(Message, tag="interrupt"):
    """Ask a person."""

    value: Any = None


class Items(Message, tag="items"):
    """Read and write items."""

    ops: list[ItemOp]


class Record(Message, tag="record"):
    """Store steps of the process's graph."""

    steps: GraphSteps


class Settle(Message, tag="settle"):
    """Wait until all steps are durable."""


class Find(Message, tag="find"):
    """Find checkpoints."""

    query: GraphQuery


class Deltas(Message, tag="deltas"):
    """Find changes of channels."""

    query: GraphDeltaQuery


class Resources(Message, tag="resources"):
    """Ask for the run's resources."""


class Span(Message, tag="span"):
    """Store a span that has ended."""

    span: RecordedSpan


class Log(Message, tag="log"):
    """Write to the log."""

    message: str
    level: str = "info"


class Result(Message, tag="result"):
    """End the run with success, with its values."""

    values: Any = None


class Error(Message, tag="error"):
    """End the run with an error."""

    message: str
    error: str = "AgentError"
    retriable: bool = False


DECODER = msgspec.json.Decoder(
    Event
    | Save
    | Step
    | Load
    | Interrupt
    | Items
    | Record
    | Settle
    | Find
    | Deltas
    | Resources
    | Span
    | Log
    | Result
    | Error
)
