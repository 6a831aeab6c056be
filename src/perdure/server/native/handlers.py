"""Rollouts, attempts, spans, workers and resources, in the native manner: what is unknown is not found."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import structs
from starlette.responses import Response

from perdure.client import native_wire as wire
from perdure.kernel.errors import Conflict, NotFound, NotSupported
from perdure.kernel.pages import Page
from perdure.rollouts.model import CANCELLED, DEFAULT_QUEUE, ENDED, REQUEUING
from perdure.rollouts.overview import Overview
from perdure.rollouts.records import ROLLOUT_STATUSES, EnqueueRolloutRequest, PaginatedResult, Rollout
from perdure.rollouts.resources import ResourcesUpdate
from perdure.rollouts.store import DatabaseLightningStore
from perdure.server.http.bodies import encode
from perdure.server.http.routes import Call

TOTAL = "X-Pagination-Total"
_UNENDED = frozenset(ROLLOUT_STATUSES) - ENDED


def overview_of(call: Call) -> Overview:
    """What reads the database beside the contract; a store of another make has none."""
    if not isinstance(call.app.store, DatabaseLightningStore):
        raise NotSupported(f"a {type(call.app.store).__name__} cannot tell this")
    return Overview(call.app.store.storage)


def paged(page: PaginatedResult[Any]) -> Response:
    """A page, with its total in a header too."""
    body = Page(items=list(page.items), limit=page.limit, offset=page.offset, total=page.total)
    return Response(encode(body), headers={TOTAL: str(page.total)}, media_type="application/json")


def _given(body: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name, value in structs.asdict(body).items() if value is not msgspec.UNSET}


def _page(query: wire.SortedQuery) -> dict[str, Any]:
    return {name: getattr(query, name) for name in ("limit", "offset", "sort_by", "sort_order")}


def _key(call: Call) -> dict[str, Any]:
    """The idempotency key as an argument, where the caller gave one."""
    return {} if call.idempotency_key is None else {"idempotency_key": call.idempotency_key}


# --- rollouts ---------------------------------------------------------------------------------------------


async def list_rollouts(call: Call) -> Response:
    query: wire.RolloutQuery = call.query
    return paged(
        await call.store.query_rollouts(
            status_in=query.status,
            rollout_id_in=query.rollout_id,
            rollout_id_contains=query.contains,
            filter_logic=query.logic,
            **_page(query),
        )
    )


async def get_rollout(call: Call) -> Rollout:
    rollout_id = call.path["rollout_id"]
    rollout = await call.store.get_rollout_by_id(rollout_id)
    if rollout is None:
        raise NotFound(f"Rollout {rollout_id} not found")
    return rollout


async def enqueue_rollout(call: Call) -> Rollout:
    request: EnqueueRolloutRequest = call.body
    request.idempotency_key = request.idempotency_key or call.idempotency_key
    return (await call.store.enqueue_many_rollouts([request]))[0]


async def enqueue_rollouts(call: Call) -> wire.Rollouts:
    """Queue many; those without a key of their own get one from the request's key."""
    requests: list[EnqueueRolloutRequest] = call.body.rollouts
    if call.idempotency_key is not None:
        for number, request in enumerate(requests):
            request.idempotency_key = request.idempotency_key or f"{call.idempotency_key}/{number}"
    queued = await call.store.enqueue_many_rollouts(requests) if requests else ()
    return wire.Rollouts(rollouts=list(queued))


async def start_rollout(call: Call) -> Any:
    return await call.store.start_rollout(**structs.asdict(call.body), **_key(call))


async def update_rollout(call: Call) -> Rollout:
    return await call.store.update_rollout(call.path["rollout_id"], **_given(call.body))


async def cancel_rollout(call: Call) -> Rollout:
    """What has ended stays as it is; to cancel twice is to cancel once."""
    try:
        return await _move(call, CANCELLED, _UNENDED)
    except Conflict:
        rollout = await get_rollout(call)
        if rollout.status == CANCELLED:
            return rollout
        raise


async def retry_rollout(call: Call) -> Rollout:
    return await _move(call, REQUEUING, ENDED)


async def _move(call: Call, status: Any, only_from: frozenset[str]) -> Rollout:
    rollout_id = call.path["rollout_id"]
    store = call.store
    if isinstance(store, DatabaseLightningStore):
        return await store.update_rollout(rollout_id, status=status, only_from=only_from)
    rollout = await get_rollout(call)
    if rollout.status not in only_from:
        raise Conflict(f"Rollout {rollout_id} is {rollout.status} and cannot be set to {status}")
    return await store.update_rollout(rollout_id, status=status)


async def dequeue(call: Call) -> wire.Claimed:
    wanted: wire.Dequeue = call.body or wire.Dequeue()
    arguments: dict[str, Any] = {"worker_id": wanted.worker_id, "limit": wanted.limit, **_key(call)}
    if wanted.queue != DEFAULT_QUEUE:
        arguments["queue"] = wanted.queue
    claimed = list(await call.store.dequeue_many_rollouts(**arguments))
    call.app.metrics.count_claim(len(claimed))
    return wire.Claimed(rollouts=claimed)


# --- attempts and spans -----------------------------------------------------------------------------------


async def list_attempts(call: Call) -> Response:
    rollout = await get_rollout(call)
    return paged(await call.store.query_attempts(rollout.rollout_id, **_page(call.query)))


async def get_latest_attempt(call: Call) -> Any:
    attempt = await call.store.get_latest_attempt(call.path["rollout_id"])
    if attempt is None:
        raise NotFound(f"No attempts found for rollout {call.path['rollout_id']}")
    return attempt


async def start_attempt(call: Call) -> Any:
    worker_id = call.body.worker_id if call.body else None
    return await call.store.start_attempt(call.path["rollout_id"], worker_id=worker_id, **_key(call))


async def update_attempt(call: Call) -> Any:
    return await call.store.update_attempt(
        call.path["rollout_id"], call.path["attempt_id"], **_given(call.body)
    )


async def list_spans(call: Call) -> Response:
    query: wire.SpanQuery = call.query
    rollout = await get_rollout(call)
    return paged(
        await call.store.query_spans(
            rollout.rollout_id,
            query.attempt_id,
            trace_id=query.trace_id,
            span_id=query.span_id,
            parent_id=query.parent_id,
            name=query.name,
            name_contains=query.name_contains,
            filter_logic=query.logic,
            **_page(query),
        )
    )


# --- workers ----------------------------------------------------------------------------------------------


async def list_workers(call: Call) -> Response:
    query: wire.WorkerQuery = call.query
    return paged(
        await call.store.query_workers(
            status_in=query.status,
            worker_id_contains=query.contains,
            filter_logic=query.logic,
            **_page(query),
        )
    )


async def get_worker(call: Call) -> Any:
    worker = await call.store.get_worker_by_id(call.path["worker_id"])
    if worker is None:
        raise NotFound(f"Worker {call.path['worker_id']} not found")
    return worker


# --- resources --------------------------------------------------------------------------------------------


async def list_resources(call: Call) -> Response:
    query: wire.ResourcesQuery = call.query
    return paged(
        await call.store.query_resources(
            resources_id=query.resources_id, resources_id_contains=query.contains, **_page(query)
        )
    )


async def get_resources(call: Call) -> ResourcesUpdate:
    resources_id = call.path["resources_id"]
    return _found(await call.store.get_resources_by_id(resources_id), f"Resources {resources_id} not found")


async def get_latest_resources(call: Call) -> ResourcesUpdate:
    return _found(await call.store.get_latest_resources(), "There are no resources yet")


async def list_versions(call: Call) -> Response:
    resources = await get_resources(call)
    query: wire.PageQuery = call.query
    return paged(
        await overview_of(call).query_versions(
            call.caller.namespace, resources.resources_id, limit=query.limit, offset=query.offset
        )
    )


async def get_version(call: Call) -> ResourcesUpdate:
    resources_id, version = call.path["resources_id"], call.path["version"]
    found = None
    if version.isascii() and version.isdecimal() and len(version) < 20:
        found = await overview_of(call).get_version(call.caller.namespace, resources_id, int(version))
    return _found(found, f"Resources {resources_id} have no version {version}")


def _found(resources: ResourcesUpdate | None, otherwise: str) -> ResourcesUpdate:
    if resources is None:
        raise NotFound(otherwise)
    return resources


# --- counts -----------------------------------------------------------------------------------------------


async def statistics(call: Call) -> Any:
    return await call.store.statistics()


async def list_queues(call: Call) -> Any:
    return wire.Items(items=await overview_of(call).queues([call.caller.namespace]))
