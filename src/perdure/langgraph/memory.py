"""Memory of the run that executes a graph, for tools that are created before the run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, NamedTuple

from perdure.agents.context import Context, MemorySearch


class RunMemory(NamedTuple):
    """Memory that a tool searches in a run, and a way to wait in a thread without an event loop."""

    memory: MemorySearch
    wait: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]


_current: ContextVar[RunMemory | None] = ContextVar("perdure_run_memory", default=None)


def enter_run(ctx: Context) -> None:
    """Let tools in this task and its child tasks search the memory of a run."""
    if ctx.memory is not None and ctx.items is not None:
        _current.set(RunMemory(ctx.memory, ctx.items.wait))


def memory_of_run() -> RunMemory | None:
    """Return the memory of the current run; None outside of a run."""
    return _current.get()
