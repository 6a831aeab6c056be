"""Rows of graph checkpoints, and their conversion from changes and to records.

User data is encoded and decoded here, outside transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from perdure.checkpoints.model import Range, check_put, check_writes
from perdure.checkpoints.records import GraphChanges, GraphPut, GraphTuple, GraphValue, GraphWrite, Version
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.json_values import has


class CheckpointThreadRow(NamedTuple):
    """Thread that has checkpoints, pieces or writes."""

    thread_id: str


class CheckpointRow(msgspec.Struct, gc=False):
    """Checkpoint without the values of its channels."""

    thread_id: str
    checkpoint_ns: str
    id: str
    parent_id: str | None
    run_id: str | None
    versions: str
    """JSON: the version of each channel."""
    metadata: str
    """JSON."""
    form: str
    body: bytes
    earlier: bytes | None = None
    """Pack of earlier checkpoints; not read with the row."""
    states: bytes | None = None

    def has_metadata(self, wanted: Mapping[str, Any] | None) -> bool:
        """Return whether the metadata has all wanted keys with the wanted values."""
        return not wanted or has(decode_json(self.metadata), wanted)


class PackedRow(NamedTuple):
    """Checkpoint with a pack of earlier checkpoints."""

    thread_id: str
    checkpoint_ns: str
    id: str
    parent_id: str | None
    run_id: str | None
    versions: str
    metadata: str
    body: bytes
    earlier: bytes
    states: bytes | None


class PieceRow(msgspec.Struct, gc=False):
    """Version of a channel: a value, or the ranges of a log that form a list."""

    thread_id: str
    checkpoint_ns: str
    piece: str
    log: str | None
    ranges: str | None
    """JSON."""
    form: str | None
    body: bytes | None


class ListItemsRow(msgspec.Struct, gc=False):
    """Items of a list that were added together."""

    thread_id: str
    log: str
    position: int
    count: int
    form: str
    body: bytes


class WriteRow(msgspec.Struct, gc=False):
    """Write of a task after a checkpoint."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    task_id: str
    idx: int
    task_path: str
    channel: str
    form: str
    body: bytes


class BaseRow(NamedTuple):
    """List that a new version builds on; `stop` is the end of its log."""

    thread_id: str
    checkpoint_ns: str
    piece: str
    log: str
    ranges: str
    stop: int | None


class AncestorRow(NamedTuple):
    """Checkpoint or one of its ancestors."""

    id: str
    parent_id: str | None
    versions: str


class CheckpointKey(NamedTuple):
    """Key of a checkpoint: thread, namespace, ID."""

    thread_id: str
    checkpoint_ns: str
    id: str


class StoredRow(NamedTuple):
    """Checkpoint with the run that stored it."""

    thread_id: str
    run_id: str
    checkpoint_ns: str
    id: str


class CheckpointVersions(NamedTuple):
    """Version of each channel of a checkpoint, as JSON."""

    id: str
    versions: str


class CheckpointBaseRow(NamedTuple):
    """Columns that decide which checkpoints of a thread are needed."""

    checkpoint_ns: str
    id: str
    parent_id: str | None
    versions: str
    metadata: str


class VersionsRow(NamedTuple):
    """Versions of channels that a checkpoint of a thread names."""

    checkpoint_ns: str
    versions: str


class RangesRow(NamedTuple):
    """Piece of a thread, with the ranges of its log if it is a list."""

    checkpoint_ns: str
    piece: str
    log: str | None
    ranges: str | None


class SegmentRow(msgspec.Struct, gc=False):
    """Position of items in the log of a list."""

    log: str
    position: int
    count: int


class WrittenRow(NamedTuple):
    """Checkpoint that has writes; it need not exist."""

    checkpoint_ns: str
    checkpoint_id: str


# --- changes ----------------------------------------------------------------------------------------------


class EncodedChanges(msgspec.Struct, frozen=True):
    """Checkpoints and writes to store, checked and encoded."""

    puts: Sequence[GraphPut]
    checkpoints: Sequence[CheckpointRow]
    writes: Sequence[WriteRow]


def encode_changes(changes: GraphChanges) -> EncodedChanges:
    """Check and encode changes; InvalidInput for names that cannot be stored."""
    check_changes(changes)
    return EncodedChanges(
        changes.puts, list(map(checkpoint_row, changes.puts)), list(map(write_row, changes.writes))
    )


def check_changes(changes: GraphChanges) -> None:
    """Refuse names that cannot be stored."""
    for put in changes.puts:
        check_put(put)
    check_writes(changes.writes)


def first_writes(writes: Iterable[WriteRow]) -> list[WriteRow]:
    """Return the writes without duplicate keys: the first write wins, or the last if `idx` is negative."""
    rows: dict[tuple[str, str, str, str, int], WriteRow] = {}
    for write in writes:
        key = (write.thread_id, write.checkpoint_ns, write.checkpoint_id, write.task_id, write.idx)
        if write.idx < 0 or key not in rows:
            rows[key] = write
    return list(rows.values())


def checkpoint_row(put: GraphPut) -> CheckpointRow:
    return CheckpointRow(
        put.thread_id,
        put.checkpoint_ns,
        put.checkpoint_id,
        put.parent_id,
        put.run_id,
        *checkpoint_texts(put),
        *put.checkpoint,
    )


def checkpoint_texts(put: GraphPut) -> tuple[str, str]:
    """Encode the versions and the metadata of a checkpoint."""
    versions = encode_json(put.versions, what="versions")
    return versions, encode_json(put.metadata, what="metadata", nan="keep")


def write_row(write: GraphWrite) -> WriteRow:
    form, body = write.value
    return WriteRow(
        thread_id=write.thread_id,
        checkpoint_ns=write.checkpoint_ns,
        checkpoint_id=write.checkpoint_id,
        task_id=write.task_id,
        idx=write.idx,
        task_path=write.task_path,
        channel=write.channel,
        form=form,
        body=body,
    )


# --- read checkpoints -------------------------------------------------------------------------------------


class CheckpointWithValues(NamedTuple):
    """Checkpoint with the values of its channels and the writes after it."""

    row: CheckpointRow
    versions: Mapping[str, Version]
    values: list[GraphValue]
    writes: list[GraphWrite]


def row_to_graph_tuple(checkpoint: CheckpointWithValues) -> GraphTuple:
    """Build the record of a checkpoint."""
    row = checkpoint.row
    return GraphTuple(
        thread_id=row.thread_id,
        checkpoint_ns=row.checkpoint_ns,
        checkpoint_id=row.id,
        parent_id=row.parent_id,
        run_id=row.run_id,
        versions=dict(checkpoint.versions),
        metadata=decode_json(row.metadata),
        checkpoint=(row.form, row.body),
        values=checkpoint.values,
        writes=checkpoint.writes,
    )


def row_to_graph_write(row: WriteRow) -> GraphWrite:
    """Build the record of a write."""
    return GraphWrite(
        thread_id=row.thread_id,
        checkpoint_ns=row.checkpoint_ns,
        checkpoint_id=row.checkpoint_id,
        task_id=row.task_id,
        task_path=row.task_path,
        idx=row.idx,
        channel=row.channel,
        value=(row.form, row.body),
    )


# --- decoding inside operations ---------------------------------------------------------------------------
# These small values decide what is read and written next in the same transaction.

_ranges = msgspec.json.Decoder(list[Range])


def decode_ranges(text: str) -> list[Range]:
    """Decode the ranges of a version."""
    return _ranges.decode(text)


def ranges_text(ranges: Sequence[Range]) -> str:
    """Encode ranges for storage."""
    return msgspec.json.encode(ranges).decode()


def decode_versions(text: str) -> dict[str, Version]:
    """Decode the version of each channel."""
    versions: dict[str, Version] = decode_json(text)
    return versions


def decode_metadata(text: str) -> dict[str, Any]:
    """Decode the metadata of a checkpoint."""
    metadata: dict[str, Any] = decode_json(text)
    return metadata
