"""The Agent-lightning protocol: workers."""

from __future__ import annotations

from typing import Any

from perdure.client import lightning_wire as wire
from perdure.kernel.errors import BadQuery
from perdure.rollouts.records import (
    Worker,
)
from perdure.server.http.routes import Call
from perdure.server.lightning import listing
from perdure.server.lightning.listing import QueryPage, listed
from perdure.server.lightning.protocol import LightningResource, set_fields

workers = LightningResource()


@workers.get(
    "/workers",
    "read",
    "Search workers",
    query=wire.WorkerSearch,
    answer=QueryPage[Worker],
    errors=(BadQuery,),
)
@workers.post(
    "/workers/search",
    "read",
    "Search workers",
    body=wire.WorkerSearch,
    answer=QueryPage[Worker],
    errors=(BadQuery,),
)
async def query_workers(call: Call) -> Any:
    return await listed(listing.WORKERS, call.store, call.body or call.query)


@workers.get("/workers/{worker_id}", "read", "A worker, or null", answer=Worker | None)
async def get_worker(call: Call) -> Any:
    return await call.store.get_worker_by_id(call.path["worker_id"])


@workers.post(
    "/workers/{worker_id}",
    "worker",
    "Record a worker's heartbeat",
    body=wire.UpdateWorker,
    body_optional=True,
    answer=Worker,
)
async def update_worker(call: Call) -> Any:
    changes = set_fields(call.body, mandatory=("heartbeat_stats",)) if call.body else {}
    return await call.store.update_worker(call.path["worker_id"], **changes)
