"""Pure rules: statuses of runs, statuses of idle threads, merging of configurations."""

from __future__ import annotations

from itertools import product

import pytest

from perdure.rollouts.records import ROLLOUT_STATUSES
from perdure.testing.grids import every
from perdure.threads.model import (
    RETRY_BACKOFF,
    exceeded,
    list_rollout_statuses,
    merged,
    resting_status,
    run_status,
)
from perdure.threads.records import RUN_STATUSES, THREAD_STATUSES, Failure

OUTCOMES = (None, "success", "error", "timeout", "unresponsive", "interrupt", "rollback", "cancelled")
ENDED = {
    "succeeded": dict.fromkeys(OUTCOMES, "success"),
    "failed": {
        None: "error",
        "success": "error",
        "error": "error",
        "timeout": "timeout",
        "unresponsive": "error",
        "interrupt": "error",
        "rollback": "error",
        "cancelled": "error",
    },
    "cancelled": {
        None: "interrupted",
        "success": "interrupted",
        "error": "interrupted",
        "timeout": "interrupted",
        "unresponsive": "interrupted",
        "interrupt": "interrupted",
        "rollback": "rollback",
        "cancelled": "interrupted",
    },
}
ENDINGS = ("success", "error", "timeout", "interrupted", "rollback")
LIVE = {"queuing": "pending", "requeuing": "pending", "preparing": "running", "running": "running"}
REAL = {
    ("succeeded", "success"),
    ("failed", "error"),
    ("failed", "timeout"),
    ("failed", "unresponsive"),
    ("cancelled", "interrupt"),
    ("cancelled", "rollback"),
    ("cancelled", "cancelled"),
    *((status, None) for status in LIVE),
}
"""Only an ended rollout has an outcome, and only one that its transitions write."""


@every(("status", "outcome"), list(product(ROLLOUT_STATUSES, OUTCOMES)))
def test_a_run_is_what_its_rollout_says(status: str, outcome: str | None) -> None:
    expected = LIVE[status] if status in LIVE else ENDED[status][outcome]
    assert run_status(status, outcome) == expected


def test_every_rollout_status_is_in_the_table() -> None:
    assert set(LIVE) | set(ENDED) == set(ROLLOUT_STATUSES)


@every("wanted", RUN_STATUSES)
def test_the_rollouts_of_a_status_are_those_that_have_it(wanted: str) -> None:
    statuses, outcomes = list_rollout_statuses(wanted)  # type: ignore[arg-type]
    found = {
        (status, outcome)
        for status, outcome in REAL
        if status in statuses and (not outcomes or outcome in outcomes)
    }
    assert found == {pair for pair in REAL if run_status(*pair) == wanted}
    assert found


def test_every_run_has_one_status() -> None:
    found = [pair for status in RUN_STATUSES for pair in REAL if run_status(*pair) == status]
    assert len(found) == len(REAL)


@pytest.mark.parametrize(
    ("ended", "began", "unfinished", "before"),
    list(product(ENDINGS, (True, False), (True, False), THREAD_STATUSES)),
)
def test_how_a_thread_rests(ended: str, began: bool, unfinished: bool, before: str) -> None:
    as_before = "idle" if before == "busy" else before
    expected = {
        "success": "interrupted" if unfinished else "idle",
        "error": "error",
        "timeout": "error",
        "interrupted": "interrupted" if began else as_before,
        "rollback": as_before,
    }[ended]
    found = resting_status(ended, began=began, unfinished=unfinished, before=before)  # type: ignore[arg-type]
    assert found == expected


def test_later_configurations_win() -> None:
    first = {"recursion_limit": 1, "configurable": {"a": 1, "b": 1}, "metadata": {"m": 1}, "tags": ["x"]}
    second = {"configurable": {"b": 2}, "metadata": {"n": 2}, "tags": ["y"]}
    assert merged(first, None, second, {}) == {
        "recursion_limit": 1,
        "configurable": {"a": 1, "b": 2},
        "metadata": {"m": 1, "n": 2},
        "tags": ["y"],
    }
    assert first["configurable"] == {"a": 1, "b": 1}


def test_what_is_no_object_replaces_what_was_there() -> None:
    assert merged({"configurable": {"a": 1}}, {"configurable": None}) == {"configurable": None}
    assert merged({"metadata": 1}, {"metadata": {"a": 1}}) == {"metadata": {"a": 1}}
    assert merged() == merged(None) == {}


@pytest.mark.parametrize("cause", [None, Failure(error="OSError", message="no route")])
def test_too_many_attempts_are_explained(cause: Failure | None) -> None:
    failure = exceeded("run-1", 3, cause)
    assert failure.error == "ExceededMaxAttempts"
    assert "run-1 exceeded max attempts (3)" in failure.message
    assert "async I/O instead of blocking I/O" in failure.message
    assert "BG_JOB_ISOLATED_LOOPS=true" in failure.message
    assert ("OSError: no route" in failure.message) == (cause is not None)


def test_the_wait_before_a_retry_grows_to_a_minute() -> None:
    for attempt, longest in ((1, 0.5), (2, 1.0), (3, 2.0), (8, 60.0), (1000, 60.0)):
        waits = [RETRY_BACKOFF.delay(attempt) for _ in range(200)]
        assert longest * 0.5 <= min(waits) < longest * 0.6
        assert longest * 0.9 < max(waits) <= longest
