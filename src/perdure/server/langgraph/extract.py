"""Paths into a thread, such as `values.messages[-1].content`, and what stands at their ends."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from perdure.kernel.errors import InvalidInput

ROOTS = ("config", "interrupts", "metadata", "values")
MAX_PATHS = 10
MAX_PATH = 1000

_PATH = re.compile(r"\w[\w-]*(\.[\w-]+|\[-?\d{1,9}\])*")
_STEP = re.compile(r"[\w-]+|\[-?\d+\]")

Path = tuple[str | int, ...]


def parse(paths: Mapping[str, str]) -> dict[str, Path]:
    """Paths by their names, in steps; InvalidInput for one that leads nowhere."""
    if len(paths) > MAX_PATHS:
        raise InvalidInput(f"extract: {len(paths)} paths; {MAX_PATHS} are the most")
    return {name: _parsed(path) for name, path in paths.items()}


def _parsed(path: str) -> Path:
    if len(path) > MAX_PATH or not _PATH.fullmatch(path):
        raise InvalidInput(f"extract: {path[:64]!r} is no path; write values.key, or values.list[-1].key")
    steps = tuple(int(step[1:-1]) if step[0] == "[" else step for step in _STEP.findall(path))
    if steps[0] not in ROOTS:
        raise InvalidInput(f"extract: the path {path[:64]!r} must begin with one of {', '.join(ROOTS)}")
    return steps


def at(record: Any, path: Path) -> Any:
    """What stands at the end of a path; None where it does not lead to anything."""
    for step in path:
        if isinstance(step, int):
            inside = isinstance(record, list) and -len(record) <= step < len(record)
        else:
            inside = isinstance(record, dict) and step in record
        if not inside:
            return None
        record = record[step]
    return record
