"""The code that belongs to this process's own project: its folders, and the packages that it declares.

Only types of this code are given back from stored states. What is on the way in `sys.path` outside of the
Python installation counts as the project's, and so do the folders and packages that its files name.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import sysconfig
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_INSTALLED = (f"{os.sep}site-packages", f"{os.sep}dist-packages")
_OURS = "perdure"


class Project:
    """Which modules are the project's own."""

    def __init__(self) -> None:
        self._folders: set[str] = set()
        self._packages: set[str] = set()
        self.version = 0
        """Grows when something is added."""

    def add_folder(self, folder: str | os.PathLike[str]) -> None:
        """Code below this folder is the project's, except what is installed there."""
        self._add(self._folders, [str(Path(folder).resolve())])

    def add_packages(self, names: Iterable[str]) -> None:
        """The modules of these packages are the project's, by the names that they are imported by."""
        self._add(self._packages, names)

    def add_requirements(self, requirements: Iterable[str]) -> None:
        """The same for packages as a requirement names them: `langmem>=0.0.30`."""
        found = (_NAME.match(each.strip()) for each in requirements)
        for name in {match.group() for match in found if match is not None}:
            self.add_packages(_list_modules(name))

    def add_dependencies(self, dependencies: Iterable[str], directory: Path) -> None:
        """The `dependencies` of a `langgraph.json`: folders with what they declare, and packages."""
        for each in dependencies:
            if each.startswith("."):
                self.add_folder(directory / each)
                self.add_requirements(_declared_in((directory / each).resolve()))
            else:
                self.add_requirements([each])

    def _add(self, known: set[str], new: Iterable[str]) -> None:
        before = len(known)
        known.update(new)
        self.version += len(known) != before

    def modules(self) -> Iterator[tuple[str, ModuleType]]:
        """The project's own modules that are imported by now."""
        folders = self._all_folders()
        for name, module in list(sys.modules.items()):
            if isinstance(module, ModuleType) and self._owns(name, module, folders):
                yield name, module

    def code(self) -> Iterator[tuple[str, ModuleType]]:
        """The imported modules whose files are in the project's folders, without installed packages."""
        folders = self._all_folders()
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
        """Modules of the project were imported anew."""
        self.version += 1

    def _owns(self, name: str, module: ModuleType, folders: tuple[str, ...]) -> bool:
        top = name.partition(".")[0]
        if top == _OURS:
            return False
        if top in self._packages or name == "__main__":
            return True
        file = getattr(module, "__file__", None)
        return isinstance(file, str) and file.startswith(folders) and not is_library(file)

    def _all_folders(self) -> tuple[str, ...]:
        """Where the project's code may be, each with a separator at its end."""
        found = set(self._folders)
        # The working directory may be gone.
        with contextlib.suppress(OSError):
            found |= {os.getcwd(), *(os.path.abspath(each) for each in sys.path)}
        return tuple(each + os.sep for each in found if each != os.sep and not is_library(each))


PROJECT = Project()
"""The project of this process."""


def _get_module_path(module: ModuleType) -> str | None:
    """The file of a module, or the folder of a package without one."""
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
"""Where Python and its packages are installed."""


def is_library(path: str) -> bool:
    """Whether a file or folder belongs to Python or to an installed package."""
    return f"{path}{os.sep}".startswith(_LIBRARIES) or any(each in path for each in _INSTALLED)


def _declared_in(folder: Path) -> list[str]:
    """The packages that the files of a folder declare: `pyproject.toml` and `requirements.txt`."""
    found: list[str] = []
    try:
        if (file := folder / "pyproject.toml").is_file():
            table: Any = tomllib.loads(file.read_text(encoding="utf-8")).get("project")
            named = table.get("dependencies") if isinstance(table, dict) else None
            found += [each for each in named or () if isinstance(each, str)]
        if (file := folder / "requirements.txt").is_file():
            found += file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        logger.warning("%s: the packages that it declares cannot be read: %s", folder, error)
    return found


def _list_modules(distribution: str) -> set[str]:
    """The names by which the code of an installed package is imported."""
    try:
        files = metadata.files(distribution) or ()
    except metadata.PackageNotFoundError:
        return set()
    return {
        each.parts[0].removesuffix(".py")
        for each in files
        if each.suffix == ".py" and each.parts[0] not in ("..", "__pycache__")
    }
