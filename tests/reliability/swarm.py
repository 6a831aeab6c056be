"""A swarm in virtual time: clients, workers, watchdogs and operators on one database, and a nemesis.

The seed decides everything: who does what, which faults there are, and when they strike. The stored rows are
checked after every commit; when the faults stop, everything must end within three leases.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from tests.support.invariants import broken_rules
from tests.support.simulation import (
    Faults,
    SimulatedClock,
    SimulatedDatabase,
    SimulatedStorage,
    Trace,
    run_virtual,
)

from perdure import AttemptedRollout, RolloutConfig, errors
from perdure.kernel.storage.port import Tx
from perdure.kernel.storage.sqlite_tx import SqliteTx, finish
from perdure.rollouts.model import LIVE, PREPARING, TASK, EndedRollout, Kinds, RolloutEnds, RolloutKind
from perdure.rollouts.operations.enqueue import NewRollout
from perdure.rollouts.records import AttemptStatus
from perdure.rollouts.service import Rollouts
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runtime.stores import TABLES
from perdure.testing.clock import SeededIds
from perdure.testing.contract.support import make_span

T = TypeVar("T")

SILENCE, LEASE = 4.0, 10.0
STORM = 25.0
ENDED = ("succeeded", "failed", "cancelled")
RETRY: list[AttemptStatus] = ["failed", "timeout", "unresponsive"]
LINED = '{"timeout_seconds":10.0,"max_attempts":3,"retry_condition":["failed","timeout"]}'


class Broken(AssertionError):
    """The store broke a promise."""


class Result(NamedTuple):
    digest: str
    commits: int
    rollouts: int
    crashes: int


class Ledger:
    """What the store has acknowledged, and how each rollout has moved."""

    def __init__(self) -> None:
        self.keys: dict[str, str] = {}
        self.rollouts: list[str] = []
        self.cancelling: set[str] = set()
        self.cancelled: set[str] = set()
        self.delivered: set[str] = set()
        self.spans: set[tuple[str, str, str]] = set()
        self.reports: dict[tuple[str, str], str] = {}
        self.numbers: dict[str, list[int]] = {}
        self.statuses: dict[str, str] = {}
        self.endings: list[tuple[str, str]] = []
        self.attempts: dict[str, str] = {}
        self.attempt_ends: set[tuple[str, str]] = set()

    def enqueued(self, key: str, rollout_id: str) -> None:
        if self.keys.setdefault(key, rollout_id) != rollout_id:
            raise Broken(f"key {key} made {self.keys[key]} and {rollout_id}")
        if rollout_id not in self.rollouts:
            self.rollouts.append(rollout_id)

    def claimed(self, one: AttemptedRollout) -> None:
        if one.attempt.attempt_id in self.delivered:
            raise Broken(f"attempt {one.attempt.attempt_id} was given to two workers")
        self.delivered.add(one.attempt.attempt_id)

    def numbered(self, rollout_id: str, number: int) -> None:
        given = self.numbers.setdefault(rollout_id, [])
        if number in given:
            raise Broken(f"{rollout_id} gave out number {number} twice")
        given.append(number)

    def moved(self, statuses: dict[str, str]) -> None:
        """Compare with the statuses before this commit, and with what the kind was told."""
        ended = []
        for rollout_id, status in statuses.items():
            was = self.statuses.get(rollout_id, "")
            asked = status == "cancelled" and rollout_id in self.cancelling
            if was in ("succeeded", "cancelled") and status != was and not asked:
                raise Broken(f"{rollout_id} was {was} and is {status}")
            if status in ENDED and status != was:
                ended.append((rollout_id, status))
        # Within one commit a rollout may end and come back, when a silent attempt speaks.
        told = [(rollout_id, status) for rollout_id, status in self.endings if statuses[rollout_id] == status]
        if sorted(ended) != sorted(told):
            raise Broken(f"these ended: {ended}; their kind was told {self.endings}")
        self.statuses, self.endings = statuses, []

    def attempts_moved(self, attempts: dict[str, str]) -> None:
        """Compare with the attempts before this commit, and with what the kind was told."""
        ended = {
            (attempt_id, status)
            for attempt_id, status in attempts.items()
            if status not in LIVE and self.attempts.get(attempt_id, PREPARING) in LIVE
        }
        if not ended <= self.attempt_ends:
            raise Broken(f"these attempts ended: {ended}; their kind was told {self.attempt_ends}")
        if lost := self.attempts.keys() - attempts.keys():
            raise Broken(f"these attempts are gone: {lost}")
        self.attempts, self.attempt_ends = attempts, set()


class Process:
    """Something that holds a store, and can be killed."""

    def __init__(self, swarm: Swarm, name: str, main: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
        self.name = name
        self.swarm = swarm
        self.storage: SimulatedStorage = swarm.database.connect(name, swarm.faults)
        self.rollouts = Rollouts(self.storage, swarm.kinds)
        self.store = DatabaseLightningStore(self.rollouts)
        self.main = main
        self.task = asyncio.create_task(main(self))

    async def kill(self) -> None:
        """End at once, with everything that is under way."""
        tasks = [self.task, *self.rollouts._merger._tasks, *self.rollouts._releases]
        for task in sorted(tasks, key=lambda task: int(task.get_name().partition("-")[2])):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.storage in self.swarm.database.callers:
            await self.storage.close()

    async def retry_until(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call until the store answers."""
        while True:
            try:
                return await call()
            except errors.StorageError:
                await asyncio.sleep(self.swarm.chance.uniform(0.05, 1.0))


class Swarm:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.trace = Trace()
        self.clock = SimulatedClock()
        self.faults = Faults()
        self.ledger = Ledger()
        self.kinds = Kinds(RolloutKind(TASK, on_ends=self._on_ends, on_ended=self._on_ended))
        self.database = SimulatedDatabase(TABLES, self.clock, SeededIds(seed), self.chance, self.trace)
        self.database.after_commit = self._after_commit
        self.calm = False
        self.commits = self.crashes = 0
        self._changes = -1
        self.processes: list[Process] = []
        self.failures: list[BaseException] = []

    def fail(self, _loop: object, context: dict[str, Any]) -> None:
        """Whatever nobody caught ends the run."""
        self.failures.append(context.get("exception") or Broken(str(context)))

    def raise_failures(self) -> None:
        for failure in self.failures:
            raise failure
        for process in self.processes:
            if process.task.done() and not process.task.cancelled():
                process.task.result()

    async def _on_ended(self, tx: Tx, rollouts: Sequence[EndedRollout]) -> None:
        self.ledger.endings += [(end.rollout_id, end.status) for end in rollouts]

    async def _on_ends(self, tx: Tx, ends: RolloutEnds) -> None:
        self.ledger.attempt_ends |= {(end.attempt_id, end.status) for end in ends.attempts}

    def _after_commit(self) -> None:
        """Every rule holds after every commit that changed something."""
        connection = self.database.inline.database.connection
        if connection.total_changes() == self._changes:
            return
        self._changes = connection.total_changes()
        self.commits += 1
        wrong = finish(broken_rules(SqliteTx(connection, 1, 0, self.database.inline.ids)))
        if wrong:
            raise Broken("; ".join(wrong))
        rows = connection.execute("SELECT id, status FROM rollouts").fetchall()
        self.ledger.moved({str(name): str(status) for name, status in rows})
        rows = connection.execute("SELECT id, status FROM attempts").fetchall()
        self.ledger.attempts_moved({str(name): str(status) for name, status in rows})

    # --- who takes part -----------------------------------------------------------------------------------

    async def client(self, process: Process) -> None:
        """Queues rollouts, and insists on an acknowledgement."""
        for number in range(self.chance.randint(2, 8)):
            key = f"{process.name}/{number}"
            how = self.chance.random()
            if how < 0.15:
                request = NewRollout(input="1", config=LINED, metadata="{}", line="l", idempotency_key=key)
                row = await process.retry_until(lambda r=request: process.rollouts.enqueue_new(r))  # type: ignore[misc]
                self.ledger.enqueued(key, row.rollout_id)
            elif how < 0.25:
                await process.retry_until(lambda: process.store.start_rollout("alone", config=self._config()))
            else:
                rollout = await process.retry_until(lambda k=key: self._enqueue(process, k))  # type: ignore[misc]
                self.ledger.enqueued(key, rollout.rollout_id)
            await asyncio.sleep(self.chance.uniform(0, 0.3 if self.calm else 4))
        await self._wait(process)

    async def _enqueue(self, process: Process, key: str) -> Any:
        later = self.chance.random() < 0.2
        return await process.store.enqueue_rollout(
            key,
            config=self._config(),
            priority=self.chance.choice([0, 0, 5]),
            not_before=self.clock.now() / 1e6 + self.chance.uniform(0, 8) if later else None,
            idempotency_key=key,
        )

    def _config(self) -> RolloutConfig:
        return RolloutConfig(
            timeout_seconds=LEASE,
            unresponsive_seconds=self.chance.choice([None, SILENCE]),
            max_attempts=self.chance.randint(1, 4),
            retry_condition=self.chance.choice([RETRY, RETRY, []]),
        )

    async def _wait(self, process: Process) -> None:
        """Wait for some of what was queued; a lost hint is made up for by polling."""
        polling = asyncio.create_task(self._every(process, 2.0, process.rollouts.watchdog.poll_ends))
        try:
            wanted = self.chance.sample(self.ledger.rollouts, min(3, len(self.ledger.rollouts)))
            for rollout in await process.retry_until(
                lambda: process.store.wait_for_rollouts(rollout_ids=wanted)
            ):
                if rollout.status not in ENDED:
                    raise Broken(f"{rollout.rollout_id} is {rollout.status} and was waited for")
                self.trace.add(process.name, "saw", rollout.rollout_id, rollout.status)
        finally:
            polling.cancel()

    async def _every(self, process: Process, seconds: float, action: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await process.retry_until(action)

    async def watchdog(self, process: Process) -> None:
        await self._every(process, 1.0, process.rollouts.watchdog.sweep)

    async def worker(self, process: Process) -> None:
        """Claims and works; a caller of its may lose patience in the middle of a claim."""
        while True:
            try:
                async with asyncio.timeout(self.chance.choice([None, None, 0.01, 0.1])):
                    claimed = await process.store.dequeue_many_rollouts(
                        limit=self.chance.randint(1, 2), worker_id=process.name
                    )
            except (errors.StorageError, TimeoutError):
                claimed = []
            for one in claimed:
                self.ledger.claimed(one)
                self.trace.add(process.name, "claims", one.rollout_id, one.attempt.sequence_id)
            await asyncio.gather(*(self._work(process, one) for one in claimed))
            await asyncio.sleep(self.chance.uniform(0.2, 2.0))

    async def _work(self, process: Process, one: AttemptedRollout) -> None:
        ids = (one.rollout_id, one.attempt.attempt_id)
        for _ in range(self.chance.randint(0, 2)):
            await asyncio.sleep(self._pause())
            number = await process.retry_until(lambda: process.store.get_next_span_sequence_id(*ids))
            self.ledger.numbered(one.rollout_id, number)
            span = make_span(one, number, span_id=f"{number:016x}", trace_id="1" * 32)
            await process.retry_until(lambda s=span: process.store.add_span(s))  # type: ignore[misc]
            self.ledger.spans.add((*ids, span.span_id))
        await asyncio.sleep(self._pause())
        status: AttemptStatus = "failed" if not self.calm and self.chance.random() < 0.25 else "succeeded"
        await process.retry_until(lambda: process.store.update_attempt(*ids, status=status))
        self.ledger.reports[ids] = status
        self.trace.add(process.name, "reports", *ids, status)

    def _pause(self) -> float:
        """Mostly short; in a storm now and then longer than the watchdog's patience."""
        if not self.calm and self.chance.random() < 0.15:
            return self.chance.uniform(SILENCE, 1.3 * LEASE)
        return self.chance.uniform(0.01, 0.8)

    async def operator(self, process: Process) -> None:
        """Cancels something now and then."""
        while not self.calm:
            await asyncio.sleep(self.chance.uniform(3, 12))
            lined = {rollout_id for key, rollout_id in self.ledger.keys.items() if self._in_line(rollout_id)}
            free = [rollout_id for rollout_id in self.ledger.rollouts if rollout_id not in lined]
            if free:
                chosen = self.chance.choice(free)
                await process.retry_until(lambda c=chosen: self._cancel(process, c))  # type: ignore[misc]

    def _in_line(self, rollout_id: str) -> bool:
        connection = self.database.inline.database.connection
        row = connection.execute("SELECT line FROM rollouts WHERE id = ?", (rollout_id,)).fetchone()
        return row is not None and row[0] is not None

    async def _cancel(self, process: Process, rollout_id: str) -> None:
        """Cancel what has not ended; an operator would not reopen what has."""
        rollout = await process.store.get_rollout_by_id(rollout_id)
        if rollout is not None and rollout.status not in ENDED:
            self.ledger.cancelling.add(rollout_id)
            await process.store.update_rollout(rollout_id, status="cancelled")
            self.ledger.cancelled.add(rollout_id)

    # --- what goes wrong ----------------------------------------------------------------------------------

    async def storm(self) -> None:
        """Faults of the kinds that this seed has, until the storm is over."""
        loop = asyncio.get_running_loop()
        kinds = [kind for kind in (self.weather, self.jump, self.crash) if self.chance.random() < 0.7]
        while loop.time() < STORM:
            await asyncio.sleep(self.chance.uniform(0.2, 3.0))
            self.raise_failures()
            if kinds:
                await self.chance.choice(kinds)()
        self.faults.stop()
        self.clock.settle()
        self.calm = True
        self.trace.add("the storm is over")

    async def weather(self) -> None:
        """Slow, cut, deaf: each a little or not at all."""
        faults = self.faults
        faults.latency = self._some(0.5)
        faults.error_before, faults.error_after = self._some(0.4), self._some(0.4)
        faults.lost, faults.doubled, faults.late = self._some(1.0), self._some(0.5), self._some(0.5)
        self.trace.add("weather", faults)

    def _some(self, most: float) -> float:
        return self.chance.choice([0.0, self.chance.uniform(0, most)])

    async def jump(self) -> None:
        seconds = self.chance.choice([-3600.0, -5.0, 5.0, 60.0, 3600.0])
        self.clock.jump(seconds)
        self.trace.add("the clock jumps", seconds)

    async def crash(self) -> None:
        victim = self.chance.randrange(len(self.processes))
        old = self.processes[victim]
        if old.task.done():
            return
        self.crashes += 1
        self.trace.add("crash of", old.name)
        await old.kill()
        await asyncio.sleep(self.chance.uniform(0, 2))
        self.processes[victim] = Process(self, old.name, old.main)

    # --- the run ------------------------------------------------------------------------------------------

    async def run(self) -> Result:
        mains: Iterable[tuple[str, Callable[[Process], Coroutine[Any, Any, None]]]] = [
            *((f"client{n}", self.client) for n in range(self.chance.randint(1, 3))),
            *((f"worker{n}", self.worker) for n in range(self.chance.randint(1, 4))),
            *((f"watchdog{n}", self.watchdog) for n in range(2)),
            ("operator", self.operator),
        ]
        for name, main in mains:
            self.processes.append(Process(self, name, main))
        await self.storm()
        await self.calm_down()
        self.check_acknowledged()
        for process in self.processes:
            await process.kill()
        self.raise_failures()
        self.database.close()
        return Result(self.trace.digest(), self.commits, len(self.ledger.statuses), self.crashes)

    async def calm_down(self) -> None:
        """Without faults everything ends, and every client hears of it, within three leases."""
        clients = [process.task for process in self.processes if process.name.startswith("client")]
        deadline = asyncio.get_running_loop().time() + 3 * LEASE
        while not (self._all_ended() and all(task.done() for task in clients)):
            if asyncio.get_running_loop().time() > deadline:
                open_ones = {
                    name: status for name, status in self.ledger.statuses.items() if status not in ENDED
                }
                raise Broken(f"not ended after three leases: {open_ones}, clients {clients}")
            await asyncio.sleep(0.5)
            self.raise_failures()

    def _all_ended(self) -> bool:
        statuses = self.ledger.statuses.values()
        return bool(statuses) and all(status in ENDED for status in statuses)

    def check_acknowledged(self) -> None:
        """Nothing that was acknowledged is lost."""
        connection = self.database.inline.database.connection
        spans = set(connection.execute("SELECT rollout_id, attempt_id, span_id FROM spans").fetchall())
        attempts = {
            (rollout_id, attempt_id): status
            for rollout_id, attempt_id, status in connection.execute(
                "SELECT rollout_id, id, status FROM attempts"
            ).fetchall()
        }
        lost = [
            *(key for key, rollout_id in self.ledger.keys.items() if rollout_id not in self.ledger.statuses),
            *(span for span in self.ledger.spans if span not in spans),
            *(ids for ids, status in self.ledger.reports.items() if attempts.get(ids) != status),
            *(name for name in self.ledger.cancelled if self.ledger.statuses[name] != "cancelled"),
        ]
        if lost:
            raise Broken(f"acknowledged and lost: {lost}")


def simulate(seed: int) -> Result:
    """One run in virtual time; a failure tells its seed and what happened last."""
    swarms: list[Swarm] = []

    async def main() -> Result:
        swarms.append(Swarm(seed))
        asyncio.get_running_loop().set_exception_handler(swarms[0].fail)
        return await swarms[0].run()

    outside = random.getstate()
    # The jitter of retries comes from here.
    random.seed(seed)
    try:
        return run_virtual(main)
    except BaseException as error:
        error.add_note(f"seed {seed}\n" + "\n".join(swarms[0].trace.lines if swarms else []))
        raise
    finally:
        random.setstate(outside)


def run(seeds: int = 20_000, first: int = 0) -> list[Result]:
    """The long run: that many seeds, one after the other."""
    return [simulate(seed) for seed in range(first, first + seeds)]
