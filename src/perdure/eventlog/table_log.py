"""Logs in a table, for databases shared by several machines and for databases in memory.

A position is the number of a line. Lists read only the heads of logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.eventlog import sql
from perdure.eventlog.port import (
    CHANNEL,
    EDGE_BYTES,
    PAGE_BYTES,
    PAGE_LINES,
    Edges,
    Line,
    Lines,
    LogInfo,
    LogName,
    check_append,
    check_blobs,
    check_digest,
    check_name,
    check_project,
    check_session_id,
    compute_digest,
    digests_in,
    get_idle_cursor,
    hint_key,
)
from perdure.eventlog.sql import BlobRow, LogLineRow, LogRow, NumberedBody
from perdure.kernel.clock import to_micros
from perdure.kernel.errors import InvalidInput
from perdure.kernel.storage.port import Storage, Tx

EDGE_LINES = 200
REMOVED_LINES = 500
"""Number of lines deleted in one transaction."""
REMOVED_BLOBS = 20
STORED_BLOBS = 100
"""Number of blobs that one transaction stores."""
BLOB_MARKS = ('"blob"', '"original"')
"""Text of a line that names a blob."""
MAX_LISTED = 10_000
"""Maximum number of logs in a list, latest change first."""


# --- operations -------------------------------------------------------------------------------------------


def _bind_name(name: LogName) -> dict[str, Any]:
    return name._asdict()


async def append(
    tx: Tx, name: LogName, bodies: Sequence[tuple[str, int]], attempt_id: str | None, first: int
) -> int:
    """Append lines, given with their sizes, unless the attempt has written them; return the last position."""
    head = await tx.one(sql.LOCK_LOG, **_bind_name(name))
    last = 0
    if attempt_id is not None and head is not None:
        last = await tx.one(sql.LAST_NUMBER, **_bind_name(name), attempt_id=attempt_id) or 0
    numbered = [(number, *body) for number, body in enumerate(bodies, first) if number > last]
    log = head or LogRow(*name, 0, 0, tx.now, tx.now)
    if not numbered and head is not None:
        return log.last_seq
    lines = [
        LogLineRow(
            name.session_id,
            name.project,
            name.subpath,
            seq,
            attempt_id,
            None if attempt_id is None else number,
            body,
        )
        for seq, (number, body, _) in enumerate(numbered, log.last_seq + 1)
    ]
    log.last_seq += len(lines)
    log.size += sum(size + 1 for _, _, size in numbered)
    log.updated_at = tx.now
    await tx.write((sql.MOVE_LOGS if head is not None else sql.ADD_LOGS).of([log]), sql.ADD_LINES.of(lines))
    assert tx.ns is not None
    tx.hint(CHANNEL, hint_key(tx.ns, name))
    return log.last_seq


async def read_log(
    tx: Tx, name: LogName, after: int, limit: int, size: int
) -> tuple[LogRow, list[NumberedBody]] | None:
    """Return the head of a log, and the lines after a position."""
    head = await tx.one(sql.GET_LOG, **_bind_name(name))
    if head is None:
        return None
    after = after if after <= head.last_seq else 0
    return head, await tx.all(sql.READ_LINES, **_bind_name(name), after=after, limit=limit, size=size)


async def read_edges(
    tx: Tx, names: Sequence[LogName], size: int
) -> list[tuple[LogRow, list[NumberedBody], list[NumberedBody]] | None]:
    """Return the heads of logs with their first and last lines."""
    edges: list[tuple[LogRow, list[NumberedBody], list[NumberedBody]] | None] = []
    for name in names:
        page = await read_log(tx, name, 0, EDGE_LINES, size)
        if page is None:
            edges.append(None)
            continue
        head, first = page
        reached = first[-1].seq if first else 0
        after = max(reached, head.last_seq - EDGE_LINES)
        last = await tx.all(sql.READ_LAST_LINES, **_bind_name(name), after=after, size=size)
        edges.append((head, first, last))
    return edges


async def list_logs(tx: Tx) -> list[LogRow]:
    return await tx.all(sql.LIST_LOGS, limit=MAX_LISTED)


async def find_logs(tx: Tx, session_id: str) -> list[LogRow]:
    return await tx.all(sql.FIND_LOGS, session_id=session_id)


async def logs_starting(tx: Tx, prefix: str, limit: int) -> list[LogRow]:
    # An id has only ASCII letters, which all sort before this character.
    return await tx.all(sql.LOGS_STARTING, first=prefix, last=prefix + "\x7f", limit=limit)


async def put_blobs(tx: Tx, contents: Sequence[tuple[str, bytes]]) -> None:
    await tx.write(sql.ADD_BLOBS.of([BlobRow(digest, tx.now, content) for digest, content in contents]))


async def get_blob(tx: Tx, digest: str) -> bytes | None:
    return await tx.one(sql.GET_BLOB, digest=digest)


async def idle_logs(tx: Tx, age: int, after: tuple[int, str, str], limit: int) -> list[LogRow]:
    updated_at, session_id, project = after
    place = {"updated_at": updated_at, "session_id": session_id, "project": project}
    return await tx.all(sql.IDLE_LOGS, before=tx.now - age, **place, limit=limit)


async def remove_some(tx: Tx, name: LogName, age: int) -> bool | None:
    """Delete the last lines of a session, or in the end its logs; True if it is gone, None if it changed."""
    heads = await tx.all(sql.LOCK_SESSION, session_id=name.session_id, project=name.project)
    if any(head.updated_at >= tx.now - age for head in heads):
        return None
    if not heads:
        return True
    # The session's own log sorts first and is deleted last.
    log = heads[-1]
    of_log = _bind_name(log.info.name)
    left = max(0, log.last_seq - REMOVED_LINES)
    log.size -= await tx.one(sql.SIZE_AFTER, **of_log, after=left) or 0
    await tx.execute(sql.DROP_LINES, **of_log, after=left)
    if left:
        log.last_seq = left
        await tx.update_many(sql.MOVE_LOGS, [log])
        return False
    await tx.execute(sql.DROP_LOG, **of_log)
    return len(heads) == 1


async def old_blobs(tx: Tx, age: int, after: str) -> list[str]:
    return await tx.all(sql.OLD_BLOBS, after=after, before=tx.now - age, limit=MAX_LISTED)


async def named_blobs(tx: Tx, name: LogName) -> list[str]:
    """Return the lines of a log that may name blobs."""
    return [
        line for mark in BLOB_MARKS for line in await tx.all(sql.NAMING_LINES, **_bind_name(name), mark=mark)
    ]


async def logs_after(tx: Tx, after: LogName) -> list[LogRow]:
    return await tx.all(sql.LOGS_AFTER, **_bind_name(after), limit=MAX_LISTED)


async def remove_blobs(tx: Tx, digests: Sequence[str], age: int) -> int:
    return await tx.execute(sql.DROP_BLOBS, digests=list(digests), before=tx.now - age)


# --- the log ----------------------------------------------------------------------------------------------


class TableEventLog:
    """Logs in the tables of a database. The caller that opened the database closes it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def append(
        self, ns: int, name: LogName, bodies: Sequence[bytes], *, attempt_id: str = "", first: int = 1
    ) -> int:
        check_append(bodies, attempt_id, first)
        texts = [(_text(body), len(body)) for body in bodies]
        return await self._storage.run(append, check_name(name), texts, attempt_id or None, first, ns=ns)

    async def read(
        self,
        ns: int,
        name: LogName,
        *,
        after: int = 0,
        limit: int = PAGE_LINES,
        max_bytes: int = PAGE_BYTES,
    ) -> Lines | None:
        page = await self._storage.read(read_log, check_name(name), after, limit, max_bytes, ns=ns)
        if page is None:
            return None
        head, rows = page
        lines = _to_lines(rows)
        reached = lines[-1].after if lines else min(after, head.last_seq)
        return Lines(lines, reached, head.last_seq)

    async def edges(self, ns: int, names: Sequence[LogName], *, size: int = EDGE_BYTES) -> list[Edges | None]:
        edges = await self._storage.read(read_edges, [check_name(name) for name in names], size, ns=ns)
        return [None if edge is None else _edges(*edge) for edge in edges]

    async def logs(self, ns: int, *, project: str | None = None) -> list[LogInfo]:
        wanted = None if project is None else check_project(project)
        rows = await self._storage.read(list_logs, ns=ns)
        return [row.info for row in rows if wanted is None or row.project == wanted]

    async def sub_agents(self, ns: int, name: LogName) -> list[LogInfo]:
        rows = await self._storage.read(find_logs, check_name(name).session_id, ns=ns)
        return [row.info for row in rows if row.subpath and row.project == name.project]

    async def find(self, ns: int, session_id: str) -> list[LogInfo]:
        rows = await self._storage.read(find_logs, check_session_id(session_id), ns=ns)
        return [row.info for row in rows if not row.subpath]

    async def starting(self, ns: int, prefix: str, limit: int) -> list[LogInfo]:
        return [row.info for row in await self._storage.read(logs_starting, prefix, limit, ns=ns)]

    async def idle(self, ns: int, seconds: float, after: LogInfo | None, limit: int) -> list[LogInfo]:
        age = to_micros(seconds)
        return [
            row.info for row in await self._storage.read(idle_logs, age, get_idle_cursor(after), limit, ns=ns)
        ]

    async def remove(self, ns: int, name: LogName, seconds: float) -> bool:
        while True:
            gone = await self._storage.background(remove_some, check_name(name), to_micros(seconds), ns=ns)
            if gone is not False:
                return bool(gone)

    async def drop_blobs(self, ns: int, seconds: float) -> int:
        age = to_micros(seconds)
        old: set[str] = set()
        after = ""
        while digests := await self._storage.read(old_blobs, age, after, ns=ns):
            old.update(digests)
            after = digests[-1]
        place = LogName("", "")
        while old and (logs := await self._storage.read(logs_after, place, ns=ns)):
            for log in logs:
                place = log.info.name
                for body in await self._storage.read(named_blobs, place, ns=ns):
                    old.difference_update(digests_in(body.encode()))
        unnamed, dropped = sorted(old), 0
        for start in range(0, len(unnamed), REMOVED_BLOBS):
            some = unnamed[start : start + REMOVED_BLOBS]
            dropped += await self._storage.background(remove_blobs, some, age, ns=ns)
        return dropped

    async def put_blob(self, ns: int, content: bytes) -> str:
        await self.put_blobs(ns, [content])
        return compute_digest(content)

    async def put_blobs(self, ns: int, contents: Sequence[bytes]) -> None:
        check_blobs(contents)
        # Rows are locked in the order of their keys.
        named = sorted({compute_digest(content): content for content in contents}.items())
        for start in range(0, len(named), STORED_BLOBS):
            await self._storage.run(put_blobs, named[start : start + STORED_BLOBS], ns=ns)

    async def get_blob(self, ns: int, digest: str) -> bytes | None:
        return await self._storage.read(get_blob, check_digest(digest), ns=ns)

    async def close(self) -> None:
        """Do nothing: another component owns the database."""


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise InvalidInput("a line of the log must be UTF-8") from None


def _to_lines(rows: Sequence[NumberedBody]) -> list[Line]:
    return [Line(row.seq, row.seq, row.body.encode()) for row in rows]


def _edges(head: LogRow, first: list[NumberedBody], last: list[NumberedBody]) -> Edges:
    reached = first[-1].seq if first else 0
    whole = not last or (last[0].seq == reached + 1 and last[-1].seq == head.last_seq)
    whole = whole and (bool(last) or reached == head.last_seq)
    return Edges(head.info, _to_lines(first), _to_lines(last), whole)
