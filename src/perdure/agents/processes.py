"""Processes of agents, each in its own group, without perdure's secrets, and killed with its group."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from perdure.agents.confinement import NOT_CONFINED, Confinement, confine
from perdure.agents.context import AgentError
from perdure.kernel.config import secret_variables
from perdure.kernel.errors import InvalidInput

NOT_STARTED: Final = "ConfinementRefused"
"""Error of a command that cannot be confined as required."""
LOOK_SECONDS: Final = 0.05
CHUNK: Final = 1 << 16
STREAM_LIMIT: Final = 1 << 16
GRACE_SECONDS: Final = 1.0
"""Time of a command between SIGTERM and SIGKILL."""
LAST_SECONDS: Final = 1.0
"""Time to read the output after the end of a command, because a child process may keep the pipe open."""


async def start_process(
    argv: Sequence[str],
    *,
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str],
    stdin: int = asyncio.subprocess.PIPE,
    limit: int = STREAM_LIMIT,
    confinement: Confinement = NOT_CONFINED,
) -> asyncio.subprocess.Process:
    """Start a process in its own group, confined as required; AgentError if that fails."""
    pipe = asyncio.subprocess.PIPE
    variables = environment(env)
    if confinement.sandbox or confinement.user is not None:
        try:
            confined = await asyncio.to_thread(confine, argv, cwd, variables, confinement)
        except (InvalidInput, OSError) as error:
            reason = error.message if isinstance(error, InvalidInput) else str(error)
            raise AgentError(f"cannot execute {argv[0]!r}: {reason}", error=NOT_STARTED) from error
        argv, cwd, variables = confined
    try:
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=stdin,
            stdout=pipe,
            stderr=pipe,
            limit=limit,
            cwd=cwd,
            env=variables,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise AgentError(f"cannot start {argv[0]!r}: {reason}", error=type(error).__name__) from error


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the worker's environment without perdure's secrets, and the given variables."""
    secret = secret_variables()
    return {name: text for name, text in os.environ.items() if name not in secret} | dict(given)


async def wait_for_exit(
    process: asyncio.subprocess.Process, seconds: float, meanwhile: Awaitable[object]
) -> int | None:
    """Return the exit code of a process, or None if it still runs after `seconds`.

    `meanwhile` reads its output, so that it does not block on writing.
    """
    clock = asyncio.get_running_loop()
    deadline = clock.time() + seconds
    waiting = asyncio.ensure_future(process.wait())
    reading = asyncio.ensure_future(meanwhile)
    try:
        # If a child process keeps the pipes open, asyncio does not report the exit.
        while process.returncode is None and (left := deadline - clock.time()) > 0:
            await asyncio.wait([waiting], timeout=min(left, LOOK_SECONDS))
        return process.returncode
    finally:
        for task in (waiting, reading):
            task.cancel()
        await asyncio.wait([waiting, reading])


def signal_group(process: asyncio.subprocess.Process, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to the process group: the process and its child processes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, number)
        elif process.returncode is None:
            process.kill()


def signal_inside(leader: int, number: signal.Signals) -> None:
    """Send a signal to the members of a group except its leader, which is the sandbox around them."""
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal() and int(entry.name) != leader:
            with contextlib.suppress(OSError, IndexError):
                with open(f"/proc/{entry.name}/stat", "rb") as file:
                    group = int(file.read().rpartition(b")")[2].split()[2])
                if group == leader:
                    os.kill(int(entry.name), number)


def how_it_ended(code: int | None) -> str:
    """Describe in words how a process ended."""
    if code is None:
        return "closed its stdout and did not end"
    if code >= 0:
        return f"exited with {code}"
    names = {number.value: number.name for number in signal.Signals}
    return f"was killed by {names.get(-code, f'signal {-code}')}"


def exit_code(code: int) -> int:
    """Return an exit code as a shell does: 128 plus the number of the signal that killed the process."""
    return code if code >= 0 else 128 - code


# --- commands whose output is all that is wanted ----------------------------------------------------------


class Captured(NamedTuple):
    """Exit code and output of a command."""

    code: int
    stdout: str
    stderr: str
    how: str


class Kept:
    """Beginning and end of a process's output, in at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit // 4
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        room = self._head_limit - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        over = len(self._tail) - self._tail_limit
        # The tail may grow to twice its limit before it is cut, so that long outputs are not copied all the
        # time.
        if over > self._tail_limit:
            self._drop(over)

    def _drop(self, count: int) -> None:
        del self._tail[:count]
        self._dropped += count

    def text(self) -> str:
        """The kept output, with a mark where something is missing."""
        over = len(self._tail) - self._tail_limit
        if over > 0:
            self._drop(over)
        head, tail = (bytes(part).decode("utf-8", "replace") for part in (self._head, self._tail))
        if self._dropped:
            return f"{head}\n…[truncated {self._dropped} bytes]\n{tail}"
        return bytes(self._head + self._tail).decode("utf-8", "replace")


async def run_captured(
    argv: Sequence[str],
    *,
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str],
    limit: int,
    timeout: float | None = None,
    confinement: Confinement = NOT_CONFINED,
) -> Captured:
    """Run a command to its end. If it takes too long or is cancelled, it is killed with its children."""
    process = await start_process(
        argv, cwd=cwd, env=env, stdin=asyncio.subprocess.DEVNULL, confinement=confinement
    )
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = Kept(limit), Kept(limit)
    reading = asyncio.gather(_read(process.stdout, out), _read(process.stderr, err))
    try:
        async with asyncio.timeout(timeout):
            await _wait_for_end(process, reading)
    except TimeoutError as error:
        raise AgentError(
            f"it took longer than {timeout:g} s", error="TimeoutError", output=out.text() or None
        ) from error
    finally:
        await _end(process, reading, inside=confinement.sandbox)
    code = process.returncode or 0
    return Captured(exit_code(code), out.text(), err.text(), how_it_ended(code))


async def _read(stream: asyncio.StreamReader, kept: Kept) -> None:
    while data := await stream.read(CHUNK):
        kept.add(data)


async def _wait_for_end(process: asyncio.subprocess.Process, reading: asyncio.Future[Any]) -> None:
    """Wait until the process has ended and its output was read."""
    while process.returncode is None and not reading.done():
        await asyncio.wait([reading], timeout=LOOK_SECONDS)
    if process.returncode is None:
        await process.wait()
    # A child process in the background may keep the pipes open for ever.
    await asyncio.wait([reading], timeout=LAST_SECONDS)


async def _end(process: asyncio.subprocess.Process, reading: asyncio.Future[Any], *, inside: bool) -> None:
    """End the process and its child processes, first by SIGTERM; `inside` is true in a sandbox."""
    try:
        if process.returncode is None:
            if inside:
                await asyncio.to_thread(signal_inside, process.pid, signal.SIGTERM)
            else:
                signal_group(process, signal.SIGTERM)
            await asyncio.wait([asyncio.ensure_future(process.wait())], timeout=GRACE_SECONDS)
    finally:
        signal_group(process)
        if process.returncode is None:
            await asyncio.wait([asyncio.ensure_future(process.wait())], timeout=GRACE_SECONDS)
        reading.cancel()
        await asyncio.wait([reading])
        process._transport.close()  # type: ignore[attr-defined]
