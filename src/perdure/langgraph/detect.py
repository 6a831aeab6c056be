"""Which objects are graphs, builders or factories of graphs, told without importing LangGraph."""

from __future__ import annotations

import inspect
from typing import Any


def is_graph(target: Any) -> bool:
    """Whether it is a compiled LangGraph graph, told by what it can do."""
    return not isinstance(target, type) and all(
        callable(getattr(target, name, None)) for name in ("astream", "get_input_jsonschema")
    )


def is_builder(target: Any) -> bool:
    """Whether it is a LangGraph `StateGraph`, which is still to be compiled."""
    return not isinstance(target, type) and all(
        callable(getattr(target, name, None)) for name in ("compile", "add_node", "add_edge")
    )


def names_runtime(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is annotated as LangGraph's `ServerRuntime`, told by its name."""
    told = parameter.annotation
    text = told if isinstance(told, str) else f"{getattr(told, '__name__', '')} {told!r}"
    return any(name in text for name in ("ServerRuntime", "_ExecutionRuntime", "_ReadRuntime"))
