"""Packs of checkpoints are read as they were written, also by an earlier release."""

from __future__ import annotations

import zlib

import msgspec

from perdure.graphs.packs import WINDOW, Pack, PackedCheckpoint, PackedPiece, PackedWrite, read_pack
from perdure.graphs.rows import PackedRow

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
    """If this fails, stored packs are lost: the words of the dictionary may only grow at their front."""
    assert read_pack(LAST._replace(earlier=WRITTEN)) == PACK


def test_a_pack_without_the_words_is_read() -> None:
    words = LAST.metadata.encode() + LAST.versions.encode() + LAST.body
    packer = zlib.compressobj(6, zlib.DEFLATED, WINDOW, 6, zdict=words)
    data = packer.compress(msgspec.msgpack.encode(PACK)) + packer.flush()
    assert read_pack(LAST._replace(earlier=data)) == PACK
    assert len(WRITTEN) < len(data)
