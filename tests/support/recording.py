"""Records the calls of workers to a run queue, and the actions of agents, so that both can be checked.

Many processes append to one file. The lines of a killed process stay; only the line that it was writing may
be torn, and reading skips it.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from tests.support.history import History, Recorder

from perdure.agents.records import AgentSpec
from perdure.checkpoints.records import CheckpointQuery, GraphDelta, GraphDeltaQuery, GraphSteps, GraphTuple
from perdure.items.records import ItemOp, ItemResult
from perdure.runs.queue import RunQueue
from perdure.streams.model import NewEvent
from perdure.threads.model import RUN_QUEUES, QueueName
from perdure.threads.records import Checkpoint, NewCheckpoint, Run
from perdure.threads.work import Assignment, Ending, Lease, Verdict

T = TypeVar("T")


class EffectLog:
    """A file to which any number of processes append whole lines."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, line: bytes) -> None:
        """Append a line with one system call. Safe from any thread."""
        # The leading line end separates it from a line torn by a kill.
        os.write(self._file, b"\n" + line)

    def close(self) -> None:
        os.close(self._file)


def read_log(path: Path) -> History:
    """Read the history from a file that many processes have written."""
    history = History()
    history.read(_whole(path.read_bytes()))
    return history


def _whole(data: bytes) -> Iterator[bytes]:
    for line in data.split(b"\n"):
        if line and _is_whole(line):
            yield line


def _is_whole(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except msgspec.DecodeError:
        return False
    return True


class RecordingQueue(RunQueue):
    """A run queue that records claims, renewals and fenced writes, with their answers."""

    def __init__(self, queue: RunQueue, recorder: Recorder) -> None:
        self._queue = queue
        self._recorder = recorder

    async def register(
        self,
        worker_id: str,
        agents: Sequence[AgentSpec],
        concurrency: int | None = None,
        queues: Sequence[QueueName] = RUN_QUEUES,
        built_in: Sequence[str] = (),
    ) -> None:
        await self._queue.register(worker_id, agents, concurrency, queues, built_in)

    async def deregister(self, worker_id: str) -> None:
        await self._queue.deregister(worker_id)

    def is_followed(self, held: Lease) -> bool | None:
        return self._queue.is_followed(held)

    def claimer(self, worker_id: str, agents: Sequence[str], queues: Sequence[str]) -> None:
        """Do nothing: the queue itself waits, so that each claim is recorded."""

    async def claim(
        self,
        worker_id: str,
        agents: Sequence[str],
        limit: int = 1,
        wait: float = 0.0,
        queues: Sequence[QueueName] = RUN_QUEUES,
        *,
        idempotency_key: str | None = None,
    ) -> list[Assignment]:
        asking = self._queue.claim(worker_id, agents, limit, wait, queues)
        return await self._call("claim", {"worker": worker_id, "limit": limit}, asking, _claims)

    async def renew(self, worker_id: str, held: Sequence[Lease]) -> list[Verdict]:
        attempts = [each.attempt_id for each in held]
        if not attempts:
            return await self._queue.renew(worker_id, held)

        def going(verdicts: Sequence[Verdict]) -> dict[str, Any]:
            pairs = zip(attempts, verdicts, strict=True)
            return {"going": [attempt for attempt, verdict in pairs if verdict == "go"]}

        return await self._call("renew", {"attempts": attempts}, self._queue.renew(worker_id, held), going)

    async def controls(self, held: Sequence[Lease], wait: float = 0.0) -> dict[str, Verdict]:
        return await self._queue.controls(held, wait)

    async def append(self, held: Lease, events: Sequence[NewEvent], after: int | None = None) -> int:
        asking = self._queue.append(held, events, after)
        given = {**_about(held), "events": _told(events), "after": after}
        return await self._call("append", given, asking, lambda seq: {"seq": seq})

    async def save(
        self,
        held: Lease,
        checkpoint: NewCheckpoint,
        events: Sequence[NewEvent] = (),
        after: int | None = None,
    ) -> Checkpoint:
        asking = self._queue.save(held, checkpoint, events, after)
        given = {**_about(held), "events": _told(events), "values": checkpoint.values}
        return await self._call("save", given, asking, lambda saved: {"id": saved.checkpoint_id})

    async def record(
        self, held: Lease, steps: GraphSteps, events: Sequence[NewEvent] = (), after: int | None = None
    ) -> int:
        return await self._queue.record(held, steps, events, after)

    async def find_graphs(self, held: Lease, query: CheckpointQuery) -> list[GraphTuple]:
        return await self._queue.find_graphs(held, query)

    async def find_deltas(self, held: Lease, query: GraphDeltaQuery) -> list[GraphDelta]:
        return await self._queue.find_deltas(held, query)

    async def do_items(self, ops: Sequence[ItemOp]) -> list[ItemResult]:
        return await self._queue.do_items(ops)

    async def keep(
        self,
        held: Lease,
        origin: str,
        name: str,
        body: str,
        events: Sequence[NewEvent] = (),
        after: int | None = None,
        within: str | None = None,
    ) -> None:
        asking = self._queue.keep(held, origin, name, body, events, after, within)
        given = {**_about(held), "origin": origin, "name": name, "body": body, "events": _told(events)}
        given["after"] = after
        await self._call("keep", given, asking, _nothing)

    async def emitted(self, held: Lease, after: int, limit: int = 100) -> list[NewEvent]:
        return await self._queue.emitted(held, after, limit)

    async def finish(self, ending: Ending) -> Run:
        given = {**_about(ending.held), "result": ending.result, "events": _told(ending.events)}
        if ending.checkpoint is not None:
            given["values"] = ending.checkpoint.values
        asking = self._queue.finish(ending)
        return await self._call("finish", given, asking, lambda run: {"status": run.status})

    async def hand_back(self, held: Sequence[Lease]) -> None:
        given = {"attempts": [each.attempt_id for each in held]}
        await self._call("hand_back", given, self._queue.hand_back(held), _nothing)

    async def close(self) -> None:
        await self._queue.close()

    async def _call(
        self,
        function: str,
        given: Mapping[str, Any],
        asking: Awaitable[T],
        got: Callable[[T], Mapping[str, Any]],
    ) -> T:
        failed: list[Exception] = []

        async def asked() -> T:
            try:
                return await asking
            except Exception as error:
                failed.append(error)
                raise

        answer = await self._recorder.call(function, given, asked(), got)
        if failed:
            raise failed[0]
        return answer.value  # type: ignore[return-value]


def _about(held: Lease) -> dict[str, Any]:
    return {"attempt": held.attempt_id, "run": held.run_id, "thread": held.thread_id}


def _told(events: Sequence[NewEvent]) -> list[list[str]]:
    return [[event.event, event.body] for event in events]


def _claims(assignments: Sequence[Assignment]) -> dict[str, Any]:
    return {
        "claims": [
            [each.run.run_id, each.run.thread_id, each.attempt_id, each.attempt, each.lease_seconds]
            for each in assignments
        ]
    }


def _nothing(value: object) -> dict[str, Any]:
    return {}
