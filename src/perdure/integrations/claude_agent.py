"""Session store for the Claude Agent SDK (`pip install 'perdure[claude-agent]'`): transcripts as sessions."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from perdure.eventlog.port import LogName, build_project_name, check_name, check_project
from perdure.integrations.session_log import PAGE, SessionLog
from perdure.kernel.errors import InvalidInput, NotFound
from perdure.sessions.model import Session
from perdure.sessions.service import Sessions

MAX_OPEN = 256
"""Maximum sessions whose state is kept in memory."""
MAX_KNOWN = 10_000
"""Maximum entries of a session remembered by uuid, to skip entries that are sent again."""

Entry = dict[str, Any]


class PerdureSessionStore:
    """Session store for the SDK: `ClaudeAgentOptions(session_store=PerdureSessionStore(perdure.sessions))`.

    `sessions` belongs to `Perdure` or `PerdureClient`. Sessions are append-only, so there is no `delete`; the
    SDK treats it as not supported. An entry is identified by its uuid and loaded once.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._open: OrderedDict[LogName, _Transcript] = OrderedDict()

    async def append(self, key: Mapping[str, str], entries: Sequence[Entry]) -> None:
        """Add entries to a transcript."""
        if entries:
            await self._transcript(key).append(entries)

    async def load(self, key: Mapping[str, str]) -> list[Entry] | None:
        """Return all entries of a transcript, or None if there are none."""
        return await self._transcript(key).load()

    async def list_sessions(self, project_key: str) -> list[dict[str, Any]]:
        """List the sessions of a project, with the times of their last change in epoch milliseconds."""
        return [
            {"session_id": session.session_id, "mtime": _millis(session)}
            for session in await self._listed(project_key)
        ]

    async def list_session_summaries(self, project_key: str) -> list[dict[str, Any]]:
        """Return the SDK's summaries of sessions. Read only new entries since the last call."""
        summaries = []
        for session in await self._listed(project_key):
            key = {"project_key": project_key, "session_id": session.session_id}
            summary = await self._transcript(key).summary()
            if summary is not None:
                summaries.append({**summary, "mtime": _millis(session)})
        return summaries

    async def list_subkeys(self, key: Mapping[str, str]) -> list[str]:
        """List the sub-agents of a session."""
        name = _parse_log_name(key)
        try:
            session = await self._sessions.get(name.session_id, project=name.project)
        except NotFound:
            return []
        return [agent.name for agent in session.sub_agents]

    async def _listed(self, project_key: str) -> list[Session]:
        project = _build_project_name(project_key)
        sessions: list[Session] = []
        while True:
            page = await self._sessions.list(project=project, limit=PAGE, offset=len(sessions))
            sessions += page.items
            if len(sessions) >= page.counted or not page.items:
                return sessions

    def _transcript(self, key: Mapping[str, str]) -> _Transcript:
        name = _parse_log_name(key)
        transcript = self._open.get(name)
        if transcript is None:
            transcript = self._open[name] = _Transcript(self._sessions, name, dict(key))
            if len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(name)
        return transcript


class _Summed(NamedTuple):
    """The SDK's summary of a transcript, up to a position."""

    after: int = 0
    summary: dict[str, Any] | None = None


class _Transcript:
    """A transcript, and the entries written to it here."""

    def __init__(self, sessions: Sessions, name: LogName, key: dict[str, str]) -> None:
        self._log = SessionLog(sessions, name.session_id, name.project, name.subpath)
        self._key = key
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._summed = _Summed()
        self._lock = asyncio.Lock()

    async def append(self, entries: Sequence[Entry]) -> None:
        async with self._lock:
            new = [entry for entry in entries if entry.get("uuid") not in self._seen]
            await self._log.append(new)
            self._seen |= {entry["uuid"]: None for entry in new if isinstance(entry.get("uuid"), str)}
            while len(self._seen) > MAX_KNOWN:
                self._seen.popitem(last=False)

    async def load(self) -> list[Entry] | None:
        entries: list[Entry] = []
        seen: set[Any] = set()
        async for lines, _ in self._log.read():
            for entry in lines:
                uuid = entry.get("uuid")
                if uuid is None or uuid not in seen:
                    entries.append(entry)
                    seen.add(uuid)
        return entries or None

    async def summary(self) -> dict[str, Any] | None:
        from claude_agent_sdk import fold_session_summary

        async with self._lock:
            async for lines, after in self._log.read(self._summed.after):
                summary: Any = self._summed.summary
                if lines:
                    summary = fold_session_summary(summary, self._key, lines)
                self._summed = _Summed(after, summary)
            return self._summed.summary


def _parse_log_name(key: Mapping[str, str]) -> LogName:
    return check_name(
        LogName(_build_project_name(key["project_key"]), key["session_id"], key.get("subpath", ""))
    )


def _build_project_name(project_key: str) -> str:
    """Return the project of a key. An invalid name gets a unique replacement."""
    try:
        return check_project(project_key)
    except InvalidInput:
        digest = hashlib.sha256(project_key.encode("utf-8", "replace")).hexdigest()
        return f"{build_project_name(project_key)[:150]}-{digest[:16]}"


def _millis(session: Session) -> int:
    return int(session.updated_at * 1000)
