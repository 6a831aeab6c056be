"""Claims of one worker in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

from perdure.kernel.checks import check_id, check_name, check_text
from perdure.kernel.signals.port import Watch
from perdure.rollouts.operations.claim import Claim
from perdure.rollouts.operations.work import READY_CHANNEL, ready_key
from perdure.threads.encoding import check_queues
from perdure.threads.operations import assign
from perdure.threads.operations.assign import Drained, Share
from perdure.threads.waiting_claims import WaitingClaim
from perdure.threads.work import Assignment

if TYPE_CHECKING:
    from perdure.runs.queue import RunQueue


class Claimer:
    """Claims of one worker, in its event loop, until it is closed.

    It watches hints from its creation, so that a hint between two claims is not lost. With an idempotency
    key, its claims are stored under that key.
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
        """True if the worker reads `begun`; a worker of an earlier release does not."""
        self.worker_id = check_id(worker_id, "worker_id")
        self.agents = tuple(sorted({check_name(agent, "the name of an agent") for agent in agents}))
        self._queues = check_queues(queues)
        self._key = None if key is None else check_text(key, "idempotency_key")
        self._watch = self._new_watch()
        self._is_hinted = False
        """True from a hint until the next claim."""
        self._is_drained = False

    def _new_watch(self) -> Watch:
        keys = [ready_key(name, agent) for name in self._queues for agent in self.agents]
        return self.queue.storage.signals.watch(READY_CHANNEL, [*self._queues, *keys], self.queue.namespace)

    async def claim(self, limit: int) -> list[Assignment]:
        """Claim up to `limit` runs now. If that fails, pass the hint on to another process."""
        claim, queue = Claim(self.worker_id, limit), self.queue
        try:
            if not self._is_hinted and not await self._may_claim():
                return []
            assignments = await queue.claim_now(claim, self.agents, self._queues, self._key)
        except Drained:
            # Until this worker claims again, hints wake other workers.
            self.close()
            self._is_drained = True
            return []
        except BaseException:
            self._watch.pass_on()
            raise
        self._is_hinted = False
        return assignments

    async def _may_claim(self) -> bool:
        """Return whether to claim. A claim under a key writes, so skip it if it would return nothing."""
        if self._key is None:
            return True
        return await self.queue.read(assign.may_claim, self.agents, self._queues, self._key)

    async def next(self, limit: Callable[[], int], seconds: float) -> list[Assignment] | None:
        """Wait for the next runs, at most `limit()` at that time; None after `seconds`."""
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while (left := until - clock()) > 0:
            share = () if self._is_hinted else await self._wait(limit, left)
            if share:
                return await self.queue.assigned(share, self._queues)
            if self._is_hinted:
                assignments = await self.claim(limit())
                if assignments:
                    return assignments
        return None

    async def _wait(self, limit: Callable[[], int], seconds: float) -> Share:
        """Wait for a hint, or for runs that another transaction claims for this worker. Return those runs."""
        if self._is_drained:
            await asyncio.sleep(seconds)
            self._watch, self._is_drained = self._new_watch(), False
            return ()
        if self._key is not None:
            # Runs that another transaction claims would not be stored under the key.
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
        """Stop watching. Pass on a hint that no claim followed."""
        self._watch.close()
        if self._is_hinted:
            self._is_hinted = False
            self._watch.pass_on()
