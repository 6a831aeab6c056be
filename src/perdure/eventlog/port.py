"""What a log of sessions is: names, lines, pages, and the interface of both kinds of log.

A log holds the JSON lines of one agent session, or of one sub-agent of it. Lines are only ever appended.
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
"""The channel of hints; a key is what `hint_key` gives."""

MAX_LINE: Final = 8 << 20
"""The longest line that is accepted, in bytes."""
MAX_READ: Final = 64 << 20
"""How much of one line is read, however it came into the log."""
MAX_LINES: Final = 1000
"""The most lines of one append."""
MAX_BATCH: Final = 16 << 20
"""The most bytes of one append."""
MAX_BLOB: Final = 64 << 20
PAGE_LINES: Final = 1000
PAGE_BYTES: Final = 1 << 20
"""A page ends with the line that makes it larger than this."""
EDGE_BYTES: Final = 32 << 10
"""How much of the beginning and of the end of a log is read to describe it."""
MAX_PROJECT: Final = 200
CHAT_PROJECT: Final = "-app"
"""The project of chat sessions."""

_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_SUBPATH = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}(/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}){0,7}")
_HASH = re.compile(r"[0-9a-f]{64}")
_ANY_HASH = re.compile(rb"[0-9a-f]{64}")
_ATTEMPT_ID = re.compile(r"[A-Za-z0-9_.:-]{0,255}")
_NOT_IN_ID = re.compile(r"[^A-Za-z0-9_-]")


class LogName(NamedTuple):
    """Which log: of a session in a project, or of a sub-agent of it, named by its subpath."""

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
    """What tells a file from another one that had its name before."""


class Line(NamedTuple):
    """A line with its position, and the position after it, from which a reader goes on."""

    position: int
    after: int
    body: bytes


class Lines(NamedTuple):
    """A part of a log. `reached` is where to read on; `end` is where the log ended when it was read."""

    lines: Sequence[Line]
    reached: int
    end: int


class Edges(NamedTuple):
    """The first and the last lines of a log. `whole` if nothing is between."""

    info: LogInfo
    first: Sequence[Line]
    last: Sequence[Line]
    whole: bool


class EventLog(Protocol):
    """The logs of all sessions of a database."""

    async def append(
        self, ns: int, name: LogName, bodies: Sequence[bytes], *, attempt_id: str = "", first: int = 1
    ) -> int:
        """Append JSON objects, each one line; returns the position after them once they are durable.

        With an attempt, the lines are numbered within it from `first` on, and a line whose number the log
        has already is not written again.
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
        """The complete lines after a position; None if there is no such log."""
        ...

    async def edges(self, ns: int, names: Sequence[LogName], *, size: int = EDGE_BYTES) -> list[Edges | None]:
        """The first and the last lines of logs, about `size` bytes of each, without what is between.

        A log that is no longer than twice `EDGE_BYTES` is given whole.
        """
        ...

    async def logs(self, ns: int, *, project: str | None = None) -> list[LogInfo]:
        """The logs of sessions, the latest changed first. Those of sub-agents are not among them."""
        ...

    async def sub_agents(self, ns: int, name: LogName) -> list[LogInfo]:
        """The logs of the sub-agents of a session."""
        ...

    async def find(self, ns: int, session_id: str) -> list[LogInfo]:
        """The logs of a session, in whichever project."""
        ...

    async def starting(self, ns: int, prefix: str, limit: int) -> list[LogInfo]:
        """Some logs of sessions whose ids begin alike, in the order of their ids."""
        ...

    async def idle(self, ns: int, seconds: float, after: LogInfo | None, limit: int) -> list[LogInfo]:
        """Some sessions that have not changed for so long, the oldest first, after one of them."""
        ...

    async def remove(self, ns: int, name: LogName, seconds: float) -> bool:
        """Delete the logs of a session and of its sub-agents, if none has changed for so long.

        Gives whether it did. The session's own log goes last: what a crash leaves is found again. Content
        that was kept aside stays, since other sessions may have it too.
        """
        ...

    async def drop_blobs(self, ns: int, seconds: float) -> int:
        """Delete content that was stored so long ago and that no log names any more; returns how much.

        It reads all logs of the namespace.
        """
        ...

    async def put_blob(self, ns: int, content: bytes) -> str:
        """Store content under the hash of it, which is returned."""
        ...

    async def put_blobs(self, ns: int, contents: Sequence[bytes]) -> None:
        """Store contents, each under its hash."""
        ...

    async def get_blob(self, ns: int, digest: str) -> bytes | None:
        """The content with this hash, or None."""
        ...

    async def close(self) -> None: ...


def build_project_name(cwd: str) -> str:
    """The project of a working directory: its path with dashes for slashes."""
    slug = check_text(cwd, "cwd", max_length=4096).replace("/", "-").replace("\\", "-")
    if len(slug.encode()) > MAX_PROJECT:
        digest = hashlib.sha256(cwd.encode()).hexdigest()
        slug = slug.encode()[: MAX_PROJECT - 17].decode("utf-8", "ignore") + "-" + digest[:16]
    return check_project(slug if slug not in ("", ".", "..") else "-" + slug)


def check_project(project: object) -> str:
    """The name of a project: one part of a path."""
    text = check_text(project, "project", max_length=MAX_PROJECT)
    if text in ("", ".", "..") or "/" in text or "\\" in text or not text.isprintable():
        raise InvalidInput("project must be a name without slashes, such as -home-agent-workspace")
    return text


def check_session_id(session_id: object) -> str:
    if not isinstance(session_id, str) or not _SESSION_ID.fullmatch(session_id):
        raise InvalidInput("session_id must be 1 to 128 letters, digits, dashes and underscores")
    return session_id


def default_session_id(name: str) -> str:
    """The session of a thread or run: its id, or one made of it where a session's id cannot be that."""
    try:
        return check_session_id(name)
    except InvalidInput:
        digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()
        return f"{_NOT_IN_ID.sub('-', name)[:100]}-{digest[:16]}"


def check_name(name: LogName) -> LogName:
    """The name of a log, whose parts cannot lead out of the directory of logs."""
    check_project(name.project)
    check_session_id(name.session_id)
    if name.subpath and not _SUBPATH.fullmatch(name.subpath):
        raise InvalidInput("subpath must be names separated by slashes, such as subagents/agent-1")
    return name


def is_digest(digest: object) -> TypeGuard[str]:
    """Whether a value is the name of a blob."""
    return isinstance(digest, str) and _HASH.fullmatch(digest) is not None


def check_digest(digest: object) -> str:
    if not is_digest(digest):
        raise InvalidInput("a blob is named by the SHA-256 of its content, in hexadecimal")
    return digest


def check_append(bodies: Sequence[bytes], attempt_id: str, first: int) -> None:
    """Lines to append: JSON objects of one line each, within the bounds."""
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
    """Refuse content that is too long to be kept aside."""
    for content in contents:
        if len(content) > MAX_BLOB:
            raise InvalidInput(f"a blob must be at most {MAX_BLOB} bytes long, not {len(content)}")


def _is_line(body: bytes) -> bool:
    """Whether a body looks like an object on one line; asked for every line, so that no regex is used."""
    return (
        len(body) > 2
        and body.startswith(b"{")
        and body.endswith(b"}")
        and b"\n" not in body
        and b"\0" not in body
    )


def encode_line(record: Mapping[str, Any]) -> bytes:
    """A record as the body of a line; JSON as we write it has no line breaks."""
    return encode_json(record, what="a line of the log").encode()


def hint_key(ns: int, name: LogName) -> str:
    """The key of the hints that a log has grown."""
    return "/".join((str(ns), *name))


def get_idle_cursor(info: LogInfo | None) -> tuple[int, str, str]:
    """Where a session stands among those that have not changed for long."""
    if info is None:
        return (-1, "", "")
    return (info.updated_at, info.name.session_id, info.name.project)


def digests_in(content: bytes | mmap) -> Iterator[str]:
    """What may be the hash of content that was kept aside, wherever it stands."""
    return (match.group().decode() for match in _ANY_HASH.finditer(content))


def compute_digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
