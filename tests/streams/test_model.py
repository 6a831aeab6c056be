"""Ids and bursts of events."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from perdure.kernel.errors import InvalidInput
from perdure.streams.model import NOTHING, Burst, StreamEvent, parse_seq


def event(seq: int, body: str = "1", name: str = "values") -> StreamEvent:
    return StreamEvent(seq, 1700, "run", 1, name, body)


def test_an_id_leads_back_to_its_place() -> None:
    assert parse_seq(event(42).id) == 42
    assert [parse_seq(text) for text in ("-1", "0", "7", "1700-7")] == [0, 0, 7, 7]


@pytest.mark.parametrize("wrong", ["", "x", "1-", "-", "-2", "1-2-3", "1-x", "9" * 19, "1 - 2"])
def test_what_is_no_id_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidInput):
        parse_seq(wrong)


def numbers(events: Iterable[StreamEvent]) -> bytes:
    return b"".join(b"%d " % event.seq for event in events)


def test_a_burst_is_encoded_once_and_its_rest_is_shared() -> None:
    burst = Burst([event(seq) for seq in (4, 5, 6)], 3, 6)
    assert burst.encoded(numbers) == b"4 5 6 "
    assert burst.encoded(numbers) is burst.encoded(numbers)
    assert burst.beyond(2) is burst.beyond(3) is burst
    rest = burst.beyond(5)
    assert [event.seq for event in rest] == [6]
    assert (rest.after, rest.last) == (5, 6)
    assert burst.beyond(5) is rest
    assert list(burst.beyond(6)) == []
    assert list(burst[1:]) == [burst[1], burst[2]]
    assert len(burst) == 3


def test_nothing_has_no_events() -> None:
    assert NOTHING.encoded(numbers) == b""
    assert not NOTHING
