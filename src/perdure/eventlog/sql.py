"""SQL of logs in a table, and its rows."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from perdure.eventlog.port import LogInfo, LogName
from perdure.eventlog.tables import SESSION_BLOBS, SESSION_LINES, SESSION_LOGS
from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement


class LogRow(msgspec.Struct):
    project: str
    session_id: str
    subpath: str
    last_seq: int
    size: int
    created_at: int
    updated_at: int

    @property
    def info(self) -> LogInfo:
        name = LogName(self.project, self.session_id, self.subpath)
        return LogInfo(name, self.size, self.created_at, self.updated_at)


class LogLineRow(NamedTuple):
    session_id: str
    project: str
    subpath: str
    seq: int
    attempt_id: str | None
    number: int | None
    body: str


class NumberedBody(NamedTuple):
    seq: int
    body: str


class BlobRow(NamedTuple):
    digest: str
    created_at: int
    content: bytes


_OF_LOG = "ns = :ns AND session_id = :session_id AND project = :project AND subpath = :subpath"

# Head of a log.
GET_LOG = statement("SELECT {columns} FROM session_logs WHERE " + _OF_LOG, row=LogRow)
# Lock the head of a log.
LOCK_LOG = statement("SELECT {columns} FROM session_logs WHERE " + _OF_LOG + " {lock}", row=LogRow)
# Number of the last line that an attempt wrote.
LAST_NUMBER = statement(
    "SELECT max(number) FROM session_lines WHERE " + _OF_LOG + " AND attempt_id = :attempt_id", row=int
)
# A page of the lines of a log.
READ_LINES = statement(
    "SELECT {columns} FROM (SELECT seq, body, sum(octet_length(body)) OVER (ORDER BY seq)"
    " - octet_length(body) AS ahead FROM session_lines WHERE "
    + _OF_LOG
    + " AND seq > :after AND seq <= :after + :limit) AS page WHERE ahead < :size ORDER BY seq",
    row=NumberedBody,
)
# Last lines of a log after a position.
READ_LAST_LINES = statement(
    "SELECT {columns} FROM (SELECT seq, body, sum(octet_length(body)) OVER (ORDER BY seq DESC)"
    " - octet_length(body) AS ahead FROM session_lines WHERE "
    + _OF_LOG
    + " AND seq > :after) AS page WHERE ahead < :size ORDER BY seq",
    row=NumberedBody,
)
# Logs of sessions, latest change first.
LIST_LOGS = statement(
    """
    SELECT {columns} FROM session_logs
    WHERE ns = :ns AND subpath = ''
    ORDER BY updated_at DESC
    LIMIT :limit
    """,
    row=LogRow,
)
# Logs of a session and its sub-agents.
FIND_LOGS = statement(
    """
    SELECT {columns} FROM session_logs
    WHERE ns = :ns AND session_id = :session_id
    ORDER BY project, subpath
    """,
    row=LogRow,
)
# Logs of sessions whose ids start with a text.
LOGS_STARTING = statement(
    """
    SELECT {columns} FROM session_logs
    WHERE ns = :ns AND session_id >= :first AND session_id < :last AND {plain:subpath} = ''
    ORDER BY session_id, project LIMIT :limit
    """,
    row=LogRow,
)
# Sessions whose logs have not changed since a time, oldest first, after a position.
IDLE_LOGS = statement(
    """
    SELECT {columns:l} FROM session_logs AS l
    WHERE l.ns = :ns AND l.subpath = '' AND l.updated_at < :before
      AND l.updated_at >= :updated_at AND (l.updated_at, {plain:l.session_id}, l.project) > (
        :updated_at, :session_id, :project)
      AND NOT EXISTS (SELECT 1 FROM session_logs AS s WHERE s.ns = l.ns AND s.session_id = l.session_id
        AND s.project = l.project AND s.subpath <> '' AND {plain:s.updated_at} >= :before)
    ORDER BY l.updated_at, l.session_id, l.project LIMIT :limit
    """,
    row=LogRow,
)
# Lock the logs of a session and its sub-agents in a project.
LOCK_SESSION = statement(
    """
    SELECT {columns} FROM session_logs
    WHERE ns = :ns AND session_id = :session_id AND project = :project ORDER BY subpath {lock}
    """,
    row=LogRow,
)
# Number of bytes in the lines of a log after a position.
SIZE_AFTER = statement(
    "SELECT coalesce(sum(octet_length(body) + 1), 0) FROM session_lines WHERE "
    + _OF_LOG
    + " AND seq > :after",
    row=int,
)
# Delete the lines of a log after a position.
DROP_LINES = statement("DELETE FROM session_lines WHERE " + _OF_LOG + " AND seq > :after")
# Delete the head of a log.
DROP_LOG = statement("DELETE FROM session_logs WHERE " + _OF_LOG)
# Some blobs stored before a time, in the order of their hashes.
OLD_BLOBS = statement(
    """
    SELECT digest FROM session_blobs
    WHERE ns = :ns AND digest > :after AND created_at < :before ORDER BY digest LIMIT :limit
    """,
    row=str,
)
# Some logs, in the order of their keys.
LOGS_AFTER = statement(
    """
    SELECT {columns} FROM session_logs
    WHERE ns = :ns AND (session_id, project, subpath) > (:session_id, :project, :subpath)
    ORDER BY session_id, project, subpath LIMIT :limit
    """,
    row=LogRow,
)
# Lines of a log that may name blobs.
NAMING_LINES = statement("SELECT body FROM session_lines WHERE " + _OF_LOG + " AND {has:body,mark}", row=str)
# Delete blobs stored before a time.
DROP_BLOBS = statement(
    "DELETE FROM session_blobs WHERE ns = :ns AND digest {among:digests} AND created_at < :before"
)
# Content of a blob.
GET_BLOB = statement("SELECT content FROM session_blobs WHERE ns = :ns AND digest = :digest", row=bytes)
# Add the heads of new logs.
ADD_LOGS = BulkInsert(SESSION_LOGS, LogRow)
# Write back the heads of logs that have grown.
MOVE_LOGS = BulkUpdate(
    SESSION_LOGS,
    LogRow,
    sets=("last_seq", "size", "updated_at"),
    keys=("ns", "session_id", "project", "subpath"),
)
# Add lines to logs.
ADD_LINES = BulkInsert(SESSION_LINES, LogLineRow)
# Add blobs; existing ones count as stored now.
ADD_BLOBS = BulkInsert(SESSION_BLOBS, BlobRow, on_conflict="UPDATE SET created_at = excluded.created_at")

name_statements(globals())
