"""Two processes work on PostgreSQL while it is crashed, killed and restarted, and connections are cut."""

import asyncio
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import asyncpg
import msgspec
from tests.chaos.child import Plan
from tests.chaos.handle import Child
from tests.chaos.scenario import Run
from tests.chaos.stores import open_storage, read
from tests.support.checker import Endings, check
from tests.support.history import History
from tests.support.snapshot import Snapshot

from perdure.testing.servers import PostgresServer

EPOCH = 5
CHILDREN = 2
WORKERS = 12
TIMEOUT = 10.0
SLACK = 5.0
RECOVERY_SECONDS = 5.0
STORM = 20
ANSWERS = 100
"""How many calls each child has answered before the next crash."""

CUT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
ONE_BACKEND = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND state <> 'idle' LIMIT 1"
)


class PostgresCrashes:
    """One server, and the children that must live through its crashes."""

    def __init__(self, run: Run, server: PostgresServer) -> None:
        self._run = run
        self._random = random.Random(run.seed)
        self._server = server
        self._url = server.create_database("chaos")
        self._epoch = 0
        self._acknowledged = 0
        self._children: list[Child] = []
        self._history = History()
        self._heard = [0] * CHILDREN

    def crash_all(self) -> None:
        with ExitStack() as stack:
            for number in range(1, self._run.size + 1):
                if not self._children:
                    self._start_children(stack)
                self._hear_answers(f"before crash {number}")
                self._strike(number)
                self._recover(number)
                self._check(f"crash {number}")
                if number % EPOCH == 0 or number == self._run.size:
                    self._end_epoch(number)
                self._run.advance(f"{self._acknowledged} acknowledged")

    # --- the children -------------------------------------------------------------------------------------

    def _start_children(self, stack: ExitStack) -> None:
        self._history, self._heard = History(), [0] * CHILDREN
        for place in range(CHILDREN):
            number = self._epoch * CHILDREN + place + 1
            plan = Plan(
                url=self._url,
                process=f"p{number}",
                number=number,
                seed=self._random.getrandbits(32),
                namespace=f"epoch-{self._epoch}",
                workers=WORKERS,
                silence=2.0,
                timeout=TIMEOUT,
                watchdog_interval=0.25,
            )
            self._children.append(stack.enter_context(Child()).go(plan))

    def _listen(self, done: Callable[[bytes], bool], seconds: float) -> list[bool]:
        """Listen to all children at once; whether each said what was waited for."""
        with ThreadPoolExecutor(CHILDREN) as pool:
            return list(pool.map(lambda child: child.listen(done, seconds), self._children))

    def _hear_answers(self, where: str) -> None:
        answers = Counter[int]()

        def enough(line: bytes) -> bool:
            answers[threading.get_ident()] += b'["ok"' in line
            return answers[threading.get_ident()] >= ANSWERS

        if not all(self._listen(enough, TIMEOUT * 3)):
            errors = [child.errors() for child in self._children]
            self._run.found(where, [f"a child stands still: {errors}"])

    def _end_epoch(self, number: int) -> None:
        """Let the children finish, and compare once more what they leave."""
        for child in self._children:
            child.ask_to_stop()
        for child in self._children:
            if child.end(TIMEOUT * 3) != 0:
                self._run.found(f"after crash {number}", [f"a child failed: {child.errors()}"])
        self._check(f"after crash {number}, at rest")
        self._run.count(self._history)
        self._children = []
        self._epoch += 1

    # --- the server ---------------------------------------------------------------------------------------

    def _strike(self, number: int) -> None:
        how = self._random.choice(("crash", "kill", "backend"))
        time.sleep(self._random.uniform(0, 0.1))
        if how == "backend":
            asyncio.run(self._kill_backend())
        else:
            (self._server.crash if how == "crash" else self._server.kill)()
            time.sleep(self._random.choice((0.0, 0.0, self._random.uniform(0, 1.0))))
            self._server.start()
        self._run.facts[f"server: {how}"] += 1

    async def _kill_backend(self) -> None:
        """SIGKILL one working backend: the server ends all connections and recovers by itself."""
        connection, ended = await self._connected(), asyncio.Event()
        connection.add_termination_listener(lambda _: ended.set())
        try:
            async with asyncio.timeout(TIMEOUT):
                while (pid := await connection.fetchval(ONE_BACKEND)) is None:
                    continue
                os.kill(pid, signal.SIGKILL)
                # The server takes connections until it has seen the end of its process.
                await ended.wait()
        finally:
            connection.terminate()
        await (await self._connected()).close()

    async def _connected(self) -> asyncpg.Connection:
        """A connection, once the server takes any: it may be in recovery still."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                try:
                    return await asyncpg.connect(self._url)
                except (OSError, asyncpg.PostgresError):
                    await asyncio.sleep(0.01)

    def _recover(self, number: int) -> None:
        """Each child must get an answer soon after the server is back, storms of cut connections included."""
        up = time.monotonic_ns()
        heard = self._listen(lambda line: b'["ok"' in line and _at(line) > up, RECOVERY_SECONDS)
        if not all(heard):
            self._run.found(f"crash {number}", [f"no answer within {RECOVERY_SECONDS} s of the restart"])
        if self._random.random() < 0.5:
            asyncio.run(self._storm())

    async def _storm(self) -> None:
        """Cut every connection again and again."""
        for _ in range(STORM):
            connection = await self._connected()
            try:
                self._run.facts["connections cut"] += len(await connection.fetch(CUT))
            finally:
                await connection.close()
            await asyncio.sleep(self._random.uniform(0, 0.05))

    # --- the check ----------------------------------------------------------------------------------------

    def _check(self, where: str) -> None:
        """The children go on while the database is read; what they said later does not count yet."""
        snapshot, endings = asyncio.run(self._read_database())
        for place, child in enumerate(self._children):
            child.drain()
            new = child.lines[self._heard[place] :]
            self._history.read(new)
            self._heard[place] += len(new)
            self._acknowledged += sum(line.startswith(b'["ok"') for line in new)
        report = check(self._history, snapshot, endings=endings, deadline=TIMEOUT + SLACK)
        self._run.checked(where, report)

    async def _read_database(self) -> tuple[Snapshot, Endings]:
        storage = open_storage(self._url, timeout=TIMEOUT)
        try:
            return await read(storage, f"epoch-{self._epoch}")
        finally:
            await storage.close()


def _at(line: bytes) -> int:
    return int(msgspec.json.decode(line)[3])


def crash_postgres(run: Run) -> None:
    with PostgresServer(fsync=True) as server:
        PostgresCrashes(run, server).crash_all()
