"""Overrides of the workflows of one namespace."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from perdure.kernel.checks import Limit, check_flag, check_name, check_page, check_text
from perdure.kernel.errors import NotFound
from perdure.service.base import Service
from perdure.service.endpoints import DELETE, GET, PUT, call
from perdure.workflows.operations import overrides
from perdure.workflows.override_model import WorkflowOverride, row_to_override

MAX_NAME = 128
WorkflowName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]


class WorkflowOverrides(Service):
    """The switches of workflows. A workflow without an override is enabled."""

    @call(GET("/workflow-overrides"), scope="read")
    async def list(self, *, limit: Limit = 100, after: str = "") -> list[WorkflowOverride]:
        """List overrides in the order of their names; `after` is the last name of the previous page."""
        check_page(limit)
        rows = await self.read(overrides.get_all, limit, check_text(after, "after", max_length=MAX_NAME))
        return [row_to_override(row) for row in rows]

    @call(GET("/workflow-overrides/{name}"), scope="read", errors=(NotFound,))
    async def get(self, name: WorkflowName) -> WorkflowOverride:
        """Get the override of a workflow."""
        return row_to_override(await self.read(overrides.get, _checked(name)))

    @call(PUT("/workflow-overrides/{name}"), scope="write", repeatable=True)
    async def set_enabled(self, name: WorkflowName, *, enabled: bool) -> WorkflowOverride:
        """Switch a workflow on or off. A disabled workflow refuses new dispatches; its live runs continue."""
        row = await self.write(overrides.set_enabled, _checked(name), check_flag(enabled, "enabled"))
        return row_to_override(row)

    @call(DELETE("/workflow-overrides/{name}"), scope="write", errors=(NotFound,))
    async def clear(self, name: WorkflowName) -> None:
        """Delete the override of a workflow, so that it is enabled again."""
        await self.write(overrides.clear, _checked(name))

    async def is_enabled(self, name: str) -> bool:
        """Return whether a workflow may be dispatched."""
        return await self.read(overrides.is_enabled, _checked(name))


def _checked(name: object) -> str:
    return check_name(name, "name", max_length=MAX_NAME)
