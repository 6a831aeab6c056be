"""Events appended together share a row, without a difference for readers."""

from __future__ import annotations

import itertools

import pytest
from tests.kernel.support import NS
from tests.streams.support import add, ask, change, page, seqs

from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Storage
from perdure.streams.model import (
    BATCH_SIZE,
    NewEvent,
    Shown,
    StoredEvents,
    StreamEvent,
    batch_end,
    encode_batch,
    events_in,
)
from perdure.streams.operations import StreamAppend, sent_after

JOINED = "thread/t"
ROWS = statement("SELECT seq, count FROM stream_events WHERE stream = :stream ORDER BY seq")
BY_ITSELF = statement(
    "INSERT INTO stream_events (ns, stream, seq, ms, attempt, event, body)"
    " SELECT ns, stream, 8, last_ms, 1, 'custom', '8' FROM streams WHERE stream = 'a'"
)
AT_IT = statement("UPDATE streams SET last_seq = 8 WHERE stream = 'a'")

NAMES = ["metadata", "values|sub:1 2", "messages/partial", "a b", ""]
BODIES = ["1", '{"ü":"😀 \\n"}', '"a\nb"', "[ ]", '"\u2028"']


def events(*sizes: int) -> list[NewEvent]:
    return [NewEvent("custom", "x" * size) for size in sizes]


def batches(new: list[NewEvent]) -> list[int]:
    """Return the number of events in each row."""
    ends = [0]
    while ends[-1] < len(new):
        ends.append(batch_end(new, ends[-1]))
    return [end - start for start, end in itertools.pairwise(ends)]


def test_what_is_put_together_comes_apart_as_it_was() -> None:
    new = [NewEvent(name, body) for name in NAMES for body in BODIES]
    event, body = encode_batch(new)
    row = StoredEvents(5, 9, "a", 2, event, body, len(new))
    expected = [StreamEvent(seq, 9, "a", 2, event.event, event.body) for seq, event in enumerate(new, 5)]
    assert events_in([row]) == expected
    assert events_in([row], 11) == expected[7:]


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ([], []),
        (events(5), [1]),
        (events(*[8] * (BATCH_SIZE // 8)), [BATCH_SIZE // 8]),
        (events(*[8] * (BATCH_SIZE // 8), 1, 1), [BATCH_SIZE // 8, 2]),
        (events(1, BATCH_SIZE, 1, BATCH_SIZE + 1, 2, 3), [1, 1, 1, 1, 2]),
        ([*events(1, 1), NewEvent("values", "2", Shown("c")), *events(1, 1)], [2, 1, 2]),
        ([*events(1, 1), NewEvent("a\nb 1", "2"), *events(1, 1)], [2, 1, 2]),
    ],
    ids=["none", "one", "full", "more", "large", "reference", "two lines"],
)
def test_small_events_in_a_row_share_one(new: list[NewEvent], expected: list[int]) -> None:
    assert batches(new) == expected


async def test_every_page_from_every_place(storage: Storage) -> None:
    """Also between rows of earlier releases, each with one event."""
    large = NewEvent("custom", '"' + "y" * BATCH_SIZE + '"')
    new = [NewEvent(name, body) for name, body in zip(NAMES, BODIES, strict=True)]
    await add(
        storage, StreamAppend("a", [*new, large, new[0]], 1, JOINED), StreamAppend("b", new[:3], 1, JOINED)
    )
    assert await ask(storage, ROWS, stream="a") == [(1, 5), (6, None), (7, None)]
    await change(storage, BY_ITSELF)
    await change(storage, AT_IT)
    await add(storage, StreamAppend("a", [*new, *new], 2, JOINED))
    for stream, joined, last in (("a", False, 18), (JOINED, True, 20)):
        whole = (await page(storage, stream, 0, 100, joined)).events
        assert seqs(whole) == list(range(1, last + 1))
        for after in range(last + 1):
            for limit in (1, 2, 3, 6, 100):
                part = await page(storage, stream, after, limit, joined)
                assert part.events == whole[after : after + limit]
                assert part.reached == min(after + limit, last)
            some = await page(storage, stream, after, 100, joined, 50)
            assert some.events == whole[after : some.reached]


async def test_what_was_sent_after_a_number(storage: Storage) -> None:
    await add(storage, StreamAppend("a", [NewEvent("custom", str(number)) for number in range(1, 6)], 3))
    for after in range(6):
        sent = await storage.read(sent_after, "a", after, ns=NS)
        assert [(event.seq, event.attempt, event.event, event.body) for event in sent] == [
            (number, 3, "custom", str(number)) for number in range(after + 1, 6)
        ]
