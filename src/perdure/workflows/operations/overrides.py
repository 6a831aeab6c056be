"""Operations on overrides: the switch that refuses new dispatches of a workflow."""

from __future__ import annotations

from perdure.kernel import changes
from perdure.kernel.errors import NotFound
from perdure.kernel.storage.port import Tx
from perdure.service.audit import audit
from perdure.service.callers import format_actor
from perdure.workflows import override_sql as sql
from perdure.workflows.override_model import WorkflowOverrideRow

KIND = "workflow_override"


async def is_enabled(tx: Tx, name: str) -> bool:
    """Return whether a workflow may be dispatched; without an override it may."""
    row = await tx.one(sql.GET, names=[name])
    return row is None or bool(row.enabled)


async def disabled(tx: Tx) -> set[str]:
    """Return the names of all workflows that are switched off."""
    return set(await tx.all(sql.DISABLED, enabled=0))


async def get(tx: Tx, name: str) -> WorkflowOverrideRow:
    """Return the override of a workflow. Raise NotFound if it has none."""
    row = await tx.one(sql.GET, names=[name])
    if row is None:
        raise not_found(name)
    return row


async def get_all(tx: Tx, limit: int, after: str) -> list[WorkflowOverrideRow]:
    """List a page of overrides, in the order of their names."""
    return await tx.all(sql.LIST, limit=limit, after=after)


async def set_enabled(tx: Tx, name: str, enabled: bool) -> WorkflowOverrideRow:
    """Switch a workflow on or off."""
    row = WorkflowOverrideRow(name, int(enabled), tx.now, format_actor(tx.actor))
    await tx.write(sql.SET.of([row]))
    changes.tell(tx, KIND, [(name, "enabled" if enabled else "disabled")])
    await audit(tx, "set_workflow_override", [name])
    return row


async def clear(tx: Tx, name: str) -> None:
    """Delete the override of a workflow, so that it is enabled again."""
    if not await tx.execute(sql.DROP, name=name):
        raise not_found(name)
    changes.tell(tx, KIND, [(name, "cleared")])
    await audit(tx, "clear_workflow_override", [name])


def not_found(name: str) -> NotFound:
    return NotFound(f"Workflow {name} has no override")
