"""Paths into JSON values: `title`, `authors[0].name`, `messages[-1]`, `chapters[*].text`, `{title,tags}`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

_STEP = re.compile(r"\[(?P<index>[^\]]*)\]|\{(?P<fields>[^}]*)\}|(?P<name>[^.\[\]{}]+)")

Path = tuple[tuple[str, str], ...]
"""Steps of a path, each with its kind: the `index` of a list, a `name`, or `fields` of an object."""


@lru_cache(maxsize=1024)
def parse(path: str) -> Path:
    """Parse a path; a selection of fields ends it."""
    steps = [(str(step.lastgroup), step[str(step.lastgroup)]) for step in _STEP.finditer(path)]
    kinds = [kind for kind, _ in steps]
    return tuple(steps[: kinds.index("fields") + 1] if "fields" in kinds else steps)


def find(value: Any, path: Path) -> list[Any]:
    """Return the values at a path, in order; empty if nothing is there."""
    values = [value]
    for kind, wanted in path:
        values = [below for parent in values for below in _get_children(parent, kind, wanted)]
    return values


def _get_children(value: Any, kind: str, wanted: str) -> Iterator[Any]:
    if kind == "fields":
        for name in wanted.split(","):
            yield from _field(value, name.strip())
    elif kind == "index" and isinstance(value, list):
        yield from value if wanted == "*" else _item(value, wanted)
    elif kind == "name" and wanted == "*":
        yield from value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    elif kind == "name" and isinstance(value, dict) and wanted in value:
        yield value[wanted]


def _field(value: Any, path: str) -> Iterator[Any]:
    """Return a field of a selection, which may be nested: `author.name`."""
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            return
        value = value[name]
    yield value


def _item(value: list[Any], index: str) -> Iterator[Any]:
    if index.removeprefix("-").isdecimal() and -len(value) <= int(index) < len(value):
        yield value[int(index)]
