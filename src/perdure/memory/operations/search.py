"""Search over documents in one read transaction: by words, by vectors, and the cited events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.kernel.storage.port import Tx
from perdure.kernel.vectors import Vector, VectorTable
from perdure.memory import sql
from perdure.memory.model import (
    EVENT,
    CitedRow,
    HitRow,
    MemoryCounterRow,
    VectorDocument,
    build_document_range,
)
from perdure.memory.nodes import GRIP_KIND, NODE_KIND, ShownNode
from perdure.memory.operations import vectors
from perdure.memory.operations.events import cited
from perdure.memory.records import SearchMode
from perdure.memory.search import Weights, best, fused

TEXT_CHARACTERS = 12_800
"""Number of characters read from each matching document."""
CITED_EVENTS = 10
"""Limit of events that a result cites."""
NEW_VECTORS = 200
"""Number of vectors that a search reads and compares itself because they are not cached yet."""


class TextSearch(NamedTuple):
    """A query in the engine's syntax, with its filters."""

    match: str
    tags: tuple[str, ...]
    since: int | None
    until: int | None
    limit: int
    documents: int = 0
    """Total number of documents."""


class SearchPlan(NamedTuple):
    """The mode of a search and its text queries.

    Each query of `ways` is used only if the earlier queries have returned too few documents.
    """

    mode: SearchMode
    ways: tuple[tuple[TextSearch, ...], ...]
    limit: int
    weights: Weights


class NearDocuments(NamedTuple):
    """The nearest cached documents, and the filters for new documents."""

    scored: list[tuple[float, int]]
    vector: Vector
    tag_sets: tuple[tuple[str, ...], ...]
    since: int | None
    until: int | None
    limit: int
    last: int
    """The last cached place."""


class DocumentMatches(NamedTuple):
    """Results of a search, with the events behind each document."""

    counter: MemoryCounterRow | None
    hits: list[HitRow]
    shown: list[ShownNode]
    cited: dict[str, list[CitedRow]]
    gone: list[int]
    """Cached places whose documents were replaced or deleted."""
    new_vectors: list[VectorDocument]


async def search_documents(tx: Tx, plan: SearchPlan, near: NearDocuments | None) -> DocumentMatches:
    """Return the best documents of a search with the events behind them."""
    counter = await tx.one(sql.GET_COUNTER)
    matching: list[HitRow] = []
    if plan.mode != "vector":
        matching = await _search_words(tx, plan.ways, 0 if counter is None else counter.documents)
    gone: list[int] = []
    new: list[VectorDocument] = []
    hits = best(matching, plan.limit)
    if near is not None:
        new = await vectors.after(tx, near.last, NEW_VECTORS)
        scored = sorted([*near.scored, *nearest(_build_table(new, near.vector), near)], reverse=True)
        rows = await vectors.documents(tx, [place for _, place in scored], TEXT_CHARACTERS)
        gone = [place for _, place in near.scored if place not in rows]
        nearby = [rows[place]._replace(score=score) for score, place in scored if place in rows][: near.limit]
        hits = nearby if plan.mode == "vector" else _fuse(matching, nearby, plan)
    shown, events = await _list_cited(tx, hits)
    return DocumentMatches(counter, hits, shown, events, gone, new)


def _fuse(matching: Sequence[HitRow], near: Sequence[HitRow], plan: SearchPlan) -> list[HitRow]:
    """Fuse two rankings and return the best."""
    ranked = best(matching, 2 * plan.limit)
    rows = {hit.id: hit for hit in [*near, *ranked]}
    weights = plan.weights
    scores = fused([(weights.text, [hit.id for hit in ranked]), (weights.vector, [hit.id for hit in near])])
    return best((rows[id]._replace(score=score) for id, score in scores.items()), plan.limit)


# --- words ------------------------------------------------------------------------------------------------

ALL_RANKED = 5000
"""PostgreSQL ranks all matches up to this number, or a 50th of all documents: it reads the words of each."""
NEWEST = 1000
"""Of more matches, it ranks only this many of the newest."""
ALL_MATCHES = 100_000


async def _search_words(tx: Tx, ways: Sequence[Sequence[TextSearch]], documents: int) -> list[HitRow]:
    """Return the matches of the first query; if these are too few, add matches of the next queries."""
    hits: list[HitRow] = []
    for way in ways:
        for search in way:
            hits += await search_texts(tx, search._replace(documents=documents))
        if len(hits) >= max(search.limit for search in way):
            break
    return hits


async def search_texts(tx: Tx, search: TextSearch) -> list[HitRow]:
    """Return the documents that match a query best."""
    assert tx.ns is not None
    low, high = build_document_range(tx.ns)
    shared = {
        "match": search.match,
        "tags": list(search.tags),
        "limit": search.limit,
        "low": low,
        "high": high,
        "characters": TEXT_CHARACTERS,
    }
    if search.since is None and search.until is None:
        few = max(ALL_RANKED, search.documents // 50)
        return await tx.all(sql.SEARCH, **shared, few=few, most=NEWEST)
    since = 0 if search.since is None else search.since
    until = 2**62 if search.until is None else search.until
    return await tx.all(
        sql.SEARCH_BETWEEN, **shared, since=since, until=until, few=ALL_MATCHES, most=ALL_MATCHES
    )


# --- vectors ----------------------------------------------------------------------------------------------


def nearest(table: VectorTable, near: NearDocuments) -> list[tuple[float, int]]:
    """Return the places of a table that are nearest to a vector, with their scores."""
    return [
        scored
        for tags in near.tag_sets
        for scored in table.nearest(near.vector, near.limit, tags, near.since, near.until)
    ]


def _build_table(rows: Sequence[VectorDocument], vector: Vector) -> VectorTable:
    table = VectorTable(len(vector))
    add_rows(table, rows)
    return table


def add_rows(table: VectorTable, rows: Sequence[VectorDocument]) -> None:
    """Add the vectors of documents to a table."""
    table.add((row.place, row.vector, row.tags.split(" "), row.timestamp_ms) for row in rows)


# --- the events behind ------------------------------------------------------------------------------------


async def _list_cited(tx: Tx, hits: Sequence[HitRow]) -> tuple[list[ShownNode], dict[str, list[CitedRow]]]:
    """Return the nodes among the hits, and the events behind each hit.

    These are the event itself, the events of the grip, or the events of the node's grips.
    """
    ids: dict[str, list[str]] = {EVENT: [], NODE_KIND: [], GRIP_KIND: []}
    for hit in hits:
        ids[hit.kind].append(hit.id)
    events: dict[str, list[CitedRow]] = {hit.id: [] for hit in hits}
    if ids[EVENT]:
        rows = await cited(tx, ids[EVENT])
        events |= {id: [rows[id]] for id in ids[EVENT] if id in rows}
    shown = await tx.all(sql.SHOW_NODES, ids=ids[NODE_KIND]) if ids[NODE_KIND] else []
    for kind, statement in ((NODE_KIND, sql.CITED_BY_NODES), (GRIP_KIND, sql.CITED_BY_GRIPS)):
        if ids[kind]:
            for row in await tx.all(statement, ids=sorted(ids[kind]), most=CITED_EVENTS):
                cited_events = events[row.document]
                event = CitedRow(row.id, row.session_id, row.timestamp_ms)
                if len(cited_events) < CITED_EVENTS and event not in cited_events:
                    cited_events.append(event)
    return shown, events
