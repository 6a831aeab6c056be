"""Feeds memory from perdure's own runs: what they were asked, and what they answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.access.operations import list_namespaces
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import NotFound
from perdure.kernel.ids import derived_ulid
from perdure.kernel.signals.port import Stream
from perdure.memory.feed import FEED_CHANNEL, FEED_CONSUMER
from perdure.memory.model import storable
from perdure.memory.records import EventRole, NewMemoryEvent
from perdure.memory.service import Memory
from perdure.outbox.model import ENDLESS, DeliveryPolicy, Effect
from perdure.threads.records import Run, RunEnd
from perdure.threads.service import Threads

POLICY = DeliveryPolicy(retries=ENDLESS, batch=100, concurrency=1, keep=False)
TEXT = 8000
"""How many characters of an input or an answer are kept."""
TEXT_KEYS = ("content", "text", "answer", "output", "result", "question", "query", "input", "message")


class MemoryFeed:
    """Stores the ends of runs as events, from `start` to `stop`."""

    name = FEED_CONSUMER
    policy = POLICY

    def __init__(self, threads: Threads, memory: Memory) -> None:
        self._threads = threads
        self._memory = memory
        self._following: Stream | None = None

    async def start(self) -> None:
        """Have the ends of runs put into the outbox."""
        if self._following is None:
            self._following = self._memory.storage.signals.follow(FEED_CHANNEL, "", 1)

    async def stop(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            following.close()

    async def deliver_batch(self, ns: int, effects: Sequence[Effect]) -> Mapping[str, Exception]:
        namespace = (await self._memory.storage.read(list_namespaces))[ns]
        threads = self._threads.in_namespace(namespace)
        events: list[NewMemoryEvent] = []
        for effect in effects:
            try:
                events += events_of(await threads.join_run(effect.subject))
            except NotFound:
                # A run of a temporary thread may be gone with it.
                continue
        for start in range(0, len(events), 500):
            await self._memory.in_namespace(namespace).ingest_many(events[start : start + 500])
        return {}


def events_of(end: RunEnd) -> list[NewMemoryEvent]:
    """What was asked of a run, and what came of it."""
    run = end.run
    asked = text_of(run.kwargs.input)
    answered = text_of(end.values)
    if run.error is not None:
        answered = f"The run failed: {run.error.error}: {run.error.message}"
    elif not answered:
        answered = f"The run ended: {run.status}."
    created, ended = int(run.created_at * 1000), int((run.ended_at or run.updated_at) * 1000)
    told: list[tuple[EventRole, int, str]] = [("user", created, asked)] if asked else []
    told.append(("assistant", ended, answered))
    metadata = {"run_id": run.run_id, "thread_id": run.thread_id, "status": run.status}
    if run.parent is not None:
        metadata["workflow_run_id"] = run.parent
    return [
        NewMemoryEvent(
            event_id=run_event_id(run, role, text),
            session_id=run.session_id or run.thread_id,
            timestamp_ms=time,
            event_type="user_message" if role == "user" else "assistant_message",
            role=role,
            text=text,
            metadata=metadata,
            agent=run.agent,
        )
        for role, time, text in told
    ]


def run_event_id(run: Run, role: EventRole, text: str) -> str:
    """The id of what was said in a run: the same, whether its session says it or its end."""
    return derived_ulid(int(run.created_at * 1000), "run", run.run_id, role, text)


def text_of(value: Any) -> str:
    """What a value says: its last message, its text, or else its JSON."""
    found = _said(value)
    if found is None:
        found = "" if value in (None, {}, []) else encode_json(value, what="a value", nan="keep")
    return storable(found[:TEXT])


def _said(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return _said(value[-1]) if value else None
    if not isinstance(value, Mapping):
        return None
    if isinstance(value.get("messages"), list):
        return _said(value["messages"])
    for key in TEXT_KEYS:
        if key in value and (found := _said(value[key])) is not None:
            return found
    return None
