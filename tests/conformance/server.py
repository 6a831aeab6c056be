"""A perdure server in a process of its own, on either engine, which can be killed and restarted."""

import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from perdure.testing.processes import kill_tree
from perdure.testing.servers import (
    PostgresServer,
    create_database,
    drop_database,
    given_url,
    with_database,
)

ENGINES = ("sqlite", "postgres")
SERVE = (sys.executable, "-m", "perdure.cli", "serve")
START_SECONDS = 30.0
POLL_SECONDS = 0.02


class ServerFailed(RuntimeError):
    """The server did not answer; the message ends with its log."""


class Server:
    """`perdure serve` on a database and a port that stay the same."""

    def __init__(self, database: str, key: str, folder: Path) -> None:
        self._database = database
        self._key = key
        self._folder = folder
        self._log = folder / "server.log"
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, and return when it answers."""
        command = [*SERVE, "--port", str(self._port)]
        settings = {"PERDURE_API_KEY": self._key, "PERDURE_DATABASE_URL": self._database}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, env=os.environ | settings, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ServerFailed(f"the server did not start:\n{self.log()}")
            time.sleep(POLL_SECONDS)

    def kill(self) -> None:
        """End it as kill -9 does."""
        if self._process is not None:
            kill_tree(self._process.pid)
            self._process.wait()
            self._process = None

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-3000:] if self._log.exists() else ""

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + "/v1/agl/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def database(engine: str, folder: Path) -> Iterator[str]:
    """The URL of an empty database of this run's own."""
    if engine == "sqlite":
        yield f"sqlite:///{folder / 'conformance.db'}"
        return
    with ExitStack() as stack:
        server = given_url() or stack.enter_context(PostgresServer()).url()
        name = f"conformance_{secrets.token_hex(8)}"
        create_database(server, name)
        stack.callback(drop_database, server, name)
        yield with_database(server, name)


@contextmanager
def running(engine: str, key: str, folder: Path) -> Iterator[Server]:
    """A server that answers; it is gone at the end."""
    with database(engine, folder) as url:
        server = Server(url, key, folder)
        try:
            server.start()
            yield server
        finally:
            server.kill()
