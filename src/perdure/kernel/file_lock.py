"""Locks on files, which the operating system drops when their process ends, however it ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def lock(descriptor: int) -> None:
    """Lock an open file for this process alone; OSError if another one has locked it."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file.

    To find out, an unheld lock is taken for a moment: ask only if its holder seems to be alive.
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
    """Whether there is a process with this id; on Windows, which cannot be asked, there always is."""
    if pid <= 0 or sys.platform == "win32":
        return pid > 0
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
