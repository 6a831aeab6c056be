"""What is said of a schedule that fires, waits, rests or has ended."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.diagnostics.explain import explain_schedule
from perdure.schedules.records import Schedule

NOW = 1_800_000_000.0


def schedule(**fields: Any) -> Schedule:
    known: dict[str, Any] = {
        "schedule_id": "s1",
        "target": "run",
        "expression": "0 9 * * *",
        "created_at": NOW,
        "updated_at": NOW,
        "metadata": {},
        "payload": {"input": "secret"},
    }
    return Schedule(**(known | fields))


@pytest.mark.parametrize(
    ("fields", "status", "rule", "words"),
    [
        ({"next_at": NOW + 7200}, "waiting", "waits_for_time", "fires at 2027-01-15 10:00:00 UTC, in 2 h."),
        (
            {"next_at": NOW + 7200, "jitter": 60.0},
            "waiting",
            "waits_for_time",
            "fires at 2027-01-15 10:00:00 UTC, in 2 h, or up to 60 s later.",
        ),
        (
            {"next_at": NOW + 60, "running": 1, "overlap": "skip"},
            "waiting",
            "waits_for_time",
            "is skipped if what it started before has not ended",
        ),
        ({"next_at": NOW - 600, "jitter": 599.0}, "due", "due", "is due now."),
        ({"enabled": False, "overridden": True}, "paused", "paused", "is paused by an override"),
        ({"next_at": NOW + 60, "name": "nightly"}, "waiting", "waits_for_time", "Cron nightly ("),
        ({"next_at": NOW - 1}, "due", "due", "is due now."),
        (
            {"next_at": NOW - 600},
            "due",
            "nobody_fires",
            "has been due for 10 min, but no server is firing schedules",
        ),
        ({"enabled": False}, "paused", "paused", "is paused"),
        ({"end_time": NOW - 60}, "ended", "ended", "has ended: its end_time was 2027-01-15 07:59:00 UTC."),
        ({}, "ended", "ended", "its expression never matches again"),
        (
            {"next_at": NOW + 60, "error": "Thread t is gone"},
            "waiting",
            "waits_for_time",
            "Thread t is gone.",
        ),
    ],
)
def test_what_is_said(fields: dict[str, Any], status: str, rule: str, words: str) -> None:
    found = explain_schedule(schedule(**fields), NOW)
    assert (found.id, found.kind, found.status, found.rule) == ("s1", "schedule", status, rule)
    assert words in found.sentence
    assert "(0 9 * * *, UTC)" in found.sentence
    assert "secret" not in str(found.facts)
