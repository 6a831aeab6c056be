"""A world in one thread: virtual time, a database without threads, and seeded faults.

The code under test is the real one, down to SQLite. Only time, the network between a caller and the database,
and chance are simulated, so the same seed gives the same run.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import selectors
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from perdure.kernel import errors
from perdure.kernel.background import Background
from perdure.kernel.clock import Clock, to_micros
from perdure.kernel.ids import Ids
from perdure.kernel.signals.local import LocalSignals
from perdure.kernel.signals.port import Hint, Signals
from perdure.kernel.storage.port import Check, Engine, Operation, Result, inside_operation, refuse_nested
from perdure.kernel.storage.schema import Schema, Table
from perdure.kernel.storage.sqlite_engine import MEMORY, SqliteEngine, WriterJob
from perdure.kernel.tally import Tally

__all__ = [
    "Faults",
    "InlineStorage",
    "SimulatedClock",
    "SimulatedDatabase",
    "SimulatedStorage",
    "Trace",
    "VirtualLoop",
    "run_virtual",
]

T = TypeVar("T")


class _Skipper(selectors.BaseSelector):
    """Selector that never waits: time jumps to the next timer."""

    def __init__(self) -> None:
        self.time = 0.0
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        self._keys[fileobj] = selectors.SelectorKey(fileobj, fileobj, events, data)
        return self._keys[fileobj]

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing is left that could ever happen: every task waits")
        self.time += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stops while code runs, and jumps when everything waits."""

    def __init__(self) -> None:
        self._skipper = _Skipper()
        super().__init__(self._skipper)

    def time(self) -> float:
        return self._skipper.time

    def _write_to_self(self) -> None:
        """Do nothing, because no other thread wakes this one."""


def run_virtual(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `main` in virtual time, and cancel its remaining tasks."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


class SimulatedClock:
    """The database's clock: virtual time plus its offset, never backwards."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._start = start
        self._last = 0
        self.skew = 0.0

    def now(self) -> int:
        time = asyncio.get_running_loop().time()
        self._last = max(self._last + 1, to_micros(self._start + time + self.skew))
        return self._last

    def wall(self, now: int) -> int:
        return now

    def behind(self) -> int:
        return 0

    def follow(self, micros: int) -> None:
        raise AssertionError("it is never behind")

    def jump(self, seconds: float) -> None:
        self.skew += seconds

    def settle(self) -> None:
        """Continue from the latest shown time, at the normal pace."""
        ahead = self._last / 1e6 - self._start - asyncio.get_running_loop().time()
        self.skew = max(self.skew, ahead)


class InlineStorage:
    """A SQLite database without threads: each call is executed and committed before it returns."""

    engine: Engine = "sqlite"

    def __init__(self, database: SqliteEngine, signals: Signals | None = None) -> None:
        self.database = database
        self.ids = database.ids
        self.signals: Signals = signals or LocalSignals()
        self.timers = Background("perdure-inline")
        self.tally = Tally()

    @classmethod
    def open(
        cls, tables: Iterable[Table], *, clock: Clock, ids: Ids, path: str = MEMORY, vfs: str | None = None
    ) -> InlineStorage:
        return cls(SqliteEngine(path, Schema(tables), clock=clock, ids=ids, vfs=vfs))

    async def run(
        self,
        operation: Operation[..., Result],
        /,
        *args: Any,
        ns: int | None = None,
        actor: str | None = None,
        before: Sequence[Check] = (),
    ) -> Result:
        job = WriterJob(operation, args, ns, actor, before)
        self.commit([job])
        result: Result = _answer(job)
        return result

    read = background = run

    def commit(self, jobs: list[WriterJob]) -> None:
        """Run the jobs as one group; each has its result or its error afterwards."""
        refuse_nested()
        token = inside_operation.set(True)
        try:
            hints = self.database.commit_group(jobs)
        finally:
            inside_operation.reset(token)
        if hints:
            self.signals.publish(hints)

    async def health(self) -> Mapping[str, Any]:
        reason = self.database.degraded
        return {"status": "degraded" if reason else "ok", "reason": reason, "indexes_being_built": []}

    def free_bytes(self) -> int | None:
        return None

    async def integrity(self) -> list[str]:
        return []

    async def close(self) -> None:
        self.signals.close()
        self.database.close()


def _answer(job: WriterJob) -> Any:
    if job.error is not None:
        raise job.error
    return job.result


@dataclass
class Faults:
    """The current probability of each fault, and the delay to the database."""

    latency: float = 0.0
    error_before: float = 0.0
    error_after: float = 0.0
    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0

    def stop(self) -> None:
        self.latency = self.error_before = self.error_after = self.lost = self.doubled = self.late = 0.0


class Trace:
    """The events, as a running hash and the last few lines."""

    def __init__(self, keep: int = 200) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._keep = keep
        self.lines: list[str] = []

    def add(self, *words: object) -> None:
        line = f"{asyncio.get_running_loop().time():10.4f} " + " ".join(map(str, words))
        self._hash.update(line.encode() + b"\n")
        self.lines = [*self.lines[1 - self._keep :], line]

    def digest(self) -> str:
        return self._hash.hexdigest()


class SimulatedDatabase:
    """The database of the simulated callers: concurrent requests form one group, one commit."""

    def __init__(
        self, tables: Iterable[Table], clock: Clock, ids: Ids, chance: random.Random, trace: Trace
    ) -> None:
        self.inline = InlineStorage.open(tables, clock=clock, ids=ids)
        self.trace = trace
        self.after_commit: Callable[[], None] = lambda: None
        self._chance = chance
        self.callers: list[SimulatedStorage] = []
        self._waiting: list[tuple[WriterJob, asyncio.Future[None]]] = []

    def connect(self, name: str, faults: Faults) -> SimulatedStorage:
        """Open a connection for one caller, with its own hub of signals."""
        caller = SimulatedStorage(self, name, faults, self._chance)
        self.callers.append(caller)
        return caller

    def disconnect(self, caller: SimulatedStorage) -> None:
        self.callers.remove(caller)

    def submit(self, job: WriterJob) -> asyncio.Future[None]:
        """Execute a job with the next group; a cancelled job is removed, unless it was executed already."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            loop.call_later(self._chance.uniform(0.0001, 0.005), self._commit)
        self._waiting.append((job, future))
        return future

    def _commit(self) -> None:
        taken, self._waiting = self._waiting, []
        group = [(job, future) for job, future in taken if not future.cancelled()]
        if not group:
            return
        self.inline.commit([job for job, _ in group])
        for job, future in group:
            self.trace.add(job.operation.__name__, type(job.error).__name__ if job.error else "ok")
            future.set_result(None)
        for caller in self.callers:
            caller.tell([hint for job, _ in group for hint in job.hints])
        self.after_commit()

    def close(self) -> None:
        self.inline.database.close()


class SimulatedStorage:
    """One caller's connection: slow, and sometimes cut before or after the commit."""

    engine: Engine = "sqlite"

    def __init__(self, database: SimulatedDatabase, name: str, faults: Faults, chance: random.Random) -> None:
        self.name = name
        self.faults = faults
        self.signals: Signals = LocalSignals()
        self.timers = Background("perdure-simulated")
        self.tally = Tally()
        self.ids = database.inline.ids
        self._database = database
        self._chance = chance

    async def run(
        self,
        operation: Operation[..., Result],
        /,
        *args: Any,
        ns: int | None = None,
        actor: str | None = None,
        before: Sequence[Check] = (),
    ) -> Result:
        refuse_nested()
        job = WriterJob(operation, args, ns, actor, before)
        await self._travel()
        if self._chance.random() < self.faults.error_before:
            raise errors.StorageUnavailable(f"{self.name}: cut off before the commit")
        await self._database.submit(job)
        if self._chance.random() < self.faults.error_after:
            raise errors.OutcomeUnknown(f"{self.name}: cut off after the commit")
        await self._travel()
        result: Result = _answer(job)
        return result

    read = background = run

    async def _travel(self) -> None:
        if self.faults.latency:
            await asyncio.sleep(self._chance.uniform(0, self.faults.latency))

    def tell(self, hints: Iterable[Hint]) -> None:
        """Deliver hints to this caller's hub: some never arrive, some twice, some after later ones."""
        for hint in dict.fromkeys(hints):
            if self._chance.random() < self.faults.lost:
                continue
            for _ in range(2 if self._chance.random() < self.faults.doubled else 1):
                late = self._chance.random() < self.faults.late
                delay = self._chance.uniform(0.1, 5.0) if late else 0.001
                asyncio.get_running_loop().call_later(delay, self.signals.publish, [hint])

    async def health(self) -> Mapping[str, Any]:
        return await self._database.inline.health()

    def free_bytes(self) -> int | None:
        return None

    async def integrity(self) -> list[str]:
        return []

    async def close(self) -> None:
        self.signals.close()
        self._database.disconnect(self)
