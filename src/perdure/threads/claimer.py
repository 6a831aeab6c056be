"""The claims of a worker in this process, and those among them that wait for runs.

A claim that waits is known to the process. Whoever creates a run takes it along into the transaction, and
claims there for it what is first in the queue (`claim_at_once`). Any other run that is ready is told by a
hint, which wakes one of those that wait.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from perdure.kernel.checks import check_id, check_name, check_text
from perdure.kernel.signals.port import Watch
from perdure.kernel.storage.port import Storage
from perdure.rollouts.model import Kinds
from perdure.rollouts.operations.claim import Claim
from perdure.rollouts.operations.work import READY_CHANNEL, ready_key
from perdure.rollouts.watchdog import WatchedService
from perdure.service.base import Access
from perdure.streams.service import Streams
from perdure.threads.encoding import check_queues
from perdure.threads.model import GATHER_SECONDS
from perdure.threads.operations import assign
from perdure.threads.operations.assign import Drained, Share, WaitingClaimRequest, claim_at_once
from perdure.threads.work import Assignment

if TYPE_CHECKING:
    from perdure.threads.queue import RunQueue

MOST_TAKEN = 8
"""How many claims, each of other agents, a transaction takes along at the most."""


class WaitingClaim:
    """A claim that waits for runs, in the event loop that made it."""

    def __init__(self, claimer: Claimer, limit: Callable[[], int], watch: Watch) -> None:
        self.claimer = claimer
        self.answer: asyncio.Future[Share] = asyncio.get_running_loop().create_future()
        self.has_left = False
        """Whether it waits only for the transaction that has taken it along."""
        self._limit = limit
        self._watch = watch
        self._is_abandoned = False

    def wish(self) -> WaitingClaimRequest | None:
        """What it wants now, if anything."""
        claimer, limit = self.claimer, self._limit()
        if limit <= 0:
            return None
        caller = claimer.queue.caller
        actor = None if caller is None else caller.actor
        return WaitingClaimRequest(Claim(claimer.worker_id, limit), claimer.agents, actor, claimer.begins)

    def tell(self, share: Share) -> bool:
        """Give it its runs, from any thread; False if nobody is there any more."""
        try:
            self.answer.get_loop().call_soon_threadsafe(self._arrive, share)
        except RuntimeError:
            return False
        return True

    def _arrive(self, share: Share) -> None:
        if self._is_abandoned:
            self.claimer.queue.unclaimed(share)
        else:
            self.answer.set_result(share)
            self._watch.wake()

    def abandon(self) -> None:
        """Release what it got, or will get: its claimer was cancelled."""
        self._is_abandoned = True
        if self.answer.done() and not self.answer.cancelled():
            self.claimer.queue.unclaimed(self.answer.result())


class WaitingClaims:
    """The claims of this process that wait, by namespace and agents. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, dict[tuple[str, ...], dict[WaitingClaim, None]]] = {}

    def enter(self, waiting: WaitingClaim) -> None:
        with self._lock:
            self._enter(waiting)

    def _enter(self, waiting: WaitingClaim) -> None:
        claimer = waiting.claimer
        by_agents = self._waiting.setdefault(claimer.queue.namespace, {})
        by_agents.setdefault(claimer.agents, {})[waiting] = None

    def leave(self, waiting: WaitingClaim) -> bool:
        """Wait no longer; False if a transaction has taken it along, whose answer is still to come."""
        with self._lock:
            waiting.has_left = True
            return self._remove(waiting)

    def _remove(self, waiting: WaitingClaim) -> bool:
        claimer = waiting.claimer
        by_agents = self._waiting.get(claimer.queue.namespace, {})
        claims = by_agents.get(claimer.agents, {})
        if waiting not in claims:
            return False
        del claims[waiting]
        if not claims:
            del by_agents[claimer.agents]
        return True

    def take(self, namespace: str) -> dict[WaitingClaim, WaitingClaimRequest]:
        """Take along the longest waiting claim of each set of agents, until `settle`."""
        taken: dict[WaitingClaim, WaitingClaimRequest] = {}
        with self._lock:
            for claims in list(self._waiting.get(namespace, {}).values())[:MOST_TAKEN]:
                waiting = next(iter(claims))
                wish = waiting.wish()
                if wish is not None:
                    self._remove(waiting)
                    taken[waiting] = wish
        return taken

    def settle(self, waiting: WaitingClaim, share: Share) -> bool:
        """Give a claim that was taken along its runs, or let it wait on; False if nobody takes the runs."""
        with self._lock:
            if not share and not waiting.has_left:
                self._enter(waiting)
                return True
        return waiting.tell(share) or not share


class Claimer:
    """The claims of one worker, in its event loop, until it is closed.

    The hints are watched from the beginning on: one that comes between two claims is not lost. With an
    idempotency key, what it claims is stored under that key.
    """

    def __init__(
        self,
        queue: RunQueue,
        worker_id: str,
        agents: Sequence[str],
        queues: Sequence[str],
        key: str | None = None,
        *,
        begins: bool = False,
    ) -> None:
        self.queue = queue
        self.begins = begins
        """Whether its worker looks whether a run has `begun`; one of an earlier release does not."""
        self.worker_id = check_id(worker_id, "worker_id")
        self.agents = tuple(sorted({check_name(each, "the name of an agent") for each in agents}))
        self._queues = check_queues(queues)
        self._key = None if key is None else check_text(key, "idempotency_key")
        self._watch = self._new_watch()
        self._is_hinted = False
        """Whether a hint was taken after which nothing was claimed yet."""
        self._is_drained = False

    def _new_watch(self) -> Watch:
        keys = [ready_key(name, each) for name in self._queues for each in self.agents]
        return self.queue.storage.signals.watch(READY_CHANNEL, [*self._queues, *keys], self.queue.namespace)

    async def claim(self, limit: int) -> list[Assignment]:
        """Claim up to `limit` runs now; a hint after which that failed is passed on."""
        claim, queue = Claim(self.worker_id, limit), self.queue
        try:
            if not self._is_hinted and not await self._may_claim():
                return []
            found = await queue.claim_now(claim, self.agents, self._queues, self._key)
        except Drained:
            # Until it claims again, the hints are for others.
            self.close()
            self._is_drained = True
            return []
        except BaseException:
            self._watch.pass_on()
            raise
        self._is_hinted = False
        return found

    async def _may_claim(self) -> bool:
        """Whether to claim: taking a key is a write, which a claim that finds nothing does without."""
        if self._key is None:
            return True
        return await self.queue.read(assign.may_claim, self.agents, self._queues, self._key)

    async def next(self, limit: Callable[[], int], seconds: float) -> list[Assignment] | None:
        """The next runs, as many as the limit is then, once there are some; None if the time is up."""
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while (left := until - clock()) > 0:
            share = () if self._is_hinted else await self._wait(limit, left)
            if share:
                return await self.queue.assigned(share, self._queues)
            if self._is_hinted:
                found = await self.claim(limit())
                if found:
                    return found
        return None

    async def _wait(self, limit: Callable[[], int], seconds: float) -> Share:
        """Wait for a hint, or for runs that are claimed for it meanwhile, which are returned."""
        if self._is_drained:
            await asyncio.sleep(seconds)
            self._watch, self._is_drained = self._new_watch(), False
            return ()
        if self._key is not None:
            # What is claimed for it elsewhere would not be stored under its key.
            self._is_hinted = bool(await self._watch.changed(seconds))
            return ()
        waiting, claims = WaitingClaim(self, limit, self._watch), self.queue.waiting_claims
        claims.enter(waiting)
        try:
            self._is_hinted = bool(await self._watch.changed(seconds))
            return () if claims.leave(waiting) else await waiting.answer
        except BaseException:
            claims.leave(waiting)
            waiting.abandon()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Watch no more. A hint after which nothing was claimed is passed on."""
        self._watch.close()
        if self._is_hinted:
            self._is_hinted = False
            self._watch.pass_on()


class ClaimingService(WatchedService):
    """A service whose operations claim at once for those who wait in this process, where they say so.

    See `claims_at_once` in `operations.assign`.
    """

    gather_seconds = GATHER_SECONDS

    def __init__(self, storage: Storage, kinds: Kinds, streams: Streams, **options: Any) -> None:
        super().__init__(storage, kinds, **options)
        self.streams = streams
        self.waiting_claims = WaitingClaims()

    async def _run_watched(self, access: Access, operation: Any, call: tuple[Any, ...]) -> Any:
        may_claim = getattr(operation, "claims_at_once", False)
        taken = self.waiting_claims.take(self.namespace) if may_claim else {}
        if not taken:
            return await super()._run_watched(access, operation, call)
        shares: Sequence[Share] = [()] * len(taken)
        claiming = (claim_at_once, tuple(taken.values()), self.kinds, *call)
        try:
            answers, shares, begun = await super()._run_watched(access, operation, claiming)
            for each in begun:
                self.streams.offer(await self.ns(), *each)
        finally:
            for waiting, share in zip(taken, shares, strict=True):
                if not self.waiting_claims.settle(waiting, share):
                    self.release_later(partial(waiting.claimer.queue.release, share))
        return answers
