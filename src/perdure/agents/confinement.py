"""Confinement of commands and isolated agents: in a sandbox without private files, or as another user.

A process of the server's user can read the database, settings and secrets of the server. In the bubblewrap
sandbox a process sees the programs of the system, the project without its private files, and its own
workspace. It has no network, unless the network is allowed. A server that runs as root executes the process
as another user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args
from urllib.parse import unquote

import msgspec

from perdure.agents.project import PROJECT
from perdure.kernel.config import FILE_NAME, Settings, config_file, secret_variables
from perdure.kernel.errors import InvalidInput

MAX_ENTRIES: Final = 5000
"""Maximum number of names in folders with private files: the sandbox mounts each name separately."""
MAX_WALK: Final = 50_000
MAX_DEPTH: Final = 6
BEGINNING: Final = "*"
"""Suffix of a path that matches every file with this prefix, such as a database and its write-ahead log."""
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
    """Private paths of a process. It builds the mounts that hide these paths."""

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
        """Refuse a project that is a private folder or the user's home, or that contains the home."""
        if not self.may_show(project):
            raise InvalidInput(
                f"a sandbox cannot show the project {project}, because it is a private folder or contains "
                "the home of the user: start perdure in a folder that contains only the project"
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
        """Return the options that create the parent folders of a path, with permission for all users."""
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
                f"a sandbox cannot show {folder}: folders with private files have more than {MAX_ENTRIES} "
                "names; move the private files into a separate folder"
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


BUBBLEWRAP: Final = "bubblewrap"
SandboxName = Literal["bubblewrap"]
SandboxChoice = Literal["bubblewrap", "none"]

NO_SANDBOX: Final = "none"
SANDBOXES: Final[tuple[SandboxChoice, ...]] = get_args(SandboxChoice)

NOBODY: Final = "nobody"
NOBODY_ID: Final = 65_534
MAX_USER_ID: Final = (1 << 31) - 1
PROBE_SECONDS: Final = 20.0
SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc")
"""Folders of the system that a command can read."""
TEMPORARY: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - folders of the sandbox
_NAMES: Final = "/etc/resolv.conf"
_OURS: Final = str(Path(__file__).resolve().parent.parent)
_LEFT_OUT: Final = ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME", "PERDURE_CONFIG", "TMPDIR")
"""Variables that name files and folders missing in the sandbox."""


class CommandUser(NamedTuple):
    """The user that executes a command."""

    uid: int
    gid: int
    name: str
    home: str


class Confinement(msgspec.Struct, frozen=True, kw_only=True):
    """Confinement of one process. Without a sandbox and a user it is not confined."""

    sandbox: bool = False
    required: bool = False
    """True if the phase requires the sandbox, so that an agent without it is refused."""
    network: bool = False
    user: str | None = None
    """Name or number of a user; needs a server that runs as root."""
    writable: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    project: str | None = None
    private: tuple[str, ...] = ()
    """Files and folders that the sandbox never shows."""
    variables: tuple[tuple[str, str], ...] = ()
    """Variables that replace the settings missing in the sandbox."""

    def for_command(
        self,
        sandbox: SandboxChoice | None,
        *,
        network: bool,
        user: str | None,
        project: str | os.PathLike[str] | None,
    ) -> Confinement:
        """Return the confinement with an agent's own settings; the requirements of its phase stay."""
        is_inside = self.required or sandbox == BUBBLEWRAP or (self.sandbox and sandbox is None)
        return msgspec.structs.replace(
            self,
            sandbox=is_inside,
            network=self.network or network,
            user=user or self.user,
            project=self.project if project is None else os.fspath(project),
        )

    def showing(self, *places: str) -> Confinement:
        """Return the confinement with more files or folders that the process can read."""
        return msgspec.structs.replace(self, readable=(*self.readable, *places))

    @property
    def owner(self) -> CommandUser | None:
        """Return the user of the process; None if it keeps that of the server."""
        if self.user is not None:
            return find_user(self.user)
        return find_user(NOBODY) if self.sandbox and _is_root() else None


class ConfinedCommand(NamedTuple):
    """A command with the prefix that confines it."""

    argv: list[str]
    cwd: str | None
    env: dict[str, str]


NOT_CONFINED: Final = Confinement()


def get_confinement(ctx: object) -> Confinement:
    """Return the confinement of an attempt; none for a context that no worker created."""
    confinement = getattr(ctx, "confinement", None)
    return confinement if isinstance(confinement, Confinement) else NOT_CONFINED


def confine(
    argv: Sequence[str],
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str],
    confinement: Confinement,
) -> ConfinedCommand:
    """Prefix a command with its confinement; InvalidInput says why that is not possible."""
    user = confinement.owner
    directory = None if cwd is None else os.fspath(cwd)
    if user is not None:
        for place in confinement.writable:
            _change_owner(place, user)
        for place in confinement.readable:
            _make_readable(place, user)
        if not confinement.sandbox:
            for place in confinement.writable:
                _open_parents(place)
    if not confinement.sandbox:
        if user is None:
            return ConfinedCommand(list(argv), directory, dict(env))
        own = {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}
        return ConfinedCommand([*_become(user, directory or os.getcwd()), *argv], None, {**env, **own})
    check_sandbox()
    directory = os.path.realpath(directory or confinement.project or os.getcwd())
    inside = {name: value for name, value in env.items() if name not in _LEFT_OUT}
    inside |= {**dict(confinement.variables), "HOME": TEMPORARY[0], "TMPDIR": TEMPORARY[0]}
    start = [*_unshare(network=confinement.network, drops=user is not None), *_bind_all(confinement)]
    start += ["--remount-ro", "/"]
    if user is None:
        return ConfinedCommand([*start, "--chdir", directory, "--", *argv], None, inside)
    return ConfinedCommand([*start, "--chdir", "/", "--", *_become(user, directory), *argv], None, inside)


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


# --- another user -----------------------------------------------------------------------------------------


def find_user(given: str) -> CommandUser:
    """Return the user of a name or number; InvalidInput if a command cannot be executed as that user."""
    if not _is_root():
        raise InvalidInput(f"uid {given} needs a server that runs as root: only root can change the user")
    import pwd  # Windows has no such module.

    try:
        entry = pwd.getpwuid(int(given)) if given.isdecimal() else pwd.getpwnam(given)
        user = CommandUser(entry.pw_uid, entry.pw_gid, entry.pw_name, entry.pw_dir)
    except (KeyError, OverflowError):
        if given == NOBODY:
            user = CommandUser(NOBODY_ID, NOBODY_ID, NOBODY, "/")
        elif given.isdecimal() and int(given) <= MAX_USER_ID:
            user = CommandUser(int(given), int(given), given, "/")
        else:
            raise InvalidInput(f"uid {given[:64]!r} is not a user of this machine") from None
    if user.uid == 0 or user.gid == 0:
        raise InvalidInput(f"uid {given} has the rights of root; name another user")
    return user


def _become(user: CommandUser, directory: str) -> list[str]:
    """Return the prefix that becomes the user and enters the directory."""
    launcher = os.path.join(_OURS, "agents", "as_user.py")
    return [sys.executable, "-I", "-S", launcher, str(user.uid), str(user.gid), directory]


def _change_owner(folder: str, user: CommandUser) -> None:
    """Change the owner of a folder if root owns it. The files in the folder keep their owners."""
    status = os.lstat(folder)
    if status.st_uid == 0:
        os.chown(folder, user.uid, user.gid, follow_symlinks=False)


def _make_readable(folder: str, user: CommandUser) -> None:
    """Let a user read a new folder of this process, and the files in it."""
    for place in (folder, *(os.path.join(folder, name) for name in os.listdir(folder))):
        os.chown(place, user.uid, user.gid, follow_symlinks=False)


def _open_parents(workspace: str) -> None:
    """Let other users pass through the folder of workspaces and its parent, which they still cannot list."""
    for folder in list(Path(workspace).parents)[:2]:
        status = folder.lstat()
        if status.st_uid == 0 and not status.st_mode & 0o001:
            folder.chmod(status.st_mode & 0o7777 | 0o011)


# --- the sandbox ------------------------------------------------------------------------------------------


def check_sandbox() -> None:
    """Test the sandbox, which a container may forbid; InvalidInput says why it does not work."""
    _probe(os.environ.get("PATH"))


@cache
def _probe(path: str | None) -> None:
    """Test the sandbox with the programs of a path; only success is cached."""
    reason = _find_failure()
    if reason is not None:
        raise InvalidInput(f"the sandbox bubblewrap does not work here: {reason}")


def _find_failure() -> str | None:
    """Return why the sandbox does not start; None if it does."""
    if sys.platform != "linux":
        return "it needs Linux"
    if shutil.which("bwrap") is None:
        return "there is no program bwrap; install the package bubblewrap"
    user = find_user(NOBODY) if _is_root() else None
    nothing = PrivatePaths()
    shown = [*_build_system_mounts(nothing), *_list_python_links(nothing)]
    command = [*_unshare(network=False, drops=user is not None), *shown]
    command += ["--chdir", "/", "--", *(_become(user, "/") if user is not None else ()), "true"]
    try:
        ended = subprocess.run(  # noqa: S603 - our own command
            command, capture_output=True, timeout=PROBE_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bwrap cannot be started: {error}"
    if ended.returncode == 0:
        return None
    lines = ended.stderr.decode(errors="replace").strip().splitlines()
    why = lines[-1][:300] if lines else f"bwrap exited with {ended.returncode}"
    return f"{why}; containers and some systems forbid the namespaces that it needs"


def _unshare(*, network: bool, drops: bool) -> list[str]:
    """Return the bubblewrap command: new namespaces, and no capabilities, except those to change the user."""
    program = shutil.which("bwrap") or "bwrap"
    # bwrap stays root to mount folders that other users cannot enter; `as_user.py` changes the user inside.
    rights = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"] if drops else ["--unshare-user"]
    apart = ["--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    if not network:
        apart.append("--unshare-net")
    own = ["--proc", "/proc", "--dev", "/dev"]
    for folder in TEMPORARY:
        own += ["--perms", "1777", "--tmpfs", folder]
    return [program, *apart, "--cap-drop", "ALL", *rights, "--die-with-parent", *own]


def _bind_all(confinement: Confinement) -> Iterator[str]:
    project = os.path.realpath(confinement.project or os.getcwd())
    private = PrivatePaths(confinement.private)
    private.check_project(project)
    yield from _build_system_mounts(private)
    yield from _list_python_links(private)
    covered = [*SYSTEM, *_python_folders()]
    # Import paths belong to the project too, unless they are in private folders.
    for entry in (project, *PROJECT.folders, *sys.path):
        folder = os.path.realpath(entry) if entry else project
        is_new = not any(Path(folder).is_relative_to(known) for known in covered)
        if is_new and os.path.isdir(folder) and private.may_show(folder):
            covered.append(folder)
            private.search(folder)
            yield from private.bind(folder)
    if confinement.network and os.path.islink(_NAMES) and os.path.isfile(names := os.path.realpath(_NAMES)):
        yield from (*private.make_way(names), "--ro-bind", names, names)
    for place in confinement.readable:
        yield from (*private.make_way(place), "--ro-bind", place, place)
    for place in confinement.writable:
        yield from (*private.make_way(place), "--bind-try", place, place)


def _build_system_mounts(private: PrivatePaths) -> Iterator[str]:
    for folder in SYSTEM:
        if os.path.lexists(folder):
            yield from private.bind(folder)


def _python_folders() -> list[str]:
    """Return the folders of this Python, its packages and perdure."""
    found = (sys.prefix, sys.base_prefix, sys.exec_prefix, _OURS)
    return [folder for folder in dict.fromkeys(found) if not Path(folder).is_relative_to("/usr")]


def _list_python_links(private: PrivatePaths) -> Iterator[str]:
    for folder in _python_folders():
        yield from private.bind(folder)
        real = os.path.realpath(folder)
        if real != folder:
            yield from private.bind(real)
