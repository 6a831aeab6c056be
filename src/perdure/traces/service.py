"""Service of traces: lists and searches them, and shows their spans."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta

from perdure.kernel.checks import Id, Limit, Offset, check_id, check_page, check_text, optional_text
from perdure.kernel.errors import InvalidInput, NotFound
from perdure.kernel.pages import Keyset, PaginatedResult
from perdure.kernel.storage.port import Storage
from perdure.rollouts import encoding
from perdure.service.base import Service
from perdure.service.callers import Caller
from perdure.service.endpoints import GET, call
from perdure.spans import encoding as span_encoding
from perdure.spans.figures import AGENT_NAMES, AGENT_STEP, CALLS, cut_label, label_in
from perdure.spans.prices import Prices
from perdure.spans.records import Span
from perdure.spans.rows import SpanRecordRow, TraceCursor
from perdure.spans.sums import MAX_NAME
from perdure.traces import operations
from perdure.traces.messages import SpanMessage, SpanMessages, build_conversation, messages_of_span
from perdure.traces.operations import PlacedTrace, TraceFilter
from perdure.traces.outline import SpanOutline, SpanStep, SpanSteps, outline_from, step_from
from perdure.traces.records import Trace, TracePage, trace_from

WINDOW = 1000
"""Number of traces of an index that one call reads if more than one filter is given."""
SEARCHED_TRACES = 100
"""Maximum number of traces that one call searches for attributes."""
SEARCHED_SPANS = 2000
"""Maximum number of spans of a trace that are searched for attributes."""
SEARCHED_AT_ONCE = 250
"""Number of these spans that one transaction reads."""
SEARCH_SECONDS = 1.0
"""Time limit of a search for attributes: after it no further trace is searched."""
MAX_ATTRIBUTES = 10
DEEPEST = 64
"""Maximum number of spans above a span to search for its agent and its model."""
LAST_NS = 2**63 - 1
_TRACES = Keyset[TraceCursor, TraceCursor]("traces", TraceCursor(LAST_NS, ""), lambda place: place)
_SPANS = operations.TRACE_ORDER.keyset("spans of a trace")

AttributeFilters = Annotated[list[str], Meta(max_length=MAX_ATTRIBUTES)]


class Traces(Service):
    """The traces of one namespace, listed from rows that are written together with the spans."""

    def __init__(
        self,
        storage: Storage,
        *,
        namespace: str = "default",
        caller: Caller | None = None,
        prices: Prices | None = None,
    ) -> None:
        super().__init__(storage, namespace=namespace, caller=caller)
        self._prices = prices or Prices()

    @call(GET("/traces"), scope="read")
    async def list(
        self,
        *,
        name: str | None = None,
        name_contains: str | None = None,
        service: str | None = None,
        session_id: str | None = None,
        error: bool | None = None,
        since: float | None = None,
        until: float | None = None,
        attribute: AttributeFilters | None = None,
        limit: Limit = 100,
        cursor: str | None = None,
    ) -> TracePage:
        """List traces, the newest first.

        `name` is the name of any of its spans, `name_contains` a part of it in any case. If spans have
        thousands of names, a call searches 100 traces for `name_contains`. `session_id` is the id of a
        conversation (`gen_ai.conversation.id`, `session.id`), such as the thread of runs. `error` selects
        traces with a failed span. `since` and `until` are epoch seconds. An `attribute` is `key=value`; one
        span must have all of them. Attributes have no index: a call searches at most 1 second, 100 traces and
        2,000 spans of each. `searched` is the number of traces that it searched. A page may have fewer items
        than `limit`, even none; `next` is the cursor of the next page.
        """
        check_page(limit)
        newest = TraceCursor(_nanoseconds(until, "until", LAST_NS), "")
        wanted = TraceFilter(
            name=None if name is None else check_text(name, "name")[:MAX_NAME],
            part=check_text(name_contains, "name_contains").lower() if name_contains else None,
            service=optional_text(service, "service"),
            session_id=None if session_id is None else cut_label(check_text(session_id, "session_id")),
            failed=bool(error),
            since=_nanoseconds(since, "since", 0),
            place=newest if cursor is None else _TRACES.read(cursor),
        )
        attributes = attributes_from(attribute or ())
        if name is not None and name_contains is not None:
            raise InvalidInput("give either a name or a part of one, not both")
        by_name = wanted.name is not None or wanted.part is not None
        filters = sum((by_name, wanted.service is not None, wanted.session_id is not None, wanted.failed))
        window = WINDOW if filters > 1 and not attributes else limit
        if attributes:
            window = min(SEARCHED_TRACES, max(limit, 1))
        if not window:
            return TracePage(items=[])
        traces, place = await self.read(operations.list_traces, wanted, window)
        searched: int | None = None
        if attributes:
            matching, searched = await self._search(traces, attributes)
            if searched < len(traces):
                place, _ = traces[searched - 1]
            traces = [*matching]
        if len(traces) > limit:
            traces = traces[:limit]
            place, _ = traces[-1]
        after = None if place is None else _TRACES.write(place)
        return TracePage(items=[trace_from(row) for _, row in traces], next=after, searched=searched)

    async def _search(
        self, traces: Sequence[PlacedTrace], attributes: Mapping[str, str]
    ) -> tuple[Sequence[PlacedTrace], int]:
        """Return the traces with a span that has the attributes, and the number of searched traces."""
        ends = time.monotonic() + SEARCH_SECONDS
        matching: list[PlacedTrace] = []
        for number, (place, row) in enumerate(traces, 1):
            if await self._has(row.trace_id, attributes):
                matching.append((place, row))
            if time.monotonic() > ends:
                return matching, number
        return matching, len(traces)

    async def _has(self, trace_id: str, attributes: Mapping[str, str]) -> bool:
        """Return whether one of a trace's spans has all the attributes. A thread decodes the spans."""
        after: str | None = None
        for _ in range(0, SEARCHED_SPANS, SEARCHED_AT_ONCE):
            place = _SPANS.read(after)
            rows, parts = await self.read(operations.search_spans, trace_id, SEARCHED_AT_ONCE, place)
            has = await asyncio.to_thread(_any_has, rows, parts, attributes)
            if has:
                return True
            after = _SPANS.next_if_full(rows, SEARCHED_AT_ONCE)
            if after is None:
                return False
        return False

    @call(GET("/traces/{trace_id}"), scope="read", errors=(NotFound,))
    async def get(self, trace_id: Id) -> Trace:
        """Get a trace by its id, or by the first digits of its id if no other trace has them."""
        rows = await self.read(operations.get_traces, check_id(trace_id, "trace_id"))
        if len(rows) > 1:
            raise NotFound(f"more than one trace has an id that begins with {trace_id}")
        if not rows:
            raise NotFound(f"Trace {trace_id} not found")
        (row,) = rows
        return trace_from(row)

    @call(GET("/traces/{trace_id}/spans"), scope="read", errors=(NotFound,))
    async def spans(
        self,
        trace_id: Id,
        *,
        span_id: str | None = None,
        limit: Limit = 100,
        offset: Offset = 0,
        cursor: str | None = None,
    ) -> PaginatedResult[Span]:
        """List the spans of a trace, of all its rollouts, in the order of their start."""
        request = _SPANS.open_page(limit, offset, cursor)
        check_id(trace_id, "trace_id")
        (rows, total), parts = await self.read(
            operations.trace_spans, trace_id, optional_text(span_id, "span_id"), limit, offset, request.place
        )
        if not total and span_id is None:
            raise NotFound(f"Trace {trace_id} not found")
        return request.build_page(rows, span_encoding.spans_from(rows, parts), total)

    @call(GET("/traces/{trace_id}/outline"), scope="read", errors=(NotFound,))
    async def outline(
        self, trace_id: Id, *, limit: Limit = 100, offset: Offset = 0, cursor: str | None = None
    ) -> PaginatedResult[SpanOutline]:
        """List the spans of a trace in the order of their start, without their attributes and events."""
        request = _SPANS.open_page(limit, offset, cursor)
        check_id(trace_id, "trace_id")
        rows, total = await self.read(operations.trace_outline, trace_id, limit, offset, request.place)
        if not total:
            raise NotFound(f"Trace {trace_id} not found")
        return request.build_page(rows, map(outline_from, rows), total)

    @call(GET("/traces/{trace_id}/steps"), scope="read", errors=(NotFound,))
    async def steps(self, trace_id: Id, *, limit: Limit = 100, offset: Offset = 0) -> SpanSteps:
        """List the figures of a trace's spans: kind of step, model, tokens, cost and reward.

        `limit` and `offset` are positions among its spans in the order of their start. Spans without figures
        are left out.
        """
        check_page(limit, offset)
        check_id(trace_id, "trace_id")
        (rows, total), parts = await self.read(operations.trace_spans, trace_id, None, limit, offset)
        if not total:
            raise NotFound(f"Trace {trace_id} not found")
        # The agent of a span may be that of a span on another page.
        above, more = await self.read(operations.trace_ancestors, trace_id, rows, DEEPEST)
        items = _steps_in(rows, [*rows, *above], {**parts, **more}, self._prices)
        return SpanSteps(items=items, total=total)

    @call(GET("/traces/{trace_id}/messages"), scope="read", errors=(NotFound,))
    async def messages(
        self, trace_id: Id, *, span_id: str | None = None, limit: Limit = 1000, offset: Offset = 0
    ) -> SpanMessages:
        """List the messages of models and the answers of tools in a trace, each once.

        `limit` and `offset` are positions among its spans in the order of their start. With `span_id` the
        list has all messages of one span.
        """
        check_page(limit, offset)
        check_id(trace_id, "trace_id")
        chosen = optional_text(span_id, "span_id")
        (rows, total), parts = await self.read(operations.trace_spans, trace_id, chosen, limit, offset)
        if not total:
            missing = f"Trace {trace_id}" if chosen is None else f"Span {chosen} of trace {trace_id}"
            raise NotFound(f"{missing} not found")
        items = await asyncio.to_thread(_messages_in, rows, parts, chosen is not None)
        return SpanMessages(items=list(items), total=total)

    async def spans_of(self, trace_id: str, *, limit: int, offset: int = 0) -> Sequence[Span]:
        """Return some spans of a trace; none if the trace is unknown."""
        (rows, _), parts = await self.read(operations.trace_spans, trace_id, None, limit, offset)
        return span_encoding.spans_from(rows, parts)


def attributes_from(filters: Sequence[str]) -> dict[str, str]:
    """Parse filters of the form `key=value` into attributes by name."""
    if len(filters) > MAX_ATTRIBUTES:
        raise InvalidInput(f"at most {MAX_ATTRIBUTES} attributes can be searched for, not {len(filters)}")
    pairs = [check_text(item, "attribute").partition("=") for item in filters]
    for key, separator, _ in pairs:
        if not key or not separator:
            raise InvalidInput(f"an attribute must be key=value, not {key!r}")
    return {key: value for key, _, value in pairs}


def _steps_in(
    rows: Sequence[SpanRecordRow],
    known: Sequence[SpanRecordRow],
    parts: Mapping[str, bytes],
    prices: Prices,
) -> list[SpanStep]:
    """Return the steps of spans. One without an agent or a model has that of the nearest known span above."""
    counted = span_encoding.figures_from(known, parts)
    parents = {row.span_id: row.parent_id for row in known}
    agents: dict[str, str] = {}
    models: dict[str, str] = {}
    for row, figures in zip(known, counted, strict=True):
        if figures is None:
            continue
        models[row.span_id], agents[row.span_id] = figures.step.model, figures.step.agent
        if figures.step.kind == AGENT_STEP:
            (span,) = span_encoding.spans_from([row], parts)
            agents[row.span_id] = label_in(span.attributes, AGENT_NAMES)
    return [
        step_from(
            row.span_id,
            figures,
            prices,
            _inherited(row.span_id, models, parents) if figures.step.kind in CALLS else "",
            _inherited(row.span_id, agents, parents),
        )
        for row, figures in zip(rows, counted[: len(rows)], strict=True)
        if figures is not None
    ]


def _inherited(span_id: str, labels: Mapping[str, str], parents: Mapping[str, str | None]) -> str:
    """Return the label of a span, or of the nearest span above it with a label."""
    above: str | None = span_id
    for _ in range(DEEPEST):
        if above is None:
            break
        if labels.get(above):
            return labels[above]
        above = parents.get(above)
    return ""


def _messages_in(
    rows: Sequence[SpanRecordRow], parts: Mapping[str, bytes], one: bool
) -> Sequence[SpanMessage]:
    spans = span_encoding.spans_from(rows, parts)
    return [item for span in spans for item in messages_of_span(span)] if one else build_conversation(spans)


def _any_has(rows: Sequence[SpanRecordRow], parts: Mapping[str, bytes], wanted: Mapping[str, str]) -> bool:
    """Return whether a span has all the attributes. Spans without their names are not decoded."""
    likely = span_encoding.spans_with_names(rows, parts, wanted)
    return any(has_attributes(span.attributes, wanted) for span in span_encoding.spans_from(likely, parts))


def has_attributes(attributes: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    """Return whether a span has all these attributes; numbers and booleans are compared as text."""
    return all(key in attributes and attribute_text(attributes[key]) == text for key, text in wanted.items())


def attribute_text(value: Any) -> str:
    """Return the text of an attribute that a search compares."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _nanoseconds(seconds: float | None, what: str, otherwise: int) -> int:
    return otherwise if seconds is None else max(0, encoding.micros(seconds, what) * 1000)
