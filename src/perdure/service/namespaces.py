"""Namespaces: create, find and list them."""

from __future__ import annotations

from perdure.kernel.storage.port import Tx
from perdure.service import sql
from perdure.service.rows import NamespaceRow


async def ensure_namespace(tx: Tx, name: str) -> int:
    """Return the number of a namespace; create the namespace if it does not exist."""
    existing = await tx.one(sql.FIND_NAMESPACE, name=name)
    if existing is not None:
        return existing
    number = await tx.one(sql.NEXT_NAMESPACE) or 1
    await tx.write(sql.ADD_NAMESPACES.of([NamespaceRow(id=number, name=name, create_time=tx.now)]))
    return number


async def find_namespace(tx: Tx, name: str) -> int | None:
    """Return the number of a namespace, or None."""
    return await tx.one(sql.FIND_NAMESPACE, name=name)


async def list_namespaces(tx: Tx) -> dict[int, str]:
    """Return the names of all namespaces by number."""
    return {row.id: row.name for row in await tx.all(sql.LIST_NAMESPACES)}
