"""Packs of checkpoints are read as they were written, also those of an earlier release."""

from __future__ import annotations

import zlib
from typing import Any
from uuid import UUID

import msgspec
import pytest

from perdure.checkpoints.model import DELTA_COUNTERS
from perdure.checkpoints.packs import (
    IN_PACK,
    WINDOW,
    Pack,
    PackedCheckpoint,
    PackedPiece,
    PackedWrite,
    encode_packed,
    read_pack,
    superseded,
    unpacked,
)
from perdure.checkpoints.records import GraphChanges, GraphPut, GraphWrite, Piece, SpliceRange
from perdure.checkpoints.rows import PackedRow

LAST = PackedRow(
    thread_id="t",
    checkpoint_ns="",
    id="c3",
    parent_id="c2",
    run_id="r",
    versions='{"number":"00000003.1"}',
    metadata='{"source":"loop","step":1,"parents":{}}',
    body=b"\x81\xa2id\xa2c3",
    earlier=b"",
    states=None,
)
PACK = Pack(
    [
        PackedCheckpoint(
            "c1",
            None,
            '{"__start__":"00000001.6"}',
            '{"source":"input","step":-1,"parents":{}}',
            "msgpack",
            b"\x81\xa2id\xa2c1",
        ),
        PackedCheckpoint(
            "c2",
            "c1",
            '{"number":"00000002.5"}',
            '{"source":"loop","step":0,"parents":{}}',
            "msgpack",
            b"\x81\xa2id\xa2c2",
        ),
    ],
    [PackedPiece("00000002.5 number", "msgpack", b"\x01")],
    [PackedWrite(0, "task", 0, "~__pregel_pull, __start__", "number", "msgpack", b"\x01")],
)
WRITTEN = bytes.fromhex(
    "033a7e51b2e1815d38dc6c06749226b14eaa8507333bc47443a0d946406a3ba61b8cf44c8146abe3f283017e838d264ede8830480162385c1123e3c4e90c4b4a128bb3f1a5090c4d00"
)


def test_a_pack_that_is_stored_is_read() -> None:
    """If this fails, stored packs are lost: the dictionary may only grow at its front."""
    assert read_pack(LAST._replace(earlier=WRITTEN)) == PACK


def test_a_pack_without_the_words_is_read() -> None:
    words = LAST.metadata.encode() + LAST.versions.encode() + LAST.body
    packer = zlib.compressobj(6, zlib.DEFLATED, WINDOW, 6, zdict=words)
    data = packer.compress(msgspec.msgpack.encode(PACK)) + packer.flush()
    assert read_pack(LAST._replace(earlier=data)) == PACK
    assert len(WRITTEN) < len(data)


@pytest.mark.parametrize("states", [None, b"\x90"])
def test_what_is_packed_is_unpacked(states: bytes | None) -> None:
    """Task IDs in the usual form of a UUID are packed as bytes; all others as texts."""
    tasks = [
        f"{UUID(int=7)}",
        f"{UUID(int=8)}",
        "a",
        "A" * 36,
        f"{UUID(int=2**127)}".replace("8", "A"),
        "0" * 36,
    ]
    puts = [
        GraphPut(thread_id="t", checkpoint_id=name, run_id="r", checkpoint=("msgpack", name.encode()))
        for name in ("c1", "c2")
    ]
    writes = [
        GraphWrite(thread_id="t", checkpoint_id="c1", task_id=task, idx=idx, channel="n", value=("null", b""))
        for task in tasks
        for idx in (0, 1)
    ]
    found = encode_packed(GraphChanges(puts=puts, writes=writes), ["c1"], states)
    assert found is not None
    (row,) = found.checkpoints
    assert row.states == (None if states is None else IN_PACK), "states are stored once"
    packed = PackedRow(
        row.thread_id,
        row.checkpoint_ns,
        row.id,
        row.parent_id,
        row.run_id,
        row.versions,
        row.metadata,
        row.body,
        row.earlier or b"",
        row.states,
    )
    pack = read_pack(packed)
    assert pack.states == states
    assert pack.tasks == [UUID(int=7).bytes, UUID(int=8).bytes]
    rows = unpacked(packed, pack)
    assert [(each.task_id, each.idx) for each in rows.writes] == [(each.task_id, each.idx) for each in writes]
    assert [each.id for each in rows.checkpoints] == ["c1"]


def test_lists_and_what_the_last_checkpoint_uses_are_not_packed() -> None:
    """Later checkpoints, also of other runs, build on the items of a list, and find them by their rows."""
    plain = Piece(channel="number", version="1", value=("json", b"1"))
    shared = Piece(channel="name", version="1", value=("json", b"2"))
    listed = Piece(
        channel="messages", version="1", value=("json", b"[1]"), spans=[SpliceRange(True, 0, 1)], count=1
    )
    puts = [put("c1", pieces=[plain, shared, listed]), put("c2", versions={"name": "1", "number": "2"})]
    found = encode_packed(GraphChanges(puts=puts, writes=[]), ["c1"])
    assert found is not None
    assert [(each.checkpoint_id, each.pieces) for each in found.puts] == [
        ("c1", [shared, listed]),
        ("c2", []),
    ]
    (row,) = found.checkpoints
    pack = read_pack(PackedRow(*(getattr(row, name) for name in PackedRow._fields)))
    assert [(each.piece, each.body) for each in pack.pieces] == [("1 number", b"1")]


def test_what_any_checkpoint_with_a_row_uses_is_not_packed() -> None:
    """An event that shows a checkpoint is read with it, so all that it uses has rows."""
    piece = Piece(channel="name", version="1", value=("json", b"2"))
    puts = [
        put("c1", pieces=[piece], versions={"name": "1"}),
        put("shown", versions={"name": "1"}),
        put("c3", versions={"name": "2"}),
    ]
    found = encode_packed(GraphChanges(puts=puts, writes=[]), ["c1"])
    assert found is not None
    assert [row.id for row in found.checkpoints] == ["shown", "c3"]
    assert found.puts[0].pieces == [piece]


def put(checkpoint_id: str, **fields: Any) -> GraphPut:
    given: dict[str, Any] = {"run_id": "r", "checkpoint": ("msgpack", b""), **fields}
    return GraphPut(thread_id="t", checkpoint_id=checkpoint_id, **given)


DELTAS = {DELTA_COUNTERS: {"messages": 1}}


@pytest.mark.parametrize(
    ("puts", "packed"),
    [
        ([put("c1"), put("c2"), put("c3")], ["c1", "c2"]),
        ([put("c1")], []),
        # A checkpoint that an event shows is read with the event.
        ([put("shown"), put("sub"), put("t1")], ["sub"]),
        # A run is deleted with all of its checkpoints, which are found by their rows.
        ([put("c1", run_id="other"), put("c2"), put("c3")], ["c2"]),
        ([put("c1"), put("c2", run_id=None)], []),
        # The newest checkpoint of a thread has a row, even if a fork stored it.
        ([put("c1"), put("c4"), put("c3")], ["c1"]),
        # Channels stored as changes are read through their ancestors.
        ([put("c1", metadata=DELTAS), put("c2"), put("c3")], ["c2"]),
        ([put("c1"), put("c2"), put("c3", metadata=DELTAS)], []),
        # Checkpoints of subgraphs have rows, and may come between.
        ([put("c1"), put("c2", checkpoint_ns="sub"), put("c3")], ["c1"]),
        # Of two versions of one checkpoint the later one wins.
        ([put("c1"), put("c1"), put("c3")], []),
    ],
)
def test_which_checkpoints_are_packed_with_the_last_one(puts: list[GraphPut], packed: list[str]) -> None:
    assert [each.checkpoint_id for each in superseded(puts, {"shown"})] == packed


def test_writes_of_a_graph_below_are_not_packed_with_its_parent() -> None:
    """Their namespace is another one, though the id of the checkpoint may be the same."""
    below, own = [
        GraphWrite(
            thread_id="t",
            checkpoint_ns=ns,
            checkpoint_id="c1",
            task_id="a",
            idx=0,
            channel="n",
            value=("null", b""),
        )
        for ns in ("below", "")
    ]
    found = encode_packed(GraphChanges(puts=[put("c1"), put("c2")], writes=[below, own]), ["c1"])
    assert found is not None
    assert [(row.checkpoint_ns, row.checkpoint_id) for row in found.writes] == [("below", "c1")]
    (row,) = found.checkpoints
    pack = read_pack(PackedRow(*(getattr(row, name) for name in PackedRow._fields)))
    assert len(pack.writes) == 1
