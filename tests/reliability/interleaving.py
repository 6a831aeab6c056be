"""Two operations on two connections to PostgreSQL, one statement at a time, in every order.

A transaction that waits for a lock is let wait; the other goes on. Whatever the order, the answers and the
rows must be those of one operation after the other, and nobody may wait for somebody who waits for him.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import asyncpg
from tests.support.databases import EMPTY
from tests.support.invariants import broken_rules

from perdure.kernel.errors import PerdureError
from perdure.kernel.storage.port import Tx
from perdure.kernel.storage.postgres_connection import CONTENDED
from perdure.kernel.storage.postgres_tx import PostgresTx, written
from perdure.rollouts.operations.spans import CareNeeded
from perdure.service.conditions import Unmet

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
NAMESPACE = "INSERT INTO namespaces VALUES ($1, $2, 0) ON CONFLICT DO NOTHING"
BLOCKED = "SELECT cardinality(pg_blocking_pids($1)) > 0"
START = 1_800_000_000_000_000
SECOND = 1_000_000

Operation = Callable[[Tx, Any, bool], Awaitable[Any]]
"""An operation on what its setup made for it; the flag says whether to lock lines first."""


class Wrong(AssertionError):
    """An order of statements in which something is wrong."""


class NamedIds:
    """Identifiers that tell who made them, and begin anew when an operation does."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0

    def hex(self, size: int) -> str:
        self._count += 1
        return f"{self._name}{self._count:0{size - len(self._name)}}"


@dataclass(frozen=True)
class Pair:
    """Two operations upon one state."""

    setup: Operation
    first: Operation
    second: Operation
    later: float = 1.0
    """How many seconds after the setup they run."""
    also: Sequence[tuple[Operation, Operation]] = ()
    """Other operations that the two may look like, such as a claim that passes over what is locked."""
    loose: bool = False
    """Two claims may each pass over what the other holds, as no serial order does: the rules are enough."""


class Outcome(NamedTuple):
    """What an order of statements came to."""

    answers: tuple[str, str]
    rows: str
    reruns: int


class _Gate:
    """A connection whose statements wait to be let through."""

    def __init__(self, connection: asyncpg.Connection, turn: Callable[[str], Awaitable[None]]) -> None:
        self._connection = connection
        self._turn = turn

    def get_server_pid(self) -> int:
        """The same for both, so that they meet at the counts too."""
        return 0

    async def fetch(self, sql: str, *args: Any) -> Any:
        await self._turn(sql)
        return await self._connection.fetch(sql, *args)

    async def fetchrow(self, sql: str, *args: Any) -> Any:
        await self._turn(sql)
        return await self._connection.fetchrow(sql, *args)

    async def execute(self, sql: str, *args: Any) -> Any:
        await self._turn(sql)
        return await self._connection.execute(sql, *args)

    async def executemany(self, sql: str, args: Any) -> Any:
        await self._turn(sql)
        return await self._connection.executemany(sql, args)


@dataclass
class Actor:
    """One of the two transactions."""

    name: str
    connection: asyncpg.Connection
    operation: Operation
    ns: int
    now: int
    given: Any
    statements: list[str] = field(default_factory=list)
    reruns: int = 0
    lined: bool = False
    answer: str = ""
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        self._permit = asyncio.Event()
        self._stopped = asyncio.Event()
        self._gate = _Gate(self.connection, self._turn)
        self.task = asyncio.create_task(self._main())

    @property
    def parked(self) -> bool:
        """Waits for its turn, not for a lock."""
        return self._stopped.is_set() and not self.task.done()

    async def _turn(self, sql: str) -> None:
        self._permit.clear()
        self._stopped.set()
        await self._permit.wait()
        self.statements.append(f"{self.name}: {' '.join(sql.split())[:100]}")

    async def _main(self) -> None:
        while not await self._ends():
            pass
        self._stopped.set()

    async def _ends(self) -> bool:
        """Run the transaction once; false if it must run again, as the driver and the room would have it."""
        await self.connection.execute(BEGIN)
        try:
            tx = PostgresTx(self._gate, self.ns, self.now, NamedIds(self.name))
            self.answer = repr(_plain(await written(self.operation(tx, self.given, self.lined), tx)))
            await self._gate.execute("COMMIT")
            return True
        except (Unmet, CareNeeded):
            self.lined = True
        except PerdureError as error:
            # A refusal is an answer, and leaves nothing behind.
            self.answer = repr(error)
            await self._gate.execute("ROLLBACK")
            return True
        except CONTENDED as error:
            self.reruns += 1
            if isinstance(error, asyncpg.DeadlockDetectedError) or self.reruns > 3:
                self.failure = error
        except Exception as error:  # noqa: BLE001 - it is told with the order that led to it
            self.failure = error
        await self.connection.execute("ROLLBACK")
        return self.failure is not None

    def go(self) -> None:
        self._stopped.clear()
        self._permit.set()

    async def settle(self, monitor: asyncpg.Connection) -> bool:
        """Wait until it stops; true if it stands at a lock."""
        while not (self._stopped.is_set() or self.task.done()):
            try:
                async with asyncio.timeout(0.002):
                    await self._stopped.wait()
            except TimeoutError:
                if await monitor.fetchval(BLOCKED, self.connection.get_server_pid()):
                    return True
        return False


def _plain(answer: Any) -> Any:
    if isinstance(answer, asyncpg.Record):
        return tuple(answer)
    if isinstance(answer, list | tuple):
        return type(answer)(map(_plain, answer)) if isinstance(answer, list) else tuple(map(_plain, answer))
    return answer


class Laboratory:
    """Two connections to be watched, and a third to watch them with."""

    def __init__(self, connections: Sequence[asyncpg.Connection]) -> None:
        self._pair = connections[:2]
        self._monitor = connections[2]
        self._ns = 1000

    async def empty(self) -> None:
        """Forget what earlier pairs have left: an operation on all namespaces would come upon it."""
        await self._monitor.execute(EMPTY)

    async def outcome(self, pair: Pair, prefix: Sequence[int]) -> tuple[Outcome, list[int], list[list[int]]]:
        """Run the pair in an order that begins so; also what was chosen, and what could have been."""
        self._ns += 1
        given = await self._prepare(pair)
        now = START + round(pair.later * SECOND)
        actors = [
            Actor(name, connection, operation, self._ns, now + i, given)
            for i, (name, connection, operation) in enumerate(
                zip("ab", self._pair, (pair.first, pair.second), strict=True)
            )
        ]
        for actor in actors:
            await actor.settle(self._monitor)
        chosen, options = await self._interleave(actors, prefix)
        self._check(actors)
        rows = await self._rows()
        return (
            Outcome((actors[0].answer, actors[1].answer), rows, sum(a.reruns for a in actors)),
            chosen,
            options,
        )

    async def _prepare(self, pair: Pair) -> Any:
        connection = self._pair[0]
        await connection.execute(NAMESPACE, self._ns, f"laboratory {self._ns}")
        async with connection.transaction():
            tx = PostgresTx(_Plain(connection), self._ns, START, NamedIds("0"))
            return await written(pair.setup(tx, None, True), tx)

    async def _interleave(
        self, actors: Sequence[Actor], prefix: Sequence[int]
    ) -> tuple[list[int], list[list[int]]]:
        chosen: list[int] = []
        options: list[list[int]] = []
        while not all(actor.task.done() for actor in actors):
            free = [i for i, actor in enumerate(actors) if actor.parked]
            if not free:
                raise Wrong(f"each waits for the other: {self._story(actors)}")
            last = chosen[-1] if chosen else 0
            choice = prefix[len(chosen)] if len(chosen) < len(prefix) else last if last in free else free[0]
            if choice not in free:
                raise Wrong(f"the same order is no longer possible: {self._story(actors)}")
            chosen.append(choice)
            options.append(free)
            actors[choice].go()
            for actor in (actors[choice], *actors):
                await actor.settle(self._monitor)
        return chosen, options

    def _check(self, actors: Sequence[Actor]) -> None:
        for actor in actors:
            if actor.failure is not None:
                raise Wrong(f"{actor.name} failed: {self._story(actors)}") from actor.failure

    @staticmethod
    def _story(actors: Sequence[Actor]) -> str:
        return "\n".join(f"{actor.name} ({actor.failure!r}): {actor.statements}" for actor in actors)

    async def _rows(self) -> str:
        return await dump(self._monitor, self._ns)

    async def _check_rules(self) -> None:
        tx = PostgresTx(_Plain(self._monitor), self._ns, START, NamedIds("m"))
        wrong = await broken_rules(tx)
        if wrong:
            raise Wrong("; ".join(wrong))

    # --- every order --------------------------------------------------------------------------------------

    async def explore(self, pair: Pair, switches: int | None = None) -> int:
        """Run every order, or those with so many switches that no lock enforces; returns how many."""
        allowed = await self._serial(pair)
        runs = 0
        waiting: list[list[int]] = [[]]
        while waiting:
            prefix = waiting.pop()
            outcome, chosen, options = await self.outcome(pair, prefix)
            runs += 1
            if (outcome.answers, outcome.rows) not in allowed:
                await self._check_rules()
                if not pair.loose:
                    raise Wrong(_unlike(chosen, outcome, allowed))
            for i in range(len(prefix), len(chosen)):
                for other in options[i]:
                    branch = [*chosen[:i], other]
                    if other != chosen[i] and (switches is None or _switches(branch, options) <= switches):
                        waiting.append(branch)
        return runs

    async def _serial(self, pair: Pair) -> list[tuple[tuple[str, str], str]]:
        """The outcomes of one after the other, either way round."""
        pairs = [
            Pair(pair.setup, *both, later=pair.later) for both in ((pair.first, pair.second), *pair.also)
        ]
        return [
            await self._one_after_the_other(alike, order) for alike in pairs for order in ((0, 1), (1, 0))
        ]

    async def _one_after_the_other(self, pair: Pair, order: Sequence[int]) -> tuple[tuple[str, str], str]:
        self._ns += 1
        given = await self._prepare(pair)
        now = START + round(pair.later * SECOND)
        answers = ["", ""]
        for i in order:
            tx = PostgresTx(_Plain(self._pair[i]), self._ns, now + i, NamedIds("ab"[i]))
            called = (pair.first, pair.second)[i](tx, given, True)
            try:
                async with self._pair[i].transaction():
                    answers[i] = repr(_plain(await written(called, tx)))
            except PerdureError as error:
                answers[i] = repr(error)
        await self._check_rules()
        return (answers[0], answers[1]), await self._rows()


class _Plain(_Gate):
    def __init__(self, connection: asyncpg.Connection) -> None:
        super().__init__(connection, _at_once)


async def _at_once(sql: str) -> None:
    return None


def _switches(chosen: Sequence[int], options: Sequence[Sequence[int]]) -> int:
    """How often an order leaves a transaction that could have gone on."""
    return sum(chosen[i] != chosen[i - 1] and chosen[i - 1] in options[i] for i in range(1, len(chosen)))


def _unlike(chosen: Sequence[int], outcome: Outcome, allowed: Sequence[tuple[tuple[str, str], str]]) -> str:
    lines = [f"the order {chosen} came to", *outcome.answers, outcome.rows, "which is none of"]
    for answers, rows in allowed:
        lines += [*answers, rows, "or"]
    return "\n".join(lines[:-1])


_WHOLE = (
    *("attempts", "workers", "spans", "span_counters", "lines", "resources", "rollouts"),
    *("threads", "runs", "checkpoints", "run_steps", "labels", "streams", "stream_events", "stream_links"),
    *("schedules", "firings", "workflow_approvals"),
    *("messaging_sessions", "messaging_messages"),
    *("workflow_runs", "workflow_nodes", "workflow_history", "workflow_overrides", "executions"),
)
_COUNTS = (
    "SELECT 'counts', kind || ' ' || status || ' ' || sum(total) FROM rollout_counts WHERE ns = $1"
    " GROUP BY kind, status HAVING sum(total) <> 0"
)
_TOTALS = (
    "SELECT 'totals', name || ' ' || sum(total) FROM rollout_totals WHERE ns = $1"
    " GROUP BY name HAVING sum(total) <> 0"
)
_RUN_COUNTS = (
    "SELECT 'workflow_counts', workflow_name || ' ' || status || ' ' || sum(total) FROM workflow_counts"
    " WHERE ns = $1 GROUP BY workflow_name, status HAVING sum(total) <> 0"
)
_NAMESPACES = "SELECT 'namespaces', count(*)::text FROM namespaces WHERE name = 'space ' || $1::bigint"
# What a rollout was queued as last is of interest while it is claimed only.
_ROWS = "SELECT '{0}', (to_jsonb(t) - 'ns' - 'queued_as')::text FROM {0} AS t WHERE ns = $1"
DUMP = " UNION ALL ".join([*map(_ROWS.format, _WHOLE), _COUNTS, _TOTALS, _RUN_COUNTS, _NAMESPACES])
"""Everything that is stored in a namespace, but the namespace itself."""


async def dump(connection: asyncpg.Connection, ns: int) -> str:
    """The rows of a namespace as text, in an order of their own."""
    return "\n".join(sorted(f"{table} {row}" for table, row in await connection.fetch(DUMP, ns)))
