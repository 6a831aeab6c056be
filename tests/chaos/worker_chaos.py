"""Three workers execute runs while workers, Redis and the server are killed, frozen, stopped and restarted.

A client in a process of its own asks for the runs and reads their streams. Every worker writes down what it
asked for and what its agents did outside the database; at the end the checker of effects compares all of it
with the rows.
"""

import asyncio
import os
import random
import select
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import redis
from tests.chaos.agents import TOKENS
from tests.chaos.client import ClientPlan
from tests.chaos.handle import ROOT, Child
from tests.chaos.planted import Planted
from tests.chaos.scenario import Run
from tests.chaos.worker import READY, WorkerPlan
from tests.support.effects import check_effects
from tests.support.history import History
from tests.support.python_process import PythonProcess
from tests.support.recording import read_log
from tests.support.run_snapshot import RunRows, take_runs

from perdure.runtime.stores import open_store
from perdure.testing.redis_server import RedisServer
from perdure.testing.servers import PostgresServer, free_port
from perdure.testing.serving import ServerProcess

WORKERS = 3
LEASE = 1.5
RUNS_A_THREAD = 16
MANY = 1000
"""From so many runs on they are short, so that it does not take too long."""
FAULTS = 150
"""So many faults or so are spread over many runs, and at least one over a few."""
FEW = 3
SPREAD_SECONDS = 5.0
CALM = 0.9
"""When so many of the runs have ended the faults end, and the rest must end in good time."""
END_SECONDS = 120.0
STOP_SECONDS = 30.0
WORKER = (sys.executable, "-m", "tests.chaos.worker")
CLIENT = (sys.executable, "-m", "tests.chaos.client")
SERVER = (sys.executable, "-m", "tests.chaos.planted", "serve", "--no-worker", "--database")
FAILURES = ("the worker failed to execute it", "a loop of the worker failed")

Fault = Callable[[], None]


def surroundings(run: Run, **settings: Any) -> dict[str, str]:
    """The environment of all processes: short clocks, and no surprise from outside."""
    own = {
        "BG_JOB_HEARTBEAT": LEASE,
        "BG_JOB_INTERVAL": 0.5,
        "BG_JOB_TIMEOUT_SECS": 120,
        "N_JOBS_PER_WORKER": 12 if run.size >= MANY else 3,
        "SHUTDOWN_GRACE_PERIOD_SECS": 0.2,
        "PERDURE_WATCHDOG_INTERVAL": 0.25,
        "PERDURE_WEBHOOK_ALLOW_PRIVATE": "true",
        "LOG_LEVEL": "warning",
    }
    planted = {} if run.planted is None else Planted(run.planted, seed=run.seed).environment
    return {**os.environ, **{name: str(value) for name, value in {**own, **settings}.items()}, **planted}


class WorkerChaos:
    """The processes, what is done to them, and what came of it."""

    def __init__(
        self,
        run: Run,
        database: str,
        environment: Mapping[str, str],
        *,
        server: ServerProcess | None = None,
        carrier: RedisServer | None = None,
    ) -> None:
        self._run = run
        self._random = random.Random(run.seed)
        self._database = database
        self._environment = environment
        self._server = server
        self._carrier = carrier
        self._log = run.folder / "effects.log"
        self._children: list[Child] = []
        self._workers: list[Child] = []
        self._frozen: Child | None = None
        self._leaving: list[Child] = []
        self._started = 0

    def perform(self) -> None:
        try:
            self._spare, self._client = self._child(WORKER), self._child(CLIENT)
            self._workers = [self._begin() for _ in range(WORKERS)]
            for worker in self._workers:
                if not worker.listen(lambda line: line == READY):
                    self._run.found("at the start", [f"a worker does not start: {worker.errors()}"])
                    return
            self._client.go(self._plan())
            self._torment()
            self._await_end()
            self._stop_all()
        finally:
            for child in self._children:
                child.close()
        self._check()

    def _child(self, command: tuple[str, ...]) -> Child:
        self._children.append(Child(command, environment=self._environment))
        return self._children[-1]

    def _close(self, child: Child) -> None:
        self._children.remove(child)
        child.close()

    def _begin(self) -> Child:
        """Let the worker that was started ahead begin, and start another one ahead."""
        self._started += 1
        url = self._server.url if self._server is not None else None
        worker = self._spare.go(WorkerPlan(f"w{self._started}", str(self._log), url))
        self._spare = self._child(WORKER)
        return worker

    def _plan(self) -> ClientPlan:
        size = self._run.size
        threads = max(size // RUNS_A_THREAD, min(size, 12))
        return ClientPlan(
            log=str(self._log),
            runs=size,
            threads=threads,
            seed=self._random.getrandbits(32),
            webhook=f"http://127.0.0.1:{free_port()}/ended",
            url=self._server.url if self._server is not None else None,
            width=32 if size >= MANY else 8,
            pause=0.25 if size >= MANY else 0.5,
        )

    def _hear(self, seconds: float) -> None:
        """Let some time pass, and count the runs that end meanwhile."""
        deadline = time.monotonic() + seconds
        while not self._client.finished and (left := deadline - time.monotonic()) > 0:
            if select.select([self._client], [], [], left)[0]:
                count = len(self._client.read())
                if count:
                    self._run.advance(f"{sum(self._faults.values())} faults", count)

    # --- the faults ---------------------------------------------------------------------------------------

    @property
    def _faults(self) -> dict[str, int]:
        return {name: count for name, count in self._run.facts.items() if name.startswith("fault: ")}

    def _deck(self) -> list[Fault]:
        """Everything that can be done, each at least once, in a random order."""
        deck: list[Fault] = [self._freeze_worker, self._kill_worker, self._ask_worker_to_stop]
        if self._run.size >= MANY:
            deck.append(self._freeze_worker)
        if self._carrier is not None:
            deck += [self._kill_redis, self._flush_redis, self._freeze_redis]
        if self._server is not None:
            deck.append(self._kill_server)
        return self._random.sample(deck, len(deck))

    def _torment(self) -> None:
        """Do one thing after another until most runs have ended; all of them are done at least once."""
        deck, rounds = self._deck(), 0
        began = time.monotonic()
        while not self._run.done and not self._client.finished and time.monotonic() - began < END_SECONDS:
            self._hear(0.1)
        while not self._client.finished and (rounds == 0 or self._run.done < self._run.size * CALM):
            deck.pop()()
            self._work_on()
            self._part_with([worker for worker in self._leaving if not worker.running])
            if not deck and rounds == 0:
                self._client.ask_to_stop()
            if not deck:
                deck, rounds = self._deck(), rounds + 1

    def _work_on(self) -> None:
        """Let some runs end before the next fault, if they do."""
        enough = self._run.done + max(self._run.size / FAULTS, FEW) * self._random.uniform(0, 2)
        deadline = time.monotonic() + SPREAD_SECONDS
        while not self._client.finished and self._run.done < enough and time.monotonic() < deadline:
            self._hear(0.05)

    def _did(self, fault: str) -> None:
        self._run.facts[f"fault: {fault}"] += 1

    def _choose(self) -> int:
        awake = [place for place, worker in enumerate(self._workers) if worker is not self._frozen]
        return self._random.choice(awake)

    def _kill_worker(self) -> None:
        place = self._choose()
        self._look_at(self._workers[place])
        self._workers[place].kill()
        self._close(self._workers[place])
        self._did("worker killed")
        self._hear(self._random.choice((0.0, self._random.uniform(0, LEASE))))
        self._workers[place] = self._begin()

    def _ask_worker_to_stop(self) -> None:
        place = self._choose()
        self._workers[place].send(signal.SIGTERM)
        self._leaving.append(self._workers[place])
        self._did("worker asked to stop")
        self._workers[place] = self._begin()

    def _freeze_worker(self) -> None:
        """Stop a worker past its lease, do something else meanwhile, and let it go on."""
        self._frozen = worker = self._workers[self._choose()]
        worker.send(signal.SIGSTOP)
        self._did("worker frozen")
        began = time.monotonic()
        self._hear(self._random.uniform(0, LEASE))
        if self._random.random() < 0.7:
            self._random.choice([fault for fault in self._deck() if fault != self._freeze_worker])()
        self._hear(LEASE * self._random.uniform(1.3, 2.5) - (time.monotonic() - began))
        worker.send(signal.SIGCONT)
        self._frozen = None

    def _kill_redis(self) -> None:
        assert self._carrier is not None
        self._carrier.kill()
        self._did("Redis killed")
        self._hear(self._random.uniform(0.1, 2.0))
        self._carrier.start()

    def _flush_redis(self) -> None:
        assert self._carrier is not None
        with redis.Redis.from_url(self._carrier.url, protocol=2) as client:
            client.flushall()
        self._did("Redis flushed")

    def _freeze_redis(self) -> None:
        assert self._carrier is not None
        self._carrier.pause()
        self._did("Redis frozen")
        self._hear(self._random.uniform(0.3, 3.0))
        self._carrier.resume()

    def _kill_server(self) -> None:
        assert self._server is not None
        self._server.kill()
        self._did("server killed")
        self._hear(self._random.choice((0.0, self._random.uniform(0, LEASE))))
        self._server.start()

    # --- the end ------------------------------------------------------------------------------------------

    def _await_end(self) -> None:
        """With the faults over, everything ends within a bound."""
        calm = time.monotonic()
        while not self._client.finished and time.monotonic() - calm < END_SECONDS:
            self._hear(1.0)
        self._run.facts["milliseconds to the end"] += int((time.monotonic() - calm) * 1000)
        if not self._client.finished:
            self._run.found("at the end", [f"runs are left after {END_SECONDS:.0f} s"])
        elif self._client.end() != 0:
            self._run.found("at the end", [f"the client failed: {self._client.errors()}"])

    def _stop_all(self) -> None:
        for worker in self._workers:
            worker.send(signal.SIGTERM)
        self._leaving += self._workers
        self._part_with(list(self._leaving))
        if self._server is not None:
            self._server.stop()

    def _part_with(self, leaving: list[Child]) -> None:
        for worker in leaving:
            code = worker.end(STOP_SECONDS)
            # One that was asked to stop before it had begun does not know the signal yet.
            if code != 0 and not (code == -signal.SIGTERM and READY not in worker.lines):
                self._run.found("in a worker", [f"it ended with {code}: {worker.errors()}"])
            self._look_at(worker)
            self._leaving.remove(worker)
            self._close(worker)

    def _look_at(self, worker: Child) -> None:
        if any(words in worker.errors() for words in FAILURES):
            self._run.found("in a worker", [worker.errors()])

    def _check(self) -> None:
        history = read_log(self._log)
        rows = asyncio.run(_rows(self._database))
        report = check_effects(history, rows, grace=LEASE, resent=self._server is not None)
        self._run.facts["checks"] += 1
        self._run.facts.update(report.facts)
        self._run.facts["reject refused"] += sum(
            call.function == "create" and call.code == "conflict" for call in history
        )
        self._run.facts.update(Counter(f"ended: {row.status}" for row in rows.runs.values()))
        self._run.found("at the end", [*report.violations, *_results(history, rows)])


async def _rows(database: str) -> RunRows:
    store = open_store(database, watchdog_interval=None)
    try:
        return await take_runs(store.storage)
    finally:
        await store.close()


def _results(history: History, rows: RunRows) -> Iterator[str]:
    """Each run ended as its agent was told to, or was cancelled; and each did what it did once, in order."""
    cancelled = {"interrupted", "rollback"}
    threads: dict[str, dict[str, str]] = defaultdict(dict)
    for call in history:
        if call.function == "create" and call.ok and (row := rows.runs.get(call.got["run"])):
            threads[row.thread][row.token] = row.status
            told = "error" if call.given["fate"] == "error" else "success"
            if row.status not in {told, *cancelled}:
                yield f"run {row.id} of {row.token} was to end with {told}, and is {row.status}"
    for thread, statuses in threads.items():
        kept = list((rows.values.get(thread) or {}).get(TOKENS, ()))
        if kept != sorted(set(kept), key=lambda token: int(token.rpartition(".")[2])):
            yield f"thread {thread} went through {kept}"
        for token, status in statuses.items():
            if (status == "success" and token not in kept) or (status == "rollback" and token in kept):
                yield f"{token} is {status}, and its thread went through {kept}"


def torment_on_postgres(run: Run) -> None:
    """Workers on PostgreSQL, with Redis between them."""
    with PostgresServer(fsync=False) as postgres:
        torment_on(run, postgres.create_database("worker-chaos"))


def torment_on(run: Run, database: str) -> None:
    """Workers on a PostgreSQL that runs already."""
    with RedisServer() as carrier:
        environment = surroundings(run, PERDURE_DATABASE_URL=database, PERDURE_REDIS_URL=carrier.url)
        WorkerChaos(run, database, environment, carrier=carrier).perform()


def torment_on_sqlite(run: Run) -> None:
    """Remote workers of a server on a SQLite file."""
    database = f"sqlite:///{Path(run.folder) / 'runs.db'}"
    environment = surroundings(run)
    command = [*SERVER, database]
    with ServerProcess(command, folder=ROOT, environment=environment, popen=PythonProcess) as server:
        WorkerChaos(run, database, environment, server=server).perform()
