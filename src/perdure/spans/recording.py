"""Records the spans of an attempt without OpenTelemetry. If OpenTelemetry is in use, both form one tree."""

from __future__ import annotations

import re
import sys
import time
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Literal, NamedTuple

from perdure.agents.records import RecordedSpan, SpanEvent
from perdure.kernel.ids import random_bytes

MAX_MESSAGE = 4_000
MAX_STACK = 16_000
OTEL = "opentelemetry.trace"

_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)

Kind = Literal["INTERNAL", "CLIENT"]


class SpanRef(NamedTuple):
    """A span of a trace, by its ids."""

    trace_id: str
    span_id: str

    def traceparent(self, *, sampled: bool) -> str:
        """Return the span as a W3C `traceparent` header."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if sampled else '00'}"


def parse_traceparent(text: str | None) -> tuple[SpanRef, bool] | None:
    """Parse a W3C `traceparent`: return its span and whether it is sampled, or None if it is not
    well-formed."""
    match = _TRACEPARENT.fullmatch(text) if text else None
    if match is None:
        return None
    return SpanRef(match[1], match[2]), bool(int(match[3], 16) & 1)


# --- the current span -------------------------------------------------------------------------------------


class OpenSpan:
    """A span that has not ended yet."""

    __slots__ = (
        "_recorder",
        "above",
        "attributes",
        "ended",
        "events",
        "kind",
        "name",
        "number",
        "parent_id",
        "ref",
        "start",
    )

    def __init__(
        self,
        recorder: SpanRecorder,
        name: str,
        attributes: dict[str, Any],
        *,
        ref: SpanRef,
        parent_id: str | None,
        kind: Kind = "INTERNAL",
        number: int = 0,
    ) -> None:
        self.ref, self.name, self.kind, self.parent_id = ref, name, kind, parent_id
        self.attributes = attributes
        self.events: list[SpanEvent] = []
        self.number = number
        self.start = time.time()
        self.ended = False
        self.above: Current = None
        """The span that was current when this span was entered."""
        self._recorder = recorder

    def end(self, error: BaseException | None = None, *, failed: str | None = None) -> None:
        """End the span: with an exception, with a description of the failure, or as successful."""
        self.ended = True
        if error is not None and not isinstance(error, Exception):
            # A stop is not a failure of the span.
            self.attributes["perdure.stopped"] = type(error).__name__
        elif error is not None:
            self.events.append(exception_event(error, content=self._recorder.content))
            self.attributes["error.type"] = type(error).__name__
            failed = failed or (str(error)[:MAX_MESSAGE] if self._recorder.content else type(error).__name__)
        self._recorder.take(
            RecordedSpan(
                name=self.name[:1024],
                start_time=self.start,
                end_time=time.time(),
                trace_id=self.ref.trace_id,
                span_id=self.ref.span_id,
                parent_id=self.parent_id,
                number=self.number,
                kind=self.kind,
                status="UNSET" if failed is None else "ERROR",
                description=failed,
                attributes=self.attributes,
                events=self.events,
            )
        )


Current = OpenSpan | SpanRef | None
_current: ContextVar[Current] = ContextVar("perdure_span", default=None)


def enter_span(span: OpenSpan | SpanRef) -> None:
    """Make a span the current span of the running task, until the span ends.

    It may end in another task. After its end, the previous span is current again.
    """
    if isinstance(span, OpenSpan):
        span.above = _get_current()
    _current.set(span)
    otel = _otel()
    if otel is not None:
        otel.attach_span(span)


def current_span() -> SpanRef | None:
    """Return the innermost span of the running task."""
    return get_ref(_get_current())


def _get_current() -> Current:
    """Return the current span; OpenTelemetry's counts first if it is in use."""
    otel = _otel()
    current: Current = otel.current_span() if otel is not None else None
    return current or live(_current.get())


def share_span() -> None:
    """Pass the current span to OpenTelemetry, which may have been loaded after the span was entered."""
    otel, span = _otel(), live(_current.get())
    if otel is not None and span is not None and otel.current_span() is None:
        otel.attach_span(span)


def live(span: Current) -> Current:
    """Return the span, or the nearest span above it that has not ended."""
    while isinstance(span, OpenSpan) and span.ended:
        span = span.above
    return span


def get_ref(span: Current) -> SpanRef | None:
    """Return the ids of the nearest span that has not ended."""
    current = live(span)
    return current.ref if isinstance(current, OpenSpan) else current


_bridge: ModuleType | None = None


def _otel() -> ModuleType | None:
    """Return the bridge to OpenTelemetry's context, if this process has loaded OpenTelemetry."""
    global _bridge
    if _bridge is None and OTEL in sys.modules:
        from perdure.spans import otel_context

        _bridge = otel_context
    return _bridge


# --- recording --------------------------------------------------------------------------------------------


class SpanRecorder:
    """Records spans below the span `root`, and passes each to `take` when it ends."""

    def __init__(self, root: SpanRef, take: Callable[[RecordedSpan], None], *, content: bool) -> None:
        self.root = root
        self.take = take
        self.content = content
        """Whether messages, arguments and results are recorded."""

    def start(
        self,
        name: str,
        attributes: dict[str, Any],
        *,
        kind: Kind = "INTERNAL",
        parent: SpanRef | None = None,
    ) -> OpenSpan:
        """Start a span below `parent`, or below the current span."""
        above = parent or current_span() or self.root
        if above.trace_id != self.root.trace_id:
            above = self.root
        ref = SpanRef(self.root.trace_id, new_span_id())
        return OpenSpan(self, name, attributes, ref=ref, parent_id=above.span_id, kind=kind)


def new_span_id() -> str:
    """Return a random id, but not all zeros, which is invalid."""
    text = random_bytes(8).hex()
    return text if text != "0" * 16 else new_span_id()


def exception_event(error: BaseException, *, content: bool) -> SpanEvent:
    """Build the event of an exception like OpenTelemetry does; without content it has only the type."""
    attributes: dict[str, Any] = {"exception.type": type(error).__qualname__}
    if content:
        attributes["exception.message"] = str(error)[:MAX_MESSAGE]
        stack = "".join(traceback.format_exception(error))
        attributes["exception.stacktrace"] = stack[-MAX_STACK:]
    return SpanEvent(name="exception", timestamp=time.time(), attributes=attributes)
