"""Detection of graphs, builders and factories of graphs without importing LangGraph."""

from __future__ import annotations

import inspect
from typing import Any


def is_graph(target: Any) -> bool:
    """Return whether an object has the methods of a compiled LangGraph graph."""
    return not isinstance(target, type) and all(
        callable(getattr(target, name, None)) for name in ("astream", "get_input_jsonschema")
    )


def is_builder(target: Any) -> bool:
    """Return whether an object has the methods of a LangGraph `StateGraph` that is not compiled."""
    return not isinstance(target, type) and all(
        callable(getattr(target, name, None)) for name in ("compile", "add_node", "add_edge")
    )


def names_config(parameter: inspect.Parameter) -> bool:
    """Return whether a parameter takes a config, by its name or the name of its type."""
    return "config" in f"{parameter.name} {parameter.annotation}".lower()


def names_runtime(parameter: inspect.Parameter) -> bool:
    """Return whether a parameter is annotated as LangGraph's `ServerRuntime`, by the name of the type."""
    hint = parameter.annotation
    text = hint if isinstance(hint, str) else f"{getattr(hint, '__name__', '')} {hint!r}"
    return any(name in text for name in ("ServerRuntime", "_ExecutionRuntime", "_ReadRuntime"))
