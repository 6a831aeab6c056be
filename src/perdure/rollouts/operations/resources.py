"""Resources: named bundles with versions. New rollouts refer to the newest."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel import changes, ids
from perdure.kernel.storage.port import Tx
from perdure.rollouts import sql
from perdure.rollouts.operations.conditions import NOT_OVERDUE
from perdure.rollouts.rows import ResourcesRow, ResourcesVersionRow
from perdure.service.audit import audit
from perdure.service.conditions import requires
from perdure.service.idempotency import keyed_as


@keyed_as("add_resources", ResourcesRow)
async def add_resources(tx: Tx, bodies: Sequence[str]) -> list[ResourcesRow]:
    """Store new bundles as version 1; the last one is the latest."""
    rows = [
        await _insert(tx, ids.resources_id(tx.ids), body, tx.now + ordinal)
        for ordinal, body in enumerate(bodies)
    ]
    await audit(tx, "add_resources", [row.id for row in rows])
    return rows


@requires(NOT_OVERDUE)
async def update_resources(tx: Tx, resources_id: str, body: str) -> ResourcesRow:
    """Store the next version of a bundle, which becomes the latest; an unknown id is created."""
    row = await _replace(tx, resources_id, body)
    await audit(tx, "update_resources", [resources_id])
    return row


async def _replace(tx: Tx, resources_id: str, body: str) -> ResourcesRow:
    current = await tx.one(sql.LOCK_RESOURCES, id=resources_id)
    if current is None:
        return await _insert(tx, resources_id, body, tx.now)
    version = current.version + 1
    await tx.execute(sql.SAVE_RESOURCES, id=resources_id, version=version, time=tx.now, body=body)
    await tx.write(sql.ADD_VERSIONS.of([ResourcesVersionRow(resources_id, version, tx.now, body)]))
    changes.tell(tx, "resources", [(resources_id, "updated")])
    return ResourcesRow(resources_id, version, current.create_time, tx.now, body)


async def _insert(tx: Tx, resources_id: str, body: str, time: int) -> ResourcesRow:
    row = ResourcesRow(resources_id, 1, time, time, body)
    version = ResourcesVersionRow(resources_id, 1, time, body)
    await tx.write(sql.ADD_RESOURCES.of([row]), sql.ADD_VERSIONS.of([version]))
    changes.tell(tx, "resources", [(resources_id, "added")])
    return row


async def get_resources(tx: Tx, resources_id: str) -> ResourcesRow | None:
    return await tx.one(sql.GET_RESOURCES, id=resources_id)


async def latest_resources(tx: Tx) -> ResourcesRow | None:
    return await tx.one(sql.LATEST_RESOURCES)
