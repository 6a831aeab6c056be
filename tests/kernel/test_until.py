"""Waits for a hint: the calls of `look`, their arguments, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.kernel.support import soon
from tests.kernel.support import until as until_true

from perdure.kernel.signals.local import LocalSignals
from perdure.kernel.signals.port import until


class Looks:
    """Records the argument of each look; returns true from look number `enough` on."""

    def __init__(self, enough: int = 1_000_000) -> None:
        self.given: list[frozenset[str]] = []
        self.enough = enough

    async def __call__(self, changed: frozenset[str]) -> int:
        self.given.append(changed)
        return len(self.given) if len(self.given) >= self.enough else 0

    def number(self, count: int) -> Callable[[], bool]:
        return lambda: len(self.given) >= count


async def test_it_looks_at_once_and_gives_what_it_found() -> None:
    signals, looks = LocalSignals(), Looks(1)
    assert await until(signals, "things", ["a", "b"], looks, timeout=None) == 1
    assert looks.given == [frozenset({"a", "b"})]


@pytest.mark.parametrize("timeout", [0, -1])
async def test_without_time_it_looks_once(timeout: float) -> None:
    looks = Looks()
    assert await soon(until(LocalSignals(), "things", ["a"], looks, timeout=timeout)) == 0
    assert len(looks.given) == 1


async def test_it_looks_again_after_each_hint_and_is_given_the_changed_keys() -> None:
    signals, looks = LocalSignals(), Looks(3)
    waiting = asyncio.ensure_future(until(signals, "things", ["a", "b"], looks, timeout=None))
    for count, key in ((1, "b"), (2, "a")):
        await until_true(looks.number(count))
        signals.publish([("things", "other"), ("elsewhere", key), ("things", key)])
    assert await soon(waiting) == 3
    assert looks.given == [{"a", "b"}, {"b"}, {"a"}]


async def test_the_last_look_is_given_when_the_time_is_up() -> None:
    looks = Looks()
    assert await soon(until(LocalSignals(), "things", ["a"], looks, timeout=0.01)) == 0
    assert looks.given == [{"a"}, frozenset()]


async def test_a_lost_hint_is_made_up_for_by_polling() -> None:
    looks = Looks(4)
    assert await soon(until(LocalSignals(), "things", ["a"], looks, timeout=None, poll=0.001)) == 4
    assert looks.given == [{"a"}, frozenset(), frozenset(), frozenset()]


async def test_the_first_look_can_wait_for_a_hint() -> None:
    signals, looks = LocalSignals(), Looks(1)
    waiting = asyncio.ensure_future(until(signals, "things", ["a"], looks, timeout=None, first=60.0))
    await until_true(lambda: bool(signals.watched("things")))
    assert looks.given == []
    signals.publish([("things", "a")])
    assert await soon(waiting) == 1
    assert await soon(until(signals, "things", ["a"], Looks(1), timeout=None, first=0.001)) == 1
    assert await soon(until(signals, "things", ["a"], Looks(), timeout=0.001, first=60.0)) == 0


async def test_the_watch_is_closed_however_it_ends() -> None:
    signals = LocalSignals()

    async def fail(_: frozenset[str]) -> bool:
        assert signals.watched("things") == {"a"}
        raise LookupError

    with pytest.raises(LookupError):
        await until(signals, "things", ["a"], fail, timeout=None)
    assert not signals.watched("things")
    waiting = asyncio.ensure_future(until(signals, "things", ["a"], Looks(), timeout=None))
    await until_true(lambda: bool(signals.watched("things")))
    waiting.cancel()
    await asyncio.wait([waiting])
    assert not signals.watched("things")


async def test_a_watch_is_closed_by_with() -> None:
    signals = LocalSignals()
    with signals.watch("things", ["a"]) as watch:
        signals.publish([("things", "a")])
        assert await soon(watch.changed()) == {"a"}
    assert not signals.watched("things")
