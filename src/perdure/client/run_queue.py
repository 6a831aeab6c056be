"""What a worker needs, from a server elsewhere."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec import structs, to_builtins

from perdure.access.endpoints import PREFIX, Items
from perdure.agents.records import AgentSpec
from perdure.client import native_wire as wire
from perdure.client import work_wire
from perdure.client.api import Api, decoded, encoded, keyed, new_id
from perdure.client.lightning_exchange import new_key
from perdure.client.native_wire import MAX_BATCH
from perdure.client.session import HttpSession, error_named
from perdure.graphs.records import GraphDelta, GraphDeltaQuery, GraphQuery, GraphSteps, GraphTuple
from perdure.items.records import ItemOp, ItemResult
from perdure.kernel.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    PerdureError,
    StorageClosed,
    TooLarge,
    Unreachable,
)
from perdure.kernel.merge import Merger
from perdure.streams.model import NewEvent
from perdure.threads.records import Checkpoint, NewCheckpoint, Run
from perdure.threads.work import Assignment, Ending, Lease, Verdict

logger = logging.getLogger(__name__)

T = TypeVar("T")

WORK = "/work"
RETRY_DELAYS = (0.1, 0.5, 1.0)
RENEW_SECONDS = 5.0
BATCHES = 4
CLOSE_SECONDS = 5.0

_ITEMS_OWN = (Conflict, InvalidInput, NotFound, TooLarge)
"""Errors that may be about one item of a batch; after any other, none of them needs to be tried alone."""


class _Item(NamedTuple):
    """Something for a request that carries many."""

    body: Any


class RemoteRunQueue:
    """Gives a worker the runs of a server.

    What concurrent runs write travels together. Every call may be repeated when its answer was lost: a server
    that cannot be reached is `Unreachable`, and what was asked of it is done at most once.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        namespace: str | None = None,
        *,
        retry_delays: Sequence[float] = RETRY_DELAYS,
        request_timeout: float = 30.0,
    ) -> None:
        self._session = HttpSession(
            url,
            token=token,
            namespace=namespace,
            retry_delays=retry_delays,
            health_retry_delays=(),
            request_timeout=request_timeout,
        )
        self._api = Api(self._session)
        self._brief = Api(self._session.with_retries(()))
        self._merger = Merger(BATCHES)
        self._places: dict[str, int] = {}
        """The number of the last event of each attempt that runs here."""
        self._returns: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return self._session.base_url

    # --- claiming -----------------------------------------------------------------------------------------

    async def register(
        self, worker_id: str, agents: Sequence[AgentSpec], concurrency: int | None = None
    ) -> None:
        """Say which agents this worker can run, and how many runs at once; each gets its system assistant."""
        body = {"worker_id": worker_id, "agents": list(agents), "concurrency": concurrency}
        await self._ask(wire.Ok, f"{WORK}/register", body)

    async def claim(self, worker_id: str, limit: int, wait: float) -> list[Assignment]:
        """Up to `limit` runs, as soon as there is one; none if none came within `wait` seconds."""
        key = new_key()
        try:
            claimed = await self._claim(worker_id, limit, wait, key)
        except asyncio.CancelledError:
            self._give_back(worker_id, limit, key)
            raise
        for assignment in claimed:
            self._places[assignment.attempt_id] = assignment.last_seq
        return claimed

    async def _claim(self, worker_id: str, limit: int, wait: float, key: str) -> list[Assignment]:
        seconds = min(max(wait, 0.0), work_wire.MAX_WAIT_SECONDS)
        body = {"worker_id": worker_id, "limit": min(limit, MAX_BATCH), "wait": seconds}
        asking = self._session.request(
            "POST",
            f"{PREFIX}{WORK}/claim",
            body=encoded(body),
            headers=keyed(key),
            effect="none",
            timeout=seconds + self._session.request_timeout,
            long_poll=True,
        )
        answer = await self._open(asking)
        claimed = decoded(work_wire.Assignments, answer.body).assignments
        return await self._still_held(worker_id, claimed) if answer.repeated and claimed else claimed

    async def _still_held(self, worker_id: str, claimed: Sequence[Assignment]) -> list[Assignment]:
        """An answer that was lost at first tells of the past: others may have some of the runs by now."""
        verdicts = await self.renew(worker_id, [assignment.held for assignment in claimed])
        return [each for each, verdict in zip(claimed, verdicts, strict=True) if verdict == "go"]

    def _give_back(self, worker_id: str, limit: int, key: str) -> None:
        """The server may have given runs to one who is gone; asked again by the same key, it says which."""
        task = asyncio.get_running_loop().create_task(self._return(worker_id, limit, key))
        self._returns.add(task)
        task.add_done_callback(self._returns.discard)

    async def _return(self, worker_id: str, limit: int, key: str) -> None:
        try:
            claimed = await self._claim(worker_id, limit, 0.0, key)
            if claimed:
                await self.hand_back([assignment.held for assignment in claimed])
        except PerdureError as error:
            logger.warning("a claim of %s that nobody waits for could not be undone: %s", worker_id, error)

    # --- leases and news ----------------------------------------------------------------------------------

    async def renew(self, worker_id: str, held: Sequence[Lease]) -> list[Verdict]:
        """Keep the leases; the verdicts are in the order of `held`. It is tried once."""
        verdicts: list[Verdict] = []
        for part in _parts(held):
            body = {"worker_id": worker_id, "held": part}
            sending = self._brief.send(
                work_wire.Verdicts, "POST", f"{WORK}/renew", body, effect="none", timeout=RENEW_SECONDS
            )
            found: work_wire.Verdicts = await self._open(sending)
            verdicts += found.verdicts
        return verdicts

    async def controls(self, held: Sequence[Lease], wait: float) -> dict[str, Verdict]:
        """The runs among `held` that are not to go on, as soon as there is one, or after `wait` seconds."""
        seconds = min(max(wait, 0.0), work_wire.MAX_WAIT_SECONDS)
        body = {"held": list(held)[:MAX_BATCH], "wait": seconds}
        found: work_wire.Controls = await self._ask(
            work_wire.Controls, f"{WORK}/controls", body, wait=seconds
        )
        return found.controls

    # --- what agents write --------------------------------------------------------------------------------

    async def append(self, held: Lease, events: Sequence[NewEvent], after: int | None = None) -> int:
        """Add events to the run's stream; gives the `seq` of the last one once they are durable."""
        after = self._places.get(held.attempt_id) if after is None else after
        body = {"held": held, "events": list(events), "after": after}
        size = sum([len(event.body) for event in events])
        seq: int = await self._merged("events", self._append_all, body, rows=len(events), size=size)
        self._places[held.attempt_id] = seq
        return seq

    async def save(
        self, held: Lease, checkpoint: NewCheckpoint, events: Sequence[NewEvent] = ()
    ) -> Checkpoint:
        """Keep a state of the thread, with the events that tell of it."""
        after = self._places.get(held.attempt_id)
        body = {
            "held": held,
            "checkpoint": _checkpoint(checkpoint),
            "events": list(events),
            "after": after,
        }
        saved: Checkpoint = await self._ask(Checkpoint, f"{WORK}/checkpoints", body)
        if after is not None:
            self._places[held.attempt_id] = after + len(events)
        return saved

    async def record(
        self, held: Lease, steps: GraphSteps, events: Sequence[NewEvent] = (), after: int | None = None
    ) -> int:
        """Keep what the run's graph has done, with events; gives the `seq` of the last one."""
        after = self._places.get(held.attempt_id) if after is None else after
        body = {"held": held, "steps": to_builtins(steps), "events": list(events), "after": after}
        answer: work_wire.RecordSteps = await self._ask(work_wire.RecordSteps, f"{WORK}/graphs", body)
        self._places[held.attempt_id] = answer.seq
        return answer.seq

    async def find_graphs(self, held: Lease, query: GraphQuery) -> list[GraphTuple]:
        """Checkpoints of the graphs of the run's thread."""
        body = {"held": held, "query": query}
        answer: work_wire.FoundGraphs = await self._ask(work_wire.FoundGraphs, f"{WORK}/graphs/find", body)
        return answer.found

    async def find_deltas(self, held: Lease, query: GraphDeltaQuery) -> list[GraphDelta]:
        """What the ancestors of a checkpoint say of channels that are kept as changes."""
        body = {"held": held, "query": query}
        answer: work_wire.FoundDeltas = await self._ask(work_wire.FoundDeltas, f"{WORK}/graphs/deltas", body)
        return answer.found

    async def do_items(self, ops: Sequence[ItemOp]) -> list[ItemResult]:
        """Read and change what is remembered beyond threads."""
        sent = self._api.send(Items[ItemResult], "POST", f"{WORK}/items", {"ops": list(ops)})
        return (await self._open(sent)).items

    async def keep(self, held: Lease, origin: str, name: str, body: str) -> None:
        """Keep the result of a step, for every later attempt of this run and of those that resume it."""
        kept = {"held": held, "origin": origin, "name": name, "body": body}
        await self._ask(wire.Ok, f"{WORK}/steps", kept)

    async def finish(self, ending: Ending) -> Run:
        """End the attempt. Doing it twice does it once."""
        body = structs.asdict(ending) | {"events": list(ending.events)}
        if ending.checkpoint is not None:
            body["checkpoint"] = _checkpoint(ending.checkpoint)
        if ending.graph is not None:
            body["graph"] = to_builtins(ending.graph)
        run: Run = await self._merged("finish", self._finish_all, body, rows=1 + len(ending.events))
        self._places.pop(ending.held.attempt_id, None)
        return run

    async def hand_back(self, held: Sequence[Lease]) -> None:
        """Give runs back, uncharged and at their old place, so that another worker goes on at once."""
        for part in _parts(held):
            await self._ask(wire.Ok, f"{WORK}/release", {"held": part})
        for each in held:
            self._places.pop(each.attempt_id, None)

    async def close(self) -> None:
        if self._returns:
            await asyncio.wait(set(self._returns), timeout=CLOSE_SECONDS)
        await self._session.close()

    # --- requests -----------------------------------------------------------------------------------------

    async def _append_all(self, items: Sequence[_Item]) -> list[Any]:
        body = {"appends": [item.body for item in items]}
        answer: work_wire.Appended = await self._ask(work_wire.Appended, f"{WORK}/events", body)
        return [_refused(each) if isinstance(each, work_wire.Refusal) else each for each in answer.results]

    async def _finish_all(self, items: Sequence[_Item]) -> list[Any]:
        body = {"endings": [item.body for item in items]}
        answer: work_wire.Results = await self._ask(work_wire.Results, f"{WORK}/finish", body)
        return [_refused(each.error) if each.error is not None else each.run for each in answer.results]

    def _merged(
        self,
        kind: str,
        send: Callable[[Sequence[_Item]], Awaitable[Sequence[Any]]],
        body: Any,
        *,
        rows: int = 1,
        size: int = 0,
    ) -> asyncio.Future[Any]:
        async def batch(items: Sequence[_Item]) -> Sequence[Any]:
            try:
                return await send(items)
            except _ITEMS_OWN:
                # Each is now sent alone, since one of them must not fail its neighbours.
                raise
            except PerdureError as error:
                return [error] * len(items)

        return self._merger.call(kind, batch, _Item(body), rows=rows, size=size)

    async def _ask(
        self, kind: type[T], path: str, body: Any, *, key: str | None = None, wait: float | None = None
    ) -> T:
        timeout = None if wait is None else wait + self._session.request_timeout
        sending = self._api.send(
            kind, "POST", path, body, key=key, effect="none", timeout=timeout, long_poll=wait is not None
        )
        return await self._open(sending)

    async def _open(self, sending: Awaitable[T]) -> T:
        """A store that is closed over there may be open again soon; one that is closed here is not."""
        try:
            return await sending
        except StorageClosed as error:
            if self._session.closed:
                raise
            raise Unreachable(error.message) from error


def _parts(held: Sequence[Lease]) -> list[list[Lease]]:
    return [list(held[start : start + MAX_BATCH]) for start in range(0, len(held), MAX_BATCH)]


def _checkpoint(checkpoint: NewCheckpoint) -> dict[str, Any]:
    """A checkpoint as it travels, with an id that makes a repeated request the same request."""
    body = structs.asdict(checkpoint)
    if checkpoint.state is not None:
        body["state"] = base64.b64encode(checkpoint.state).decode()
    body["checkpoint_id"] = checkpoint.checkpoint_id or new_id()
    return body


def _refused(refusal: work_wire.Refusal) -> PerdureError:
    return error_named(refusal.code, refusal.detail) or PerdureError(refusal.detail)
