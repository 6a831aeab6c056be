"""Code of this process's own project: its folders, and the packages that it declares.

Only types of this code are revived from stored states. Folders in `sys.path` outside of the Python
installation belong to the project, and so do the folders and packages that its files name.
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
