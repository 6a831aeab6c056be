"""An HTTP server in its own process, to start, kill and start again on the same port."""

import http.client
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from perdure.testing.processes import end_with_us
from perdure.testing.servers import ServerFailed, free_port

HEALTH_PATH = "/v1/agl/health"
_POLL_SECONDS = 0.01
_PROBE_SECONDS = 5.0
_LOG_BYTES = 4000


class ServerProcess:
    """A server started by a command that takes `--port`; it answers requests after `start`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        start_seconds: float = 60.0,
        health_path: str = HEALTH_PATH,
        popen: Callable[..., Any] = subprocess.Popen,
    ) -> None:
        self.port = free_port()
        self._command = [*command, "--port", str(self.port)]
        self._folder = folder
        self._environment = environment
        self._seconds = start_seconds
        self._health_path = health_path
        self._popen = popen
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        self._process: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return int(self._process.pid)

    def start(self) -> None:
        """Start the process, and wait until it is healthy."""
        self._process = process = self._popen(
            self._command,
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        end_with_us(process.pid)
        deadline = time.monotonic() + self._seconds
        while not self._healthy():
            if process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise ServerFailed(f"{self._command} did not start.\n{self.log()}")
            time.sleep(_POLL_SECONDS)

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PROBE_SECONDS)
        try:
            connection.request("GET", self._health_path)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL the process, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def stop(self, seconds: float = 30.0) -> int:
        """SIGTERM the process, and wait until it has ended. Return its exit code."""
        return self._end(signal.SIGTERM, seconds)

    def _end(self, how: signal.Signals, seconds: float = 30.0) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(how)
        try:
            return int(process.wait(seconds))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise ServerFailed(f"{self._command} had to be killed.\n{self.log()}") from None

    def log(self) -> str:
        """Return the last lines of its output."""
        descriptor = self._log.fileno()
        size = os.fstat(descriptor).st_size
        # The server writes at this file's position, which must therefore not be moved.
        output = os.pread(descriptor, _LOG_BYTES, max(size - _LOG_BYTES, 0))
        return output.decode(errors="replace")

    def close(self) -> None:
        """Kill the process if it still runs."""
        self.kill()
        self._log.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
