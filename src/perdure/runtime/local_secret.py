"""The secret for administration of a server by the command on the same machine, in a file.

The server writes the file at its start to the runtime directory, with its address as the name. Only processes
of the same user can read it. It identifies the caller by itself, so that no token can lock the operator out.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import stat
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from perdure.kernel.file_lock import is_alive
from perdure.runtime.private_files import is_private, temporary_directory, write_private

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
