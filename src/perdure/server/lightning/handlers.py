"""Each call of the protocol as one call of the LightningStore contract."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar, cast

import msgspec
from msgspec import structs

from perdure.client import lightning_wire as wire
from perdure.kernel.errors import BadBody, InvalidInput, TooLarge
from perdure.rollouts.model import DEFAULT_QUEUE
from perdure.rollouts.records import AttemptedRollout, EnqueueRolloutRequest
from perdure.rollouts.resources import NamedResources, validate_resources
from perdure.rollouts.spans import Span
from perdure.server.http.routes import Call, Handler
from perdure.server.lightning import listing
from perdure.server.lightning.listing import listed
from perdure.server.lightning.protocol import do_not_repeat

JSON_SOURCE = "json"
"""What spans that come one by one or in lists are counted under."""

T = TypeVar("T")


def once(handler: Handler) -> Handler:
    """Mark a write that is not to be repeated blindly, unless an idempotency key makes that safe."""

    @functools.wraps(handler)
    async def marked(call: Call) -> Any:
        if call.idempotency_key is None:
            do_not_repeat(call.request)
        return await handler(call)

    return marked


def _key(call: Call) -> dict[str, Any]:
    """The idempotency key as an argument, where the caller gave one."""
    return {} if call.idempotency_key is None else {"idempotency_key": call.idempotency_key}


def _set_fields(body: msgspec.Struct, *, mandatory: tuple[str, ...]) -> dict[str, Any]:
    """The fields that the caller gave; the mandatory ones cannot be null."""
    given = {name: value for name, value in structs.asdict(body).items() if value is not msgspec.UNSET}
    for name in mandatory:
        if name in given and given[name] is None:
            raise InvalidInput(f"{name} is invalid; it cannot be a null value.")
    return given


# --- the store as a whole -----------------------------------------------------------------------------------


async def health(call: Call) -> wire.Health:
    return wire.Health()


async def statistics(call: Call) -> Any:
    return await call.store.statistics()


async def capabilities(call: Call) -> Any:
    return call.store.capabilities


# --- the queue ----------------------------------------------------------------------------------------------


@once
async def start_rollout(call: Call) -> Any:
    return await call.store.start_rollout(**structs.asdict(call.body), **_key(call))


async def enqueue_rollouts(call: Call) -> Any:
    requests = _keyed(call.body.rollouts, call.idempotency_key)
    if not all(request.idempotency_key for request in requests):
        do_not_repeat(call.request)
    if len(requests) == 1:
        # A single one is merged with those of other callers.
        return [await call.store.enqueue_rollout(**_given(requests[0]))]
    return list(await call.store.enqueue_many_rollouts(requests)) if requests else []


def _keyed(requests: list[EnqueueRolloutRequest], key: str | None) -> list[EnqueueRolloutRequest]:
    """Give a key of its own to each rollout of a request that has a key."""
    if key is not None:
        for number, request in enumerate(requests):
            request.idempotency_key = request.idempotency_key or f"{key}/{number}"
    return requests


def _given(request: EnqueueRolloutRequest) -> dict[str, Any]:
    """The arguments of a call; what every store may not know is left out unless it says something."""
    arguments = structs.asdict(request)
    if request.queue == DEFAULT_QUEUE:
        del arguments["queue"]
    for name in ("priority", "not_before", "idempotency_key"):
        if not arguments[name]:
            del arguments[name]
    return arguments


@once
async def dequeue_rollouts(call: Call) -> Any:
    return await _claim(call, call.body or wire.DequeueRollouts(), _key(call))


async def dequeue_for_many(call: Call) -> Any:
    """Claims of many callers that came together; each has its own key, so that all may be repeated."""
    claims: list[wire.Claim] = call.body.claims
    return await _all(_claim(call, claim, {"idempotency_key": claim.idempotency_key}) for claim in claims)


async def _claim(call: Call, wanted: wire.DequeueRollouts, key: dict[str, str]) -> list[AttemptedRollout]:
    if wanted.limit <= 0:
        return []
    arguments: dict[str, Any] = {"worker_id": wanted.worker_id, **key}
    if wanted.queue != DEFAULT_QUEUE:
        arguments["queue"] = wanted.queue
    if wanted.limit == 1:
        found = await call.store.dequeue_rollout(**arguments)
        claimed = [] if found is None else [found]
    else:
        claimed = list(await call.store.dequeue_many_rollouts(limit=wanted.limit, **arguments))
    call.app.metrics.count_claim(len(claimed))
    return claimed


async def _all(calls: Iterable[Awaitable[T]]) -> list[T]:
    """The answers of calls that are made at once, or the first error when all have ended."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return cast(list[T], answers)


# --- rollouts and attempts ----------------------------------------------------------------------------------


async def query_rollouts(call: Call) -> Any:
    return await listed(listing.ROLLOUTS, call.store, call.body or call.query)


async def get_rollout(call: Call) -> Any:
    return await call.store.get_rollout_by_id(call.path["rollout_id"])


@once
async def update_rollout(call: Call) -> Any:
    changes = _set_fields(call.body, mandatory=("status", "config"))
    return await call.store.update_rollout(call.path["rollout_id"], **changes)


@once
async def start_attempt(call: Call) -> Any:
    worker_id = call.body.worker_id if call.body else None
    return await call.store.start_attempt(call.path["rollout_id"], worker_id=worker_id, **_key(call))


async def query_attempts(call: Call) -> Any:
    search = call.body or call.query
    return await listed(listing.ATTEMPTS, call.store, search, rollout_id=call.path["rollout_id"])


async def get_latest_attempt(call: Call) -> Any:
    return await call.store.get_latest_attempt(call.path["rollout_id"])


async def update_attempt(call: Call) -> Any:
    changes = _set_fields(call.body, mandatory=wire.UpdateAttempt.__struct_fields__)
    return await call.store.update_attempt(call.path["rollout_id"], call.path["attempt_id"], **changes)


async def update_many_attempts(call: Call) -> Any:
    """Reports of many callers that came together."""
    mandatory = wire.UpdateAttempt.__struct_fields__
    changes = [_set_fields(report, mandatory=mandatory) for report in call.body.reports]
    return await _all(call.store.update_attempt(**each) for each in changes)


async def wait_for_rollouts(call: Call) -> Any:
    wanted: wire.WaitForRollouts = call.body
    timeout = wire.MAX_WAIT if wanted.timeout is None else min(wanted.timeout, wire.MAX_WAIT)
    return await call.store.wait_for_rollouts(rollout_ids=wanted.rollout_ids, timeout=timeout)


# --- resources ----------------------------------------------------------------------------------------------


async def query_resources(call: Call) -> Any:
    return await listed(listing.RESOURCES, call.store, call.query)


async def get_latest_resources(call: Call) -> Any:
    return await call.store.get_latest_resources()


async def get_resources(call: Call) -> Any:
    return await call.store.get_resources_by_id(call.path["resources_id"])


@once
async def add_resources(call: Call) -> Any:
    return await call.store.add_resources(_resources(call.body), **_key(call))


@once
async def update_resources(call: Call) -> Any:
    return await call.store.update_resources(call.path["resources_id"], _resources(call.body))


def _resources(body: dict[str, Any]) -> NamedResources:
    resources: NamedResources = {}
    for name, resource in body.items():
        try:
            resources |= validate_resources({name: resource})
        except InvalidInput as error:
            raise BadBody(error.message, ("body", name), resource) from error
    return resources


# --- spans --------------------------------------------------------------------------------------------------


async def add_span(call: Call) -> Any:
    span = await call.store.add_span(call.body)
    call.app.metrics.count_spans(JSON_SOURCE, int(span is not None), 1)
    return span


async def add_many_spans(call: Call) -> wire.StoredSpans:
    spans: list[Span] = call.body
    if len(spans) > wire.MAX_SPANS:
        raise TooLarge(f"the body has {len(spans)} spans; at most {wire.MAX_SPANS} are taken")
    new = {_span_key(span) for span in await call.store.add_many_spans(spans)}
    stored = []
    for span in spans:
        key = _span_key(span)
        stored.append(key in new)
        # A second copy within the request was not stored.
        new.discard(key)
    call.app.metrics.count_spans(JSON_SOURCE, sum(stored), len(stored))
    return wire.StoredSpans(stored=stored)


def _span_key(span: Span) -> tuple[str, str, str]:
    return span.rollout_id, span.attempt_id, span.span_id


async def query_spans(call: Call) -> Any:
    return await listed(listing.SPANS, call.store, call.body or call.query)


async def next_sequence_id(call: Call) -> wire.SequenceId:
    asked: wire.NextSequenceId = call.body
    number = await call.store.get_next_span_sequence_id(asked.rollout_id, asked.attempt_id)
    return wire.SequenceId(sequence_id=number)


async def next_sequence_ids(call: Call) -> wire.SequenceIds:
    numbers = await call.store.get_many_span_sequence_ids(call.body.pairs)
    return wire.SequenceIds(sequence_ids=list(numbers))


# --- workers ------------------------------------------------------------------------------------------------


async def query_workers(call: Call) -> Any:
    return await listed(listing.WORKERS, call.store, call.body or call.query)


async def get_worker(call: Call) -> Any:
    return await call.store.get_worker_by_id(call.path["worker_id"])


async def update_worker(call: Call) -> Any:
    changes = _set_fields(call.body, mandatory=("heartbeat_stats",)) if call.body else {}
    return await call.store.update_worker(call.path["worker_id"], **changes)
