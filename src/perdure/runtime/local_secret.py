"""The secret with which the command administers a server on the same machine, in a file of its user.

The server writes it into the runtime directory when it starts, under its address: only a process of the same
user can read it. Nothing else is needed to know who calls, so that no token can lock the operator out.
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
    """The secret of a server, while it serves."""

    def __init__(self, url: str) -> None:
        self.value = secrets.token_urlsafe(SECRET_BYTES)
        self._url = url
        self._path: Path | None = None

    def publish(self) -> None:
        """Write the file, in place of one that an earlier server at this address left behind.

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
        """Remove the file, unless it is another server's by now."""
        if self._path is not None and (found := _read(self._path)) and found.value == self.value:
            self._path.unlink(missing_ok=True)
        self._path = None


def read_local_secret(url: str) -> str | None:
    """The secret of the server at a loopback address, if it is this user's and still runs."""
    place = _place(url)
    found = _read(place) if place is not None and hasattr(os, "geteuid") else None
    return found.value if found is not None and is_alive(found.pid) else None


class _Found(NamedTuple):
    pid: int
    value: str


def _place(url: str) -> Path | None:
    """The file of a server; None if the URL is not a loopback address.

    A name is refused: another address than the server's could answer to it.
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
    """Remove the files of servers that were killed."""
    for each in directory.glob("*.secret"):
        if (found := _read(each)) is None or not is_alive(found.pid):
            each.unlink(missing_ok=True)


def _read(place: Path) -> _Found | None:
    """What a private file says."""
    try:
        if not is_private(place.parent.lstat(), stat.S_ISDIR):
            return None
        with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW), encoding="ascii") as file:
            if not is_private(os.fstat(file.fileno()), stat.S_ISREG):
                return None
            pid, _, value = file.read(MAX_FILE).strip().partition(" ")
    except (OSError, UnicodeDecodeError):
        return None
    return _Found(int(pid), value) if pid.isdecimal() and value else None
