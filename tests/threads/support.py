"""Shared by the tests of threads: databases with a manual clock, callers and workers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from tests.kernel.support import soon
from tests.support.invariants import broken_rules
from tests.support.kinds import KINDS
from tests.support.simulation import InlineStorage

from perdure.agents.records import AgentSpec
from perdure.kernel.clock import to_micros
from perdure.kernel.storage.dialect import Statement, statement
from perdure.kernel.storage.port import Row, Storage, Tx
from perdure.kernel.storage.postgres import PostgresStorage
from perdure.kernel.storage.sqlite import SqliteStorage
from perdure.rollouts.model import Kinds
from perdure.rollouts.service import Rollouts
from perdure.runs.queue import RunQueue
from perdure.runtime.stores import TABLES
from perdure.spans.rows import NewSpan
from perdure.streams.model import NewEvent, StreamEvent
from perdure.testing.clock import ManualClock, SeededIds
from perdure.threads.policy import Policy
from perdure.threads.records import NewCheckpoint, Run, RunRequest
from perdure.threads.service import Threads
from perdure.threads.work import Assignment, Ending, Lease, Result

POLICY = Policy(timeout=500.0, max_attempts=3, lease=60.0, grace=30.0, linger=1000.0)
"""Limits so long that a slow machine changes no answer; tests advance the time by far more."""
INLINE = "inline"
"""SQLite in memory without its own thread: the same operations, called directly."""
AGENT_NAMES = ("echo", "other")
AGENTS = tuple(AgentSpec(name=name) for name in AGENT_NAMES)

AGE = (
    statement(
        "UPDATE rollouts SET start_time = start_time - :age, end_time = end_time - :age,"
        " due_at = due_at - :age, position = position - :age, ready = ready - :age, behind = behind - :age"
        " WHERE ns = :ns"
    ),
    statement(
        "UPDATE attempts SET start_time = start_time - :age, end_time = end_time - :age, born = born - :age,"
        " check_at = check_at - :age, last_heartbeat_time = last_heartbeat_time - :age WHERE ns = :ns"
    ),
    statement("UPDATE spans SET born = born - :age WHERE ns = :ns"),
    statement("UPDATE lines SET release_by = release_by - :age WHERE ns = :ns"),
    statement(
        "UPDATE workers SET last_heartbeat_time = last_heartbeat_time - :age,"
        " last_dequeue_time = last_dequeue_time - :age, last_busy_time = last_busy_time - :age,"
        " last_idle_time = last_idle_time - :age, stopped_at = stopped_at - :age WHERE ns = :ns"
    ),
    statement(
        "UPDATE threads SET created_at = created_at - :age, updated_at = updated_at - :age,"
        " state_at = state_at - :age, gone_at = gone_at - :age WHERE ns = :ns"
    ),
    statement(
        "UPDATE runs SET created_at = created_at - :age, updated_at = updated_at - :age,"
        " gone_at = gone_at - :age WHERE ns = :ns"
    ),
    statement("UPDATE thread_lifetimes SET expires_at = expires_at - :age WHERE ns = :ns"),
    statement(
        "UPDATE checkpoints SET position = position - :age, created_at = created_at - :age WHERE ns = :ns"
    ),
)
EFFECTS = statement(
    "SELECT o.subject, o.target, b.body FROM outbox AS o JOIN outbox_bodies AS b"
    " ON b.ns = o.ns AND b.id = o.id WHERE o.ns = :ns ORDER BY o.id"
)
AUDIT = statement("SELECT actor, action, object FROM audit WHERE ns = :ns ORDER BY id")
STEPS = statement("SELECT run_id, name, body FROM run_steps WHERE ns = :ns ORDER BY run_id, name")
STATES = statement("SELECT thread_id, run_id, step FROM checkpoints WHERE ns = :ns ORDER BY thread_id, step")
LINES = statement("SELECT line, holder FROM lines WHERE ns = :ns ORDER BY line")
ATTEMPTS = statement(
    "SELECT sequence_id, status, reason, charged FROM attempts WHERE ns = :ns AND rollout_id = :run_id"
    " ORDER BY sequence_id"
)


def open_storage(url: str, *, clock: ManualClock | None = None, seed: int = 0) -> Storage:
    if url.startswith("postgres"):
        return PostgresStorage(url, TABLES, timeout=20.0)
    if url == INLINE:
        return InlineStorage.open(TABLES, clock=clock or ManualClock(), ids=SeededIds(seed))
    return SqliteStorage(url, TABLES, clock=clock, ids=SeededIds(seed))


async def _age(tx: Tx, seconds: float) -> None:
    for each in AGE:
        await tx.execute(each, age=to_micros(seconds))


async def age(storage: Storage, seconds: float, ns: int) -> None:
    """Make all rows of a namespace older, for engines that use the server's clock."""
    await storage.run(_age, seconds, ns=ns)


async def _all(tx: Tx, sql: Statement[Any], values: dict[str, Any]) -> Sequence[Row]:
    return [tuple(row) for row in await tx.all(sql, **values)]


def told(*names: str) -> list[NewEvent]:
    """Build events without data."""
    return [NewEvent(name, "{}") for name in names]


class World:
    """Threads of a database, with control over its clock."""

    def __init__(
        self,
        storage: Storage,
        clock: ManualClock,
        policy: Policy = POLICY,
        namespace: str = "default",
        kinds: Kinds = KINDS,
    ) -> None:
        self.storage = storage
        self.clock = clock
        self.namespace = namespace
        self.threads = Threads(storage, kinds, policy=policy, namespace=namespace)
        self.queue = RunQueue.beside(self.threads)
        self.rollouts = Rollouts(storage, kinds, kind="run", namespace=namespace)
        self.ns: int | None = None

    async def begin(self) -> World:
        await self.queue.register("w1", AGENTS)
        self.ns = await self.threads.ns("write")
        return self

    def others(self, count: int) -> list[Threads]:
        """Return services for concurrent callers, whose calls are not merged with each other's."""
        return [self.threads.in_namespace(self.namespace) for _ in range(count)]

    async def advance(self, seconds: float) -> None:
        """Advance the time, then run the watchdog."""
        if self.storage.engine == "postgres":
            await age(self.storage, seconds, await self.threads.ns())
        else:
            self.clock.advance(seconds)
        await self.threads.watchdog.sweep()

    async def check(self) -> None:
        """Assert that the stored rows keep every rule."""
        wrong = await self.storage.read(broken_rules, ns=await self.threads.ns())
        assert not wrong, wrong

    async def rows(self, sql: Statement[Any], **values: Any) -> Sequence[Row]:
        return await self.storage.read(_all, sql, values, ns=await self.threads.ns())

    # --- callers ------------------------------------------------------------------------------------------

    async def thread(self, **options: Any) -> str:
        return (await self.threads.create_thread(**options)).thread_id

    async def run(self, thread_id: str | None = None, strategy: str = "reject", **options: Any) -> Run:
        request = {"assistant_id": "echo", "thread_id": thread_id, "multitask_strategy": strategy}
        return await self.threads.create_run(RunRequest(**(request | options)))

    async def status(self, run: Run) -> str:
        return (await self.threads.get_run(run.run_id)).status

    async def statuses(self, thread_id: str) -> list[str]:
        """List the thread's runs, the oldest first."""
        page = await self.threads.list_runs(thread_id=thread_id, limit=100)
        return [run.status for run in reversed(page.items)]

    async def rest(self, thread_id: str) -> str:
        return (await self.threads.get_thread(thread_id)).status

    async def values(self, thread_id: str) -> Any:
        return (await self.threads.get_thread(thread_id)).values

    async def kept(self, thread_id: str) -> list[Any]:
        """List the values of the thread's states, the oldest first."""
        states = await self.threads.history(thread_id, limit=100)
        return [state.values for state in reversed(states)]

    async def events(self, run_id: str, after: str = "-1") -> list[StreamEvent]:
        """Read the whole stream of an ended run."""
        found: list[StreamEvent] = []
        async with aclosing(self.threads.stream_run(run_id, after)) as bursts:
            async for burst in bursts:
                found += burst
        return found

    async def names(self, run_id: str) -> list[str]:
        return [event.event for event in await soon(self.events(run_id))]

    # --- workers ------------------------------------------------------------------------------------------

    async def claim(self, limit: int = 10, worker_id: str = "w1") -> list[Assignment]:
        return await self.queue.claim(worker_id, AGENT_NAMES, limit, 0)

    async def take(self, run: Run | None = None, worker_id: str = "w1") -> Assignment:
        """Claim the only ready run, which must be this one."""
        claimed = await self.claim(worker_id=worker_id)
        assert len(claimed) == 1
        assert run is None or claimed[0].run.run_id == run.run_id
        return claimed[0]

    async def idle(self) -> None:
        """Assert that no run is ready."""
        assert await self.claim() == []

    async def save(self, held: Lease, values: Any, **fields: Any) -> str:
        return (await self.queue.save(held, NewCheckpoint(values=values, **fields))).checkpoint_id

    async def finish(self, held: Lease, result: Result = "success", values: Any = None, **rest: Any) -> Run:
        state = None if values is None else NewCheckpoint(values=values)
        return await self.queue.finish(Ending(held=held, result=result, checkpoint=state, **rest))

    async def span(self, held: Lease, name: str) -> None:
        """Build a span of an attempt, as its tracer sends it."""
        trace, body = "0" * 32, b"{}"
        new = NewSpan(
            held.run_id,
            held.attempt_id,
            name,
            None,
            trace,
            None,
            name,
            1,
            2,
            "OK",
            len(body),
            None,
            None,
            "json",
            body,
        )
        await self.rollouts.write_spans([new], [])

    async def done(self, run: Run, values: Any = None) -> Run:
        """Execute the only ready run, which must be this one, to its success."""
        return await self.finish((await self.take(run)).held, values=values)
