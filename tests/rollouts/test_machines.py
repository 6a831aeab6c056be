"""Every status, every event, every combination of the pure rules, and all short histories of one rollout."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from tests.reliability.stories import explore

from perdure.kernel.clock import MICROS
from perdure.kernel.machine import Machine
from perdure.rollouts import model
from perdure.rollouts.model import ATTEMPT, ROLLOUT, WORKER, Limits
from perdure.testing.grids import every

STAYS = "."

# One row an event, one column a status: the next status, or a dot if it does not change.
TABLES: dict[str, tuple[Machine, str]] = {
    "rollout": (
        ROLLOUT,
        """
        event                       | queuing   preparing running   failed    succeeded cancelled requeuing
        claimed                     | preparing .         .         .         .         .         preparing
        first span                  | running   running   .         .         .         .         running
        revived                     | running   running   .         running   .         .         running
        lapsed, retry               | .         requeuing requeuing .         .         .         .
        lapsed, no retry            | .         failed    failed    .         .         .         .
        reported preparing          | preparing preparing preparing preparing preparing .         preparing
        reported running            | running   running   running   running   running   .         running
        reported succeeded          | succeeded succeeded succeeded succeeded succeeded .         succeeded
        reported failure, retry     | requeuing requeuing requeuing requeuing requeuing .         requeuing
        reported failure, no retry  | failed    failed    failed    failed    failed    .         failed
        attempt started             | preparing preparing preparing preparing preparing preparing preparing
        set to queuing              | queuing   queuing   queuing   queuing   queuing   queuing   queuing
        set to preparing            | preparing preparing preparing preparing preparing preparing preparing
        set to running              | running   running   running   running   running   running   running
        set to failed               | failed    failed    failed    failed    failed    failed    failed
        set to succeeded            | succeeded succeeded succeeded succeeded succeeded succeeded succeeded
        set to cancelled            | cancelled cancelled cancelled cancelled cancelled cancelled cancelled
        set to requeuing            | requeuing requeuing requeuing requeuing requeuing requeuing requeuing
        """,
    ),
    "attempt": (
        ATTEMPT,
        """
        event                 | preparing    running      failed       succeeded    unresponsive timeout
        span                  | running      .            .            .            running      .
        too long              | timeout      timeout      .            .            .            .
        silent                | unresponsive unresponsive .            .            .            .
        reported preparing    | preparing    preparing    preparing    preparing    preparing    preparing
        reported running      | running      running      running      running      running      running
        reported failed       | failed       failed       failed       failed       failed       failed
        reported succeeded    | succeeded    succeeded    succeeded    succeeded    succeeded    succeeded
        reported unresponsive | unresponsive unresponsive unresponsive unresponsive unresponsive unresponsive
        reported timeout      | timeout      timeout      timeout      timeout      timeout      timeout
        """,
    ),
    "worker": (
        WORKER,
        """
        event            | idle    busy    unknown
        registered       | idle    idle    idle
        assigned         | busy    busy    busy
        found nothing    | idle    idle    idle
        attempt reported | idle    idle    idle
        attempt lapsed   | unknown unknown unknown
        stopped          | unknown unknown unknown
        """,
    ),
}


def read(table: str) -> tuple[list[str], dict[str, list[str]]]:
    """Return the statuses of a table, and the targets of each event."""
    (_, head), *rows = (line.split("|") for line in table.strip().splitlines())
    return head.split(), {event.strip(): targets.split() for event, targets in rows}


def cells() -> Iterator[tuple[str, str, str, str]]:
    for name, (_, table) in TABLES.items():
        statuses, rows = read(table)
        for event, targets in rows.items():
            for status, target in zip(statuses, targets, strict=True):
                yield name, status, event, target


@every(("name", "status", "event", "target"), list(cells()))
def test_cell(name: str, status: str, event: str, target: str) -> None:
    machine = TABLES[name][0]
    assert machine.step(status, event) == (status if target == STAYS else target)
    assert machine.moves(status, event) == (target != STAYS)
    assert (status in machine.sources(event)) == (target != STAYS)


@pytest.mark.parametrize("name", TABLES)
def test_table_names_every_status_and_every_event(name: str) -> None:
    machine, table = TABLES[name]
    statuses, rows = read(table)
    assert sorted(statuses) == sorted(machine.statuses)
    assert sorted(rows) == sorted(machine.events)


def test_no_machine_is_forgotten() -> None:
    assert {model.ROLLOUT.name, model.ATTEMPT.name, model.WORKER.name} == set(TABLES)


def test_starts_and_ends() -> None:
    assert ROLLOUT.start == {"enqueued": "queuing", "started": "preparing"}
    assert ROLLOUT.final == {"succeeded", "failed", "cancelled"}
    assert ATTEMPT.start == {"claimed": "preparing"}
    assert ATTEMPT.final == {"succeeded", "failed"}
    assert (WORKER.start, WORKER.final) == ({"heartbeat": "unknown"}, frozenset())


# --- the rules between the machines -----------------------------------------------------------------------

ATTEMPT_STATUSES = ("preparing", "running", "failed", "succeeded", "unresponsive", "timeout")
ROLLOUT_STATUSES = ("queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing")
FAILURES = ("failed", "unresponsive", "timeout")
CONDITIONS = [condition for n in range(4) for condition in itertools.combinations(FAILURES, n)]


@every("lapsed", [True, False])
@every("status", ATTEMPT_STATUSES)
def test_rollout_event(status: str, lapsed: bool) -> None:
    for condition, maximum, number in itertools.product(CONDITIONS, (1, 2, 3), (1, 2, 3, 4)):
        limits = Limits(max_attempts=maximum, retry_condition=condition)
        event = model.rollout_event(limits, status, number, lapsed=lapsed)
        if status in FAILURES:
            again = status in condition and number < maximum
            assert model.retries(limits, status, number) == again
            said = "lapsed" if lapsed else "reported failure"
            assert event == f"{said}, {'retry' if again else 'no retry'}"
        else:
            assert event == f"reported {status}"
        assert event in ROLLOUT.events


@every("outcome", [None, "success", "error", "cancelled", "timeout", "unresponsive"])
@every("rollout_status", ROLLOUT_STATUSES)
@every("attempt_status", ATTEMPT_STATUSES)
def test_span_event(attempt_status: str, rollout_status: str, outcome: str | None) -> None:
    expected = None
    if attempt_status == "preparing":
        expected = "first span"
    if attempt_status == "unresponsive" and (rollout_status != "failed" or outcome == "unresponsive"):
        expected = "revived"
    assert model.span_event(attempt_status, rollout_status, outcome) == expected
    moves = expected is not None and ROLLOUT.moves(rollout_status, expected)
    assert not (moves and rollout_status in ("succeeded", "cancelled", "running"))
    assert not (moves and not ATTEMPT.moves(attempt_status, "span"))


OUTCOMES = {
    ("failed", "timeout"): "timeout",
    ("failed", "unresponsive"): "unresponsive",
    **{("failed", status): "error" for status in (None, "preparing", "running", "failed", "succeeded")},
    **{("succeeded", status): "success" for status in (None, *ATTEMPT_STATUSES)},
    **{("cancelled", status): "cancelled" for status in (None, *ATTEMPT_STATUSES)},
}


@every("attempt_status", [None, *ATTEMPT_STATUSES])
@every("rollout_status", ROLLOUT_STATUSES)
def test_outcome(rollout_status: str, attempt_status: str | None) -> None:
    assert model.compute_outcome(rollout_status, attempt_status) == OUTCOMES.get(
        (rollout_status, attempt_status)
    )


@every(
    ("status", "event"),
    [
        ("preparing", "assigned"),
        ("running", "assigned"),
        ("succeeded", "attempt reported"),
        ("failed", "attempt reported"),
        ("timeout", "attempt lapsed"),
        ("unresponsive", "attempt lapsed"),
    ],
)
def test_worker_event(status: str, event: str) -> None:
    assert model.worker_event(status) == event


START = 1_800_000_000 * MICROS
SECONDS = (None, 0.0, 0.000001, 1.5, 10.0)
HEARTBEATS = (None, 0, START - 5 * MICROS, START, START + 3 * MICROS)


@every("timeout", SECONDS)
@every("silence", SECONDS)
@every("heartbeat", HEARTBEATS)
def test_deadline_is_the_first_overdue_microsecond(
    timeout: float | None, silence: float | None, heartbeat: int | None
) -> None:
    limits = Limits(timeout_seconds=timeout, unresponsive_seconds=silence)
    deadline = model.compute_deadline(limits, START, heartbeat)
    heard = START if heartbeat is None else heartbeat
    ends = [START + round(timeout * MICROS)] if timeout is not None else []
    ends += [heard + round(silence * MICROS)] if silence is not None else []
    assert deadline == (min(ends) + 1 if ends else None)
    if deadline is not None:
        assert model.lapse_event(limits, deadline - 1, START, heartbeat) is None
        assert model.lapse_event(limits, deadline, START, heartbeat) is not None


@every("timeout", SECONDS)
@every("silence", SECONDS)
@every("heartbeat", HEARTBEATS)
def test_lapse(timeout: float | None, silence: float | None, heartbeat: int | None) -> None:
    limits = Limits(timeout_seconds=timeout, unresponsive_seconds=silence)
    heard = START if heartbeat is None else heartbeat
    for passed in (0, 1, 2, 1_499_999, 1_500_000, 1_500_001, 10_000_000, 10_000_001, 13_000_001):
        now = START + passed
        too_long = timeout is not None and passed > round(timeout * MICROS)
        silent = silence is not None and now - heard > round(silence * MICROS)
        expected = "too long" if too_long else "silent" if silent else None
        assert model.lapse_event(limits, now, START, heartbeat) == expected


# --- whole histories --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "condition", "length"),
    [
        ("enqueued", FAILURES, 3),
        ("enqueued", (), 3),
        ("started", (), 2),
        ("started", ("failed",), 2),
    ],
)
def test_every_story(start: str, condition: tuple[str, ...], length: int) -> None:
    told = explore(start, condition, length)
    print(f"{told.stories} stories, {told.states} states")
    assert told.states > 50
