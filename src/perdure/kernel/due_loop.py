"""Loop that does due work: when the next work is due, after a hint, and at least every few seconds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from perdure.kernel.errors import StorageClosed
from perdure.kernel.signals.port import Signals

POLL_SECONDS = 5.0
SHORTEST_WAIT = 0.05
"""Wait before the next look while another process does the due work."""

logger = logging.getLogger(__name__)

Settle = Callable[[], Awaitable[float | None]]
"""Does due work; returns the seconds until the next due time, or None."""


class DueLoop:
    """Call `settle` in the event loop that calls `start`, until `stop`.

    Any number of processes may look at once, so `settle` checks under a lock whether work is still due. Its
    errors are logged, and it is called again after `poll` seconds.
    """

    def __init__(
        self,
        signals: Signals,
        channel: str,
        key: str,
        settle: Settle,
        *,
        work: str,
        poll: float = POLL_SECONDS,
    ) -> None:
        self._signals = signals
        self._channel = channel
        self._key = key
        self._settle = settle
        self._work = work
        self._poll = poll
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None

    def start(self, first: Callable[[], Awaitable[None]] | None = None) -> None:
        """Start the loop, after `first`; a second call does nothing."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._main(first))

    async def stop(self) -> None:
        """Cancel the loop and wait until the current action has ended."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _main(self, first: Callable[[], Awaitable[None]] | None) -> None:
        with self._signals.watch(self._channel, [self._key]) as watch:
            try:
                if first is not None:
                    await first()
                while True:
                    await watch.changed(await self._look())
            except StorageClosed:
                logger.info("%s are no longer settled: the storage is closed", self._work)

    async def _look(self) -> float:
        """Do due work. Return the seconds until the next look."""
        try:
            wait = await self._settle()
        except StorageClosed:
            raise
        except Exception as error:  # noqa: BLE001 - the loop must survive any error
            logger.warning("cannot settle %s, retrying in %s s: %s", self._work, self._poll, error)
            return self._poll
        return self._poll if wait is None else max(min(wait, self._poll), SHORTEST_WAIT)
