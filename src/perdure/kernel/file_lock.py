"""Locks on files. The operating system releases them when the process ends, also after a crash."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def lock(descriptor: int) -> None:
    """Lock an open file exclusively; OSError if another process has locked it."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of a file.

    The check takes a free lock for a moment, so use it only if the holder seems to be alive.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return False
    try:
        lock(descriptor)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def is_alive(pid: int) -> bool:
    """Return whether a process with this id exists; on Windows, which has no such check, always true."""
    if pid <= 0 or sys.platform == "win32":
        return pid > 0
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
