"""Delivers the effects of a database: at least once, by consumer, in any number of processes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from perdure.kernel.clock import boottime
from perdure.kernel.errors import StorageClosed, StorageError
from perdure.kernel.merge import Merger
from perdure.kernel.retry import Backoff, retry_until
from perdure.kernel.signals.port import Watch
from perdure.kernel.storage.port import Storage
from perdure.outbox import model, operations
from perdure.outbox.model import (
    DEAD,
    DELIVERED,
    PENDING,
    BatchConsumer,
    Consumer,
    DeliveryOutcome,
    DeliveryPolicy,
    Effect,
    TryLater,
    Undeliverable,
)
from perdure.outbox.operations import AGAIN, ALL, NEW, OUTBOX_CHANNEL, ClaimedEffect, DueEffects, EffectClaims

POLL_SECONDS = 5.0
LEAST_REST = 0.02
"""Due effects that a claim did not return are being claimed by another process."""
AGAIN_GATHER = 0.2
LEASE_MARGIN = 30.0
GRACE_SECONDS = 5.0
SETTLE_SECONDS = 5.0

logger = logging.getLogger(__name__)


class Deliveries:
    """Delivers the effects of some consumers, in every namespace, from `start` to `stop`.

    Every effect is delivered at least once; its id is the same each time. Each consumer has separate tries,
    waits and slots, so that a consumer that fails, hangs or gets many effects does not delay others. Any
    number of processes may deliver from one database. `policy` applies to consumers without one.
    """

    def __init__(
        self,
        storage: Storage,
        consumers: Sequence[Consumer | BatchConsumer] = (),
        *,
        policy: DeliveryPolicy | None = None,
        poll: float = POLL_SECONDS,
        lease: float | None = None,
    ) -> None:
        self.storage = storage
        self.consumers = tuple(consumers)
        self.policy = policy or DeliveryPolicy()
        self.poll = poll
        self.lease = lease
        """Lease of a claimed effect in seconds; by default the deadline of its consumer plus 30 s."""
        self.counts: Counter[str] = Counter()
        """Counts of this process: tries `delivered`, tries `failed`, effects that are `dead`."""
        self._merger = Merger()
        self._deliverers: list[Deliverer] = []

    def add(self, *consumers: Consumer | BatchConsumer) -> None:
        """Add consumers, whose effects are delivered from the next start on."""
        self.consumers += consumers

    async def start(self) -> None:
        """Start to deliver in the running event loop; a second call does nothing."""
        if not self._deliverers:
            self._deliverers = [
                Deliverer(self, consumer, lane)
                for consumer in self.consumers
                # In batches, effects that failed before have a separate lane, which delivers them one by one.
                for lane in ((NEW, AGAIN) if isinstance(consumer, BatchConsumer) else (ALL,))
            ]

    async def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Stop claiming, wait `grace` seconds for deliveries, and release the others uncharged."""
        deliverers, self._deliverers = self._deliverers, []
        await asyncio.gather(*(deliverer.stop(grace) for deliverer in deliverers))

    async def settle(
        self, claimed: ClaimedEffect, outcome: DeliveryOutcome, policy: DeliveryPolicy, lease: float
    ) -> None:
        """Record the outcome of a try; retry storage errors until the lease ends."""
        clock = asyncio.get_running_loop().time
        until = clock() + lease
        batch = partial(self._settle_batch, policy=policy, ns=claimed.ns)
        try:
            status = await retry_until(
                lambda: self._merger.call((claimed.ns, policy), batch, outcome),
                what=f"settling effect {outcome.id}",
                still_owned=lambda: clock() < until,
                idempotent=True,
                backoff=Backoff(0.05, 2.0),
            )
        except StorageError as error:
            logger.warning("effect %s: could not be settled: %s", outcome.id, error)
        else:
            self._count(outcome, status)

    async def _settle_batch(
        self, outcomes: Sequence[DeliveryOutcome], policy: DeliveryPolicy, ns: int
    ) -> Sequence[str | None]:
        return await self.storage.run(operations.settle, outcomes, policy.retries, policy.keep, ns=ns)

    def _count(self, outcome: DeliveryOutcome, status: str | None) -> None:
        if status == DELIVERED:
            self.counts["delivered"] += 1
        elif outcome.event in ("failed", "refused"):
            self.counts["failed"] += 1
        if status == DEAD:
            self.counts["dead"] += 1
            logger.error("effect %s is dead after %d tries: %s", outcome.id, outcome.attempt, outcome.error)
        elif status == PENDING and outcome.event == "failed":
            logger.warning("effect %s: try %d failed: %s", outcome.id, outcome.attempt, outcome.error)


class Deliverer:
    """Claims the effects of one consumer and delivers them, with up to `concurrency` calls at once."""

    def __init__(
        self, deliveries: Deliveries, consumer: Consumer | BatchConsumer, lane: EffectClaims
    ) -> None:
        self._deliveries = deliveries
        self._consumer = consumer
        self._lane = lane
        self._policy = consumer.policy or deliveries.policy
        margin = self._policy.deadline + LEASE_MARGIN
        self._lease = margin if deliveries.lease is None else deliveries.lease
        self._batch = self._policy.batch if lane is NEW else 1
        # Most new effects do not concern the lane of failed ones.
        self._gather = max(self._policy.gather, AGAIN_GATHER) if lane is AGAIN else self._policy.gather
        self._flights: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._resting = False
        self._news = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self, grace: float) -> None:
        self._stopping = True
        # A claim is never cancelled: its effects would have no deliverer until the lease ends.
        if self._resting:
            self._task.cancel()
        await asyncio.wait([self._task])
        flights = set(self._flights)
        if flights:
            _, flights = await asyncio.wait(flights, timeout=grace)
        for flight in flights:
            flight.cancel()
        if flights:
            _, flights = await asyncio.wait(flights, timeout=SETTLE_SECONDS)
        if flights:
            logger.error("%d deliveries of %s do not stop", len(flights), self._consumer.name)

    async def _run(self) -> None:
        with self._deliveries.storage.signals.watch(OUTBOX_CHANNEL, [self._consumer.name]) as watch:
            listening = asyncio.get_running_loop().create_task(self._listen(watch))
            try:
                await self._keep_claiming()
            finally:
                listening.cancel()

    async def _listen(self, watch: Watch) -> None:
        """Claim again after each hint of a new effect for the consumer."""
        while True:
            await watch.changed()
            self._news.set()

    async def _keep_claiming(self) -> None:
        backoff = Backoff(0.2, self._deliveries.poll)
        while not self._stopping:
            self._news.clear()
            try:
                pause = await self._claim_all()
                backoff.reset()
            except StorageClosed:
                return
            except Exception as error:  # noqa: BLE001 - the deliverer must continue
                pause = backoff.next()
                logger.warning("effects for %s cannot be claimed: %s", self._consumer.name, error)
            if not self._stopping:
                await self._rest(self._wait_for_news(pause))

    async def _wait_for_news(self, seconds: float) -> None:
        news = asyncio.ensure_future(self._news.wait())
        try:
            done, _ = await asyncio.wait([news], timeout=seconds)
        finally:
            news.cancel()
        if done and self._gather:
            await asyncio.sleep(self._gather)

    async def _claim_all(self) -> float:
        """Claim while effects are due; return the seconds until the next claim."""
        while not self._stopping:
            room = self._policy.concurrency - len(self._flights)
            if room <= 0:
                await self._rest(asyncio.wait(self._flights, return_when=asyncio.FIRST_COMPLETED))
                continue
            lease_ends = boottime() + self._lease
            wanted = room if self._batch == 1 else self._batch
            due = await self._claim(wanted)
            for group in self._groups(due.claimed):
                self._launch(self._deliver_group(group, lease_ends))
            if due.looked < wanted:
                poll = self._deliveries.poll
                return poll if due.wait is None else max(min(due.wait, poll), LEAST_REST)
        return LEAST_REST

    def _groups(self, claimed: Sequence[ClaimedEffect]) -> list[list[ClaimedEffect]]:
        """Group effects by call of the consumer: single effects, or all of a namespace."""
        if self._batch == 1:
            return [[effect] for effect in claimed]
        groups: dict[int, list[ClaimedEffect]] = {}
        for effect in claimed:
            groups.setdefault(effect.ns, []).append(effect)
        return list(groups.values())

    async def _claim(self, wanted: int) -> DueEffects:
        deliveries, name = self._deliveries, self._consumer.name
        due = await deliveries.storage.run(
            operations.claim_due, name, wanted, self._lease, self._policy.retries, self._lane
        )
        if due.dead:
            deliveries.counts["dead"] += due.dead
            logger.error("%d effects for %s are dead: their deliverers died", due.dead, name)
        return due

    async def _rest(self, awaited: Awaitable[Any]) -> None:
        self._resting = True
        try:
            await awaited
        finally:
            self._resting = False

    def _launch(self, flight: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(flight)
        self._flights.add(task)
        task.add_done_callback(self._flights.discard)

    async def _deliver_group(self, group: Sequence[ClaimedEffect], lease_ends: float) -> None:
        if boottime() > lease_ends:
            # The process was frozen: the effects are due again, for any deliverer.
            logger.warning("effect %s: its lease ended before its delivery", group[0].effect.id)
            self._news.set()
            return
        outcomes = await self._try(group[0].ns, [claimed.effect for claimed in group])
        settle = partial(self._deliveries.settle, policy=self._policy, lease=self._lease)
        await asyncio.gather(*map(settle, group, outcomes))
        if any(outcome.event != "delivered" for outcome in outcomes):
            # It may be due before every effect known so far.
            self._news.set()

    async def _try(self, ns: int, effects: Sequence[Effect]) -> list[DeliveryOutcome]:
        """Deliver once; return an outcome for each effect, also after an error or a cancellation."""
        errors: Mapping[str, BaseException] = {}
        deadline = self._policy.deadline
        timer = asyncio.timeout(deadline)
        try:
            async with timer:
                if isinstance(self._consumer, BatchConsumer):
                    errors = await self._consumer.deliver_batch(ns, effects)
                else:
                    await self._consumer.deliver(effects[0])
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            failure: BaseException = error
            if task is not None and task.cancelling():
                task.uncancel()
                failure = TryLater("the deliverer stops", charged=False)
            errors = dict.fromkeys((effect.id for effect in effects), failure)
        except Exception as error:  # noqa: BLE001 - kept with the effects, which are tried again
            slow = isinstance(error, TimeoutError) and timer.expired()
            failure = TryLater(f"not done within {deadline:g} s") if slow else error
            errors = dict.fromkeys((effect.id for effect in effects), failure)
        return [_outcome(effect, errors.get(effect.id)) for effect in effects]


def _outcome(effect: Effect, error: BaseException | None) -> DeliveryOutcome:
    """Return the outcome of a try that ended with an error or None."""
    outcome = partial(DeliveryOutcome, effect.id, effect.attempts)
    if error is None:
        return outcome("delivered")
    text = model.error_text(error)
    if isinstance(error, Undeliverable):
        return outcome("refused", text)
    if isinstance(error, TryLater):
        return (
            outcome("failed", text, error.seconds)
            if error.charged
            else outcome("released", wait=error.seconds)
        )
    return outcome("failed", text)
