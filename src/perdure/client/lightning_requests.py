"""Requests of the Agent-lightning protocol: from arguments to bodies, from responses to records.

Calls share bulk requests, and each call gets its own result.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
from msgspec import MsgspecError
from msgspec.json import Decoder

from perdure.client.lightning_wire import PREFIX, SequenceIds
from perdure.client.session import Answer, Effect, HttpSession, in_header, path_segment
from perdure.kernel.checks import check_query_page, check_text
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import Conflict, InvalidInput, NotFound, PerdureError, TooLarge, Unreachable
from perdure.kernel.merge import Merger
from perdure.rollouts.records import (
    UNSET,
    Attempt,
    AttemptedRollout,
    EnqueueRolloutRequest,
    PaginatedResult,
    Rollout,
    StoredSpans,
    Worker,
)
from perdure.rollouts.resources import ResourcesUpdate
from perdure.spans.records import Span

T = TypeVar("T")

ATTEMPTED = Decoder(AttemptedRollout)
MANY_ATTEMPTED = Decoder(list[AttemptedRollout])
ROLLOUT = Decoder(Rollout)
MANY_ROLLOUTS: Decoder[list[Rollout]] = Decoder(list[Rollout])
CLAIMS: Decoder[list[list[AttemptedRollout]]] = Decoder(list[list[AttemptedRollout]])
ATTEMPT = Decoder(Attempt)
MANY_ATTEMPTS: Decoder[list[Attempt]] = Decoder(list[Attempt])
ATTEMPT_OR_NONE: Decoder[Attempt | None] = Decoder(Attempt | None)
WORKER = Decoder(Worker)
WORKER_OR_NONE: Decoder[Worker | None] = Decoder(Worker | None)
RESOURCES = Decoder(ResourcesUpdate)
RESOURCES_OR_NONE: Decoder[ResourcesUpdate | None] = Decoder(ResourcesUpdate | None)


def decoded(decoder: Decoder[T], answer: Answer) -> T:
    """Decode a response as its type."""
    try:
        return decoder.decode(answer.body)
    except (MsgspecError, UnicodeDecodeError) as error:
        raise Unreachable(f"the answer is not from a perdure server: {error}") from error


def rollout_from(record: Any) -> Rollout:
    """Convert a record to a rollout, with its attempt if it has one."""
    attempted = isinstance(record, dict) and record.get("attempt") is not None
    return AttemptedRollout.model_validate(record) if attempted else Rollout.model_validate(record)


class Exchange:
    """Sends single requests to a server."""

    def __init__(self, session: HttpSession) -> None:
        self._session = session

    async def get(self, path: str, query: Iterable[tuple[str, str]] = ()) -> Answer:
        return await self._session.request("GET", PREFIX + path, query=query)

    async def post(
        self, path: str, body: Any, *, key: str | None = None, effect: Effect = "repeatable"
    ) -> Answer:
        """Send a write. The server answers repeated requests with the same `key` like the first one."""
        headers = {} if key is None else {"Idempotency-Key": in_header(key, "idempotency_key")}
        data = encode(body)
        return await self._session.request("POST", PREFIX + path, body=data, headers=headers, effect=effect)

    async def post_keyed(self, path: str, body: Any, key: str | None) -> Answer:
        """Send a write with a key, by default a new one."""
        return await self.post(path, body, key=key or new_key())

    async def search(
        self, path: str, terms: Mapping[str, Any], record: Callable[[Any], T]
    ) -> PaginatedResult[T]:
        answer = await self.post(path, _asked(terms), effect="none")
        return _page(answer, record, terms)

    async def listing(
        self, path: str, terms: Mapping[str, Any], record: Callable[[Any], T]
    ) -> PaginatedResult[T]:
        """Search by terms in the query string."""
        query = [
            (name, _parameter(name, value)) for name, value in _asked(terms).items() if value is not None
        ]
        return _page(await self.get(path, query), record, terms)

    async def wait(self, rollout_ids: list[str], seconds: float) -> list[Rollout]:
        """Return the ended rollouts, as soon as all have ended or the time is over."""
        answer = await self._session.request(
            "POST",
            PREFIX + "/waits/rollouts",
            body=encode({"rollout_ids": rollout_ids, "timeout": seconds}),
            timeout=seconds + self._session.request_timeout,
            effect="none",
            long_poll=True,
        )
        return [rollout_from(record) for record in answer.json()]


def encode(value: Any, what: str = "the request") -> bytes:
    return encode_json(value, what=what).encode()


def new_key() -> str:
    """Build a key by which the server recognizes a repeated request."""
    return os.urandom(16).hex()


def given(**fields: Any) -> dict[str, Any]:
    """Return the given fields; None is a value."""
    return {name: value for name, value in fields.items() if value is not UNSET}


def _asked(terms: Mapping[str, Any]) -> dict[str, Any]:
    check_query_page(terms["limit"], terms["offset"])
    # The protocol has no empty page, so the request for a total asks for one item, which is dropped.
    return {**terms, "limit": terms["limit"] or 1}


def _page(answer: Answer, record: Callable[[Any], T], terms: Mapping[str, Any]) -> PaginatedResult[T]:
    page = answer.json()
    if not isinstance(page, dict) or not isinstance(page.get("items"), list):
        raise Unreachable("the answer is not from a perdure server: it is not a page")
    items = [record(item) for item in page["items"]] if terms["limit"] else []
    return PaginatedResult(items=items, limit=terms["limit"], offset=terms["offset"], total=page["total"])


def _parameter(name: str, value: Any) -> str:
    if not isinstance(value, str | int):
        raise InvalidInput(f"{name} cannot be a {type(value).__name__}")
    return str(value)


# --- bulk requests ----------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

MAX_ITEMS = 1000
MAX_BYTES = 3 << 20
"""Maximum bytes of one request, unless a single item is larger."""
MERGED_SPANS = 100
"""A longer list gets its own request."""

Pair = tuple[str, str]
Send = Callable[[Sequence["BatchItem"]], Awaitable[Sequence[Any]]]

_ITEMS_OWN = (Conflict, InvalidInput, NotFound, TooLarge)
"""Errors that may concern one item of a batch. After other errors, the items are not retried one by one."""


class BatchItem(NamedTuple):
    """An item of a bulk request: the value and its JSON text."""

    value: Any
    text: bytes


_STORED = msgspec.json.Decoder(StoredSpans)
_NUMBERS = msgspec.json.Decoder(SequenceIds)


class Batches:
    """Merges the calls of one namespace into bulk requests."""

    def __init__(self, session: HttpSession, merger: Merger) -> None:
        self._session = session
        self._merger = merger
        self._returns: set[asyncio.Task[None]] = set()

    async def enqueue(self, request: EnqueueRolloutRequest) -> Rollout:
        rollout: Rollout = await self._merged("enqueue", self.enqueue_all, rollout_item(request))
        return rollout

    async def add_span(self, span: Span) -> bool:
        """Store a span. Return whether it was new."""
        (stored,) = await self.add_many_spans([span])
        return stored

    async def add_many_spans(self, spans: Sequence[Span]) -> list[bool]:
        """Store spans, a short list together with other callers. Return for each whether it was new."""
        items = [span_item(span) for span in spans]
        if not 0 < len(items) <= MERGED_SPANS:
            return await self.store_all(items)
        call = BatchItem(items, b",".join([item.text for item in items]))
        stored: list[bool] = await self._merged("spans", self._store_calls, call, rows=len(items))
        return stored

    async def _store_calls(self, calls: Sequence[BatchItem]) -> list[list[bool]]:
        stored = iter(await self.store_all([item for call in calls for item in call.value]))
        return [list(islice(stored, len(call.value))) for call in calls]

    async def next_sequence_id(self, pair: Pair) -> int:
        number: int = await self._merged("sequence", self.number_all, pair_item(pair))
        return number

    async def report(self, report: dict[str, Any]) -> Attempt:
        attempt: Attempt = await self._merged("report", self.report_all, BatchItem(report, encode(report)))
        return attempt

    async def claim(self, wanted: dict[str, Any]) -> list[AttemptedRollout]:
        """Claim rollouts. If the caller is gone, requeue the claimed rollouts."""
        item = BatchItem(wanted, encode(wanted))
        answer = self._merged("claim", self.claim_all, item, undelivered=self._give_back)
        try:
            return cast(list[AttemptedRollout], await answer)
        except asyncio.CancelledError:
            # The claim may have succeeded although its caller was cancelled.
            if not answer.cancelled() and answer.exception() is None:
                self._give_back(answer.result())
            raise

    def _give_back(self, claimed: list[AttemptedRollout]) -> None:
        for rollout in claimed:
            task = asyncio.get_running_loop().create_task(self._requeue(rollout.rollout_id))
            self._returns.add(task)
            task.add_done_callback(self._returns.discard)

    async def _requeue(self, rollout_id: str) -> None:
        try:
            await self._post("/rollouts/" + path_segment(rollout_id, "rollout_id"), b'{"status":"requeuing"}')
        except PerdureError as error:
            logger.warning("rollout %s was claimed for a caller that has gone: %s", rollout_id, error)

    def _merged(
        self,
        kind: str,
        send: Send,
        item: BatchItem,
        *,
        rows: int = 1,
        undelivered: Callable[[Any], None] | None = None,
    ) -> asyncio.Future[Any]:
        async def batch(items: Sequence[BatchItem]) -> Sequence[Any]:
            try:
                return await send(items)
            except _ITEMS_OWN:
                # The merger now sends each item by itself, so that one item does not fail the others.
                raise
            except PerdureError as error:
                return [error] * len(items)

        key = (kind, self._session.namespace)
        size = len(item.text)
        return self._merger.call(key, batch, item, rows=rows, size=size, undelivered=undelivered)

    async def _post(self, path: str, body: bytes) -> Answer:
        return await self._session.request("POST", PREFIX + path, body=body)

    # --- one request, or as few as the server's limits allow ----------------------------------------------

    async def enqueue_all(self, items: Sequence[BatchItem]) -> list[Rollout]:
        """Enqueue rollouts in order. Each has its own key."""
        queued: list[Rollout] = []
        for part in portions(items):
            body = b'{"rollouts":' + _array(part) + b"}"
            answer = await self._post("/queues/rollouts/enqueue", body)
            rollouts = decoded(MANY_ROLLOUTS, answer)
            queued += rollouts
        return queued

    async def store_all(self, items: Sequence[BatchItem]) -> list[bool]:
        """Store spans. Return for each whether it was new.

        A span that a repeated request finds stored was stored by the request whose response was lost.
        """
        stored: list[bool] = []
        for part in portions(items):
            answer = await self._post("/spans/bulk", _array(part))
            flags = decoded(_STORED, answer).stored
            stored += _first_of_each(part) if answer.repeated else flags
        for item, new in zip(items, stored, strict=True):
            if not new:
                logger.error("Duplicated span added: %s of attempt %s", *_span_key(item.value)[:0:-1])
        return stored

    async def number_all(self, items: Sequence[BatchItem]) -> list[int]:
        """Return the next numbers for pairs of rollout and attempt. Lost numbers stay unused."""
        numbers: list[int] = []
        for part in portions(items):
            body = b'{"pairs":' + _array(part) + b"}"
            answer = await self._post("/spans/next/bulk", body)
            numbers += decoded(_NUMBERS, answer).sequence_ids
        return numbers

    async def claim_all(self, items: Sequence[BatchItem]) -> list[list[AttemptedRollout]]:
        """Claim rollouts for several callers, each with its own key."""
        answer = await self._post("/queues/rollouts/dequeue/bulk", b'{"claims":' + _array(items) + b"}")
        return decoded(CLAIMS, answer)

    async def report_all(self, items: Sequence[BatchItem]) -> list[Attempt]:
        """Change attempts by their ids. Repeating this changes nothing more."""
        answer = await self._post("/attempts/bulk", b'{"reports":' + _array(items) + b"}")
        return decoded(MANY_ATTEMPTS, answer)


def rollout_item(request: EnqueueRolloutRequest) -> BatchItem:
    """Build the item of a rollout to enqueue, with a new key if it has none."""
    if type(request) is not EnqueueRolloutRequest:
        request = EnqueueRolloutRequest.model_validate(request)
    if request.idempotency_key is None:
        request = msgspec.structs.replace(request, idempotency_key=new_key())
    return BatchItem(request, encode(request, "input"))


def span_item(span: Span) -> BatchItem:
    try:
        return BatchItem(span, encode(span, "span"))
    except InvalidInput as error:
        raise InvalidInput(f"span {span.span_id}: {error}") from error


def pair_item(pair: Pair) -> BatchItem:
    rollout_id, attempt_id = pair
    checked = [check_text(rollout_id, "rollout_id"), check_text(attempt_id, "attempt_id")]
    return BatchItem(pair, encode(checked))


def portions(items: Sequence[BatchItem]) -> Iterator[list[BatchItem]]:
    """Split items into requests, in order."""
    part: list[BatchItem] = []
    size = 0
    for item in items:
        if part and (len(part) == MAX_ITEMS or size + len(item.text) > MAX_BYTES):
            yield part
            part, size = [], 0
        part.append(item)
        size += len(item.text) + 1
    if part:
        yield part


def _array(items: Iterable[BatchItem]) -> bytes:
    return b"[" + b",".join([item.text for item in items]) + b"]"


def _span_key(span: Span) -> tuple[str, str, str]:
    return span.rollout_id, span.attempt_id, span.span_id


def _first_of_each(items: Sequence[BatchItem]) -> list[bool]:
    """Return for each span whether it is the first one with its key."""
    seen: set[tuple[str, str, str]] = set()
    flags = []
    for item in items:
        key = _span_key(item.value)
        flags.append(key not in seen)
        seen.add(key)
    return flags
