"""Publish the ends of runs through the outbox while a process subscribes to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perdure.kernel.storage.port import Tx
from perdure.outbox.operations import NewEffect, put
from perdure.workflows.model import ENDED
from perdure.workflows.rows import WorkflowRunRow

ENDS_CONSUMER: Final = "workflow-ends"
ENDS_CHANNEL: Final = "workflow_ends"
"""Channel of processes that want the ends. Without a subscriber, an end writes nothing to the outbox."""


async def tell_ends(tx: Tx, runs: Sequence[WorkflowRunRow]) -> None:
    """Put the runs that this transaction has ended into the outbox."""
    if tx.wants(ENDS_CHANNEL):
        ended = [run for run in runs if run.status in ENDED and run.status != run.was_status]
        await put(tx, [NewEffect(ENDS_CONSUMER, run.id, "{}") for run in ended])
