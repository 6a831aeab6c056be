"""Memory of the demo: its rollouts stored as events, and a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure import Attempt, Rollout
from perdure.jobs.model import JobContext
from perdure.kernel.config import Settings
from perdure.kernel.ids import derived_ulid
from perdure.kernel.storage.port import Storage
from perdure.memory.records import NewMemoryEvent, SearchHit
from perdure.memory.service import REBUILD_JOB, Memory
from perdure.memory.wiring import MemoryWork

QUESTION = "what did the agents do today"
SHOWN = 3


class DemoWork(NamedTuple):
    """A rollout of the demo with its attempts."""

    rollout: Rollout
    attempts: Sequence[Attempt]


async def recall(storage: Storage, namespace: str, works: Sequence[DemoWork]) -> list[SearchHit]:
    """Store the questions and results, summarize them, and search for today's work of the agents."""
    memory = Memory(storage, namespace=namespace)
    events = [event for work in works for event in _events(work)]
    for start in range(0, len(events), 500):
        await memory.ingest_many(events[start : start + 500])
    job = JobContext(
        storage=storage,
        ns=await memory.ns("write"),
        namespace=namespace,
        job_id="demo",
        name=REBUILD_JOB,
        key=None,
        attempt=1,
    )
    await MemoryWork(storage, Settings()).jobs.rebuild(job, {})
    return (await memory.search(QUESTION, kind="event", limit=SHOWN)).items


def _events(work: DemoWork) -> list[NewMemoryEvent]:
    rollout, attempts = work
    asked, ended = int(rollout.start_time * 1000), int((rollout.end_time or rollout.start_time) * 1000)
    question = str(dict(rollout.input).get("question", rollout.input))
    worker = next((attempt.worker_id for attempt in reversed(attempts) if attempt.worker_id), "a worker")
    many = f"{len(attempts)} attempts" if len(attempts) != 1 else "1 attempt"
    became = "answered" if rollout.status == "succeeded" else "could not answer"
    lines = (
        ("user", asked, question),
        ("assistant", ended, f"The agent of {worker} {became} {question!r} after {many}: {rollout.status}."),
    )
    return [
        NewMemoryEvent(
            event_id=derived_ulid(time, rollout.rollout_id, role),
            session_id=rollout.rollout_id,
            timestamp_ms=time,
            event_type="user_message" if role == "user" else "assistant_message",
            role="user" if role == "user" else "assistant",
            text=text,
            agent=worker if role == "assistant" else None,
        )
        for role, time, text in lines
    ]


def answer_lines(hits: Sequence[SearchHit]) -> list[str]:
    """Format the answer of memory, each line with its events."""
    lines = ["", f"Memory, asked {QUESTION!r}:"]
    for hit in hits:
        lines += [f"  - {hit.text}", f"    events: {', '.join(event.event_id for event in hit.events[:2])}"]
    return lines
