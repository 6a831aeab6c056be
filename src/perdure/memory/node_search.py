"""Search inside nodes of the table of contents: parts with words of a query. This module is pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perdure.kernel.checks import check_text
from perdure.kernel.errors import InvalidInput
from perdure.kernel.storage.fulltext import index_words
from perdure.kernel.words import is_unspaced
from perdure.memory.model import estimate_tokens
from perdure.memory.records import NodeField, NodeMatch, NodeMatches, TocNode

SHORTEST_TERM = 3


def query_terms(query: object) -> list[str]:
    """Return the words of a query that count; InvalidInput if the query is empty."""
    text = check_text(query, "query", max_length=16_384)
    if not text.strip():
        raise InvalidInput("query is required")
    return list(
        dict.fromkeys(word for word in index_words(text) if len(word) >= SHORTEST_TERM or is_unspaced(word))
    )


def matches_in(
    node: TocNode, terms: Sequence[str], fields: Sequence[NodeField], limit: int, token_budget: int
) -> NodeMatches:
    """Return the parts of a node that contain some of the terms, best first."""
    matches = sorted(_find_matches(node, terms, fields), key=lambda match: -match.score)[:limit]
    if token_budget:
        matches = _cut_to_budget(matches, token_budget)
    return NodeMatches(
        node_id=node.node_id,
        title=node.title,
        level=node.level,
        matches=matches,
        relevance=sum(match.score for match in matches) / len(matches) if matches else 0.0,
    )


def _find_matches(node: TocNode, terms: Sequence[str], fields: Sequence[NodeField]) -> Iterator[NodeMatch]:
    for part, text, grip_ids in _list_parts(node):
        if part not in fields:
            continue
        words = index_words(text)
        exact = part == "keywords" and any(term == " ".join(words) for term in terms)
        score = 1.0 if exact else _compute_share(terms, words)
        if score > 0:
            yield NodeMatch(part=part, text=text, score=score, grip_ids=list(grip_ids))


def _list_parts(node: TocNode) -> Iterator[tuple[NodeField, str, Sequence[str]]]:
    yield "title", node.title, ()
    yield "summary", node.summary, ()
    for bullet in node.bullets:
        yield "bullets", bullet.text, bullet.grip_ids
    for keyword in node.keywords:
        yield "keywords", keyword, ()


def _compute_share(terms: Sequence[str], words: Sequence[str]) -> float:
    """Return the share of terms that are in `words` or begin one of them, from 0 to 1."""
    if not terms:
        return 0.0
    return sum(any(word.startswith(term) for word in words) for term in terms) / len(terms)


def _cut_to_budget(matches: Sequence[NodeMatch], token_budget: int) -> list[NodeMatch]:
    taken: list[NodeMatch] = []
    left = token_budget
    for match in matches:
        left -= estimate_tokens(match.text)
        if left < 0:
            break
        taken.append(match)
    return taken
