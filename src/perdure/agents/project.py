"""Code of this process's own project: its folders and packages, errors of loading it, and its reimport.

Only types of this code are revived from stored states. Folders in `sys.path` outside of the Python
installation belong to the project, and so do the folders and packages that its files name.

A reimport does not affect running code: functions and classes keep their old modules, which are no longer
found by name. If the new code cannot be loaded, the old modules are restored.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import linecache
import logging
import os
import re
import sys
import sysconfig
import tomllib
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NamedTuple

from perdure.kernel.errors import PerdureError

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_INSTALLED = (f"{os.sep}site-packages", f"{os.sep}dist-packages")
_OURS = "perdure"


class Project:
    """Modules that belong to the project."""

    def __init__(self) -> None:
        self._folders: set[str] = set()
        self._packages: set[str] = set()
        self.version = 0
        """Grows when something is added."""

    def add_folder(self, folder: str | os.PathLike[str]) -> None:
        """Add a folder of the project's code; installed packages in it are excluded."""
        self._add(self._folders, [str(Path(folder).resolve())])

    def add_packages(self, names: Iterable[str]) -> None:
        """Add the modules of packages, named as they are imported."""
        self._add(self._packages, names)

    def add_requirements(self, requirements: Iterable[str]) -> None:
        """Add packages named by requirements such as `langmem>=0.0.30`."""
        matches = (_NAME.match(requirement.strip()) for requirement in requirements)
        for name in {match.group() for match in matches if match is not None}:
            self.add_packages(_list_modules(name))

    def add_dependencies(self, dependencies: Iterable[str], directory: Path) -> None:
        """Add the `dependencies` of a `langgraph.json`: packages, and folders with what they declare."""
        for dependency in dependencies:
            if dependency.startswith("."):
                self.add_folder(directory / dependency)
                self.add_requirements(_list_declared((directory / dependency).resolve()))
            else:
                self.add_requirements([dependency])

    def _add(self, names: set[str], new: Iterable[str]) -> None:
        before = len(names)
        names.update(new)
        self.version += len(names) != before

    def modules(self) -> Iterator[tuple[str, ModuleType]]:
        """Iterate the project's own modules that are imported so far."""
        folders = self._list_folders()
        for name, module in list(sys.modules.items()):
            if isinstance(module, ModuleType) and self._owns(name, module, folders):
                yield name, module

    def code(self) -> Iterator[tuple[str, ModuleType]]:
        """Iterate the imported modules in the project's folders, without installed packages."""
        folders = self._list_folders()
        for name, module in list(sys.modules.items()):
            if isinstance(module, ModuleType) and name.partition(".")[0] not in (_OURS, "__main__"):
                place = _get_module_path(module)
                if place is not None and place.startswith(folders) and not is_library(place):
                    yield name, module

    @property
    def folders(self) -> list[str]:
        """The folders that were added."""
        return sorted(self._folders)

    def reimported(self) -> None:
        """Record that modules of the project were imported again."""
        self.version += 1

    def _owns(self, name: str, module: ModuleType, folders: tuple[str, ...]) -> bool:
        top = name.partition(".")[0]
        if top == _OURS:
            return False
        if top in self._packages or name == "__main__":
            return True
        file = getattr(module, "__file__", None)
        return isinstance(file, str) and file.startswith(folders) and not is_library(file)

    def _list_folders(self) -> tuple[str, ...]:
        """Return the folders that may hold the project's code, each with a separator at its end."""
        folders = set(self._folders)
        # The working directory may have been deleted.
        with contextlib.suppress(OSError):
            folders |= {os.getcwd(), *(os.path.abspath(folder) for folder in sys.path)}
        return tuple(folder + os.sep for folder in folders if folder != os.sep and not is_library(folder))


PROJECT = Project()
"""The project of this process."""


def _get_module_path(module: ModuleType) -> str | None:
    """Return the file of a module, or the folder of a package without one."""
    file = getattr(module, "__file__", None)
    if isinstance(file, str):
        return file
    try:
        return str(next(iter(module.__path__)))
    except (AttributeError, StopIteration, TypeError):
        return None


_LIBRARIES = tuple(
    sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
"""Folders of Python and its installed packages."""


def is_library(path: str) -> bool:
    """Return whether a file or folder belongs to Python or to an installed package."""
    return f"{path}{os.sep}".startswith(_LIBRARIES) or any(mark in path for mark in _INSTALLED)


def _list_declared(folder: Path) -> list[str]:
    """Return the packages declared in a folder's `pyproject.toml` and `requirements.txt`."""
    requirements: list[str] = []
    try:
        if (file := folder / "pyproject.toml").is_file():
            table: Any = tomllib.loads(file.read_text(encoding="utf-8")).get("project")
            named = table.get("dependencies") if isinstance(table, dict) else None
            requirements += [requirement for requirement in named or () if isinstance(requirement, str)]
        if (file := folder / "requirements.txt").is_file():
            requirements += file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        logger.warning("%s: cannot read its declared packages: %s", folder, error)
    return requirements


def _list_modules(distribution: str) -> set[str]:
    """Return the names by which the code of an installed package is imported."""
    try:
        files = metadata.files(distribution) or ()
    except metadata.PackageNotFoundError:
        return set()
    return {
        file.parts[0].removesuffix(".py")
        for file in files
        if file.suffix == ".py" and file.parts[0] not in ("..", "__pycache__")
    }


OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
EXTRAS = {
    "asyncpg": "postgres",
    "claude_agent_sdk": "claude-agent",
    "grpc": "grpc",
    "langchain_core": "langgraph",
    "langgraph": "langgraph",
    "langgraph_sdk": "langgraph",
    "mcp": "mcp",
    "numpy": "vectors",
    "opentelemetry": "otel",
    "pandas": "dataframes",
    "pyarrow": "dataframes",
    "redis": "redis",
}
"""Extras of perdure by the packages that users import."""


def explain_failure(error: BaseException) -> str:
    """Describe an error of loaded code in one line: file and line, class, message."""
    if isinstance(error, PerdureError):
        return error.message
    place = find_error_place(error)
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return f"{f'{place}: ' if place else ''}{text}{_get_advice(error)}"


def find_error_place(error: BaseException) -> str | None:
    """Return file and line of the user's code that raised an error; None if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shorten_path(error.filename)}, line {error.lineno or 1}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<", OURS)) and not is_library(frame.filename)
    ]
    return f"{_shorten_path(frames[-1].filename)}, line {frames[-1].lineno}" if frames else None


def own_traceback(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error from the user's code on, without the importing code."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(("<", OURS)):
        frames = frames.tb_next
    return frames


def _shorten_path(path: str) -> str:
    """Return a path relative to the working directory, if it is below it."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):
        return path
    return path if relative.startswith("..") else relative


def _get_advice(error: BaseException) -> str:
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return ""
    package = error.name.partition(".")[0]
    if package not in EXTRAS or find_spec(package) is not None:
        return ""
    return f"; pip install 'perdure[{EXTRAS[package]}]'"


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
