"""A tracer of OpenTelemetry's SDK whose spans are handed over one by one as they end."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry.context import Context, attach
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

__all__ = ["enter_trace", "make_tracer"]

NAME = "perdure.agent"


class _Taking(SpanProcessor):
    """Hands over each span when it has ended."""

    def __init__(self, take: Callable[[ReadableSpan], None]) -> None:
        self._take = take

    def on_end(self, span: ReadableSpan) -> None:
        self._take(span)


class _OneTrace(RandomIdGenerator):
    """Puts every span without a parent into the same trace."""

    def __init__(self, trace_id: int) -> None:
        self._trace_id = trace_id

    def generate_trace_id(self) -> int:
        return self._trace_id


def make_tracer(take: Callable[[ReadableSpan], None], trace_id: int) -> Tracer:
    """A tracer that records everything; spans without a parent belong to the trace `trace_id`."""
    provider = TracerProvider(sampler=ALWAYS_ON, id_generator=_OneTrace(trace_id), shutdown_on_exit=False)
    provider.add_span_processor(_Taking(take))
    return provider.get_tracer(NAME)


def enter_trace(traceparent: str) -> None:
    """Let the spans of the running task continue a W3C trace; one that is not well-formed is left alone."""
    attach(TraceContextTextMapPropagator().extract({"traceparent": traceparent}, Context()))
