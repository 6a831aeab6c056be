"""Claims of workers in this process that wait for runs.

A transaction that creates runs takes waiting claims along, and claims the first runs of the queue for them
(`claim_at_once`). For any other ready run, a hint wakes one waiting claim.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from perdure.kernel.signals.port import Watch
from perdure.kernel.storage.port import Storage
from perdure.rollouts.model import Kinds
from perdure.rollouts.operations.claim import Claim
from perdure.rollouts.watchdog import WatchedService
from perdure.service.base import Access, keyed
from perdure.service.callers import Caller
from perdure.streams.service import Streams
from perdure.threads.model import GATHER_SECONDS
from perdure.threads.operations.assign import Share, WaitingClaimRequest, claim_at_once

MOST_TAKEN = 8
"""Most claims, each for different agents, that one transaction takes along."""


class ClaimingQueue(Protocol):
    """Queue of a waiting claim."""

    namespace: str
    caller: Caller | None

    def unclaimed(self, claimed: Sequence[Iterable[Any]]) -> None:
        """Release runs that no worker took, in the background."""
        ...

    async def release(self, claimed: Sequence[Iterable[Any]]) -> None:
        """Release runs that no worker took."""
        ...


class WaitingClaimer(Protocol):
    """Worker of a waiting claim."""

    @property
    def queue(self) -> ClaimingQueue:
        """The queue that the worker claims from."""
        ...

    worker_id: str
    agents: tuple[str, ...]
    begins: bool


class WaitingClaim:
    """Claim that waits for runs, in the event loop that created it."""

    def __init__(self, claimer: WaitingClaimer, limit: Callable[[], int], watch: Watch) -> None:
        self.claimer = claimer
        self.answer: asyncio.Future[Share] = asyncio.get_running_loop().create_future()
        self.has_left = False
        """True if the claim waits only for the transaction that took it along."""
        self._limit = limit
        self._watch = watch
        self._is_abandoned = False

    def wish(self) -> WaitingClaimRequest | None:
        """Build the request for as many runs as the worker can execute now; None if it can execute none."""
        claimer, limit = self.claimer, self._limit()
        if limit <= 0:
            return None
        caller = claimer.queue.caller
        actor = None if caller is None else caller.actor
        return WaitingClaimRequest(Claim(claimer.worker_id, limit), claimer.agents, actor, claimer.begins)

    def tell(self, share: Share) -> bool:
        """Deliver the runs, from any thread; False if the event loop is closed."""
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
        """Release the runs that the claim received or will receive, because its worker was cancelled."""
        self._is_abandoned = True
        if self.answer.done() and not self.answer.cancelled():
            self.claimer.queue.unclaimed(self.answer.result())


class WaitingClaims:
    """Waiting claims of this process, by namespace and agents. Thread-safe."""

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
        """Stop waiting; False if a transaction has taken the claim along and will still answer it."""
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
        """Remove the oldest waiting claim of each set of agents, to take it along until `settle`."""
        taken: dict[WaitingClaim, WaitingClaimRequest] = {}
        with self._lock:
            for claims in list(self._waiting.get(namespace, {}).values())[:MOST_TAKEN]:
                waiting = next(iter(claims))
                request = waiting.wish()
                if request is not None:
                    self._remove(waiting)
                    taken[waiting] = request
        return taken

    def settle(self, waiting: WaitingClaim, share: Share) -> bool:
        """Deliver runs to a claim that was taken along, or let it wait again; False if delivery failed."""
        with self._lock:
            if not share and not waiting.has_left:
                self._enter(waiting)
                return True
        return waiting.tell(share) or not share


class ClaimingService(WatchedService):
    """Service that creates runs, and claims them at once for workers that wait in this process."""

    gather_seconds = GATHER_SECONDS

    def __init__(self, storage: Storage, kinds: Kinds, streams: Streams, **options: Any) -> None:
        super().__init__(storage, kinds, **options)
        self.streams = streams
        self.waiting_claims = WaitingClaims()

    async def create_and_claim(
        self, access: Access, call: tuple[Any, ...], *, keys: Sequence[str] | None = None
    ) -> Any:
        """Run an operation that creates runs, and claim for waiting workers in the same transaction."""
        taken = self.waiting_claims.take(self.namespace)
        if not taken:
            return await self._transact(access, call, keys=keys)
        shares: Sequence[Share] = [()] * len(taken)
        claiming = (claim_at_once, tuple(taken.values()), self.kinds, *keyed(call, keys))
        try:
            answers, shares, begun = await self._transact(access, claiming)
            for appended in begun:
                self.streams.offer(await self.ns(), *appended)
        finally:
            for waiting, share in zip(taken, shares, strict=True):
                if not self.waiting_claims.settle(waiting, share):
                    self.release_later(partial(waiting.claimer.queue.release, share))
        return answers
