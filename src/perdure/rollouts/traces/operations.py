"""Figures of spans and rollouts, and traces: what lists show, kept in rows beside the spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from perdure.kernel.cursors import Place
from perdure.kernel.storage.filters import Clause
from perdure.kernel.storage.port import Tx
from perdure.rollouts.operations.queries import SPANS, Page, shared_parts
from perdure.rollouts.rows import RolloutFiguresRow, SpanView, TracePlace, TraceRow
from perdure.rollouts.traces import sql
from perdure.rollouts.traces.outline import SpanOutlineRow

TRACE_ORDER = SPANS.order("start_time", "asc")
"""The order of the spans of a trace."""


async def get_figures(tx: Tx, rollout_ids: Sequence[str]) -> list[RolloutFiguresRow]:
    """The figures of those of the rollouts that have some."""
    return await tx.all(sql.GET_FIGURES, ids=list(rollout_ids)) if rollout_ids else []


async def get_traces(tx: Tx, trace_id: str) -> list[TraceRow]:
    """The trace with an id, or up to two whose ids begin with it."""
    found = await tx.one(sql.GET_TRACE, trace_id=trace_id)
    if found is not None:
        return [found]
    # Ids are hexadecimal digits, which all come before `g`.
    return await tx.all(sql.BEGINNING_TRACES, first=trace_id, last=trace_id + "g")


class Wanted(msgspec.Struct, frozen=True):
    """Which traces, from which place on; times are nanoseconds."""

    name: str | None
    service: str | None
    failed: bool
    since: int
    place: TracePlace


async def list_traces(tx: Tx, wanted: Wanted, window: int) -> tuple[list[TraceRow], TracePlace | None]:
    """The wanted among the next `window` traces that an index gives, and where the window ends.

    No place means that there are no more.
    """
    bound = {
        "since": wanted.since,
        "start_ns": wanted.place.start_ns,
        "trace_id": wanted.place.trace_id,
        "n": window,
    }
    if wanted.name is not None:
        places = await tx.all(sql.LIST_NAMED_TRACES, name=wanted.name, **bound)
    elif wanted.service is not None:
        places = await tx.all(sql.LIST_SERVICE_TRACES, service=wanted.service, **bound)
    elif wanted.failed:
        places = await tx.all(sql.LIST_FAILED_TRACES, **bound)
    else:
        places = await tx.all(sql.LIST_TRACES, **bound)
    ids = [place.trace_id for place in places]
    rows = {row.trace_id: row for row in await tx.all(sql.GET_TRACES, ids=ids)} if ids else {}
    found = [rows[id] for id in ids if id in rows and _matches(rows[id], wanted)]
    return found, places[-1] if len(places) == window else None


def _matches(row: TraceRow, wanted: Wanted) -> bool:
    return (wanted.service is None or row.service == wanted.service) and (not wanted.failed or row.errors > 0)


async def trace_spans(
    tx: Tx, trace_id: str, span_id: str | None, limit: int, offset: int, place: Place | None = None
) -> tuple[Page[SpanView], Mapping[str, bytes]]:
    """A page of the spans of a trace, in the order of their start, and the parts that they share."""
    clause = Clause("TRUE", {}) if span_id is None else Clause("span_id = :span_id", {"span_id": span_id})
    bound = {**clause.values, "trace_id": trace_id}
    page, values = sql.LIST_TRACE_SPANS.page(Clause(clause.sql, bound), TRACE_ORDER, limit, offset, place)
    rows = await tx.all(page, **values)
    total = await tx.one(sql.LIST_TRACE_SPANS.count(clause), **bound)
    return (rows, total or 0), await shared_parts(tx, rows)


async def trace_outline(
    tx: Tx, trace_id: str, limit: int, offset: int, place: Place | None = None
) -> Page[SpanOutlineRow]:
    """The same without what spans hold."""
    bound = {"trace_id": trace_id}
    page, values = sql.OUTLINE_TRACE_SPANS.page(Clause("TRUE", bound), TRACE_ORDER, limit, offset, place)
    rows = await tx.all(page, **values)
    total = await tx.one(sql.OUTLINE_TRACE_SPANS.count(Clause("TRUE", {})), **bound)
    return rows, total or 0
