"""Threads that call synchronous code of agents."""

import threading
from collections.abc import Iterator

import pytest

from perdure.worker import isolation
from perdure.worker.isolation import DaemonThreads

SECONDS = 20.0


@pytest.fixture
def threads() -> DaemonThreads:
    return DaemonThreads()


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Event that blocked calls wait for; it is set at the end."""
    event = threading.Event()
    yield event
    event.set()


def test_calls_one_after_the_other_share_a_thread(threads: DaemonThreads) -> None:
    names = {threads.submit(threading.get_ident).result(SECONDS) for _ in range(50)}
    assert len(names) == 1
    assert threads.submit(threading.current_thread).result(SECONDS).daemon


def test_a_call_that_never_ends_holds_up_no_other(threads: DaemonThreads, released: threading.Event) -> None:
    blocked = [threads.submit(released.wait) for _ in range(64)]
    assert threads.submit(int, "7").result(SECONDS) == 7
    assert not any(each.done() for each in blocked)


def test_an_error_reaches_its_caller_and_the_thread_goes_on(threads: DaemonThreads) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        threads.submit(int, "seven").result(SECONDS)
    with pytest.raises(SystemExit):
        threads.submit(exit_now).result(SECONDS)
    assert threads.submit(int, "7").result(SECONDS) == 7


def test_a_cancelled_call_is_not_made(threads: DaemonThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()
    monkeypatch.setattr(threading.Thread, "start", lambda self: late.append(self))
    late: list[threading.Thread] = []
    future = threads.submit(begun.set)
    assert future.cancel()
    monkeypatch.undo()
    for thread in late:
        thread.start()
    assert threads.submit(int, "7").result(SECONDS) == 7
    assert not begun.is_set()


def test_threads_without_a_call_end(threads: DaemonThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "IDLE_SECONDS", 0.01)
    thread = threads.submit(threading.current_thread).result(SECONDS)
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert threads.submit(int, "7").result(SECONDS) == 7


def exit_now() -> None:
    raise SystemExit
