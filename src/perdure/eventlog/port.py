"""Session logs: names, lines, pages, and the interface of both kinds of log.

A log holds the JSON lines of one agent session, or of one of its sub-agents. Lines are only appended.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from mmap import mmap
from typing import Any, Final, NamedTuple, Protocol, TypeGuard

from perdure.kernel.checks import check_number, check_text
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import InvalidInput

CHANNEL: Final = "eventlog"
"""Channel of hints; `hint_key` returns the key."""

MAX_LINE: Final = 8 << 20
"""Longest accepted line, in bytes."""
MAX_READ: Final = 64 << 20
"""Maximum number of bytes read of one line, for lines of other writers."""
MAX_LINES: Final = 1000
"""Maximum number of lines in one append."""
MAX_BATCH: Final = 16 << 20
"""Maximum number of bytes in one append."""
MAX_BLOB: Final = 64 << 20
PAGE_LINES: Final = 1000
PAGE_BYTES: Final = 1 << 20
"""A page ends with the line that makes it larger than this."""
EDGE_BYTES: Final = 32 << 10
"""Bytes read from each end of a log to describe it."""
MAX_PROJECT: Final = 200
CHAT_PROJECT: Final = "-app"
"""Project of chat sessions."""

_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_SUBPATH = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}(/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}){0,7}")
_HASH = re.compile(r"[0-9a-f]{64}")
_ANY_HASH = re.compile(rb"[0-9a-f]{64}")
_ATTEMPT_ID = re.compile(r"[A-Za-z0-9_.:-]{0,255}")
_NOT_IN_ID = re.compile(r"[^A-Za-z0-9_-]")


class LogName(NamedTuple):
    """Name of a session's log in a project; with `subpath`, of a sub-agent's log."""

    project: str
    session_id: str
    subpath: str = ""


class LogInfo(NamedTuple):
    """A log in a list: its size in bytes, and its times in epoch microseconds."""

    name: LogName
    size: int
    created_at: int
    updated_at: int
    identity: int = 0
    """Distinguishes a file from an earlier one with the same name."""


class Line(NamedTuple):
    """A line with its position, and the position to continue reading from."""

    position: int
    after: int
    body: bytes


class Lines(NamedTuple):
    """A part of a log. `reached` is the position to continue from; `end` is the end of the log."""

    lines: Sequence[Line]
    reached: int
    end: int


class Edges(NamedTuple):
    """The first and the last lines of a log. `whole` is true if no line is missing in between."""

    info: LogInfo
    first: Sequence[Line]
    last: Sequence[Line]
    whole: bool


class EventLog(Protocol):
    """The logs of all sessions of a database."""

    async def append(
        self, ns: int, name: LogName, bodies: Sequence[bytes], *, attempt_id: str = "", first: int = 1
    ) -> int:
        """Append JSON objects, one per line; return the position after them once they are durable.

        With an attempt, its lines are numbered from `first` on; lines that it has already written are
        skipped.
        """
        ...

    async def read(
        self,
        ns: int,
        name: LogName,
        *,
        after: int = 0,
        limit: int = PAGE_LINES,
        max_bytes: int = PAGE_BYTES,
    ) -> Lines | None:
        """Return the complete lines after a position; None without such a log."""
        ...

    async def edges(self, ns: int, names: Sequence[LogName], *, size: int = EDGE_BYTES) -> list[Edges | None]:
        """Return the first and the last lines of logs, about `size` bytes each.

        A log of at most twice `EDGE_BYTES` is returned completely.
        """
        ...

    async def logs(self, ns: int, *, project: str | None = None) -> list[LogInfo]:
        """Return the logs of sessions, latest change first, except logs of sub-agents."""
        ...

    async def sub_agents(self, ns: int, name: LogName) -> list[LogInfo]:
        """Return the logs of a session's sub-agents."""
        ...

    async def find(self, ns: int, session_id: str) -> list[LogInfo]:
        """Return the logs of a session in all projects."""
        ...

    async def starting(self, ns: int, prefix: str, limit: int) -> list[LogInfo]:
        """Return some logs of sessions whose ids start with `prefix`, in the order of their ids."""
        ...

    async def idle(self, ns: int, seconds: float, after: LogInfo | None, limit: int) -> list[LogInfo]:
        """Return some sessions unchanged for `seconds`, oldest first, that come after `after`."""
        ...

    async def remove(self, ns: int, name: LogName, seconds: float) -> bool:
        """Delete the logs of a session and its sub-agents if none has changed for `seconds`.

        Return whether they were deleted. The session's own log is deleted last, so that a log left by a crash
        is found again. Blobs stay, because other sessions may refer to them.
        """
        ...

    async def drop_blobs(self, ns: int, seconds: float) -> int:
        """Delete blobs stored more than `seconds` ago that no log names; return how many.

        This reads all logs of the namespace.
        """
        ...

    async def put_blob(self, ns: int, content: bytes) -> str:
        """Store content under its hash; return the hash."""
        ...

    async def put_blobs(self, ns: int, contents: Sequence[bytes]) -> None:
        """Store contents, each under its hash."""
        ...

    async def get_blob(self, ns: int, digest: str) -> bytes | None:
        """Return the content with this hash, or None."""
        ...

    async def close(self) -> None: ...


def build_project_name(cwd: str) -> str:
    """Build the project name of a working directory: its path with dashes for slashes."""
    slug = check_text(cwd, "cwd", max_length=4096).replace("/", "-").replace("\\", "-")
    if len(slug.encode()) > MAX_PROJECT:
        digest = hashlib.sha256(cwd.encode()).hexdigest()
        slug = slug.encode()[: MAX_PROJECT - 17].decode("utf-8", "ignore") + "-" + digest[:16]
    return check_project(slug if slug not in ("", ".", "..") else "-" + slug)


def check_project(project: object) -> str:
    """Check the name of a project: one part of a path."""
    text = check_text(project, "project", max_length=MAX_PROJECT)
    if text in ("", ".", "..") or "/" in text or "\\" in text or not text.isprintable():
        raise InvalidInput("project must be a name without slashes, such as -home-agent-workspace")
    return text


def check_session_id(session_id: object) -> str:
    if not isinstance(session_id, str) or not _SESSION_ID.fullmatch(session_id):
        raise InvalidInput("session_id must be 1 to 128 letters, digits, dashes and underscores")
    return session_id


def default_session_id(name: str) -> str:
    """Return the session id of a thread or run: its id, or a derived one if that is not valid."""
    try:
        return check_session_id(name)
    except InvalidInput:
        digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()
        return f"{_NOT_IN_ID.sub('-', name)[:100]}-{digest[:16]}"


def check_name(name: LogName) -> LogName:
    """Check the name of a log, whose parts must not lead out of the folder of logs."""
    check_project(name.project)
    check_session_id(name.session_id)
    if name.subpath and not _SUBPATH.fullmatch(name.subpath):
        raise InvalidInput("subpath must be names separated by slashes, such as subagents/agent-1")
    return name


def is_digest(digest: object) -> TypeGuard[str]:
    """Return whether a value is the name of a blob."""
    return isinstance(digest, str) and _HASH.fullmatch(digest) is not None


def check_digest(digest: object) -> str:
    if not is_digest(digest):
        raise InvalidInput("a blob is named by the SHA-256 of its content, in hexadecimal")
    return digest


def check_append(bodies: Sequence[bytes], attempt_id: str, first: int) -> None:
    """Check lines to append: JSON objects on one line each, within the limits."""
    check_number(first, "first", least=1)
    if not _ATTEMPT_ID.fullmatch(attempt_id):
        raise InvalidInput("attempt_id must be letters, digits, dashes, underscores, periods and colons")
    if len(bodies) > MAX_LINES:
        raise InvalidInput(f"at most {MAX_LINES} lines can be appended at once, not {len(bodies)}")
    for body in bodies:
        if len(body) > MAX_LINE:
            raise InvalidInput(f"a line must be at most {MAX_LINE} bytes long, not {len(body)}")
        if not _is_line(body):
            raise InvalidInput("a line must be a JSON object with at least one field, on one line")
    if sum(map(len, bodies)) > MAX_BATCH:
        raise InvalidInput(f"at most {MAX_BATCH} bytes can be appended at once")


def check_blobs(contents: Sequence[bytes]) -> None:
    """Refuse content that is too long for a blob."""
    for content in contents:
        if len(content) > MAX_BLOB:
            raise InvalidInput(f"a blob must be at most {MAX_BLOB} bytes long, not {len(content)}")


def _is_line(body: bytes) -> bool:
    """Return whether a body looks like an object on one line; runs for every line, so without a regex."""
    return (
        len(body) > 2
        and body.startswith(b"{")
        and body.endswith(b"}")
        and b"\n" not in body
        and b"\0" not in body
    )


def encode_line(record: Mapping[str, Any]) -> bytes:
    """Encode a record as a line; perdure's JSON has no line breaks."""
    return encode_json(record, what="a line of the log").encode()


def hint_key(ns: int, name: LogName) -> str:
    """Return the key of a log's hints."""
    return "/".join((str(ns), *name))


def get_idle_cursor(info: LogInfo | None) -> tuple[int, str, str]:
    """Return the position of a session in the order of `idle`."""
    if info is None:
        return (-1, "", "")
    return (info.updated_at, info.name.session_id, info.name.project)


def digests_in(content: bytes | mmap) -> Iterator[str]:
    """Yield all texts that may be the hash of a blob."""
    return (match.group().decode() for match in _ANY_HASH.finditer(content))


def compute_digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
