"""Identifiers: short random hex behind a prefix, as the Agent-lightning contract writes them."""

from __future__ import annotations

import os
from functools import cache
from typing import Protocol


class Ids(Protocol):
    """A source of identifiers; a simulation passes a seeded one."""

    def hex(self, size: int) -> str:
        """`size` random hexadecimal digits (an even number)."""
        ...


class RandomIds:
    """Identifiers from the operating system's random source."""

    def hex(self, size: int) -> str:
        return os.urandom(size // 2).hex()


def process_id() -> str:
    """Names this process and no other: pids are used again."""
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
    """A UUID of version 7: those made later sort after those made earlier, to the millisecond."""
    tail = ids.hex(20)
    stamp = format(now // 1000 & (1 << 48) - 1, "012x")
    variant = "89ab"[int(tail[3], 16) & 3]
    return "-".join((stamp[:8], stamp[8:], "7" + tail[:3], variant + tail[4:7], tail[8:]))
