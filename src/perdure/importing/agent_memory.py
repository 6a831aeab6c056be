"""Events of an agent-memory daemon, read through its gRPC service."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from perdure.importing.records import ImportReport
from perdure.kernel.errors import PerdureError
from perdure.memory.model import LATEST_MS
from perdure.memory.records import MemoryEvent, MemoryPage, NewMemoryEvent
from perdure.memory.service import Memory

EVENTS: Final = "events"
PAGE: Final = 200
MAX_PAGE: Final = 10_000
"""Maximum events with the same time."""


class EventSource(Protocol):
    """The part of a daemon's API that an import uses."""

    async def get_events(
        self, *, from_ms: int = 0, to_ms: int, limit: int = 100
    ) -> MemoryPage[MemoryEvent]: ...


async def import_events(source: EventSource, memory: Memory, report: ImportReport) -> None:
    """Import all events, each once, by its id."""
    begin, limit = 0, PAGE
    seen: set[str] = set()
    while True:
        page = await source.get_events(from_ms=begin, to_ms=LATEST_MS, limit=limit)
        new = [event for event in page.items if event.event_id not in seen]
        await _import(new, memory, report)
        if not page.items or not page.has_more:
            return
        last = page.items[-1].timestamp_ms
        if last > begin:
            # Events with the time of the last one are returned again, and skipped by their ids.
            begin, limit = last, PAGE
            seen = {event.event_id for event in page.items if event.timestamp_ms == last}
        elif limit < MAX_PAGE:
            limit = min(MAX_PAGE, limit * 4)
            seen |= {event.event_id for event in new}
        else:
            report.refuse(EVENTS, str(last), f"more than {MAX_PAGE} events have one time")
            begin, limit, seen = last + 1, PAGE, set()


async def _import(events: list[MemoryEvent], memory: Memory, report: ImportReport) -> None:
    count = report.count(EVENTS)
    count.found += len(events)
    for start in range(0, len(events), PAGE):
        part = [NewMemoryEvent(**msgspec.structs.asdict(event)) for event in events[start : start + PAGE]]
        if report.dry_run:
            present = await _count_existing(memory, part)
            count.present += present
            count.added += len(part) - present
            continue
        try:
            answers = await memory.ingest_many(part)
        except PerdureError as error:
            for event in part:
                report.refuse(EVENTS, event.event_id, error.message)
            continue
        count.added += sum(answer.created for answer in answers)
        count.present += sum(not answer.created for answer in answers)


async def _count_existing(memory: Memory, events: list[NewMemoryEvent]) -> int:
    """Count the events that exist already."""
    return len(await memory.find_known([event.event_id for event in events]))
