"""The audit: one entry for each transaction, written in that transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from perdure.kernel.clock import to_seconds
from perdure.kernel.record import Record
from perdure.kernel.storage.filters import given, where
from perdure.kernel.storage.port import Tx
from perdure.service import sql
from perdure.service.rows import AuditRow, NewEntry
from perdure.service.tables import TRIM_ROWS

LAST_ID = 2**63 - 1
NAMED_OBJECTS = 20
"""Maximum number of ids that an audit entry lists; `count` counts all of them."""


class AuditEntry(Record, kw_only=True):
    """One transaction of one actor: the action and the changed objects."""

    id: int
    """Position in the audit: a later entry has a larger id."""
    time: float
    namespace: str | None
    """None if the change concerns the whole database, such as a token."""
    actor: str
    action: str
    object: str
    """Id of the changed object; for a batch, the first ids, separated by commas."""
    count: int
    """Number of changes that the transaction made."""


# Not a Part, because the next page begins at the id `before` instead of a cursor.
class AuditPage(msgspec.Struct, kw_only=True):
    """Entries of the audit, newest first. Pass `before` to get the next page; it is null on the last page."""

    items: list[AuditEntry]
    before: int | None


def row_to_audit_entry(row: AuditRow) -> AuditEntry:
    """Convert a row to an audit entry."""
    return AuditEntry(
        id=row.id,
        time=to_seconds(row.id),
        namespace=row.namespace,
        actor=row.actor,
        action=row.action,
        object=row.object,
        count=row.count,
    )


def objects_text(objects: Sequence[str]) -> str:
    """Return the ids that an entry lists: the first distinct ones."""
    return ",".join(list(dict.fromkeys(objects))[:NAMED_OBJECTS])


async def add_entry(tx: Tx, actor: str, action: str, objects: Sequence[str]) -> None:
    """Write an audit entry, as the last write of the transaction.

    The id of an entry is its time. If two transactions have the same time, one takes the next free id.
    """
    entry = NewEntry(tx.now, actor, action, len(objects), objects_text(objects))
    await tx.expect(sql.ADD_ENTRIES.of([entry]), partial(_add_later, tx, entry))


async def _add_later(tx: Tx, entry: NewEntry) -> None:
    """Add an entry whose id is already taken, under the next free id."""
    written = 0
    while not written:
        entry = msgspec.structs.replace(entry, id=entry.id + 1)
        (written,) = await tx.write(sql.ADD_ENTRIES.of([entry]))


async def audit(tx: Tx, action: str, objects: Iterable[str]) -> None:
    """Record that the transaction's actor changed these objects; perdure itself leaves no entry."""
    if tx.actor is not None and (named := list(objects)):
        await add_entry(tx, str(tx.actor), action, named)


async def query_audit(
    tx: Tx, namespace: str | None, actor: str | None, action: str | None, limit: int, before: int | None
) -> list[AuditRow]:
    """Return the newest entries before an id."""
    number = None
    if namespace is not None:
        number = await tx.one(sql.FIND_NAMESPACE, name=namespace)
        if number is None:
            return []
    conditions = given(("namespace", "exact", number), ("actor", "exact", actor), ("action", "exact", action))
    clause = where(sql.AUDIT_FIELDS, conditions, "and")
    page, values = sql.LIST_AUDIT.page(clause, sql.AUDIT_ORDER, limit, 0)
    return await tx.all(page, before=LAST_ID if before is None else before, **values)


async def trim_audit(tx: Tx, age: int) -> int:
    """Delete some entries older than `age` microseconds; return how many."""
    return await tx.execute(sql.TRIM_AUDIT, before=tx.now - age, n=TRIM_ROWS)
