"""The Agent-lightning protocol: attempts."""

from __future__ import annotations

from typing import Any

from perdure.client import lightning_wire as wire
from perdure.kernel.errors import BadQuery, NotFound
from perdure.rollouts.records import (
    Attempt,
    AttemptedRollout,
)
from perdure.server.http.routes import Call
from perdure.server.lightning import listing
from perdure.server.lightning.listing import QueryPage, listed
from perdure.server.lightning.protocol import LightningResource, gather, get_key_argument, set_fields

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
    return await listed(listing.ATTEMPTS, call.store, search, rollout_id=call.path["rollout_id"])


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
