"""Runs `perdure` in a separate process with pipes, on a terminal, or in this process."""

import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest import mock

import pytest
import typer.main
from tests.support.python_process import PythonProcess

from perdure.cli import app, main

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = [sys.executable, "-m", "perdure.cli"]
COLOR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7])(?:;\d+)*m")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Variables that may be set in a test run, and those that affect the terminal's output.
SURROUNDINGS = ("HOST", "PORT", "DATABASE_URL", "LOG_LEVEL", "LOG_JSON", "REDIS_URL", "REDIS_URI", "CI")
LOOK = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "TERM")
NOTHING: Mapping[str, str] = {}


def settings(folder: Path, more: Mapping[str, str] = NOTHING) -> dict[str, str]:
    """Return the environment of a command that keeps its temporary files in `folder`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in (*LOOK, *SURROUNDINGS) and not name.startswith("PERDURE_")
    }
    own = {"PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(folder), "TERM": "xterm-256color"}
    own |= {"XDG_RUNTIME_DIR": "", "XDG_CACHE_HOME": str(folder), "XDG_STATE_HOME": str(folder)}
    return {**kept, **own, **more}


def after(preparation: str, *arguments: str) -> list[str]:
    """Build the command with a line of Python that prepares its process."""
    start = "import os, sys; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    return [sys.executable, "-c", f"{preparation}; {start}", *COMMAND[1:], *arguments]


def perdure(
    folder: Path, *arguments: str, more: Mapping[str, str] = NOTHING
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, without a terminal."""
    process = start(folder, *arguments, more=more)
    output, errors = process.communicate()
    return subprocess.CompletedProcess(arguments, process.wait(), output, errors)


def start(folder: Path, *arguments: str, more: Mapping[str, str] = NOTHING) -> PythonProcess:
    """Start a command whose output is read."""
    return PythonProcess(
        [*COMMAND, *arguments],
        cwd=folder,
        env=settings(folder, more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def new_perdure(
    folder: Path, *arguments: str, more: Mapping[str, str] = NOTHING
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in a fresh interpreter without preloaded modules."""
    command, environment = [*COMMAND, *arguments], settings(folder, more)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@cache
def commands() -> Any:
    """Return the tree of commands."""
    return typer.main.get_command(app)


def run_here(
    folder: Path, *arguments: str, more: Mapping[str, str] = NOTHING
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in this process, which is quicker; servers need a separate process."""
    output, errors = io.StringIO(), io.StringIO()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, settings(folder, more), clear=True))
        stack.enter_context(mock.patch.object(sys, "argv", ["perdure", *arguments]))
        # Building the tree of commands takes longer than most commands.
        stack.enter_context(mock.patch.object(typer.main, "get_command", return_value=commands()))
        stack.enter_context(chdir(folder))
        stack.enter_context(redirect_stdout(output))
        stack.enter_context(redirect_stderr(errors))
        ended = stack.enter_context(pytest.raises(SystemExit))
        main()
    code = int(ended.value.code or 0)
    return subprocess.CompletedProcess(arguments, code, output.getvalue(), errors.getvalue())


class Server:
    """A server process on a free port, while the block lasts."""

    def __init__(
        self,
        folder: Path,
        command: str = "serve",
        *arguments: str,
        more: Mapping[str, str] = NOTHING,
        popen: Callable[..., Any] = PythonProcess,
    ) -> None:
        self.folder = folder
        self.more = more
        self.process = popen(
            [*COMMAND, command, "--port", "0", "--json", *arguments],
            cwd=folder,
            env=settings(folder, {"PYTHONUNBUFFERED": "1", **more}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.facts: dict[str, Any] = {}
        self.output = ""
        self.errors = ""

    def __enter__(self) -> Self:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.stop()
            raise AssertionError(self.errors)
        self.facts = json.loads(line)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return str(self.facts["url"])

    def run(self, *arguments: str, more: Mapping[str, str] = NOTHING) -> subprocess.CompletedProcess[str]:
        """Run a command on this server."""
        return run_here(self.folder, *arguments, more={"PERDURE_URL": self.url, **more})

    def json(self, *arguments: str, more: Mapping[str, str] = NOTHING) -> Any:
        """Return the --json output of a successful command."""
        ended = self.run(*arguments, "--json", more=more)
        assert (ended.returncode, ended.stderr) == (0, "")
        return json.loads(ended.stdout)

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(self.url + path) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the process, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.end()

    def end(self) -> int:
        """Wait until the process has ended, and return its exit code."""
        if self.process.stdout is not None and not self.process.stdout.closed:
            output, errors = self.process.communicate()
            self.output, self.errors = self.output + output, self.errors + errors
        return int(self.process.wait())


class Terminal:
    """A command on its own terminal."""

    def __init__(
        self, folder: Path, *arguments: str, more: Mapping[str, str] = NOTHING, columns: int = 100
    ) -> None:
        self._main, ours = pty.openpty()
        fcntl.ioctl(self._main, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.output = ""
        self.process = PythonProcess(
            [*COMMAND, *arguments],
            cwd=folder,
            env=settings(folder, more),
            stdin=ours,
            stdout=ours,
            stderr=ours,
            terminal=True,
        )
        os.close(ours)

    def read_until(self, text: str) -> None:
        """Read the output up to `text`, which must come."""
        while text not in self.output:
            assert self._read(), self.output

    def press_ctrl_c(self) -> None:
        os.write(self._main, b"\x03")

    def end(self) -> int:
        """Read the rest, and return the exit code."""
        while self._read():
            pass
        os.close(self._main)
        return self.process.wait()

    def _read(self) -> bool:
        try:
            data = os.read(self._main, 65536)
        except OSError:
            # Linux reports this error after the last writer has closed its side.
            return False
        self.output += data.decode(errors="replace")
        return bool(data)

    @property
    def text(self) -> str:
        """Return the output without terminal control sequences."""
        return ESCAPE.sub("", self.output)
