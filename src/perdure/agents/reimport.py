"""Imports the project's code anew, in the process that runs it.

What runs goes on with the code that it has: functions and classes keep their modules, which are only no
longer found by name. If the new code cannot be loaded, the old modules are put back.
"""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from perdure.agents.project import PROJECT, is_library

MAX_FILES = 5000
"""How many files are looked at below the folders of a project whose code cannot be loaded."""
SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})


class Stamp(NamedTuple):
    """What tells one version of a file from another."""

    modified: int
    size: int
    inode: int


Stamps = Mapping[Path, Stamp | None]
"""Files with their versions; None of one that does not exist."""


@contextmanager
def imported_anew(changed: Iterable[Path] = ()) -> Iterator[None]:
    """Import the project's code anew inside the block; an error in the block puts the old modules back.

    `changed` are the files that have changed: bytecode of two versions within a second looks the same.
    """
    for path in changed:
        _drop_bytecode(path)
    importlib.invalidate_caches()
    before = dict(PROJECT.code())
    _forget(before)
    try:
        yield
    except BaseException:
        _forget(dict(PROJECT.code()))
        sys.modules.update(before)
        raise
    finally:
        # Tracebacks show the lines of the files as they are now.
        linecache.checkcache()
        PROJECT.reimported()


def _forget(modules: Mapping[str, ModuleType]) -> None:
    for name in modules:
        sys.modules.pop(name, None)


def _drop_bytecode(path: Path) -> None:
    with suppress(OSError, NotImplementedError):
        Path(importlib.util.cache_from_source(str(path))).unlink()


# --- files ------------------------------------------------------------------------------------------------


def read_stamps(files: Iterable[Path]) -> dict[Path, Stamp | None]:
    """The versions of files."""
    return {path: _stamp(path) for path in files}


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return Stamp(found.st_mtime_ns, found.st_size, found.st_ino)


class ImportedFiles:
    """The files of the project's code that is imported by now."""

    def __init__(self) -> None:
        self._version = (0, 0)
        self._found: list[Path] = []

    def now(self) -> list[Path]:
        version = (len(sys.modules), PROJECT.version)
        if version != self._version:
            files = (getattr(module, "__file__", None) for _, module in PROJECT.code())
            self._found = [Path(file) for file in files if isinstance(file, str)]
            self._version = version
        return self._found


def files_below(folders: Iterable[Path]) -> list[Path]:
    """The Python files below folders, without those of environments and hidden ones."""
    found: list[Path] = []
    pending = list(folders)
    while pending and len(found) < MAX_FILES:
        try:
            entries = sorted(pending.pop().iterdir())
        except OSError:
            continue
        for entry in entries:
            if entry.name.startswith(".") or entry.name in SKIPPED or is_library(str(entry)):
                continue
            if entry.suffix == ".py":
                found.append(entry)
            elif entry.is_dir() and not entry.is_symlink():
                pending.append(entry)
    return found[:MAX_FILES]
