"""Every package that the source imports is declared, where those who need it find it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "perdure"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# The extras that a part of the source may count on, beside what is always installed.
EXTRAS = {
    "numpy": "vectors",
    "pandas": "dataframes",
    "pyarrow": "dataframes",
    "asyncpg": "postgres",
    "claude-agent-sdk": "claude-agent",
    "redis": "redis",
    "opentelemetry-api": "otel",
    "opentelemetry-sdk": "otel",
    "mcp": "mcp",
    "grpcio": "grpc",
    "grpcio-health-checking": "grpc",
    "grpcio-reflection": "grpc",
    "httpx": "langgraph",
    "langchain-core": "langgraph",
    "langgraph": "langgraph",
    "langgraph-checkpoint": "langgraph",
    "langgraph-sdk": "langgraph",
    "ormsgpack": "langgraph",
    "pydantic": "langgraph",
    "pytest": "testing",
}


# Packages that only ./dev conformance installs, by their modules.
NOT_INSTALLED = {"claude_agent_sdk": "claude-agent-sdk"}


def _name(requirement: str) -> str:
    return re.split(r"[<>=!~\[ ;]", requirement)[0].lower().replace("_", "-")


def _declared(requirements: list[str]) -> set[str]:
    return {_name(each) for each in requirements}


@cache
def _owners() -> dict[str, str]:
    """The distribution that brings each module, by the module's file."""
    return {
        str(file): _name(found.metadata["Name"])
        for found in distributions()
        for file in found.files or ()
        if file.suffix in (".py", ".so", ".pyd", ".pyi")
    }


def _owner(module: str) -> str:
    """The distribution that a module comes from; names of a module count as the module's."""
    owners, steps = _owners(), module.split(".")
    for length in range(len(steps), 0, -1):
        path = "/".join(steps[:length])
        for file in (path + "/__init__.py", path + ".py", path + "/__init__.pyi"):
            if file in owners:
                return owners[file]
    if steps[0] in NOT_INSTALLED:
        return NOT_INSTALLED[steps[0]]
    return f"{module}, which is not installed"


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            # A name may be a module of its own.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _third_party() -> set[str]:
    own = {*sys.stdlib_module_names, "perdure"}
    return {
        module
        for path in PACKAGE.rglob("*.py")
        for module in _imports(ast.parse(path.read_text()))
        if module.partition(".")[0] not in own
    }


def test_what_is_imported_is_declared() -> None:
    always, extras = _declared(PROJECT["dependencies"]), PROJECT["optional-dependencies"]
    found = {_owner(module) for module in _third_party()}
    assert {"msgspec", "protobuf", "langgraph-checkpoint"} <= found
    missing = {
        each: EXTRAS.get(each, "dependencies")
        for each in found - always
        if each not in _declared(extras.get(EXTRAS.get(each, ""), []))
    }
    assert missing == {}


def test_every_extra_that_is_named_here_declares_its_packages() -> None:
    for package, extra in EXTRAS.items():
        assert package in _declared(PROJECT["optional-dependencies"][extra])
