"""Outbox consumers that feed memory with the inputs and results of runs and workflow runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from perdure.kernel.clock import from_iso
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import NotFound
from perdure.kernel.ids import derived_ulid
from perdure.kernel.signals.port import Stream
from perdure.memory.feed import FEED_CHANNEL, FEED_CONSUMER
from perdure.memory.model import storable
from perdure.memory.records import EventRole, NewMemoryEvent
from perdure.memory.service import Memory
from perdure.outbox.model import ENDLESS, DeliveryPolicy, Effect
from perdure.service.namespaces import list_namespaces
from perdure.threads.records import Run, RunEnd
from perdure.threads.service import Threads
from perdure.workflows.operations.ends import ENDS_CHANNEL, ENDS_CONSUMER
from perdure.workflows.records import WorkflowRun
from perdure.workflows.service import Workflows

POLICY = DeliveryPolicy(retries=ENDLESS, batch=100, concurrency=1, keep=False)
TEXT = 8000
"""Limit of characters of a stored input or answer."""
TEXT_KEYS = ("content", "text", "answer", "output", "result", "question", "query", "input", "message")


Events = Callable[[str, str], Awaitable[list[NewMemoryEvent]]]
"""Reads the events of an ended run, by namespace and run id."""


class Feed:
    """Store ended runs as events, from `start` to `stop`. Ends are put into the outbox only meanwhile."""

    policy = POLICY

    def __init__(self, memory: Memory, name: str, channel: str, events: Events) -> None:
        self.name = name
        self._memory = memory
        self._channel = channel
        self._events = events
        self._following: Stream | None = None

    async def start(self) -> None:
        """Follow the channel, so that ended runs are put into the outbox."""
        if self._following is None:
            self._following = self._memory.storage.signals.follow(self._channel, "", 1)

    async def stop(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            following.close()

    async def deliver_batch(self, ns: int, effects: Sequence[Effect]) -> Mapping[str, Exception]:
        namespace = (await self._memory.storage.read(list_namespaces))[ns]
        events: list[NewMemoryEvent] = []
        for effect in effects:
            try:
                events += await self._events(namespace, effect.subject)
            except NotFound:
                # A stateless run may have been deleted with its temporary thread.
                continue
        for start in range(0, len(events), 500):
            await self._memory.in_namespace(namespace).ingest_many(events[start : start + 500])
        return {}


def run_feed(threads: Threads, memory: Memory) -> Feed:
    """Return the feed of ended runs and phases."""

    async def events(namespace: str, run_id: str) -> list[NewMemoryEvent]:
        return build_events(await threads.in_namespace(namespace).join_run(run_id))

    return Feed(memory, FEED_CONSUMER, FEED_CHANNEL, events)


def workflow_feed(workflows: Workflows, memory: Memory) -> Feed:
    """Return the feed of ended workflow runs."""

    async def events(namespace: str, run_id: str) -> list[NewMemoryEvent]:
        return workflow_events(await workflows.in_namespace(namespace).get(run_id))

    return Feed(memory, ENDS_CONSUMER, ENDS_CHANNEL, events)


def build_events(end: RunEnd) -> list[NewMemoryEvent]:
    """Build the events of an ended run: its input and its answer."""
    run = end.run
    # The input of a phase is a pointer to its workflow run; its session has the prompt.
    question = "" if run.parent is not None else extract_text(run.kwargs.input)
    answer = extract_text(end.values)
    if run.error is not None:
        answer = f"The run failed: {run.error.error}: {run.error.message}"
    elif not answer:
        answer = f"The run ended: {run.status}."
    created, ended = int(run.created_at * 1000), int((run.ended_at or run.updated_at) * 1000)
    messages: list[tuple[EventRole, int, str]] = [("user", created, question)] if question else []
    messages.append(("assistant", ended, answer))
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
        for role, time, text in messages
    ]


def workflow_events(run: WorkflowRun) -> list[NewMemoryEvent]:
    """Build the event of an ended workflow run; none if it was retried, because it will end again."""
    if run.finished_at is None:
        return []
    ended = from_iso(run.finished_at) // 1000
    result = run.final_message if run.status == "succeeded" else run.error
    phases = ", ".join(f"{name} {status}" for name, status in run.node_statuses.items())
    ending = f": {result}" if result else "."
    lines = [f"Workflow {run.workflow_name} {run.status}{ending}", f"Phases: {phases}"]
    text = storable("\n".join(lines)[:TEXT])
    return [
        NewMemoryEvent(
            event_id=derived_ulid(ended, "workflow run", run.workflow_run_id, text),
            session_id=run.workflow_run_id,
            timestamp_ms=ended,
            event_type="session_end",
            role="system",
            text=text,
            metadata={
                "workflow_run_id": run.workflow_run_id,
                "workflow": run.workflow_name,
                "trigger_id": run.trigger_id,
                "status": run.status,
            },
        )
    ]


def run_event_id(run: Run, role: EventRole, text: str) -> str:
    """Return the id of an input or answer of a run, the same from its session and from its end."""
    return derived_ulid(int(run.created_at * 1000), "run", run.run_id, role, text)


def extract_text(value: Any) -> str:
    """Return the text of a value: its last message, its text, otherwise its JSON."""
    text = _find_text(value)
    if text is None:
        text = "" if value in (None, {}, []) else encode_json(value, what="a value", nan="keep")
    return storable(text[:TEXT])


def _find_text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return _find_text(value[-1]) if value else None
    if not isinstance(value, Mapping):
        return None
    if isinstance(value.get("messages"), list):
        return _find_text(value["messages"])
    for key in TEXT_KEYS:
        if key in value and (text := _find_text(value[key])) is not None:
            return text
    return None
