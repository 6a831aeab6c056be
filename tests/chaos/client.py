"""`python -m tests.chaos.client`: asks for runs with every strategy, cancels some, and reads every stream.

It waits for a plan on stdin, writes its history to the plan's log, and says on stdout that a run has ended.
A line on its stdin says that it is enough; it ends when all runs have.
"""

import asyncio
import logging
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from tests.chaos.agents import AGENT
from tests.chaos.planted import planted_by_environment
from tests.support.history import Recorder
from tests.support.recording import EffectLog

from perdure.embedding.perdure import Perdure
from perdure.kernel.errors import Conflict, PerdureError, StorageError, TooManyRequests, Unreachable
from perdure.streams.model import StreamEvent
from perdure.threads.records import CANCEL_ACTIONS, Run, RunRequest

ENDED = b"ended\n"
BEGINNING = "-1"
PASSING = (Unreachable, StorageError, TooManyRequests)
LAST_SECONDS = 60.0
"""How long readers of threads may take for the last events after all runs have ended."""
MAX_ATTEMPTS = 40
PAUSE = 0.05
STRATEGIES = {"enqueue": 76, "reject": 12, "interrupt": 6, "rollback": 6}
FATES = {"success": 84, "retry": 10, "error": 6}


class ClientPlan(msgspec.Struct):
    """What a client is to ask for, and of whom: a server, or the database of the settings."""

    log: str
    runs: int
    threads: int
    seed: int
    webhook: str
    url: str | None = None
    width: int = 32
    """On so many threads at once."""
    pause: float = 0.2
    """How long a part of a run takes at most."""
    whole: int = 5
    """So many threads are read over all their runs."""


@asynccontextmanager
async def opened(plan: ClientPlan) -> AsyncIterator[Any]:
    """Threads and runs, here or behind the server."""
    if plan.url is not None:
        from perdure.client.native import PerdureClient

        async with PerdureClient(plan.url, patience=2 * LAST_SECONDS) as client:
            yield client
    else:
        async with Perdure() as perdure:
            yield perdure.threads


class Client:
    """Asks for the runs of a plan, reads them, and cancels some."""

    def __init__(
        self, threads: Any, recorder: Recorder, plan: ClientPlan, on_ended: Callable[[], object]
    ) -> None:
        self._threads = threads
        self._recorder = recorder
        self._plan = plan
        self._on_ended = on_ended
        self._random = random.Random(plan.seed)
        self._made: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()
        self._readers: dict[str, asyncio.Task[None]] = {}
        self.enough = asyncio.Event()

    async def run(self) -> None:
        """The runs of the plan, and more of them until it is enough."""
        plan, names = self._plan, [f"thread-{number}" for number in range(self._plan.threads)]
        width = asyncio.Semaphore(plan.width)
        counts = Counter(names[number % len(names)] for number in range(plan.runs))
        async with asyncio.TaskGroup() as group:
            for place, name in enumerate(names):
                group.create_task(self._thread(name, counts[name], width, whole=place < plan.whole))
        async with asyncio.TaskGroup() as group:
            for name in names[: plan.width]:
                group.create_task(self._go_on(name))
        await self._end_readers()

    async def _thread(self, thread: str, count: int, width: asyncio.Semaphore, *, whole: bool) -> None:
        async with width:
            await self._until_answered(lambda: self._threads.create_thread(thread, if_exists="do_nothing"))
            if whole:
                self._readers[thread] = asyncio.create_task(self._read_thread(thread))
            while self._made[thread] < count:
                await self._burst(thread, count - self._made[thread])

    async def _go_on(self, thread: str) -> None:
        while not self.enough.is_set():
            await self._burst(thread, 1)

    async def _burst(self, thread: str, most: int) -> None:
        """Some runs of a thread at once."""
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._random.randint(1, 4), most)):
                await self._one(thread, f"{thread}.{self._made[thread]}", group)

    async def _one(self, thread: str, token: str, group: asyncio.TaskGroup) -> None:
        run = await self._create(thread, token, self._choose(STRATEGIES))
        if run is None:
            run = await self._create(thread, token, "enqueue")
        assert run is not None
        self._made[thread] += 1
        group.create_task(self._follow(run.run_id))
        if self._random.random() < 0.04:
            await asyncio.sleep(self._random.uniform(0, 2 * self._plan.pause))
            await self._cancel(thread, run.run_id)

    # --- asking -------------------------------------------------------------------------------------------

    def _choose(self, choices: dict[str, int]) -> str:
        return self._random.choices(list(choices), list(choices.values()))[0]

    async def _create(self, thread: str, token: str, strategy: Any) -> Run | None:
        """Ask by one key until there is an answer, which may be that the thread is busy."""
        fate, key = self._choose(FATES), f"{token} {strategy}"
        pauses = [self._random.uniform(0, self._plan.pause) for _ in range(self._random.randint(1, 4))]
        request = RunRequest(
            assistant_id=AGENT,
            thread_id=thread,
            input={
                "token": token,
                "fate": fate,
                "fails": self._random.randint(1, 2),
                "pauses": pauses,
                "saves": self._random.random() < 0.5,
            },
            multitask_strategy=strategy,
            max_attempts=MAX_ATTEMPTS,
            webhook=self._plan.webhook if self._random.random() < 0.1 else None,
        )
        given = {"token": token, "thread": thread, "strategy": strategy, "fate": fate}
        refused: list[PerdureError] = []

        async def ask() -> Run:
            try:
                run: Run = await self._threads.create_run(request, idempotency_key=key)
            except PerdureError as error:
                if not isinstance(error, PASSING):
                    refused.append(error)
                raise
            return run

        while not refused:
            answer = await self._recorder.call("create", given, ask(), lambda run: {"run": run.run_id})
            if answer.ok:
                return answer.value
            await asyncio.sleep(PAUSE)
        if not isinstance(refused[0], Conflict):
            raise refused[0]
        return None

    async def _cancel(self, thread: str, run_id: str) -> None:
        action = self._random.choice(CANCEL_ACTIONS)
        given = {"run": run_id, "thread": thread, "action": action}
        asking = self._threads.cancel_run(run_id, action=action)
        await self._recorder.call("cancel", given, asking, lambda run: {"status": run.status})

    async def _until_answered(self, ask: Any) -> None:
        while True:
            try:
                await ask()
                return
            except PASSING:
                await asyncio.sleep(PAUSE)

    # --- reading ------------------------------------------------------------------------------------------

    async def _follow(self, run_id: str) -> None:
        """Read a run's stream to its end; some readers go away now and then, and come back."""
        after = BEGINNING
        while True:
            bursts = self._random.randint(1, 3) if self._random.random() < 0.3 else -1
            after, over = await self._read(run_id, after, bursts)
            if over:
                break
        self._on_ended()

    async def _read(self, run_id: str, after: str, bursts: int) -> tuple[str, bool]:
        """Read some bursts after an event, or all; gives the last event, and whether that was all."""
        try:
            async with aclosing(self._threads.stream_run(run_id, after)) as reading:
                async for burst in reading:
                    if burst:
                        self._note("run", run_id, burst)
                        after = burst[-1].id
                    bursts -= 1
                    if bursts == 0:
                        return after, False
        except PASSING:
            await asyncio.sleep(PAUSE)
            return after, False
        return after, True

    async def _read_thread(self, thread: str) -> None:
        after = BEGINNING
        while True:
            try:
                async with aclosing(self._threads.stream_thread(thread, after)) as reading:
                    async for burst in reading:
                        if burst:
                            self._note("thread", thread, burst)
                            after = burst[-1].id
                            self._seen[thread] += sum(event.event == "end" for event in burst)
            except PASSING:
                await asyncio.sleep(PAUSE)

    def _note(self, reader: str, stream: str, events: Sequence[StreamEvent]) -> None:
        told = [[event.seq, event.event, event.body] for event in events]
        self._recorder.did("read", reader=reader, stream=stream, events=told)

    async def _end_readers(self) -> None:
        """Let the readers of threads see the ends of all runs, which are the last events there."""
        deadline = asyncio.get_running_loop().time() + LAST_SECONDS
        while any(self._seen[thread] < self._made[thread] for thread in self._readers):
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(PAUSE)
        for reader in self._readers.values():
            reader.cancel()
        await asyncio.gather(*self._readers.values(), return_exceptions=True)


async def work(plan: ClientPlan) -> None:
    log = EffectLog(Path(plan.log))
    async with opened(plan) as threads:
        client = Client(threads, Recorder("client", log.write), plan, _say_ended)
        loop = asyncio.get_running_loop()

        def hear() -> None:
            loop.remove_reader(sys.stdin.fileno())
            client.enough.set()
            if not os.read(sys.stdin.fileno(), 100):
                # Whoever started it is gone.
                os._exit(1)

        loop.add_reader(sys.stdin.fileno(), hear)
        await client.run()
    log.close()


def _say_ended() -> None:
    os.write(sys.stdout.fileno(), ENDED)


def main() -> None:
    logging.disable()
    line = sys.stdin.buffer.readline()
    if line:
        with planted_by_environment():
            asyncio.run(work(msgspec.json.decode(line, type=ClientPlan)))


if __name__ == "__main__":
    main()
