"""Agents named by configuration: the table `[perdure.agents]` of `perdure.toml`, and `langgraph.json`.

Only code that the operator's own files name is imported, never a stored name.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from perdure.agents.commands import Command, isolated
from perdure.agents.confinement import BUBBLEWRAP, SandboxChoice
from perdure.agents.project import PROJECT, explain_failure, own_traceback
from perdure.agents.records import DEFAULT_TIMEOUT, GRAPH_TIMEOUT
from perdure.kernel.config import Settings
from perdure.kernel.errors import InvalidInput, PerdureError

T = TypeVar("T")


class Registry(Protocol):
    """Registry of agents, and of handlers and conditions of crons, by name."""

    @property
    def not_loaded(self) -> dict[str, str]:
        """Agents named in files that could not be loaded, with the reasons."""
        ...

    def register(
        self,
        name: str,
        target: Any,
        *,
        description: str | None = None,
        timeout: float | None = None,
        is_factory: bool = False,
        default_timeout: float = DEFAULT_TIMEOUT,
    ) -> Any: ...

    def register_handler(self, name: str, function: Any) -> None: ...

    def register_condition(self, name: str, predicate: Any) -> None: ...


R = TypeVar("R", bound=Registry)

GRAPHS_FILE = "langgraph.json"
MODULE_PREFIX = "perdure_agent_"
DEFER_LOOPBACK = "__LANGGRAPH_DEFER_LOOPBACK_TRANSPORT"
"""Variable that makes langgraph_sdk leave the transport of clients without a URL to the server."""

_VARIABLE = re.compile(r"^\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*$")
_FROM_FILE = "file "

logger = logging.getLogger(__name__)

_set_here: dict[str, str] = {}
"""Environment variables that a `langgraph.json` has set in this process."""


class LoadFailure(NamedTuple):
    """An agent that could not be loaded: the file that names it, and the reason."""

    agent: str | None
    """None if the file itself cannot be read."""
    source: str
    message: str

    def __str__(self) -> str:
        who = f"agent {self.agent!r}: " if self.agent is not None else ""
        return f"{self.source}: {who}{self.message}"


class LoadedAgents(NamedTuple, Generic[R]):
    """A registry with its loaded agents, and those that failed to load."""

    agents: R
    failures: list[LoadFailure]


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """An agent in `perdure.toml`: code by its path, or a command."""

    path: str | None = None
    command: list[str] | None = None
    description: str | None = None
    isolated: bool = False
    cwd: str | None = None
    env: dict[str, str] = msgspec.field(default_factory=dict)
    timeout: float | None = None
    sandbox: SandboxChoice | None = None
    network: bool = False
    uid: int | str | None = None


class _Graph(msgspec.Struct):
    """An agent in `langgraph.json`."""

    path: str
    description: str | None = None


class _GraphsFile(msgspec.Struct):
    """The graphs of a `langgraph.json`."""

    graphs: dict[str, Any] = msgspec.field(default_factory=dict)


def graphs_file(place: str | os.PathLike[str]) -> Path:
    """Return the path of a directory's `langgraph.json`, existing or not; `place` may be the file itself."""
    path = Path(place).resolve()
    return path if path.suffix == ".json" and not path.is_dir() else path / GRAPHS_FILE


def load_agents(registry: R, settings: Settings, place: str | os.PathLike[str] = ".") -> LoadedAgents[R]:
    """Load the agents of the settings and of a directory's `langgraph.json`, and handlers and conditions of
    crons.

    An agent that fails is reported by its name, and the others are still loaded.
    """
    loaded = LoadedAgents(registry, [])
    path = graphs_file(place)
    # The table of settings may be in a file of its own.
    root = Path(place).resolve() if Path(place).is_dir() else Path.cwd()
    loaded.failures.extend(load_handlers(registry, settings, root).failures)
    _load_table(settings, root, loaded)
    if path.exists():
        _load_graphs(path, loaded)
    registry.not_loaded.update(
        {failure.agent: failure.message for failure in loaded.failures if failure.agent is not None}
    )
    return loaded


# --- perdure.toml -----------------------------------------------------------------------------------------


def load_handlers(
    registry: R, settings: Settings, directory: str | os.PathLike[str] = "."
) -> LoadedAgents[R]:
    """Load the handlers and conditions of crons that the settings name into a registry."""
    loaded = LoadedAgents(registry, [])
    for table, paths, register in (
        ("handlers", settings.handlers, registry.register_handler),
        ("conditions", settings.conditions, registry.register_condition),
    ):
        source, folder = _find_table(settings, table, Path(directory).resolve())
        if paths:
            _add_path(folder)
        for name, path in paths.items():
            with _record_failures(loaded, None, f"{source} [{table}] {name}"):
                register(name, import_target(path, folder))
    return loaded


def _load_table(settings: Settings, directory: Path, loaded: LoadedAgents[Any]) -> None:
    source, directory = _find_table(settings, "agents", directory)
    if settings.agents:
        _add_path(directory)
    for name, entry in settings.agents.items():
        with _record_failures(loaded, name, source):
            _register(loaded.agents, name, _parse_entry(entry), directory)


def _find_table(settings: Settings, table: str, directory: Path) -> tuple[str, Path]:
    """Return the source of a table, and the directory that its paths are relative to."""
    source = settings.sources.get(table, "argument")
    if not source.startswith(_FROM_FILE):
        return source, directory
    file = source.removeprefix(_FROM_FILE)
    return file, Path(directory, file).resolve().parent


def _parse_entry(given: Any) -> _Entry:
    entry = _convert({"path": given} if isinstance(given, str) else given, _Entry)
    if (entry.path is None) == (entry.command is None):
        raise InvalidInput("use either a path (module:name or ./file.py:name) or a command")
    return entry


def _register(agents: Registry, name: str, entry: _Entry, directory: Path) -> None:
    apart: Any = {"sandbox": entry.sandbox, "network": entry.network, "uid": entry.uid}
    if entry.command is not None:
        cwd = directory / entry.cwd if entry.cwd else directory
        target: Any = Command(entry.command, cwd=cwd, env=entry.env, **apart)
    elif entry.isolated:
        target = isolated(str(entry.path), directory=directory, **apart)
    elif entry.sandbox == BUBBLEWRAP or entry.uid is not None:
        raise InvalidInput(
            "a sandbox or a uid needs a separate process: add isolated = true, or use a command"
        )
    else:
        target = import_target(str(entry.path), directory)
    agents.register(name, target, description=entry.description, timeout=entry.timeout)


# --- langgraph.json ---------------------------------------------------------------------------------------


def _load_graphs(path: Path, loaded: LoadedAgents[Any]) -> None:
    with _record_failures(loaded, None, str(path)):
        content = prepare(path)
        for name, given in content.graphs.items():
            with _record_failures(loaded, name, str(path)):
                graph = _convert({"path": given} if isinstance(given, str) else given, _Graph)
                target = import_target(graph.path, path.parent)
                loaded.agents.register(
                    name,
                    target,
                    description=graph.description,
                    is_factory=True,
                    default_timeout=GRAPH_TIMEOUT,
                )


def prepare(path: Path) -> _GraphsFile:
    """Read a `langgraph.json`, and set the variables and folders that its code needs.

    Wrong variables and folders are left out; `find_problems` reports them.
    """
    content = read_graphs_file(path)
    graphs = _convert(content, _GraphsFile)
    # Clients without a URL in this code wait for this server instead of another.
    os.environ.setdefault(DEFER_LOOPBACK, "true")
    for name, text in _parse_environment(content.get("env"), path.parent)[0].items():
        # The environment wins over the file, except for values that the file itself set before.
        if os.environ.get(name) in (None, _set_here.get(name)):
            os.environ[name] = _set_here[name] = text
    dependencies = _parse_dependencies(content.get("dependencies"))[0]
    PROJECT.add_folder(path.parent)
    PROJECT.add_dependencies(dependencies, path.parent)
    for part in reversed(dependencies):
        if part.startswith("."):
            _add_path((path.parent / part / "src").resolve())
            _add_path((path.parent / part).resolve())
    return graphs


def list_project_files(place: str | os.PathLike[str]) -> list[Path]:
    """Return the `langgraph.json` of a directory, and its file with variables."""
    path = graphs_file(place)
    try:
        env = read_graphs_file(path).get("env")
    except (PerdureError, AttributeError):
        return [path]
    return [path, path.parent / env] if isinstance(env, str) else [path]


def find_problems(content: Mapping[str, Any], directory: Path) -> list[str]:
    """Return what is wrong with the variables and folders of a `langgraph.json`."""
    _, of_variables = _parse_environment(content.get("env"), directory)
    _, of_folders = _parse_dependencies(content.get("dependencies"))
    return [problem for problem in (of_variables, of_folders) if problem is not None]


def _parse_dependencies(given: Any) -> tuple[list[str], str | None]:
    """Return the dependencies, and what is wrong with them."""
    if given is None:
        return [], None
    if not isinstance(given, list) or not all(isinstance(part, str) for part in given):
        return [], 'dependencies must be a list of texts, such as ["."]; they are ignored'
    return given, None


def read_graphs_file(path: Path) -> Any:
    """Read a `langgraph.json`; InvalidInput if that fails."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"it cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"it is not JSON: {error}") from error


def _parse_environment(given: Any, directory: Path) -> tuple[dict[str, str], str | None]:
    """Return the variables of `env` or of the file that it names, and what is wrong with them."""
    if given is None:
        return {}, None
    if isinstance(given, Mapping):
        wrong = [name for name, value in given.items() if not isinstance(value, str | int | float)]
        texts = {name: str(value) for name, value in given.items() if name not in wrong}
        return texts, f"env.{wrong[0]} must be a text; it is ignored" if wrong else None
    if not isinstance(given, str):
        return {}, "env must be an object, or the name of a file such as .env; it is ignored"
    path = directory / given
    try:
        return dict(_parse_variables(path.read_text(encoding="utf-8"))), None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        return {}, f"env: cannot read {path}: {reason}; its variables are not set from there"


def _parse_variables(content: str) -> Iterator[tuple[str, str]]:
    for line in content.splitlines():
        match = _VARIABLE.match(line)
        if match and not line.lstrip().startswith("#"):
            yield match.group(1), _unquote(match.group(2))


def _unquote(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text.partition(" #")[0].rstrip()


# --- importing --------------------------------------------------------------------------------------------


def import_target(path: str, directory: str | os.PathLike[str] = ".") -> Any:
    """Import the object named by `package.module:name` or `./file.py:name`, files from the directory."""
    where, separator, name = path.rpartition(":")
    if not separator or not where or not name:
        raise InvalidInput(f"{path!r} is not a path of an object; write module:name or ./file.py:name")
    if _is_file(where):
        PROJECT.add_folder(directory)
        module = _import_file(Path(directory), where)
    else:
        module = importlib.import_module(where)
        PROJECT.add_packages([where.partition(".")[0]])
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            public = ", ".join(public_name for public_name in vars(module) if not public_name.startswith("_"))
            raise InvalidInput(f"there is no {name!r} in {where}; it has {public or 'nothing'}")
        target = getattr(target, part)
    return target


def import_named(path: str, directory: str | os.PathLike[str] = ".") -> Any:
    """Import an object that a command line names.

    A file can import the modules beside it, like a script; a module may be in the working directory.
    """
    where, _, _ = path.rpartition(":")
    file = Path(directory, where).resolve()
    folder = file.parent if _is_file(where) else Path(directory).resolve()
    PROJECT.add_folder(folder)
    _add_path(folder)
    return import_target(path, directory)


def _is_file(where: str) -> bool:
    return where.endswith(".py") or "/" in where or os.sep in where


def _import_file(directory: Path, where: str) -> ModuleType:
    path = (directory / where).resolve()
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}")
    # The name is the same in every worker, because types in stored states are known by it.
    name = MODULE_PREFIX + re.sub(r"\W+", "_", where.removesuffix(".py").lstrip("./"))
    loaded_module = sys.modules.get(name)
    if loaded_module is not None and loaded_module.__file__ == str(path):
        return loaded_module
    return _run_file(name, path)


def _run_file(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{path} is not a Python file")
    before = sys.modules.get(name)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name)
        if before is not None:
            sys.modules[name] = before
        raise
    return module


def _add_path(directory: Path) -> None:
    if directory.is_dir() and str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


# --- reporting --------------------------------------------------------------------------------------------


@contextmanager
def _record_failures(loaded: LoadedAgents[Any], agent: str | None, source: str) -> Iterator[None]:
    """Record an error inside the block as a failure, and continue."""
    try:
        yield
    except PerdureError as error:
        failure = LoadFailure(agent, source, error.message)
        logger.error("%s", failure)
        loaded.failures.append(failure)
    except (Exception, SystemExit) as error:
        failure = LoadFailure(agent, source, explain_failure(error))
        logger.error("%s", failure, exc_info=(type(error), error, own_traceback(error)))
        loaded.failures.append(failure)


def _convert(given: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise InvalidInput(str(error)) from error
