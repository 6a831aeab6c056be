"""The paths of `extract` into a thread, such as `values.messages[-1].content`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from perdure.kernel import jsonpath
from perdure.kernel.errors import InvalidInput
from perdure.kernel.jsonpath import Path

ROOTS = ("config", "interrupts", "metadata", "values")
MAX_PATHS = 10
MAX_PATH = 1000

_PATH = re.compile(r"\w[\w-]*(\.[\w-]+|\[-?\d{1,9}\])*")


def parse(paths: Mapping[str, str]) -> dict[str, Path]:
    """Paths by their names; InvalidInput for one that no thread could have."""
    if len(paths) > MAX_PATHS:
        raise InvalidInput(f"extract: {len(paths)} paths; {MAX_PATHS} are the most")
    return {name: _parsed(path) for name, path in paths.items()}


def _parsed(path: str) -> Path:
    if len(path) > MAX_PATH or not _PATH.fullmatch(path):
        raise InvalidInput(f"extract: {path[:64]!r} is no path; write values.key, or values.list[-1].key")
    steps = jsonpath.parse(path)
    if steps[0][1] not in ROOTS:
        raise InvalidInput(f"extract: the path {path[:64]!r} must begin with one of {', '.join(ROOTS)}")
    return steps


def at(record: Any, path: Path) -> Any:
    """The value at a path; None if it leads nowhere."""
    return next(iter(jsonpath.find(record, path)), None)
