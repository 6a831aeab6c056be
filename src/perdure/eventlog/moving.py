"""Moving session logs from files to tables and back, to restore one engine's backup to the other engine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from perdure.eventlog.file_lines import unstamped
from perdure.eventlog.file_log import SUFFIX, FileEventLog
from perdure.eventlog.port import LogName, check_name
from perdure.eventlog.tables import SESSION_BLOBS, SESSION_LINES, SESSION_LOGS
from perdure.kernel.storage.backup_file import insert_into

CHUNK_LINES = 100
BLOBS = "blobs"
DIGEST = 64
"""Number of digits in a blob's name; a longer name is a draft."""
NAMESPACES = "namespaces"
_LOGS = (
    "SELECT ns, project, session_id, subpath, updated_at FROM session_logs ORDER BY ns, project, session_id"
)
_LINES = (
    "SELECT attempt_id, number, body FROM session_lines"
    " WHERE ns = ? AND session_id = ? AND project = ? AND subpath = ? ORDER BY seq"
)
_BLOBS = "SELECT ns, content FROM session_blobs"
_CLEAR = ("DELETE FROM session_logs", "DELETE FROM session_lines", "DELETE FROM session_blobs")


class StoredLine(NamedTuple):
    """A line, with its number within the attempt that wrote it."""

    attempt_id: str | None
    number: int | None
    body: str


# --- from files to tables ---------------------------------------------------------------------------------


def logs_to_tables(folder: Path, connection: apsw.Connection, now: int) -> None:
    """Add the logs below a folder to the tables of a database; `now` is the time of the logs."""
    with connection:
        for ns, root in _namespaces(folder):
            for path in sorted((root / "projects").rglob("*" + SUFFIX)):
                _add_log(connection, ns, _parse_log_name(path.relative_to(root / "projects")), path, now)
            for path in sorted((root / BLOBS).rglob("*")):
                if len(path.name) == DIGEST and path.is_file():
                    row = (ns, path.name, now, path.read_bytes())
                    connection.execute(insert_into(SESSION_BLOBS), row)


def _namespaces(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield the numbers and folders of namespaces; that of the first is the folder itself."""
    yield 1, folder
    for place in sorted((folder / NAMESPACES).glob("*")):
        if place.name.isdecimal() and place.is_dir():
            yield int(place.name), place


def _parse_log_name(path: Path) -> LogName:
    project, *steps = path.with_suffix("").parts
    session_id, *below = steps
    return check_name(LogName(project, session_id, "/".join(below)))


def _add_log(connection: apsw.Connection, ns: int, name: LogName, path: Path, now: int) -> None:
    size = count = 0

    def rows() -> Iterator[Sequence[Any]]:
        nonlocal size, count
        with path.open("rb") as file:
            for line in file:
                body, attempt_id, number = unstamped(line.rstrip(b"\n"))
                count, size = count + 1, size + len(body) + 1
                text = body.decode("utf-8", "replace")
                yield (ns, name.session_id, name.project, name.subpath, count, attempt_id, number, text)

    connection.executemany(insert_into(SESSION_LINES), rows())
    connection.execute(insert_into(SESSION_LOGS), (ns, *name, count, size, now, now))


# --- from tables to files ---------------------------------------------------------------------------------


def logs_to_files(connection: apsw.Connection, folder: Path) -> bool:
    """Move the logs of the tables to files below a folder; return whether there are any."""
    log = FileEventLog(folder, sync=False)
    logs: list[Any] = connection.execute(_LOGS).fetchall()
    times: list[tuple[Path, int]] = []
    for ns, project, session_id, subpath, updated_at in logs:
        name = check_name(LogName(project, session_id, subpath))
        rows = connection.execute(_LINES, (ns, session_id, project, subpath))
        for attempt_id, lines in groupby(map(StoredLine._make, rows), lambda line: line.attempt_id):
            for part in _parts(lines):
                bodies = [line.body.encode() for line in part]
                log.append_now(ns, name, bodies, attempt_id or "", part[0].number or 1)
        times.append((log.path_of(ns, name), updated_at))
    has_files = bool(logs)
    blobs: Iterator[Any] = connection.execute(_BLOBS)
    for ns, content in blobs:
        log.put_blob_now(ns, content)
        has_files = True
    log.close_now()
    for path, micros in times:
        if path.exists():
            os.utime(path, ns=(micros * 1000, micros * 1000))
    with connection:
        for clear in _CLEAR:
            connection.execute(clear)
    return has_files


def _parts(lines: Iterator[StoredLine]) -> Iterator[list[StoredLine]]:
    """Yield lines in parts with consecutive numbers."""
    part: list[StoredLine] = []
    for line in lines:
        follows = not part or line.number is None or line.number == (part[-1].number or 0) + 1
        if part and (not follows or len(part) == CHUNK_LINES):
            yield part
            part = []
        part.append(line)
    if part:
        yield part
