"""Items for agents; each call is sent as a batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from perdure.items.model import encode_value
from perdure.items.records import ItemOp, ItemResult, PutItem
from perdure.items.service import Items

T = TypeVar("T")


class ItemCalls(Items):
    """Items of a run's namespace for its agent."""

    def __init__(self) -> None:
        """Create an instance without a database; subclasses implement `batch`."""

    @abstractmethod
    async def batch(self, ops: Sequence[ItemOp]) -> list[ItemResult]:
        """Read and change many items at once. Reads see the state before; writes are all or nothing."""

    @abstractmethod
    def wait(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine of these methods from a thread that cannot await."""

    async def run(self, ops: Sequence[ItemOp]) -> list[ItemResult]:
        for op in ops:
            if isinstance(op, PutItem):
                encode_value(op.value)
        return await self.batch(ops)
