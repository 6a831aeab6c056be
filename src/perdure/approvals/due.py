"""Expire approvals and send reminders when they are due."""

from __future__ import annotations

import logging

from perdure.approvals import operations
from perdure.approvals.model import Resumer
from perdure.approvals.operations import DUE_ROWS
from perdure.kernel.errors import StorageError
from perdure.kernel.storage.port import Storage

logger = logging.getLogger(__name__)


class DueApprovals:
    """Handler of due approvals in every namespace, each in a transaction of its own.

    Any number of processes may run it at once: each approval expires once, and each reminder is sent once.
    """

    def __init__(self, storage: Storage, resumer: Resumer) -> None:
        self._storage = storage
        self._resumer = resumer

    async def settle(self) -> float | None:
        """Handle what is due. Return the seconds until the next due time, or None."""
        for ns in await self._storage.read(operations.due_namespaces):
            while await self._settle_some(ns) == DUE_ROWS:
                pass
        return await self._storage.read(operations.until_next)

    async def _settle_some(self, ns: int) -> int:
        """Handle some due approvals of a namespace. Return their number."""
        moved = 0
        for approval_id in await self._storage.read(operations.due, ns=ns):
            try:
                await self._storage.run(operations.settle_due, approval_id, self._resumer, ns=ns)
                moved += 1
            except StorageError:
                raise
            except Exception:
                # Retried later, so that it does not delay the other approvals.
                logger.exception("the due work of approval %s failed", approval_id)
                await self._storage.run(operations.postpone, approval_id, ns=ns)
        return moved
