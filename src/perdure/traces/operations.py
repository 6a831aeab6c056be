"""Reads traces and their spans from the rows that lists show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from perdure.kernel.cursors import Place
from perdure.kernel.storage.filters import Clause
from perdure.kernel.storage.port import Tx
from perdure.rollouts.operations.queries import SPANS, Page, shared_parts
from perdure.spans.rows import SpanRecordRow, TraceCursor, TraceRow
from perdure.traces import sql
from perdure.traces.outline import SpanOutlineRow

MOST_NAMES = 2000
MOST_MATCHING = 20
"""Maximum number of names, and of matching names, for which each name is looked up in the index."""
MOST_LOOKED_THROUGH = 100
"""Number of traces that one call searches if there are more names."""
TRACE_ORDER = SPANS.order("start_time", "asc")
"""The order of the spans of a trace."""


async def get_traces(tx: Tx, trace_id: str) -> list[TraceRow]:
    """Return the trace with an id, or up to 2 traces whose ids begin with it."""
    trace = await tx.one(sql.GET_TRACE, trace_id=trace_id)
    if trace is not None:
        return [trace]
    # Ids are hexadecimal digits, which all come before `g`.
    return await tx.all(sql.BEGINNING_TRACES, first=trace_id, last=trace_id + "g")


class TraceFilter(msgspec.Struct, frozen=True):
    """Filters of traces and the position after which a page begins; times are nanoseconds."""

    name: str | None
    part: str | None
    """A part of a span's name, in lower case."""
    service: str | None
    session_id: str | None
    failed: bool
    since: int
    place: TraceCursor


PlacedTrace = tuple[TraceCursor, TraceRow]
"""A trace and its position in the list."""
TraceWindow = tuple[list[PlacedTrace], TraceCursor | None]
"""Matching traces of a window, and the position of its end; None if there are no more traces."""


async def list_traces(tx: Tx, wanted: TraceFilter, window: int) -> TraceWindow:
    """Return the matching ones of the next `window` traces of an index, and the end of the window."""
    bound = {
        "since": wanted.since,
        "start_ns": wanted.place.start_ns,
        "trace_id": wanted.place.trace_id,
        "n": window,
    }
    if wanted.part is not None:
        return await _list_by_part(tx, wanted, wanted.part, bound)
    if wanted.name is not None:
        places = await tx.all(sql.LIST_NAMED_TRACES, name=wanted.name, **bound)
    elif wanted.session_id is not None:
        places = await tx.all(sql.LIST_SESSION_TRACES, session_id=wanted.session_id, **bound)
    elif wanted.service is not None:
        places = await tx.all(sql.LIST_SERVICE_TRACES, service=wanted.service, **bound)
    elif wanted.failed:
        places = await tx.all(sql.LIST_FAILED_TRACES, **bound)
    else:
        places = await tx.all(sql.LIST_TRACES, **bound)
    return await _get_matching(tx, wanted, places), places[-1] if len(places) == window else None


async def _get_matching(tx: Tx, wanted: TraceFilter, places: Sequence[TraceCursor]) -> list[PlacedTrace]:
    """Return the traces at these positions that match the filter."""
    ids = [place.trace_id for place in places]
    rows = {row.trace_id: row for row in await tx.all(sql.GET_TRACES, ids=ids)} if ids else {}
    placed = [(place, rows[place.trace_id]) for place in places if place.trace_id in rows]
    return [(place, row) for place, row in placed if _matches(row, wanted)]


async def _list_by_part(tx: Tx, wanted: TraceFilter, part: str, bound: Mapping[str, Any]) -> TraceWindow:
    """List traces with a span whose name contains a text.

    Usually there are few names, and the index finds the traces of each. If there are many, the names in the
    next traces are searched.
    """
    all_names = await tx.all(sql.LIST_NAMES, n=MOST_NAMES + 1)
    names = [name for name in all_names if part in name.lower()]
    if len(all_names) > MOST_NAMES or len(names) > MOST_MATCHING:
        window = min(bound["n"], MOST_LOOKED_THROUGH)
        places = await tx.all(sql.LIST_TRACES, **{**bound, "n": window})
        rows = await tx.all(sql.NAMES_OF_TRACES, ids=[place.trace_id for place in places])
        ids = {row.trace_id for row in rows if part in row.name.lower()}
        matching = [place for place in places if place.trace_id in ids]
    else:
        window = bound["n"]
        every: set[TraceCursor] = set()
        for name in names:
            every.update(await tx.all(sql.LIST_NAMED_TRACES, name=name, **bound))
        places = sorted(every, reverse=True)[:window]
        matching = await _last_places(tx, places, names)
    return await _get_matching(tx, wanted, matching), places[-1] if len(places) == window else None


async def _last_places(tx: Tx, places: Sequence[TraceCursor], names: Sequence[str]) -> list[TraceCursor]:
    """Return each trace once, at the position of the last span with one of the names."""
    ids = list({place.trace_id for place in places})
    last: dict[str, int] = {}
    for row in await tx.all(sql.STARTS_OF_NAMES, ids=ids, names=list(names)):
        last[row.trace_id] = max(last.get(row.trace_id, row.start_ns), row.start_ns)
    return [place for place in places if place.start_ns == last[place.trace_id]]


def _matches(row: TraceRow, wanted: TraceFilter) -> bool:
    return (
        (wanted.service is None or row.service == wanted.service)
        and (wanted.session_id is None or row.session_id == wanted.session_id)
        and (not wanted.failed or row.errors > 0)
    )


async def trace_spans(
    tx: Tx, trace_id: str, span_id: str | None, limit: int, offset: int, place: Place | None = None
) -> tuple[Page[SpanRecordRow], Mapping[str, bytes]]:
    """Return a page of a trace's spans in the order of their start, and the parts that they share."""
    clause = Clause("TRUE", {}) if span_id is None else Clause("span_id = :span_id", {"span_id": span_id})
    bound = {**clause.values, "trace_id": trace_id}
    page, values = sql.LIST_TRACE_SPANS.page(Clause(clause.sql, bound), TRACE_ORDER, limit, offset, place)
    rows = await tx.all(page, **values)
    total = await tx.one(sql.LIST_TRACE_SPANS.count(clause), **bound)
    return (rows, total or 0), await shared_parts(tx, rows)


async def trace_ancestors(
    tx: Tx, trace_id: str, spans: Sequence[SpanRecordRow], levels: int
) -> tuple[Sequence[SpanRecordRow], Mapping[str, bytes]]:
    """The spans above some spans of a trace that are not among them, and the parts that they share."""
    seen = {span.span_id for span in spans}
    found: list[SpanRecordRow] = []
    rows = spans
    for _ in range(levels):
        missing = sorted({row.parent_id for row in rows if row.parent_id is not None} - seen)
        rows = await tx.all(sql.GET_TRACE_SPANS, trace_id=trace_id, span_ids=missing) if missing else []
        if not rows:
            break
        seen.update(missing)
        found += rows
    return found, await shared_parts(tx, found)


async def search_spans(
    tx: Tx, trace_id: str, limit: int, place: Place | None
) -> tuple[Sequence[SpanRecordRow], Mapping[str, bytes]]:
    """Return some spans of a trace after a position, and the parts that they share, without a total."""
    clause = Clause("TRUE", {"trace_id": trace_id})
    page, values = sql.LIST_TRACE_SPANS.page(clause, TRACE_ORDER, limit, 0, place)
    rows = await tx.all(page, **values)
    return rows, await shared_parts(tx, rows)


async def trace_outline(
    tx: Tx, trace_id: str, limit: int, offset: int, place: Place | None = None
) -> Page[SpanOutlineRow]:
    """Return a page of a trace's spans like `trace_spans`, without their bodies."""
    bound = {"trace_id": trace_id}
    page, values = sql.OUTLINE_TRACE_SPANS.page(Clause("TRUE", bound), TRACE_ORDER, limit, offset, place)
    rows = await tx.all(page, **values)
    total = await tx.one(sql.OUTLINE_TRACE_SPANS.count(Clause("TRUE", {})), **bound)
    return rows, total or 0
