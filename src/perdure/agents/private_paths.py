"""Files that no sandbox shows: settings, secrets, databases, state, and the home of the user."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from perdure.kernel.config import FILE_NAME, Settings, config_file, secret_variables
from perdure.kernel.errors import InvalidInput

MAX_ENTRIES: Final = 5000
"""Limit of names beside private files, because each of them is mounted separately."""
MAX_WALK: Final = 50_000
MAX_DEPTH: Final = 6
BEGINNING: Final = "*"
"""Ends a path that stands for all files with this beginning, such as a database and its write-ahead log."""
_NOT_SEARCHED: Final = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__"})
_OF_SERVICES: Final = ("/etc/perdure",)
"""Folder of keys in the documented systemd units."""
_FOLDERS_OF_USER: Final = ("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")


def list_private_paths(settings: Settings, *more: str | None) -> tuple[str, ...]:
    """Return the private files and folders of the settings, and further ones."""
    paths: list[str | None] = [
        str(config_file()),
        settings.tls_key_file,
        settings.state_dir,
        settings.backup_dir,
    ]
    scheme, separator, rest = settings.database_url.partition("://")
    if scheme == "sqlite" or not separator:
        file = (rest.removeprefix("/") if separator else settings.database_url).partition("?")[0]
        paths += [unquote(file) + BEGINNING] if file and file != "memory:" else []
    return tuple(os.path.abspath(path) for path in (*paths, *more) if path)


class PrivatePaths:
    """Private paths of a process, and mounts of folders without them."""

    def __init__(
        self,
        paths: Iterable[str] = (),
    ) -> None:
        files = [os.environ.get(name) for name in secret_variables() if name.endswith("_FILE")]
        folders = [os.environ.get(name) for name in _FOLDERS_OF_USER]
        services = filter(os.path.lexists, _OF_SERVICES)
        named = [path for path in (*paths, *services, *files, *folders) if path and path != "/"]
        self._paths = {os.path.abspath(path) for path in named} | {os.path.realpath(path) for path in named}
        self._beginnings = tuple(
            path.removesuffix(BEGINNING) for path in self._paths if path.endswith(BEGINNING)
        )
        self._home = os.path.realpath(os.path.expanduser("~"))
        self._left = MAX_ENTRIES
        self._made: set[str] = {"/"}

    def may_show(self, folder: str) -> bool:
        """Return whether a folder is not private and not above the user's home."""
        return folder not in self._paths and not Path(self._home).is_relative_to(folder)

    def check_project(self, project: str) -> None:
        """Refuse a project that is the user's home, a private folder, or a folder above one of the user's."""
        if not self.may_show(project):
            raise InvalidInput(
                f"a sandbox cannot show the project {project}, because it is a private folder or has the "
                "home of the user in it: start perdure in a folder of the project's own"
            )

    def search(self, folder: str) -> None:
        """Find the files of a folder that hold settings and secrets, by name."""
        self._paths.update(_find_private_files(folder))

    def bind(self, path: str) -> Iterator[str]:
        """Return the options that mount a file or folder read-only without its private files."""
        if path in self._paths or path.startswith(self._beginnings):
            return
        yield from self.make_way(path)
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        elif not os.path.isdir(path) or not self._has_private(path):
            yield from ("--ro-bind-try", path, path)
        else:
            yield from self.make_way(os.path.join(path, "."))
            for name in self._list_names(path):
                yield from self.bind(os.path.join(path, name))

    def make_way(self, path: str) -> Iterator[str]:
        """Return the options that create the folders above a path, which every user may enter."""
        for folder in reversed(Path(os.path.dirname(path)).parents):
            yield from self._make(str(folder))
        yield from self._make(os.path.dirname(path))

    def _make(self, folder: str) -> Iterator[str]:
        if folder not in self._made:
            self._made.add(folder)
            yield from ("--perms", "0755", "--dir", folder)

    def _has_private(self, folder: str) -> bool:
        return any(Path(path).is_relative_to(folder) for path in self._paths)

    def _list_names(self, folder: str) -> list[str]:
        try:
            with os.scandir(folder) as entries:
                names = sorted(entry.name for entry in islice(entries, self._left + 1))
        except OSError:
            return []
        self._left -= len(names)
        if self._left < 0:
            raise InvalidInput(
                f"a sandbox cannot show {folder}: more than {MAX_ENTRIES} names are beside private files; "
                "move the private files into a folder of their own"
            )
        return names


def _find_private_files(project: str) -> Iterator[str]:
    """Return the files of a folder with settings and secrets: `perdure.toml`, `.env`, `.env.local`."""
    left = MAX_WALK
    for folder, folders, files in os.walk(project):
        left -= len(files) + len(folders)
        depth = len(Path(folder).relative_to(project).parts)
        if left < 0:
            raise InvalidInput(f"a sandbox cannot show {project}: it has more than {MAX_WALK} files")
        folders[:] = [name for name in folders if name not in _NOT_SEARCHED and depth < MAX_DEPTH]
        for name in (*files, *folders):
            if name == FILE_NAME or name == ".env" or name.startswith(".env."):
                yield os.path.join(folder, name)
