"""Requests to every route that writes to memory, and what the audit calls each: events leave no entry."""

from __future__ import annotations

from tests.security.runs import API, NOT_AUDITED, WORK, Line

from perdure.kernel.ids import derived_ulid


def memory_lines() -> list[Line]:
    """With whole paths."""
    event = {"event_id": derived_ulid(1, "a"), "session_id": "s", "text": "hello"}
    return [
        ("POST", API + "/memory/events", "", event, NOT_AUDITED),
        ("POST", API + "/memory/events/batch", "", {"events": [event]}, NOT_AUDITED),
        ("POST", API + "/memory/rebuild", "", {}, "rebuild_memory"),
        ("POST", f"{API}{WORK}/memory", "", {"query": "hello"}, NOT_AUDITED),
    ]
