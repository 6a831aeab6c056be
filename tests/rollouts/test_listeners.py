"""Handlers of a kind's listeners: claims, every end of an attempt, ends, and executors that stopped."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import pytest
from tests.rollouts.house import House
from tests.support.kinds import KINDS
from tests.threads.support import ATTEMPTS, World, open_storage

from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import (
    TASK,
    AttemptStart,
    EndedRollout,
    Kinds,
    Listener,
    RolloutEnds,
    RolloutKind,
)
from perdure.rollouts.operations import claim as claims
from perdure.rollouts.operations import report as reports
from perdure.rollouts.operations.claim import Claim
from perdure.rollouts.operations.enqueue import NewRollout
from perdure.rollouts.operations.report import AttemptReport
from perdure.rollouts.operations.workers import WorkerChanges
from perdure.rollouts.records import AttemptedRollout
from perdure.rollouts.service import Rollouts
from perdure.testing.clock import ManualClock
from perdure.threads.operations.settle import RUN_KIND

ONCE = '{"timeout_seconds":100.0,"unresponsive_seconds":50.0,"max_attempts":1,"retry_condition":[]}'
AGAIN = (
    '{"timeout_seconds":100.0,"unresponsive_seconds":50.0,"max_attempts":2,'
    '"retry_condition":["failed","timeout","unresponsive"]}'
)


class Ear:
    """Records the calls of a listener in a short form."""

    def __init__(self) -> None:
        self.ns: int | None = None
        """The recorded namespace; the same process may sweep others."""
        self.heard: list[tuple[Any, ...]] = []
        self.batches: list[int] = []

    @property
    def listener(self) -> Listener:
        return Listener(
            on_claimed=self.on_claimed,
            on_ends=self.on_ends,
            on_ended=self.on_ended,
            on_stopped=self.on_stopped,
        )

    def news(self) -> list[tuple[Any, ...]]:
        heard, self.heard = self.heard, []
        return heard

    def _note(self, tx: Tx, news: Iterable[tuple[Any, ...]]) -> None:
        if self.ns in (None, tx.ns):
            self.heard += news

    async def on_claimed(self, tx: Tx, starts: Sequence[AttemptStart]) -> None:
        self.batches.append(len(starts))
        self._note(tx, [("claimed", each.sequence_id, each.queue, each.parent) for each in starts])

    async def on_ends(self, tx: Tx, ends: RolloutEnds) -> None:
        if ends.attempts:
            self.batches.append(len(ends.attempts))
        self._note(
            tx,
            [
                ("attempt", end.status, end.reason, end.charged, end.rollout_status, end.queue, end.parent)
                for end in ends.attempts
            ],
        )

    async def on_ended(self, tx: Tx, ended: Sequence[EndedRollout]) -> None:
        self._note(tx, [("ended", e.status, e.outcome, e.queue, e.parent) for e in ended])

    async def on_stopped(self, tx: Tx, rollout_ids: Sequence[str]) -> None:
        self._note(tx, [("stopped",) for _ in rollout_ids])


# --- tasks with a listener --------------------------------------------------------------------------------


def _new(config: str, **fields: Any) -> NewRollout:
    return NewRollout(
        input="1", config=config, metadata="{}", resources_id="r", queue="q", parent="whole", **fields
    )


async def _claimed(rollouts: Rollouts, config: str) -> AttemptedRollout:
    await rollouts.enqueue_new(_new(config))
    (claimed,) = await rollouts.claim("w", queue="q")
    return claimed


def _attempt(status: str, reason: str, charged: bool, rollout_status: str) -> tuple[Any, ...]:
    return ("attempt", status, reason, charged, rollout_status, "q", "whole")


def _end(status: str, outcome: str) -> tuple[Any, ...]:
    return ("ended", status, outcome, "q", "whole")


async def test_every_end_of_a_task_attempt_is_told(house: House) -> None:
    ear = Ear()
    tasks = house.rollouts(RolloutKind(TASK).with_listeners(ear.listener))

    async def report(claimed: AttemptedRollout, status: Any) -> None:
        await tasks.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status=status)

    async def expect(config: str, way: Any, *news: tuple[Any, ...]) -> AttemptedRollout:
        claimed = await _claimed(tasks, config)
        assert ear.news() == [("claimed", 1, "q", "whole")]
        await way(claimed)
        assert ear.news() == list(news)
        await tasks.update(claimed.rollout_id, status="cancelled")
        ear.news()
        return claimed

    async def late(claimed: AttemptedRollout) -> None:
        await house.advance(60)
        await tasks.watchdog.sweep()

    async def too_long(claimed: AttemptedRollout) -> None:
        await house.advance(30)
        await report(claimed, "running")
        await tasks.update_attempt(claimed.rollout_id, "latest", last_heartbeat_time=4e9)
        await house.advance(80)
        await tasks.watchdog.sweep()

    async def cancel(claimed: AttemptedRollout) -> None:
        await tasks.cancel(claimed.rollout_id)
        assert ear.news() == [_end("cancelled", "cancelled")]
        await report(claimed, "failed")

    async def release(claimed: AttemptedRollout) -> None:
        await tasks.release([(claimed.rollout_id, claimed.attempt.attempt_id)])
        await tasks.release([(claimed.rollout_id, claimed.attempt.attempt_id)])

    async def cancel_and_release(claimed: AttemptedRollout) -> None:
        await tasks.cancel(claimed.rollout_id)
        ear.news()
        await release(claimed)

    def say(status: str) -> Any:
        return lambda claimed: report(claimed, status)

    silent, error = _end("failed", "unresponsive"), _end("failed", "error")
    done, late_end = _end("succeeded", "success"), _end("failed", "timeout")
    ways: list[tuple[Any, ...]] = [
        (ONCE, say("succeeded"), _attempt("succeeded", "succeeded", True, "succeeded"), done),
        (ONCE, say("failed"), _attempt("failed", "failed", True, "failed"), error),
        (AGAIN, say("failed"), _attempt("failed", "failed", True, "requeuing")),
        (ONCE, say("timeout"), _attempt("timeout", "timeout", True, "failed"), late_end),
        (ONCE, late, _attempt("unresponsive", "unresponsive", True, "failed"), silent),
        (AGAIN, late, _attempt("unresponsive", "unresponsive", True, "requeuing")),
        (ONCE, too_long, _attempt("timeout", "timeout", True, "failed"), late_end),
        (ONCE, cancel, _attempt("failed", "failed", True, "cancelled")),
        (ONCE, release, _attempt("failed", "released", False, "requeuing")),
        (ONCE, cancel_and_release, _attempt("failed", "released", False, "cancelled")),
    ]
    for config, way, *news in ways:
        await expect(config, way, *news)


async def test_an_attempt_that_came_back_to_life_ends_again(house: House) -> None:
    ear = Ear()
    tasks = house.rollouts(RolloutKind(TASK).with_listeners(ear.listener))
    claimed = await _claimed(tasks, ONCE)
    for status in ("timeout", "running", "succeeded"):
        await tasks.update_attempt(claimed.rollout_id, "latest", status=status)
    assert [each[1] for each in ear.news() if each[0] == "attempt"] == ["timeout", "succeeded"]


async def test_a_released_claim_keeps_its_place_and_does_not_count(house: House) -> None:
    tasks = house.rollouts(RolloutKind(TASK).with_listeners(Ear().listener))
    first = await _claimed(tasks, ONCE)
    await tasks.enqueue_new(_new(ONCE))
    await tasks.release([(first.rollout_id, first.attempt.attempt_id)])
    (again,) = await tasks.claim("w", queue="q")
    assert (again.rollout_id, again.attempt.sequence_id) == (first.rollout_id, 2)
    attempts = (await tasks.attempts(first.rollout_id)).items
    assert [each.status for each in attempts] == ["failed", "preparing"]
    assert (await tasks.statistics())["total_rollouts"] == 2


@pytest.mark.parametrize("listens", ["claims", "ends", "nothing of attempts"])
async def test_a_released_attempt_stays_where_somebody_heard_of_it(house: House, listens: str) -> None:
    ear = Ear()
    kinds = {
        "claims": RolloutKind(TASK, on_claimed=ear.on_claimed),
        "ends": RolloutKind(TASK, on_ends=ear.on_ends),
        "nothing of attempts": RolloutKind(TASK, on_ended=ear.on_ended),
    }
    tasks = house.rollouts(kinds[listens])
    claimed = await _claimed(tasks, ONCE)
    await tasks.release([(claimed.rollout_id, claimed.attempt.attempt_id)])
    kept = listens != "nothing of attempts"
    assert len((await tasks.attempts(claimed.rollout_id)).items) == (1 if kept else 0)
    assert (await tasks.get(claimed.rollout_id)).status == ("requeuing" if kept else "queuing")


async def test_a_handler_gets_a_batch(house: House) -> None:
    ear = Ear()
    tasks = house.rollouts(RolloutKind(TASK).with_listeners(ear.listener))
    for _ in range(3):
        await tasks.enqueue_new(_new(ONCE))
    (share,) = await tasks.write(claims.claim, [Claim("w", 3)], ["q"], [TASK], tasks.kinds)
    said = [AttemptReport(each.rollout.id, each.attempt.id, status="succeeded") for each in share]
    await tasks.write(reports.report_attempts, said, TASK, tasks.kinds)
    assert ear.batches == [3, 3]


async def test_listeners_are_told_in_their_order(house: House) -> None:
    order: list[str] = []

    def listener(name: str) -> Listener:
        async def told(tx: Tx, items: Any) -> None:
            order.append(name)

        return Listener(on_claimed=told, on_ends=told)

    async def own(tx: Tx, ended: Sequence[EndedRollout]) -> None:
        order.append("own")

    kind = RolloutKind(TASK, on_ended=own)
    tasks = house.rollouts(kind.with_listeners(listener("first"), Listener(), listener("second")))
    claimed = await _claimed(tasks, ONCE)
    assert order == ["first", "second"]
    await tasks.update_attempt(claimed.rollout_id, "latest", status="succeeded")
    assert order[2:] == ["first", "second", "own"]
    assert RolloutKind(TASK).with_listeners(Listener()).on_claimed is None


async def test_what_a_handler_refuses_has_not_happened(house: House) -> None:
    class Refused(Exception):
        pass

    async def refuse(tx: Tx, ends: RolloutEnds) -> None:
        raise Refused

    tasks = house.rollouts(RolloutKind(TASK, on_ends=refuse))
    claimed = await _claimed(tasks, ONCE)
    with pytest.raises(Refused):
        await tasks.update_attempt(claimed.rollout_id, "latest", status="succeeded")
    assert (await tasks.get_latest_attempt(claimed.rollout_id)).status == "preparing"


# --- runs with a listener ---------------------------------------------------------------------------------


@pytest.fixture
async def heard(shared_engine_url: str) -> AsyncIterator[tuple[World, Ear]]:
    clock = ManualClock()
    storage = open_storage(shared_engine_url, clock=clock)
    ear = Ear()
    others = [KINDS[name] for name in KINDS.names() if name != RUN_KIND.name]
    kinds = Kinds(*others, RUN_KIND.with_listeners(ear.listener))
    world = await World(storage, clock, namespace=f"test {uuid.uuid4().hex}", kinds=kinds).begin()
    ear.ns = await world.threads.ns("write")
    yield world, ear
    await world.check()
    await world.queue.close()
    await storage.close()


async def test_every_end_of_a_run_attempt_is_told(heard: tuple[World, Ear]) -> None:
    world, ear = heard
    thread = await world.thread()

    def attempt(status: str, reason: str, charged: bool, rollout_status: str) -> tuple[Any, ...]:
        return ("attempt", status, reason, charged, rollout_status, "agents", None)

    def end(status: str, outcome: str) -> tuple[Any, ...]:
        return ("ended", status, outcome, "agents", None)

    async def expect(*news: tuple[Any, ...]) -> None:
        assert ear.news() == list(news)

    async def begun() -> Any:
        run = await world.run(thread)
        taken = await world.take(run)
        await expect(("claimed", 1, "agents", None))
        return taken

    done = await begun()
    await world.finish(done.held)
    await world.finish(done.held)
    await expect(attempt("succeeded", "succeeded", True, "succeeded"), end("succeeded", "success"))
    await world.finish((await begun()).held, "error")
    await expect(attempt("failed", "permanent", True, "failed"), end("failed", "error"))
    await world.finish((await begun()).held, "timeout")
    await expect(attempt("timeout", "timeout", True, "failed"), end("failed", "timeout"))

    taken = await begun()
    for number in (2, 3):
        await world.finish(taken.held, "retriable")
        taken = await world.take(taken.run)
        await expect(attempt("failed", "retriable", True, "requeuing"), ("claimed", number, "agents", None))
    await world.queue.hand_back([taken.held])
    taken = await world.take(taken.run)
    await expect(attempt("failed", "released", False, "requeuing"), ("claimed", 4, "agents", None))
    await world.finish(taken.held, "stopped")
    taken = await world.take(taken.run)
    await expect(attempt("failed", "released", False, "requeuing"), ("claimed", 5, "agents", None))
    await world.advance(100)
    await expect(attempt("unresponsive", "unresponsive", True, "failed"), end("failed", "unresponsive"))

    for stop in (world.finish, lambda held: world.queue.hand_back([held])):
        taken = await begun()
        await world.threads.cancel_run(taken.run.run_id)
        await expect(end("cancelled", "interrupt"))
        await stop(taken.held)
        await expect(attempt("failed", "stopped", True, "cancelled"), ("stopped",))
    taken = await begun()
    await world.threads.cancel_run(taken.run.run_id)
    await expect(end("cancelled", "interrupt"))
    await world.advance(100)
    await expect(attempt("unresponsive", "unresponsive", True, "cancelled"), ("stopped",))
    assert (await world.rows(ATTEMPTS, run_id=taken.run.run_id))[0][1] == "unresponsive"


async def test_a_claim_of_a_run_that_nobody_got_is_told(heard: tuple[World, Ear]) -> None:
    world, ear = heard
    run = await world.run(await world.thread())
    taken = await world.take(run)
    await world.rollouts.release([(run.run_id, taken.held.attempt_id)])
    assert [each[:5] for each in ear.news()] == [
        ("claimed", 1, "agents", None),
        ("attempt", "failed", "released", False, "requeuing"),
    ]
    await world.threads.cancel_run((await world.take(run)).run.run_id)
    ear.news()
    (latest,) = [each.attempt_id for each in (await world.rollouts.attempts(run.run_id)).items[-1:]]
    await world.rollouts.release([(run.run_id, latest)])
    assert [each[:1] for each in ear.news()] == [("attempt",), ("stopped",)]


# --- the order of locks -----------------------------------------------------------------------------------


async def test_workers_are_locked_after_what_handlers_lock(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    load = WorkerChanges.load

    async def loaded(workers: WorkerChanges, ids: Iterable[str]) -> None:
        order.append("workers")
        await load(workers, ids)

    async def told(tx: Tx, items: Sequence[Any]) -> None:
        order.append("handler")

    monkeypatch.setattr(WorkerChanges, "load", loaded)
    tasks = house.rollouts(RolloutKind(TASK, on_claimed=told, on_ends=told))
    claimed = await _claimed(tasks, AGAIN)
    assert order == ["handler", "workers"]
    await tasks.update_attempt(claimed.rollout_id, "latest", status="failed")
    await tasks.claim("w", queue="q")
    await house.advance(60)
    await tasks.watchdog.sweep()
    claimed = await _claimed(tasks, ONCE)
    await tasks.release([(claimed.rollout_id, claimed.attempt.attempt_id)])
    assert order == ["handler", "workers"] * 6
