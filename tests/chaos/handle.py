"""The parent's hold on a child: started ahead, given its plan, listened to, and killed at a chosen moment."""

import fcntl
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import msgspec
from tests.support.python_process import PythonProcess

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = (sys.executable, "-m", "tests.chaos.child")


class Child:
    """A process that works on a store; it begins when it gets its plan."""

    def __init__(
        self, command: Sequence[str] = COMMAND, *, environment: Mapping[str, str] | None = None
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self._process = PythonProcess(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._pipe = self._process.stdout.fileno()
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            # Room enough that a child need not wait for a parent that is busy with a server.
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, 1 << 20)
        self._rest = b""
        self.lines: list[bytes] = []
        self.finished = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """The pipe on which it speaks, to wait for several children at once."""
        return self._pipe

    def go(self, plan: msgspec.Struct) -> Self:
        """Hand over the plan."""
        self._tell(msgspec.json.encode(plan) + b"\n")
        return self

    def ask_to_stop(self) -> None:
        """Let it finish its calls and close its store."""
        self._tell(b"stop\n")

    def _tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()

    def listen(self, until: Callable[[bytes], bool] | None = None, seconds: float = 60.0) -> bool:
        """Read lines until one satisfies `until`; False at the child's end or when the time is up."""
        deadline = time.monotonic() + seconds
        while not self.finished and (left := deadline - time.monotonic()) > 0:
            if not select.select([self._pipe], [], [], left)[0]:
                break
            said = [until is not None and until(line) for line in self.read()]
            if any(said):
                return True
        return False

    def drain(self) -> None:
        """Read what has been said by now, without waiting."""
        while not self.finished and select.select([self._pipe], [], [], 0)[0]:
            self.read()

    def read(self) -> list[bytes]:
        """The whole lines that have come, once there is something to read."""
        chunk = os.read(self._pipe, 1 << 20)
        self.finished = not chunk
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        self.lines += whole
        return whole

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def end(self, seconds: float = 30.0) -> int:
        """Read what is left and wait for the process to end by itself; gives its exit code."""
        self.listen(seconds=seconds)
        return self._process.wait(seconds)

    def errors(self) -> str:
        """The last lines that it wrote to stderr."""
        self._errors.seek(0)
        return self._errors.read()[-2000:].decode(errors="replace")

    def close(self) -> None:
        """Kill it if it still runs, and let go of its pipes."""
        if self._process.poll() is None:
            self.kill()
        self.listen(seconds=10.0)
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
