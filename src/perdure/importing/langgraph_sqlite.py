"""Databases of `langgraph-checkpoint-sqlite`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from perdure.importing.checkpoints import SourceCheckpoint, SourceWrite, split_checkpoint
from perdure.kernel.codec import decode_json
from perdure.kernel.errors import InvalidInput, NotFound

_TABLES: Final = "SELECT name FROM sqlite_master WHERE name IN ('checkpoints', 'writes')"
_PLACES: Final = "SELECT DISTINCT thread_id, checkpoint_ns FROM checkpoints ORDER BY thread_id, checkpoint_ns"
_CHECKPOINTS: Final = (
    "SELECT checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata FROM checkpoints"
    " WHERE thread_id = ? AND checkpoint_ns = ? ORDER BY checkpoint_id"
)
_PATHS: Final = "SELECT 1 FROM pragma_table_info('writes') WHERE name = 'task_path'"
_WRITES: Final = (
    "SELECT task_id, task_path, idx, channel, type, value FROM writes"
    " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ? ORDER BY task_id, idx"
)
_WRITES_WITHOUT_PATH: Final = _WRITES.replace("task_path", "''", 1)


class _CheckpointRow(NamedTuple):
    checkpoint_id: str
    parent_id: str | None
    form: str | None
    body: bytes | None
    metadata: bytes | str | None


class _WriteRow(NamedTuple):
    task_id: str
    task_path: str
    idx: int
    channel: str
    form: str | None
    body: bytes | None


@contextlib.contextmanager
def open_foreign_sqlite(file: Path) -> Iterator[apsw.Connection]:
    """Open the SQLite file of another program for reading."""
    if not file.is_file():
        raise NotFound(f"file {file} not found")
    connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        yield connection
    except apsw.NotADBError:
        raise InvalidInput(f"{file} is not an SQLite database") from None
    finally:
        connection.close()


async def read_sqlite_checkpoints(file: Path) -> AsyncIterator[SourceCheckpoint]:
    """Read the checkpoints of a file, those of each thread in order."""
    with open_foreign_sqlite(file) as connection:
        if len(connection.execute(_TABLES).fetchall()) != 2:
            raise InvalidInput(f"{file} has no tables of langgraph-checkpoint-sqlite")
        writes = _WRITES if connection.execute(_PATHS).fetchall() else _WRITES_WITHOUT_PATH
        places: list[Any] = connection.execute(_PLACES).fetchall()
        for thread_id, checkpoint_ns in places:
            for values in connection.execute(_CHECKPOINTS, (thread_id, checkpoint_ns)):
                row = _CheckpointRow._make(values)
                key = (thread_id, checkpoint_ns, row.checkpoint_id)
                rows = map(_WriteRow._make, connection.execute(writes, key))
                yield _checkpoint(thread_id, checkpoint_ns, row, [_write(write) for write in rows])


def _checkpoint(
    thread_id: str, checkpoint_ns: str, row: _CheckpointRow, writes: list[SourceWrite]
) -> SourceCheckpoint:
    split, refusal = None, None
    try:
        split = split_checkpoint(row.form or "", bytes(row.body or b""))
    except InvalidInput as error:
        refusal = error.message
    return SourceCheckpoint(
        thread_id=thread_id,
        checkpoint_ns=checkpoint_ns,
        checkpoint_id=row.checkpoint_id,
        parent_id=row.parent_id or None,
        split=split,
        metadata=_metadata(row.metadata),
        writes=writes,
        refusal=refusal,
    )


def _metadata(value: bytes | str | None) -> dict[str, Any]:
    """Return the metadata of a checkpoint. Early releases used other forms, which are left out."""
    try:
        metadata = {} if value is None else decode_json(value)
    except InvalidInput:
        return {}
    return metadata if isinstance(metadata, dict) else {}


def _write(row: _WriteRow) -> SourceWrite:
    return SourceWrite(
        task_id=row.task_id,
        task_path=row.task_path or "",
        idx=row.idx,
        channel=row.channel,
        value=(row.form or "null", bytes(row.body or b"")),
    )
