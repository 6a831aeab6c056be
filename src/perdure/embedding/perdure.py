"""perdure embedded in a program: a database, and a worker for the program's agents."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Self, Unpack

from starlette.types import ASGIApp

from perdure.assistants.service import Assistants
from perdure.diagnostics.model import Why
from perdure.embedding.serving import LOOPBACK, MountableApp, ServedPort
from perdure.items.service import Items
from perdure.jobs.model import JobFunction
from perdure.jobs.service import Jobs
from perdure.kernel.config import Settings, load_settings
from perdure.kernel.errors import StorageClosed
from perdure.kernel.setting_options import SettingOptions
from perdure.memory.service import Memory
from perdure.outbox.model import Consumer
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runtime.app import App
from perdure.runtime.components import add_handlers, build_components, running
from perdure.runtime.services import Services
from perdure.runtime.stores import StoreOptions, open_configured, sqlite_file
from perdure.schedules.conditions import Predicate
from perdure.schedules.service import Schedules
from perdure.sessions.service import Sessions
from perdure.streams.model import Burst, StreamEvent
from perdure.threads import asking
from perdure.threads.asking import RunOptions
from perdure.threads.records import RunEnd
from perdure.threads.service import Threads
from perdure.worker.registry import Agents


class Perdure:
    """Threads and runs on a database that this process opens, for `async with`.

    With `agents`, a worker in this process executes their runs. Without a URL, the environment and
    `perdure.toml` name the database. `options` are settings, such as `job_timeout`. Webhooks are delivered
    while it is open; `consumers` deliver other effects of the outbox. `handlers` are functions that cron
    files and schedules call by name, and `conditions` are predicates that prevent schedules from firing, in
    addition to the agents' own. `perdure.sync` has the same class without `await`.

    `serve` is a port on 127.0.0.1 (0 takes a free one) where this process serves the dashboard and the API
    while it is open, also for the command. `asgi` is the same server for a web app to mount.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        agents: Agents | None = None,
        consumers: Sequence[Consumer] = (),
        handlers: Mapping[str, JobFunction] | None = None,
        conditions: Mapping[str, Predicate] | None = None,
        serve: int | None = None,
        **options: Unpack[SettingOptions],
    ) -> None:
        explicit: dict[str, Any] = dict(options)
        if url is not None:
            explicit["database_url"] = url
        if serve is not None:
            explicit |= {"host": LOOPBACK, "port": serve}
        self.settings: Settings = load_settings(explicit)
        self._serve = serve
        self._mountable = MountableApp(lambda: self._opened)
        self._url: str | None = None
        self._agents = agents
        self._consumers = consumers
        self._handlers = handlers or {}
        self._conditions = conditions or {}
        self._store: DatabaseLightningStore | None = None
        self._app: App | None = None
        self._running: AsyncExitStack | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            port, served = self._bind_port(stack)
            store = self._store = open_configured(self.settings, **served)
            stack.push_async_callback(store.close)
            app = self._app = App(store, self.settings)
            stack.push_async_callback(app.services.finish)
            app.services.deliveries.add(*self._consumers)
            files = self.settings.workflow_dir is not None or self.settings.cron_dir is not None
            components = build_components(app, self._agents, files=files)
            if self._agents is not None:
                add_handlers(app.services, self._agents.handlers, self._agents.conditions)
            add_handlers(app.services, self._handlers, self._conditions)
            components.append(self._mountable)
            if port is not None:
                components.append(port.build_server(app))
            await stack.enter_async_context(running(components))
            self._url = None if port is None else port.url
            self._running = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        running, self._running, self._app, self._url = self._running, None, None, None
        if running is not None:
            await running.aclose()

    def _bind_port(self, stack: AsyncExitStack) -> tuple[ServedPort | None, StoreOptions]:
        """Bind the port of `serve`. The lock of a SQLite file names its URL for other processes."""
        if self._serve is None:
            return None, {}
        port = ServedPort(self._serve)
        stack.callback(port.close)
        is_file = sqlite_file(self.settings.database_url) is not None
        return port, {"served_at": port.url} if is_file else {}

    @property
    def url(self) -> str | None:
        """The URL of the server of `serve`, such as http://127.0.0.1:4747, or None."""
        return self._url

    @property
    def asgi(self) -> ASGIApp:
        """The server as an ASGI application, for a web app to mount: `app.mount("/perdure", perdure.asgi)`.

        It answers while this is open, and only callers with a key or a token, unless the setting
        `insecure_no_auth` is on.
        """
        return self._mountable

    @property
    def _opened(self) -> App:
        if self._app is None:
            raise StorageClosed("it is not open: use it with `async with`")
        return self._app

    @property
    def store(self) -> DatabaseLightningStore:
        """The database as a LightningStore: rollouts, attempts, spans, resources."""
        if self._store is None:
            raise StorageClosed("it is not open: use it with `async with`")
        return self._store

    @property
    def services(self) -> Services:
        """All services of the database."""
        return self._opened.services

    @property
    def threads(self) -> Threads:
        """Threads, runs, states and streams."""
        return self.services.threads

    @property
    def items(self) -> Items:
        """Items: values by namespace and key, independent of threads."""
        return self.services.items

    @property
    def sessions(self) -> Sessions:
        """Sessions: transcripts of agents, line by line."""
        return self.services.sessions

    @property
    def memory(self) -> Memory:
        """Memory: events in order of their time, and the search over them."""
        return self.services.memory

    @property
    def schedules(self) -> Schedules:
        """Schedules, which fire while this is open."""
        return self.services.schedules

    @property
    def jobs(self) -> Jobs:
        """Jobs: internal work, executed while this is open."""
        return self.services.jobs

    @property
    def assistants(self) -> Assistants:
        """Assistants and their versions."""
        return self.services.assistants

    async def why(self, id: str) -> Why:
        """Explain why a run, thread, rollout or schedule is waiting, or how it ended."""
        return await self.services.diagnostics.why(id)

    async def stats(self) -> dict[str, Any]:
        """Return queue depth, workers, connection pools and undelivered webhooks."""
        return await self.services.diagnostics.stats()

    async def run(self, assistant: str, input: Any = None, **options: Unpack[RunOptions]) -> RunEnd:
        """Run an assistant and wait for its end; other arguments are fields of `RunRequest`.

        The input is any JSON value, a dataclass or a pydantic model.
        """
        return await asking.run(self.threads, assistant, input, options)

    def stream(
        self, assistant: str, input: Any = None, **options: Unpack[RunOptions]
    ) -> AsyncGenerator[StreamEvent, None]:
        """Run an assistant and stream its events, each with its `data`, until its end."""
        return asking.stream_events(self.threads, assistant, input, options)

    def stream_bursts(
        self, assistant: str, input: Any = None, **options: Unpack[RunOptions]
    ) -> AsyncGenerator[Burst, None]:
        """Run an assistant and stream its events in bursts: events that were written together."""
        return self.threads.stream(asking.run_request(assistant, input, options))
