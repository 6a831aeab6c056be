"""A process with its services: handles signals, starts services in order, stops them by phases."""

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
"""Part of the stop time that is reserved for the storage and later phases."""
OVERDUE_SECONDS = 1.0
"""A hanging process is ended this long after its stop time."""
_STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)
)


class ServiceProcess:
    """Runs services until a signal, a failure, or the end of `work`.

    SIGINT and SIGTERM stop it within `timeout` seconds, phase by phase; a second signal ends it at once.
    SIGHUP runs `reloads`. The services start in the given order.
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
        """The signal that stopped the process."""
        self.failed = False
        """Whether a service failed to stop, or did not stop in time."""
        self._systemd = Systemd()
        self._services: list[Component] = [self._systemd, *services]
        self._started: list[Component] = []
        self._timeout = timeout
        self.reloads = reloads
        self._forced_by_second_signal = forced_by_second_signal
        self._end_process = end_process
        self._listeners: list[Callable[[str], None]] = [self._systemd.notify_status]
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
        """Stop as after a signal; further calls do nothing."""
        self._stopping.set()

    async def run(self, work: Work | None = None) -> None:
        """Run until a stop. Afterwards raise the error of the start, of a service or of `work`."""
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
            self._started.append(service)
            await service.start()

    async def _serve(self, work: Work | None) -> None:
        """Wait until `work` is done, or a service ends by itself."""
        ends = [asyncio.ensure_future(work())] if work is not None else []
        ends += [
            asyncio.ensure_future(service.ended())
            for service in self._services
            if isinstance(service, Endable)
        ]
        if not ends:
            await asyncio.Event().wait()
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)

    async def _until_stopping(self, doing: Awaitable[None]) -> bool:
        """Wait for an awaitable, or cancel it at a stop request. Return whether it has finished."""
        task, stopping = asyncio.ensure_future(doing), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            return task.done()
        finally:
            for waiting in (task, stopping):
                waiting.cancel()
            await asyncio.gather(task, stopping, return_exceptions=True)

    def _move(self, event: str) -> None:
        status = DAEMON.step(self.status, event)
        if status == self.status:
            return
        self.status = status
        # The caller of a failed start reports the reason.
        is_news = event in (lifecycle.READY, lifecycle.CLEANED_UP)
        level = logging.INFO if is_news else logging.DEBUG
        logger.log(level, "perdure %s is %s, process %d", VERSION, status, os.getpid())
        for listener in self._listeners:
            try:
                listener(status)
            except OSError as error:
                logger.warning("the status %s cannot be reported: %s", status, error)

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
        failures = await stop_in_phases(self._started, seconds_left)
        self.failed = bool(failures)
        for name, failure in failures:
            late = isinstance(failure, TimeoutError)
            logger.error("%s failed to stop: %s", name, failure, exc_info=None if late else failure)
        guard.cancel()

    def guard(self, seconds: float) -> threading.Timer:
        """End the process after `seconds` if it still runs, even if its event loop hangs."""
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
            loop.call_soon_threadsafe(self._stop_by_signal, number)

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

    def _stop_by_signal(self, number: int) -> None:
        logger.info("stopping: %s", signal.Signals(number).name)
        self.request_stop()

    def _hang_up(self) -> None:
        """Handle SIGHUP: reload, or stop if the terminal was closed."""
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
    """Redirect output from a closed terminal to /dev/null, because every write would fail."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            os.dup2(null, descriptor)
    os.close(null)


def _has_terminal() -> bool:
    """Return whether a terminal controls this process."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except (OSError, AttributeError):
        return False
    return True
