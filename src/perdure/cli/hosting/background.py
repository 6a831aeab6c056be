"""A background server: its start from a terminal, and its report that it is ready."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import typer

from perdure.cli.hosting.logs import find_warning
from perdure.cli.hosting.process_secrets import split_environment
from perdure.cli.hosting.supervisor import build_environment
from perdure.cli.shell.output import warn
from perdure.kernel.config import Settings, mask_url
from perdure.kernel.errors import PerdureError, StartRefused, error_named
from perdure.kernel.lifecycle import RUNNING, Component, Step, StopPhase
from perdure.runtime.pid_file import DaemonFiles, DaemonRecord, PidFile
from perdure.runtime.private_files import make_private, state_directory

if TYPE_CHECKING:
    from perdure.runtime.process import ServiceProcess

KILL_SECONDS = 10.0
"""Maximum seconds for a slow server to stop before it is killed."""
LAST_LINES = 10
"""Number of log lines shown for a server that ended without a report."""
MAX_MESSAGE = 1 << 20


class StartOrder(msgspec.Struct, kw_only=True):
    """Message from the command to the server process that it starts."""

    log_file: str | None = None
    options: dict[str, Any] = {}
    secrets: dict[str, str] = {}
    """Variables with secrets, which must not be in the environment, because `/proc` shows that."""


# --- in the server ----------------------------------------------------------------------------------------


class DaemonHost:
    """A server with a PID file. It reports to the command that started it, or prints in the foreground."""

    def __init__(self, settings: Settings, order: StartOrder, report: StartReport) -> None:
        self._report = report
        self._log_file = order.log_file
        self._file = PidFile(
            settings.database_url,
            DaemonRecord(
                pid=os.getpid(),
                status="starting",
                database=mask_url(settings.database_url),
                started_at=time.time(),
                seconds_to_stop=settings.seconds_to_stop,
                log_file=order.log_file,
                directory=str(Path.cwd()),
                options=order.options,
            ),
        )
        self._taken = False

    def components(self) -> Sequence[Component]:
        return (self,)

    def join(self, process: ServiceProcess) -> None:
        process.on_status(self._write_status)
        process.before_forced_end(self._file.remove)
        if process.reloads is not None and self._log_file is not None:
            process.reloads.add("log file", self._reopen_log)

    def announce(self, facts: dict[str, Any]) -> None:
        names = ("url", "grpc_port", "workers", "agents")
        self._file.write_status(RUNNING, **{name: facts[name] for name in names})
        own = {"status": RUNNING, "pid": os.getpid(), "pid_file": str(self._file.path)}
        self._report.ready({**own, **facts, "log_file": self._log_file})

    def _write_status(self, status: str) -> None:
        if self._taken:
            self._file.write_status(status)

    async def _reopen_log(self, settings: Settings) -> str | None:
        """Reopen the log by its name, because the file may have been rotated."""
        assert self._log_file is not None
        file = _open_log(Path(self._log_file))
        before = os.fstat(2)
        after = os.fstat(file)
        for descriptor in (1, 2):
            os.dup2(file, descriptor)
        os.close(file)
        same = (before.st_dev, before.st_ino) == (after.st_dev, after.st_ino)
        return None if same else f"writing to a new {self._log_file}"

    async def start(self) -> None:
        self._file.take()
        self._taken = True

    async def stop(self) -> None:
        if self._taken:
            self._taken = False
            self._file.remove()

    def stop_steps(self) -> Mapping[StopPhase, Step]:
        return {StopPhase.PROCESS: self.stop}


class StartReport:
    """Reports to the starter of this server that it is ready, or why it is not."""

    def __init__(self, *, as_json: bool, descriptor: int | None = None) -> None:
        self._as_json = as_json
        self._connection = None if descriptor is None else socket.socket(fileno=descriptor)
        if self._connection is not None:
            self._connection.set_inheritable(False)

    def order(self) -> StartOrder:
        """Read the order of the command that started this server."""
        if self._connection is None:
            return StartOrder()
        return msgspec.json.decode(_received(self._connection), type=StartOrder)

    def ready(self, facts: dict[str, Any]) -> None:
        if self._connection is None:
            from perdure.cli.hosting.serve import announce

            announce(facts, as_json=self._as_json)
        self._send(facts)

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Report errors that prevent the start."""
        try:
            yield
        except PerdureError as error:
            self._send({"error": error.code, "message": error.message})
            raise
        except Exception as error:
            self._send({"error": "internal", "message": f"{type(error).__name__}: {error}"})
            raise

    def _send(self, message: dict[str, Any]) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with connection:
                connection.sendall(json.dumps(message).encode())


# --- in the command ---------------------------------------------------------------------------------------


class Started(NamedTuple):
    """A server that was started in the background."""

    facts: dict[str, Any]
    warnings: list[str]


def start_in_background(
    settings: Settings,
    arguments: Sequence[str],
    options: dict[str, Any],
    log_file: str | None,
    timeout: float,
) -> Started:
    """Start a server in its own session, and wait until it is ready. Raise the reason if it fails.

    `arguments` are those of `perdure start --foreground`; settings are passed in the environment.
    """
    if sys.platform == "win32":
        raise StartRefused("a server in the background is not supported on Windows: use perdure serve")
    log = Path(log_file) if log_file else state_directory() / DaemonFiles.of(settings.database_url).log_name
    log = log.absolute()
    ours, theirs = socket.socketpair()
    with ours:
        environment, secrets = split_environment(build_environment(settings, os.environ))
        with theirs:
            file = _open_log(log)
            written = os.fstat(file).st_size
            try:
                process = _spawn(environment, arguments, theirs, file)
            finally:
                os.close(file)
        order = StartOrder(log_file=str(log), options=options, secrets=secrets)
        # A server that has already ended is detected below.
        with suppress(ConnectionError):
            ours.sendall(msgspec.json.encode(order))
            ours.shutdown(socket.SHUT_WR)
        try:
            message = _answer(ours, timeout)
        except BaseException:
            _end(process)
            raise
    if message is None or "error" in message:
        raise _failure(message, process.wait(), _lines_after(log, written), log)
    warnings = [text for text in map(find_warning, _lines_after(log, written)) if text is not None]
    return Started(message, warnings)


def _spawn(
    environment: Mapping[str, str], arguments: Sequence[str], theirs: socket.socket, log: int
) -> subprocess.Popen[bytes]:
    descriptor = theirs.fileno()
    command = ["-m", "perdure.cli", "start", "--foreground", "--report-fd", str(descriptor), *arguments]
    return subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, *command],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment,
        pass_fds=[descriptor],
        start_new_session=True,
    )


def _open_log(path: Path) -> int:
    try:
        if path.parent == state_directory():
            make_private(path.parent)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o600)
    except OSError as error:
        raise StartRefused(f"the log {path} cannot be written: {error.strerror or error}") from None


def _answer(connection: socket.socket, timeout: float) -> dict[str, Any] | None:
    """Read the report of the server; None if it ended without one."""
    connection.settimeout(timeout)
    try:
        received = _received(connection)
    except TimeoutError:
        raise StartRefused(
            f"the server was not ready within {timeout:g} s, and was stopped; --timeout waits longer"
        ) from None
    return dict(json.loads(received)) if received else None


def _received(connection: socket.socket) -> bytes:
    """Receive everything that the other side sends."""
    data = b""
    while len(data) < MAX_MESSAGE and (part := connection.recv(MAX_MESSAGE)):
        data += part
    return data


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(KILL_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _failure(message: dict[str, Any] | None, code: int, lines: Sequence[str], log: Path) -> PerdureError:
    """Build the error for a server that did not start."""
    if message is not None:
        return error_named(message["error"], message["message"]) or StartRefused(message["message"])
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
    for line in lines[-LAST_LINES:]:
        typer.echo(f"  {line}", err=True)
    return StartRefused(f"the server ended with {how} before it was ready; see {log}")


def _lines_after(log: Path, place: int) -> list[str]:
    with open(log, "rb") as file:
        file.seek(place)
        return file.read().decode(errors="replace").splitlines()


def show_warnings(started: Started) -> None:
    """Print the warnings and errors of the server's start, such as agents that cannot be loaded."""
    for text in started.warnings:
        warn(text)
