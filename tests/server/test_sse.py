"""Frames of server-sent events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.server.http import long_responses
from perdure.server.http.long_responses import EventStreamResponse, crlf_frame, encode_events, frame
from perdure.streams.model import StreamEvent

FRAMES = {"\n": frame, "\r\n": crlf_frame}


def test_frames() -> None:
    events = [
        StreamEvent(1, 1700, "run", 1, "values", '{"a":"ü"}'),
        StreamEvent(2, 1700, "run", 1, "end", "null"),
    ]
    assert encode_events(events).decode() == (
        'id: 1700-1\nevent: values\ndata: {"a":"ü"}\n\nid: 1700-2\nevent: end\ndata: null\n\n'
    )


def test_frames_of_langgraph() -> None:
    assert crlf_frame("values", "1", "1700-1") == "event: values\r\ndata: 1\r\nid: 1700-1\r\n\r\n"
    assert crlf_frame("values", "1") == "event: values\r\ndata: 1\r\n\r\n"


@pytest.mark.parametrize(("newline", "encode"), FRAMES.items(), ids=["lf", "crlf"])
@given(name=st.text(), data=st.text())
def test_no_text_breaks_out_of_its_frame(
    newline: str, encode: Callable[[str, str, str], str], name: str, data: str
) -> None:
    lines = encode(name, data, "1-1").split(newline)
    assert len(lines) == 5
    assert lines[3:] == ["", ""]
    assert not any(end in line for line in lines for end in "\r\n")


async def test_a_stream_is_never_silent_for_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(long_responses, "time", SimpleNamespace(monotonic=lambda: now))
    sent: list[float] = []

    class Watched(EventStreamResponse):
        async def _stops_within(self, seconds: float) -> bool:
            """Pass the time, and send an event in the middle of the first interval."""
            nonlocal now
            if now == 100.0:
                self._last_sent = now + seconds / 2
                sent.append(self._last_sent)
            now += seconds
            return now > 130.0

    async def send(message: Any) -> None:
        sent.append(now)

    call: Any = SimpleNamespace(caller=SimpleNamespace(actor="a"), readmit=None)
    source: Any = None
    await Watched(call, source, Counter(), 1)._watch(send)
    gaps = [later - earlier for earlier, later in pairwise(sent)]
    assert len(gaps) > 5
    assert max(gaps) < 5.0
