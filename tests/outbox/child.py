"""A process that delivers webhooks and is killed before it can record the delivery."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from tests.outbox.support import OutboxWithDeliveries, open_storage

from perdure.kernel.config import Settings
from perdure.outbox.model import DeliveryOutcome, DeliveryPolicy
from perdure.outbox.operations import ClaimedEffect
from perdure.outbox.webhooks.sender import WebhookSender


class Doomed(OutboxWithDeliveries):
    """Exits after the delivery, before its record."""

    async def settle(
        self, claimed: ClaimedEffect, outcome: DeliveryOutcome, policy: DeliveryPolicy, lease: float
    ) -> None:
        assert outcome.event == "delivered", outcome
        os.kill(os.getpid(), signal.SIGKILL)


async def main(url: str) -> None:
    storage = open_storage(url)
    outbox = Doomed(storage, [WebhookSender(Settings(webhook_allow_private=True))])
    await outbox.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
