"""Feed of memory with the messages and tool calls of sessions."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from perdure.eventlog.port import CHANNEL, LogInfo, LogName, hint_key
from perdure.kernel.clock import MICROS
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import NotFound, PerdureError, StorageClosed
from perdure.kernel.ids import derived_ulid
from perdure.kernel.signals.port import Stream
from perdure.memory.model import FeedRow, storable
from perdure.memory.operations import feeds
from perdure.memory.records import EventRole, EventType, NewMemoryEvent
from perdure.memory.run_feed import TEXT, run_event_id
from perdure.memory.service import Memory
from perdure.service.namespaces import list_namespaces
from perdure.sessions.records import Message
from perdure.sessions.service import Sessions
from perdure.sessions.transcripts.reading import messages_in
from perdure.threads.records import Run
from perdure.threads.service import Threads

KINDS: dict[str, tuple[EventRole, EventType]] = {
    "user": ("user", "user_message"),
    "assistant": ("assistant", "assistant_message"),
    "tool": ("tool", "tool_result"),
}
"""The remembered messages, by role."""
GATHER_SECONDS = 0.5
"""Wait that lets lines of a log gather before they are read."""
RETRY_SECONDS = 10.0
FOLLOWED = 10_000
PAGE_LINES = 500
KNOWN_RUNS = 1000
LATE_SECONDS = 60
"""A log that changed less than this before its last read is read again after a restart."""

logger = logging.getLogger(__name__)


class SessionFeed:
    """Store messages of sessions as events, from `start` to `stop`.

    The feed follows the hints of logs, and stores its position in each log. At the start it reads the lines
    that were written meanwhile. An event's id is derived from its place: reading twice stores it once.
    """

    def __init__(self, sessions: Sessions, threads: Threads, memory: Memory) -> None:
        self._sessions = sessions
        self._threads = threads
        self._memory = memory
        self._runs: OrderedDict[str, Run | None] = OrderedDict()
        self._following: Stream | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start reading sessions."""
        if self._task is None:
            self._following = self._memory.storage.signals.follow(CHANNEL, "", FOLLOWED)
            self._task = asyncio.get_running_loop().create_task(self._keep_reading(self._following))

    async def stop(self) -> None:
        """Stop reading. The next process reads the rest."""
        task, self._task = self._task, None
        following, self._following = self._following, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if following is not None:
            following.close()

    async def _keep_reading(self, following: Stream) -> None:
        keys: list[str] | None = None
        while True:
            try:
                await (self.catch_up() if keys is None else self.read(keys))
            except StorageClosed:
                return
            except (PerdureError, OSError) as error:
                logger.warning("cannot store sessions in memory, retrying: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
                keys = None
                continue
            first = await following.next()
            await asyncio.sleep(GATHER_SECONDS)
            more = await following.next(0)
            keys = None if first is None or more is None else [*first, *more]

    async def catch_up(self) -> None:
        """Read every session that has changed since its last read."""
        for ns, namespace in (await self._memory.storage.read(list_namespaces)).items():
            logs = await self._sessions.log.logs(ns)
            for start in range(0, len(logs), PAGE_LINES):
                await self._read_changed(ns, namespace, logs[start : start + PAGE_LINES])

    async def _read_changed(self, ns: int, namespace: str, logs: Sequence[LogInfo]) -> None:
        sources = [_get_source(info.name) for info in logs]
        feed_rows = await self._memory.storage.read(feeds.get_feeds, sources, ns=ns)
        for info in logs:
            feed = feed_rows.get(_get_source(info.name))
            if feed is None or feed.read_at <= info.updated_at:
                await self._read(ns, namespace, info.name)
                for sub_agent in await self._sessions.log.sub_agents(ns, info.name):
                    await self._read(ns, namespace, sub_agent.name)

    async def read(self, keys: Iterable[str]) -> None:
        """Read the logs named by hints."""
        namespaces = await self._memory.storage.read(list_namespaces)
        for key in dict.fromkeys(keys):
            ns, project, session_id, subpath = key.split("/", 3)
            if int(ns) in namespaces:
                await self._read(int(ns), namespaces[int(ns)], LogName(project, session_id, subpath))

    async def _read(self, ns: int, namespace: str, name: LogName) -> None:
        """Store the lines of a log after the last read position."""
        source, memory = _get_source(name), self._memory.in_namespace(namespace)
        feed = (await self._memory.storage.read(feeds.get_feeds, [source], ns=ns)).get(source)
        position = 0 if feed is None else feed.position
        while True:
            started = time.time()
            lines = await self._sessions.log.read(ns, name, after=position, limit=PAGE_LINES)
            if lines is None or not lines.lines:
                return
            events: list[NewMemoryEvent] = []
            for message in messages_in(lines.lines):
                run = await self._run(namespace, message.run_id) if message.run_id else None
                event = build_event(name, message, run, int(started * 1000))
                events += [event] if event is not None else []
            if events:
                await memory.ingest_many(events)
            position = lines.reached
            read_at = int((started - LATE_SECONDS) * MICROS)
            await self._memory.storage.background(feeds.set_feed, FeedRow(source, position, read_at), ns=ns)

    async def _run(self, namespace: str, run_id: str) -> Run | None:
        """Return the run of a message; None if it was deleted."""
        if run_id not in self._runs:
            try:
                self._runs[run_id] = await self._threads.in_namespace(namespace).get_run(run_id)
            except NotFound:
                self._runs[run_id] = None
            if len(self._runs) > KNOWN_RUNS:
                self._runs.popitem(last=False)
        return self._runs[run_id]


def _get_source(name: LogName) -> str:
    return hint_key(0, name)


def build_event(name: LogName, message: Message, run: Run | None, now_ms: int) -> NewMemoryEvent | None:
    """Convert a message of a session to an event; None if there is nothing to remember."""
    text = _build_text(message)
    if message.role not in KINDS or not text:
        return None
    role, event_type = KINDS[message.role]
    time_ms = now_ms if message.time is None else max(int(message.time * 1000), 0)
    if run is not None:
        event_id = run_event_id(run, role, text)
    else:
        stamp = 0 if message.time is None else time_ms
        event_id = derived_ulid(stamp, "session", *name, str(message.position), role, text)
    metadata = {"project": name.project}
    if name.subpath:
        metadata["sub_agent"] = name.subpath
    if message.run_id:
        metadata["run_id"] = message.run_id
    return NewMemoryEvent(
        event_id=event_id,
        session_id=name.session_id,
        timestamp_ms=time_ms,
        event_type=event_type,
        role=role,
        text=text,
        metadata=metadata,
        agent=None if run is None else run.agent,
    )


def _build_text(message: Message) -> str:
    """Return the text of a message and its tool calls."""
    calls = [f"{call.name}({_encode_input(call.input)})" for call in message.tool_calls]
    return storable("\n".join([*([message.text] if message.text else []), *calls])[:TEXT])


def _encode_input(given: object) -> str:
    if given is None:
        return ""
    return given if isinstance(given, str) else encode_json(given, what="the input of a tool", nan="keep")
