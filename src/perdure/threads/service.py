"""Threads of one namespace, with their states, runs and streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import starmap
from time import time_ns
from typing import Annotated, Any, Literal

from msgspec import Meta

from perdure.assistants.records import IfExists
from perdure.checkpoints.records import GraphSteps
from perdure.kernel.checks import (
    Id,
    Limit,
    Offset,
    check_choice,
    check_filter,
    check_id,
    check_ids,
    check_page,
    optional_choice,
    optional_id,
    optional_ids,
)
from perdure.kernel.clock import to_micros
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import Conflict, InvalidInput, NotFound
from perdure.kernel.ids import uuid
from perdure.kernel.pages import PaginatedResult
from perdure.kernel.storage.labels import encode_labels
from perdure.kernel.storage.port import Storage
from perdure.rollouts.model import LIVE, QUEUED, Kinds
from perdure.rollouts.watchdog import Watchdog
from perdure.service.callers import Caller
from perdure.service.endpoints import (
    DELETE,
    GET,
    ID_FILTER,
    MAX_BATCH,
    PATCH,
    POST,
    MetadataFilter,
    WireName,
    call,
    under,
)
from perdure.streams.model import Burst, NewEvent, parse_seq
from perdure.streams.service import Follower, Streams
from perdure.threads.encoding import (
    check_lifetime,
    checked,
    config_text,
    encode_steps,
    followed,
    merged_metadata,
    metadata_text,
    new_run,
)
from perdure.threads.ends import RunEnds
from perdure.threads.operations import cancel, create, lifetimes, queries, remove, search, states
from perdure.threads.operations.create import NewRun
from perdure.threads.operations.queries import QueueStats, RunSearch
from perdure.threads.operations.search import ThreadFilter
from perdure.threads.operations.settle import thread_stream
from perdure.threads.operations.shown import resolve
from perdure.threads.operations.states import NewThread
from perdure.threads.policy import Policy
from perdure.threads.records import (
    CANCEL_ACTIONS,
    KINDS_OF_RUNS,
    PRUNE_STRATEGIES,
    RUN_STATUSES,
    CancelAction,
    Checkpoint,
    Lifetime,
    NewCheckpoint,
    PruneStrategy,
    Run,
    RunEnd,
    RunKind,
    RunRequest,
    RunStatus,
    Thread,
    ThreadStatus,
)
from perdure.threads.rows import Created, RunRow, row_to_checkpoint, row_to_outline, row_to_run, row_to_thread
from perdure.threads.unpacking import unpack, unpack_for

PURGE_SECONDS = 15.0
EXPIRE_SECONDS = 15.0
MAX_WAIT_SECONDS = 3600.0
BEGINNING = "-1"
"""Cursor before the first event of a stream."""

Ids = Annotated[Sequence[str], Meta(max_length=MAX_BATCH)]
ThreadSortField = Literal["created_at", "updated_at", "thread_id", "status"]
SortOrder = Literal["asc", "desc"]
LiveStatus = Literal["pending", "running", "all"]
Seconds = Annotated[float, Meta(ge=0, le=MAX_WAIT_SECONDS)]


class Threads(RunEnds):
    """Threads of one namespace. `RunQueue` executes their runs."""

    def __init__(
        self,
        storage: Storage,
        kinds: Kinds,
        streams: Streams | None = None,
        *,
        namespace: str = "default",
        caller: Caller | None = None,
        policy: Policy | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        streams = streams or Streams(storage, resolve)
        super().__init__(storage, kinds, streams, namespace=namespace, caller=caller, watchdog=watchdog)
        self.policy = policy or Policy()
        self.not_loaded: Mapping[str, str] = {}
        """Agents that this process could not load, with the reasons."""

    @property
    def _grace(self) -> int:
        return to_micros(self.policy.grace)

    # --- threads ------------------------------------------------------------------------------------------

    @call(POST("/threads"), scope="write", status=201, errors=(Conflict,))
    async def create_thread(
        self,
        thread_id: Id | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        values: Any = None,
        if_exists: IfExists = "raise",
        lifetime: Lifetime | None = None,
        idempotency_key: str | None = None,
    ) -> Thread:
        """Create a thread.

        If the ID is taken, raise Conflict, or with `if_exists="do_nothing"` return the existing thread.
        """
        check_choice(if_exists, ("raise", "do_nothing"), "if_exists")
        request = NewThread(
            optional_id(thread_id, "thread_id"),
            metadata_text(metadata),
            config_text(config),
            None if values is None else checked(NewCheckpoint(values=values, metadata={"source": "input"})),
            if_exists == "do_nothing",
            check_lifetime(lifetime or self.policy.lifetime),
            encode_labels(metadata or {}),
        )
        rows = 1 + len(metadata or {})
        created: Any = await self.write_once(idempotency_key, states.create_threads, request, rows=rows)
        if isinstance(created, Created):
            return row_to_thread(*created.record)
        (existing_id,) = created
        return await self.get_thread(existing_id)

    @call(GET("/threads/{thread_id}"), scope="read", errors=(NotFound,))
    async def get_thread(self, thread_id: Id) -> Thread:
        """Get a thread with its latest values."""
        return row_to_thread(*await self.read_one(states.get_threads, check_id(thread_id, "thread_id")))

    @call(PATCH("/threads/{thread_id}"), scope="write", errors=(NotFound,), repeatable=True)
    async def update_thread(
        self,
        thread_id: Id,
        *,
        metadata: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        lifetime: Lifetime | None = None,
    ) -> Thread:
        """Change a thread.

        Metadata is merged, config is replaced, and a lifetime starts now. Omitted properties stay unchanged.
        """
        check_id(thread_id, "thread_id")
        metadata_text(metadata)
        rest = None if config is None else config_text(config), check_lifetime(lifetime)
        merged, updated = None, False
        # Metadata is merged outside of the transaction; after a concurrent change the loop repeats.
        while not updated:
            if metadata is not None:
                merged = merged_metadata(await self.read(states.get_metadata, thread_id), metadata)
            updated = await self.write(states.update_thread, thread_id, merged, *rest)
        return await self.get_thread(thread_id)

    @call(DELETE("/threads/{thread_id}"), scope="write", errors=(NotFound,))
    async def delete_thread(self, thread_id: Id) -> None:
        """Delete a thread with its runs, states and streams. Live runs are cancelled; traces are kept."""
        checked_id = check_id(thread_id, "thread_id")
        await self.write(remove.delete_thread, checked_id, self._grace, self.kinds)

    @call(POST("/threads/{thread_id}/copy"), scope="write", status=201, errors=(NotFound,))
    async def copy_thread(self, thread_id: Id, *, idempotency_key: str | None = None) -> Thread:
        """Copy a thread: create a new thread with the same states."""
        wanted = check_id(thread_id, "thread_id")
        copy_id: str = await self.write_once(idempotency_key, states.copy_threads, wanted)
        return await self.get_thread(copy_id)

    @call(GET("/threads/{thread_id}/lifetime"), scope="read", errors=(NotFound,))
    async def get_lifetime(self, thread_id: Id) -> Lifetime | None:
        """Get the lifetime of a thread; null means no expiry."""
        await self.read(queries.check_thread, check_id(thread_id, "thread_id"))
        return await self.read(lifetimes.get_lifetime, thread_id)

    @call(POST("/threads/prune"), scope="write")
    async def prune_threads(
        self, thread_ids: Ids, strategy: PruneStrategy = "delete"
    ) -> Annotated[int, under("count", int, "Pruned")]:
        """Delete threads, or with `keep_latest` all states of idle threads except the latest.

        Returns the number of pruned threads.
        """
        check_choice(strategy, PRUNE_STRATEGIES, "strategy")
        wanted = check_ids(thread_ids, "thread_id")
        return len(await self.write(lifetimes.prune_threads, wanted, strategy, self._grace, self.kinds))

    @call(GET("/threads"), scope="read")
    async def search_threads(
        self,
        *,
        status: ThreadStatus | None = None,
        metadata: MetadataFilter = None,
        ids: Annotated[Sequence[str] | None, ID_FILTER, WireName("thread_id")] = None,
        values: bool = True,
        sort_by: ThreadSortField = "created_at",
        sort_order: SortOrder = "desc",
        limit: Limit = 100,
        offset: Offset = 0,
        cursor: str | None = None,
        total: bool = False,
    ) -> PaginatedResult[Thread]:
        """List threads, the newest first.

        Temporary threads are excluded. With `values=false`, threads have no values. `total` counts the
        matching threads; `limit=0` returns only the count.
        """
        wanted = ThreadFilter(
            status=status, ids=ids, metadata=metadata or {}, values=values, sort_by=sort_by,
            sort_order=sort_order, limit=limit, offset=offset, total=total,
        )  # fmt: skip
        return await self.find_threads(search.from_cursor(wanted, cursor))

    async def find_threads(self, wanted: ThreadFilter) -> PaginatedResult[Thread]:
        """List threads, optionally those whose values contain some properties."""
        search.check_search(wanted)
        check_page(wanted.limit, wanted.offset)
        threads, total = await self.read(search.search_threads, wanted)
        rows = [row for row, _ in threads]
        return wanted.request.build_page(rows, starmap(row_to_thread, threads), total)

    async def count_threads(
        self,
        *,
        status: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        having: Mapping[str, Any] | None = None,
    ) -> int:
        """Count the threads that a search matches."""
        wanted = ThreadFilter(status=status, metadata=metadata or {}, having=having)
        search.check_search(wanted)
        return await self.read(search.count_threads, wanted)

    # --- states -------------------------------------------------------------------------------------------

    @call(GET("/threads/{thread_id}/state"), scope="read", errors=(NotFound,))
    async def get_state(self, thread_id: Id, checkpoint_id: str | None = None) -> Checkpoint | None:
        """Get a state of a thread, by default the latest; null while there is none."""
        return await self._state(states.get_state, thread_id, checkpoint_id)

    async def peek_state(self, thread_id: str, checkpoint_id: str | None = None) -> Checkpoint | None:
        """Get a state, without values that a graph stores in pieces."""
        return await self._state(states.peek_state, thread_id, checkpoint_id)

    async def _state(self, get: Any, thread_id: str, checkpoint_id: str | None) -> Checkpoint | None:
        check_id(thread_id, "thread_id")
        await unpack_for(self, thread_id, optional_id(checkpoint_id, "checkpoint_id"))
        row = await self.read(get, thread_id, checkpoint_id)
        return None if row is None else row_to_checkpoint(row)

    @call(POST("/threads/{thread_id}/state"), scope="write", status=201, errors=(NotFound, Conflict))
    async def update_state(
        self,
        thread_id: Id,
        values: Any,
        *,
        checkpoint_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        next: Sequence[str] = (),
        idempotency_key: str | None = None,
    ) -> Checkpoint:
        """Store a new state of a thread, after a given state or the latest. Conflict if it is busy."""
        check_id(thread_id, "thread_id")
        new = NewCheckpoint(
            values=values,
            next=list(next),
            metadata={"source": "update", **(metadata or {})},
            parent_id=checkpoint_id,
        )
        update = (thread_id, checked(new))
        await unpack_for(self, thread_id, checkpoint_id)
        stored: str = await self.write_once(idempotency_key, states.update_states, update)
        return row_to_checkpoint(await self.read(states.load_state, thread_id, stored))

    async def update_graph(self, thread_id: str, steps: GraphSteps, after: str | None) -> None:
        """Store changes to the graph state of a thread.

        Conflict while the thread is busy, or if `after` is no longer its latest state.
        """
        new = encode_steps(steps, check_id(thread_id, "thread_id"))
        await self.write(states.update_graph_state, thread_id, new, after)

    @call(GET("/threads/{thread_id}/history"), scope="read", errors=(NotFound,))
    async def history(
        self,
        thread_id: Id,
        *,
        limit: Limit = 100,
        before: str | None = None,
        metadata: MetadataFilter = None,
        values: bool = True,
    ) -> list[Checkpoint]:
        """List the states of a thread, the newest first; with `before`, those before a checkpoint."""
        check_page(limit, 0)
        check_id(thread_id, "thread_id")
        place = optional_id(before, "checkpoint_id")
        wanted = check_filter(metadata, "metadata")
        await unpack(self, thread_id)
        rows = await self.read(states.history, thread_id, limit, place, wanted, values)
        return [row_to_checkpoint(row) if values else row_to_outline(row) for row in rows]

    # --- runs ---------------------------------------------------------------------------------------------

    @call(POST("/runs"), scope="write", status=201, errors=(NotFound, Conflict))
    async def create_run(self, request: RunRequest, *, idempotency_key: str | None = None) -> Run:
        """Create a run. A repeated idempotency key returns the first run."""
        return await self._create_run(new_run(request, self.policy), idempotency_key)

    async def _create_run(self, new: NewRun, idempotency_key: str | None) -> Run:
        await unpack_for(self, new.thread_id, new.checkpoint_id)
        size = len(new.kwargs) + len(new.metadata)
        with self._naming_not_loaded([new]):
            created = await self.write_once(
                idempotency_key,
                create.create_runs,
                new,
                self.kinds,
                size=size,
                transact=self.create_and_claim,
            )
        if isinstance(created, Created):
            return row_to_run(created.record)
        (run_id,) = created
        return await self._run(run_id)

    @call(POST("/runs/batch"), scope="write", status=201, errors=(NotFound, Conflict))
    async def create_runs(
        self, requests: Annotated[Sequence[RunRequest], Meta(max_length=MAX_BATCH), WireName("runs")]
    ) -> list[Run]:
        """Create many runs, all of them or none."""
        if len(requests) > MAX_BATCH:
            raise InvalidInput(f"{len(requests)} runs in one call; at most {MAX_BATCH} are allowed")
        new = [new_run(request, self.policy) for request in requests]
        for run in new:
            await unpack_for(self, run.thread_id, run.checkpoint_id)
        with self._naming_not_loaded(new):
            created = await self.write(create.create_all, new, self.kinds) if new else []
        return [row_to_run(run.record) for run in created]

    @contextmanager
    def _naming_not_loaded(self, runs: Sequence[NewRun]) -> Iterator[None]:
        """Raise InvalidInput with the reason if an agent is missing because loading it failed."""
        try:
            yield
        except NotFound as error:
            for run in runs:
                reason = self.not_loaded.get(run.assistant)
                if reason is not None and error.message == create.missing_assistant(run.assistant):
                    message = f"agent {run.assistant!r} could not be loaded: {reason}"
                    raise InvalidInput(message) from None
            raise

    @call(GET("/runs/{run_id}"), scope="read", errors=(NotFound,))
    async def get_run(self, run_id: Id, thread_id: str | None = None) -> Run:
        """Get a run; with a `thread_id`, only if the run belongs to that thread."""
        row: RunRow | None = await self.read_one(queries.get_runs, check_id(run_id, "run_id"))
        if row is None or thread_id not in (None, row.thread_id):
            raise NotFound(f"Run {run_id} not found")
        return row_to_run(row)

    async def _run(self, run_id: str) -> Run:
        """Get a run, even if it was deleted a moment ago."""
        return row_to_run(await self.read_one(queries.known_runs, check_id(run_id, "run_id")))

    @call(GET("/runs"), scope="read", errors=(NotFound,))
    async def list_runs(
        self,
        *,
        thread_id: str | None = None,
        status: RunStatus | None = None,
        kind: RunKind = "run",
        limit: Limit = 100,
        offset: Offset = 0,
        cursor: str | None = None,
        total: bool = False,
    ) -> PaginatedResult[Run]:
        """List runs, the newest first. `total` counts them if no count is stored; `limit=0` only counts.

        The phases of workflows are listed with `kind=phase`.
        """
        wanted = RunSearch(thread_id, status, limit, offset, kind=kind, total=total)
        return await self.find_runs(queries.from_cursor(wanted, cursor))

    @call(GET("/threads/{thread_id}/runs"), scope="read", errors=(NotFound,))
    async def list_thread_runs(
        self,
        thread_id: Id,
        *,
        status: RunStatus | None = None,
        limit: Limit = 100,
        offset: Offset = 0,
        cursor: str | None = None,
        total: bool = False,
    ) -> PaginatedResult[Run]:
        """List the runs of a thread, the newest first. `total` counts them."""
        return await self.list_runs(
            thread_id=thread_id, status=status, limit=limit, offset=offset, cursor=cursor, total=total
        )

    async def find_runs(self, wanted: RunSearch) -> PaginatedResult[Run]:
        """List runs, optionally without rolled-back runs."""
        optional_choice(wanted.status, RUN_STATUSES, "status")
        check_choice(wanted.kind, KINDS_OF_RUNS, "kind")
        check_page(wanted.limit, wanted.offset)
        optional_id(wanted.thread_id, "thread_id")
        rows, places, total = await self.read(queries.list_runs, wanted)
        return wanted.request.build_page(places, map(row_to_run, rows), total)

    @call(POST("/runs/{run_id}/cancel", query=True), scope="write", errors=(NotFound, Conflict), by_hand=True)
    async def cancel_run(self, run_id: Id, *, action: CancelAction = "interrupt", wait: bool = False) -> Run:
        """Cancel a run; with `wait`, return when its worker has stopped. Conflict if the run has ended."""
        (answer,) = await self._cancel([run_id], action)
        if isinstance(answer, Exception):
            raise answer
        if wait:
            await self.stopped(run_id)
        return await self._run(run_id)

    async def _cancel(self, run_ids: Sequence[str], action: CancelAction) -> Sequence[Any]:
        check_choice(action, CANCEL_ACTIONS, "action")
        wanted = check_ids(run_ids, "run_id")
        return await self.write(cancel.cancel_runs, wanted, action, self._grace, self.kinds)

    @call(POST("/runs/cancel"), scope="write", errors=(NotFound,))
    async def cancel_runs(
        self,
        *,
        thread_id: str | None = None,
        run_ids: Ids | None = None,
        status: LiveStatus | None = None,
        action: CancelAction = "interrupt",
    ) -> list[Run]:
        """Cancel the runs that have not ended: by their ids, of a thread, or all with a status."""
        wanted = _live_statuses(status)
        named = (optional_id(thread_id, "thread_id"), optional_ids(run_ids, "run_id"))
        live = await self.read(cancel.find_live, *named, wanted)
        ended: list[Run] = []
        while live:
            for answer in await self._cancel(live, action):
                if not isinstance(answer, Exception):
                    ended.append(await self._run(answer))
            more = thread_id is None and run_ids is None and len(live) == cancel.MANY
            live = await self.read(cancel.find_live, None, None, wanted) if more else []
        return ended

    @call(DELETE("/runs/{run_id}"), scope="write", errors=(NotFound,))
    async def delete_run(self, run_id: Id) -> None:
        """Delete a run with its checkpoints and its stream. A live run is cancelled; its trace is kept."""
        await self.write(remove.delete_run, check_id(run_id, "run_id"), self._grace, self.kinds)

    # --- waits and streams --------------------------------------------------------------------------------

    @call(POST("/runs/wait"), scope="write", errors=(NotFound, Conflict), by_hand=True)
    async def wait(self, request: RunRequest, *, idempotency_key: str | None = None) -> RunEnd:
        """Create a run and wait for its end."""
        run = await self.create_run(request, idempotency_key=idempotency_key)
        return await self.join_new_run(run.run_id)

    @call(GET("/runs/{run_id}/wait"), scope="read", errors=(NotFound,), by_hand=True)
    async def join_run(self, run_id: Id, timeout: Seconds | None = None) -> RunEnd:
        """Wait for the end of a run. Raise TimeoutError after `timeout` seconds."""
        return await self._join(run_id, timeout)

    @call(POST("/runs/stream"), scope="write", errors=(NotFound, Conflict), by_hand=True)
    async def stream(
        self, request: RunRequest, *, idempotency_key: str | None = None
    ) -> AsyncGenerator[Burst, None]:
        """Create a run and stream its events, in bursts, until its end."""
        async with self.followed_run(request, idempotency_key=idempotency_key) as run:
            follower = await self.follow_run(run.run_id, fresh=True)
        async for burst in follower.bursts():
            yield burst

    @asynccontextmanager
    async def followed_run(
        self, request: RunRequest, *, idempotency_key: str | None = None
    ) -> AsyncIterator[Run]:
        """Create a run whose stream a follower, created inside this context, reads from the beginning."""
        run_id = uuid(time_ns() // 1000, self.storage.ids)
        new = followed(new_run(request, self.policy), run_id)
        expecting = self.streams.expect(await self.ns("write"), run_id)
        try:
            yield await self._create_run(new, idempotency_key)
        finally:
            expecting.close()

    @call(GET("/runs/{run_id}/stream"), scope="read", errors=(NotFound,), by_hand=True)
    async def stream_run(self, run_id: Id, after: str | None = BEGINNING) -> AsyncGenerator[Burst, None]:
        """Stream the events of a run after an ID, in bursts, until its end; None starts with new events."""
        async for burst in (await self.follow_run(run_id, after)).bursts():
            yield burst

    @call(GET("/threads/{thread_id}/stream"), scope="read", errors=(NotFound,), by_hand=True)
    async def stream_thread(self, thread_id: Id, after: str | None = None) -> AsyncGenerator[Burst, None]:
        """Stream the events of all runs of a thread after an ID, without end; None starts with new events."""
        async for burst in (await self.follow_thread(thread_id, after)).bursts():
            yield burst

    async def follow_run(
        self, run_id: str, after: str | None = BEGINNING, *, fresh: bool = False
    ) -> Follower:
        """Create a follower of a run's events, which the caller closes. Skip the check of a `fresh` run."""
        place = None if after is None else parse_seq(after)
        if not fresh:
            await self._run(run_id)
        return self.streams.follow(await self.ns(), run_id, place)

    async def follow_thread(self, thread_id: str, after: str | None = None) -> Follower:
        """Create a follower of the events of all runs of a thread after an ID. The caller closes it."""
        place = None if after is None else parse_seq(after)
        await self.read(queries.check_thread, check_id(thread_id, "thread_id"))
        return self.streams.follow(await self.ns(), thread_stream(thread_id), place, joined=True)

    async def tell_thread(self, thread_id: str, event: str, data: Any) -> None:
        """Append an event of the thread itself, not of a run, to its stream."""
        new = NewEvent(event, encode_json(data, what=f"event {event!r}"))
        placed = await self.write(states.append_event, check_id(thread_id, "thread_id"), new)
        self.streams.offer(await self.ns(), *placed)

    # --- housekeeping -------------------------------------------------------------------------------------

    async def queue_stats(self) -> QueueStats:
        """Get the numbers of waiting and running runs in this namespace."""
        return await self.read(queries.stats)

    def start_timers(self, stream_ttl: float | None = None) -> None:
        """Start the timers that remove deleted and expired data."""
        self.storage.timers.every(PURGE_SECONDS, self.purge)
        self.storage.timers.every(EXPIRE_SECONDS, self.expire)
        self.streams.start_timers(stream_ttl)

    async def purge(self) -> None:
        """Remove the rows of threads and runs that were deleted a while ago."""
        linger = to_micros(self.policy.linger)
        while await self.storage.background(remove.purge, linger):
            pass

    async def expire(self) -> None:
        """Delete or prune threads at the end of their lifetime."""
        while await self.storage.background(lifetimes.sweep, self._grace, self.kinds):
            pass


def _live_statuses(status: str | None) -> list[str]:
    if status in (None, "all"):
        return sorted(QUEUED | LIVE)
    check_choice(status, ("pending", "running", "all"), "status")
    return sorted(QUEUED if status == "pending" else LIVE)
