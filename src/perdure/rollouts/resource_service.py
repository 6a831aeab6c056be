"""Service of resources: named bundles with versions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from perdure.kernel.checks import Id, Limit, Offset, check_text
from perdure.kernel.errors import Conflict, NotFound
from perdure.kernel.storage.filters import given
from perdure.rollouts import arguments, encoding
from perdure.rollouts.operations import queries
from perdure.rollouts.operations import resources as operations
from perdure.rollouts.operations.queries import Query
from perdure.rollouts.records import PaginatedResult as Pages
from perdure.rollouts.resources import ResourcesUpdate
from perdure.rollouts.rows import ResourcesRow
from perdure.rollouts.watchdog import WatchedService
from perdure.service.endpoints import GET, POST, PUT, WholeBody, call

_LARGEST_VERSION = 2**63 - 1
Bundle = Annotated[dict[str, Any], WholeBody]


class Resources(WatchedService):
    """The resources of one namespace."""

    @call(GET("/resources"), scope="read")
    async def search(
        self,
        *,
        resources_id: str | None = None,
        contains: str | None = None,
        sort_by: str | None = None,
        sort_order: Literal["asc", "desc"] = "asc",
        limit: Limit = 100,
        offset: Offset = 0,
        cursor: str | None = None,
    ) -> Pages[ResourcesUpdate]:
        """List resources in the order in which they were added; `contains` is a part of the id."""
        conditions = given(("resources_id", "exact", resources_id), ("resources_id", "contains", contains))
        query = arguments.query(
            conditions, "and", sort_by, sort_order, limit, offset, cursor=cursor, sorting=queries.RESOURCES
        )
        return await self.query(query)

    async def query(self, query: Query) -> Pages[ResourcesUpdate]:
        """Return a page of resources."""
        page = await self.read(queries.query_resources, query)
        return arguments.result(page, encoding.resources_from, query)

    @call(POST("/resources"), scope="write", status=201, errors=(Conflict,))
    async def add(self, resources: Bundle, *, idempotency_key: str | None = None) -> ResourcesUpdate:
        """Store new resources as version 1."""
        body, key = encoding.encode_resources(resources), encoding.check_key(idempotency_key)
        row: ResourcesRow = await self.write_once(key, operations.add_resources, body)
        return encoding.resources_from(row)

    @call(GET("/resources/latest"), scope="read", errors=(NotFound,))
    async def get_latest(self) -> ResourcesUpdate:
        """Get the resources that were written last."""
        resources = await self.find_latest()
        if resources is None:
            raise NotFound("There are no resources yet")
        return resources

    async def find_latest(self) -> ResourcesUpdate | None:
        """Return the resources that were added or updated last, or None."""
        row = await self.read(operations.latest_resources)
        return None if row is None else encoding.resources_from(row)

    @call(GET("/resources/{resources_id}"), scope="read", errors=(NotFound,))
    async def get(self, resources_id: Id) -> ResourcesUpdate:
        """Get the newest version of resources."""
        resources = await self.find(resources_id)
        if resources is None:
            raise NotFound(f"Resources {resources_id} not found")
        return resources

    async def find(self, resources_id: str) -> ResourcesUpdate | None:
        """Return the newest version of resources, or None."""
        row = await self.read(operations.get_resources, check_text(resources_id, "resources_id"))
        return None if row is None else encoding.resources_from(row)

    @call(PUT("/resources/{resources_id}"), scope="write", repeatable=False)
    async def update(self, resources_id: Id, resources: Bundle) -> ResourcesUpdate:
        """Store the next version of resources; the first is version 1."""
        body = encoding.encode_resources(resources)
        check_text(resources_id, "resources_id")
        return encoding.resources_from(await self.write(operations.update_resources, resources_id, body))

    @call(GET("/resources/{resources_id}/versions"), scope="read", errors=(NotFound,))
    async def versions(
        self, resources_id: Id, *, limit: Limit = 100, offset: Offset = 0, cursor: str | None = None
    ) -> Pages[ResourcesUpdate]:
        """List the versions of resources, the newest first."""
        query = arguments.query(
            (), "and", None, "asc", limit, offset, cursor=cursor, sorting=queries.VERSIONS
        )
        await self.get(resources_id)
        page = await self.read(queries.query_versions, resources_id, query)
        return arguments.result(page, encoding.resources_from, query)

    @call(
        GET("/resources/{resources_id}/versions/{version}"),
        scope="read",
        errors=(NotFound,),
    )
    async def get_version(self, resources_id: Id, version: int) -> ResourcesUpdate:
        """Get one version of resources."""
        check_text(resources_id, "resources_id")
        number = _parse_version(version)
        row = None if number is None else await self.read(queries.get_version, resources_id, number)
        if row is None:
            raise NotFound(f"Resources {resources_id} have no version {version}")
        return encoding.resources_from(row)


def _parse_version(version: object) -> int | None:
    """Parse a version number; over HTTP it is a part of the path. Return None if it is not valid."""
    if isinstance(version, str):
        version = int(version) if version.isascii() and version.isdecimal() and len(version) < 20 else None
    valid = isinstance(version, int) and not isinstance(version, bool) and 0 < version <= _LARGEST_VERSION
    return cast(int, version) if valid else None
