"""Detection of disconnected clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.types import Receive

from perdure.kernel.errors import Conflict, NotFound
from perdure.threads.service import Threads

WATCH_SECONDS = 0.25
"""Duration of a request after which its client is watched."""

OnDisconnect = Callable[[], Awaitable[None]]
"""Called by a long response when its client has disconnected."""


async def until_disconnect(receive: Receive) -> Any:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


class CallerWatch:
    """Waits for the work of a request, until its client disconnects or the server stops.

    Both are watched only after a moment, because most requests are answered before that. Use `at_once` if no
    other caller could use the result, as with a claim.
    """

    __slots__ = ("_disconnected", "_moment", "_receive", "_stopping")

    def __init__(self, receive: Receive, stopping: asyncio.Future[None], *, at_once: bool = False) -> None:
        self._receive = receive
        self._stopping = stopping
        self._moment = 0.0 if at_once else WATCH_SECONDS
        self._disconnected: asyncio.Task[Any] | None = None

    async def wait(self, work: asyncio.Future[Any], seconds: float | None = None) -> bool:
        """Wait until the work or the request has ended. Return False if neither has within `seconds`."""
        if self._disconnected is None:
            if self._moment:
                done, _ = await asyncio.wait((work,), timeout=self._moment)
                if done:
                    return True
            self._disconnected = asyncio.ensure_future(until_disconnect(self._receive))
        ends = (work, self._disconnected, self._stopping)
        done, _ = await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)

    @property
    def has_left(self) -> bool:
        """Whether the client has disconnected."""
        return self._disconnected is not None and self._disconnected.done()

    async def end(self, *tasks: asyncio.Future[Any]) -> None:
        """Cancel the work and the watch, and wait for both."""
        watch = () if self._disconnected is None else (self._disconnected,)
        left = [task for task in (*tasks, *watch) if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.gather(*left, return_exceptions=True)


class DisconnectWatch:
    """Cancels the task of a request when its client disconnects.

    It starts after a moment, because most requests are answered before that.
    """

    __slots__ = ("_receive", "_task", "_timer", "_watching", "left")

    def __init__(self, receive: Receive) -> None:
        self.left = False
        self._receive = receive
        self._task = asyncio.current_task()
        self._watching: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(WATCH_SECONDS, self._begin)

    def _begin(self) -> None:
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        await until_disconnect(self._receive)
        self.left = True
        if self._task is not None:
            self._task.cancel()

    def stop(self) -> None:
        self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()


def cancel_on_disconnect(threads: Threads, run_id: str, wanted: bool) -> OnDisconnect | None:
    """Return a function that cancels a run when its client disconnects, if that is wanted."""
    return partial(_cancel, threads, run_id) if wanted else None


async def _cancel(threads: Threads, run_id: str) -> None:
    # A run that has ended in the meantime needs no cancellation.
    with contextlib.suppress(Conflict, NotFound):
        await threads.cancel_run(run_id)
