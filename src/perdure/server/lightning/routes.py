"""All routes of the Agent-lightning protocol under /v1/agl, and those of resources, workers, the store."""

from __future__ import annotations

from typing import Any

from perdure.client import lightning_wire as wire
from perdure.kernel.errors import BadBody, BadQuery, InvalidInput
from perdure.kernel.pages import QueryPage
from perdure.rollouts.records import Worker
from perdure.rollouts.resources import NamedResources, ResourcesUpdate, validate_resources
from perdure.server.http.routes import Call, Route
from perdure.server.lightning import protocol
from perdure.server.lightning.protocol import LightningResource, get_key_argument, listed, set_fields
from perdure.server.lightning.rollouts import attempts, rollouts
from perdure.server.lightning.spans import spans

# --- resources --------------------------------------------------------------------------------------------


resources = LightningResource()


@resources.get(
    "/resources",
    "read",
    "Search resources",
    query=wire.ResourcesSearch,
    answer=QueryPage[ResourcesUpdate],
    errors=(BadQuery,),
)
async def query_resources(call: Call) -> Any:
    return await listed(protocol.RESOURCES, call.store, call.query)


@resources.get(
    "/resources/latest",
    "read",
    "The last written resources, or null",
    answer=ResourcesUpdate | None,
)
async def get_latest_resources(call: Call) -> Any:
    return await call.store.get_latest_resources()


@resources.get("/resources/{resources_id}", "read", "Resources, or null", answer=ResourcesUpdate | None)
async def get_resources(call: Call) -> Any:
    return await call.store.get_resources_by_id(call.path["resources_id"])


@resources.post(
    "/resources",
    "write",
    "Store new resources",
    body=wire.NamedResourcesBody,
    answer=ResourcesUpdate,
    status=201,
    once=True,
)
async def add_resources(call: Call) -> Any:
    return await call.store.add_resources(_resources(call.body), **get_key_argument(call))


@resources.post(
    "/resources/{resources_id}",
    "write",
    "Store the next version of resources",
    body=wire.NamedResourcesBody,
    answer=ResourcesUpdate,
    once=True,
)
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


# --- workers ----------------------------------------------------------------------------------------------


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
    return await listed(protocol.WORKERS, call.store, call.body or call.query)


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


# --- the store --------------------------------------------------------------------------------------------


store = LightningResource()


@store.get("/health", None, "Whether the server answers", answer=wire.LightningHealth)
async def health(call: Call) -> wire.LightningHealth:
    return wire.LightningHealth()


@store.get("/statistics", "read", "How much the store holds", answer=dict[str, Any])
async def statistics(call: Call) -> Any:
    return await call.store.statistics()


@store.get("/capabilities", "read", "What the store can do", answer=dict[str, bool])
async def capabilities(call: Call) -> Any:
    return call.store.capabilities


# --- all routes -------------------------------------------------------------------------------------------


_RESOURCES = (store, rollouts, attempts, resources, spans, workers)

ROUTES: tuple[Route, ...] = tuple(route for resource in _RESOURCES for route in resource.routes)
