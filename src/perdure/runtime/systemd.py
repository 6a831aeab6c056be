"""Notifications to systemd from a service with `Type=notify`: ready, stopping, reloading, watchdog.

The messages go to the socket $NOTIFY_SOCKET; without it none are sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping

from perdure.kernel.lifecycle import RUNNING, STOPPING, Step, StopPhase

logger = logging.getLogger(__name__)

SOCKET = "NOTIFY_SOCKET"
WATCHDOG_SECONDS = "WATCHDOG_USEC"
WATCHDOG_PROCESS = "WATCHDOG_PID"
VARIABLES = (SOCKET, WATCHDOG_SECONDS, WATCHDOG_PROCESS)
"""Variables of systemd for one process, which its child processes must not inherit."""


def notify(*lines: str) -> bool:
    """Send lines such as `READY=1` to systemd. Return whether they were sent."""
    address = os.environ.get(SOCKET, "")
    if not address.startswith(("/", "@")) or not hasattr(socket, "AF_UNIX"):
        return False
    # An address with @ is in the abstract namespace, without a file.
    path = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        try:
            sender.sendto("\n".join(lines).encode(), path)
        except OSError as error:
            logger.warning("systemd cannot be notified at %s: %s", address, error.strerror)
            return False
    return True


def watchdog_seconds() -> float | None:
    """Return the watchdog interval that systemd requires; None if it does not watch this process."""
    given = os.environ.get(WATCHDOG_SECONDS, "")
    process = os.environ.get(WATCHDOG_PROCESS) or str(os.getpid())
    if not given.isdecimal() or int(given) == 0 or process != str(os.getpid()):
        return None
    return int(given) / 1_000_000


class Systemd:
    """Notifies systemd from the event loop, so that the watchdog notices a hanging loop."""

    def __init__(self) -> None:
        self._pinging: asyncio.Task[None] | None = None

    def notify_status(self, status: str) -> None:
        """Send the status of the process."""
        if status == RUNNING:
            notify("READY=1", f"STATUS=Serving as process {os.getpid()}.")
        elif status == STOPPING:
            notify("STOPPING=1", "STATUS=Finishing requests and runs.")

    def reloading(self) -> None:
        """Announce the start of a reload; `reloaded` announces its end."""
        notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        notify("READY=1")

    async def start(self) -> None:
        seconds = watchdog_seconds()
        if seconds is not None:
            self._pinging = asyncio.create_task(self._ping(seconds / 2))

    async def _ping(self, seconds: float) -> None:
        while True:
            notify("WATCHDOG=1")
            await asyncio.sleep(seconds)

    async def stop(self) -> None:
        if self._pinging is not None:
            self._pinging.cancel()
            await asyncio.gather(self._pinging, return_exceptions=True)
            self._pinging = None

    def stop_steps(self) -> Mapping[StopPhase, Step]:
        return {StopPhase.PROCESS: self.stop}
