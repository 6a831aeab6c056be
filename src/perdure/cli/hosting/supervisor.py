"""Several server processes on one socket: started, restarted after they die, and stopped together."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from perdure.cli.hosting.process_secrets import encode_secrets, split_environment
from perdure.kernel.config import PREFIX, VARIABLES, Settings, arguments_of
from perdure.kernel.retry import Backoff
from perdure.runtime import systemd

logger = logging.getLogger(__name__)

READY = b"r"
GRPC_VARIABLE = PREFIX + "GRPC_PORT"
KILL_SECONDS = 2.0
"""Additional seconds for a process to stop before it is killed."""
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 30.0
STEADY_SECONDS = 10.0
"""A process that lived this long is restarted after the shortest pause."""

Environment = Mapping[str, str]
Spawn = Callable[[int, socket.socket], "asyncio.Future[asyncio.subprocess.Process]"]


def build_environment(settings: Settings, environment: Environment) -> dict[str, str]:
    """Build the environment of a process. It carries the arguments, because other users cannot read it."""
    ours = dict(environment)
    for name, value in arguments_of(settings).items():
        for variable in VARIABLES.get(name, (PREFIX + name.upper(),)):
            ours.pop(variable, None)
            ours.pop(variable + "_FILE", None)
        ours[PREFIX + name.upper()] = _as_text(value)
    return ours


def _as_text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "off" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


class SupervisedServer:
    """A server process that is replaced when it dies."""

    def __init__(self, number: int, spawn: Spawn, greeting: bytes) -> None:
        self.number = number
        self._greeting = greeting
        self.ready = asyncio.Event()
        self.process: asyncio.subprocess.Process | None = None
        self._spawn = spawn

    async def keep(self, stopping: asyncio.Event) -> None:
        """Keep a process running until the supervisor stops."""
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while not stopping.is_set():
            started = time.monotonic()
            code = await self._live()
            if stopping.is_set():
                return
            if time.monotonic() - started > STEADY_SECONDS:
                backoff.reset()
            pause = backoff.next()
            logger.warning(
                "server process %d ended with %s; restarting in %.1f s", self.number, _ending(code), pause
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), pause)

    async def _live(self) -> int:
        """Start a process and wait until it ends. It also ends when our end of the socket closes."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                process = self.process = await self._spawn(self.number, theirs)
            logger.info("server process %d has pid %d", self.number, process.pid)
            waiting = asyncio.ensure_future(self._greet(ours))
            try:
                return await process.wait()
            finally:
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                self.process = None

    async def _greet(self, connection: socket.socket) -> None:
        """Send the secrets, which are in no environment, and wait until the process is ready."""
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        with suppress(ConnectionError):
            await loop.sock_sendall(connection, self._greeting)
            if await loop.sock_recv(connection, 1) == READY:
                self.ready.set()

    def signal(self, number: int) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"code {code}"


class Supervisor:
    """Runs a number of server processes on one socket, from `start` to `stop`."""

    def __init__(
        self, settings: Settings, listening: socket.socket, count: int, options: Sequence[str] = ()
    ) -> None:
        self._listening = listening
        self._options = options
        self._seconds = settings.seconds_to_stop + KILL_SECONDS
        self._environment, self._secrets = split_environment(build_environment(settings, os.environ))
        for variable in systemd.VARIABLES:
            self._environment.pop(variable, None)
        greeting = encode_secrets(self._secrets)
        self._processes = [SupervisedServer(number, self._spawn, greeting) for number in range(1, count + 1)]
        self._stopping = asyncio.Event()
        self._keeping: list[asyncio.Future[None]] = []

    @property
    def pids(self) -> list[int]:
        return [server.process.pid for server in self._processes if server.process is not None]

    def _spawn(self, number: int, lifeline: socket.socket) -> asyncio.Future[asyncio.subprocess.Process]:
        # The gRPC port is not shared: it belongs to the first process.
        alone = {} if number == 1 else {GRPC_VARIABLE: "off"}
        fds = (self._listening.fileno(), lifeline.fileno())
        command = (
            "-m",
            "perdure.cli",
            "serve",
            "--fd",
            str(fds[0]),
            "--lifeline",
            str(fds[1]),
            *self._options,
        )
        starting = asyncio.create_subprocess_exec(
            sys.executable, *command, pass_fds=fds, env=self._environment | alone, start_new_session=True
        )
        return asyncio.ensure_future(starting)

    async def start(self) -> None:
        """Start the processes, and wait until all of them answer."""
        self._keeping = [asyncio.ensure_future(server.keep(self._stopping)) for server in self._processes]
        for server in self._processes:
            await server.ready.wait()

    async def reload(self, settings: Settings) -> str | None:
        """Let the processes reload; each logs its changes."""
        self._signal(signal.SIGHUP)
        return f"sent to {len(self.pids)} processes"

    def kill(self) -> None:
        """End the processes at once."""
        self._signal(signal.SIGKILL)

    async def stop(self) -> None:
        """Stop the processes, and wait until they have ended; kill those that take too long."""
        self._stopping.set()
        if not self._keeping:
            return
        logger.info("stopping %d server processes", len(self.pids))
        self._signal(signal.SIGTERM)
        _, late = await asyncio.wait(self._keeping, timeout=self._seconds)
        if late:
            logger.warning(
                "%d server processes did not stop within %g s; killing them", len(late), self._seconds
            )
            self.kill()
        await asyncio.gather(*self._keeping)

    def _signal(self, number: int) -> None:
        for server in self._processes:
            server.signal(number)
