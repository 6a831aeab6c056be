"""Locks on files, and folders below a root that only their owner can enter.

The operating system releases a lock when the process ends, also after a crash.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

# --- locks ------------------------------------------------------------------------------------------------


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


# --- folders ----------------------------------------------------------------------------------------------


def make_folder(folder: Path, root: Path) -> None:
    """Create a folder below the root, accessible only to its owner; refuse links out of the root."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for ancestor in (*reversed(folder.parents), folder):
        if ancestor.is_relative_to(root) and ancestor != root and not ancestor.is_dir():
            ancestor.mkdir(mode=0o700, exist_ok=True)
            # Files are durable only if the names of their folders are.
            sync_folder(ancestor.parent)
    if not folder.resolve().is_relative_to(root.resolve()):
        raise OSError(errno.ELOOP, "a link leads out of its folder", str(folder))


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
