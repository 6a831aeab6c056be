"""A process that writes to a SQLite file, one call after the other, until it is killed.

`python -m tests.chaos.writer PATH ROUNDS` closes the file once half way: what follows is in the log alone.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from tests.chaos.handle import ROOT
from tests.chaos.stores import open_storage, store_over
from tests.support.snapshot import Snapshot

from perdure.rollouts.records import AttemptedRollout, EnqueueRolloutRequest
from perdure.rollouts.resources import LLM
from perdure.rollouts.store import DatabaseLightningStore
from perdure.spans.records import Span

NAMESPACE = "torn"
ROUNDS = 30
RESOURCES = "rs-000000000000"


class Writer:
    """Makes calls of one transaction each, and says what each wrote."""

    def __init__(self, store: DatabaseLightningStore, written: int) -> None:
        self._store = store
        self._calls = written

    def _token(self, part: int = 0) -> str:
        return f"c{self._calls}.{part}"

    def _say(self, kind: str, marks: Iterable[str]) -> None:
        sys.stdout.buffer.write(msgspec.json.encode([kind, *marks]) + b"\n")
        sys.stdout.buffer.flush()

    async def round(self) -> int:
        """Five calls, each acknowledged before the next; gives how many there were in all."""
        await self._enqueue()
        rollout = await self._start()
        await self._spans(rollout)
        await self._report(rollout)
        await self._resources()
        return self._calls

    async def _enqueue(self) -> None:
        self._calls += 1
        tokens = [self._token(part) for part in range(3)]
        await self._store.enqueue_many_rollouts(
            [EnqueueRolloutRequest(input={"token": token}) for token in tokens]
        )
        self._say("rollouts", tokens)

    async def _start(self) -> AttemptedRollout:
        self._calls += 1
        rollout = await self._store.start_rollout({"token": self._token()}, worker_id="writer")
        self._say("rollouts", [self._token()])
        return rollout

    async def _spans(self, rollout: AttemptedRollout) -> None:
        self._calls += 1
        ids = [format((self._calls << 8) + part, "016x") for part in range(4)]
        spans = [
            Span.from_attributes(
                attributes={"text": "word " * 200},
                rollout_id=rollout.rollout_id,
                attempt_id=rollout.attempt.attempt_id,
                span_id=span_id,
            )
            for span_id in ids
        ]
        await self._store.add_many_spans(spans)
        self._say("spans", ids)

    async def _report(self, rollout: AttemptedRollout) -> None:
        self._calls += 1
        await self._store.update_attempt(
            rollout.rollout_id,
            rollout.attempt.attempt_id,
            status="succeeded",
            metadata={"token": self._token()},
        )
        self._say("reports", [self._token()])

    async def _resources(self) -> None:
        self._calls += 1
        await self._store.update_resources(RESOURCES, {"llm": LLM(endpoint="none", model=self._token())})
        self._say("resources", [self._token()])


@dataclass
class Written:
    """What was acknowledged: a list of marks for each call, by their kind."""

    calls: list[list[str]] = field(default_factory=list)
    before_reopening: int = 0

    @property
    def after_reopening(self) -> int:
        return len(self.calls) - self.before_reopening

    def found_in(self, snapshot: Snapshot) -> tuple[list[int], list[str]]:
        """The numbers of the calls that are there whole, and those of which only a part is."""
        marks = _marks(snapshot)
        whole, mixed = [], []
        for number, (kind, *wanted) in enumerate(self.calls, start=1):
            present = sum(mark in marks[kind] for mark in wanted)
            if present == len(wanted):
                whole.append(number)
            elif present:
                mixed.append(f"call {number} ({kind})")
        return whole, mixed


def _marks(snapshot: Snapshot) -> dict[str, set[str]]:
    return {
        "rollouts": {row.token for row in snapshot.rollouts.values()},
        "spans": {row.span_id for row in snapshot.spans},
        "reports": {row.report for rows in snapshot.attempts.values() for row in rows},
        "resources": {msgspec.json.decode(body)["llm"]["model"] for body in snapshot.resources.values()},
    }


def make_torn_file(path: Path, rounds: int = ROUNDS) -> Written:
    """Let a process write to a new file, and kill it when it has been answered the last time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = Written()
    command = [sys.executable, "-m", "tests.chaos.writer", str(path), str(rounds)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            call = msgspec.json.decode(line)
            if call == ["reopened"]:
                written.before_reopening = len(written.calls)
            elif call == ["done"]:
                process.kill()
            else:
                written.calls.append(call)
    return written


async def main(path: str, rounds: int) -> None:
    written = 0
    for half in ("first", "second"):
        store = store_over(open_storage(path), NAMESPACE, 3600.0)
        if half == "second":
            print('["reopened"]', flush=True)
        writer = Writer(store, written)
        for _ in range(rounds // 2):
            written = await writer.round()
        if half == "first":
            await store.close()
    print('["done"]', flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
