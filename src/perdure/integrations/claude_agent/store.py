"""A session store for the Claude Agent SDK: its transcripts are sessions of perdure."""

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
"""How many sessions are remembered, with what is known of them."""
MAX_KNOWN = 10_000
"""How many entries of a session are remembered by their uuid, to leave out those that are sent again."""

Entry = dict[str, Any]


class PerdureSessionStore:
    """Give it to the SDK: `ClaudeAgentOptions(session_store=PerdureSessionStore(perdure.sessions))`.

    `sessions` is that of `Perdure` or of `PerdureClient`. Sessions are append-only, so that there is no
    `delete`: the SDK treats it as not supported. An entry is known by its uuid, and is loaded once.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._open: OrderedDict[LogName, _Transcript] = OrderedDict()

    async def append(self, key: Mapping[str, str], entries: Sequence[Entry]) -> None:
        """Add entries to a transcript."""
        if entries:
            await self._transcript(key).append(entries)

    async def load(self, key: Mapping[str, str]) -> list[Entry] | None:
        """All entries of a transcript, or None if there are none."""
        return await self._transcript(key).load()

    async def list_sessions(self, project_key: str) -> list[dict[str, Any]]:
        """The sessions of a project, with the times of their last change in epoch milliseconds."""
        return [
            {"session_id": each.session_id, "mtime": _millis(each)}
            for each in await self._listed(project_key)
        ]

    async def list_session_summaries(self, project_key: str) -> list[dict[str, Any]]:
        """The SDK's summaries of sessions; of each, only what is new since the last call is read."""
        found = []
        for each in await self._listed(project_key):
            key = {"project_key": project_key, "session_id": each.session_id}
            summary = await self._transcript(key).summary()
            if summary is not None:
                found.append({**summary, "mtime": _millis(each)})
        return found

    async def list_subkeys(self, key: Mapping[str, str]) -> list[str]:
        """The sub-agents of a session."""
        name = _parse_log_name(key)
        try:
            session = await self._sessions.get(name.session_id, project=name.project)
        except NotFound:
            return []
        return [each.name for each in session.sub_agents]

    async def _listed(self, project_key: str) -> list[Session]:
        project = _build_project_name(project_key)
        found: list[Session] = []
        while True:
            page = await self._sessions.list(project=project, limit=PAGE, offset=len(found))
            found += page.items
            if len(found) >= page.counted or not page.items:
                return found

    def _transcript(self, key: Mapping[str, str]) -> _Transcript:
        name = _parse_log_name(key)
        found = self._open.get(name)
        if found is None:
            found = self._open[name] = _Transcript(self._sessions, name, dict(key))
            if len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(name)
        return found


class _Summed(NamedTuple):
    """The SDK's summary of a transcript, up to a position."""

    after: int = 0
    summary: dict[str, Any] | None = None


class _Transcript:
    """One transcript, and what was written to it here."""

    def __init__(self, sessions: Sessions, name: LogName, key: dict[str, str]) -> None:
        self._log = SessionLog(sessions, name.session_id, name.project, name.subpath)
        self._key = key
        self._known: OrderedDict[str, None] = OrderedDict()
        self._summed = _Summed()
        self._lock = asyncio.Lock()

    async def append(self, entries: Sequence[Entry]) -> None:
        async with self._lock:
            new = [each for each in entries if each.get("uuid") not in self._known]
            await self._log.append(new)
            self._known |= {each["uuid"]: None for each in new if isinstance(each.get("uuid"), str)}
            while len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)

    async def load(self) -> list[Entry] | None:
        entries: list[Entry] = []
        known: set[Any] = set()
        async for lines, _ in self._log.read():
            for entry in lines:
                uuid = entry.get("uuid")
                if uuid is None or uuid not in known:
                    entries.append(entry)
                    known.add(uuid)
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
    """The project of a key. What cannot be one gets a name that no other key has."""
    try:
        return check_project(project_key)
    except InvalidInput:
        digest = hashlib.sha256(project_key.encode("utf-8", "replace")).hexdigest()
        return f"{build_project_name(project_key)[:150]}-{digest[:16]}"


def _millis(session: Session) -> int:
    return int(session.updated_at * 1000)
