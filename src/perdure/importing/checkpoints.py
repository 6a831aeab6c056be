"""Checkpoints of LangGraph's own savers, copied into a perdure database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import msgspec

from perdure.checkpoints.records import CheckpointQuery, GraphChanges, GraphPut, GraphWrite, Piece, Typed
from perdure.checkpoints.service import StoredCheckpoints
from perdure.importing.records import ImportReport
from perdure.kernel.errors import InvalidInput
from perdure.langgraph.splitting import SplitCheckpoint

CHECKPOINTS: Final = "checkpoints"
WRITES: Final = "writes"
TASKS: Final = "__pregel_tasks"
WITHOUT_SENDS: Final = 4
"""Format of checkpoints from which on tasks that were sent are a value of their own."""


class SourceWrite(msgspec.Struct, frozen=True, kw_only=True):
    """What a task wrote after a checkpoint, as its saver stored it."""

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
    """The nodes that run after it, as far as the checkpoint says."""
    refusal: str | None = None


Store = Callable[[SourceCheckpoint, GraphChanges], Awaitable[None]]
"""Stores a checkpoint that is new, with its writes."""


async def import_checkpoints(
    graphs: StoredCheckpoints,
    source: AsyncIterator[SourceCheckpoint],
    report: ImportReport,
    store: Store | None = None,
) -> None:
    """Import checkpoints with their writes; those of a thread come in their order.

    A checkpoint that is there is left as it is. Bytes are copied; nothing in them is revived or executed.
    `store` stores them in place of `graphs`.
    """
    sent: set[tuple[str, str]] = set()
    place: tuple[str, str] | None = None
    tasks: dict[str, bool] = {}
    async for found in source:
        if place != (found.thread_id, found.checkpoint_ns):
            place, sent, tasks = (found.thread_id, found.checkpoint_ns), set(), {}
        tasks[found.checkpoint_id] = any(write.channel == TASKS for write in found.writes)
        count = report.count(CHECKPOINTS)
        count.found += 1
        split, refusal = found.split, found.refusal
        if split is not None and split.format < WITHOUT_SENDS and tasks.get(found.parent_id or ""):
            refusal = "tasks wait in its parent in a form of early releases: run the graph once more first"
        if split is None or refusal is not None:
            report.refuse(CHECKPOINTS, found.checkpoint_id, refusal or "it cannot be read")
            continue
        if await _is_present(graphs, found):
            count.present += 1
            continue
        count.added += 1
        report.count(WRITES).found += len(found.writes)
        report.count(WRITES).added += len(found.writes)
        pieces = [
            Piece(channel=channel, version=str(split.versions[channel]), value=value)
            for channel, value in split.values.items()
            if channel in split.versions and (channel, str(split.versions[channel])) not in sent
        ]
        sent |= {(piece.channel, piece.version) for piece in pieces}
        if not report.dry_run:
            try:
                changes = _changes(found, split, pieces)
                await (graphs.put(changes) if store is None else store(found, changes))
            except InvalidInput as error:
                count.added -= 1
                report.refuse(CHECKPOINTS, found.checkpoint_id, error.message)


async def _is_present(graphs: StoredCheckpoints, found: SourceCheckpoint) -> bool:
    query = CheckpointQuery(
        thread_id=found.thread_id,
        checkpoint_ns=found.checkpoint_ns,
        checkpoint_id=found.checkpoint_id,
        limit=1,
    )
    return bool(await graphs.find(query))


def _changes(found: SourceCheckpoint, split: SplitCheckpoint, pieces: list[Piece]) -> GraphChanges:
    run_id = found.metadata.get("run_id")
    put = GraphPut(
        thread_id=found.thread_id,
        checkpoint_ns=found.checkpoint_ns,
        checkpoint_id=found.checkpoint_id,
        parent_id=found.parent_id,
        run_id=run_id if isinstance(run_id, str) and run_id else None,
        checkpoint=split.rest,
        metadata=found.metadata,
        versions=split.versions,
        pieces=pieces,
    )
    writes = [
        GraphWrite(
            thread_id=found.thread_id,
            checkpoint_ns=found.checkpoint_ns,
            checkpoint_id=found.checkpoint_id,
            task_id=write.task_id,
            task_path=write.task_path,
            idx=write.idx,
            channel=write.channel,
            value=write.value,
        )
        for write in found.writes
    ]
    return GraphChanges(puts=[put], writes=writes)
