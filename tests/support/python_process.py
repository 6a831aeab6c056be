"""Processes of Python with the project's modules loaded, forked from one that loaded them once.

A server takes a second or three to load its modules, but a few hundredths to start. A process started here
has its own pid, signals and pipes like any other; it runs a module, as `python -m` does, or a script.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, Self

import msgspec
from tests.support.preloaded import Order

ROOT = Path(__file__).resolve().parent.parent.parent


class PythonProcess:
    """A `subprocess.Popen` of `[sys.executable, "-m", module, ...]` or `[sys.executable, script, ...]`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[Any] = subprocess.DEVNULL,
        stdout: int | IO[Any] = subprocess.DEVNULL,
        stderr: int | IO[Any] = subprocess.DEVNULL,
        text: bool = False,
        start_new_session: bool = False,
        terminal: bool = False,
    ) -> None:
        executable, first, *rest = command
        assert executable == sys.executable
        is_module = first == "-m"
        order = Order(
            module=rest[0] if is_module else None,
            script=None if is_module else first,
            arguments=rest[1:] if is_module else rest,
            folder=str(cwd or Path.cwd()),
            environment=dict(os.environ if env is None else env),
            session=start_new_session or terminal,
            terminal=terminal,
        )
        self.args = command
        self.returncode: int | None = None
        self._given: list[int] = []
        """Our copies of the process's descriptors, closed after it has them."""
        mode = "" if text else "b"
        self.stdin = self._pipe(stdin, "w" + mode)
        self.stdout = self._pipe(stdout, "r" + mode)
        self.stderr = self._pipe(stderr, "r" + mode)
        self._status, ours = os.pipe()
        self._given.append(ours)
        try:
            self.pid = _preloaded().start(order, self._given)
        finally:
            for descriptor in self._given:
                os.close(descriptor)

    def _pipe(self, wanted: int | IO[Any], mode: str) -> IO[Any] | None:
        """Keep the process's end of a pipe, and return ours if there is one."""
        if wanted == subprocess.PIPE:
            reading, writing = os.pipe()
            theirs, ours = (reading, writing) if "w" in mode else (writing, reading)
            self._given.append(theirs)
            return open(ours, mode, buffering=-1 if "r" in mode else 0 if "b" in mode else 1)
        if wanted == subprocess.DEVNULL:
            self._given.append(os.open(os.devnull, os.O_RDWR))
        else:
            self._given.append(os.dup(wanted if isinstance(wanted, int) else wanted.fileno()))
        return None

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _ended(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], seconds)[0]:
            said = os.read(self._status, 64)
            os.close(self._status)
            self.returncode = int(said) if said else -signal.SIGKILL
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Close its stdin, read its output, and wait until it has ended."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if self.stdin is not None:
            self.stdin.close()
        read: dict[str, Any] = {}
        readers = [
            threading.Thread(target=_read, args=(pipe, read, name), daemon=True)
            for name, pipe in (("stdout", self.stdout), ("stderr", self.stderr))
            if pipe is not None
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if deadline is None else max(deadline - time.monotonic(), 0))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if deadline is None else max(deadline - time.monotonic(), 0))
        return read.get("stdout"), read.get("stderr")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        self.wait()


def _read(pipe: IO[Any], read: dict[str, Any], name: str) -> None:
    read[name] = pipe.read()
    pipe.close()


# --- the process that loads the modules ------------------------------------------------------------------


class _Preloaded:
    """Our side of the forking process."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "tests.support.preloaded", str(theirs.fileno())]
            # No setting of one test may stay loaded for others.
            surroundings = {name: value for name, value in os.environ.items() if "PERDURE" not in name}
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=surroundings, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        self._lock = threading.Lock()

    def start(self, order: Order, descriptors: Sequence[int]) -> int:
        with tempfile.TemporaryFile() as file, self._lock:
            file.write(msgspec.json.encode(order))
            file.flush()
            socket.send_fds(self._socket, [b"+"], [*descriptors, file.fileno()])
            return int(self._socket.recv(64))

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@cache
def _preloaded() -> _Preloaded:
    started = _Preloaded()
    atexit.register(started.close)
    return started
