"""Backoff and retries."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.kernel import errors
from perdure.kernel.retry import Backoff, is_transient, retry_until


def highest(first: float, longest: float) -> Backoff:
    return Backoff(first, longest, chance=lambda: 1.0)


def test_pauses_double_up_to_the_longest() -> None:
    assert [highest(0.1, 0.5).delay(number) for number in (1, 2, 3, 4, 5, 10_000)] == [
        0.1,
        0.2,
        0.4,
        0.5,
        0.5,
        0.5,
    ]


def test_it_counts_failures_until_it_is_reset() -> None:
    backoff = highest(1.0, 60.0)
    assert [backoff.next() for _ in range(3)] == [1.0, 2.0, 4.0]
    backoff.reset()
    assert backoff.next() == 1.0


def test_a_delay_leaves_the_count_alone() -> None:
    backoff = highest(1.0, 60.0)
    assert (backoff.next(), backoff.delay(9), backoff.next()) == (1.0, 60.0, 2.0)


@given(st.floats(0.001, 10), st.floats(0.001, 100), st.integers(1, 200), st.integers())
def test_a_pause_lies_within_its_jitter(first: float, longest: float, failures: int, seed: int) -> None:
    whole = highest(first, longest).delay(failures)
    pause = Backoff(first, longest, chance=random.Random(seed).random).delay(failures)
    assert whole / 2 <= pause <= whole <= longest
    wide = Backoff(first, longest, jitter=(0.75, 1.25), chance=random.Random(seed).random)
    assert whole * 0.75 <= wide.delay(failures) <= whole * 1.25


def test_the_same_seed_gives_the_same_pauses_and_others_differ() -> None:
    def pauses(seed: int) -> list[float]:
        backoff = Backoff(1.0, 60.0, chance=random.Random(seed).random)
        return [backoff.next() for _ in range(5)]

    assert pauses(1) == pauses(1) != pauses(2)


TRANSIENT = [error() for error in (errors.StorageFull, errors.Unreachable, errors.TooManyRequests)]
PERMANENT = [errors.StorageClosed(), errors.InvalidInput(), errors.NotFound(), errors.Conflict()]


@pytest.mark.parametrize("idempotent", [False, True])
def test_which_errors_are_transient(idempotent: bool) -> None:
    assert all(is_transient(error, idempotent=idempotent) for error in TRANSIENT)
    assert not any(is_transient(error, idempotent=idempotent) for error in PERMANENT)
    assert is_transient(errors.OutcomeUnknown(), idempotent=idempotent) is idempotent


class Call:
    """Raise each error in turn, then return."""

    def __init__(self, *failures: errors.PerdureError) -> None:
        self.failures = list(failures)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return "done"


async def test_a_call_is_retried_until_it_is_answered() -> None:
    call = Call(*TRANSIENT)
    assert await retry_until(call, what="a call", backoff=Backoff(0.001, 0.002)) == "done"
    assert call.calls == len(TRANSIENT) + 1


async def test_what_will_not_pass_is_raised_at_once() -> None:
    call = Call(errors.OutcomeUnknown())
    with pytest.raises(errors.OutcomeUnknown):
        await retry_until(call, what="a call")
    assert call.calls == 1


async def test_it_gives_up_once_it_is_no_longer_owned() -> None:
    call = Call(*[errors.StorageUnavailable()] * 9)
    with pytest.raises(errors.StorageUnavailable):
        await retry_until(
            call, what="a call", still_owned=lambda: call.calls < 3, backoff=Backoff(0.001, 0.002)
        )
    assert call.calls == 3
