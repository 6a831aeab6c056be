"""perdure inside a program: a database, and a worker for the agents that the program brings along."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

import msgspec

from perdure.assistants.service import Assistants
from perdure.items.service import Items
from perdure.kernel.config import Settings, load_settings
from perdure.kernel.errors import InvalidInput, StorageClosed
from perdure.kernel.validation import explain
from perdure.outbox.model import Consumer
from perdure.outbox.service import Outbox
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runtime.app import App
from perdure.runtime.embedded_worker import worker_of
from perdure.runtime.stores import open_configured
from perdure.schedules.service import Schedules
from perdure.streams.model import Burst
from perdure.threads.records import RunEnd, RunRequest
from perdure.threads.service import ThreadService
from perdure.worker.registry import Agents
from perdure.worker.worker import Worker


class Perdure:
    """Threads and runs on a database that this process opens, to be used with `async with`.

    With `agents` a worker in this process executes their runs. Without a URL the database is the one that the
    environment and `perdure.toml` name. `options` are settings, such as `job_timeout`. `consumers` deliver
    what the outbox holds; a server has one for webhooks.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        agents: Agents | None = None,
        consumers: Sequence[Consumer] = (),
        **options: Any,
    ) -> None:
        self.settings: Settings = load_settings({**options, **({} if url is None else {"database_url": url})})
        self._agents = agents
        self._consumers = consumers
        self._store: DatabaseLightningStore | None = None
        self._app: App | None = None
        self._worker: Worker | None = None

    async def __aenter__(self) -> Self:
        store = self._store = open_configured(self.settings)
        app = self._app = App(store, self.settings)
        try:
            if self._consumers:
                app.outbox = Outbox(store.storage, self._consumers)
                app.outbox.start()
            if self._agents is not None:
                self._worker = worker_of(app, self._agents)
                await self._worker.start()
            await app.services.schedule_timer.start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._app is not None:
            await self._app.services.schedule_timer.stop()
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop()
        app, self._app = self._app, None
        if app is not None and app.outbox is not None:
            await app.outbox.stop()
        if self._store is not None:
            await self._store.close()

    @property
    def _opened(self) -> App:
        if self._app is None:
            raise StorageClosed("it is not open: use it with `async with`")
        return self._app

    @property
    def store(self) -> DatabaseLightningStore:
        """The same database as a LightningStore: rollouts, attempts, spans, resources."""
        if self._store is None:
            raise StorageClosed("it is not open: use it with `async with`")
        return self._store

    @property
    def threads(self) -> ThreadService:
        """Threads, runs, states and streams."""
        threads = self._opened.threads
        assert threads is not None
        return threads

    @property
    def items(self) -> Items:
        """What agents remember beyond a thread, by namespace and key."""
        items = self._opened.items
        assert items is not None
        return items

    @property
    def schedules(self) -> Schedules:
        """What is started at its times; while this is open, it is."""
        schedules = self._opened.schedules
        assert schedules is not None
        return schedules

    @property
    def assistants(self) -> Assistants:
        return Assistants(self.threads.storage, self.threads.namespace)

    async def run(self, assistant: str, input: Any = None, **request: Any) -> RunEnd:
        """Run an assistant and wait for its end; what else a run can have is said as in `RunRequest`."""
        run = await self.threads.create_run(_request(assistant, input, request))
        return await self.threads.join_run(run.run_id)

    async def stream(self, assistant: str, input: Any = None, **request: Any) -> AsyncIterator[Burst]:
        """Run an assistant and give its events as they come, in bursts."""
        run = await self.threads.create_run(_request(assistant, input, request))
        async for burst in self.threads.stream_run(run.run_id):
            yield burst


def _request(assistant: str, input: Any, more: dict[str, Any]) -> RunRequest:
    try:
        return msgspec.convert({"assistant_id": assistant, "input": input, **more}, RunRequest)
    except msgspec.ValidationError as error:
        raise InvalidInput(explain(error, RunRequest, "the run request")) from None
