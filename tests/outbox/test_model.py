"""The rules of effects: every status with every outcome, pauses, and stored errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.kernel.clock import MICROS
from perdure.kernel.errors import InvalidInput
from perdure.outbox.model import (
    DEAD,
    DELIVERED,
    EFFECT,
    EFFECT_STATUSES,
    EFFECT_VIEW,
    ENDLESS,
    MAX_ERROR,
    MAX_WAIT,
    PENDING,
    DeliveryOutcome,
    EffectRow,
    Retries,
    TryLater,
    compute_state,
    error_text,
    retried,
    settled,
    shown_body,
    statuses_from,
    unanswered,
)

NOW = 1_000 * MICROS
RETRIES = Retries(first=2.0, longest=60.0, tries=3, age=500.0)


def state(
    status: str = PENDING, attempts: int = 1, forgiven: int = 0, since: int = NOW - MICROS
) -> EffectRow:
    ended = None if status == PENDING else NOW - 5
    due = NOW + 5 if status == PENDING else None
    return EffectRow(
        ns=1,
        id="ef",
        consumer="webhook",
        subject="run",
        target=None,
        status=status,
        attempts=attempts,
        answered=attempts - 1,
        forgiven=forgiven,
        created_at=since,
        since=since,
        due_at=due,
        ended_at=ended,
        last_error="before",
    )


def outcome(event: str, attempt: int = 1, wait: float = 0.0) -> DeliveryOutcome:
    return DeliveryOutcome("ef", attempt, event, None if event == "delivered" else "now", wait)  # type: ignore[arg-type]


@pytest.mark.parametrize("status", EFFECT_STATUSES)
@pytest.mark.parametrize("event", ["delivered", "failed", "refused", "released"])
@pytest.mark.parametrize("stale", [False, True])
def test_every_outcome_in_every_status(status: str, event: str, stale: bool) -> None:
    before = state(status, attempts=2 if stale else 1)
    after = settled(before, outcome(event), RETRIES, NOW)
    if event == "delivered" and status != DELIVERED:
        assert (after.status, after.due_at, after.ended_at) == (DELIVERED, None, NOW)
    elif status != PENDING or stale:
        assert after == before
    elif event == "refused":
        assert (after.status, after.due_at, after.ended_at, after.last_error) == (DEAD, None, NOW, "now")
    elif event == "failed":
        assert (after.status, after.last_error) == (PENDING, "now")
        assert after.due_at is not None
        assert after.due_at > NOW
    else:
        assert (after.status, after.due_at, after.tries) == (PENDING, NOW, 0)


@pytest.mark.parametrize("event", ["delivered", "failed", "refused", "released"])
def test_what_was_said_twice_counts_once(event: str) -> None:
    after = settled(state(), outcome(event), RETRIES, NOW)
    for other in ("failed", "refused", "released", event):
        assert settled(after, outcome(other), RETRIES, NOW + MICROS) == after


def test_the_last_try_and_the_last_hour_end_in_a_dead_letter() -> None:
    assert settled(state(attempts=2), outcome("failed", 2), RETRIES, NOW).status == PENDING
    assert settled(state(attempts=3), outcome("failed", 3), RETRIES, NOW).status == DEAD
    assert settled(state(attempts=3, forgiven=1), outcome("failed", 3), RETRIES, NOW).status == PENDING
    assert settled(state(since=NOW - 500 * MICROS), outcome("failed"), RETRIES, NOW).status == DEAD
    assert settled(state(since=NOW - 500 * MICROS), outcome("delivered"), RETRIES, NOW).status == DELIVERED


def test_an_effect_whose_deliverers_all_died_is_given_up_in_the_end() -> None:
    assert unanswered(state(attempts=3), RETRIES, NOW) is None
    given_up = unanswered(state(attempts=4), RETRIES, NOW)
    assert given_up is not None
    assert (given_up.status, given_up.ended_at) == (DEAD, NOW)
    assert "3 times" in str(given_up.last_error)


@pytest.mark.parametrize("status", [PENDING, DEAD])
def test_a_retry_by_hand_has_all_its_tries_again(status: str) -> None:
    after = retried(state(status, attempts=3), NOW)
    assert (after.status, after.due_at, after.ended_at, after.tries) == (PENDING, NOW, None, 0)
    assert (after.attempts, after.since) == (3, NOW)
    assert settled(after._replace(attempts=4), outcome("failed", 4), RETRIES, NOW).status == PENDING


def test_what_a_consumer_asks_to_wait_is_waited() -> None:
    after = settled(state(), outcome("failed", wait=300.0), RETRIES, NOW)
    assert after.due_at == NOW + 300 * MICROS
    released = settled(state(), outcome("released", wait=7.0), RETRIES, NOW)
    assert released.due_at == NOW + 7 * MICROS


@given(st.text(), st.integers(1, 10_000))
def test_waits_double_up_to_the_longest_and_are_the_same_for_the_same_effect(id: str, tries: int) -> None:
    retries = Retries()
    wait = retries.delay(id, tries)
    plain = min(2.0 ** min(tries - 1, 20), 3600.0)
    assert 0.75 * plain <= wait <= 1.25 * plain
    assert wait == retries.delay(id, tries)


def test_waits_of_effects_that_fail_together_are_spread() -> None:
    waits = {round(Retries().delay(f"effect-{number}", 5), 3) for number in range(200)}
    assert len(waits) > 150


def test_by_default_an_effect_is_tried_for_a_day() -> None:
    retries, waited, tries = Retries(), 0.0, 1
    assert (retries.age, retries.tries) == (86_400.0, 40)
    while waited < 86_400.0:
        waited += retries.delay("effect", tries)
        tries += 1
    assert 30 <= tries <= 40


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_no_wait_that_is_asked_for_is_endless_or_negative(seconds: float) -> None:
    assert 0.0 <= TryLater(seconds=seconds).seconds <= MAX_WAIT


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (ValueError("bad\0thing"), "ValueError: bad\ufffdthing"),
        (ValueError("lone \ud800"), "ValueError: lone ?"),
        (TryLater("as it is said"), "as it is said"),
    ],
)
def test_an_error_is_kept_as_a_text_that_every_database_takes(error: Exception, kept: str) -> None:
    assert error_text(error) == kept
    assert len(error_text(ValueError("x" * 10_000))) == MAX_ERROR


def test_a_body_is_shown_without_the_credentials_of_its_url() -> None:
    body = '{"url":"https://user:hidden@example.com/x","payload":{"a":1}}'
    assert shown_body(body) == '{"url":"https://***@example.com/x","payload":{"a":1}}'
    for other in ("[1,2]", '{"url":5}', "not json", None):
        assert shown_body(other) == other


def test_statuses_are_checked() -> None:
    assert statuses_from(None) is None
    assert statuses_from("dead") == ["dead"]
    assert statuses_from(["dead", "pending"]) == ["dead", "pending"]
    with pytest.raises(InvalidInput, match="'late'"):
        statuses_from(["late"])


def test_the_table_knows_no_way_back_from_delivered() -> None:
    assert EFFECT.start == {"put": PENDING}
    assert all(not EFFECT.moves(DELIVERED, event) for event in EFFECT.events)
    assert "dead --> pending: retried" in EFFECT.chart()


# --- what callers see -------------------------------------------------------------------------------------

LEASE = 10 * MICROS
STEPS = ("claim", "delivered", "failed", "refused", "released", "wait", "retry")


def _moved(row: EffectRow, step: str, now: int) -> tuple[EffectRow, str | None]:
    """The row after a step, with the event of the public state machine, if there is one."""
    if step == "claim":
        if row.due_at is None or row.due_at > now:
            return row, None
        return row._replace(attempts=row.attempts + 1, due_at=now + LEASE), "claimed"
    if step == "retry":
        return (retried(row, now), "retried") if EFFECT.moves(row.status, "retried") else (row, None)
    after = settled(row, outcome(step, row.attempts), RETRIES, now)
    if step == "released" and after.tries:
        return after, "released after a failure"
    return after, "failed" if step == "refused" else step


@given(st.lists(st.sampled_from(STEPS), max_size=30))
def test_what_callers_see_moves_by_its_table(steps: list[str]) -> None:
    now = NOW
    row = state(attempts=0)._replace(answered=0, due_at=now)
    assert compute_state(row, now) == EFFECT_VIEW.start["put"]
    for step in steps:
        before, now = compute_state(row, now), now + MICROS
        if compute_state(row, now) != before:
            assert EFFECT_VIEW.step(before, "lease ended") == compute_state(row, now)
        before = compute_state(row, now)
        if step == "wait":
            later = compute_state(row, now + LEASE)
            assert later in (before, EFFECT_VIEW.step(before, "lease ended"))
            now += LEASE
            continue
        if step in ("failed", "refused", "released", "delivered") and not row.attempts:
            continue
        after, event = _moved(row, step, now)
        if after != row and event is not None:
            assert compute_state(after, now) == EFFECT_VIEW.step(before, event)
        row = after


def test_a_policy_without_end_gives_up_nothing() -> None:
    old = state(attempts=10**6, since=0)
    assert settled(old, outcome("failed", 10**6), ENDLESS, NOW).status == PENDING
    assert unanswered(old, ENDLESS, NOW) is None
    assert ENDLESS.delay("ef", 10**6) <= 1.25 * ENDLESS.longest
