"""Directories and files that only this user can read, and the secret for administration of a server in one.

The command on the same machine reads the secret from its file.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from perdure.kernel.files import is_alive

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


# --- the local secret -------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

SECRET_BYTES = 32
MAX_FILE = 256


class LocalSecret:
    """The secret of a running server."""

    def __init__(self, url: str) -> None:
        self.value = secrets.token_urlsafe(SECRET_BYTES)
        self._url = url
        self._path: Path | None = None

    def publish(self) -> None:
        """Write the file, and replace one from an earlier server at this address.

        A server beyond loopback, or one without a private directory, has no such file.
        """
        place = _place(self._url)
        if place is None or not hasattr(os, "geteuid"):
            return
        try:
            write_private(place, f"{os.getpid()} {self.value}\n")
            _remove_stale(place.parent)
        except OSError as error:
            logger.warning("the command needs a token on this machine too: %s", error)
            return
        self._path = place

    def remove(self) -> None:
        """Remove the file, unless it now belongs to another server."""
        if self._path is not None and (entry := _read(self._path)) and entry.value == self.value:
            self._path.unlink(missing_ok=True)
        self._path = None


def read_local_secret(url: str) -> str | None:
    """Return the secret of the server at a loopback address, if it runs and belongs to this user."""
    place = _place(url)
    entry = _read(place) if place is not None and hasattr(os, "geteuid") else None
    return entry.value if entry is not None and is_alive(entry.pid) else None


class _SecretFile(NamedTuple):
    pid: int
    value: str


def _place(url: str) -> Path | None:
    """Return the file of a server, or None if the URL is not a loopback address.

    Host names are refused, because they could resolve to another server's address.
    """
    parts = urlsplit(url)
    try:
        address, port = ipaddress.ip_address(parts.hostname or ""), parts.port
    except ValueError:
        return None
    if not address.is_loopback or parts.scheme != "http":
        return None
    return temporary_directory() / f"{str(address).replace(':', '_')}-{port or 80}.secret"


def _remove_stale(directory: Path) -> None:
    """Remove the files of killed servers."""
    for path in directory.glob("*.secret"):
        if (entry := _read(path)) is None or not is_alive(entry.pid):
            path.unlink(missing_ok=True)


def _read(place: Path) -> _SecretFile | None:
    """Read a private file. Return None if it is missing, malformed or not private."""
    try:
        if not is_private(place.parent.lstat(), stat.S_ISDIR):
            return None
        with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW), encoding="ascii") as file:
            if not is_private(os.fstat(file.fileno()), stat.S_ISREG):
                return None
            pid, _, value = file.read(MAX_FILE).strip().partition(" ")
    except (OSError, UnicodeDecodeError):
        return None
    return _SecretFile(int(pid), value) if pid.isdecimal() and value else None
