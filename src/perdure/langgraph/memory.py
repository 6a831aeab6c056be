"""The memory of the run whose graph is being executed, for tools that are made before there is a run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, NamedTuple

from perdure.agents.context import Context, MemorySearch


class RunMemory(NamedTuple):
    """What a tool searches in a run, and how it waits for that in a thread without an event loop."""

    memory: MemorySearch
    wait: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]


_current: ContextVar[RunMemory | None] = ContextVar("perdure_run_memory", default=None)


def enter_run(ctx: Context) -> None:
    """Let tools in this task, and in those that it starts, search the memory of a run."""
    if ctx.memory is not None and ctx.items is not None:
        _current.set(RunMemory(ctx.memory, ctx.items.wait))


def memory_of_run() -> RunMemory | None:
    """The memory of the run that is being executed here; None outside of one."""
    return _current.get()
