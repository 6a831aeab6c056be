"""A SQLite file and its log as a killed process left them, cut and flipped at any place, and opened again.

The log holds the last transactions, each under a checksum that the next one's builds on. The process made one
call after the other, so that the order of its transactions is known: whatever is torn in the log, what is
recovered must be exactly the calls before the tear, each whole.
"""

import asyncio
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.scenario import Run
from tests.chaos.stores import TABLES
from tests.chaos.writer import NAMESPACE, make_torn_file
from tests.support.checker import check_rows
from tests.support.snapshot import Snapshot, take

from perdure.kernel.storage.sqlite import SqliteStorage

LOG_HEADER = 32
FRAME_HEADER = 24

Damage = Callable[[random.Random, bytes], bytes]


@dataclass(frozen=True)
class Log:
    """A write-ahead log: its bytes, its frames, and where each transaction ends."""

    content: bytes
    frame: int
    ends: tuple[int, ...]

    @classmethod
    def read(cls, path: Path) -> "Log":
        content = path.read_bytes()
        frame = int.from_bytes(content[8:12], "big") + FRAME_HEADER
        starts = range(LOG_HEADER, len(content) - frame + 1, frame)
        # A frame that ends a transaction says how many pages the database has after it.
        ends = tuple(start + frame for start in starts if any(content[start + 4 : start + 8]))
        return cls(content, frame, ends)

    def intact(self, torn: bytes) -> int:
        """How many transactions lie before the first frame that differs."""
        if self.content[:LOG_HEADER] != torn[:LOG_HEADER]:
            return 0
        starts = range(LOG_HEADER, len(self.content), self.frame)
        sound = next(
            (s for s in starts if self.content[s : s + self.frame] != torn[s : s + self.frame]), None
        )
        return len(self.ends) if sound is None else sum(end <= sound for end in self.ends)


def cut(chance: random.Random, content: bytes) -> bytes:
    return content[: chance.randrange(len(content))]


def flip(chance: random.Random, content: bytes) -> bytes:
    """Turn one bit over; now and then in the header."""
    place = chance.randrange(LOG_HEADER if chance.random() < 0.05 else len(content))
    return content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :]


def blank(chance: random.Random, content: bytes) -> bytes:
    """Nothing but zeros over a stretch, as a disk may leave it."""
    start = chance.randrange(len(content))
    length = min(chance.choice((512, 4096, 65536)), len(content) - start)
    return content[:start] + bytes(length) + content[start + length :]


def repeat(chance: random.Random, content: bytes) -> bytes:
    """An earlier stretch once more, over a later one."""
    length = min(chance.choice((512, 4096, 65536)), len(content) // 2)
    source, target = sorted(chance.sample(range(len(content) - length), 2))
    return content[:target] + content[source : source + length] + content[target + length :]


def litter(chance: random.Random, content: bytes) -> bytes:
    """Cut, with rubbish after it."""
    return cut(chance, content) + chance.randbytes(chance.randrange(1, 9000))


DAMAGES: tuple[Damage, ...] = (cut, cut, flip, flip, blank, repeat, litter)


class TornLogs:
    """One file and its log, damaged over and over."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._random = random.Random(run.seed)
        self._origin = run.folder / "origin"
        self._written = make_torn_file(self._origin / "torn.db")
        self._log = Log.read(self._origin / "torn.db-wal")
        self._first = len(self._log.ends) - self._written.after_reopening
        run.facts["transactions"] = len(self._log.ends)

    def tear_all(self) -> None:
        for number in range(1, self._run.size + 1):
            damage = self._random.choice(DAMAGES)
            self._run.facts[damage.__name__] += 1
            asyncio.run(self._tear(f"{damage.__name__} {number}", damage(self._random, self._log.content)))
            self._run.advance(f"{len(self._log.ends)} transactions in the log")

    def cut_at_every_end(self) -> None:
        """Cut where a transaction ends, and one byte before."""
        for end in self._log.ends:
            for length in (end, end - 1):
                asyncio.run(self._tear(f"cut at {length}", self._log.content[:length]))
                self._run.advance()

    async def _tear(self, where: str, torn: bytes) -> None:
        path = self._lay_out(torn)
        storage = SqliteStorage(path, TABLES)
        try:
            snapshot = await take(storage, NAMESPACE)
        finally:
            await storage.close()
        self._run.found(where, self._compare(snapshot, self._log.intact(torn)))

    def _lay_out(self, torn: bytes) -> Path:
        """The files as they would be found; the index of the log may be there or not."""
        folder = self._run.folder / "torn"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        shutil.copy(self._origin / "torn.db", folder)
        if self._random.random() < 0.5:
            shutil.copy(self._origin / "torn.db-shm", folder)
        (folder / "torn.db-wal").write_bytes(torn)
        return folder / "torn.db"

    def _compare(self, snapshot: Snapshot, transactions: int) -> list[str]:
        expected = self._written.before_reopening + max(0, transactions - self._first)
        whole, mixed = self._written.found_in(snapshot)
        wrong = [f"half of {each} is there" for each in mixed]
        if whole != list(range(1, expected + 1)):
            wrong.append(f"of {expected} calls before the tear there are {_ranges(whole)}")
        return wrong + check_rows(snapshot)


def _ranges(numbers: list[int]) -> str:
    return f"{numbers[:1]}…{numbers[-1:]} ({len(numbers)})"


def tear_logs(run: Run) -> None:
    TornLogs(run).tear_all()
