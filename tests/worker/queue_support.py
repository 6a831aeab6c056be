"""In-memory queue of runs that checks attempts and leases strictly, with faults on demand."""

import asyncio
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from perdure.agents.records import AgentSpec
from perdure.checkpoints.records import CheckpointQuery, GraphDelta, GraphDeltaQuery, GraphSteps, GraphTuple
from perdure.items.records import ItemOp, ItemResult
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import Conflict, Fenced, NotSupported, OutcomeUnknown, PerdureError
from perdure.kernel.signals.local import LocalSignals
from perdure.runs.queue import RunQueue
from perdure.streams.model import NewEvent
from perdure.threads.model import RUN_QUEUES, QueueName
from perdure.threads.records import Checkpoint, Failure, NewCheckpoint, Run, RunCommand, RunKwargs
from perdure.threads.work import Assignment, Ending, Lease, SessionLines, Verdict

CHANGED = ("queue", "changed")


class Row:
    """Run, with the data that only the queue has."""

    def __init__(self, run: Run, max_attempts: int, timeout: float | None) -> None:
        self.run = run
        self.max_attempts = max_attempts
        self.timeout = timeout
        self.charged = 0
        self.attempt_id: str | None = None
        self.lease_until = 0.0
        self.due = 0.0
        self.action: Verdict | None = None
        self.events: list[tuple[int, NewEvent]] = []
        self.results: list[str] = []
        self.endings: list[Ending] = []

    def told(self, *names: str) -> list[Any]:
        """Return the events of the stream, or the bodies of events with a name."""
        if not names:
            return [(each.event, decode_json(each.body)) for _, each in self.events]
        return [decode_json(each.body) for _, each in self.events if each.event in names]


class MemoryQueue(RunQueue):
    """`RunQueue` in this process. It may be called from any loop."""

    def __init__(self, lease: float = 30.0) -> None:
        self.lease = lease
        self.followed: bool | None = None
        self.rows: dict[str, Row] = {}
        self.checkpoints: dict[str, list[Checkpoint]] = defaultdict(list)
        self.steps: dict[str, dict[str, str]] = defaultdict(dict)
        self.saved_at: dict[str, dict[str, int]] = defaultdict(dict)
        self.within: dict[str, dict[str, str | None]] = defaultdict(dict)
        self.agents: list[AgentSpec] = []
        self.calls: list[tuple[str, Any]] = []
        self.faults: dict[str, list[BaseException]] = defaultdict(list)
        self.lost_answers: Counter[str] = Counter()
        self._signals = LocalSignals()

    # --- for tests

    def add(self, agent: str, input: Any = None, *, thread_id: str | None = None, **more: Any) -> str:
        """Add a run to the queue."""
        run_id = str(uuid.uuid4())
        max_attempts, timeout = more.pop("max_attempts", 3), more.pop("timeout", None)
        resume = more.pop("resume", msgspec.UNSET)
        command = None if resume is msgspec.UNSET else RunCommand(resume=resume)
        run = Run(
            run_id=run_id,
            thread_id=thread_id or str(uuid.uuid4()),
            assistant_id=agent,
            agent=agent,
            status="pending",
            metadata={},
            kwargs=RunKwargs(input=input, command=command, **more),
            multitask_strategy="enqueue",
            created_at=time.time(),
            updated_at=time.time(),
        )
        self.rows[run_id] = Row(run, max_attempts, timeout)
        self.tell()
        return run_id

    def cancel(self, run_id: str, action: Verdict = "interrupt") -> None:
        row = self.rows[run_id]
        row.action = action
        row.run.status = "rollback" if action == "rollback" else "interrupted"
        self.tell()

    def steal(self, run_id: str) -> None:
        """Expire the lease now."""
        self.rows[run_id].lease_until = 0.0
        self._sweep()

    def tell(self) -> None:
        self._signals.publish([CHANGED])

    async def until(self, condition: Callable[[], Any], seconds: float = 20.0) -> Any:
        """Wait for a condition that changes of the queue make true."""
        watch = self._signals.watch(*CHANGED[:1], CHANGED[1:])
        try:
            async with asyncio.timeout(seconds):
                while not (found := condition()):
                    await watch.changed(0.05)
            return found
        finally:
            watch.close()

    async def ended(self, run_id: str) -> Row:
        """Wait until a run has ended and its worker has released it."""
        row = self.rows[run_id]
        await self.until(lambda: row.run.status not in ("pending", "running") and row.attempt_id is None)
        return row

    # --- methods of `RunQueue`

    async def register(
        self,
        worker_id: str,
        agents: Sequence[AgentSpec],
        concurrency: int | None = None,
        queues: Sequence[QueueName] = RUN_QUEUES,
        built_in: Sequence[str] = (),
    ) -> None:
        await self._called("register", worker_id)
        self.agents = list(agents)

    async def deregister(self, worker_id: str) -> None:
        await self._called("deregister", worker_id)

    def is_followed(self, held: Lease) -> bool | None:
        return self.followed

    def claimer(self, worker_id: str, agents: Sequence[str], queues: Sequence[str]) -> None:
        """The queue itself waits for runs."""

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
        await self._called("claim", limit)
        watch = self._signals.watch(*CHANGED[:1], CHANGED[1:])
        until = time.monotonic() + wait
        try:
            while not (found := self._ready(agents, limit)) and time.monotonic() < until:
                await watch.changed(min(0.05, wait))
        finally:
            watch.close()
        return [self._assign(row) for row in found]

    def _ready(self, agents: Sequence[str], limit: int) -> list[Row]:
        self._sweep()
        busy = {row.run.thread_id for row in self.rows.values() if row.attempt_id is not None}
        found = []
        for row in self.rows.values():
            if row.run.status == "pending" and row.run.thread_id not in busy:
                busy.add(row.run.thread_id)
                if row.due <= time.monotonic() and row.run.agent in agents:
                    found.append(row)
        return found[:limit]

    def _assign(self, row: Row) -> Assignment:
        run = row.run
        run.status = "running"
        run.attempt += 1
        row.charged += 1
        row.attempt_id = f"at-{uuid.uuid4().hex[:8]}"
        row.lease_until = time.monotonic() + self.lease
        found = self.checkpoints[run.thread_id][-1] if self.checkpoints[run.thread_id] else None
        resumes = run.kwargs.command is not None and found is not None
        origin = found.metadata.get("origin", run.run_id) if resumes and found else run.run_id
        self.tell()
        return Assignment(
            run=run.model_copy(),
            attempt_id=row.attempt_id,
            attempt=run.attempt,
            last_attempt=row.charged >= row.max_attempts,
            config={"configurable": {"thread_id": run.thread_id}},
            context={},
            timeout_seconds=row.timeout,
            lease_seconds=self.lease,
            origin=origin,
            checkpoint=found,
            steps=dict(self.steps[origin]),
            saved_at={
                name: seq
                for name, seq in self.saved_at[run.run_id].items()
                if self.within[run.run_id][name] not in self.steps[origin]
            },
            last_seq=len(row.events),
        )

    async def renew(self, worker_id: str, held: Sequence[Lease]) -> list[Verdict]:
        await self._called("renew", len(held))
        self._sweep()
        for each in held:
            if self._holds(each):
                self.rows[each.run_id].lease_until = time.monotonic() + self.lease
        return [self._verdict(each) for each in held]

    async def controls(self, held: Sequence[Lease], wait: float = 0.0) -> dict[str, Verdict]:
        await self._called("controls", len(held))
        watch = self._signals.watch(*CHANGED[:1], CHANGED[1:])
        until = time.monotonic() + wait
        try:
            while True:
                found = {each.run_id: self._verdict(each) for each in held}
                found = {run_id: verdict for run_id, verdict in found.items() if verdict != "go"}
                if found or time.monotonic() >= until:
                    return found
                await watch.changed(0.05)
        finally:
            watch.close()

    async def append(self, held: Lease, events: Sequence[NewEvent], after: int | None = None) -> int:
        await self._called("append", len(events))
        row = self._mine(held)
        if after is not None and len(row.events) == after + len(events):
            return len(row.events)
        if after is not None and len(row.events) != after:
            raise Conflict(f"the stream is at {len(row.events)}, not at {after}")
        row.events += [(row.run.attempt, event) for event in events]
        self.tell()
        self._answered("append")
        return len(row.events)

    async def save(
        self,
        held: Lease,
        checkpoint: NewCheckpoint,
        events: Sequence[NewEvent] = (),
        after: int | None = None,
    ) -> Checkpoint:
        await self._called("save", checkpoint)
        row = self._mine(held)
        row.events += [(row.run.attempt, event) for event in events]
        saved = self._save(row, checkpoint)
        self._answered("save")
        return saved

    def _save(self, row: Row, new: NewCheckpoint) -> Checkpoint:
        history = self.checkpoints[row.run.thread_id]
        given = msgspec.structs.asdict(new)
        given["checkpoint_id"] = new.checkpoint_id or str(uuid.uuid4())
        given["values"] = decode_json(encode_json(new.values))
        saved = Checkpoint(
            thread_id=row.run.thread_id,
            run_id=row.run.run_id,
            attempt=row.run.attempt,
            step=len(history),
            created_at=time.time(),
            **given,
        )
        history.append(saved)
        self.tell()
        return saved

    async def record(
        self, held: Lease, steps: GraphSteps, events: Sequence[NewEvent] = (), after: int | None = None
    ) -> int:
        raise NotSupported("this queue has no graphs")

    async def find_graphs(self, held: Lease, query: CheckpointQuery) -> list[GraphTuple]:
        raise NotSupported("this queue has no graphs")

    async def find_deltas(self, held: Lease, query: GraphDeltaQuery) -> list[GraphDelta]:
        raise NotSupported("this queue has no graphs")

    async def do_items(self, ops: Sequence[ItemOp]) -> list[ItemResult]:
        raise NotSupported("nothing is remembered here")

    async def log_all(self, logs: Sequence[SessionLines]) -> list[int | PerdureError]:
        (call,) = logs
        await self._called("log_all", call)
        self._mine(call.held)
        return [call.first + len(call.lines) - 1]

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
        await self._called("keep", name)
        row = self._mine(held)
        if events and after is not None and len(row.events) != after + len(events):
            if len(row.events) != after:
                raise Conflict(f"the stream is at {len(row.events)}, not at {after}")
            row.events += [(row.run.attempt, event) for event in events]
        self.steps[origin].setdefault(name, body)
        self.within[held.run_id][name] = within
        if after is not None:
            self.saved_at[held.run_id].setdefault(name, after + len(events))
        self.tell()
        self._answered("keep")

    async def emitted(self, held: Lease, after: int, limit: int = 100) -> list[NewEvent]:
        await self._called("emitted", after)
        return [event for _, event in self.rows[held.run_id].events[after : after + limit]]

    async def finish(self, ending: Ending) -> Run:
        await self._called("finish", ending.result)
        row = self.rows[ending.held.run_id]
        if row.action is not None and self._holds(ending.held):
            return self._let_go(row, ending)
        row = self._mine(ending.held)
        row.events += [(row.run.attempt, event) for event in ending.events]
        if ending.checkpoint is not None:
            self._save(row, ending.checkpoint)
        if ending.result == "retriable" and row.charged < row.max_attempts:
            row.run.status = "pending"
            row.due = time.monotonic() + min(ending.retry_after or 0.0, 0.05)
        else:
            self._end(row, "error" if ending.result == "retriable" else ending.result, ending.error)
        return self._let_go(row, ending)

    def _end(self, row: Row, status: Any, error: Failure | None) -> None:
        row.run.status = status
        row.run.error = error
        row.events.append((row.run.attempt, NewEvent("end", encode_json({"status": status}))))

    def _let_go(self, row: Row, ending: Ending) -> Run:
        row.attempt_id = None
        row.results.append(ending.result)
        row.endings.append(ending)
        self.tell()
        return row.run

    async def hand_back(self, held: Sequence[Lease]) -> None:
        await self._called("hand_back", len(held))
        for each in held:
            row = self._mine(each)
            row.attempt_id = None
            row.charged -= 1
            row.run.status = "pending"
            row.results.append("handed back")
        self.tell()

    async def close(self) -> None:
        self._signals.close()

    # --- helpers

    async def _called(self, name: str, what: Any) -> None:
        self.calls.append((name, what))
        self.tell()
        if self.faults[name]:
            raise self.faults[name].pop(0)

    def _answered(self, name: str) -> None:
        """Lose the answer of a call that was carried out, if the test requires it."""
        if self.lost_answers[name]:
            self.lost_answers[name] -= 1
            raise OutcomeUnknown

    def _holds(self, held: Lease) -> bool:
        return self.rows[held.run_id].attempt_id == held.attempt_id

    def _mine(self, held: Lease) -> Row:
        self._sweep()
        row = self.rows[held.run_id]
        if not self._holds(held) or row.action is not None:
            raise Fenced(f"attempt {held.attempt_id} of run {held.run_id} holds it no longer")
        return row

    def _verdict(self, held: Lease) -> Verdict:
        if not self._holds(held):
            return "lost"
        return self.rows[held.run_id].action or "go"

    def _sweep(self) -> None:
        for row in self.rows.values():
            if row.attempt_id is not None and row.lease_until < time.monotonic():
                row.attempt_id = None
                row.results.append("swept")
                if row.action is None:
                    row.run.status = "pending"
                self.tell()
