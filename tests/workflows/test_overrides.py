"""The switch of a workflow: no row means that it is enabled, and deleting the row reverts it."""

from __future__ import annotations

import pytest
from tests.workflows.approval_support import ApprovalWorld

from perdure.access.model import Caller
from perdure.kernel.errors import InvalidInput, NotFound


async def test_a_workflow_is_enabled_until_it_is_switched_off(approvals: ApprovalWorld) -> None:
    overrides = approvals.overrides.acting_as(Caller.trusted("ann", approvals.namespace))
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


async def test_overrides_are_listed_by_name_in_pages(approvals: ApprovalWorld) -> None:
    for name in ("c", "a", "b"):
        await approvals.overrides.set_enabled(name, enabled=False)
    first = await approvals.overrides.list(limit=2)
    assert [each.name for each in first] == ["a", "b"]
    assert [each.name for each in await approvals.overrides.list(after="b")] == ["c"]


@pytest.mark.parametrize("name", ["", " ", "x" * 200, "a\0b"])
async def test_a_name_that_no_workflow_can_have_is_refused(approvals: ApprovalWorld, name: str) -> None:
    with pytest.raises(InvalidInput):
        await approvals.overrides.set_enabled(name, enabled=False)
