"""The HTTP server is killed under a load of rollouts, and started again on its database and its port.

Two processes make the rollouts and work them off through the client, whose own retries are all that brings
them over a kill. At the end every rollout must have ended, once, and all that was acknowledged must be there.
"""

import asyncio
import random
import select
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

from tests.chaos.child import Plan
from tests.chaos.handle import ROOT, Child
from tests.chaos.scenario import Run
from tests.chaos.stores import open_storage, read
from tests.support.checker import check
from tests.support.history import History
from tests.support.python_process import PythonProcess

from perdure.rollouts.model import ENDED
from perdure.testing.servers import PostgresServer
from perdure.testing.serving import ServerProcess

CHILDREN = 2
WORKERS = 8
SILENCE = 1.0
NAMESPACE = "chaos"
STILL_SECONDS = 60.0
"""After so long without a word from any child, the load stands still."""
COMMAND = (sys.executable, "-m", "tests.chaos.server", "--database")


class ServerKills:
    """One server, killed over and over, and the children that must live through it."""

    def __init__(self, run: Run, database: str) -> None:
        self._run = run
        self._random = random.Random(run.seed)
        self._database = database
        self._server = ServerProcess([*COMMAND, database], folder=ROOT, popen=PythonProcess)
        self._children: list[Child] = []
        self._reports = self._acknowledged = 0

    def kill_all(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(self._server)
            self._children = [
                stack.enter_context(Child()).go(self._plan(number)) for number in range(1, CHILDREN + 1)
            ]
            for moment in self._moments():
                self._kill_at(moment)
            if not self._hear(lambda: all(child.finished for child in self._children)):
                self._run.found("at the end", [f"the load stands still: {self._server.log()}"])
            self._end_children()
        asyncio.run(self._check())

    def _plan(self, number: int) -> Plan:
        return Plan(
            url=self._server.url,
            process=f"c{number}",
            number=number,
            seed=self._random.getrandbits(32),
            namespace=NAMESPACE,
            workers=WORKERS,
            silence=SILENCE,
            rollouts=-(-self._run.rollouts // CHILDREN),
        )

    def _moments(self) -> list[int]:
        """After how many reports the server is killed: spread over the load, and never quite evenly."""
        span = self._run.rollouts * 0.8 / max(self._run.size, 1)
        return [int(span * (number + self._random.random())) for number in range(self._run.size)]

    # --- the kills ----------------------------------------------------------------------------------------

    def _kill_at(self, moment: int) -> None:
        """Kill the server in the middle of the work, start it again, and wait until the work goes on."""
        if not self._hear(lambda: self._reports >= moment):
            self._run.found(f"report {moment}", [f"the load stands still: {self._server.log()}"])
        time.sleep(self._random.uniform(0, 0.02))
        self._server.kill()
        time.sleep(self._random.choice((0.0, 0.0, self._random.uniform(0, 0.5))))
        self._server.start()
        before = self._acknowledged
        self._hear(lambda: self._acknowledged > before)
        self._run.advance(f"{self._acknowledged} acknowledged")

    def _hear(self, enough: Callable[[], bool]) -> bool:
        """Listen to all children until it is enough; False when they have been silent for too long."""
        while not enough():
            speaking = [child for child in self._children if not child.finished]
            ready = select.select(speaking, [], [], STILL_SECONDS)[0] if speaking else []
            if not ready:
                return enough()
            for child in ready:
                for line in child.read():
                    self._reports += b'"report"' in line
                    self._acknowledged += line.startswith(b'["ok"')
        return True

    def _end_children(self) -> None:
        for child in self._children:
            if child.finished and child.end() != 0:
                self._run.found("at the end", [f"a child failed: {child.errors()}"])

    # --- the check ----------------------------------------------------------------------------------------

    async def _check(self) -> None:
        history = History()
        for child in self._children:
            history.read(child.lines)
        self._run.count(history)
        storage = open_storage(self._database)
        try:
            snapshot, endings = await read(storage, NAMESPACE)
        finally:
            await storage.close()
        self._run.checked("at the end", check(history, snapshot, endings=endings, resent=True))
        ended = sum(row.status in ENDED for row in snapshot.rollouts.values())
        self._run.facts["rollouts ended"] += ended
        if ended != len(snapshot.rollouts) or ended < self._run.rollouts:
            wrong = f"of {self._run.rollouts} rollouts there are {len(snapshot.rollouts)}, {ended} have ended"
            self._run.found("at the end", [wrong])


def kill_server_on_sqlite(run: Run) -> None:
    ServerKills(run, str(run.folder / "server.db")).kill_all()


def kill_server_on_postgres(run: Run) -> None:
    with PostgresServer(fsync=True) as server:
        ServerKills(run, server.create_database("server-kills")).kill_all()
