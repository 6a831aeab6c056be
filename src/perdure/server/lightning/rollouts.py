"""The Agent-lightning protocol: rollouts, their queue and their attempts."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from perdure.client import lightning_wire as wire
from perdure.kernel.errors import BadQuery, NotFound
from perdure.kernel.pages import QueryPage
from perdure.rollouts.encoding import answer_from
from perdure.rollouts.model import DEFAULT_QUEUE
from perdure.rollouts.records import (
    AnyRequest,
    Attempt,
    AttemptedRollout,
    EnqueueRolloutRequest,
    Rollout,
    parse_request,
)
from perdure.server.http.routes import Call
from perdure.server.lightning import protocol
from perdure.server.lightning.protocol import (
    LightningResource,
    do_not_repeat,
    gather,
    get_key_argument,
    listed,
    ours,
    set_fields,
)

rollouts = LightningResource()


@rollouts.post(
    "/rollouts",
    "write",
    "Start a rollout past the queue",
    body=wire.StartRollout,
    answer=AttemptedRollout,
    status=201,
    once=True,
)
async def start_rollout(call: Call) -> Any:
    return await call.store.start_rollout(**structs.asdict(call.body), **get_key_argument(call))


@rollouts.post(
    "/queues/rollouts/enqueue",
    "write",
    "Queue rollouts",
    body=wire.EnqueueRollouts,
    answer=list[Rollout],
    status=201,
)
async def enqueue_rollouts(call: Call) -> Any:
    requests = _keyed(call.body.rollouts, call.idempotency_key)
    if not all(request.idempotency_key for request in requests):
        do_not_repeat(call.request)
    if not requests:
        return []
    # A single request is merged with those of other callers.
    alone = len(requests) == 1
    store = ours(call.store, "enqueue_rollout", "enqueue_many_rollouts")
    if store is not None:
        queue = store.rollouts
        rows = [await queue.enqueue_row(requests[0])] if alone else await queue.enqueue_rows(requests)
        return [answer_from(row) for row in rows]
    records = [parse_request(request) for request in requests]
    if alone:
        return [await call.store.enqueue_rollout(**_given(records[0]))]
    return list(await call.store.enqueue_many_rollouts(records))


def _keyed(requests: list[AnyRequest], key: str | None) -> list[AnyRequest]:
    """Give each rollout of a request its own idempotency key, if the request has one."""
    if key is not None:
        for number, request in enumerate(requests):
            request.idempotency_key = request.idempotency_key or f"{key}/{number}"
    return requests


def _given(request: EnqueueRolloutRequest) -> dict[str, Any]:
    """Build the arguments of a call. Leave out defaults that third-party stores may not support."""
    arguments = structs.asdict(request)
    if request.queue == DEFAULT_QUEUE:
        del arguments["queue"]
    for name in ("priority", "not_before", "idempotency_key"):
        if not arguments[name]:
            del arguments[name]
    return arguments


@rollouts.post(
    "/queues/rollouts/dequeue",
    "worker",
    "Claim rollouts",
    body=wire.DequeueRollouts,
    body_optional=True,
    answer=list[AttemptedRollout],
    ends_with_caller=True,
    once=True,
)
async def dequeue_rollouts(call: Call) -> Any:
    return await _claim(call, call.body or wire.DequeueRollouts(), get_key_argument(call))


@rollouts.post(
    "/queues/rollouts/dequeue/bulk",
    "worker",
    "Claim rollouts for many callers",
    body=wire.DequeueCalls,
    answer=list[list[AttemptedRollout]],
)
async def dequeue_for_many(call: Call) -> Any:
    """Claim for many callers in one request. Each claim has its own key, so all may be repeated."""
    claims: list[wire.DequeueCall] = call.body.claims
    return await gather(_claim(call, claim, {"idempotency_key": claim.idempotency_key}) for claim in claims)


async def _claim(call: Call, wanted: wire.DequeueRollouts, key: dict[str, str]) -> list[AttemptedRollout]:
    if wanted.limit <= 0:
        return []
    arguments: dict[str, Any] = {"worker_id": wanted.worker_id, **key}
    if wanted.queue != DEFAULT_QUEUE:
        arguments["queue"] = wanted.queue
    if wanted.limit == 1:
        rollout = await call.store.dequeue_rollout(**arguments)
        claimed = [] if rollout is None else [rollout]
    else:
        claimed = list(await call.store.dequeue_many_rollouts(limit=wanted.limit, **arguments))
    call.app.metrics.count_claim(len(claimed))
    return claimed


@rollouts.get(
    "/rollouts",
    "read",
    "Search rollouts",
    query=wire.RolloutSearch,
    answer=QueryPage[Any],
    errors=(BadQuery,),
)
@rollouts.post(
    "/rollouts/search",
    "read",
    "Search rollouts",
    body=wire.RolloutSearch,
    answer=QueryPage[Any],
    errors=(BadQuery,),
)
async def query_rollouts(call: Call) -> Any:
    return await listed(protocol.ROLLOUTS, call.store, call.body or call.query)


@rollouts.get("/rollouts/{rollout_id}", "read", "A rollout, or null", answer=Rollout | None)
async def get_rollout(call: Call) -> Any:
    return await call.store.get_rollout_by_id(call.path["rollout_id"])


@rollouts.post(
    "/rollouts/{rollout_id}",
    "write",
    "Change a rollout",
    body=wire.UpdateRollout,
    answer=Rollout,
    errors=(NotFound,),
    once=True,
)
async def update_rollout(call: Call) -> Any:
    changes = set_fields(call.body, mandatory=("status", "config"))
    return await call.store.update_rollout(call.path["rollout_id"], **changes)


@rollouts.post(
    "/waits/rollouts",
    "read",
    "Wait until rollouts have ended",
    body=wire.WaitForRollouts,
    answer=list[Rollout],
    ends_with_caller=True,
)
async def wait_for_rollouts(call: Call) -> Any:
    wanted: wire.WaitForRollouts = call.body
    timeout = wire.MAX_WAIT if wanted.timeout is None else min(wanted.timeout, wire.MAX_WAIT)
    return await call.store.wait_for_rollouts(rollout_ids=wanted.rollout_ids, timeout=timeout)


# --- attempts ---------------------------------------------------------------------------------------------


attempts = LightningResource()


@attempts.post(
    "/rollouts/{rollout_id}/attempts",
    "worker",
    "Begin another attempt",
    body=wire.StartAttempt,
    body_optional=True,
    answer=AttemptedRollout,
    status=201,
    errors=(NotFound,),
    once=True,
)
async def start_attempt(call: Call) -> Any:
    worker_id = call.body.worker_id if call.body else None
    return await call.store.start_attempt(
        call.path["rollout_id"], worker_id=worker_id, **get_key_argument(call)
    )


@attempts.get(
    "/rollouts/{rollout_id}/attempts",
    "read",
    "List a rollout's attempts",
    query=wire.AttemptSearch,
    answer=QueryPage[Attempt],
    errors=(BadQuery,),
)
@attempts.post(
    "/rollouts/{rollout_id}/attempts/search",
    "read",
    "List a rollout's attempts",
    body=wire.AttemptSearch,
    answer=QueryPage[Attempt],
    errors=(BadQuery,),
)
async def query_attempts(call: Call) -> Any:
    search = call.body or call.query
    return await listed(protocol.ATTEMPTS, call.store, search, rollout_id=call.path["rollout_id"])


@attempts.get(
    "/rollouts/{rollout_id}/attempts/latest",
    "read",
    "A rollout's latest attempt, or null",
    answer=Attempt | None,
)
async def get_latest_attempt(call: Call) -> Any:
    return await call.store.get_latest_attempt(call.path["rollout_id"])


@attempts.post(
    "/rollouts/{rollout_id}/attempts/{attempt_id}",
    "worker",
    "Change an attempt; its id may be latest",
    body=wire.UpdateAttempt,
    answer=Attempt,
    errors=(NotFound,),
)
async def update_attempt(call: Call) -> Any:
    changes = set_fields(call.body, mandatory=wire.UpdateAttempt.__struct_fields__)
    return await call.store.update_attempt(call.path["rollout_id"], call.path["attempt_id"], **changes)


@attempts.post(
    "/attempts/bulk",
    "worker",
    "Change many attempts",
    body=wire.Reports,
    answer=list[Attempt],
    errors=(NotFound,),
)
async def update_many_attempts(call: Call) -> Any:
    """Update attempts for many callers whose reports were merged."""
    mandatory = wire.UpdateAttempt.__struct_fields__
    changes = [set_fields(report, mandatory=mandatory) for report in call.body.reports]
    return await gather(call.store.update_attempt(**change) for change in changes)
