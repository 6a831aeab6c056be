"""The pipeline from a service to its operation is short, and meets what the operation declares."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure import open_store
from perdure.kernel.storage.port import Check, Tx
from perdure.rollouts.service import Rollouts
from perdure.service.base import Service
from perdure.service.conditions import Unmet, requires

MOST_FRAMES = 5


class Counting:
    """A condition that holds after it was met."""

    def __init__(self, *, is_parameter: bool = False) -> None:
        self.is_parameter = is_parameter
        self.met = 0

    def get_check(self, service: Any) -> Check | None:
        return None if self.is_parameter else self._check

    async def _check(self, tx: Tx) -> None:
        if not self.met:
            raise Unmet(self)

    async def meet(self, service: Any) -> None:
        self.met += 1


async def noted(tx: Tx, items: list[str], fail: bool = False) -> list[str]:
    return [f"{item} {fail}" for item in items]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/pipeline.db"
    return str(request.getfixturevalue("database_url"))


async def test_at_most_five_frames_stand_between_a_service_and_its_operation(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/pipeline.db") as store:
        service = Rollouts(store.storage, store.rollouts.kinds)
        names: list[str] = []

        async def operation(tx: Tx) -> None:
            frame = sys._getframe(1)
            while frame is not None and frame.f_code.co_name != "_main":
                names.append(frame.f_code.co_qualname)
                frame = frame.f_back  # type: ignore[assignment]
            waiting: Any = task.get_coro()
            while hasattr(waiting, "cr_await"):
                names.append(waiting.cr_code.co_qualname)
                waiting = waiting.cr_await

        async def call() -> None:
            await service.write(operation)

        await service.ns("write")
        task = asyncio.create_task(call())
        await task
        names.remove(call.__qualname__)
        assert len(names) <= MOST_FRAMES, names


async def test_a_condition_is_met_and_the_operation_runs_again(url: str) -> None:
    condition = Counting()
    async with open_store(url) as store:
        service = Service(store.storage)
        operation = requires(condition)(noted)
        assert await service.write(operation, ["a"]) == ["a False"]
        assert await service.read(operation, ["b"]) == ["b False"]
    assert condition.met == 1


async def test_an_operation_learns_whether_its_condition_was_met(url: str) -> None:
    condition = Counting(is_parameter=True)

    @requires(condition)
    async def operation(tx: Tx, item: str, is_met: bool = False) -> tuple[str, bool]:
        if not is_met:
            raise Unmet(condition)
        return item, is_met

    async with open_store(url) as store:
        assert await Service(store.storage).write(operation, "a") == ("a", True)
    assert condition.met == 1


async def test_a_condition_that_is_never_met_ends_the_call(url: str) -> None:
    condition = Counting(is_parameter=True)

    @requires(condition)
    async def operation(tx: Tx, is_met: bool = False) -> None:
        raise Unmet(condition)

    async with open_store(url) as store:
        with pytest.raises(Unmet):
            await Service(store.storage).write(operation)
    assert condition.met == 1
