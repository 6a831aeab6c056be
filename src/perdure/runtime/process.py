"""A process with its services: it owns the signals, starts them in order, and stops them by phases."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import stat
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from perdure.kernel import lifecycle
from perdure.kernel.lifecycle import DAEMON, STOPPED, Component, Endable, StopPhase
from perdure.kernel.version import VERSION
from perdure.runtime.components import stop_in_phases
from perdure.runtime.reloads import Reloads, log_report
from perdure.runtime.systemd import Systemd

logger = logging.getLogger(__name__)

Work = Callable[[], Awaitable[None]]

LAST_SECONDS = 2.0
"""What is left of the time to stop for the storage and what follows it, however long the rest takes."""
OVERDUE_SECONDS = 1.0
"""How long after the time to stop a process is ended that hangs."""
_STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)
)


class ServiceProcess:
    """Runs services from their start until a signal, until they fail or until `work` is done.

    SIGINT and SIGTERM stop it within `timeout` seconds, phase by phase; a second one ends it at once. SIGHUP
    reloads what `reloads` has. The services are started in the given order.
    """

    def __init__(
        self,
        services: Sequence[Component],
        *,
        timeout: float,
        reloads: Reloads | None = None,
        forced_by_second_signal: bool = True,
        end_process: Callable[[int], None] = os._exit,
    ) -> None:
        self.status: str = STOPPED
        self.signal: int | None = None
        """The signal that stopped it."""
        self.failed = False
        """Whether a service failed to stop, or did not stop in time."""
        self._systemd = Systemd()
        self._services: list[Component] = [self._systemd, *services]
        self._begun: list[Component] = []
        self._timeout = timeout
        self.reloads = reloads
        self._forced_by_second_signal = forced_by_second_signal
        self._end_process = end_process
        self._listeners: list[Callable[[str], None]] = [self._systemd.tell]
        self._last_acts: list[Callable[[], None]] = []
        self._stopping = asyncio.Event()
        self._reloading: set[asyncio.Task[None]] = set()
        self._has_terminal = False

    def on_status(self, listener: Callable[[str], None]) -> None:
        """Call a function with every new status."""
        self._listeners.append(listener)

    def when_running(self, act: Callable[[], None]) -> None:
        """Call a function when all services have started."""
        self.on_status(lambda status: act() if status == lifecycle.RUNNING else None)

    def before_forced_end(self, act: Callable[[], None]) -> None:
        """Call a function before the process is ended without stopping its services."""
        self._last_acts.append(act)

    def request_stop(self) -> None:
        """Stop as after a signal; a second call does nothing."""
        self._stopping.set()

    async def run(self, work: Work | None = None) -> None:
        """Run until it is to stop; an error of the start, of a service or of `work` is raised at the end."""
        with self._owning_signals():
            self._move(lifecycle.START)
            try:
                started = await self._until_stopping(self._start())
                if started:
                    self._move(lifecycle.READY)
                    await self._until_stopping(self._serve(work))
            except BaseException:
                failed = lifecycle.START_FAILED if self.status == lifecycle.STARTING else None
                if failed is None:
                    self._move(lifecycle.SERVICE_FAILED)
                await self._stop()
                self._move(failed or lifecycle.CLEANED_UP)
                raise
            self._move(lifecycle.STOP)
            await self._stop()
            self._move(lifecycle.CLEANED_UP)

    async def _start(self) -> None:
        for service in self._services:
            self._begun.append(service)
            await service.start()

    async def _serve(self, work: Work | None) -> None:
        """Wait until `work` is done, or a service ends by itself."""
        ends = [asyncio.ensure_future(work())] if work is not None else []
        ends += [asyncio.ensure_future(each.ended()) for each in self._services if isinstance(each, Endable)]
        if not ends:
            await asyncio.Event().wait()
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for each in ends:
                each.cancel()
            await asyncio.gather(*ends, return_exceptions=True)

    async def _until_stopping(self, doing: Awaitable[None]) -> bool:
        """Wait for something, unless the process is to stop before: then it is cancelled. Gives which."""
        task, stopping = asyncio.ensure_future(doing), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            return task.done()
        finally:
            for each in (task, stopping):
                each.cancel()
            await asyncio.gather(task, stopping, return_exceptions=True)

    def _move(self, event: str) -> None:
        status = DAEMON.step(self.status, event)
        if status == self.status:
            return
        self.status = status
        # Why a start failed is said by whoever started it.
        is_news = event in (lifecycle.READY, lifecycle.CLEANED_UP)
        level = logging.INFO if is_news else logging.DEBUG
        logger.log(level, "perdure %s is %s, process %d", VERSION, status, os.getpid())
        for listener in self._listeners:
            try:
                listener(status)
            except OSError as error:
                logger.warning("the status %s cannot be told: %s", status, error)

    # --- stopping ---------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        guard = self.guard(self._timeout + OVERDUE_SECONDS)
        clock = asyncio.get_running_loop().time
        until = clock() + self._timeout
        last = min(LAST_SECONDS, self._timeout / 5)

        def seconds_left(phase: StopPhase) -> float:
            if phase < StopPhase.STORAGE:
                return until - last - clock()
            return max(until - clock(), last / 2)

        for task in self._reloading:
            task.cancel()
        failures = await stop_in_phases(self._begun, seconds_left)
        self.failed = bool(failures)
        for name, failure in failures:
            late = isinstance(failure, TimeoutError)
            logger.error("%s failed to stop: %s", name, failure, exc_info=None if late else failure)
        guard.cancel()

    def guard(self, seconds: float) -> threading.Timer:
        """End the process if it is still there after so many seconds, even if its event loop hangs."""
        reason = f"it did not stop within {self._timeout:g} s"
        timer = threading.Timer(seconds, self._force, (1, reason))
        timer.daemon = True
        timer.start()
        return timer

    def _force(self, code: int, reason: str) -> None:
        with suppress(OSError):
            os.write(2, f"perdure: ended at once: {reason}\n".encode())
        for act in self._last_acts:
            act()
        self._end_process(code)

    # --- signals ----------------------------------------------------------------------------------------

    @contextmanager
    def _owning_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()

        def stop(number: int, frame: FrameType | None) -> None:
            if self._stopping.is_set() or self.signal is not None:
                if self._forced_by_second_signal:
                    self._force(128 + number, f"by a second signal ({signal.Signals(number).name})")
                return
            self.signal = number
            loop.call_soon_threadsafe(self._told_to_stop, number)

        def reload(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self._hang_up)

        handlers: dict[int, Any] = dict.fromkeys(_STOP_SIGNALS, stop)
        if hasattr(signal, "SIGHUP"):
            handlers[signal.SIGHUP] = reload
            # Under nohup the terminal may be closed.
            self._has_terminal = _has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _told_to_stop(self, number: int) -> None:
        logger.info("stopping: %s", signal.Signals(number).name)
        self.request_stop()

    def _hang_up(self) -> None:
        """SIGHUP: reload, or stop if it came because the terminal was closed."""
        if self._has_terminal and not _has_terminal():
            _leave_terminal()
            logger.info("stopping: the terminal was closed")
            self.signal = signal.SIGHUP
            self.request_stop()
        elif not self._stopping.is_set():
            task = asyncio.get_running_loop().create_task(self._reload())
            self._reloading.add(task)
            task.add_done_callback(self._reloading.discard)

    async def _reload(self) -> None:
        if self.reloads is None:
            return
        self._systemd.reloading()
        try:
            log_report(await self.reloads.run())
        finally:
            self._systemd.reloaded()


def _leave_terminal() -> None:
    """Write nothing more to a terminal that was closed, as every write would fail."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            os.dup2(null, descriptor)
    os.close(null)


def _has_terminal() -> bool:
    """Whether a terminal controls this process."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except (OSError, AttributeError):
        return False
    return True
