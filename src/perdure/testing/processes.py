"""Processes that tests start: ended by pid, with their children, even if the test run itself is killed.

Run as a program, this module is a guard: it reads the pids of its parent's servers from stdin. When the
parent closes the pipe or dies, the guard ends those still alive and removes their directory. It uses only the
standard library.
"""

import atexit
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_HAS_PROC = Path("/proc/self/stat").exists()
_POLL_SECONDS = 0.01
_GUARD_SECONDS = 0.5


def alive(pid: int) -> bool:
    """Return whether a process still runs; a zombie does not."""
    return any(number == pid and not state.startswith("Z") for number, _, state in _processes(pid))


def kill_tree(pid: int, seconds: float = 30.0) -> None:
    """SIGKILL a process that we started and its children, and wait until they are gone."""
    if not alive(pid):
        return
    # A stopped process can neither fork nor reap, so no pid of a child is reused before all are killed.
    os.kill(pid, signal.SIGSTOP)
    tree = [*(child for child, parent, _ in _processes() if parent == pid), pid]
    for member in tree:
        _signal(member, signal.SIGKILL)
    if not _wait_until(lambda: not any(map(alive, tree)), seconds):
        raise TimeoutError(f"Processes {tree} did not end.")


class Guard:
    """Ends registered processes, and removes their directory, when this process closes it or dies."""

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-I", __file__, str(os.getpid()), str(directory)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def watch(self, pid: int) -> None:
        """Register a process whose command line names the directory."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % pid)
        self._process.stdin.flush()

    def close(self, seconds: float = 30.0) -> None:
        """Let the guard end the remaining processes, and wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(seconds)


_orphanage: tuple[int, subprocess.Popen[bytes]] | None = None
"""Our pid, and the guard of processes without a directory."""


def end_with_us(pid: int) -> None:
    """Register a process that we started, so that it ends with this process, even if this is killed."""
    global _orphanage
    if _orphanage is None or _orphanage[0] != os.getpid():
        command = [sys.executable, "-I", __file__, str(os.getpid())]
        guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        _orphanage = os.getpid(), guard
        atexit.register(_end_orphans, *_orphanage)
    stdin = _orphanage[1].stdin
    assert stdin is not None
    stdin.write(f"{pid} {_started(pid)}\n".encode())
    stdin.flush()


def _end_orphans(owner: int, guard: subprocess.Popen[bytes]) -> None:
    if owner == os.getpid() and guard.stdin is not None:
        guard.stdin.close()
        guard.wait()


def _started(pid: int) -> str:
    """Return the start time of a process, which identifies it beside its pid; empty if there is none."""
    if _HAS_PROC:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        except (FileNotFoundError, ProcessLookupError):
            return ""
    answer = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return "-".join(answer.stdout.split())


def _processes(pid: int | None = None) -> Iterator[tuple[int, int, str]]:
    """Yield the pid, parent's pid and state of one process or of all."""
    if not _HAS_PROC:
        yield from _listed_processes()
        return
    for entry in [Path(f"/proc/{pid}")] if pid else Path("/proc").glob("[0-9]*"):
        try:
            # The name, in parentheses, may itself contain spaces and parentheses.
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        yield int(entry.name), int(parent), state


def _listed_processes() -> Iterator[tuple[int, int, str]]:
    answer = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True
    )
    for line in answer.stdout.splitlines():
        pid, parent, state = line.split(maxsplit=2)
        yield int(pid), int(parent), state


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _command_line(pid: int) -> str:
    if _HAS_PROC:
        path = Path(f"/proc/{pid}/cmdline")
        return path.read_text(errors="replace") if path.exists() else ""
    answer = subprocess.run(
        ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return answer.stdout


def _received(parent: int) -> bytes:
    """Read what the parent sends until it closes the pipe or dies."""
    received = b""
    while True:
        # A process forked by the parent also holds the pipe open, so its end does not always close the pipe.
        orphaned = os.getppid() != parent
        if select.select([sys.stdin], [], [], 0 if orphaned else _GUARD_SECONDS)[0]:
            chunk = os.read(sys.stdin.fileno(), 4096)
            if not chunk:
                break
            received += chunk
        elif orphaned:
            break
    return received


def _guard(parent: int, directory: str) -> None:
    for pid in map(int, _received(parent).split()):
        # A pid may have been reused since; our process names the directory in its command line.
        if directory in _command_line(pid):
            _end(pid, signal.SIGQUIT)
    shutil.rmtree(directory, ignore_errors=True)


def _guard_orphans(parent: int) -> None:
    for line in _received(parent).decode().splitlines():
        pid, _, started = line.partition(" ")
        if started and _started(int(pid)) == started:
            _end(int(pid), signal.SIGTERM)


def _end(pid: int, how: signal.Signals) -> None:
    if _signal(pid, how) and not _wait_until(lambda: not alive(pid), 5.0):
        kill_tree(pid)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        _guard(int(sys.argv[1]), sys.argv[2])
    else:
        _guard_orphans(int(sys.argv[1]))
