"""Grips: links from each line of a summary to the events behind it. This module is pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from perdure.kernel.ids import derived_ulid
from perdure.kernel.storage.fulltext import index_words
from perdure.memory.summarisers.extractive import says_enough, split_sentences
from perdure.memory.summarisers.port import Child, Said, shorten

EXCERPT: Final = 200
"""Limit of characters of an excerpt, with the dots at its end."""
SHORTEST_WORD: Final = 4
"""Shorter words do not count, except in scripts without spaces."""
SHORTEST_TEXT: Final = 20
LEAST_SCORE: Final = 0.3
CLOSE: Final = 0.8
"""Events whose score is at least this share of the best score belong to the grip too."""
WHOLE: Final = "segment"
BULLET: Final = "bullet"


class NewGrip(NamedTuple):
    """An excerpt of events of one session. `source` names its origin: a line, or only its segment."""

    id: str
    timestamp_ms: int
    session_id: str
    event_ids: tuple[str, ...]
    excerpt: str
    source: str


def grip_for(node_id: str, bullet: str, events: Sequence[Said]) -> NewGrip:
    """Build the grip of a line: events that share its words or quote it, otherwise the first event."""
    terms = _get_terms(bullet)
    scores = [_compute_score(terms, event.text) for event in events]
    best = max(range(len(events)), key=lambda place: (scores[place], -place))
    if scores[best] <= LEAST_SCORE:
        for event in events:
            if _is_quoted(event.text, bullet):
                return _build_grip(node_id, bullet, [event], event, BULLET)
        return _build_grip(node_id, bullet, [events[0]], events[0], WHOLE)
    session = [place for place, event in enumerate(events) if event.session_id == events[best].session_id]
    at = session.index(best)
    first = last = at
    least = CLOSE * scores[best]
    while first > 0 and scores[session[first - 1]] >= least:
        first -= 1
    while last + 1 < len(session) and scores[session[last + 1]] >= least:
        last += 1
    return _build_grip(
        node_id, bullet, [events[place] for place in session[first : last + 1]], events[best], BULLET
    )


def _build_grip(node_id: str, bullet: str, events: Sequence[Said], best: Said, source: str) -> NewGrip:
    start = events[0]
    ulid = derived_ulid(start.timestamp_ms, node_id, bullet, *(event.event_id for event in events))
    return NewGrip(
        id=f"grip:{start.timestamp_ms}:{ulid}",
        timestamp_ms=start.timestamp_ms,
        session_id=start.session_id,
        event_ids=tuple(event.event_id for event in events),
        excerpt=shorten(_trim_to_sentence(bullet, best.text), EXCERPT, "..."),
        source=source,
    )


def _trim_to_sentence(bullet: str, text: str) -> str:
    """Return the text from the sentence that shares most with a line."""
    terms = _get_terms(bullet)
    sentences = split_sentences(text)
    if not sentences:
        return text
    best = max(range(len(sentences)), key=lambda place: (_count_overlap(terms, sentences[place]), -place))
    return " ".join(sentences[best:])


def _get_terms(text: str) -> frozenset[str]:
    return frozenset(word for word in index_words(text) if says_enough(word, SHORTEST_WORD))


def _compute_score(terms: frozenset[str], text: str) -> float:
    """Return the share of terms in a text, from 0 to 1; a text that is too short counts only as a whole."""
    if len(text) < SHORTEST_TEXT and _get_terms(text) != terms:
        return 0.0
    return _count_overlap(terms, text)


def _is_quoted(text: str, bullet: str) -> bool:
    """Return whether a text contains a line word for word, or its beginning."""
    return bullet.removesuffix("…") in " ".join(text.split())


def _count_overlap(terms: frozenset[str], text: str) -> float:
    return len(terms & _get_terms(text)) / len(terms) if terms else 0.0


def inherited(bullet: str, children: Sequence[Child], grips: Sequence[Sequence[Sequence[str]]]) -> list[str]:
    """Return the grips of a parent's line: the grips of the child lines that share words with it.

    `grips` has the grip ids of each line of each child.
    """
    terms = _get_terms(bullet)
    scored = [
        (_count_overlap(terms, text) if terms else float(text == bullet), -place, -number)
        for place, child in enumerate(children)
        for number, text in enumerate(child.bullets)
    ]
    if not scored:
        return []
    best, _, _ = max(scored)
    least = max(CLOSE * best, LEAST_SCORE) if best > LEAST_SCORE else best
    lines = sorted((line for line in scored if line[0] >= least), reverse=True)[:3]
    ids = [id for _, place, number in lines for id in grips[-place][-number]]
    return list(dict.fromkeys(ids))
