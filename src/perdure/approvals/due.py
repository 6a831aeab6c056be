"""Lets approvals expire and reminds of them when their time has come."""

from __future__ import annotations

import logging

from perdure.approvals import operations
from perdure.approvals.model import Resumer
from perdure.approvals.operations import DUE_ROWS
from perdure.kernel.errors import StorageError
from perdure.kernel.storage.port import Storage

logger = logging.getLogger(__name__)


class DueApprovals:
    """Settles the approvals of every namespace that are due, each in a transaction of its own.

    Any number of processes may do so at once: each approval expires once, and each reminder is sent once.
    """

    def __init__(self, storage: Storage, resumer: Resumer) -> None:
        self._storage = storage
        self._resumer = resumer

    async def settle(self) -> float | None:
        """Settle what is due; returns the seconds until something is due again, or None."""
        for ns in await self._storage.read(operations.due_namespaces):
            while await self._settle_some(ns) == DUE_ROWS:
                pass
        return await self._storage.read(operations.until_next)

    async def _settle_some(self, ns: int) -> int:
        """Settle some of a namespace; returns how many moved."""
        moved = 0
        for approval_id in await self._storage.read(operations.due, ns=ns):
            try:
                await self._storage.run(operations.settle_due, approval_id, self._resumer, ns=ns)
                moved += 1
            except StorageError:
                raise
            except Exception:
                # It is tried again later, and must not hold up the others.
                logger.exception("approval %s is due and cannot be settled", approval_id)
                await self._storage.run(operations.postpone, approval_id, ns=ns)
        return moved
