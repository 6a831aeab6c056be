"""Identifiers: short random hex behind a prefix, as the Agent-lightning contract writes them."""

from __future__ import annotations

import os
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


def rollout_id(ids: Ids) -> str:
    return "ro-" + ids.hex(12)


def attempt_id(ids: Ids) -> str:
    return "at-" + ids.hex(8)


def resources_id(ids: Ids) -> str:
    return "rs-" + ids.hex(12)
