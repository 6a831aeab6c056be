"""What the tests of the saver share: checkpoints by hand, and a look at what the tables hold."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from perdure.checkpoints.model import covered, piece_key
from perdure.checkpoints.rows import decode_ranges
from perdure.integrations.langgraph import PerdureSaver
from perdure.kernel.codec import decode_json
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx

_CHECKPOINTS = statement(
    "SELECT checkpoint_ns, id, versions FROM graph_checkpoints WHERE thread_id = :thread_id"
)
_PIECES = statement("SELECT checkpoint_ns, piece, log, ranges FROM graph_pieces WHERE thread_id = :thread_id")
_ITEMS = statement("SELECT log, position, count FROM graph_items WHERE thread_id = :thread_id")
_WRITES = statement("SELECT checkpoint_ns, checkpoint_id FROM graph_writes WHERE thread_id = :thread_id")


def new_thread() -> str:
    return str(uuid.uuid4())


def config_for(thread_id: str, checkpoint_id: str | None = None, ns: str = "") -> RunnableConfig:
    found: dict[str, Any] = {"thread_id": thread_id, "checkpoint_ns": ns}
    return {"configurable": found if checkpoint_id is None else {**found, "checkpoint_id": checkpoint_id}}


def next_checkpoint(
    saver: PerdureSaver, before: Checkpoint | None, values: Mapping[str, Any], step: int = 0
) -> tuple[Checkpoint, dict[str, Any]]:
    """A checkpoint after another with new values for some channels, and the versions of these."""
    made = empty_checkpoint()
    made["id"] = str(uuid6(clock_seq=step))
    versions = dict(before["channel_versions"]) if before else {}
    new = {name: saver.get_next_version(versions.get(name), None) for name in values}  # type: ignore[arg-type]
    made["channel_versions"] = {**versions, **new}
    made["channel_values"] = {**(before["channel_values"] if before else {}), **values}
    return made, new


def put(
    saver: PerdureSaver,
    thread_id: str,
    before: Checkpoint | None,
    values: Mapping[str, Any],
    *,
    ns: str = "",
    **metadata: Any,
) -> Checkpoint:
    """Keep a checkpoint after another one."""
    made, new = next_checkpoint(saver, before, values)
    told: CheckpointMetadata = {"source": "loop", "step": 1, "parents": {}, **metadata}  # type: ignore[typeddict-item]
    saver.put(config_for(thread_id, before["id"] if before else None, ns), made, told, new)
    return made


async def look(tx: Tx, thread_id: str) -> dict[str, Any]:
    """The rows of a thread, as the tables have them."""
    return {
        "checkpoints": await tx.all(_CHECKPOINTS, thread_id=thread_id),
        "pieces": await tx.all(_PIECES, thread_id=thread_id),
        "items": await tx.all(_ITEMS, thread_id=thread_id),
        "writes": await tx.all(_WRITES, thread_id=thread_id),
    }


def rows_of(saver: PerdureSaver, thread_id: str) -> dict[str, Any]:
    async def read() -> dict[str, Any]:
        return await saver._opened.storage.read(look, thread_id)

    return saver._opened.wait(read)


def check_nothing_is_left_over(saver: PerdureSaver, thread_id: str) -> None:
    """Every piece is of a checkpoint, every item of a piece, every write after a checkpoint."""
    rows = rows_of(saver, thread_id)
    used = {
        (ns, piece_key(*each)) for ns, _, text in rows["checkpoints"] for each in decode_json(text).items()
    }
    assert {(ns, piece) for ns, piece, _, _ in rows["pieces"]} <= used
    ranges: dict[str, list[tuple[int, int]]] = {}
    for _, _, log, text in rows["pieces"]:
        if log is not None:
            ranges.setdefault(log, []).extend(decode_ranges(text))
    for log, position, count in rows["items"]:
        assert any(
            start < position + count and position < stop for start, stop in covered(ranges.get(log, ()))
        )
    assert set(map(tuple, rows["writes"])) <= {(ns, id) for ns, id, _ in rows["checkpoints"]}
