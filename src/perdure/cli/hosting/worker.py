"""`perdure worker`: executes the runs of a server or a database."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.hosting.agents import EMPTY, AgentsOption, gather_agents
from perdure.cli.hosting.garbage import settle_garbage_collector
from perdure.cli.shell.options import (
    DatabaseOption,
    JsonOption,
    LogLevelOption,
    NamespaceOption,
    TokenOption,
    UrlOption,
    number,
    text,
)

if TYPE_CHECKING:
    from perdure.kernel.config import Settings
    from perdure.worker.registry import Agents
    from perdure.worker.worker import Worker


def start(
    context: typer.Context,
    url: UrlOption = None,
    token: TokenOption = None,
    namespace: NamespaceOption = None,
    database: DatabaseOption = None,
    concurrency: Annotated[
        int | None,
        number(
            "Maximum number of concurrent runs (default: one for each CPU).",
            "--concurrency",
            "-c",
            min=1,
            max=10_000,
        ),
    ] = None,
    agents: AgentsOption = None,
    name: Annotated[
        str | None, text("NAME", "Worker ID to show in lists and logs (default: generated).", "--name")
    ] = None,
    log_level: LogLevelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a worker that executes runs, or list the workers.

    It works for the server at --url, or opens the database itself.
    """
    if context.invoked_subcommand is not None:
        return
    from perdure.cli.hosting import logs
    from perdure.cli.hosting.server import settings_from

    settings = settings_from(
        {
            "database_url": database,
            "namespace": namespace,
            "jobs_per_worker": concurrency,
            "log_level": log_level,
        }
    )
    logs.configure(settings)
    found = gather_agents(settings, agents or ())
    if not len(found):
        typer.echo(f"perdure: {EMPTY}", err=True, nl=False)
        raise typer.Exit(1)
    place = url if database is None else None
    if place is None and database is None and settings.sources["database_url"] == "default":
        from perdure.cli.shell.target import DEFAULT_URL

        place = DEFAULT_URL
    opened = _remote(settings, found, place, token, name) if place else _direct(settings, found, name)
    if asyncio.run(_work(opened, partial(_announce, settings, found, place, as_json=as_json))):
        raise typer.Exit(130)


@asynccontextmanager
async def _remote(
    settings: Settings, agents: Agents, url: str, token: str | None, name: str | None
) -> AsyncIterator[Worker]:
    from perdure.client.lightning import LightningStoreClient
    from perdure.client.run_queue import RemoteRunQueue
    from perdure.langgraph.loopback import Loopback, OverHttp
    from perdure.runtime.components import running
    from perdure.worker.options import WorkerOptions
    from perdure.worker.worker import Worker

    namespace = settings.namespace if settings.sources["namespace"] != "default" else None
    options = WorkerOptions.from_settings(settings, worker_id=name)
    loopback = Loopback(lambda: OverHttp(url, token, namespace))
    async with LightningStoreClient(url, token=token, namespace=namespace) as store, running([loopback]):
        queue = RemoteRunQueue(url, token, namespace)
        yield Worker(queue, agents, options, store=store, requests=queue.graph_requests)


@asynccontextmanager
async def _direct(settings: Settings, agents: Agents, name: str | None) -> AsyncIterator[Worker]:
    from perdure.cli.hosting.server import items_here
    from perdure.langgraph.loopback import InProcess, Loopback
    from perdure.runtime.app import App
    from perdure.runtime.components import running
    from perdure.runtime.embedded_worker import Takeover, worker_of
    from perdure.runtime.stores import open_configured
    from perdure.server.table import application_of

    store = open_configured(settings)
    try:
        app = App(store, settings, items_here())
        loopback = Loopback(lambda: InProcess(application_of(app)))
        async with running((Takeover(app), loopback, app.services.deliveries)):
            yield worker_of(app, agents, worker_id=name)
    finally:
        await store.close()


class _Signals:
    """Waits for the first signal; the second kills the process."""

    def __init__(self) -> None:
        self.received = asyncio.Event()
        self.by_ctrl_c = False
        for each in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(each, self._receive, each)

    def _receive(self, received: int) -> None:
        if self.received.is_set():
            os._exit(128 + received)
        self.by_ctrl_c = received == signal.SIGINT
        self.received.set()


async def _work(opened: Any, announce: Callable[[Worker], None]) -> bool:
    """Run the worker until a signal comes; gives whether it was Ctrl-C."""
    signals = _Signals()
    async with opened as worker:
        settle_garbage_collector()
        starting = asyncio.ensure_future(worker.start())
        stopping = asyncio.ensure_future(signals.received.wait())
        try:
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                announce(worker)
                await stopping
        finally:
            await worker.stop()
            await asyncio.gather(starting, return_exceptions=True)
    return signals.by_ctrl_c


def _announce(settings: Settings, agents: Agents, url: str | None, worker: Worker, *, as_json: bool) -> None:
    from perdure.cli.shell.output import Output
    from perdure.kernel.config import mask_url

    place = url or mask_url(settings.database_url)
    output = Output(as_json=as_json)
    count = worker.options.concurrency
    if as_json:
        facts = {"worker_id": worker.worker_id, "agents": agents.names, "concurrency": count, "place": place}
        output.line(facts)
        return
    output.print(f"perdure worker {worker.worker_id} started: {place}, up to {count} concurrent runs")
    for spec in agents.specs:
        output.print(f"  {spec.name}  {spec.kind}" + (f"  {spec.description}" if spec.description else ""))
