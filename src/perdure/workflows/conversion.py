"""Convert the content of a file to records, and find every mistake that the schema shows."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from perdure.kernel.checks import explain, parse_place
from perdure.workflows.checks import FileMistake
from perdure.workflows.definition import Cron, Workflow

MAX_MISTAKES: Final = 100

_UNKNOWN = re.compile(r"unknown field `([^`]+)`")
_MISSING = re.compile(r"missing required field `([^`]+)`")

Path = tuple[str | int, ...]


class Converted(NamedTuple):
    """A file as a record without its wrong values; None if too little is left."""

    definition: Workflow | Cron | None
    mistakes: list[FileMistake]

    def concerns(self, mistake: FileMistake) -> bool:
        """Return whether a later mistake may follow from a value that was left out."""
        return any(_may_cause(earlier.path, mistake) for earlier in self.mistakes)


def _may_cause(left_out: Path, later: FileMistake) -> bool:
    """Return whether a later mistake may follow from this value: same field, or the type of the phase."""
    if left_out[:2] != later.path[:2]:
        return False
    return (
        later.by_type or later.path[:1] != ("phases",) or later.path[:3] == left_out[:3] or len(left_out) < 3
    )


def convert_file(content: Mapping[str, Any]) -> Converted:
    """Convert the content of a file. Leave out wrong values, so that the others are checked too."""
    kind: type[Workflow] | type[Cron] = Cron if content.get("kind") == "cron" else Workflow
    rest = copy.deepcopy(dict(content))
    mistakes: list[FileMistake] = []
    removed: set[Path] = set()
    while len(mistakes) < MAX_MISTAKES:
        try:
            return Converted(msgspec.convert(rest, kind), mistakes)
        except msgspec.ValidationError as error:
            message = explain(error, kind, f"the {kind.__name__.lower()}")
            path = _place(error)
            missing = _MISSING.search(str(error))
            if missing is None or (*path, missing[1]) not in removed:
                mistakes.append(FileMistake(message, path))
            if not _leave_out(rest, path):
                break
            removed.add(path)
    return Converted(None, mistakes)


def _place(error: msgspec.ValidationError) -> Path:
    """Return the path that an error names, including an unknown field."""
    text, steps = parse_place(error)
    unknown = _UNKNOWN.search(text)
    return (*steps, unknown[1]) if unknown is not None else tuple(steps)


def _leave_out(content: dict[str, Any], path: Path) -> bool:
    """Remove the value at a path, or the nearest value that contains it; return False if nothing changed.

    A phase is replaced by its name, because other phases refer to the name.
    """
    holders: list[Any] = [content]
    for step in path:
        holder = holders[-1]
        if isinstance(holder, dict):
            exists = step in holder
        else:
            exists = isinstance(holder, list) and isinstance(step, int) and step < len(holder)
        if not exists:
            break
        holders.append(holder[step])
    depth = len(holders) - 1
    if not depth:
        return False
    holder, last = holders[-2], path[depth - 1]
    if depth == 2 and path[0] == "phases":
        name = holders[-1].get("name") if isinstance(holders[-1], dict) else None
        stub = {"name": name if isinstance(name, str) else f"phase-{last}", "type": "context"}
        changed = bool(holder[last] != stub)
        holder[last] = stub
        return changed
    del holder[last]
    return True
