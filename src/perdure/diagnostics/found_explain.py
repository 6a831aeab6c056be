"""Explains what has no rules of its own to wait by: attempts, spans, workers, effects and others."""

from __future__ import annotations

from perdure.diagnostics.finding import IdMatch
from perdure.diagnostics.model import Why

OWNED = ("attempt", "span")
"""What is explained by the rollout that it belongs to."""
WORDS = {
    "messaging_session": "chat session",
    "memory_node": "node of memory",
    "memory_event": "event of memory",
    "memory_grip": "grip of memory",
    "trace": "trace",
}


def explain_found(found: IdMatch, owner: Why | None, now: float) -> Why:
    """Say what something is, in which status, since when; with `owner`, also why that one waits or ended."""
    word = WORDS.get(found.kind, found.kind).capitalize()
    title = f" ({found.title})" if found.title and found.title != found.id else ""
    status = "exists" if found.status is None else f"is {found.status}"
    parts = [f"{word} {found.id}{title} {status}"]
    if owner is not None:
        parts.append(f" and belongs to {owner.kind} {owner.id}. {owner.sentence}")
    elif found.time is not None:
        verb = "was heard from" if found.kind == "worker" else "began or changed"
        parts.append(f"; it {verb} {_ago(now - found.time)}.")
    else:
        parts.append(".")
    facts = {"title": found.title, "time": found.time, "parent_id": found.parent_id}
    if owner is not None:
        facts["owner"] = owner.id
    return Why(
        id=found.id,
        kind=found.kind,
        status=found.status or "exists",
        rule=f"{found.kind}_status" if owner is None else f"{found.kind}_of",
        sentence="".join(parts),
        facts={name: value for name, value in facts.items() if value is not None},
    )


def _ago(seconds: float) -> str:
    if seconds < 0:
        return "in the future"
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min ago"
    return f"{seconds / 3600:.0f} h ago"
