"""Operations on namespaces."""

from __future__ import annotations

from perdure.access.tables import ALL, FIND, NAMESPACES, NEXT
from perdure.kernel.storage.port import Tx


async def ensure_namespace(tx: Tx, name: str) -> int:
    """The number of a namespace, which is made if it does not exist."""
    row = await tx.one(FIND, name=name)
    if row is not None:
        return int(row[0])
    row = await tx.one(NEXT)
    number = int(row[0]) if row else 1
    await tx.insert_many(NAMESPACES, [(number, name, tx.now)])
    return number


async def list_namespaces(tx: Tx) -> dict[int, str]:
    """The names of all namespaces by their number."""
    return {int(number): str(name) for number, name in await tx.all(ALL)}
