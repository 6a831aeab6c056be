"""Namespaces: create, find and list them."""

from __future__ import annotations

from perdure.kernel.storage.port import Tx
from perdure.service import sql
from perdure.service.rows import NamespaceRow


async def ensure_namespace(tx: Tx, name: str) -> int:
    """The number of a namespace, which is created if it does not exist."""
    known = await tx.one(sql.FIND_NAMESPACE, name=name)
    if known is not None:
        return known
    number = await tx.one(sql.NEXT_NAMESPACE) or 1
    await tx.write(sql.ADD_NAMESPACES.of([NamespaceRow(id=number, name=name, create_time=tx.now)]))
    return number


async def find_namespace(tx: Tx, name: str) -> int | None:
    """The number of a namespace, if it exists."""
    return await tx.one(sql.FIND_NAMESPACE, name=name)


async def list_namespaces(tx: Tx) -> dict[int, str]:
    """The names of all namespaces by their number."""
    return {row.id: row.name for row in await tx.all(sql.LIST_NAMESPACES)}
