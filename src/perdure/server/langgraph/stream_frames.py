"""Events in the frames that `langgraph_sdk` reads. Everything here is pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from perdure.kernel.codec import encode_json
from perdure.server.http.sse import crlf_frame as frame
from perdure.streams.model import Event

END = "end"
METADATA = "metadata"
MESSAGES = "messages"
STATE_UPDATE = "state_update"
LIFECYCLE = "lifecycle"
RUN_MODES = "run_modes"
ANY_MESSAGES = frozenset({MESSAGES, "messages-tuple"})
"""Modes that stand for all forms in which messages are told."""


@dataclass(frozen=True, slots=True)
class RunFrames:
    """The events of a run: its end is told by the end of the stream."""

    ids: bool
    """Whether each event has an id to go on after."""
    modes: frozenset[str] | None = None
    """Which events; None is all."""

    def __call__(self, events: Sequence[Event]) -> bytes:
        return _joined(
            frame(each.event, each.body, each.id if self.ids else None)
            for each in events
            if each.event != END and (self.modes is None or is_of(each.event, self.modes))
        )


@dataclass(frozen=True, slots=True)
class ThreadFrames:
    """The events of all runs of a thread, with the end of each."""

    modes: frozenset[str]

    def __call__(self, events: Sequence[Event]) -> bytes:
        return _joined(_of_thread(each) for each in events if self._wants(each))

    def _wants(self, event: Event) -> bool:
        if event.event == STATE_UPDATE:
            return STATE_UPDATE in self.modes
        return RUN_MODES in self.modes or (LIFECYCLE in self.modes and event.event in (METADATA, END))


def is_of(event: str, modes: Collection[str]) -> bool:
    """Whether an event is of one of the modes; that of a subgraph has its mode before the bar."""
    mode = event.partition("|")[0]
    if mode in modes:
        return True
    return mode.partition("/")[0] == MESSAGES and not ANY_MESSAGES.isdisjoint(modes)


def _of_thread(event: Event) -> str:
    if event.event != END:
        return frame(event.event, event.body, event.id)
    return frame(METADATA, encode_json({"status": "run_done", "run_id": event.source}), event.id)


def _joined(frames: Iterable[str]) -> bytes:
    return "".join(frames).encode()
