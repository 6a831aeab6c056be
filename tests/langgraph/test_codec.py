"""Decoded checkpoints equal the encoded ones. Usual ones are stored without field names and ID."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from perdure.checkpoints.records import GraphTuple, GraphValue
from perdure.langgraph.codec import GraphCodec, build_config

VERSIONS = {"number": "00000001.a"}
USUAL = {
    "v": 4,
    "ts": "2026-01-02T03:04:05.000006+00:00",
    "id": "1f0-1",
    "channel_values": {"number": 5},
    "channel_versions": VERSIONS,
    "versions_seen": {"__input__": {}, "node": VERSIONS},
    "updated_channels": ["number"],
}


@pytest.mark.parametrize(
    ("changes", "left_out", "form"),
    [
        ({}, None, list),
        ({"versions_seen": {}, "updated_channels": None}, None, list),
        ({}, "updated_channels", dict),
        ({"pending_sends": [1]}, None, dict),
    ],
    ids=["usual", "empty", "older", "more"],
)
def test_a_checkpoint_comes_back_as_it_was(changes: Any, left_out: str | None, form: type) -> None:
    codec = GraphCodec(JsonPlusSerializer())
    given: Any = {name: part for name, part in {**USUAL, **changes}.items() if name != left_out}
    put = codec.put(build_config("t", "", None), given, {}, {**VERSIONS})
    assert type(codec.serde.loads_typed(put.checkpoint)) is form
    stored = GraphTuple(
        thread_id="t",
        checkpoint_ns="",
        checkpoint_id=put.checkpoint_id,
        parent_id=None,
        run_id=None,
        checkpoint=put.checkpoint,
        metadata={},
        versions=put.versions,
        values=[GraphValue(channel="number", version="00000001.a", value=put.pieces[0].value)],
        writes=[],
    )
    assert codec.read(stored).checkpoint == given
