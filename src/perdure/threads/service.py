"""Threads and runs on the database: what callers of this room hold."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Any, cast

from perdure.access.model import Caller
from perdure.kernel.checks import check_id, check_page, optional_choice, optional_id, optional_ids
from perdure.kernel.clock import to_micros
from perdure.kernel.errors import InvalidInput, NotFound
from perdure.kernel.storage.port import Row
from perdure.rollouts.model import LIVE, QUEUED
from perdure.rollouts.records import PaginatedResult
from perdure.rollouts.running import Keys
from perdure.streams.model import Burst, seq_of
from perdure.streams.service import Follower
from perdure.threads.encoding import new_run
from perdure.threads.keeping import ThreadKeeping
from perdure.threads.operations import cancel, create, live_workers, queries, remove, why
from perdure.threads.operations.create import NewRun
from perdure.threads.operations.live_workers import LiveWorkers, Standing
from perdure.threads.operations.queries import QueueStats, RunSearch
from perdure.threads.operations.rows import Made, RunRow, run_of, thread_of
from perdure.threads.operations.settle import thread_stream
from perdure.threads.records import (
    RUN_STATUSES,
    CancelAction,
    Run,
    RunEnd,
    RunRequest,
)
from perdure.threads.why import Why

MAX_BATCH = 1000
PURGE_SECONDS = 15.0
EXPIRE_SECONDS = 15.0
ALIVE_LEASES = 6
"""A worker that was not heard of for so many leases is not counted on."""


class ThreadService(ThreadKeeping):
    """The threads and runs of one namespace, for those who ask for them and for those who execute them."""

    def acting_as(self, namespace: str, actor: str | None) -> ThreadService:  # type: ignore[override]
        """The threads of a namespace of the same database, changed in the name of `actor`."""
        sibling = ThreadService(
            self.storage, self._kinds, self.streams, namespace=namespace, actor=actor, policy=self.policy
        )
        sibling._releases, sibling.watchdog, sibling.local_completions = (
            self._releases,
            self.watchdog,
            self.local_completions,
        )
        sibling.items = (
            self.items.in_namespace(namespace)
            if actor is None
            else self.items.acting_as(Caller.trusted(actor, namespace))
        )
        return sibling

    # --- runs -------------------------------------------------------------------------------------------

    async def create_run(self, request: RunRequest, *, idempotency_key: str | None = None) -> Run:
        """Ask for a run; with a key, a repeated call gives the run that the first one made."""
        new = new_run(request, self.policy)
        if idempotency_key is not None:
            row = await self._once("create_run", self._create_batch, new, idempotency_key)
        else:
            size = len(new.kwargs) + len(new.metadata)
            row = await self._merger.call("create_run", self._create_batch, new, size=size)
        return run_of(row.whole) if isinstance(row, Made) else await self._run(row[0])

    async def _create_batch(self, requests: Sequence[NewRun], keys: Keys = None) -> Sequence[Any]:
        return await self._write_watched(create.create_runs, requests, self._kinds, keys=keys)

    async def create_runs(self, requests: Sequence[RunRequest]) -> list[Run]:
        """All of them or none."""
        if len(requests) > MAX_BATCH:
            raise InvalidInput(f"{len(requests)} runs in one call; {MAX_BATCH} are the most")
        new = [new_run(request, self.policy) for request in requests]
        rows = await self._write_watched(create.create_all, new, self._kinds) if new else []
        return [run_of(row.whole) for row in rows]

    async def _run(self, run_id: str) -> Run:
        check_id(run_id, "run_id")
        return run_of(await self._merger.call("known_run", self._known_runs, run_id))

    async def _known_runs(self, run_ids: Sequence[str]) -> Sequence[Any]:
        return await self._read(queries.known_runs, run_ids)

    async def get_run(self, run_id: str, thread_id: str | None = None) -> Run:
        check_id(run_id, "run_id")
        row: RunRow | None = await self._merger.call("get_run", self._get_batch, run_id)
        if row is None or thread_id not in (None, row.thread_id):
            raise NotFound(f"Run {run_id} not found")
        return run_of(row)

    async def _get_batch(self, run_ids: Sequence[str]) -> Sequence[RunRow | None]:
        return await self._read_watched(queries.get_runs, run_ids)

    async def list_runs(
        self,
        *,
        thread_id: str | None = None,
        status: str | None = None,
        limit: int = 10,
        offset: int = 0,
        undone: bool = True,
    ) -> PaginatedResult[Run]:
        """Runs, the newest first; of a thread also without those that were rolled back."""
        optional_choice(status, RUN_STATUSES, "status")
        check_page(limit, offset)
        search = RunSearch(optional_id(thread_id, "thread_id"), cast(Any, status), limit, offset, undone)
        rows, total = await self._read_watched(queries.list_runs, search)
        items = [run_of(row) for row in rows]
        return PaginatedResult(items=items, limit=limit, offset=offset, total=total)

    async def cancel_run(self, run_id: str, *, action: CancelAction = "interrupt", wait: bool = False) -> Run:
        """End a run now; with `wait`, once whoever executes it has stopped. Conflict if it has ended."""
        (answer,) = await self._cancel([run_id], action)
        if isinstance(answer, Exception):
            raise answer
        if wait:
            await self.stopped(run_id)
        return await self._run(run_id)

    async def _cancel(self, run_ids: Sequence[str], action: CancelAction) -> Sequence[Row | Exception]:
        if action not in ("interrupt", "rollback"):
            raise InvalidInput(f"action is {action!r}; it must be interrupt or rollback")
        wanted = optional_ids(run_ids, "run_id")
        return await self._write_watched(cancel.cancel_runs, wanted, action, self._grace, self._kinds)

    async def cancel_runs(
        self,
        *,
        thread_id: str | None = None,
        run_ids: Sequence[str] | None = None,
        status: str | None = None,
        action: CancelAction = "interrupt",
    ) -> list[Run]:
        """End those of the runs that have not ended: some by id, or all, pending or running ones."""
        wanted = _live_statuses(status)
        named = (optional_id(thread_id, "thread_id"), optional_ids(run_ids, "run_id"))
        found = await self._read(cancel.find_live, *named, wanted)
        ended: list[Run] = []
        while found:
            for answer in await self._cancel(found, action):
                if not isinstance(answer, Exception):
                    ended.append(await self._run(answer[0]))
            more = thread_id is None and run_ids is None and len(found) == cancel.MANY
            found = await self._read(cancel.find_live, None, None, wanted) if more else []
        return ended

    async def delete_run(self, run_id: str) -> None:
        """Cancel it if it is live, and remove it with its checkpoints and stream. Its trace stays."""
        check_id(run_id, "run_id")
        await self._write(remove.delete_run, run_id, self._grace, self._kinds)

    async def join_run(self, run_id: str, timeout: float | None = None, *, fresh: bool = False) -> RunEnd:
        """Wait for the end of a run, `fresh` if it was made just now. TimeoutError when the time is up."""
        if (found := await self.ended(run_id, timeout, fresh=fresh)) is None:
            raise TimeoutError(f"run {run_id} has not ended within {timeout:g} s")
        row, answer = found
        if answer is None:
            return RunEnd(run=run_of(row))
        thread = thread_of(*answer)
        return RunEnd(run=run_of(row), values=thread.values, interrupts=thread.interrupts)

    async def stream_run(self, run_id: str, after: str | None = "-1") -> AsyncGenerator[Burst]:
        """The events of a run after an id, in bursts, until its end; None is from now on."""
        async for burst in _bursts(await self.follow_run(run_id, after)):
            yield burst

    async def stream_thread(self, thread_id: str, after: str | None = None) -> AsyncGenerator[Burst]:
        """The events of all runs of a thread after an id, without end."""
        async for burst in _bursts(await self.follow_thread(thread_id, after)):
            yield burst

    async def follow_run(self, run_id: str, after: str | None = "-1", *, fresh: bool = False) -> Follower:
        """What reads the events of a run, `fresh` if it was made just now; whoever gets it closes it."""
        place = None if after is None else seq_of(after)
        if not fresh:
            await self._run(run_id)
        return self.streams.follow(await self._ns(), run_id, place)

    async def follow_thread(self, thread_id: str, after: str | None = None) -> Follower:
        """What reads the events of all runs of a thread after an id; whoever gets it closes it."""
        place = None if after is None else seq_of(after)
        await self._read(queries.check_thread, check_id(thread_id, "thread_id"))
        return self.streams.follow(await self._ns(), thread_stream(thread_id), place, joined=True)

    # --- housekeeping -----------------------------------------------------------------------------------

    async def why(self, id: str) -> Why:
        """Why a rollout, a run or a thread stands where it stands, with the rule that holds it."""
        check_id(id, "id")
        return await self._read(why.why, id, self._kinds, self._alive)

    @property
    def _alive(self) -> int:
        return to_micros(self.policy.lease * ALIVE_LEASES)

    async def live_workers(self) -> LiveWorkers:
        """The workers that are alive, and how much they can take."""
        return await self._read(live_workers.live_workers, self._alive)

    async def standing(self, namespaces: Collection[str] | None) -> Standing:
        """The queue and the workers of these namespaces, or of all."""
        return await self.storage.read(live_workers.standing, namespaces, self._alive)

    async def stats(self) -> QueueStats:
        """How much waits and runs in this namespace."""
        return await self._read_watched(queries.stats)

    def start_timers(self, stream_ttl: float | None = None) -> None:
        """Let what was removed go by itself."""
        self.storage.timers.every(PURGE_SECONDS, self.purge)
        self.storage.timers.every(EXPIRE_SECONDS, self.expire)
        self.streams.start_timers(stream_ttl)


async def _bursts(follower: Follower) -> AsyncGenerator[Burst]:
    try:
        while (burst := await follower.next(None)) is not None:
            yield burst
    finally:
        follower.close()


def _live_statuses(status: str | None) -> list[str]:
    if status in (None, "all"):
        return sorted(QUEUED | LIVE)
    if status not in ("pending", "running"):
        raise InvalidInput(f"status is {status!r}; it must be pending, running or all")
    return sorted(QUEUED if status == "pending" else LIVE)
