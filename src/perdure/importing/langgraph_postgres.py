"""Databases of `langgraph-checkpoint-postgres`, and the tables of LangGraph's own server."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple

from perdure.checkpoints.records import GraphChanges, GraphState, GraphSteps
from perdure.checkpoints.service import StoredCheckpoints
from perdure.importing.checkpoints import SourceCheckpoint, SourceWrite, SplitCheckpoint, split_parts
from perdure.importing.records import ImportReport
from perdure.kernel.codec import decode_json
from perdure.kernel.errors import InvalidInput, NotFound
from perdure.kernel.storage.postgres_foreign import Fetch
from perdure.langgraph.revival import strict_serializer
from perdure.langgraph.wire import interrupts_in
from perdure.threads.service import Threads

logger = logging.getLogger(__name__)

BRANCH: Final = "branch:to:"
"""Prefix of the channels that lead to nodes."""
INTERRUPT: Final = "__interrupt__"
EMPTY: Final = "empty"
"""Form of a channel without a value."""
PAGE: Final = 100
THREADS: Final = "threads"
RUNS: Final = "runs"
_TABLES: Final = (
    "SELECT table_name::text FROM information_schema.tables"
    " WHERE table_schema = current_schema() AND table_name = ANY($1)"
)
_PLACES: Final = (
    "SELECT DISTINCT thread_id::text, checkpoint_ns FROM checkpoints"
    " WHERE (thread_id::text, checkpoint_ns) > ($1, $2) ORDER BY 1, 2 LIMIT $3"
)
_CHECKPOINTS: Final = (
    "SELECT checkpoint_id::text, parent_checkpoint_id::text, checkpoint::text, metadata::text"
    " FROM checkpoints WHERE thread_id::text = $1 AND checkpoint_ns = $2 AND checkpoint_id::text > $3"
    " ORDER BY checkpoint_id::text LIMIT $4"
)
_BLOBS: Final = (
    "SELECT channel, version::text, type, blob FROM checkpoint_blobs"
    " WHERE thread_id::text = $1 AND checkpoint_ns = $2 AND channel = ANY($3) AND version::text = ANY($4)"
)
_WRITES: Final = (
    "SELECT task_id::text, idx, channel, type, blob, to_jsonb(w) ->> 'task_path' FROM checkpoint_writes AS w"
    " WHERE thread_id::text = $1 AND checkpoint_ns = $2 AND checkpoint_id::text = $3 ORDER BY task_id, idx"
)
_THREADS: Final = (
    "SELECT thread_id::text, metadata::text, config::text FROM thread"
    " WHERE thread_id::text > $1 ORDER BY 1 LIMIT $2"
)
_RUNS: Final = "SELECT count(*) FROM run"


class _CheckpointRow(NamedTuple):
    checkpoint_id: str
    parent_id: str | None
    checkpoint: str
    metadata: str | None


class _BlobRow(NamedTuple):
    channel: str
    version: str
    form: str
    body: bytes | None


class _WriteRow(NamedTuple):
    task_id: str
    idx: int
    channel: str
    form: str | None
    body: bytes
    task_path: str | None


class _ThreadRow(NamedTuple):
    thread_id: str
    metadata: str | None
    config: str | None


async def check_tables(fetch: Fetch, *names: str) -> None:
    """Refuse a database without the tables of a source."""
    existing = {name for (name,) in await fetch(_TABLES, list(names))}
    missing = [name for name in names if name not in existing]
    if missing:
        raise InvalidInput(f"the database has no table {missing[0]!r}; is it that of another program?")


async def read_postgres_checkpoints(fetch: Fetch) -> AsyncIterator[SourceCheckpoint]:
    """Read the checkpoints of a database, those of each thread in order."""
    place = ("", "")
    while True:
        places = await fetch(_PLACES, *place, PAGE)
        for thread_id, checkpoint_ns in places:
            place = thread_id, checkpoint_ns
            async for checkpoint in _of_place(fetch, thread_id, checkpoint_ns):
                yield checkpoint
        if len(places) < PAGE:
            return


async def _of_place(fetch: Fetch, thread_id: str, checkpoint_ns: str) -> AsyncIterator[SourceCheckpoint]:
    after = ""
    while True:
        rows = await fetch(_CHECKPOINTS, thread_id, checkpoint_ns, after, PAGE)
        for row in map(_CheckpointRow._make, rows):
            after = row.checkpoint_id
            yield await _checkpoint(fetch, thread_id, checkpoint_ns, row)
        if len(rows) < PAGE:
            return


async def _checkpoint(
    fetch: Fetch, thread_id: str, checkpoint_ns: str, row: _CheckpointRow
) -> SourceCheckpoint:
    checkpoint = _object(row.checkpoint)
    inline = checkpoint.get("channel_values")
    split = split_parts(checkpoint, inline if isinstance(inline, dict) else {})
    wanted = {name: str(version) for name, version in split.versions.items() if name not in split.values}
    blobs = await fetch(_BLOBS, thread_id, checkpoint_ns, list(wanted), list(wanted.values()))
    values = dict(split.values)
    for blob in map(_BlobRow._make, blobs):
        if wanted.get(blob.channel) == blob.version and blob.form != EMPTY:
            values[blob.channel] = (blob.form, blob.body or b"")
    writes = await fetch(_WRITES, thread_id, checkpoint_ns, row.checkpoint_id)
    return SourceCheckpoint(
        thread_id=thread_id,
        checkpoint_ns=checkpoint_ns,
        checkpoint_id=row.checkpoint_id,
        parent_id=row.parent_id or None,
        split=SplitCheckpoint(rest=split.rest, versions=split.versions, values=values, format=split.format),
        metadata=_object(row.metadata),
        writes=[_write(_WriteRow._make(write)) for write in writes],
        next=_next_nodes(checkpoint),
    )


def _next_nodes(checkpoint: dict[str, Any]) -> list[str]:
    """Return the next nodes after the last step of a graph."""
    updated = checkpoint.get("updated_channels")
    channels = (
        [channel for channel in updated if isinstance(channel, str)] if isinstance(updated, list) else []
    )
    return [channel.removeprefix(BRANCH) for channel in channels if channel.startswith(BRANCH)]


def _write(row: _WriteRow) -> SourceWrite:
    return SourceWrite(
        task_id=row.task_id,
        task_path=row.task_path or "",
        idx=row.idx,
        channel=row.channel,
        value=(row.form or "null", row.body),
    )


def _object(text: str | None) -> dict[str, Any]:
    value = {} if text is None else decode_json(text)
    return value if isinstance(value, dict) else {}


# --- LangGraph's server -----------------------------------------------------------------------------------


async def _is_thread(threads: Threads, thread_id: str) -> bool:
    try:
        await threads.get_thread(thread_id)
    except NotFound:
        return False
    return True


async def import_threads(fetch: Fetch, threads: Threads, report: ImportReport) -> None:
    """Import the threads of a LangGraph server with their metadata. Count its runs, which have ended."""
    after = ""
    count = report.count(THREADS)
    while True:
        rows = await fetch(_THREADS, after, PAGE)
        for row in map(_ThreadRow._make, rows):
            after = row.thread_id
            count.found += 1
            if await _is_thread(threads, row.thread_id):
                count.present += 1
                continue
            count.added += 1
            if not report.dry_run:
                await threads.create_thread(
                    row.thread_id,
                    metadata=_object(row.metadata),
                    config=_object(row.config),
                    if_exists="do_nothing",
                )
        if len(rows) < PAGE:
            break
    ((runs,),) = await fetch(_RUNS)
    report.count(RUNS).found = runs


class ThreadStates:
    """Stores imported checkpoints as states of their threads, so that a server shows them."""

    def __init__(self, graphs: StoredCheckpoints, threads: Threads) -> None:
        self._graphs, self._threads = graphs, threads
        self._serde = strict_serializer()

    async def store(self, source: SourceCheckpoint, changes: GraphChanges) -> None:
        """Store a checkpoint, as a state unless the thread is missing or has continued in the meantime.

        Raise Conflict while the thread is busy.
        """
        latest = await self._latest(source.thread_id) if not source.checkpoint_ns else None
        if latest is None or latest >= source.checkpoint_id:
            await self._graphs.put(changes)
            return
        state = GraphState(
            checkpoint_id=source.checkpoint_id,
            parent_id=source.parent_id,
            next=source.next,
            interrupts=[shown for write in source.writes for shown in self._interrupts(write)],
            metadata=source.metadata,
        )
        steps = GraphSteps(changes=changes, states=[state])
        await self._threads.update_graph(source.thread_id, steps, latest or None)

    async def _latest(self, thread_id: str) -> str | None:
        """Return the newest state of a thread, an empty text if it has none, and None without a thread."""
        try:
            state = await self._threads.peek_state(thread_id)
        except NotFound:
            return None
        return "" if state is None else state.checkpoint_id

    def _interrupts(self, write: SourceWrite) -> list[dict[str, Any]]:
        """Return the questions of a task as plain data. Types that the codec does not allow are left out."""
        if write.channel != INTERRUPT:
            return []
        try:
            asked = self._serde.loads_typed(write.value)
        except (NotImplementedError, ValueError) as error:
            logger.warning("a question of task %s cannot be read: %s", write.task_id, error)
            return []
        return [{**question, "task_id": write.task_id} for question in interrupts_in(asked)]
