"""Checkpoints of LangGraph's own savers, split without reviving their objects and copied into a database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
import ormsgpack

from perdure.checkpoints.records import CheckpointQuery, GraphChanges, GraphPut, GraphWrite, Piece, Typed
from perdure.checkpoints.service import StoredCheckpoints
from perdure.importing.records import ImportReport
from perdure.kernel.codec import decode_json
from perdure.kernel.errors import InvalidInput

# --- splitting of whole checkpoints -----------------------------------------------------------------------


NULL: Final[Typed] = ("null", b"")
_OPTIONS: Final = ormsgpack.OPT_NON_STR_KEYS
_APART: Final = frozenset({"channel_values", "channel_versions"})


class SplitCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Checkpoint with each of its values in separate bytes."""

    rest: Typed
    versions: dict[str, Any]
    values: dict[str, Typed]
    format: int


def split_checkpoint(form: str, body: bytes) -> SplitCheckpoint:
    """Split a serialized checkpoint. InvalidInput if its form cannot be split."""
    if form == "msgpack":
        try:
            whole = ormsgpack.unpackb(body, ext_hook=ormsgpack.Ext, option=_OPTIONS)
        except ValueError as error:
            raise InvalidInput(f"a checkpoint is not MessagePack: {error}") from None
    elif form == "json":
        whole = decode_json(body)
    else:
        raise InvalidInput(f"a checkpoint in the form {form!r} cannot be split without being executed")
    if not isinstance(whole, dict) or not isinstance(whole.get("channel_values", {}), dict):
        raise InvalidInput("a checkpoint must be an object with channel_values")
    return split_parts(whole, whole.get("channel_values") or {})


def split_parts(checkpoint: Mapping[str, Any], values: Mapping[str, Any]) -> SplitCheckpoint:
    """Split a checkpoint of plain data; `values` are its values."""
    versions = checkpoint.get("channel_versions")
    format = checkpoint.get("v")
    return SplitCheckpoint(
        rest=pack_value({name: part for name, part in checkpoint.items() if name not in _APART}),
        versions=dict(versions) if isinstance(versions, Mapping) else {},
        values={channel: pack_value(value) for channel, value in values.items()},
        format=format if isinstance(format, int) else 1,
    )


def pack_value(value: Any) -> Typed:
    """Encode plain data in the form of LangGraph's serializer."""
    if value is None:
        return NULL
    if isinstance(value, bytes):
        return "bytes", value
    try:
        return "msgpack", ormsgpack.packb(value, option=_OPTIONS)
    except TypeError as error:
        raise InvalidInput(f"a value of a checkpoint cannot be packed again: {error}") from None


# --- copying ----------------------------------------------------------------------------------------------


CHECKPOINTS: Final = "checkpoints"
WRITES: Final = "writes"
TASKS: Final = "__pregel_tasks"
WITHOUT_SENDS: Final = 4
"""Format since which sent tasks are a value of their own in checkpoints."""


class SourceWrite(msgspec.Struct, frozen=True, kw_only=True):
    """A task's write after a checkpoint, as its saver stored it."""

    task_id: str
    task_path: str
    idx: int
    channel: str
    value: Typed


class SourceCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint as its saver stored it. `refusal` says why it cannot be imported."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    parent_id: str | None
    split: SplitCheckpoint | None
    metadata: dict[str, Any]
    writes: list[SourceWrite]
    next: list[str] = msgspec.field(default_factory=list)
    """The nodes that run after it, if the checkpoint names them."""
    refusal: str | None = None


Store = Callable[[SourceCheckpoint, GraphChanges], Awaitable[None]]
"""Stores a new checkpoint with its writes."""


async def import_checkpoints(
    graphs: StoredCheckpoints,
    source: AsyncIterator[SourceCheckpoint],
    report: ImportReport,
    store: Store | None = None,
) -> None:
    """Import checkpoints with their writes; those of a thread arrive in order.

    An existing checkpoint is not changed. Bytes are copied; nothing in them is revived or executed. `store`
    stores them in place of `graphs`.
    """
    sent: set[tuple[str, str]] = set()
    place: tuple[str, str] | None = None
    tasks: dict[str, bool] = {}
    async for checkpoint in source:
        if place != (checkpoint.thread_id, checkpoint.checkpoint_ns):
            place, sent, tasks = (checkpoint.thread_id, checkpoint.checkpoint_ns), set(), {}
        tasks[checkpoint.checkpoint_id] = any(write.channel == TASKS for write in checkpoint.writes)
        count = report.count(CHECKPOINTS)
        count.found += 1
        split, refusal = checkpoint.split, checkpoint.refusal
        if split is not None and split.format < WITHOUT_SENDS and tasks.get(checkpoint.parent_id or ""):
            refusal = "tasks wait in its parent in a form of early releases: run the graph once more first"
        if split is None or refusal is not None:
            report.refuse(CHECKPOINTS, checkpoint.checkpoint_id, refusal or "it cannot be read")
            continue
        if await _is_present(graphs, checkpoint):
            count.present += 1
            continue
        count.added += 1
        report.count(WRITES).found += len(checkpoint.writes)
        report.count(WRITES).added += len(checkpoint.writes)
        pieces = [
            Piece(channel=channel, version=str(split.versions[channel]), value=value)
            for channel, value in split.values.items()
            if channel in split.versions and (channel, str(split.versions[channel])) not in sent
        ]
        sent |= {(piece.channel, piece.version) for piece in pieces}
        if not report.dry_run:
            try:
                changes = _changes(checkpoint, split, pieces)
                await (graphs.put(changes) if store is None else store(checkpoint, changes))
            except InvalidInput as error:
                count.added -= 1
                report.refuse(CHECKPOINTS, checkpoint.checkpoint_id, error.message)


async def _is_present(graphs: StoredCheckpoints, checkpoint: SourceCheckpoint) -> bool:
    query = CheckpointQuery(
        thread_id=checkpoint.thread_id,
        checkpoint_ns=checkpoint.checkpoint_ns,
        checkpoint_id=checkpoint.checkpoint_id,
        limit=1,
    )
    return bool(await graphs.find(query))


def _changes(checkpoint: SourceCheckpoint, split: SplitCheckpoint, pieces: list[Piece]) -> GraphChanges:
    run_id = checkpoint.metadata.get("run_id")
    put = GraphPut(
        thread_id=checkpoint.thread_id,
        checkpoint_ns=checkpoint.checkpoint_ns,
        checkpoint_id=checkpoint.checkpoint_id,
        parent_id=checkpoint.parent_id,
        run_id=run_id if isinstance(run_id, str) and run_id else None,
        checkpoint=split.rest,
        metadata=checkpoint.metadata,
        versions=split.versions,
        pieces=pieces,
    )
    writes = [
        GraphWrite(
            thread_id=checkpoint.thread_id,
            checkpoint_ns=checkpoint.checkpoint_ns,
            checkpoint_id=checkpoint.checkpoint_id,
            task_id=write.task_id,
            task_path=write.task_path,
            idx=write.idx,
            channel=write.channel,
            value=write.value,
        )
        for write in checkpoint.writes
    ]
    return GraphChanges(puts=[put], writes=writes)
