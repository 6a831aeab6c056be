"""Explanations of objects without wait rules: attempts, spans, workers, effects and others."""

from __future__ import annotations

from perdure.diagnostics.finding import IdMatch
from perdure.diagnostics.model import Why

OWNED = ("attempt", "span")
"""Kinds that are explained by the rollout that owns them."""
WORDS = {
    "messaging_session": "chat session",
    "memory_node": "node of memory",
    "memory_event": "event of memory",
    "memory_grip": "grip of memory",
    "trace": "trace",
}


def explain_match(match: IdMatch, owner: Why | None, now: float) -> Why:
    """Describe an object, its status and its time; with `owner`, also why the owner waits or ended."""
    word = WORDS.get(match.kind, match.kind).capitalize()
    title = f" ({match.title})" if match.title and match.title != match.id else ""
    status = "exists" if match.status is None else f"is {match.status}"
    parts = [f"{word} {match.id}{title} {status}"]
    if owner is not None:
        parts.append(f" and belongs to {owner.kind} {owner.id}. {owner.sentence}")
    elif match.time is not None:
        verb = "was heard from" if match.kind == "worker" else "began or changed"
        parts.append(f"; it {verb} {_format_ago(now - match.time)}.")
    else:
        parts.append(".")
    facts = {"title": match.title, "time": match.time, "parent_id": match.parent_id}
    if owner is not None:
        facts["owner"] = owner.id
    return Why(
        id=match.id,
        kind=match.kind,
        status=match.status or "exists",
        rule=f"{match.kind}_status" if owner is None else f"{match.kind}_of",
        sentence="".join(parts),
        facts={name: value for name, value in facts.items() if value is not None},
    )


def _format_ago(seconds: float) -> str:
    if seconds < 0:
        return "in the future"
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min ago"
    return f"{seconds / 3600:.0f} h ago"
