"""Clock, identifiers and errors."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from pathlib import Path

import pytest

from perdure import errors as public_errors
from perdure.client.session import error_from
from perdure.kernel import clock, errors, ids
from perdure.kernel.clock import SystemClock
from perdure.server.http.bodies import problem, public_error
from perdure.testing.clock import ManualClock, SeededIds

# --- the clock --------------------------------------------------------------------------------------------


def test_the_clock_never_repeats_itself() -> None:
    own = SystemClock()
    readings = [own.now() for _ in range(5000)]
    assert readings == sorted(set(readings))
    assert abs(readings[-1] - time.time() * 1e6) < 60e6


def test_the_clock_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    steady = clock.boottime_ns()
    monkeypatch.setattr(clock, "boottime_ns", lambda: steady)
    own = SystemClock()
    before = own.now()
    hour = 3600 * clock.MICROS
    monkeypatch.setattr(time, "time_ns", lambda: (before - hour) * 1000)
    assert (own.now(), own.wall(before), own.behind()) == (before + 1, before - hour, 0)
    monkeypatch.setattr(time, "time_ns", lambda: (before + hour) * 1000)
    assert (own.now(), own.wall(before), own.behind()) == (before + 2, before + hour, hour)
    own.follow(own.behind())
    assert (own.now(), own.behind()) == (before + hour, 0)


def test_after_a_step_back_the_clock_is_slower_until_the_wall_clock_has_caught_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed = 0
    steady, wall = clock.boottime_ns(), time.time_ns()
    monkeypatch.setattr(clock, "boottime_ns", lambda: steady + passed * 1000)
    monkeypatch.setattr(time, "time_ns", lambda: wall + passed * 1000)
    own = SystemClock()
    before = own.now()
    minute = 60 * clock.MICROS
    wall -= minute * 1000
    for number in range(1, 40):
        passed = number * minute
        now = own.now()
        ahead = now - own.wall(now)
        # A minute has 57 seconds, so that no deadline is early, and none is late by more than that.
        assert now - before == max(passed - passed // clock.SLOWING, passed - minute + ahead)
        assert ahead == max(minute - passed // clock.SLOWING, 0)
    passed += 3600 * clock.MICROS
    assert own.now() - before == passed - minute


def test_a_small_difference_of_the_clocks_is_not_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    own = SystemClock()
    now = own.now()
    monkeypatch.setattr(time, "time_ns", lambda: (now + clock.STEP // 2) * 1000)
    assert (own.wall(now), own.behind()) == (now, 0)


def test_the_clock_is_one_for_all_threads() -> None:
    own = SystemClock()
    readings: list[list[int]] = [[] for _ in range(4)]

    def read(mine: list[int]) -> None:
        mine += [own.now() for _ in range(2000)]

    threads = [threading.Thread(target=read, args=(mine,)) for mine in readings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = [reading for mine in readings for reading in mine]
    assert len(set(every)) == len(every)


def test_seconds_and_microseconds() -> None:
    assert clock.to_micros(1.5) == 1_500_000
    assert clock.to_seconds(1_500_000) == 1.5
    assert clock.to_micros_or_none(None) is None
    assert clock.to_seconds_or_none(None) is None
    assert clock.to_micros_or_none(0.0) == 0
    assert clock.to_seconds_or_none(0) == 0.0


@pytest.mark.parametrize("micros", [0, 1, 1_700_000_000_123_456, 4_102_444_800_999_999])
def test_a_time_survives_the_way_to_seconds_and_back(micros: int) -> None:
    assert clock.to_micros(clock.to_seconds(micros)) == micros


def test_a_manual_clock_moves_when_it_is_told() -> None:
    manual = ManualClock(100.0)
    first = manual.now()
    manual.advance(10)
    assert manual.now() == first + 10 * clock.MICROS + 1


# --- identifiers ------------------------------------------------------------------------------------------


def test_identifiers_have_the_contracts_form() -> None:
    own = ids.RandomIds()
    assert re.fullmatch("ro-[0-9a-f]{12}", ids.rollout_id(own))
    assert re.fullmatch("at-[0-9a-f]{8}", ids.attempt_id(own))
    assert re.fullmatch("rs-[0-9a-f]{12}", ids.resources_id(own))


def test_identifiers_do_not_repeat() -> None:
    own = ids.RandomIds()
    assert len({ids.rollout_id(own) for _ in range(20_000)}) == 20_000


def test_random_bytes_are_given_once_in_all_threads() -> None:
    drawn: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: drawn.extend([ids.random_bytes(16) for _ in range(2000)]))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(drawn)) == 8000
    assert len(ids.random_bytes(ids.POOL_BYTES + 1)) == ids.POOL_BYTES + 1


def test_a_forked_process_gives_other_random_bytes() -> None:
    ids.random_bytes(1)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, ids.random_bytes(16))
        os._exit(0)
    os.close(writing)
    theirs = os.read(reading, 16)
    os.close(reading)
    os.waitpid(child, 0)
    assert len(theirs) == 16
    assert theirs != ids.random_bytes(16)


def test_seeded_identifiers_repeat() -> None:
    assert [SeededIds(5).hex(12) for _ in range(2)] == [SeededIds(5).hex(12)] * 2
    assert SeededIds(5).hex(12) != SeededIds(6).hex(12)


# --- errors -----------------------------------------------------------------------------------------------


def _tree(root: type[errors.PerdureError]) -> list[type[errors.PerdureError]]:
    return [root, *(kind for child in root.__subclasses__() for kind in _tree(child))]


OURS = [kind for kind in _tree(errors.PerdureError) if kind.__module__ == errors.__name__]


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [kind.code for kind in OURS]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch("[a-z_]+", code) for code in codes)


def test_codes_and_statuses_are_stable() -> None:
    """Clients may depend on codes; this list only grows."""
    assert {kind.code: (kind.__name__, kind.http_status) for kind in OURS} == {
        "internal": ("PerdureError", 500),
        "invalid_input": ("InvalidInput", 422),
        "bad_request": ("BadRequest", 400),
        "bad_query": ("BadQuery", 400),
        "bad_body": ("BadBody", 422),
        "invalid_cron": ("InvalidCron", 422),
        "invalid_timezone": ("InvalidTimezone", 422),
        "not_found": ("NotFound", 404),
        "job_not_found": ("JobNotFound", 404),
        "spans_evicted": ("SpansEvicted", 410),
        "conflict": ("Conflict", 409),
        "already_running": ("AlreadyRunning", 409),
        "not_running": ("NotRunning", 409),
        "fenced": ("Fenced", 409),
        "nested_operation": ("NestedOperation", 500),
        "suspended_operation": ("SuspendedOperation", 500),
        "storage_error": ("StorageError", 503),
        "outcome_unknown": ("OutcomeUnknown", 503),
        "storage_unavailable": ("StorageUnavailable", 503),
        "storage_full": ("StorageFull", 507),
        "storage_closed": ("StorageClosed", 503),
        "database_owned": ("DatabaseOwned", 409),
        "not_a_database": ("NotADatabase", 503),
        "read_only_database": ("ReadOnlyDatabase", 503),
        "newer_schema": ("NewerSchema", 503),
        "deadline_exceeded": ("DeadlineExceeded", 504),
        "unauthorized": ("Unauthorized", 401),
        "forbidden": ("Forbidden", 403),
        "unknown_route": ("UnknownRoute", 404),
        "method_not_allowed": ("MethodNotAllowed", 405),
        "request_timeout": ("RequestTimeout", 408),
        "too_large": ("TooLarge", 413),
        "unsupported_media": ("UnsupportedMedia", 415),
        "too_many_requests": ("TooManyRequests", 429),
        "not_supported": ("NotSupported", 501),
        "agent_unavailable": ("AgentUnavailable", 503),
        "unreachable": ("Unreachable", 502),
        "start_refused": ("StartRefused", 500),
    }


@pytest.mark.parametrize("error", OURS)
def test_every_error_of_the_page_is_public(error: type[errors.PerdureError]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
    assert f"| `{error.code}` | `{error.__name__}` | {error.http_status} |" in page
    assert getattr(public_errors, error.__name__) is error
    # The page and the module have no other classes.
    assert len(re.findall(r"^\| `[a-z_]+` \| `\w+` \| \d+ \|", page, re.MULTILINE)) == len(OURS)
    assert {kind for kind in vars(public_errors).values() if isinstance(kind, type)} == set(OURS)


@pytest.mark.parametrize("error", OURS)
def test_an_error_keeps_its_code_over_http(error: type[errors.PerdureError]) -> None:
    sent = problem(public_error(error("because"), "r1"), "r1", "/api/v1/x")
    received = error_from(sent["status"], json.dumps(sent).encode())
    flat = issubclass(error, errors.BadQuery | errors.BadRequest | errors.BadBody)
    assert type(received) is (errors.InvalidInput if flat else error)


@pytest.mark.parametrize("error", OURS)
def test_an_error_without_a_message_says_what_it_is(error: type[errors.PerdureError]) -> None:
    assert str(error()) == (error.__doc__ or "").splitlines()[0]
    assert str(error("the disk is full")) == error("the disk is full").message == "the disk is full"


def test_errors_are_what_callers_of_the_contract_catch() -> None:
    assert issubclass(errors.InvalidInput, ValueError)
    assert issubclass(errors.NotFound, ValueError)
    assert issubclass(errors.SpansEvicted, RuntimeError)
    assert issubclass(errors.NestedOperation, RuntimeError)
