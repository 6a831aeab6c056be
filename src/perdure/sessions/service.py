"""Service of the sessions of one namespace: logs of the messages and tool calls of agents."""

from __future__ import annotations

import builtins
from bisect import bisect_right
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, structs

from perdure.eventlog.port import (
    CHANNEL,
    CHAT_PROJECT,
    EDGE_BYTES,
    MAX_LINES,
    EventLog,
    Lines,
    LogInfo,
    LogName,
    build_project_name,
    check_name,
    encode_line,
    hint_key,
)
from perdure.eventlog.writing import append_lines, read_original
from perdure.kernel.checks import (
    MAX_PAGE,
    Id,
    Limit,
    Offset,
    check_choice,
    check_number,
    check_page,
    check_text,
)
from perdure.kernel.errors import Conflict, InvalidInput, NotFound
from perdure.kernel.pages import Keyset, PaginatedResult
from perdure.kernel.signals.port import until
from perdure.kernel.storage.port import Storage
from perdure.service.base import Service
from perdure.service.endpoints import GET, POST, call
from perdure.sessions.described import DescribedSessions
from perdure.sessions.model import (
    FEW_BYTES,
    SCOPES,
    Blob,
    LogPosition,
    Matches,
    MessageMatch,
    Scope,
    Session,
    SubAgent,
    TranscriptPage,
    counted,
    described,
    is_described,
    matching,
)
from perdure.sessions.records import Message, SessionTotals
from perdure.sessions.transcripts.reading import messages_in, translated

POLL_SECONDS = 0.04
"""Interval at which a waiting reader checks its log."""
MAX_WAIT = 30.0
SEARCHED_BYTES = 64 << 20
"""Maximum size that one search reads."""
COUNTED_BYTES = 256 << 20
"""Maximum size of a session whose usage is summed."""
SEARCH_PAGE = 4 << 20

Project = Annotated[str, Meta(min_length=1, max_length=200)]
NewLines = Annotated[list[dict[str, Any]], Meta(max_length=MAX_LINES)]
Position = Annotated[int, Meta(ge=0, le=2**53)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
PageSize = Annotated[int, Meta(ge=1, le=MAX_PAGE)]
Wait = Annotated[float, Meta(ge=0, le=MAX_WAIT)]
Words = Annotated[str, Meta(min_length=1, max_length=1024)]


def _place(info: LogInfo) -> tuple[int, str, str]:
    """Return the position of a session in a list: the latest changed first."""
    return (-info.updated_at, info.name.project, info.name.session_id)


_SESSIONS = Keyset[LogInfo, tuple[int, str, str] | None]("sessions", None, _place, [int, str, str])


class Sessions(Service):
    """The sessions of one namespace, each with its append-only log."""

    def __init__(self, storage: Storage, log: EventLog, *, namespace: str = "default") -> None:
        super().__init__(storage, namespace=namespace)
        self.log = log
        self._described = DescribedSessions()

    # --- reading

    @call(GET("/sessions"), scope="read")
    async def list(
        self,
        *,
        project: Project | None = None,
        limit: Limit = 100,
        offset: Offset = 0,
        cursor: str | None = None,
    ) -> PaginatedResult[Session]:
        """List sessions, the latest changed first. The project of chats is `-app`."""
        request = _SESSIONS.open_page(limit, offset, cursor)
        ns = await self.ns()
        logs = sorted(await self.log.logs(ns, project=project), key=_place)
        first = 0 if request.place is None else bisect_right(logs, request.place, key=_place)
        shown = logs[first:][offset : offset + limit]
        return request.build_page(shown, await self._describe(ns, shown), len(logs))

    async def _describe(self, ns: int, infos: Sequence[LogInfo]) -> Sequence[Session]:
        """Describe sessions in a list. A session that has not changed since it was listed is not read again.

        A small part of both ends of a log is enough for most sessions; the others are read once more.
        """
        sessions = {info.name: self._described.get(ns, info) for info in infos}
        new = [info.name for info in infos if sessions[info.name] is None]
        for size in (FEW_BYTES, EDGE_BYTES):
            edges = await self.log.edges(ns, new, size=size) if new else []
            read = [(edge.info, described(edge)) for edge in edges if edge is not None]
            for info, session in read:
                if size == EDGE_BYTES or is_described(session):
                    self._described.put(ns, info, session)
                    sessions[info.name] = session
            new = [info.name for info, _ in read if sessions[info.name] is None]
        return [
            structs.replace(session, sub_agents=[]) for session in sessions.values() if session is not None
        ]

    @call(GET("/sessions/search"), scope="read")
    async def search(
        self,
        query: Words,
        *,
        scope: Scope = "messages",
        project: Project | None = None,
        limit: Limit = 100,
    ) -> Matches:
        """Find messages by their text, the latest sessions first.

        A search reads at most 64 MiB; `complete` is false if there was more.
        """
        words = check_text(query, "query")
        check_choice(scope, SCOPES, "scope")
        check_page(limit)
        ns = await self.ns()
        matches: list[MessageMatch] = []
        read = 0
        for info in await self.log.logs(ns, project=project):
            async for lines in self._pages(ns, info.name):
                matches += matching(info.name, messages_in(lines.lines), words, scope)
                read += sum(len(line.body) for line in lines.lines)
                if len(matches) >= limit or read > SEARCHED_BYTES:
                    return Matches(items=matches[:limit], complete=False)
        return Matches(items=matches, complete=True)

    @call(GET("/sessions/{session_id}"), scope="read", errors=(NotFound, Conflict))
    async def get(self, session_id: Id, *, project: Project | None = None) -> Session:
        """Get a session with its usage and its sub-agents."""
        ns, name = await self._find(session_id, project)
        (edges,) = await self.log.edges(ns, [name])
        if edges is None:
            raise _missing(session_id)
        totals = SessionTotals()
        if edges.info.size <= COUNTED_BYTES:
            async for lines in self._pages(ns, name):
                for message in messages_in(lines.lines):
                    totals.add(message)
        session = counted(described(edges), totals)
        session.sub_agents = [
            SubAgent(name=info.name.subpath, size=info.size, updated_at=info.updated_at / 1e6)
            for info in await self.log.sub_agents(ns, name)
        ]
        return session

    @call(GET("/sessions/{session_id}/messages"), scope="read", errors=(NotFound, Conflict))
    async def messages(
        self,
        session_id: Id,
        *,
        project: Project | None = None,
        sub_agent: str = "",
        after: Position = 0,
        limit: PageSize = 100,
        events: bool = False,
        wait: Wait = 0.0,
    ) -> TranscriptPage[Message]:
        """Read messages after a position; with `wait`, wait up to this many seconds for new ones.

        Lines that are no messages are left out, unless `events` is true.
        """
        lines = await self._read(session_id, project, sub_agent, after, limit, wait)
        items = [message for message in messages_in(lines.lines) if events or message.role != "event"]
        return TranscriptPage(items=items, after=lines.reached, end=lines.reached >= lines.end)

    @call(GET("/sessions/{session_id}/lines"), scope="read", errors=(NotFound, Conflict))
    async def lines(
        self,
        session_id: Id,
        *,
        project: Project | None = None,
        sub_agent: str = "",
        after: Position = 0,
        limit: PageSize = 100,
        wait: Wait = 0.0,
        original: bool = False,
    ) -> TranscriptPage[str]:
        """Read stored lines after a position.

        With `original`, read them as received: a line of another tool before its translation, and a line with
        a long tool result before it was cut.
        """
        lines = await self._read(session_id, project, sub_agent, after, limit, wait)
        if original:
            return await self._originals(lines)
        items = [line.body.decode("utf-8", "replace") for line in lines.lines]
        return TranscriptPage(items=items, after=lines.reached, end=lines.reached >= lines.end)

    async def _originals(self, lines: Lines) -> TranscriptPage[str]:
        """Return lines as received. The page ends early if they become too long."""
        ns = await self.ns()
        items: builtins.list[str] = []
        reached, size = lines.reached, 0
        for line in lines.lines:
            digest, part = read_original(line.body)
            if digest is None or part == 1:
                kept = None if digest is None else await self.log.get_blob(ns, digest)
                items.append((line.body if kept is None else kept).decode("utf-8", "replace"))
                size += len(items[-1])
            if size > SEARCH_PAGE:
                reached = line.after
                break
        return TranscriptPage(items=items, after=reached, end=reached >= lines.end)

    @call(GET("/sessions/{session_id}/blobs/{digest}"), scope="read", errors=(NotFound, Conflict))
    async def blob(self, session_id: Id, digest: Digest, *, project: Project | None = None) -> Blob:
        """Get the full content of a tool result that was cut, by the digest in `blob` of its message."""
        ns, _ = await self._find(session_id, project)
        content = await self.log.get_blob(ns, digest)
        if content is None:
            raise NotFound(f"Blob {digest} of session {session_id} not found")
        return Blob(digest=digest, content=content.decode("utf-8", "replace"))

    # --- writing

    @call(POST("/sessions/{session_id}/lines"), scope="write", repeatable=True)
    async def append(
        self,
        session_id: Id,
        lines: NewLines,
        *,
        cwd: str | None = None,
        project: Project | None = None,
        sub_agent: str = "",
        writer: str = "",
        first: Annotated[int, Meta(ge=1, le=2**53)] = 1,
    ) -> LogPosition:
        """Append lines to a session, which begins with its first line.

        By default the project is that of the working directory, or that of chats. Lines of a `writer` are
        numbered from `first` on, and a line that is sent twice is written once. Lines of Codex, pi and the
        OpenAI Agents SDK are translated. A line of a `writer` that would become several lines is stored
        unchanged, and translated when read.
        """
        name = check_name(LogName(_project(project, cwd), session_id, sub_agent))
        bodies = [encode_line(line) for line in translated(map(_checked, lines), numbered=bool(writer))]
        ns = await self.ns("write")
        after = await append_lines(
            self.log, self.storage.signals, ns, name, bodies, attempt_id=writer, first=first, whole=True
        )
        return LogPosition(after=after)

    # --- helpers

    async def _find(self, session_id: str, project: str | None, sub_agent: str = "") -> tuple[int, LogName]:
        """Return the log of a session. The project may be omitted if only one project has the session."""
        ns = await self.ns()
        if project is None:
            infos = await self.log.find(ns, session_id)
            if not infos:
                raise _missing(session_id)
            if len(infos) > 1:
                names = ", ".join(info.name.project for info in infos)
                raise Conflict(
                    f"Session {session_id} is in several projects: {names}. Name one with `project`"
                )
            project = next(iter(infos)).name.project
        return ns, check_name(LogName(project, session_id, sub_agent))

    async def _read(
        self, session_id: str, project: str | None, sub_agent: str, after: int, limit: int, wait: float
    ) -> Lines:
        check_number(limit, "limit", least=1, most=MAX_PAGE)
        check_number(after, "after")
        ns, name = await self._find(session_id, project, sub_agent)

        async def look(_: frozenset[str]) -> Sequence[Lines]:
            read = await self.log.read(ns, name, after=after, limit=limit)
            if read is None:
                raise _missing(session_id)
            return [read] if read.lines or not wait else []

        pages = await until(
            self.storage.signals,
            CHANNEL,
            [hint_key(ns, name)],
            look,
            timeout=min(wait, MAX_WAIT),
            poll=POLL_SECONDS,
        )
        return next(iter(pages), Lines([], after, after))

    async def _pages(self, ns: int, name: LogName) -> AsyncIterator[Lines]:
        after = 0
        while True:
            page = await self.log.read(ns, name, after=after, limit=10_000, max_bytes=SEARCH_PAGE)
            if page is None or not page.lines:
                return
            yield page
            after = page.reached


def _missing(session_id: str) -> NotFound:
    return NotFound(f"Session {session_id} not found")


def _project(project: str | None, cwd: str | None) -> str:
    if project is not None and cwd is not None:
        raise InvalidInput("give project or cwd, not both")
    if cwd is not None:
        return build_project_name(cwd)
    return CHAT_PROJECT if project is None else project


def _checked(line: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(line, Mapping) or not line:
        raise InvalidInput("a line must be a JSON object with at least one field")
    return line
