"""Directories and files that only this user can read: where perdure keeps what tells of its processes."""

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
    """Where the PID files are: in $XDG_RUNTIME_DIR, else in the user's cache directory."""
    return _runtime() or _at_home("XDG_CACHE_HOME", _CACHE)


def state_directory() -> Path:
    """Where the logs of servers in the background are: in $XDG_STATE_HOME, else in ~/.local/state."""
    return _at_home("XDG_STATE_HOME", _STATE)


def temporary_directory() -> Path:
    """Where the secrets of servers are, which need not outlive the machine: $XDG_RUNTIME_DIR, else /tmp."""
    return _runtime() or _of_user()


_CACHE = "Library/Caches" if sys.platform == "darwin" else ".cache"
_STATE = "Library/Logs" if sys.platform == "darwin" else ".local/state"


def _runtime() -> Path | None:
    given = os.environ.get("XDG_RUNTIME_DIR")
    return Path(given) / DIRECTORY if given and Path(given).is_dir() else None


def _at_home(variable: str, folder: str) -> Path:
    """A directory of the user; without a home directory, one for temporary files."""
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
    """Make a directory that only its owner can enter; one of somebody else is refused.

    One of this user into which nobody else could write is closed to others.
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
    """Whether it is of a kind, belongs to this user, and nobody else may use it, but as `may` says."""
    mode = status.st_mode
    return is_kind(mode) and status.st_uid == os.geteuid() and not stat.S_IMODE(mode) & 0o077 & ~may


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read, in place of an older one, all at once."""
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
