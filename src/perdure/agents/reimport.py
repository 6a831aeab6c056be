"""Import of the project's changed code in the running process.

Running code is not affected: functions and classes keep their old modules, which are no longer found by name.
If the new code cannot be loaded, the old modules are restored.
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
"""Limit of files that are checked below the folders of a project whose code cannot be loaded."""
SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})


class Stamp(NamedTuple):
    """Identity of a file's version."""

    modified: int
    size: int
    inode: int


Stamps = Mapping[Path, Stamp | None]
"""Files with their versions; None for a missing file."""


@contextmanager
def imported_anew(changed: Iterable[Path] = ()) -> Iterator[None]:
    """Import the project's code again inside the block; an error in the block restores the old modules.

    `changed` are the changed files, whose bytecode is ignored: within a second it looks unchanged.
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
        # Tracebacks show the current lines of the files.
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
    """Return the versions of files."""
    return {path: _read_stamp(path) for path in files}


def _read_stamp(path: Path) -> Stamp | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return Stamp(stat.st_mtime_ns, stat.st_size, stat.st_ino)


class ImportedFiles:
    """Files of the project's code that is imported so far."""

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
    """Return the Python files below folders, without hidden ones and those of environments."""
    files: list[Path] = []
    pending = list(folders)
    while pending and len(files) < MAX_FILES:
        try:
            entries = sorted(pending.pop().iterdir())
        except OSError:
            continue
        for entry in entries:
            if entry.name.startswith(".") or entry.name in SKIPPED or is_library(str(entry)):
                continue
            if entry.suffix == ".py":
                files.append(entry)
            elif entry.is_dir() and not entry.is_symlink():
                pending.append(entry)
    return files[:MAX_FILES]
