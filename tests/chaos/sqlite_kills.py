"""A process that works on a SQLite file is killed over and over; the next goes on with the same file."""

import asyncio
import random
import time
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Literal

from tests.chaos.child import Plan
from tests.chaos.handle import Child
from tests.chaos.scenario import Run
from tests.chaos.stores import damaged_pages, open_storage, read
from tests.support.checker import check
from tests.support.history import History

EPOCH = 25
"""After so many kills the work goes on in a new namespace of the same file, so that checks stay quick."""

Moment = Literal["opening", "work", "checkpoints", "closing"]
MOMENTS: tuple[Moment, ...] = ("opening", "work", "work", "work", "checkpoints", "closing")
SIGNS: dict[Moment, tuple[bytes, int, float]] = {
    "opening": (b'"opening"', 1, 0.03),
    "work": (b"", 400, 0.003),
    "checkpoints": (b'"checkpoint"', 10, 0.004),
    "closing": (b'"closing"', 1, 0.02),
}
"""What a child says at each moment, how often at most before it is killed, and the longest blink after it."""


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
        during = self._random.choice(MOMENTS)
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

    def _wait_for_the_moment(self, child: Child, during: Moment) -> None:
        """Wait for a sign of what the child does, and then for a blink."""
        sign, most, blink = SIGNS[during]
        heard, wanted = count(1), self._random.randint(1, most)
        reached = child.listen(lambda line: sign in line and next(heard) >= wanted)
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
