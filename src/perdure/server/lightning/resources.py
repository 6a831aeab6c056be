"""The Agent-lightning protocol: resources."""

from __future__ import annotations

from typing import Any

from perdure.client import lightning_wire as wire
from perdure.kernel.errors import BadBody, BadQuery, InvalidInput
from perdure.rollouts.resources import NamedResources, ResourcesUpdate, validate_resources
from perdure.server.http.routes import Call
from perdure.server.lightning import listing
from perdure.server.lightning.listing import QueryPage, listed
from perdure.server.lightning.protocol import LightningResource, get_key_argument

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
    return await listed(listing.RESOURCES, call.store, call.query)


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
