"""A process that works on a SQLite file is killed over and over; the next goes on with the same file."""

import asyncio
import random
import time
from collections.abc import Iterable
from itertools import count
from pathlib import Path

from perdure.testing.checker import check
from perdure.testing.history import History
from tests.chaos.child import Plan
from tests.chaos.handle import Child
from tests.chaos.scenario import Run
from tests.chaos.stores import damaged_pages, open_storage, read

EPOCH = 25
"""After so many kills the work goes on in a new namespace of the same file, so that checks stay quick."""

ENTRIES = 400
"""A child that works is killed after at most so many lines of its history."""


class SqliteKills:
    """One file, and the children that come and go."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._random = random.Random(run.seed)
        self._path = run.folder / "kills.db"
        self._history = History()
        self._epoch = 0
        self._acknowledged = 0
        self._spare = Child()

    def kill_all(self) -> None:
        try:
            for number in range(1, self._run.size + 1):
                self._kill_one(number)
                if self._random.random() < 0.7 or number % 10 == 0 or number == self._run.size:
                    self._check(number)
                if number % EPOCH == 0:
                    self._next_epoch()
                self._run.advance(f"{self._acknowledged} acknowledged")
            self._next_epoch()
            self._check_all_epochs()
        finally:
            self._spare.close()

    def _namespace(self, epoch: int) -> str:
        return f"epoch-{epoch}"

    def _kill_one(self, number: int) -> None:
        during = self._random.choice(("opening", "work", "work", "work", "checkpoints", "closing"))
        plan = Plan(
            url=str(self._path),
            process=f"k{number}",
            number=number,
            seed=self._random.getrandbits(32),
            namespace=self._namespace(self._epoch),
            during="work" if during == "opening" else during,
        )
        with self._spare.go(plan) as child:
            self._spare = Child()
            self._wait_for_the_moment(child, during)
            if child.finished and during != "closing":
                self._run.found(f"kill {number}", [f"the child ended by itself: {child.errors()}"])
            child.kill()
        self._run.facts[f"killed during {during}"] += 1
        self._keep(child.lines)

    def _wait_for_the_moment(self, child: Child, during: str) -> None:
        """Wait for a sign of what the child does, and then for a blink."""
        heard = count(1)
        if during == "opening":
            reached, blink = child.listen(lambda line: b'"opening"' in line), 0.03
        elif during == "checkpoints":
            wanted = self._random.randint(1, 10)
            reached, blink = child.listen(lambda line: b'"checkpoint"' in line and next(heard) >= wanted), 0.004
        elif during == "closing":
            reached, blink = child.listen(lambda line: b'"closing"' in line), 0.02
        else:
            wanted = self._random.randint(1, ENTRIES)
            reached, blink = child.listen(lambda line: next(heard) >= wanted), 0.003
        if not reached and not child.finished:
            self._run.found(child.lines[-1].decode() if child.lines else "a child", ["it stands still"])
        time.sleep(self._random.uniform(0, blink))

    def _keep(self, lines: list[bytes]) -> None:
        self._history.read(lines)
        self._acknowledged += sum(line.startswith(b'["ok"') for line in lines)
        with self._log(self._epoch).open("ab") as log:
            log.writelines(line + b"\n" for line in lines)

    def _log(self, epoch: int) -> Path:
        return self._run.folder / f"epoch-{epoch}.jsonl"

    def _next_epoch(self) -> None:
        self._run.count(self._history)
        self._history = History()
        self._epoch += 1

    def _check(self, number: int) -> None:
        """Open the file as its next owner would, and compare it with the history."""
        asyncio.run(
            self._check_epochs(f"kill {number}", [(self._epoch, self._history)], pages=number % 10 == 0)
        )

    def _check_all_epochs(self) -> None:
        epochs = ((epoch, self._reread(epoch)) for epoch in range(self._epoch))
        asyncio.run(self._check_epochs("at the end", epochs, pages=True))

    def _reread(self, epoch: int) -> History:
        history = History()
        if self._log(epoch).exists():
            history.read(self._log(epoch).read_bytes().splitlines())
        return history

    async def _check_epochs(self, where: str, epochs: Iterable[tuple[int, History]], *, pages: bool) -> None:
        storage = open_storage(str(self._path))
        try:
            for epoch, history in epochs:
                snapshot, endings = await read(storage, self._namespace(epoch))
                self._run.checked(f"{where}, epoch {epoch}", check(history, snapshot, endings=endings))
            if pages:
                self._run.found(where, await storage.read(damaged_pages))
                self._run.facts["quick checks"] += 1
        finally:
            await storage.close()


def kill_on_sqlite(run: Run) -> None:
    SqliteKills(run).kill_all()
