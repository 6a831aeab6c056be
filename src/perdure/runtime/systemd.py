"""What systemd is told of a service with `Type=notify`: that it is ready, stops, reloads, and still works.

The messages go to the socket that $NOTIFY_SOCKET names; without it nothing is sent.
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
"""What systemd says to a process, and not to those that the process starts."""


def notify(*lines: str) -> bool:
    """Send lines such as `READY=1` to systemd; gives whether there was somebody to send them to."""
    address = os.environ.get(SOCKET, "")
    if not address.startswith(("/", "@")) or not hasattr(socket, "AF_UNIX"):
        return False
    # An address that begins with @ is one without a file.
    path = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        try:
            sender.sendto("\n".join(lines).encode(), path)
        except OSError as error:
            logger.warning("systemd cannot be notified at %s: %s", address, error.strerror)
            return False
    return True


def watchdog_seconds() -> float | None:
    """How often systemd wants to hear of this process; None if it does not watch it."""
    given = os.environ.get(WATCHDOG_SECONDS, "")
    process = os.environ.get(WATCHDOG_PROCESS) or str(os.getpid())
    if not given.isdecimal() or int(given) == 0 or process != str(os.getpid()):
        return None
    return int(given) / 1_000_000


class Systemd:
    """Notifies systemd from the event loop, so that a loop that hangs is noticed by the watchdog."""

    def __init__(self) -> None:
        self._pinging: asyncio.Task[None] | None = None

    def tell(self, status: str) -> None:
        """Send the status of the process."""
        if status == RUNNING:
            notify("READY=1", f"STATUS=Serving as process {os.getpid()}.")
        elif status == STOPPING:
            notify("STOPPING=1", "STATUS=Finishing requests and runs.")

    def reloading(self) -> None:
        """Say that a reload begins; `reloaded` says that it is over."""
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
