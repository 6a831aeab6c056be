"""The run queue of a server, for a worker without a database."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any, TypeVar
from uuid import uuid4

from msgspec import Raw, structs

from perdure.client.session import Answer, Effect, HttpSession
from perdure.client.transport import HttpTransport
from perdure.graph_requests.service import GraphRequests
from perdure.kernel.codec import encode_json, encode_wire
from perdure.kernel.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    PerdureError,
    StorageClosed,
    TooLarge,
    Unreachable,
)
from perdure.kernel.ids import RandomIds, uuid
from perdure.kernel.merge import Merger
from perdure.memory.service import Memory
from perdure.runs.queue import MAX_WAIT_SECONDS, RunQueue
from perdure.service.base import remote
from perdure.service.endpoints import KEY, MAX_BATCH, Endpoint, encode_arguments, endpoints
from perdure.threads.records import Checkpoint, NewCheckpoint
from perdure.threads.work import Assignment, Ending, Lease, RunAppend, SessionLines

logger = logging.getLogger(__name__)

T = TypeVar("T")
Arguments = dict[str, Any]

RETRY_DELAYS = (0.1, 0.5, 1.0)
RENEW_SECONDS = 5.0
BATCHES = 4
CLOSE_SECONDS = 5.0

_ITEMS_OWN = (Conflict, InvalidInput, NotFound, TooLarge)
"""Errors that may concern one item of a batch. After other errors, the items are not sent one by one."""


@remote
class RemoteRunQueue(RunQueue):
    """The runs of a server for a worker.

    Writes of concurrent runs share requests. Every call may be repeated when its response was lost. A server
    that cannot be reached is `Unreachable`, and its operations happen at most once.
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
        session = HttpSession(
            url,
            token=token,
            namespace=namespace,
            retry_delays=retry_delays,
            health_retry_delays=(),
            request_timeout=request_timeout,
        )
        self.transport = RunQueueTransport(session)
        self.graph_requests = GraphRequests.over(self.transport)
        self.memory = Memory.over(self.transport)

    @property
    def url(self) -> str:
        return self.transport.session.base_url

    def claimer(self, worker_id: str, agents: Sequence[str], queues: Sequence[str]) -> None:
        """Do nothing: the server waits while it answers a claim."""

    def is_followed(self, held: Lease) -> None:
        """Return None: only the server knows who follows a run."""

    async def close(self) -> None:
        """Finish releasing claims of cancelled callers, and close the connections."""
        await self.transport.close()


class RunQueueTransport(HttpTransport):
    """Sends the calls of `RunQueue`."""

    def __init__(self, session: HttpSession) -> None:
        super().__init__(
            session,
            {
                RunQueue.claim: _Claiming.send,
                RunQueue.controls: _controls,
                RunQueue.renew: _renew,
                RunQueue.hand_back: _hand_back,
                RunQueue.append_all: _append_all,
                RunQueue.log_all: _log_all,
                RunQueue.save: _save,
                RunQueue.record: _record,
                RunQueue.finish_all: _finish_all,
            },
        )
        self.merger = Merger(BATCHES)
        self.places: dict[str, int] = {}
        """The number of the last event of each attempt that runs here."""
        self.releases: set[asyncio.Task[None]] = set()

    async def exchange(
        self,
        endpoint: Endpoint,
        arguments: Arguments,
        *,
        timeout: float | None = None,
        long_poll: bool = False,
        effect: Effect | None = "none",
    ) -> Answer:
        """Send one request, which may be repeated safely."""
        try:
            return await super().exchange(
                endpoint, arguments, timeout=timeout, long_poll=long_poll, effect=effect
            )
        except StorageClosed as error:
            # A store that the server has closed may reopen soon; a store closed here stays closed.
            if self.session.closed:
                raise
            raise Unreachable(error.message) from error

    def encode_call(self, endpoint: Endpoint, arguments: Arguments) -> bytes:
        """Encode the body of a request. Values from users were encoded and checked before."""
        if endpoint.function in (RunQueue.register, RunQueue.describe, RunQueue.keep, RunQueue.do_items):
            return super().encode_call(endpoint, arguments)
        return encode_wire(encode_arguments(endpoint.shape, arguments))

    def forget(self, attempt_ids: Sequence[str]) -> None:
        for attempt_id in attempt_ids:
            self.places.pop(attempt_id, None)

    async def close(self) -> None:
        if self.releases:
            await asyncio.wait(set(self.releases), timeout=CLOSE_SECONDS)
        await self.session.close()


# --- claims and leases ------------------------------------------------------------------------------------


class _Claiming:
    """One claim. If its caller is cancelled, it releases the claimed runs."""

    def __init__(self, transport: RunQueueTransport, endpoint: Endpoint, arguments: Arguments) -> None:
        self._transport = transport
        self._endpoint = endpoint
        self._arguments = {KEY: uuid4().hex} | arguments
        self._arguments["limit"] = min(arguments.get("limit", 1), MAX_BATCH)

    @classmethod
    async def send(cls, transport: Any, endpoint: Endpoint, arguments: Arguments) -> list[Assignment]:
        claiming = cls(transport, endpoint, arguments)
        try:
            claimed = await claiming._claim(_seconds(arguments))
        except asyncio.CancelledError:
            claiming._release_later()
            raise
        for assignment in claimed:
            transport.places[assignment.attempt_id] = assignment.last_seq
        return claimed

    async def _claim(self, wait: float) -> list[Assignment]:
        transport = self._transport
        timeout = wait + transport.session.request_timeout
        arguments = self._arguments | {"wait": wait}
        answer = await transport.exchange(self._endpoint, arguments, timeout=timeout, long_poll=True)
        claimed: list[Assignment] = transport.decode(self._endpoint, answer.body)
        return await self._still_held(claimed) if answer.repeated and claimed else claimed

    async def _still_held(self, claimed: Sequence[Assignment]) -> list[Assignment]:
        """Return the assignments that no other worker claimed while the first response was lost."""
        held = [assignment.held for assignment in claimed]
        renewing = {"worker_id": self._arguments["worker_id"], "held": held}
        verdicts = await _renew(self._transport, endpoints(RunQueue)["renew"], renewing)
        return [assignment for assignment, verdict in zip(claimed, verdicts, strict=True) if verdict == "go"]

    def _release_later(self) -> None:
        """Release runs that the server may have assigned. Repeating the claim's key returns them."""
        task = asyncio.get_running_loop().create_task(self._release())
        self._transport.releases.add(task)
        task.add_done_callback(self._transport.releases.discard)

    async def _release(self) -> None:
        try:
            claimed = await self._claim(0.0)
            if claimed:
                held = [assignment.held for assignment in claimed]
                await _hand_back(self._transport, endpoints(RunQueue)["hand_back"], {"held": held})
        except PerdureError as error:
            worker_id = self._arguments["worker_id"]
            logger.warning("a cancelled claim of %s could not be undone: %s", worker_id, error)


def _seconds(arguments: Arguments) -> float:
    return float(min(max(arguments.get("wait", 0.0), 0.0), MAX_WAIT_SECONDS))


async def _controls(transport: HttpTransport, endpoint: Endpoint, arguments: Arguments) -> Any:
    wait = _seconds(arguments)
    sent = {"held": list(arguments["held"])[:MAX_BATCH], "wait": wait}
    timeout = wait + transport.session.request_timeout
    return await transport.request(endpoint, sent, timeout=timeout, long_poll=True)


async def _renew(transport: HttpTransport, endpoint: Endpoint, arguments: Arguments) -> Any:
    """Renew leases with one try, because the next renewal comes soon. Without leases, send a heartbeat."""
    brief = RunQueueTransport(transport.session.with_retries(()))
    if not arguments["held"]:
        return await brief.request(endpoint, arguments, timeout=RENEW_SECONDS) or []
    return await _in_parts(brief, endpoint, arguments, name="held", timeout=RENEW_SECONDS)


async def _hand_back(transport: Any, endpoint: Endpoint, arguments: Arguments) -> None:
    await _in_parts(transport, endpoint, arguments, name="held")
    transport.forget([lease.attempt_id for lease in arguments["held"]])


async def _in_parts(
    transport: HttpTransport,
    endpoint: Endpoint,
    arguments: Arguments,
    *,
    name: str,
    timeout: float | None = None,
) -> list[Any]:
    """Send a list of any length in parts that the server accepts."""
    answers: list[Any] = []
    items = list(arguments[name])
    for start in range(0, len(items), MAX_BATCH):
        part = arguments | {name: items[start : start + MAX_BATCH]}
        answers += await transport.request(endpoint, part, timeout=timeout) or ()
    return answers


# --- what agents write ------------------------------------------------------------------------------------


async def _append_all(transport: Any, endpoint: Endpoint, arguments: Arguments) -> list[Any]:
    appends: list[RunAppend] = [
        append if append.after is not None else structs.replace(append, after=_place(transport, append))
        for append in arguments["appends"]
    ]
    rows = sum(len(append.events) for append in appends)
    size = sum(len(event.body) for append in appends for event in append.events)
    answers = await _merged(transport, endpoint, "appends", appends, rows=rows, size=size)
    for append, seq in zip(appends, answers, strict=True):
        if isinstance(seq, int):
            transport.places[append.held.attempt_id] = seq
    return answers


async def _log_all(transport: Any, endpoint: Endpoint, arguments: Arguments) -> list[Any]:
    logs: Sequence[SessionLines] = arguments["logs"]
    size = sum(len(line) for log in logs for line in log.lines)
    return await _merged(transport, endpoint, "logs", logs, rows=len(logs), size=size)


def _place(transport: Any, call: Any) -> int | None:
    place: int | None = transport.places.get(call.held.attempt_id)
    return place


async def _save(transport: Any, endpoint: Endpoint, arguments: Arguments) -> Checkpoint:
    attempt_id, events = arguments["held"].attempt_id, arguments.get("events", ())
    after = arguments.get("after")
    after = transport.places.get(attempt_id) if after is None else after
    sent = {"checkpoint": _encoded(arguments["checkpoint"]), "events": list(events), "after": after}
    saved: Checkpoint = await transport.request(endpoint, arguments | sent)
    if after is not None:
        transport.places[attempt_id] = after + len(events)
    return saved


async def _record(transport: Any, endpoint: Endpoint, arguments: Arguments) -> int:
    attempt_id, after = arguments["held"].attempt_id, arguments.get("after")
    after = transport.places.get(attempt_id) if after is None else after
    seq: int = await transport.request(endpoint, arguments | {"after": after})
    transport.places[attempt_id] = seq
    return seq


async def _finish_all(transport: Any, endpoint: Endpoint, arguments: Arguments) -> list[Any]:
    endings: Sequence[Ending] = arguments["endings"]
    sent = [
        ending
        if ending.checkpoint is None
        else structs.replace(ending, checkpoint=_encoded(ending.checkpoint))
        for ending in endings
    ]
    rows = sum(1 + len(ending.events) for ending in endings)
    answers = await _merged(transport, endpoint, "endings", sent, rows=rows)
    transport.forget([ending.held.attempt_id for ending in endings])
    return answers


def _encoded(checkpoint: NewCheckpoint) -> NewCheckpoint:
    """Encode a checkpoint's values, and give it an id, so that a repeated request is the same request."""
    texts = {
        name: Raw(encode_json(getattr(checkpoint, name), what=name).encode())
        for name in ("values", "interrupts", "metadata")
    }
    id = checkpoint.checkpoint_id or uuid(time.time_ns() // 1000, RandomIds())
    encoded: Any = structs.replace(checkpoint, checkpoint_id=id, **texts)
    result: NewCheckpoint = encoded
    return result


async def _merged(
    transport: Any, endpoint: Endpoint, name: str, items: Sequence[T], *, rows: int, size: int = 0
) -> list[Any]:
    """Send items together with those of concurrent calls; each item has its own result."""

    async def together(lists: Sequence[Sequence[T]]) -> Sequence[Any]:
        try:
            sent = {name: [item for items in lists for item in items]}
            answers = iter(await transport.request(endpoint, sent))
        except _ITEMS_OWN:
            # The merger now sends each list by itself, so that one item does not fail the others.
            raise
        except PerdureError as error:
            return [error] * len(lists)
        return [[next(answers) for _ in items] for items in lists]

    merger: Merger = transport.merger
    results: list[Any] = await merger.call(name, together, items, rows=max(rows, 1), size=size)
    return results
