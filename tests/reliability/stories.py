"""Every story of one rollout: all sequences of actions up to a length, each step compared with the model.

A story is continued only if the rows it leaves behind are new: since nothing but the rows decides what comes
next, its continuations would be those of the earlier story. `run(..., every=True)` tells them all the same.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from tests.support.comparison import Comparison
from tests.support.invariants import broken_rules
from tests.support.model import Diverged, Model, ModelConfig, Unknown
from tests.support.simulation import InlineStorage

from perdure import LightningStore, RolloutConfig
from perdure.kernel.clock import MICROS
from perdure.kernel.errors import NotFound
from perdure.kernel.storage.dialect import plain_insert
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runtime.stores import TABLES, wire
from perdure.testing.clock import ManualClock, SeededIds
from perdure.testing.contract.support import make_span

START = 1_800_000_000.0
SILENCE, TIMEOUT = 10.5, 25.5
KEPT = [table for table in TABLES if table.name != "namespaces"]
FILLED = "SELECT " + ", ".join(f"EXISTS (SELECT 1 FROM {table.name})" for table in KEPT)
"""Which of the tables have rows: nearly all of them are empty."""
INSERTS = [plain_insert(table).sqlite for table in KEPT]


class Explored(NamedTuple):
    stories: int
    states: int


class Page(NamedTuple):
    """Where a story stands: what is stored, what the model holds, and when."""

    rows: dict[int, list[tuple[Any, ...]]]
    model: Model
    now: int
    spans: int


class World:
    """One rollout in a store, and the same one in a model."""

    def __init__(self, condition: tuple[str, ...]) -> None:
        self.clock = ManualClock(START)
        self.storage = InlineStorage.open(TABLES, clock=self.clock, ids=SeededIds(1))
        self.store: LightningStore = DatabaseLightningStore(wire(self.storage))
        self._limits: dict[str, Any] = {"timeout_seconds": TIMEOUT, "unresponsive_seconds": SILENCE}
        self._limits |= {"max_attempts": 2}
        self._condition = condition

    async def begin(self, start: str) -> Page:
        """Make the rollout that all stories are about."""
        self.model = Model()
        self.compare = Comparison(self.model, START, tolerance=0.4)
        self.spans = 0
        config = RolloutConfig(**self._limits, retry_condition=list(self._condition))  # type: ignore[arg-type]
        fields = {"input": 1, "config": ModelConfig(**self._limits, retry_condition=self._condition)}
        if start == "enqueued":
            self.rollout_id = (await self.store.enqueue_rollout(1, config=config)).rollout_id
            self.model.enqueue([fields], [self.rollout_id])
        else:
            begun = await self.store.start_rollout(1, config=config, worker_id="w0")
            self.rollout_id = begun.rollout_id
            self.model.start_rollout(self.rollout_id, begun.attempt.attempt_id, "w0", **fields)
        return self.mark()

    def mark(self) -> Page:
        """The page to come back to."""
        connection = self.storage.database.connection
        rows = {
            place: connection.execute("SELECT * FROM " + KEPT[place].name).fetchall()
            for place in self._filled()
        }
        return Page(rows, self.model, self.clock.now(), self.spans)

    def back_to(self, page: Page) -> None:
        connection = self.storage.database.connection
        with connection:
            for place in self._filled():
                connection.execute("DELETE FROM " + KEPT[place].name)
            for place, rows in page.rows.items():
                connection.executemany(INSERTS[place], rows)
        self.model = self.compare.model = copy.deepcopy(page.model)
        self.spans = page.spans
        self.clock.advance((page.now - self.clock.now()) / MICROS)

    def _filled(self) -> list[int]:
        """The places of the tables that have rows."""
        (found,) = self.storage.database.connection.execute(FILLED).fetchall()
        return [place for place, has_rows in enumerate(found) if has_rows]

    async def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.model.now += seconds
        await self.store.get_rollout_by_id(self.rollout_id)
        self.model.watchdog()

    async def claim(self) -> None:
        claimed = await self.store.dequeue_rollout("w1")
        pairs = [(claimed.rollout_id, claimed.attempt.attempt_id)] if claimed else []
        answers = self.model.dequeue(pairs, 1, "w1", "default")
        if claimed:
            self.compare.rollout(answers[0], claimed)

    async def start_attempt(self) -> None:
        begun = await self.store.start_attempt(self.rollout_id, "w2")
        wanted = self.model.start_attempt(self.rollout_id, begun.attempt.attempt_id, "w2")
        self.compare.rollout(wanted, begun)

    async def update_attempt(self, which: int, **said: Any) -> None:
        """Report on the first (0) or the latest (-1) attempt."""
        attempts = self.model.rollout(self.rollout_id).attempts
        attempt_id = attempts[which].attempt_id if attempts else "latest"
        try:
            found = await self.store.update_attempt(self.rollout_id, attempt_id, **said)
        except NotFound:
            found = None
        if "last_heartbeat_time" in said:
            said["last_heartbeat_time"] -= self.compare.start
        try:
            wanted = self.model.update_attempt(self.rollout_id, attempt_id, **said)
        except Unknown:
            wanted = None
        if (found is None) != (wanted is None):
            raise Diverged(f"a report on {attempt_id}: {found} instead of {wanted}")
        if found is not None and wanted is not None:
            self.compare.attempt(wanted, found)

    async def heartbeat(self, ago: float) -> None:
        await self.update_attempt(-1, last_heartbeat_time=self.compare.start + self.model.now - ago)

    async def update_rollout(self, **said: Any) -> None:
        found = await self.store.update_rollout(self.rollout_id, **said)
        if "config" in said:
            said["config"] = ModelConfig()
        self.compare.fields(self.model.update_rollout(self.rollout_id, **said), found)

    async def span(self, which: int) -> None:
        rollout = self.model.rollout(self.rollout_id)
        if rollout.attempts:
            self.spans += 1
            attempt_id = rollout.attempts[which].attempt_id
            begun = await self.store.get_latest_attempt(self.rollout_id)
            assert begun is not None
            self.model.watchdog()
            span = make_span(begun, self.spans, attempt_id=attempt_id, span_id=f"{self.spans:016x}")
            assert await self.store.add_span(span) is span
            self.model.add_spans([(self.rollout_id, attempt_id, span.span_id, self.spans)])

    async def check(self) -> None:
        await self.compare.rollouts(self.store)
        await self.compare.workers(self.store)
        ns = await self.store.rollouts.ns()  # type: ignore[attr-defined]
        wrong = await self.storage.read(broken_rules, ns=ns)
        if wrong:
            raise Diverged("; ".join(wrong))

    def state(self) -> tuple[Any, ...]:
        """What is stored, with names and times told by what matters of them."""
        now = self.clock.now()
        connection = self.storage.database.connection
        (rollout,) = connection.execute(
            "SELECT status, outcome, ready IS NULL, attempts, config FROM rollouts"
        ).fetchall()
        attempts = connection.execute(
            "SELECT status, (? - start_time) / 1000000, end_time IS NULL, worker_id,"
            " (? - last_heartbeat_time) / 1000000, (check_at - ?) / 1000000 FROM attempts"
            " ORDER BY sequence_id",
            (now, now, now),
        ).fetchall()
        workers = connection.execute(
            "SELECT w.id, w.status, a.sequence_id FROM workers AS w LEFT JOIN attempts AS a"
            " ON a.id = w.current_attempt_id ORDER BY w.id"
        ).fetchall()
        return (rollout, tuple(attempts), tuple(workers))


Action = Callable[[World], Awaitable[None]]

ACTIONS: dict[str, Action] = {
    "claim": World.claim,
    "start another attempt": World.start_attempt,
    "span of the latest": lambda world: world.span(-1),
    "span of the first": lambda world: world.span(0),
    "latest reports preparing": lambda world: world.update_attempt(-1, status="preparing"),
    "latest reports running": lambda world: world.update_attempt(-1, status="running"),
    "latest reports succeeded": lambda world: world.update_attempt(-1, status="succeeded"),
    "latest reports failed": lambda world: world.update_attempt(-1, status="failed"),
    "latest reports timeout": lambda world: world.update_attempt(-1, status="timeout"),
    "latest reports unresponsive": lambda world: world.update_attempt(-1, status="unresponsive"),
    "first reports running": lambda world: world.update_attempt(0, status="running"),
    "first reports succeeded": lambda world: world.update_attempt(0, status="succeeded"),
    "first reports unresponsive": lambda world: world.update_attempt(0, status="unresponsive"),
    "another worker takes over": lambda world: world.update_attempt(-1, worker_id="w3"),
    "heartbeat now": lambda world: world.heartbeat(0.0),
    "heartbeat of long ago": lambda world: world.heartbeat(8.0),
    "cancel": lambda world: world.update_rollout(status="cancelled"),
    "requeue": lambda world: world.update_rollout(status="requeuing"),
    "set to failed": lambda world: world.update_rollout(status="failed"),
    "set to running": lambda world: world.update_rollout(status="running"),
    "take the limits away": lambda world: world.update_rollout(config=RolloutConfig()),
    "a short while": lambda world: world.wait(6.0),
    "a silence": lambda world: world.wait(11.0),
    "too long": lambda world: world.wait(26.0),
}


def explore(start: str, condition: tuple[str, ...], length: int, *, every: bool = False) -> Explored:
    """Tell every story; raises `Diverged`, with the story, where store and model part."""
    return asyncio.run(_explore(start, condition, length, every))


async def _explore(start: str, condition: tuple[str, ...], length: int, every: bool) -> Explored:
    world = World(condition)
    seen: set[tuple[Any, ...]] = set()
    stories = 0
    front: list[tuple[tuple[str, ...], Page]] = [((), await world.begin(start))]
    for _ in range(length):
        following = []
        for story, page in front:
            for action in ACTIONS:
                world.back_to(page)
                await _tell(world, (start, *story, action))
                stories += 1
                state = world.state()
                if every or state not in seen:
                    seen.add(state)
                    following.append(((*story, action), world.mark()))
        front = following
    await world.store.close()
    return Explored(stories, len(seen))


async def _tell(world: World, story: tuple[str, ...]) -> None:
    """Do the story's last action, and compare."""
    try:
        await ACTIONS[story[-1]](world)
        await world.check()
    except Diverged as error:
        raise Diverged(f"{', '.join(story)}: {error}") from error


def run(length: int = 5, *, every: bool = False) -> list[Explored]:
    """The long run: longer stories, or with `every` all of them, known or not."""
    conditions: tuple[tuple[str, ...], ...] = ((), ("failed",), ("failed", "unresponsive", "timeout"))
    return [
        explore(start, condition, length, every=every)
        for start in ("enqueued", "started")
        for condition in conditions
    ]
