"""The switch of a workflow: no row means enabled, and deleting the row reverts a change."""

from __future__ import annotations

import pytest
from tests.workflows.support import WorkflowWorld

from perdure.kernel.errors import InvalidInput, NotFound
from perdure.service.callers import Caller


async def test_a_workflow_is_enabled_until_it_is_switched_off(world: WorkflowWorld) -> None:
    overrides = world.overrides.acting_as(Caller.trusted("ann", world.namespace))
    assert await overrides.is_enabled("build")
    with pytest.raises(NotFound):
        await overrides.get("build")
    switched = await overrides.set_enabled("build", enabled=False)
    assert (switched.name, switched.enabled, switched.updated_by) == ("build", False, "ann")
    assert not await overrides.is_enabled("build")
    assert await overrides.get("build") == switched
    assert (await overrides.set_enabled("build", enabled=True)).enabled
    assert await overrides.is_enabled("build")
    await overrides.clear("build")
    assert await overrides.list() == []
    with pytest.raises(NotFound):
        await overrides.clear("build")


async def test_overrides_are_listed_by_name_in_pages(world: WorkflowWorld) -> None:
    for name in ("c", "a", "b"):
        await world.overrides.set_enabled(name, enabled=False)
    first = await world.overrides.list(limit=2)
    assert [each.name for each in first] == ["a", "b"]
    assert [each.name for each in await world.overrides.list(after="b")] == ["c"]


@pytest.mark.parametrize("name", ["", " ", "x" * 200, "a\0b"])
async def test_a_name_that_no_workflow_can_have_is_refused(world: WorkflowWorld, name: str) -> None:
    with pytest.raises(InvalidInput):
        await world.overrides.set_enabled(name, enabled=False)
