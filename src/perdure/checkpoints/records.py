"""Checkpoints of graphs as they are written, travel and are read back.

A value is bytes that only its serializer understands. A checkpoint names a version of each of its channels,
and each version is kept once, as a piece: a value as a whole, or a list made of ranges of an earlier version
and of new items. So a list that grows costs its new items, however long it is.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from msgspec import Struct, field

__all__ = [
    "CheckpointQuery",
    "GraphChanges",
    "GraphDelta",
    "GraphDeltaQuery",
    "GraphPut",
    "GraphState",
    "GraphSteps",
    "GraphTuple",
    "GraphValue",
    "GraphWrite",
    "ListSlice",
    "Piece",
    "PruneStrategy",
    "SpliceRange",
    "Typed",
    "Version",
]

Typed = tuple[str, bytes]
"""A serialized value: the name of its form, and its bytes."""

Version = str | int | float | None
"""The version of a channel; a piece is found by its text."""

PruneStrategy = Literal["delete", "keep_latest"]
"""What is left of a thread: nothing, or the newest checkpoint of each namespace with what it needs."""


class SpliceRange(NamedTuple):
    """The items from `start` to before `stop`, of the new ones (`own`) or of the base version."""

    own: bool
    start: int
    stop: int


class Piece(Struct, frozen=True, kw_only=True):
    """A new version of a channel.

    Without `spans` it is `value` as a whole, or an empty channel where that is None. With them it is a list:
    the items that the spans name, one after the other. `value` then holds the `count` new items, as one
    serialized list, and `base` is the version whose items are used again.
    """

    channel: str
    version: str
    value: Typed | None = None
    spans: list[SpliceRange] | None = None
    count: int = 0
    base: str | None = None


class GraphPut(Struct, frozen=True, kw_only=True):
    """A checkpoint to keep, with the pieces that are new with it."""

    thread_id: str
    checkpoint_ns: str = ""
    checkpoint_id: str
    parent_id: str | None = None
    run_id: str | None = None
    checkpoint: Typed
    """All of it but the values and the versions of its channels."""
    metadata: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Version] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)


class GraphWrite(Struct, frozen=True, kw_only=True):
    """What a task wrote after a checkpoint. A second write with the same `idx` counts if that is negative."""

    thread_id: str
    checkpoint_ns: str = ""
    checkpoint_id: str
    task_id: str
    task_path: str = ""
    idx: int
    channel: str
    value: Typed


class GraphChanges(Struct, frozen=True, kw_only=True):
    """Checkpoints and writes that are kept together, in their order."""

    puts: list[GraphPut] = field(default_factory=list)
    writes: list[GraphWrite] = field(default_factory=list)


class ListSlice(NamedTuple):
    """The items from `start` to before `stop` of a serialized list."""

    items: Typed
    start: int
    stop: int


class GraphValue(Struct, frozen=True, kw_only=True):
    """The version of a channel as it was read: `value` as a whole, or the list that its parts make."""

    channel: str
    version: str
    value: Typed | None = None
    parts: list[ListSlice] | None = None
    spans: int = 0
    """In how many ranges the items lie; a later version may be based on it if they are not too many."""


class GraphTuple(Struct, frozen=True, kw_only=True):
    """A checkpoint as it was read, with the values of its channels and the writes that wait there."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    parent_id: str | None
    run_id: str | None
    checkpoint: Typed
    metadata: dict[str, Any]
    versions: dict[str, Version]
    values: list[GraphValue]
    """Of the channels that are not empty."""
    writes: list[GraphWrite]
    """In the order in which they are applied."""


class CheckpointQuery(Struct, frozen=True, kw_only=True):
    """Which checkpoints are meant. What is None holds for all; the newest come first."""

    thread_id: str | None = None
    checkpoint_ns: str | None = None
    checkpoint_id: str | None = None
    before: str | None = None
    limit: int | None = None
    filter: dict[str, Any] | None = None
    """Values that the metadata must have."""


class GraphDeltaQuery(Struct, frozen=True, kw_only=True):
    """What the ancestors of a checkpoint, or of the newest one, say of channels that are kept as changes."""

    thread_id: str
    checkpoint_ns: str = ""
    checkpoint_id: str | None = None
    channels: list[str]


class GraphDelta(Struct, frozen=True, kw_only=True):
    """The nearest value of a channel among the ancestors, and what was written after it, the oldest first."""

    channel: str
    seed: GraphValue | None = None
    writes: list[GraphWrite] = field(default_factory=list)


class GraphState(Struct, kw_only=True, frozen=True):
    """What a thread shows of a checkpoint of its graph. Its values are in the checkpoint's pieces."""

    checkpoint_id: str
    parent_id: str | None = None
    next: list[str] = field(default_factory=list)
    interrupts: list[dict[str, Any]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    body: str | None = None
    """Its values as JSON, where they are known: those of the last state of a run."""
    whole: bool = False
    """Whether the pieces alone do not tell the values, so that the body is kept, however long it is."""
    again: bool = False
    """Whether the thread has it already, and it is to be brought up to date."""
    output: list[str] | str | None = None
    """The channels that a run returns, where these are not all that the thread shows."""


class GraphSteps(Struct, kw_only=True, frozen=True):
    """What a graph has done: its checkpoints and writes, and which of them are states of the thread."""

    changes: GraphChanges = field(default_factory=GraphChanges)
    states: list[GraphState] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.states or self.changes.puts or self.changes.writes)
