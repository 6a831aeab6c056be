"""For LangGraph programs: a checkpointer and a store in a perdure database, and memory as a tool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.integrations.langgraph.memory import MemoryTool
    from perdure.integrations.langgraph.saver import PerdureSaver, PerdureStore

__all__ = ["MemoryTool", "PerdureSaver", "PerdureStore"]

_HOMES = {"MemoryTool": "memory", "PerdureSaver": "saver", "PerdureStore": "saver"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
