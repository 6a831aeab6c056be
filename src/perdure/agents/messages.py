"""What a process that is an agent may say, one message a line."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from perdure.graphs.records import GraphDeltaQuery, GraphQuery, GraphSteps
from perdure.items.records import ItemOp
from perdure.streams.model import Shown


class Said(msgspec.Struct, tag_field="type", kw_only=True):
    """A line of the process."""

    id: Any = UNSET
    """Given back with the answer."""


class Event(Said, tag="event"):
    """Something for the run's stream."""

    data: Any = None
    event: str = "custom"
    shown: Shown | None = None
    """The checkpoint that has the same data."""


class Save(Said, tag="save"):
    """A state to keep."""

    values: Any
    next: tuple[str, ...] = ()
    interrupts: tuple[dict[str, Any], ...] = ()
    metadata: dict[str, Any] | None = None
    state: bytes | None = None
    """In base64."""
    checkpoint_id: str | None = None
    parent_id: str | None = None
    quiet: bool = False


class Step(Said, tag="step"):
    """The result of a step."""

    name: str
    result: Any = None


class Interrupt(Said, tag="interrupt"):
    """Something for a person to answer."""

    value: Any = None


class Items(Said, tag="items"):
    """What the process wants of what is remembered beyond the thread."""

    ops: list[ItemOp]


class Record(Said, tag="record"):
    """What the graph of the process has done."""

    steps: GraphSteps


class Settle(Said, tag="settle"):
    """Whether all of that is durable."""


class Find(Said, tag="find"):
    """Which checkpoints the graph wants."""

    query: GraphQuery


class Deltas(Said, tag="deltas"):
    """Which changes to channels the graph wants."""

    query: GraphDeltaQuery


class Log(Said, tag="log"):
    """Something for the log."""

    message: str
    level: str = "info"


class Result(Said, tag="result"):
    """The end, and the values that it leaves."""

    values: Any = None


class Error(Said, tag="error"):
    """The end, by a failure."""

    message: str
    error: str = "AgentError"
    retriable: bool = False


DECODER = msgspec.json.Decoder(
    Event | Save | Step | Interrupt | Items | Record | Settle | Find | Deltas | Log | Result | Error
)
