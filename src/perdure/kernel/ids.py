"""Identifiers: short random hex after a prefix, in the form of the Agent-lightning contract."""

from __future__ import annotations

import os
import re
import threading
from functools import cache
from hashlib import sha256
from typing import Protocol

_BASE32 = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_ULID_MS = (1 << 48) - 1


class Ids(Protocol):
    """Source of identifiers; simulations pass a seeded one."""

    def hex(self, size: int) -> str:
        """Return `size` random hexadecimal digits (an even number)."""
        ...


class RandomIds:
    """Identifiers from the operating system's random source."""

    def hex(self, size: int) -> str:
        return random_bytes(size // 2).hex()


POOL_BYTES = 4096
"""Bytes per read of the system's random source, because every read releases the GIL."""


class _Pool(threading.local):
    """Unused random bytes of a thread."""

    data = b""
    at = 0


_pool = _Pool()


def random_bytes(count: int) -> bytes:
    """Return random bytes of the operating system; no byte is returned twice."""
    start, stop = _pool.at, _pool.at + count
    if stop > len(_pool.data):
        if count > POOL_BYTES:
            return os.urandom(count)
        _pool.data, start, stop = os.urandom(POOL_BYTES), 0, count
    _pool.at = stop
    return _pool.data[start:stop]


def _forget_pool() -> None:
    """Drop the pool in a forked process, which must not repeat its parent's bytes."""
    _pool.data, _pool.at = b"", 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def process_id() -> str:
    """Return the unique id of this process; PIDs are reused."""
    return _process_id(os.getpid())


@cache
def _process_id(pid: int) -> str:
    return RandomIds().hex(16)


def rollout_id(ids: Ids) -> str:
    return "ro-" + ids.hex(12)


def attempt_id(ids: Ids) -> str:
    return "at-" + ids.hex(8)


def resources_id(ids: Ids) -> str:
    return "rs-" + ids.hex(12)


def uuid(now: int, ids: Ids) -> str:
    """Build a UUID of version 7; later UUIDs sort after earlier ones, to the millisecond."""
    tail = ids.hex(20)
    stamp = format(now // 1000 & (1 << 48) - 1, "012x")
    variant = "89ab"[int(tail[3], 16) & 3]
    return "-".join((stamp[:8], stamp[8:], "7" + tail[:3], variant + tail[4:7], tail[8:]))


def uuid_bytes(text: str) -> bytes | None:
    """Parse a UUID in its canonical form to 16 bytes; None for any other text."""
    try:
        data = bytes.fromhex(text.replace("-", "")) if len(text) == 36 else b""
    except ValueError:
        return None
    return data if uuid_text(data) == text else None


def uuid_text(data: bytes) -> str:
    """Format 16 bytes as a UUID in its canonical form."""
    text = data.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


# --- ULIDs ------------------------------------------------------------------------------------------------


def ulid(ms: int, ids: Ids) -> str:
    """Build a ULID of a time in milliseconds: 26 characters that sort by time."""
    return _format_ulid(ms, int(ids.hex(20), 16))


def derived_ulid(ms: int, *parts: str) -> str:
    """Build a ULID of a time and these texts; equal texts give equal ULIDs."""
    digest = sha256(b"\0".join(part.encode("utf-8", "replace") for part in parts)).digest()
    return _format_ulid(ms, int.from_bytes(digest[:10], "big"))


def parse_ulid(text: str) -> str | None:
    """Return a ULID in upper case; None if the text is no ULID."""
    upper = text.upper()
    return upper if _ULID.fullmatch(upper) else None


def ulid_ms(ulid: str) -> int:
    """Return the time of a ULID in milliseconds."""
    number = 0
    for letter in ulid[:10]:
        number = number << 5 | _BASE32.index(letter)
    return number


def _format_ulid(ms: int, chance: int) -> str:
    number = (ms & _ULID_MS) << 80 | chance
    return "".join(_BASE32[number >> shift & 31] for shift in range(125, -1, -5))
