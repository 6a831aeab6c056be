"""The ends of runs for others: they go into the outbox while somebody follows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perdure.kernel.storage.port import Tx
from perdure.outbox.operations import NewEffect, put
from perdure.workflows.model import ENDED
from perdure.workflows.rows import WorkflowRunRow

ENDS_CONSUMER: Final = "workflow-ends"
ENDS_CHANNEL: Final = "workflow_ends"
"""Followed by processes that want the ends; without a follower the end of a run costs nothing more."""


async def tell_ends(tx: Tx, runs: Sequence[WorkflowRunRow]) -> None:
    """Put those of the runs into the outbox that this transaction has ended."""
    if tx.wants(ENDS_CHANNEL):
        ended = [run for run in runs if run.status in ENDED and run.status != run.was_status]
        await put(tx, [NewEffect(ENDS_CONSUMER, run.id, "{}") for run in ended])
