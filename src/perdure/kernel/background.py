"""A daemon thread with its own event loop, for timers and listeners that outlive any caller's loop."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar, cast

from perdure.kernel.errors import StorageClosed, StorageUnavailable

T = TypeVar("T")

logger = logging.getLogger(__name__)


def new_loop() -> asyncio.AbstractEventLoop:
    """Create an event loop; uvloop's if it is installed."""
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
    return loop


class Background:
    """A daemon thread that runs coroutines. It starts with the first coroutine and ends with `close`.

    A `busy` thread uses uvloop, which takes longer to load.
    """

    def __init__(self, name: str, *, busy: bool = False) -> None:
        self.reached = True
        """True once the database has answered. Until then its first caller receives the error."""
        self._name = name
        self._busy = busy
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._last: Callable[[], Coroutine[Any, Any, Any]] | None = None

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run `coroutine` until it ends or the thread is closed."""
        with self._lock:
            if self._closed or os.getpid() != self._pid:
                coroutine.close()
                return
            asyncio.run_coroutine_threadsafe(coroutine, self._ensure_loop()).add_done_callback(_log_failure)

    async def ask(
        self, action: Callable[[], Coroutine[Any, Any, T]], *, started: Callable[[], bool] | None = None
    ) -> T:
        """Run a coroutine in the thread and wait for its result in the caller's loop.

        Cancelling the caller cancels the coroutine, unless `started` returns true.
        """
        loop, handle = self._begin(action)
        try:
            result, error = await asyncio.shield(asyncio.wrap_future(handle))
        except asyncio.CancelledError:
            if self._closed and handle.cancelled():
                raise StorageClosed() from None
            if not loop.is_closed():
                loop.call_soon_threadsafe(_cancel_unless, started, handle)
            raise
        if error is not None:
            raise error
        return cast(T, result)

    def wait(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the thread and block until it has ended; must not be called from the thread."""
        if threading.current_thread() is self._thread:
            raise RuntimeError(f"the thread {self._name} cannot wait for itself")
        _, handle = self._begin(action)
        try:
            result, error = handle.result()
        except CancelledError:
            raise StorageClosed() from None
        if error is not None:
            raise error
        return cast(T, result)

    def _begin(
        self, action: Callable[[], Coroutine[Any, Any, T]]
    ) -> tuple[asyncio.AbstractEventLoop, Future[tuple[T | None, BaseException | None]]]:
        with self._lock:
            if self._closed:
                raise StorageClosed()
            if os.getpid() != self._pid:
                raise StorageClosed(f"opened by process {self._pid}; a forked process must open its own")
            loop = self._ensure_loop()
            return loop, asyncio.run_coroutine_threadsafe(_contained(action), loop)

    def every(self, seconds: float, action: Callable[[], Awaitable[object]]) -> None:
        """Call `action` every `seconds`; an error is logged and does not stop the timer."""
        self.spawn(self._repeat(seconds, action))

    async def _repeat(self, seconds: float, action: Callable[[], Awaitable[object]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await action()
            except StorageClosed:
                return
            except StorageUnavailable as error:
                level = logging.WARNING if self.reached else logging.DEBUG
                logger.log(level, "a periodic action failed; retrying in %s s: %s", seconds, error)
            except Exception:
                logger.exception("a periodic action failed; retrying in %s s", seconds)

    def _ensure_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = new_loop() if self._busy else asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._main, args=(self._loop,), name=self._name, daemon=True
            )
            self._thread.start()
        return self._loop

    def _main(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            if self._last is not None:
                loop.run_until_complete(self._last())
        finally:
            loop.close()

    def close(self, last: Callable[[], Coroutine[Any, Any, Any]] | None = None) -> None:
        """Cancel the running tasks, await `last`, and join the thread."""
        with self._lock:
            self._closed = True
            self._last = last
            loop, thread = self._loop, self._thread
        if loop is None or thread is None or not thread.is_alive():
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


async def _contained(
    action: Callable[[], Coroutine[Any, Any, T]],
) -> tuple[T | None, BaseException | None]:
    """Return SystemExit and KeyboardInterrupt for the caller to raise; in a task they would end the loop."""
    try:
        return await action(), None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error


def _log_failure(handle: Future[Any]) -> None:
    error = None if handle.cancelled() else handle.exception()
    if error is not None:
        logger.error("a background task failed: %s", error, exc_info=error)


def _cancel_unless(started: Callable[[], bool] | None, handle: Future[Any]) -> None:
    if started is None or not started():
        handle.cancel()
