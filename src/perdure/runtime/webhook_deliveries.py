"""The deliveries of a server: what runs along with it and empties the outbox."""

from __future__ import annotations

from perdure.outbox.service import Outbox
from perdure.outbox.webhooks.sender import WebhookSender
from perdure.runtime.app import App


class Deliveries:
    """Sends the webhooks of an app's database from `start` to `stop`."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._outbox: Outbox | None = None

    async def start(self) -> None:
        threads = self._app.threads
        if threads is not None:
            self._outbox = self._app.outbox = Outbox(threads.storage, [WebhookSender(self._app.settings)])
            self._outbox.start()

    async def stop(self) -> None:
        if self._outbox is not None:
            await self._outbox.stop()
