"""Rules of sessions: totals, completeness of searches, batches of lines, and hints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kernel.support import soon

from perdure import Perdure
from perdure.eventlog.port import MAX_LINES
from perdure.kernel import changes
from perdure.kernel.changes import ObjectChange
from perdure.sessions.batches import BATCH_BYTES, BATCH_LINES, in_batches
from perdure.sessions.model import SCOPES
from perdure.sessions.records import Message, SessionTotals, Usage


def total(cost: float, tokens: int, *, attempt: int) -> Message:
    """Return the usage of an attempt of a run so far."""
    usage = Usage(input_tokens=tokens, cost_usd=cost)
    return Message(role="result", usage=usage, cumulative=True, run_id="run", attempt=attempt)


def test_a_later_total_replaces_that_of_its_attempt_and_attempts_are_added() -> None:
    totals = SessionTotals()
    for message in (total(1.0, 10, attempt=1), total(2.0, 30, attempt=1), total(0.5, 5, attempt=2)):
        totals.add(message)
    assert totals.usage == Usage(input_tokens=35, cost_usd=2.5)


def test_lines_of_one_message_are_one_turn_and_its_last_usage_counts() -> None:
    totals = SessionTotals()
    for message_id, tokens in (("m-1", 1), ("m-1", 3), ("m-2", 5)):
        totals.add(Message(role="assistant", message_id=message_id, usage=Usage(output_tokens=tokens)))
    assert (totals.turns, totals.usage) == (2, Usage(output_tokens=8))


def lines(count: int, size: int) -> list[tuple[int, dict[str, Any]]]:
    return [(size, {"n": number}) for number in range(count)]


def test_a_batch_is_as_large_as_one_append_takes_and_no_larger() -> None:
    assert BATCH_LINES <= MAX_LINES
    assert [len(batch) for batch in in_batches(lines(2 * BATCH_LINES + 1, 1))] == [
        BATCH_LINES,
        BATCH_LINES,
        1,
    ]
    quarter = BATCH_BYTES // 4
    assert [len(batch) for batch in in_batches(lines(5, quarter))] == [4, 1]
    assert [len(batch) for batch in in_batches(lines(5, quarter + 1))] == [3, 2]
    assert [len(batch) for batch in in_batches(lines(2, 2 * BATCH_BYTES))] == [1, 1]
    assert [record["n"] for batch in in_batches(lines(5, quarter)) for record in batch] == [0, 1, 2, 3, 4]
    assert list(in_batches([])) == []


async def test_a_search_says_whether_it_read_everything(tmp_path: Path) -> None:
    async with Perdure(f"sqlite:///{tmp_path}/perdure.db") as perdure:
        said = [{"type": "user", "message": {"role": "user", "content": f"zebra {n}"}} for n in range(3)]
        await perdure.sessions.append("s", said)
        some = await perdure.sessions.search("zebra", limit=2)
        assert ([match.text for match in some.items], some.complete) == (["zebra 0", "zebra 1"], False)
        everything = await perdure.sessions.search("zebra")
        assert (len(everything.items), everything.complete) == (3, True)


async def test_a_search_finds_in_its_scope_alone(tmp_path: Path) -> None:
    async with Perdure(f"sqlite:///{tmp_path}/perdure.db") as perdure:
        failed = {"type": "tool_result", "tool_use_id": "t", "content": "zebra failed", "is_error": True}
        said: list[dict[str, Any]] = [
            {"type": "user", "message": {"role": "user", "content": "zebra asked"}},
            {"type": "summary", "summary": "zebra summary"},
            {"type": "user", "message": {"role": "user", "content": [failed]}},
        ]
        await perdure.sessions.append("s", said)
        found = {
            scope: [match.text for match in (await perdure.sessions.search("zebra", scope=scope)).items]
            for scope in SCOPES
        }
    assert found == {
        "messages": ["zebra asked", "zebra failed"],
        "errors": ["zebra failed"],
        "all": ["zebra asked", "zebra summary", "zebra failed"],
    }


async def test_followers_hear_that_a_session_has_grown(tmp_path: Path) -> None:
    async with Perdure(f"sqlite:///{tmp_path}/perdure.db") as perdure:
        following = changes.follow(perdure.sessions.storage.signals, None, 100)
        await perdure.sessions.append("s", [{"type": "user"}])
        keys = await soon(following.next())
        following.close()
        assert changes.changes_from(keys or []) == [ObjectChange("session", "s", "appended")]
