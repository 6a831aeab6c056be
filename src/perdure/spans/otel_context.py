"""The current span in OpenTelemetry's context. Needs only OpenTelemetry's API."""

from __future__ import annotations

from opentelemetry.context import attach
from opentelemetry.trace import (
    INVALID_SPAN_CONTEXT,
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)

from perdure.spans.recording import Current, OpenSpan, SpanRef, get_ref, live

__all__ = ["attach_span", "current_span"]


class _CurrentSpan(NonRecordingSpan):
    """Represents a span that perdure records. After its end it represents the span above it."""

    def __init__(self, span: OpenSpan | SpanRef) -> None:
        # The context is created on demand, which is rare.
        self.span = span

    def get_span_context(self) -> SpanContext:
        return _build_context(get_ref(self.span))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.get_span_context()!r})"


def current_span() -> Current:
    """Return the current span, if any: perdure's own span, or the ids of another tracer's span."""
    span = get_current_span()
    if isinstance(span, _CurrentSpan):
        return live(span.span)
    context = span.get_span_context()
    return SpanRef(f"{context.trace_id:032x}", f"{context.span_id:016x}") if context.is_valid else None


def attach_span(span: OpenSpan | SpanRef) -> None:
    """Make a span recorded by perdure the current span. It is never detached, as it may end elsewhere."""
    attach(set_span_in_context(_CurrentSpan(span)))


def _build_context(ref: SpanRef | None) -> SpanContext:
    if ref is None:
        return INVALID_SPAN_CONTEXT
    ids = (int(ref.trace_id, 16), int(ref.span_id, 16))
    return SpanContext(*ids, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
