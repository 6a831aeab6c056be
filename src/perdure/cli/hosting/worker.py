"""`perdure worker`: executes the runs of a server or a database."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.hosting.agents import EMPTY, AgentsOption, gather_agents
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
from perdure.kernel.lifecycle import Component, InPhase, Step, StopPhase

NO_ATTEMPTS_HERE = (
    "BG_JOB_MAX_RETRIES (job_max_retries) has no effect on this worker: the server that creates a run "
    "decides how many attempts it has; set it there, or max_attempts of the run"
)

SCOPE_HINT = (
    "A worker needs a token with the scope worker: create one with `perdure token create NAME --scope "
    "worker`, and set PERDURE_TOKEN or --token. It never uses the secret of the command on the server's "
    "machine, which is an administrator's"
)

if TYPE_CHECKING:
    from perdure.kernel.config import Settings
    from perdure.kernel.metrics import Metrics
    from perdure.kernel.tally import Tally
    from perdure.server.worker_port import WorkerPort
    from perdure.worker.registry import Agents
    from perdure.worker.worker import RunWorker


def start(
    context: typer.Context,
    url: UrlOption = None,
    token: TokenOption = None,
    namespace: NamespaceOption = None,
    database: DatabaseOption = None,
    concurrency: Annotated[
        int | None,
        number(
            "Maximum number of concurrent runs (default: 10 of async agents, one for each CPU of others).",
            "--concurrency",
            "-c",
            min=1,
            max=10_000,
        ),
    ] = None,
    agents: AgentsOption = None,
    name: Annotated[
        str | None, text("NAME", "RunWorker ID to show in lists and logs (default: generated).", "--name")
    ] = None,
    metrics_port: Annotated[
        int | None,
        number(
            "Port for /healthz, /readyz and /metrics (default: none; 0: any free port).",
            "--metrics-port",
            min=0,
            max=65_535,
        ),
    ] = None,
    queue: Annotated[
        list[str] | None,
        text(
            "QUEUE",
            "Queue to claim from: agents (runs) or workflows (phases); repeatable (default: both).",
            "--queue",
        ),
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
    from perdure.cli.hosting.process_secrets import protect_process
    from perdure.cli.hosting.server import run, settings_from
    from perdure.runtime.process import ServiceProcess
    from perdure.runtime.reloads import Reloads

    settings = settings_from(
        {
            "database_url": database,
            "namespace": namespace,
            "jobs_per_worker": concurrency,
            "metrics_port": metrics_port,
            "log_level": log_level,
        }
    )
    protect_process(settings)
    logs.configure(settings)
    loaded = gather_agents(settings, agents or ())
    queues = _queues(queue)
    if not len(loaded) and queues != ("workflows",):
        typer.echo(f"perdure: {EMPTY}", err=True, nl=False)
        raise typer.Exit(1)
    place = url if database is None else None
    if place is None and database is None and settings.sources["database_url"] == "default":
        from perdure.cli.shell.target import DEFAULT_URL

        place = DEFAULT_URL
    more = {"worker_id": name, "queues": queues}
    opened = _remote(settings, loaded, place, token, more) if place else _direct(settings, loaded, more)
    worker, services, port = opened
    if place and settings.sources["job_max_retries"] != "default":
        logging.getLogger(__name__).warning(NO_ATTEMPTS_HERE)
    reloads = Reloads(settings)
    reloads.add("log level", logs.reload, settings=logs.SETTINGS)
    process = ServiceProcess([*services, worker], timeout=settings.seconds_to_stop, reloads=reloads)

    says_json = as_json or settings.log_json
    process.when_running(lambda: _announce(settings, loaded, place, worker, port, as_json=says_json))
    run(process)


def _queues(given: list[str] | None) -> tuple[str, ...] | None:
    """Check the given queues; None means the default."""
    from perdure.threads.encoding import check_queues

    return None if not given else check_queues(given)


def _remote(
    settings: Settings, agents: Agents, url: str, token: str | None, more: dict[str, Any]
) -> tuple[RunWorker, list[Component], WorkerPort | None]:
    """Build a worker for the server at a URL, with its components."""
    from perdure.client.lightning import LightningStoreClient
    from perdure.client.run_queue import RemoteRunQueue
    from perdure.kernel.metrics import Metrics
    from perdure.langgraph.loopback import Loopback, OverHttp
    from perdure.runtime.services import get_workspaces_folder
    from perdure.worker.options import WorkerOptions
    from perdure.worker.worker import RunWorker

    namespace = settings.namespace if settings.sources["namespace"] != "default" else None
    options = WorkerOptions.from_settings(settings, workspaces=get_workspaces_folder(settings), **more)
    loopback = Loopback(lambda: OverHttp(url, token, namespace))
    store = LightningStoreClient(url, token=token, namespace=namespace)
    queue = RemoteRunQueue(url, token, namespace)
    metrics = Metrics()
    worker = RunWorker(
        queue,
        agents,
        options,
        store=store,
        requests=queue.graph_requests,
        memory=queue.memory,
        metrics=metrics,
    )
    port = _port(worker, settings, metrics)
    opened = [] if port is None else [port]
    check = _TokenCheck(url, token, namespace)
    return worker, [check, _Open(store.close), *opened, InPhase(StopPhase.SUPPORT, loopback)], port


def _port(
    worker: RunWorker, settings: Settings, metrics: Metrics, tally: Tally | None = None
) -> WorkerPort | None:
    """Build the port for probes and metrics, if the settings have one."""
    from perdure.server.worker_port import WorkerPort

    if settings.metrics_port is None:
        return None
    return WorkerPort(worker, settings, settings.metrics_port, metrics, tally)


def _direct(
    settings: Settings, agents: Agents, more: dict[str, Any]
) -> tuple[RunWorker, list[Component], WorkerPort | None]:
    """Build a worker on a database that this process opens, with its components."""
    from perdure.cli.hosting.server import items_here
    from perdure.langgraph.loopback import InProcess, Loopback
    from perdure.runtime.app import App
    from perdure.runtime.components import Takeover, build_worker
    from perdure.runtime.stores import open_configured
    from perdure.server.table import build_application

    store = open_configured(settings)
    app = App(store, settings, items_here())
    loopback = Loopback(lambda: InProcess(build_application(app)))
    worker = build_worker(app, agents, **more)
    port = _port(worker, settings, app.metrics, app.services.storage.tally)
    services: list[Component] = [
        _Open(store.close),
        *([] if port is None else [port]),
        Takeover(app),
        InPhase(StopPhase.SUPPORT, loopback),
        InPhase(StopPhase.SUPPORT, app.services.deliveries),
    ]
    return worker, services, port


class _TokenCheck:
    """Refuses to start a worker without a suitable token. It does not wait for the server."""

    def __init__(self, url: str, token: str | None, namespace: str | None) -> None:
        self._url, self._token, self._namespace = url, token, namespace

    async def start(self) -> None:
        """Ask the server for the scopes of the token."""
        from perdure.cli.shell.remote import Remote
        from perdure.kernel.errors import PerdureError, StartRefused, Unauthorized
        from perdure.service.callers import allows

        connection = Remote(self._url, self._token, self._namespace)
        try:
            caller = await connection.access.whoami()
        except Unauthorized as error:
            raise StartRefused(f"{error.message.rstrip('.')}. {SCOPE_HINT}") from None
        except PerdureError:
            # The server cannot be reached yet, or the token allows only the work itself.
            return
        finally:
            await connection.close()
        if not allows(caller.scopes, "worker"):
            raise StartRefused(f"this token has the scopes {', '.join(caller.scopes)} only. {SCOPE_HINT}")

    async def stop(self) -> None:
        """Do nothing; nothing is open."""


class _Open:
    """A resource that is already open, and closed after the worker has ended."""

    def __init__(self, close: Step) -> None:
        self._close = close

    async def start(self) -> None:
        """Do nothing; the resource is open."""

    async def stop(self) -> None:
        await self._close()

    def stop_steps(self) -> Mapping[StopPhase, Step]:
        return {StopPhase.STORAGE: self._close}


def _announce(
    settings: Settings,
    agents: Agents,
    url: str | None,
    worker: RunWorker,
    port: WorkerPort | None,
    *,
    as_json: bool,
) -> None:
    from perdure.cli.shell.output import Output
    from perdure.kernel.config import mask_url

    place = url or mask_url(settings.database_url)
    output = Output(as_json=as_json)
    count = worker.slots
    if as_json:
        queues = list(worker.options.queues)
        facts = {"worker_id": worker.worker_id, "agents": agents.names, "concurrency": count, "place": place}
        facts |= {"queues": queues} | ({} if port is None else {"metrics": f"{port.url}/metrics"})
        output.line(facts)
        return
    output.print(f"perdure worker {worker.worker_id} started: {place}, up to {count} concurrent runs")
    for spec in agents.specs:
        output.print(f"  {spec.name}  {spec.kind}" + (f"  {spec.description}" if spec.description else ""))
    if port is not None:
        output.print(f"  metrics {port.url}/metrics, probes /healthz and /readyz")
