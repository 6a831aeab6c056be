"""A worker that was frozen past its lease starts nothing more: the queue decides what happens next."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest
from tests.kernel.support import until
from tests.support.python_process import PythonProcess
from tests.worker.queue_support import MemoryQueue
from tests.worker.worker_support import House

from perdure.kernel import clock
from perdure.kernel.clock import boottime
from perdure.threads.work import Assignment, Lease, Verdict
from perdure.worker import execution, health, worker
from perdure.worker.health import FROZEN_SECONDS, Pulse

LEASE = 1.0


class Boottime:
    """The machine's clock, which can jump ahead as it does for a frozen process."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return boottime() + self.ahead


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Boottime:
    replaced = Boottime()
    for module in (execution, health, worker):
        monkeypatch.setattr(module, "boottime", replaced)
    return replaced


def test_a_thawed_worker_makes_no_effect() -> None:
    with PythonProcess(
        [sys.executable, "-m", "tests.worker.frozen", str(LEASE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "begun\n"
        os.kill(process.pid, signal.SIGSTOP)
        # Only the passed time shows that the lease is over.
        time.sleep(LEASE * 1.5)
        process.stdin.write("g")
        process.stdin.flush()
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout.read().splitlines() == ["lost"]


class FreezingQueue(MemoryQueue):
    """The worker is frozen after the queue has answered its claim, and before it reads the answer."""

    frozen: Boottime | None = None

    async def claim(self, *args: Any, **options: Any) -> list[Assignment]:
        answer = await super().claim(*args, **options)
        if answer and self.frozen is not None:
            self.frozen.ahead += self.lease * 2
            self.frozen = None
        return answer

    async def renew(self, worker_id: str, held: Sequence[Lease]) -> list[Verdict]:
        """Answer nothing, since an answer would be a new lease."""
        await asyncio.Event().wait()
        return []


async def test_a_worker_that_was_frozen_in_its_claim_does_not_begin_the_agent(fake: Boottime) -> None:
    house = House()
    house.queue = queue = FreezingQueue()
    queue.frozen = fake
    begun: list[Any] = []

    @house.agents.agent("one")
    async def work(ctx: Any, input: Any) -> None:
        begun.append(input)

    async with house.working(concurrency=1) as working:
        queue.add("one", 1)
        await until(lambda: bool(working.statistics.runs))
        assert (begun, dict(working.statistics.runs)) == ([], {"lost": 1})
        second = queue.add("one", 2)
        await queue.ended(second)
    assert begun == [2]


@pytest.mark.parametrize("effect", ["step", "emit", "save", "interrupt", "heartbeat", "items"])
async def test_no_effect_begins_after_the_lease(fake: Boottime, effect: str) -> None:
    house = House()
    made: list[str] = []

    @house.agents.agent("one")
    async def work(ctx: Any, input: Any) -> None:
        fake.ahead += house.queue.lease * 2
        if effect == "items":
            await ctx.items.get(("a",), "b")
        elif effect == "step":
            await ctx.step("s", lambda: made.append("s"))
        else:
            arguments: Sequence[Any] = () if effect == "heartbeat" else ({"a": 1},)
            await getattr(ctx, effect)(*arguments)
        made.append("after")

    async with house.working() as working:
        run_id = house.queue.add("one")
        await until(lambda: bool(working.statistics.runs))
    assert (made, dict(working.statistics.runs)) == ([], {"lost": 1})
    assert not house.queue.rows[run_id].endings


def test_an_answer_counts_from_before_a_freeze(fake: Boottime) -> None:
    heart = Pulse()
    sent = fake()
    assert sent <= heart.answered(sent) <= fake()
    fake.ahead += FROZEN_SECONDS * 3
    assert heart.answered(sent) - sent < FROZEN_SECONDS
    assert heart.answered(sent) - sent < FROZEN_SECONDS
    assert heart.answered(fake()) <= fake()
    assert fake() - heart.answered(fake()) < FROZEN_SECONDS


def test_the_time_asleep_is_counted_where_the_system_can(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (clock._BOOTTIME is not None) == (sys.platform == "linux")
    monkeypatch.setattr(clock, "_BOOTTIME", None)
    assert abs(boottime() - time.monotonic()) < 1
