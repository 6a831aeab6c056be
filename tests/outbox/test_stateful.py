"""Any calls in any order, on every engine, against a dictionary.

The size is `PERDURE_EXAMPLES` and `PERDURE_STEPS`.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from tests.outbox.support import age, open_storage, rows_of
from tests.reliability.test_model import size

from perdure.kernel.clock import MICROS
from perdure.kernel.storage.port import Storage
from perdure.outbox import operations, sql
from perdure.outbox.model import DeliveryOutcome, Effect, Retries
from perdure.outbox.operations import ClaimedEffect, NewEffect
from perdure.testing.clock import ManualClock, SeededIds

T = TypeVar("T")

TRIES, AGE = 3, 1500.0
RETRIES = Retries(first=100.0, longest=200.0, tries=TRIES, age=AGE)
LEASE = 50.0
NAMESPACES = (1, 2)
TOLERANCE = 5.0
"""Maximum seconds of an example on a slow machine; its simulated times are far longer."""

picks = st.integers(0, 1000)
consumers = st.sampled_from(["webhook", "index"])


@dataclass
class Known:
    """The expected effect, in the model's seconds."""

    ns: int
    consumer: str
    status: str
    attempts: int
    tries: int
    since: float
    due: float | None
    answered: int = 0


class Bench:
    """An engine, emptied for each example, whose effects age instead of its clock advancing."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._clock = ManualClock()
        self._url = url
        self._numbers = itertools.count()
        self.storage: Storage | None = None

    def open(self) -> Storage:
        self.end()
        url = self._url.replace("NUMBER", str(next(self._numbers)))
        self.storage = open_storage(url, clock=self._clock, ids=SeededIds(0))
        if url.startswith("postgres"):
            self.do(_empty(self.storage))
        return self.storage

    def advance(self, seconds: float) -> None:
        assert self.storage is not None
        if self._url.startswith("postgres"):
            self.do(age(self.storage, seconds))
        else:
            self._clock.advance(seconds)

    def do(self, work: Any) -> Any:
        return self._runner.run(work)

    def end(self) -> None:
        if self.storage is not None:
            self.do(self.storage.close())
            self.storage = None

    def close(self) -> None:
        self.end()
        self._runner.close()


async def _empty(storage: Storage) -> None:
    for ns in NAMESPACES:
        ids = [row[1] for row in await rows_of(storage) if row[0] == ns]
        await storage.run(_drop, ids, ns=ns)


async def _drop(tx: Any, ids: list[str]) -> None:
    await tx.execute(sql.DROP_EFFECTS, ids=ids)
    await tx.execute(sql.DROP_BODIES, ids=ids)


class Lease(NamedTuple):
    """A current or earlier claim."""

    ns: int
    effect: Effect


class OutboxMachine(RuleBasedStateMachine):
    bench: ClassVar[Bench]

    @initialize()
    def begin(self) -> None:
        self.storage = self.bench.open()
        self.now = 0.0
        self.known: dict[str, Known] = {}
        self.held: list[Lease] = []
        self.delivered: set[str] = set()

    def _run(self, operation: Any, *args: Any, ns: int | None = None, actor: str | None = None) -> Any:
        async def call() -> Any:
            return await self.storage.run(operation, *args, ns=ns, actor=actor)

        return self.bench.do(call())

    @rule(ns=st.sampled_from(NAMESPACES), wanted=st.lists(consumers, max_size=3))
    def put(self, ns: int, wanted: list[str]) -> None:
        effects = [NewEffect(consumer, "run", f'"{consumer}"') for consumer in wanted]
        ids = self._run(operations.put, effects, ns=ns)
        for id, consumer in zip(ids, wanted, strict=True):
            self.known[id] = Known(ns, consumer, "pending", 0, 0, self.now, self.now)
        self._compare()

    @rule(seconds=st.sampled_from([60.0, 110.0, 260.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.bench.advance(seconds)
        self.now += seconds

    @rule(consumer=consumers, n=st.sampled_from([1, 2, 50]))
    def claim(self, consumer: str, n: int) -> None:
        due = self._run(operations.claim_due, consumer, n, LEASE, RETRIES)
        taken = [item.effect.id for item in due.claimed]
        surely = {id for id, effect in self.known.items() if self._due(effect, consumer, -TOLERANCE)}
        perhaps = {id for id, effect in self.known.items() if self._due(effect, consumer, TOLERANCE)}
        over = self._given_up()
        seen = [*taken, *over]
        assert len(seen) == len(set(seen)) == due.looked <= n
        assert set(seen) <= perhaps
        assert len(seen) >= min(n, len(surely))
        assert due.dead == len(over)
        for item in due.claimed:
            self._claimed(item)
        self._compare()

    def _due(self, effect: Known, consumer: str, slack: float) -> bool:
        return effect.consumer == consumer and effect.due is not None and effect.due <= self.now + slack

    def _given_up(self) -> list[str]:
        """Return the effects that the claim gave up after their last try."""
        rows = {row[1]: row[5] for row in self.bench.do(rows_of(self.storage))}
        over = [id for id, effect in self.known.items() if effect.status != "dead" and rows[id] == "dead"]
        for id in over:
            effect = self.known[id]
            assert effect.tries == TRIES
            effect.status, effect.due, effect.attempts = "dead", None, effect.attempts + 1
            effect.tries += 1
        return over

    def _claimed(self, claimed: ClaimedEffect) -> None:
        effect = self.known[claimed.effect.id]
        effect.attempts += 1
        effect.tries += 1
        effect.due = self.now + LEASE
        assert (claimed.ns, claimed.effect.attempts) == (effect.ns, effect.attempts)
        assert claimed.effect.body == f'"{effect.consumer}"'
        self.held.append(Lease(claimed.ns, claimed.effect))

    @rule(pick=picks)
    def crash(self, pick: int) -> None:
        """Lose the holder of a claim, which settles nothing."""
        if self.held:
            self.held.pop(pick % len(self.held))

    @rule(
        pick=picks,
        event=st.sampled_from(["delivered", "failed", "failed", "refused", "released"]),
        keeps=st.booleans(),
    )
    def settle(self, pick: int, event: str, keeps: bool) -> None:
        """Settle a claim, perhaps again; a second settlement must change nothing."""
        if not self.held:
            return
        held = self.held[pick % len(self.held)]
        if not keeps:
            self.held.remove(held)
        outcome = DeliveryOutcome(held.effect.id, held.effect.attempts, event, "why")  # type: ignore[arg-type]
        (answer,) = self._run(operations.settle, [outcome], RETRIES, ns=held.ns)
        assert answer == self._settled(self.known[held.effect.id], outcome)
        self._compare()

    def _settled(self, effect: Known, outcome: DeliveryOutcome) -> str | None:
        if outcome.event == "delivered":
            moved = effect.status != "delivered"
            effect.status, effect.due = "delivered", None
            return "delivered" if moved else None
        if (
            effect.status != "pending"
            or outcome.attempt != effect.attempts
            or effect.answered == effect.attempts
        ):
            return None
        effect.answered = effect.attempts
        if outcome.event == "released":
            effect.tries, effect.due = effect.tries - 1, self.now
        elif outcome.event == "refused" or self._exhausted(effect):
            effect.status, effect.due = "dead", None
        else:
            effect.due = self.now + RETRIES.delay(outcome.id, effect.tries)
        return effect.status

    def _exhausted(self, effect: Known) -> bool:
        return effect.tries >= TRIES or self.now - effect.since >= AGE

    @rule(pick=picks)
    def retry(self, pick: int) -> None:
        if not self.known:
            return
        id = sorted(self.known)[pick % len(self.known)]
        effect = self.known[id]
        (answer,) = self._run(operations.retry, [id], ns=effect.ns, actor="somebody")
        if effect.status == "delivered":
            assert not isinstance(answer, Effect)
            return
        effect.status, effect.due, effect.since, effect.tries = "pending", self.now, self.now, 0
        effect.answered = effect.attempts
        assert isinstance(answer, Effect)
        self._compare()

    def _compare(self) -> None:
        rows = {row[1]: row for row in self.bench.do(rows_of(self.storage))}
        assert set(rows) == set(self.known)
        for id, effect in self.known.items():
            ns, _, consumer, _, _, status, attempts, _, forgiven, _, since, due, ended, _ = rows[id]
            assert (ns, consumer, status, attempts, attempts - forgiven) == (
                effect.ns,
                effect.consumer,
                effect.status,
                effect.attempts,
                effect.tries,
            )
            assert (due is None) == (effect.due is None) == (ended is not None) == (status != "pending")
            if effect.due is not None:
                expected = effect.due - effect.since
                assert abs((due - since) / MICROS - expected) < TOLERANCE
        delivered = {id for id, row in rows.items() if row[5] == "delivered"}
        assert self.delivered <= delivered
        self.delivered = delivered


def run_on(url: str, limits: settings) -> None:
    with closing(Bench(url)) as bench:
        machine = type("Machine", (OutboxMachine,), {"bench": bench})
        run_state_machine_as_test(machine, settings=limits)


@pytest.mark.timeout(300)
def test_in_memory() -> None:
    run_on(":memory:", size(30, 40))


@pytest.mark.timeout(300)
def test_in_a_file(tmp_path: Any) -> None:
    run_on(str(tmp_path / "NUMBER.db"), size(8, 25))


@pytest.mark.timeout(300)
def test_on_postgresql(database_url: str) -> None:
    run_on(database_url, size(8, 25))
