"""Rules of search: excerpts of texts, and the fusion of several rankings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.kernel.errors import InvalidInput
from perdure.kernel.storage.fulltext import TextQuery
from perdure.kernel.words import find_cut
from perdure.memory.model import HitRow
from perdure.memory.records import SearchMode

SHOWN_CHARACTERS = 200
RRF_CONSTANT = 60
"""The constant of reciprocal rank fusion."""


FILTERS = frozenset(
    {"mode", "kind", "agent", "since_ms", "until_ms", "limit", "text_weight", "vector_weight"}
)
MAX_WEIGHT = 1000


class Weights(NamedTuple):
    """Weights of words and vectors in a hybrid search."""

    text: float
    vector: float


def check_weights(text: float, vector: float) -> Weights:
    """Check the weights of a search; a weight of 0 leaves its results out."""
    for name, weight in (("text_weight", text), ("vector_weight", vector)):
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or not 0 <= weight <= MAX_WEIGHT:
            raise InvalidInput(f"{name} is {weight!r}; it must be a number from 0 to {MAX_WEIGHT}")
    weights = Weights(text, vector)
    if not any(weights):
        raise InvalidInput("text_weight and vector_weight cannot both be 0")
    return weights


def check_filters(filters: Mapping[str, Any]) -> dict[str, Any]:
    """Check the filters of an agent's search; InvalidInput for an unknown filter."""
    unknown = sorted(filters.keys() - FILTERS)
    if unknown:
        raise InvalidInput(f"memory has no filter {unknown[0]!r}; use one of {', '.join(sorted(FILTERS))}")
    return dict(filters)


def excerpt(text: str, words: Iterable[str] = (), length: int = SHOWN_CHARACTERS) -> str:
    """Return the part of a text around the first matching word, or its beginning, on one line."""
    flat = " ".join(text[: 64 * length].split())
    if len(flat) <= length:
        return flat
    lowered = flat.lower()
    positions = [at for word in words if (at := lowered.find(word)) >= 0]
    room = length - 2
    start = min(max(0, min(positions, default=0) - room // 4), len(flat) - room)
    start = find_cut(flat, start, max(0, start - room // 8))
    end = find_cut(flat, start + room, start + room * 3 // 4)
    return ("…" if start else "") + flat[start:end].strip() + ("…" if end < len(flat) else "")


def query_words(query: TextQuery) -> list[str]:
    return [word for term in query.terms for word in term.words]


def mode_used(mode: SearchMode, *, words: bool, vectors: bool) -> SearchMode:
    """Return the mode in use. Without vectors it is `text`; a hybrid search without words is `vector`."""
    if not vectors:
        return "text"
    return mode if words or mode == "text" else "vector"


def best(hits: Iterable[HitRow], limit: int) -> list[HitRow]:
    """Return the best hits, each document once."""
    hits_by_id: dict[str, HitRow] = {}
    for hit in hits:
        previous = hits_by_id.get(hit.id)
        if previous is None or previous.score < hit.score:
            hits_by_id[hit.id] = hit
    return sorted(hits_by_id.values(), key=lambda hit: (-hit.score, -hit.place))[:limit]


def fused(rankings: Sequence[tuple[float, Sequence[str]]]) -> Mapping[str, float]:
    """Return reciprocal rank fusion: per id, the weighted sum of 1 / (60 + rank)."""
    scores: dict[str, float] = {}
    for weight, ids in rankings:
        for rank, id in enumerate(ids if weight else (), 1):
            scores[id] = scores.get(id, 0.0) + weight / (RRF_CONSTANT + rank)
    return scores
