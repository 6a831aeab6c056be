"""Which texts of a value a path names: `title`, `authors[0].name`, `chapters[*].text`, `{title,tags}` or `$`.

What is a number or a truth value is a text as Python writes it, and an object or a list as its JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

WHOLE = "$"
_STEP = re.compile(r"\[(?P<at>[^\]]*)\]|\{(?P<fields>[^}]*)\}|(?P<name>[^.\[\]{}]+)")


def texts_at(value: Any, path: str) -> list[str]:
    """The texts that stand at a path, in their order; none where there is nothing."""
    if path in ("", WHOLE):
        return [_json(value)]
    found = [value]
    for step in _steps(path):
        found = [below for each in found for below in _below(each, step)]
    return [text for each in found for text in _text(each)]


@lru_cache(maxsize=1024)
def _steps(path: str) -> tuple[tuple[str, str], ...]:
    """Each step with what it is: `at` in a list, a `name`, or `fields` of an object, which is the last."""
    steps = [(str(step.lastgroup), step[str(step.lastgroup)]) for step in _STEP.finditer(path)]
    kinds = [kind for kind, _ in steps]
    return tuple(steps[: kinds.index("fields") + 1] if "fields" in kinds else steps)


def _below(value: Any, step: tuple[str, str]) -> Iterator[Any]:
    kind, wanted = step
    if kind == "fields":
        for name in wanted.split(","):
            yield from _named(value, name.strip())
    elif kind == "at" and isinstance(value, list):
        yield from value if wanted == "*" else _placed(value, wanted)
    elif kind == "name" and wanted == "*":
        yield from value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    elif kind == "name" and isinstance(value, dict) and wanted in value:
        yield value[wanted]


def _named(value: Any, path: str) -> Iterator[Any]:
    """A field of a selection, which may itself lead through objects."""
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            return
        value = value[name]
    yield value


def _placed(value: list[Any], place: str) -> Iterator[Any]:
    if place.removeprefix("-").isdecimal() and -len(value) <= int(place) < len(value):
        yield value[int(place)]


def _text(value: Any) -> list[str]:
    if value is None:
        return []
    return [_json(value) if isinstance(value, dict | list) else str(value)]


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
