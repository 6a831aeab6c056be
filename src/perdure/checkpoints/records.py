"""Records of graph checkpoints: as written, sent and read.

A value is bytes that only its serializer understands. A checkpoint names a version of each of its channels.
Each version is stored once, as a piece: a whole value, or a list of ranges of an earlier version and of new
items. So a growing list costs only its new items.
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
"""Serialized value: the name of its form, and its bytes."""

Version = str | int | float | None
"""Version of a channel. Its text is part of the key of the piece."""

PruneStrategy = Literal["delete", "keep_latest"]
"""What remains of a thread: nothing, or the newest checkpoint of each namespace with what it needs."""


class SpliceRange(NamedTuple):
    """Items from `start` to before `stop`, of the new ones (`own`) or of the base version."""

    own: bool
    start: int
    stop: int


class Piece(Struct, frozen=True, kw_only=True):
    """New version of a channel.

    Without `spans` the version is the whole `value`, or empty if that is None. With `spans` it is a list: the
    items of the spans in order. `value` then has the `count` new items as one serialized list, and `base` is
    the version whose items are reused.
    """

    channel: str
    version: str
    value: Typed | None = None
    spans: list[SpliceRange] | None = None
    count: int = 0
    base: str | None = None


class GraphPut(Struct, frozen=True, kw_only=True):
    """Checkpoint to store, with its new pieces."""

    thread_id: str
    checkpoint_ns: str = ""
    checkpoint_id: str
    parent_id: str | None = None
    run_id: str | None = None
    checkpoint: Typed
    """The checkpoint without the values and versions of its channels."""
    metadata: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Version] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)


class GraphWrite(Struct, frozen=True, kw_only=True):
    """Write of a task after a checkpoint. With a negative `idx`, a later write replaces an earlier one."""

    thread_id: str
    checkpoint_ns: str = ""
    checkpoint_id: str
    task_id: str
    task_path: str = ""
    idx: int
    channel: str
    value: Typed


class GraphChanges(Struct, frozen=True, kw_only=True):
    """Checkpoints and writes to store together, in order."""

    puts: list[GraphPut] = field(default_factory=list)
    writes: list[GraphWrite] = field(default_factory=list)


class ListSlice(NamedTuple):
    """Items from `start` to before `stop` of a serialized list."""

    items: Typed
    start: int
    stop: int


class GraphValue(Struct, frozen=True, kw_only=True):
    """Stored version of a channel: the whole `value`, or a list that consists of `parts`."""

    channel: str
    version: str
    value: Typed | None = None
    parts: list[ListSlice] | None = None
    spans: int = 0
    """Number of ranges of the list. With too many of them, a later version is stored whole."""


class GraphTuple(Struct, frozen=True, kw_only=True):
    """Stored checkpoint, with the values of its channels and its pending writes."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    parent_id: str | None
    run_id: str | None
    checkpoint: Typed
    metadata: dict[str, Any]
    versions: dict[str, Version]
    values: list[GraphValue]
    """Values of the channels that are not empty."""
    writes: list[GraphWrite]
    """Writes in the order in which they are applied."""


class CheckpointQuery(Struct, frozen=True, kw_only=True):
    """Filter of checkpoints; None matches all. The newest come first."""

    thread_id: str | None = None
    checkpoint_ns: str | None = None
    checkpoint_id: str | None = None
    before: str | None = None
    limit: int | None = None
    filter: dict[str, Any] | None = None
    """Values that the metadata must have."""


class GraphDeltaQuery(Struct, frozen=True, kw_only=True):
    """Query of channels stored as changes, from a checkpoint, or the newest one, back to its ancestors."""

    thread_id: str
    checkpoint_ns: str = ""
    checkpoint_id: str | None = None
    channels: list[str]


class GraphDelta(Struct, frozen=True, kw_only=True):
    """Nearest value of a channel among the ancestors, and the writes after it, the oldest first."""

    channel: str
    seed: GraphValue | None = None
    writes: list[GraphWrite] = field(default_factory=list)


class GraphState(Struct, kw_only=True, frozen=True):
    """State of a thread for a checkpoint of its graph. The values are in the checkpoint's pieces."""

    checkpoint_id: str
    parent_id: str | None = None
    next: list[str] = field(default_factory=list)
    interrupts: list[dict[str, Any]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    body: str | None = None
    """Values as JSON, if known: those of a run's last state."""
    whole: bool = False
    """True if the pieces do not determine the values, so that the body is stored whatever its size."""
    again: bool = False
    """True for an update of a stored state."""
    output: list[str] | str | None = None
    """Channels that a run returns, if not all that the thread shows."""


class GraphSteps(Struct, kw_only=True, frozen=True):
    """Work of a graph: its checkpoints and writes, and the states of the thread."""

    changes: GraphChanges = field(default_factory=GraphChanges)
    states: list[GraphState] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.states or self.changes.puts or self.changes.writes)
