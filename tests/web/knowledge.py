"""Sessions and memory for browser tests."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.web.world import HOSTILE

from perdure.jobs.model import JobContext
from perdure.kernel.config import Settings
from perdure.kernel.ids import derived_ulid
from perdure.memory.records import NewMemoryEvent
from perdure.memory.service import REBUILD_JOB
from perdure.memory.wiring import MemoryWork
from perdure.runtime.services import Services

NOON = 1_771_934_400_000


def spoken(number: int, role: str, content: Any) -> dict[str, Any]:
    """A line as Claude Code writes it."""
    time = f"2026-02-24T12:00:{number:02}Z"
    message = {"role": role, "content": content, **({"id": f"m{number}"} if role == "assistant" else {})}
    return {"type": role, "uuid": f"line-{number}", "timestamp": time, "message": message}


LINES = [
    spoken(1, "user", f"Review the change. {HOSTILE[1]}"),
    spoken(2, "assistant", [{"type": "tool_use", "id": "t1", "name": "Read", "input": {"file": HOSTILE[0]}}]),
    spoken(3, "user", [{"type": "tool_result", "tool_use_id": "t1", "content": "total = price"}]),
    spoken(4, "assistant", [{"type": "text", "text": "The total leaves out the tax."}]),
]


class Knowledge(NamedTuple):
    services: Services
    node: str
    """A day of the table of contents."""


async def fill_knowledge(services: Services) -> Knowledge:
    """A session, and a memory of it with its table of contents."""
    await services.sessions.append("1", LINES)
    events = [
        NewMemoryEvent(
            event_id=derived_ulid(NOON + number * 1000, "memory", str(number)),
            session_id="1",
            timestamp_ms=NOON + number * 1000,
            role="user" if number % 2 == 0 else "assistant",
            event_type="user_message" if number % 2 == 0 else "assistant_message",
            text=text,
        )
        for number, text in enumerate(
            (
                f"Which database do we choose? {HOSTILE[3]}",
                "We choose SQLite, because it needs no server.",
                "And for the large ones?",
                "PostgreSQL, since it has many writers.",
            )
        )
    ]
    await services.memory.ingest_many(events)
    job = JobContext(
        storage=services.storage,
        ns=await services.memory.ns("write"),
        namespace=services.memory.namespace,
        job_id="test",
        name=REBUILD_JOB,
        key=None,
        attempt=1,
    )
    await MemoryWork(services.storage, Settings()).jobs.rebuild(job, {})
    node = (await services.memory.toc_root())[0]
    while node.level != "day":
        node = (await services.memory.browse(node.node_id)).items[0]
    return Knowledge(services, node.node_id)
