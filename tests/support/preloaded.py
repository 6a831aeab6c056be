"""A process that loads the project's modules once and forks: `python -m tests.support.preloaded DESCRIPTOR`.

Each message on the socket carries five descriptors: stdin, stdout and stderr of the new process, one for its
exit code, and a file with its order. The answer is its pid.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import time

import msgspec

DESCRIPTORS = 5
MODULES = (
    "perdure.cli.hosting.server",
    "perdure.server.table",
    "perdure.embedding.perdure",
    "perdure.kernel.storage.postgres",
    "perdure.kernel.signals.postgres",
    "perdure.kernel.signals.redis",
    "perdure.client.lightning",
    "perdure.client.native",
    "perdure.client.run_queue",
    "perdure.langgraph.agent",
    "langchain_core.language_models.fake_chat_models",
    "langgraph.graph.message",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.lifespan.on",
    "uvloop",
    "rich.live",
    "rich.table",
    "tests.chaos.load",
    "tests.chaos.stores",
    "tests.support.history",
)


class Order(msgspec.Struct):
    """The order of a new process."""

    module: str | None
    script: str | None
    """A script to run in place of a module."""
    arguments: list[str]
    folder: str
    environment: dict[str, str]
    session: bool
    terminal: bool


def wait_for_order(control: socket.socket) -> Order | None:
    """Fork for each message. A new process returns its order; this process returns None at the end."""
    waking, woken = os.pipe()
    for descriptor in (waking, woken):
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(woken)
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([control.fileno(), waking], [], [])
        if waking in ready:
            os.read(waking, 4096)
            _report_ends(running)
        if control.fileno() in ready:
            message, descriptors, _, _ = socket.recv_fds(control, 1, DESCRIPTORS)
            if not message:
                _end_all(running)
                return None
            pid = os.fork()
            if pid == 0:
                return _become(descriptors)
            *given, status, file = descriptors
            for descriptor in (*given, file):
                os.close(descriptor)
            running[pid] = status
            control.sendall(str(pid).encode())


def _end_all(running: dict[int, int]) -> None:
    """End the remaining processes: no test waits for them, and the test run may have been killed."""
    for number, seconds in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + seconds
        while running and time.monotonic() < deadline:
            _report_ends(running)
            time.sleep(0.01)


def _report_ends(running: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            descriptor = running.pop(pid)
            with contextlib.suppress(BrokenPipeError):
                os.write(descriptor, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(descriptor)


def _become(descriptors: list[int]) -> Order:
    """Turn a fork into the ordered process, up to the module that it runs."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with os.fdopen(descriptors[-1], "rb") as file:
        file.seek(0)
        order = msgspec.json.decode(file.read(), type=Order)
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if order.session:
        os.setsid()
    if order.terminal:
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(order.folder)
    os.environ.clear()
    os.environ.update(order.environment)
    tempfile.tempdir = None
    sys.argv = [order.script or order.module or "", *order.arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(order.script)) if order.script else order.folder
    _open_streams()
    return order


def _open_streams() -> None:
    """Reopen stdin, stdout and stderr, because the old objects remember the kind of their files."""
    at_once = os.isatty(1) or "PYTHONUNBUFFERED" in os.environ
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", 1 if at_once else -1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    order = wait_for_order(control)
    if order is not None:
        control.detach()
        if order.script:
            runpy.run_path(order.script, run_name="__main__")
        elif order.module:
            runpy.run_module(order.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
