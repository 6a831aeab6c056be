"""Errors of loading users' code: where they are, and what to install."""

from __future__ import annotations

import os
import traceback
from importlib.util import find_spec
from types import TracebackType

from perdure.agents.project import is_library
from perdure.kernel.errors import PerdureError

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
