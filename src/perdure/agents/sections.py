"""Other sections of a `langgraph.json`: custom auth, and unsupported sections."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from perdure.agents.failures import explain_failure
from perdure.agents.loading import find_problems, graphs_file, import_target, prepare, read_graphs_file
from perdure.kernel.errors import InvalidInput, PerdureError

OURS: Final = frozenset(
    {"$schema", "auth", "checkpointer", "dependencies", "env", "graphs", "http", "store", "webhooks"}
)
"""Supported sections; `store_section` and `http_section` report unsupported parts of theirs."""
BUILDING: Final = frozenset(
    {
        "api_version",
        "base_image",
        "building",
        "dockerfile_lines",
        "image_distro",
        "keep_pkg_tools",
        "node_version",
        "pip_config_file",
        "pip_installer",
        "python_version",
        "source",
    }
)
"""Sections for building images, which are ignored."""
INSTEAD: Final[Mapping[str, str]] = {
    "checkpointer.path": "states are kept in perdure's own database",
    "checkpointer.serde": "only data and the types of a graph's own state are read back",
    "encryption": "encrypt the disk, or the database",
    "ui": "perdure serves no components",
    "ui_config": "perdure serves no components",
}
"""Advice for each unsupported section."""
AUTH: Final = frozenset({"path", "disable_studio_auth"})
CHECKPOINTER: Final = frozenset({"ttl"})


class ThreadTtl(msgspec.Struct, frozen=True, kw_only=True):
    """Default TTL of threads in minutes, and the action after it."""

    default_ttl: Annotated[float, msgspec.Meta(gt=0)] | None = None
    strategy: Literal["delete", "keep_latest"] = "delete"


def load_thread_ttl(place: str | os.PathLike[str] = ".") -> ThreadTtl:
    """Load the section `checkpointer.ttl` of a `langgraph.json`; InvalidInput if it is wrong."""
    path = graphs_file(place)
    section = _read_sections(path).get("checkpointer") or {}
    ttl = section.get("ttl") if isinstance(section, Mapping) else None
    try:
        return msgspec.convert(ttl or {}, ThreadTtl)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{path}: checkpointer.ttl: {error}") from None


def load_auth(place: str | os.PathLike[str] = ".") -> Any | None:
    """Load the `langgraph_sdk.Auth` of a `langgraph.json`, or None if there is none.

    Raise InvalidInput if it cannot be loaded: the server must not start, because it could not authenticate.
    """
    path = graphs_file(place)
    section = _read_sections(path).get("auth")
    if section is None:
        return None
    if not isinstance(section, Mapping) or not isinstance(section.get("path"), str):
        raise InvalidInput(f"{path}: auth needs a path, such as ./auth.py:auth")
    try:
        prepare(path)
        return import_target(section["path"], path.parent)
    except (Exception, SystemExit) as error:
        raise InvalidInput(f"{path}: auth: {explain_failure(error)}") from error


def auth_path(place: str | os.PathLike[str] = ".") -> str | None:
    """Return the path of the custom auth in a `langgraph.json`, if there is one."""
    section = _read_sections(graphs_file(place)).get("auth")
    path = section.get("path") if isinstance(section, Mapping) else None
    return path if isinstance(path, str) else None


def _read_sections(path: Path) -> Mapping[str, Any]:
    """Read the sections of the file; none if the file does not exist."""
    if not path.exists():
        return {}
    try:
        content = read_graphs_file(path)
    except PerdureError as error:
        raise InvalidInput(f"{path}: {error.message}") from error
    return content if isinstance(content, Mapping) else {}


def unsupported(place: str | os.PathLike[str] = ".") -> list[str]:
    """Return the wrong and unsupported parts of a `langgraph.json`, each with advice."""
    path = graphs_file(place)
    try:
        content = _read_sections(path)
    except InvalidInput:
        # The loading of graphs reports this error.
        return []
    problems = (*find_problems(content, path.parent), *_find_unsupported(content))
    return [f"{path}: {problem}" for problem in problems]


def _find_unsupported(content: Mapping[str, Any]) -> Iterator[str]:
    for name, section in content.items():
        if name in OURS | BUILDING or section in (None, {}, []):
            continue
        yield _message(name, INSTEAD.get(name))
    for name, parts in (("auth", AUTH), ("checkpointer", CHECKPOINTER)):
        section = content.get(name)
        for part in section if isinstance(section, Mapping) else ():
            if part not in parts:
                yield _message(f"{name}.{part}", INSTEAD.get(f"{name}.{part}"))
    yield from _find_missing(content.get("dependencies"))


def _message(name: str, instead: str | None) -> str:
    return f"{name} is not supported here" + (f": {instead}" if instead else "")


def _find_missing(dependencies: Any) -> Iterator[str]:
    """Return the dependencies in the file that are not installed."""
    for part in dependencies if isinstance(dependencies, list) else ():
        if not isinstance(part, str) or part.startswith((".", "/")):
            continue
        name = _get_package(part)
        try:
            metadata.version(name)
        except (metadata.PackageNotFoundError, ValueError):
            yield f"dependencies: {name} is not installed, and perdure installs nothing"


def _get_package(requirement: str) -> str:
    """Return the name of the package in a requirement such as `langchain[all]>=1`."""
    for stop, character in enumerate(requirement):
        if not (character.isalnum() or character in "-_."):
            return requirement[:stop]
    return requirement
