"""Directories and files that only this user can read, for state of perdure's processes."""

from __future__ import annotations

import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

DIRECTORY = "perdure"


def runtime_directory() -> Path:
    """Return the directory of PID files: in $XDG_RUNTIME_DIR, otherwise in the user's cache directory."""
    return _runtime() or _at_home("XDG_CACHE_HOME", _CACHE)


def state_directory() -> Path:
    """Return the directory of background servers' logs: in $XDG_STATE_HOME, otherwise in ~/.local/state."""
    return _at_home("XDG_STATE_HOME", _STATE)


def temporary_directory() -> Path:
    """Return the directory of secrets, which need not survive a reboot: $XDG_RUNTIME_DIR, otherwise /tmp."""
    return _runtime() or _of_user()


_CACHE = "Library/Caches" if sys.platform == "darwin" else ".cache"
_STATE = "Library/Logs" if sys.platform == "darwin" else ".local/state"


def _runtime() -> Path | None:
    given = os.environ.get("XDG_RUNTIME_DIR")
    return Path(given) / DIRECTORY if given and Path(given).is_dir() else None


def _at_home(variable: str, folder: str) -> Path:
    """Return a directory of the user; without a home directory, one for temporary files."""
    given = os.environ.get(variable)
    if given and Path(given).is_absolute():
        return Path(given) / DIRECTORY
    try:
        home = Path.home()
    except RuntimeError:
        return _of_user()
    return home / folder / DIRECTORY if os.access(home, os.W_OK) else _of_user()


def _of_user() -> Path:
    user = os.geteuid() if hasattr(os, "geteuid") else 0
    return Path(tempfile.gettempdir()) / f"{DIRECTORY}-{user}"


def make_private(directory: Path) -> None:
    """Create a directory that only its owner can enter. Refuse a directory of another user.

    If other users can read but not write to a directory of this user, remove their permissions.
    """
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    if not hasattr(os, "geteuid"):
        return
    status = directory.lstat()
    if not is_private(status, stat.S_ISDIR, may=0o055):
        raise PermissionError(
            f"{directory} is not a private directory of this user; look at what is in it, then remove it"
        )
    if not is_private(status, stat.S_ISDIR):
        directory.chmod(0o700)


def is_private(status: os.stat_result, is_kind: Callable[[int], bool], *, may: int = 0) -> bool:
    """Return whether a file has this kind, belongs to this user, and only gives others what `may` allows."""
    mode = status.st_mode
    return is_kind(mode) and status.st_uid == os.geteuid() and not stat.S_IMODE(mode) & 0o077 & ~may


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read. Replace an older one atomically."""
    make_private(path.parent)
    new = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    try:
        with open(os.open(new, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
