"""Items as the agent of one attempt reads and writes them: called in its loop, done in the worker's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from perdure.items.calls import ItemCalls
from perdure.items.records import ItemOp, ItemResult
from perdure.threads.queue import RunQueue
from perdure.worker.fenced_graphs import CallInControlLoop

T = TypeVar("T")


class RunItems(ItemCalls):
    """What is remembered beyond a thread, for one attempt."""

    def __init__(self, queue: RunQueue, there: CallInControlLoop, check: Callable[[], None]) -> None:
        self._queue = queue
        self._call_in_control_loop = there
        self._check = check
        self._control = asyncio.get_running_loop()

    async def batch(self, ops: Sequence[ItemOp]) -> list[ItemResult]:
        self._check()
        return await self._call_in_control_loop(lambda: self._queue.do_items(ops))

    def wait(self, asking: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(asking(), self._control).result()
