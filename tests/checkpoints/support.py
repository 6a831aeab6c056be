"""Shared by the tests of checkpoints: checkpoints whose values are easy to distinguish."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.checkpoints.records import (
    GraphChanges,
    GraphPut,
    GraphTuple,
    GraphWrite,
    Piece,
    SpliceRange,
    Typed,
)
from perdure.checkpoints.view import view_values


def typed(value: Any) -> Typed:
    return "msgpack", msgspec.msgpack.encode(value)


def whole(channel: str, version: str, value: Any) -> Piece:
    return Piece(channel=channel, version=version, value=typed(value))


def grown(version: str, base: str | None, kept: int, *items: Any, channel: str = "list") -> Piece:
    """Build a list with the first items of an earlier version, and new ones."""
    spans = [SpliceRange(False, 0, kept)] if kept else []
    return Piece(
        channel=channel,
        version=version,
        value=typed(list(items)) if items else None,
        spans=[*spans, SpliceRange(True, 0, len(items))] if items else spans,
        count=len(items),
        base=base,
    )


def checkpoint(number: int, *pieces: Piece, parent: int | None = None, **more: Any) -> GraphPut:
    versions = more.pop("versions", {piece.channel: piece.version for piece in pieces})
    given: dict[str, Any] = {
        "thread_id": "t",
        "checkpoint_id": f"c{number:04}",
        "parent_id": None if parent is None else f"c{parent:04}",
        "checkpoint": typed({"number": number}),
        "versions": versions,
        "pieces": list(pieces),
        **more,
    }
    return GraphPut(**given)


def write(number: int, task: str, idx: int, value: Any, channel: str = "log", **more: Any) -> GraphWrite:
    given: dict[str, Any] = {"thread_id": "t", "checkpoint_id": f"c{number:04}", **more}
    return GraphWrite(task_id=task, idx=idx, channel=channel, value=typed(value), **given)


def changes(*puts: GraphPut, writes: list[GraphWrite] | None = None) -> GraphChanges:
    return GraphChanges(puts=list(puts), writes=writes or [])


def shown(found: list[GraphTuple]) -> dict[str, Any]:
    """Return the values of checkpoints by ID."""
    return {each.checkpoint_id: view_values(each) for each in found}
