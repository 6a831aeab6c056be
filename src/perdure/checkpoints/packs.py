"""Checkpoints that were superseded before they were stored, packed into the row of a later one.

A run of a few milliseconds stores all its checkpoints at once, and readers nearly always ask only for the
last. So only the last gets a row. The others are packed into one value of that row, with their writes and the
pieces that only they have. The first reader who asks for one has all of them unpacked into rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence

import msgspec

from perdure.checkpoints.model import DELTA_COUNTERS, piece_key
from perdure.checkpoints.records import GraphChanges, GraphPut, Piece
from perdure.checkpoints.rows import (
    CheckpointRow,
    EncodedChanges,
    PackedRow,
    PieceRow,
    WriteRow,
    check_changes,
    checkpoint_row,
    checkpoint_texts,
    write_row,
)
from perdure.kernel.ids import uuid_bytes, uuid_text

MAX_BYTES = 16 << 10
"""Largest size of packed values; larger ones are stored as rows."""
LEVEL, WINDOW, MEMORY = 6, -14, 6
"""Compression parameters; a small window is fast to allocate."""

IN_PACK = b""
"""Value of the column `states` if the states are in the pack."""

_WORDS = b"".join(
    (
        b'\x95\x92\x96\xd9$1f1-bfff-\xc0\xd9#{"__start__":"00000001."}\xd9\xbe{"source":"input","step":-1,"par',
        b'ents":{}"}\xa7msgpack\xc4;\x94\x04\xd9 202+00:00\x81\xa9__input__\x80\x91\xa9__start__\x96\xd9$',
        b'"}\xd9\xbc{"source":"loop","step":0,"parents":{},"run_id":"\xa7msgpack\xc4p\x94\x04\xd9 202',
        b"+00:00\x82\xa9__input__\x80\xa9__start__\x81\xa9__start__\xb300000001.\x92\xaebranch:to:",
        b"\x93\x93\xbd00000001. __start__\xa7msgpack\xc4\x0b\x81\x93\xba00000002. messages\xa7msgpack",
        b'\xc4\x03\x93\xd9"00000002. branch:to:\xa4null\xc4\x00\x93\x97\x00\x00\x00\xb9~__pregel_pull, ',
        b"__start__\xa6\x97\x00\x00\x01\xb9~__pregel_pull, __start__\xaebranch:to:\xa4null\xc4\x00\x97\x01",
        b"\x01\x00\xb4~__pregel_pull, \xa7msgpack\xc4\x03",
        b'\xc4G\x92\x95\x00\x02\xad["__start__"]\xc0\xc0\x95\x01\x01\xa8[""]\xc0\xd9$1f1\x92\xc4\x10',
        b'.\xa7json\xa5bytes"source":"fork""source":"update","step":0\x93\x93\xba\x91',
        b"\xa4null\xc4\x00\x93\x97\x00\xd9$\x01\xb4~__pregel_push, ~__pregel_pull, \x00",
        b"\xb9~__pregel_pull, __start__\xa6\xa7msgpack\xc4\x02\x81\xa8messages\xc4\n\x91",
        b"\xb0updated_channels\x91\xa9__start__\x96\xd9$\xadversions_seen\x81\xa9__input__\x80",
        b"\xaebranch:to:-6\x93\x92\x96\xd9$1f1-bfff-\xc0\xd9#",
        b'{"__start__":"00000001.","branch:to:__start__":"00000002."}',
        b'\xd9\xbe{"source":"input","step":-1,"parents":{}',
    )
)
"""Dictionary of what nearly every pack of LangGraph contains. Stored packs need it: only prepend to it."""


class PackedCheckpoint(msgspec.Struct, array_like=True, gc=False):
    """Checkpoint with the thread, namespace and run of the one that it is packed with."""

    id: str
    parent_id: str | None
    versions: str
    metadata: str
    form: str
    body: bytes


class PackedPiece(msgspec.Struct, array_like=True, gc=False):
    """Version of a channel that only packed checkpoints have."""

    piece: str
    form: str
    body: bytes


class PackedWrite(msgspec.Struct, array_like=True, gc=False):
    """Write after a packed checkpoint, which is given by its index."""

    checkpoint: int
    task_id: str | int
    """Index in `tasks` for a UUID, as most are, otherwise the ID."""
    idx: int
    task_path: str
    channel: str
    form: str
    body: bytes


class Pack(msgspec.Struct, array_like=True):
    """Checkpoints with their writes and pieces, and their thread states, encoded by `threads`."""

    checkpoints: list[PackedCheckpoint]
    pieces: list[PackedPiece]
    writes: list[PackedWrite]
    states: bytes | None = None
    tasks: list[bytes] = []


class UnpackedRows(msgspec.Struct, frozen=True):
    """Rows of an unpacked pack."""

    checkpoints: list[CheckpointRow]
    pieces: list[PieceRow]
    writes: list[WriteRow]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Pack)


# --- packing ----------------------------------------------------------------------------------------------


def superseded(puts: Sequence[GraphPut], shown: Collection[str]) -> list[GraphPut]:
    """Return the checkpoints, out of those stored together, that can be packed with the last one.

    Checkpoints that events show are excluded, because they are read with the events. Checkpoints with
    channels stored as changes are excluded, because later ones need them as ancestors.
    """
    roots = [put for put in puts if not put.checkpoint_ns]
    if len(roots) < 2 or len({put.checkpoint_id for put in roots}) < len(roots):
        return []
    last = roots.pop()
    if last.run_id is None or DELTA_COUNTERS in last.metadata:
        return []
    return [
        put
        for put in roots
        if put.run_id == last.run_id
        and put.checkpoint_id < last.checkpoint_id
        and put.checkpoint_id not in shown
        and DELTA_COUNTERS not in put.metadata
    ]


def encode_packed(
    changes: GraphChanges, packed: Sequence[str], states: bytes | None = None
) -> EncodedChanges | None:
    """Check and encode changes. The checkpoints in `packed` go into the row of the last one.

    `states` is packed with them and returned on unpacking. None if the pack would be too large.
    """
    check_changes(changes)
    places = {checkpoint_id: place for place, checkpoint_id in enumerate(packed)}
    kept = [put for put in changes.puts if put.checkpoint_ns or put.checkpoint_id not in places]
    used = {version for put in kept for version in put.versions.items()}
    # Tuples encode like the records that are decoded, and are faster to create.
    pieces: list[tuple[str, str, bytes]] = []
    checkpoints: list[tuple[str, str | None, str, str, str, bytes]] = []
    puts: list[GraphPut] = []
    for put in changes.puts:
        if put.checkpoint_ns or put.checkpoint_id not in places:
            puts.append(put)
            continue
        checkpoints.append((put.checkpoint_id, put.parent_id, *checkpoint_texts(put), *put.checkpoint))
        own: list[Piece] = []
        for piece in put.pieces:
            # Later lists build on earlier ones, so lists have their own rows.
            if piece.spans is not None or (piece.channel, piece.version) in used:
                own.append(piece)
            elif piece.value is not None:
                pieces.append((piece_key(piece.channel, piece.version), *piece.value))
        if own:
            puts.append(msgspec.structs.replace(put, pieces=own))
    writes: list[WriteRow] = []
    packed_writes: dict[tuple[int, str, int], tuple[int, str | int, int, str, str, str, bytes]] = {}
    tasks: dict[bytes, int] = {}
    for write in changes.writes:
        place = None if write.checkpoint_ns else places.get(write.checkpoint_id)
        if place is None:
            writes.append(write_row(write))
            continue
        key = (place, write.task_id, write.idx)
        if write.idx < 0 or key not in packed_writes:
            task_bytes = uuid_bytes(write.task_id)
            task = write.task_id if task_bytes is None else tasks.setdefault(task_bytes, len(tasks))
            packed_writes[key] = (place, task, write.idx, write.task_path, write.channel, *write.value)
    pack = (checkpoints, pieces, list(packed_writes.values()), states, list(tasks))
    data = _encoder.encode(pack)
    if len(data) > MAX_BYTES:
        return None
    rows = list(map(checkpoint_row, kept))
    last = next(row for row in reversed(rows) if not row.checkpoint_ns)
    last.earlier, last.states = _compressed(data, last), None if states is None else IN_PACK
    return EncodedChanges(puts, rows, writes)


def _compressed(data: bytes, last: CheckpointRow) -> bytes:
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, WINDOW, MEMORY, zdict=_dictionary(last))
    return packer.compress(data) + packer.flush()


def _dictionary(last: CheckpointRow | PackedRow) -> bytes:
    """Return the compression dictionary: texts common to all packs, and those of the last checkpoint."""
    own = (last.parent_id or "", last.metadata, last.versions)
    return _WORDS + "".join(own).encode() + last.body


# --- unpacking --------------------------------------------------------------------------------------------


def read_pack(row: PackedRow) -> Pack:
    """Decode the pack in the row of a checkpoint."""
    return _decoder.decode(zlib.decompressobj(WINDOW, zdict=_dictionary(row)).decompress(row.earlier))


def unpacked(row: PackedRow, pack: Pack) -> UnpackedRows:
    """Build the rows of a pack."""
    place = (row.thread_id, row.checkpoint_ns)
    return UnpackedRows(
        [
            CheckpointRow(
                *place,
                packed.id,
                packed.parent_id,
                row.run_id,
                packed.versions,
                packed.metadata,
                packed.form,
                packed.body,
            )
            for packed in pack.checkpoints
        ],
        [
            PieceRow(*place, piece.piece, log=None, ranges=None, form=piece.form, body=piece.body)
            for piece in pack.pieces
        ],
        [
            WriteRow(
                *place,
                pack.checkpoints[write.checkpoint].id,
                write.task_id if isinstance(write.task_id, str) else uuid_text(pack.tasks[write.task_id]),
                write.idx,
                write.task_path,
                write.channel,
                write.form,
                write.body,
            )
            for write in pack.writes
        ],
    )
