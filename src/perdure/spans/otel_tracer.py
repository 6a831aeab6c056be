"""A tracer of OpenTelemetry's SDK that passes each span to a callback when it ends."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Tracer

from perdure.agents.records import RecordedSpan
from perdure.spans.otel import span_from

__all__ = ["build_tracer", "recorded_from"]

NAME = "perdure.agent"
_NAMED = frozenset(
    {"name", "start_time", "end_time", "trace_id", "span_id", "parent_id", "kind", "attributes"}
)
_IDS = frozenset({"rollout_id", "attempt_id", "sequence_id", "resource", "status"})


class _CallbackProcessor(SpanProcessor):
    """Passes each ended span to a callback."""

    def __init__(self, take: Callable[[RecordedSpan], None]) -> None:
        self._take = take

    def on_end(self, span: ReadableSpan) -> None:
        self._take(recorded_from(span))


class _OneTrace(RandomIdGenerator):
    """Puts all spans without a parent into the same trace."""

    def __init__(self, trace_id: int) -> None:
        self._trace_id = trace_id

    def generate_trace_id(self) -> int:
        return self._trace_id


def build_tracer(take: Callable[[RecordedSpan], None], trace_id: str) -> Tracer:
    """Create a tracer that records everything; spans without a parent belong to the trace `trace_id`."""
    provider = TracerProvider(
        sampler=ALWAYS_ON,
        resource=Resource({}),
        id_generator=_OneTrace(int(trace_id, 16)),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(_CallbackProcessor(take))
    return provider.get_tracer(NAME)


def recorded_from(span: ReadableSpan) -> RecordedSpan:
    """Convert a span of the SDK to a recorded span. The worker adds its own resource."""
    fields = span_from(span, "", "", 0).model_dump()
    status = fields["status"]
    named = {name: fields[name] for name in _NAMED}
    extra = {name: value for name, value in fields.items() if name not in _NAMED | _IDS}
    return RecordedSpan(
        **named,
        status=status["status_code"],
        description=status.get("description"),
        extra=extra,
    )
