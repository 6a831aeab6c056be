"""Waiting for the ends of runs."""

from __future__ import annotations

from typing import Any

from perdure.kernel.checks import check_id
from perdure.kernel.signals.port import until
from perdure.kernel.storage.port import Storage
from perdure.rollouts.model import ENDED, LIVE, Kinds
from perdure.rollouts.operations.work import ENDED_CHANNEL, ended_key
from perdure.streams.service import Streams
from perdure.threads.local_completions import LocalCompletions
from perdure.threads.operations import queries
from perdure.threads.operations.cancel import control_key
from perdure.threads.operations.settle import STOPPED_CHANNEL
from perdure.threads.records import RunEnd
from perdure.threads.rows import RunRow, ThreadAnswer, row_to_run_end
from perdure.threads.waiting_claims import ClaimingService

FRESH_SECONDS = 0.05
"""Delay of the first read for a run that was created just now."""
POLL_SECONDS = 2.0
"""Interval at which a waiter reads the run, in case a hint is lost."""


class RunEnds(ClaimingService):
    """Waits for the ends of runs. Ends that this process writes arrive without a read."""

    def __init__(self, storage: Storage, kinds: Kinds, streams: Streams, **options: Any) -> None:
        super().__init__(storage, kinds, streams, **options)
        self.local_completions = LocalCompletions()

    async def join_thread_of(self, run_id: str) -> RunEnd:
        """Wait for the end of a run, and return it with the latest values of its thread."""
        return await self._join(run_id, None, look=queries.get_threads_at_end)

    async def join_new_run(self, run_id: str) -> RunEnd:
        """Wait for the end of a run that was created just now."""
        return await self._join(run_id, None, first=FRESH_SECONDS)

    async def _join(
        self, run_id: str, timeout: float | None, *, first: float = 0.0, look: Any = queries.get_ends
    ) -> RunEnd:
        end = await self._ended(check_id(run_id, "run_id"), timeout, first, look)
        if end is None:
            raise TimeoutError(f"run {run_id} has not ended within {timeout:g} s")
        return row_to_run_end(*end)

    async def _ended(
        self, run_id: str, timeout: float | None, first: float, look: Any
    ) -> tuple[RunRow, ThreadAnswer | None] | None:
        """Wait until a run has ended, with a first read after `first` seconds; None on timeout."""
        ns = await self.ns()
        ended: Any = None
        here = self.local_completions.watch((ns, run_id))

        async def done(_: frozenset[str]) -> bool:
            nonlocal ended
            if self.local_completions.is_under_way((ns, run_id)) or here.done():
                end = await here
                if end is not None and end.run is not None and end.thread is not None:
                    ended = (end.run, end.thread)
                    return True
            run, _ = ended = await self.read_one(look, run_id)
            return run.rollout_status in ENDED

        try:
            has_ended = await until(
                self.storage.signals,
                ENDED_CHANNEL,
                [ended_key(ns, run_id)],
                done,
                timeout=timeout,
                poll=POLL_SECONDS,
                first=first,
            )
        finally:
            self.local_completions.forget((ns, run_id), here)
        return ended if has_ended else None

    async def stopped(self, run_id: str, timeout: float | None = None) -> bool:
        """Wait until no worker executes the run."""

        async def done(_: frozenset[str]) -> bool:
            rows = await self.read(queries.latest_attempts, [run_id])
            return all(row.status not in LIVE for row in rows)

        signals, key = self.storage.signals, control_key(await self.ns(), run_id)
        return await until(signals, STOPPED_CHANNEL, [key], done, timeout=timeout, poll=POLL_SECONDS)
