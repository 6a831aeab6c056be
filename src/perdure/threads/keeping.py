"""Threads and their states on the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.graphs.records import GraphSteps
from perdure.kernel.checks import (
    check_choice,
    check_id,
    check_ids,
    check_page,
    optional_choice,
    optional_id,
    optional_ids,
)
from perdure.kernel.clock import to_micros
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import InvalidInput
from perdure.kernel.storage.port import Storage
from perdure.rollouts.model import Kinds
from perdure.rollouts.records import PaginatedResult
from perdure.rollouts.running import Keys
from perdure.streams.model import NewEvent
from perdure.streams.service import Streams
from perdure.threads.encoding import Policy, check_lifetime, checked, metadata_text, steps_of
from perdure.threads.execution import RunExecution
from perdure.threads.operations import announce, lifetimes, remove, search, states
from perdure.threads.operations.rows import Made, checkpoint_of, thread_of
from perdure.threads.operations.search import ThreadSearch
from perdure.threads.operations.shown import resolve
from perdure.threads.operations.states import NewThread
from perdure.threads.records import (
    PRUNE_STRATEGIES,
    THREAD_STATUSES,
    Checkpoint,
    Lifetime,
    NewCheckpoint,
    PruneStrategy,
    Thread,
)


class ThreadKeeping(RunExecution):
    """The threads of one namespace."""

    def __init__(
        self,
        storage: Storage,
        kinds: Kinds,
        streams: Streams | None = None,
        *,
        namespace: str = "default",
        actor: str | None = None,
        policy: Policy | None = None,
    ) -> None:
        super().__init__(
            storage, kinds, streams or Streams(storage, resolve), namespace=namespace, actor=actor
        )
        self.policy = policy or Policy()

    @property
    def _grace(self) -> int:
        return to_micros(self.policy.grace)

    async def create_thread(
        self,
        thread_id: str | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        values: Any = None,
        if_exists: str = "raise",
        lifetime: Lifetime | None = None,
        idempotency_key: str | None = None,
    ) -> Thread:
        """A new thread; where the id is taken, Conflict, or the one that is there with `do_nothing`."""
        if if_exists not in ("raise", "do_nothing"):
            raise InvalidInput(f"if_exists is {if_exists!r}; it must be raise or do_nothing")
        request = NewThread(
            None if thread_id is None else check_id(thread_id, "thread_id"),
            metadata_text(metadata),
            metadata_text(config, "config"),
            None if values is None else checked(NewCheckpoint(values=values, metadata={"source": "input"})),
            if_exists == "do_nothing",
            check_lifetime(lifetime or self.policy.lifetime),
        )
        if idempotency_key is not None:
            row = await self._once("create_thread", self._thread_batch, request, idempotency_key)
        else:
            row = await self._merger.call("create_thread", self._thread_batch, request)
        return thread_of(*row.whole) if isinstance(row, Made) else await self.get_thread(row[0])

    async def _thread_batch(self, requests: Sequence[NewThread], keys: Keys = None) -> Sequence[Any]:
        return await self._write(states.create_threads, requests, keys=keys)

    async def get_thread(self, thread_id: str) -> Thread:
        check_id(thread_id, "thread_id")
        return thread_of(*await self._merger.call("get_thread", self._get_threads, thread_id))

    async def _get_threads(self, thread_ids: Sequence[str]) -> Sequence[Any]:
        return await self._read(states.get_threads, thread_ids)

    async def update_thread(
        self,
        thread_id: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        lifetime: Lifetime | None = None,
    ) -> Thread:
        """Merge into its metadata, replace its config; with a lifetime, let it live for so long from now."""
        check_id(thread_id, "thread_id")
        metadata_text(metadata)
        metadata_text(config, "config")
        change = (metadata, config, check_lifetime(lifetime))
        await self._write(states.update_thread, thread_id, *change)
        return await self.get_thread(thread_id)

    async def delete_thread(self, thread_id: str) -> None:
        """Cancel its live runs and remove it with its runs, checkpoints and streams. Traces stay."""
        check_id(thread_id, "thread_id")
        await self._write(remove.delete_thread, thread_id, self._grace, self._kinds)

    async def copy_thread(self, thread_id: str) -> Thread:
        check_id(thread_id, "thread_id")
        return await self.get_thread(await self._write(states.copy_thread, thread_id))

    async def get_lifetime(self, thread_id: str) -> Lifetime | None:
        """How long the thread lives; None is for ever."""
        await self.get_thread(thread_id)
        return await self._read(lifetimes.get_lifetime, thread_id)

    async def prune_threads(self, thread_ids: Sequence[str], strategy: PruneStrategy = "delete") -> int:
        """Remove threads, or with `keep_latest` all states of those that rest but the latest.

        Gives how many there were.
        """
        check_choice(strategy, PRUNE_STRATEGIES, "strategy")
        wanted = check_ids(thread_ids, "thread_id")
        pruned = await self._write(lifetimes.prune, wanted, strategy, self._grace, self._kinds)
        return len(pruned)

    async def search_threads(
        self,
        *,
        status: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        ids: Sequence[str] | None = None,
        having: Mapping[str, Any] | None = None,
        values: bool = True,
        sort_by: str = "created_at",
        sort_order: str = "desc",
        limit: int = 10,
        offset: int = 0,
    ) -> PaginatedResult[Thread]:
        """A page of threads; those of runs without a thread of their own are not among them.

        `having` is what the values of a thread contain, and `values` whether they are shown.
        """
        optional_choice(status, THREAD_STATUSES, "status")
        check_page(limit, offset)
        metadata_text(metadata)
        wanted = ThreadSearch(
            status=status,
            ids=optional_ids(ids, "thread_id"),
            metadata=metadata or {},
            having=having,
            values=values,
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
        )
        found, total = await self._read(search.search_threads, wanted)
        items = [thread_of(*each) for each in found]
        return PaginatedResult(items=items, limit=limit, offset=offset, total=total)

    async def count_threads(
        self,
        *,
        status: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        having: Mapping[str, Any] | None = None,
    ) -> int:
        """How many threads a search would find."""
        optional_choice(status, THREAD_STATUSES, "status")
        metadata_text(metadata)
        wanted = ThreadSearch(status=status, metadata=metadata or {}, having=having)
        return await self._read(search.count_threads, wanted)

    async def get_state(self, thread_id: str, checkpoint_id: str | None = None) -> Checkpoint | None:
        """A state of the thread, or its latest; None while there is none."""
        check_id(thread_id, "thread_id")
        row = await self._read(states.get_state, thread_id, optional_id(checkpoint_id, "checkpoint_id"))
        return None if row is None else checkpoint_of(row)

    async def peek_state(self, thread_id: str, checkpoint_id: str | None = None) -> Checkpoint | None:
        """The same, but without its values where a graph keeps them in pieces."""
        check_id(thread_id, "thread_id")
        row = await self._read(states.peek_state, thread_id, optional_id(checkpoint_id, "checkpoint_id"))
        return None if row is None else checkpoint_of(row)

    async def update_graph(self, thread_id: str, steps: GraphSteps, after: str | None) -> None:
        """Keep what somebody changed in the thread's graph.

        Conflict while the thread is busy, or if `after` is no longer its latest state.
        """
        new = steps_of(steps, check_id(thread_id, "thread_id"))
        await self._write(states.update_graph_state, thread_id, new, after)

    async def update_state(
        self,
        thread_id: str,
        values: Any,
        *,
        checkpoint_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        next: Sequence[str] = (),
    ) -> Checkpoint:
        """Keep another state after the given one. Conflict while the thread is busy."""
        check_id(thread_id, "thread_id")
        new = NewCheckpoint(
            values=values,
            next=list(next),
            metadata={"source": "update", **(metadata or {})},
            parent_id=checkpoint_id,
        )
        return checkpoint_of(await self._write(states.update_state, thread_id, checked(new)))

    async def tell_thread(self, thread_id: str, event: str, data: Any) -> None:
        """Tell something in the stream of a thread, beside what its runs tell there."""
        new = NewEvent(event, encode_json(data, what=f"event {event!r}"))
        wanted = check_id(thread_id, "thread_id")
        self._offered([await self.storage.run(announce.announce, wanted, [new], ns=await self._ns())])

    async def history(
        self,
        thread_id: str,
        *,
        limit: int = 10,
        before: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> list[Checkpoint]:
        """States, the newest first; those before a checkpoint."""
        check_page(limit, 0)
        check_id(thread_id, "thread_id")
        place = optional_id(before, "checkpoint_id")
        rows = await self._read(states.history, thread_id, limit, place, metadata or {})
        return [checkpoint_of(row) for row in rows]

    # --- housekeeping -----------------------------------------------------------------------------------

    async def purge(self) -> None:
        """Remove the rows of what was deleted a while ago."""
        linger = to_micros(self.policy.linger)
        while await self.storage.background(remove.purge, linger):
            pass

    async def expire(self) -> None:
        """Do what is due at the end of threads' lives."""
        while await self.storage.background(lifetimes.sweep, self._grace, self._kinds):
            pass
